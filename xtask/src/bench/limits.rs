//! The machine's limits, measured in the same run as everything else.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::roofline::Rates;
use super::{output_of, scripts};
use crate::cargo;

/// Rates of all threads together, in 10^9 for each second.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Limits {
    /// Bytes read from memory.
    pub memory_read_gb_s: f64,
    /// Multiplications and additions of f32.
    pub f32_gflop_s: f64,
    /// Operations of 8-bit integers in AVX-512 VNNI, if the machine has it.
    pub vnni_int8_gop_s: Option<f64>,
    /// Operations of bf16 in AVX-512, if the machine has it.
    pub avx512_bf16_gflop_s: Option<f64>,
    /// Operations of 16-bit integers, in the widest vectors that have them.
    pub int16_gop_s: Option<f64>,
    /// Operations of bf16 in AMX tiles.
    pub amx_bf16_gflop_s: Option<f64>,
    /// Operations of 8-bit integers in AMX tiles.
    pub amx_int8_gop_s: Option<f64>,
}

impl Limits {
    /// Compiles `limits.cpp` in `work`, for this machine or one that a compiler's option names, and runs it.
    pub fn measure(work: &Path, threads: usize, machine: Option<&str>) -> Result<Self> {
        std::fs::create_dir_all(work)?;
        let program = work.join(format!("limits{}", std::env::consts::EXE_SUFFIX));
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let compile = |machine: &str| {
            let mut command = Command::new(&compiler);
            command.args(["-std=c++17", "-O3", "-pthread", machine]);
            command
                .arg(scripts().join("limits.cpp"))
                .arg("-o")
                .arg(&program);
            command
        };
        if let Some(machine) = machine {
            cargo::run(&mut compile(machine))?;
        } else if output_of(&mut compile("-march=native")).is_none() {
            // Compilers for ARM name the option differently.
            cargo::run(&mut compile("-mcpu=native"))?;
        }
        match output_of(Command::new(&program).arg(threads.to_string())) {
            Some(text) => serde_json::from_str(&text).context("limits are not what was expected"),
            None => bail!("{} failed", program.display()),
        }
    }

    /// The rates for a roofline.
    pub fn rates(&self) -> Rates {
        Rates {
            memory_gb_s: self.memory_read_gb_s,
            product_gflop_s: self.best_product(),
        }
    }

    /// The best rate for products of 16-bit numbers.
    fn best_product(&self) -> f64 {
        let narrow = [
            self.amx_bf16_gflop_s,
            self.avx512_bf16_gflop_s,
            self.int16_gop_s,
        ];
        narrow
            .into_iter()
            .flatten()
            .fold(self.f32_gflop_s, f64::max)
    }

    /// The limits as a sentence.
    pub fn text(&self, threads: usize) -> String {
        let mut text = format!(
            "The machine's own limits in this run, {threads} threads: memory read {:.1} GB/s, f32 {:.0} GFLOP/s",
            self.memory_read_gb_s, self.f32_gflop_s
        );
        for (name, rate) in [
            ("AVX-512 VNNI int8", self.vnni_int8_gop_s),
            ("AVX-512 bf16", self.avx512_bf16_gflop_s),
            ("int16", self.int16_gop_s),
            ("AMX bf16", self.amx_bf16_gflop_s),
            ("AMX int8", self.amx_int8_gop_s),
        ] {
            if let Some(rate) = rate {
                text += &format!(", {name} {rate:.0} G/s");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_run_at_the_best_rate_of_16_bits() {
        let limits = Limits {
            memory_read_gb_s: 10.0,
            f32_gflop_s: 100.0,
            vnni_int8_gop_s: None,
            avx512_bf16_gflop_s: None,
            int16_gop_s: Some(200.0),
            amx_bf16_gflop_s: Some(1000.0),
            amx_int8_gop_s: Some(2000.0),
        };
        let rates = limits.rates();
        assert_eq!((rates.memory_gb_s, rates.product_gflop_s), (10.0, 1000.0));
    }
}

//! The machine's limits.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::timed::Amount;

/// Rates of all threads together, in 10^9 per second, as `xtask/bench/limits.cpp` prints them.
#[derive(Debug, Deserialize)]
pub struct Peaks {
    memory_read_gb_s: f64,
    f32_gflop_s: f64,
    amx_bf16_gflop_s: Option<f64>,
    avx512_bf16_gflop_s: Option<f64>,
    int16_gop_s: Option<f64>,
}

impl Peaks {
    /// Measured once, with the same number of threads as the kernels.
    pub fn get() -> &'static Self {
        static PEAKS: OnceLock<Peaks> = OnceLock::new();
        PEAKS.get_or_init(|| {
            let peaks = Self::measure().unwrap_or_else(|error| {
                eprintln!("error: cannot measure the machine's limits: {error}");
                std::process::exit(1);
            });
            println!("limits of this machine: {peaks:?}");
            peaks
        })
    }

    fn measure() -> Result<Self, Box<dyn std::error::Error>> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/bench/limits.cpp");
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("limits");
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        // Compilers for ARM use the second option.
        let compiled = ["-march=native", "-mcpu=native"].iter().any(|machine| {
            let mut command = Command::new(&compiler);
            command.args(["-std=c++17", "-O3", "-pthread", machine]);
            command.arg(&source).arg("-o").arg(&program);
            command.output().is_ok_and(|output| output.status.success())
        });
        if !compiled {
            return Err(format!("{compiler:?} does not compile {}", source.display()).into());
        }
        let threads = match std::env::var("MLX_CPU_THREADS") {
            Ok(threads) => threads,
            Err(_) => std::thread::available_parallelism()?.to_string(),
        };
        let output = Command::new(&program).arg(threads).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// A line about a kernel that took this many seconds.
    pub fn compare(&self, amount: Amount, seconds: f64) -> String {
        let (operations, bytes) = (
            amount.operations / seconds / 1e9,
            amount.bytes / seconds / 1e9,
        );
        let of = |rate: f64, limit: f64| 100.0 * rate / limit;
        let mut line = format!(
            "{:24}best {:.1} µs: {operations:.1} GFLOP/s ({:.0} % of f32",
            "",
            1e6 * seconds,
            of(operations, self.f32_gflop_s)
        );
        for (name, limit) in [
            ("AMX bf16", self.amx_bf16_gflop_s),
            ("AVX-512 bf16", self.avx512_bf16_gflop_s),
            ("int16", self.int16_gop_s),
        ] {
            if let Some(limit) = limit {
                line += &format!(", {:.0} % of {name}", of(operations, limit));
            }
        }
        let memory = of(bytes, self.memory_read_gb_s);
        line + &format!("), {bytes:.1} GB/s ({memory:.0} % of memory's)")
    }
}

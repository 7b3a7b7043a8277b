//! The single kernels, as `mlx-core/benches/cuda_kernels` measures them, next to the card's own
//! limits.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::program;
use crate::bench::record::Section;
use crate::bench::roofline::Rates;
use crate::bench::stats::{digits, head};

/// The card's limits, measured in the same run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Limits {
    /// Bytes read and written by the fastest copy.
    pub copy_gb_s: f64,
    /// Products of 16-bit matrices.
    pub matmul_tflop_s: f64,
    /// The time of an empty kernel.
    pub kernel_us: f64,
}

impl Limits {
    pub fn rates(&self) -> Rates {
        Rates {
            memory_gb_s: self.copy_gb_s,
            product_gflop_s: 1e3 * self.matmul_tflop_s,
        }
    }

    /// The limits as a sentence.
    pub fn text(&self) -> String {
        format!(
            "The card's own limits in this run: copy {} GB/s, products of bf16 {} TFLOP/s, an empty kernel {} µs",
            digits(self.copy_gb_s),
            digits(self.matmul_tflop_s),
            digits(self.kernel_us)
        )
    }
}

/// A kernel in one case.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Kernel {
    kernel: String,
    case: String,
    rows: u32,
    us: f64,
    /// The bytes that it must read and write, and the operations that it must compute.
    bytes: f64,
    flop: f64,
    /// Whether the host was slower than the GPU, so that the time is the host's.
    host_bound: bool,
}

impl Kernel {
    fn gb_s(&self) -> f64 {
        self.bytes / self.us / 1e3
    }

    fn tflop_s(&self) -> f64 {
        self.flop / self.us / 1e6
    }
}

/// A line of the program.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Limits { limits: Limits },
    Kernel(Kernel),
}

/// The results of the program.
#[derive(Debug, PartialEq)]
pub struct Kernels {
    pub limits: Limits,
    pub all: Vec<Kernel>,
    /// Whether the time limit ended the program early.
    pub cut: bool,
}

/// Runs the program.
pub fn measure(program: &Path, quick: bool, limit: Duration) -> Result<Kernels> {
    let mut command = Command::new(program);
    command.args(quick.then_some("--quick"));
    let run = program::run(&mut command, limit)?;
    if !run.succeeded && !run.timed_out {
        let last = run.lines.last().map_or("no output", String::as_str);
        bail!("the kernels' benchmark failed: {last}");
    }
    read(&run.lines, run.timed_out)
}

fn read(lines: &[String], cut: bool) -> Result<Kernels> {
    let (mut limits, mut all) = (None, Vec::new());
    for line in lines.iter().filter(|line| line.starts_with('{')) {
        // The last line may be incomplete.
        match serde_json::from_str(line) {
            Ok(Line::Limits { limits: found }) => limits = Some(found),
            Ok(Line::Kernel(kernel)) => all.push(kernel),
            Err(_) if cut => (),
            Err(error) => bail!("the kernels' benchmark printed {line}: {error}"),
        }
    }
    Ok(Kernels {
        limits: limits.context("the kernels' benchmark has not printed the card's limits")?,
        all,
        cut,
    })
}

impl Kernels {
    /// The results as a section of the record.
    pub fn section(&self) -> Section {
        let mut text = "Kernels one by one, with weights that are not in the L2 cache. The shares are of the card's copy rate and of its rate of products; the \
             time in brackets is the host's:\n\n"
            .to_owned();
        let words = ["kernel", "case"].map(|name| (name, false));
        let numbers = ["rows", "µs", "GB/s", "of copy", "TFLOP/s", "of products"];
        text += &head(words.into_iter().chain(numbers.map(|name| (name, true))));
        for kernel in &self.all {
            let time = match kernel.host_bound {
                true => format!("({})", digits(kernel.us)),
                false => digits(kernel.us),
            };
            let share = |rate: f64, limit: f64| format!("{:.0} %", 100.0 * rate / limit);
            let measured = match kernel.us > 0.0 {
                true => format!(
                    "{time} | {} | {} | {} | {}",
                    digits(kernel.gb_s()),
                    share(kernel.gb_s(), self.limits.copy_gb_s),
                    digits(kernel.tflop_s()),
                    share(kernel.tflop_s(), self.limits.matmul_tflop_s),
                ),
                false => "below the noise | – | – | – | –".to_owned(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {measured} |",
                kernel.kernel, kernel.case, kernel.rows
            );
        }
        if self.cut {
            text += "\nThe time was over before all kernels were measured.\n";
        }
        Section {
            name: "kernels",
            json: json!({"limits": self.limits, "cut": self.cut, "kernels": self.all}),
            text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str =
        r#"{"limits": {"copy_gb_s": 3000.0, "matmul_tflop_s": 700.0, "kernel_us": 2.0}}"#;
    const KERNEL: &str = r#"{"kernel": "linear q4", "case": "gemma3 up_proj", "rows": 8, "us": 3.0, "bytes": 4500000.0, "flop": 127401984.0, "host_bound": false}"#;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn rates_stand_beside_the_cards() {
        let found = read(&lines(&["a warning", LIMITS, KERNEL]), false).unwrap();
        let text = found.section().text;
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "| linear q4 | gemma3 up_proj | 8 | 3.00 | 1500 | 50 % | 42.5 | 6 % |"
        );
        let host = KERNEL.replace("false", "true");
        let found = read(&lines(&[LIMITS, &host]), true).unwrap();
        let text = found.section().text;
        assert!(text.contains("| 8 | (3.00) | 1500 |"), "{text}");
        assert!(text.ends_with("before all kernels were measured.\n"));
    }

    #[test]
    fn a_line_that_was_cut_counts_only_where_the_time_was_over() {
        let cut = lines(&[LIMITS, KERNEL, &KERNEL[..40]]);
        assert_eq!(read(&cut, true).unwrap().all.len(), 1);
        assert!(read(&cut, false).is_err());
        let error = read(&lines(&[KERNEL]), true).unwrap_err();
        assert!(error.to_string().contains("limits"), "{error}");
    }
}

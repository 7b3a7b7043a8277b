//! The GPU, and the programs that run on it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::{Arguments, Part};
use crate::bench::output_of;
use crate::cargo;

/// A GPU.
pub struct Gpu {
    pub name: String,
    driver: String,
    memory: String,
}

impl Gpu {
    /// Asks the driver for the first card.
    pub fn find() -> Result<Self> {
        let query = [
            "--query-gpu=name,driver_version,memory.total",
            "--format=csv,noheader",
        ];
        let answer = output_of(Command::new("nvidia-smi").args(query));
        match answer.as_deref().and_then(Self::read) {
            Some(gpu) => Ok(gpu),
            None => bail!(
                "bench cuda needs an NVIDIA GPU, and no driver answers (nvidia-smi): run it on a host that has one, built with MLX_BACKEND=cuda13 or with \
                 programs that were built elsewhere; docs/design/benchmarks.md says how"
            ),
        }
    }

    fn read(answer: &str) -> Option<Self> {
        let mut words = answer
            .lines()
            .next()?
            .split(',')
            .map(|word| word.trim().to_owned());
        Some(Self {
            name: words.next().filter(|name| !name.is_empty())?,
            driver: words.next()?,
            memory: words.next()?,
        })
    }

    /// The GPU as a sentence.
    pub fn text(&self) -> String {
        format!(
            "GPU: {}, {}, driver {}",
            self.name, self.memory, self.driver
        )
    }
}

/// The programs: given, or built.
pub struct Programs {
    pub session: PathBuf,
    pub tests: Option<PathBuf>,
    pub kernels: Option<PathBuf>,
    pub train: Option<PathBuf>,
    pub goldens: Option<PathBuf>,
}

impl Programs {
    pub fn find(arguments: &Arguments) -> Result<Self> {
        let needs = |part, given: &Option<PathBuf>, build: [&str; 3]| match given {
            _ if !arguments.parts.contains(&part) => Ok(None),
            Some(file) => Ok(Some(file.clone())),
            None => build_one(build).map(Some),
        };
        Ok(Self {
            session: match &arguments.session {
                Some(file) => file.clone(),
                None => build_one(["build", "mlx-infer", "--example=bench_session"])?,
            },
            tests: needs(
                Part::Correctness,
                &arguments.tests,
                ["test", "mlx-core", "--test=cuda"],
            )?,
            kernels: needs(
                Part::Kernels,
                &arguments.kernels,
                ["bench", "mlx-core", "--bench=cuda_kernels"],
            )?,
            train: needs(
                Part::Training,
                &arguments.train,
                ["build", "mlx-train", "--bin=mlx-train"],
            )?,
            goldens: needs(
                Part::Training,
                &arguments.goldens,
                ["test", "mlx-train", "--test=golden"],
            )?,
        })
    }
}

/// Builds a target of a package, for CUDA unless the environment asks for another back end, and returns its path.
fn build_one([command, package, target]: [&str; 3]) -> Result<PathBuf> {
    let mut cargo = cargo::command([command, "--package", package, target]);
    // `cargo bench` always uses the bench profile.
    cargo.args((command != "bench").then_some("--release"));
    cargo.args((command != "build").then_some("--no-run"));
    if std::env::var_os("MLX_BACKEND").is_none() {
        cargo.env("MLX_BACKEND", "cuda13");
    }
    cargo::executable(&mut cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_card_is_named() {
        let gpu = Gpu::read("NVIDIA H100 80GB HBM3, 580.95.05, 81559 MiB\nanother, 1, 2\n");
        let text = "GPU: NVIDIA H100 80GB HBM3, 81559 MiB, driver 580.95.05";
        assert_eq!(gpu.unwrap().text(), text);
        assert!(Gpu::read("").is_none());
        assert!(Gpu::read("No devices were found").is_none());
    }
}

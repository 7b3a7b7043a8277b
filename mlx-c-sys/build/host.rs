//! The machine and the back end.

use super::pins;
use super::report::{Failure, Result};

/// Which MLX to link with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Linux, no GPU.
    Cpu,
    /// Linux, CUDA 12.
    Cuda12,
    /// Linux, CUDA 13.
    Cuda13,
    /// macOS on Apple silicon. This part of the build has never been run.
    Metal,
}

impl Backend {
    /// All of them, in the order in which they are listed to users.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Cuda12, Self::Cuda13, Self::Metal];

    /// The name users give.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda12 => "cuda12",
            Self::Cuda13 => "cuda13",
            Self::Metal => "metal",
        }
    }

    /// The pip requirement file of the wheel, with hashes.
    pub fn requirements(self) -> &'static str {
        match self {
            Self::Cpu => pins::REQUIRE_MLX_CPU,
            Self::Cuda12 => pins::REQUIRE_MLX_CUDA_12,
            Self::Cuda13 => pins::REQUIRE_MLX_CUDA_13,
            Self::Metal => pins::REQUIRE_MLX_METAL,
        }
    }

    /// The default back end of a target.
    pub fn default_for(target: &str) -> Self {
        if target.contains("apple") {
            Self::Metal
        } else {
            Self::Cpu
        }
    }

    /// The back end called `name`, if the target can have it.
    pub fn parse(name: &str, target: &str) -> Result<Self> {
        let known = Self::ALL.map(Self::name).join(", ");
        let Some(backend) = Self::ALL.into_iter().find(|b| b.name() == name) else {
            return Err(Failure::new(format!("back end \"{name}\" is unknown"))
                .sought(format!("one of {known}"))
                .fix("set MLX_BACKEND to one of them, or unset it"));
        };
        if (backend == Self::Metal) != target.contains("apple") {
            return Err(
                Failure::new(format!("back end \"{name}\" does not exist for {target}"))
                    .sought("metal on macOS; cpu, cuda12 or cuda13 on Linux")
                    .fix("set MLX_BACKEND to one of them, or unset it"),
            );
        }
        Ok(backend)
    }
}

/// The triple of this machine: cargo says it to build scripts, and `xtask` always builds for its own.
pub fn triple() -> String {
    std::env::var("HOST").unwrap_or_else(|_| {
        let system = if cfg!(target_os = "macos") {
            "apple-darwin"
        } else {
            "unknown-linux-gnu"
        };
        format!("{}-{system}", std::env::consts::ARCH)
    })
}

/// File name of the shared library `name` on this machine.
pub fn library(name: &str) -> String {
    library_of(&triple(), name)
}

/// File name of the shared library `name` on a target.
pub fn library_of(target: &str, name: &str) -> String {
    let ending = if target.contains("apple") {
        "dylib"
    } else {
        "so"
    };
    format!("lib{name}.{ending}")
}

//! The CUDA kernels of this repository: the cards that they are compiled for, and their compiler.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Options;
use super::host::Backend;
use super::pins;
use super::pip;
use super::report::{Failure, Result};

/// The variable that limits the architectures, for quick builds: "90a", or "80,90a".
pub const VARIABLE: &str = "MLX_CUDA_ARCHITECTURES";

/// The architectures that a build compiles for. 80 also runs on 8.6, 89 has products of fp8, 90a
/// has wgmma and runs on 9.0 only, 100 also runs on 10.3, and 120 on 12.1. Newer cards compile the
/// PTX at its first use, with a driver that is at least as new as the compiler.
pub const ARCHITECTURES: &str = "80,89,90a,100,120,ptx100";

/// One target of the compiler: machine code for a compute capability, or PTX, which the driver compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Ten times the compute capability.
    pub capability: u32,
    /// `a`: this capability only. `f`: capabilities of the same family. None: capabilities with the
    /// same first number that are not lower.
    pub suffix: Option<char>,
    /// PTX instead of machine code.
    pub ptx: bool,
}

impl Architecture {
    /// The architecture called `name`: "80", "90a", "100f", "ptx100".
    pub fn parse(name: &str) -> Option<Self> {
        let (ptx, rest) = match name.strip_prefix("ptx") {
            Some(rest) => (true, rest),
            None => (false, name),
        };
        let digits = rest.trim_end_matches(['a', 'f']);
        let suffix = match &rest[digits.len()..] {
            "" => None,
            "a" => Some('a'),
            "f" => Some('f'),
            _ => return None,
        };
        let known = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
        let capability = digits
            .parse()
            .ok()
            .filter(|n| known && (80..1000).contains(n))?;
        Some(Self {
            capability,
            suffix,
            ptx,
        })
    }

    /// The list in [`VARIABLE`], or all.
    pub fn list(text: &str) -> Result<Vec<Self>> {
        let mut list = Vec::new();
        for name in text.split([',', ';', ' ']).filter(|name| !name.is_empty()) {
            let Some(one) = Self::parse(name) else {
                return Err(Failure::new(format!("{VARIABLE} names no CUDA architecture"))
                    .sought(format!("some of {ARCHITECTURES}, separated by commas"))
                    .found(name)
                    .fix(format!("unset {VARIABLE}, or set it to the compute capability of your card: 90a for 9.0")));
            };
            if !list.contains(&one) {
                list.push(one);
            }
        }
        if list.is_empty() {
            return Self::list(ARCHITECTURES);
        }
        Ok(list)
    }

    /// nvcc's `-arch`.
    pub fn target(&self) -> String {
        let kind = if self.ptx { "compute" } else { "sm" };
        format!("{kind}_{}", self.number())
    }

    /// The number with its suffix: "90a".
    pub fn number(&self) -> String {
        let suffix = self.suffix.map(String::from).unwrap_or_default();
        format!("{}{suffix}", self.capability)
    }

    /// Whether a card of this compute capability runs it.
    pub fn runs_on(&self, capability: u32) -> bool {
        match (self.suffix, self.ptx) {
            (Some('a'), _) => capability == self.capability,
            (None, true) => capability >= self.capability,
            _ => capability / 10 == self.capability / 10 && capability >= self.capability,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ptx = if self.ptx { "ptx" } else { "" };
        write!(f, "{ptx}{}", self.number())
    }
}

/// What a card of this compute capability runs: the closest machine code, else PTX.
pub fn choice(list: &[Architecture], capability: u32) -> Option<&Architecture> {
    list.iter()
        .filter(|one| one.runs_on(capability))
        .max_by_key(|one| (!one.ptx, one.capability, one.suffix.is_some()))
}

/// Ten times the compute capability that a driver names: "9.0" is 90.
pub fn capability(text: &str) -> Option<u32> {
    let (major, minor) = text.trim().split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    (minor < 10).then_some(10 * major + minor)
}

/// The reason why a CUDA back end has no kernels of this repository, if it has none.
pub fn left_out(backend: Backend) -> Option<&'static str> {
    (backend == Backend::Cuda12).then_some(
        "none of this repository's: its compiler does not exist as a wheel for CUDA 12; MLX's own operations compute",
    )
}

/// The inputs besides the sources that decide which kernels a build has: the compiler, and the
/// cards that it compiles for. Empty if the back end has no kernels.
pub fn fact(options: &Options) -> String {
    if options.backend != Backend::Cuda13 {
        return String::new();
    }
    let names: Vec<String> = options
        .architectures
        .iter()
        .map(ToString::to_string)
        .collect();
    let compiler = pins::digest([pins::REQUIRE_CUDA_TOOLKIT_13]);
    format!("{} by {compiler}", names.join(","))
}

/// The compiler, and the headers for the host code of the kernels.
#[derive(Clone, Debug)]
pub struct Toolkit {
    /// The folder with `bin`, `nvvm` and `include`.
    pub dir: PathBuf,
}

impl Toolkit {
    /// Where it is kept.
    pub fn place(root: &Path) -> PathBuf {
        root.join("tools/cuda-13")
    }

    /// The pinned wheels, downloaded once.
    pub fn ensure(root: &Path, say: &mut dyn FnMut(&str)) -> Result<Self> {
        let inside = Path::new("nvidia/cu13");
        let files = ["bin/nvcc.profile", "bin/fatbinary", "include/cuda.h"];
        let files = files.map(|file| inside.join(file));
        let what = "the CUDA compiler (130 MB)";
        let dir = pip::unpack(
            Self::place(root),
            what,
            pins::REQUIRE_CUDA_TOOLKIT_13,
            files,
            say,
        )?;
        Ok(Self {
            dir: dir.join(inside),
        })
    }

    /// The path of a program of the toolkit.
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join("bin").join(name)
    }
}

//! `doctor`: reports what the build finds on this machine, what is missing, and the command that fixes it.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::build_mlx;
use crate::native::cuda::{self, Architecture, Toolkit};
use crate::native::host::{self, Backend};
use crate::native::prefix::{self, Prefix};
use crate::native::report::Failure;
use crate::native::{self, Options, pins, pip, tools};

/// Prints the report; fails when the build could not succeed.
pub fn run() -> Result<()> {
    let options = build_mlx::from_env()?;
    println!(
        "MLX {}, mlx-c {}, back end {}, host {}",
        pins::MLX,
        pins::MLX_C,
        options.backend.name(),
        host::triple()
    );
    let mut report = Report { missing: 0 };
    report.machine(&options);
    report.search(&options);
    report.back_end(&options);
    match report.missing {
        0 => println!("nothing is missing: `cargo build` will work"),
        1 => bail!("one thing is missing"),
        n => bail!("{n} things are missing"),
    }
    Ok(())
}

struct Report {
    missing: usize,
}

impl Report {
    fn good(&self, what: &str, found: &str) {
        println!("  ok       {what}: {}", found.trim());
    }

    fn later(&self, what: &str, will: &str) {
        println!("  to come  {what}: {will}");
    }

    fn bad(&mut self, what: &str, failure: &Failure) {
        self.missing += 1;
        println!(
            "  MISSING  {what}: {}",
            failure
                .to_string()
                .trim_end()
                .replace('\n', "\n           ")
        );
    }

    fn machine(&mut self, options: &Options) {
        println!("this machine");
        let built = is_built(options);
        for tool in ["cargo", "rustc"] {
            if let Some(version) = tools::output_of(Command::new(tool).arg("--version")) {
                self.good(tool, &version);
            }
        }
        match tools::compiler() {
            Ok(version) => self.good("C++ compiler", &version),
            Err(_) if built => self.later(
                "C++ compiler",
                "not here, and not needed: everything is built",
            ),
            Err(failure) => self.bad("C++ compiler", &failure),
        }
        match pip::version() {
            Ok(version) => self.good("Python with pip", &version),
            Err(_) if built => {
                self.later(
                    "Python with pip",
                    "not here, and not needed: everything is built",
                );
            }
            Err(failure) => self.bad("Python with pip", &failure),
        }
        let tool = |name: &str| {
            options
                .root
                .join("tools")
                .join(name)
                .join(native::store::MARKER)
                .is_file()
        };
        for (name, on_path) in [
            ("cmake", tools::cmake_on_path()),
            ("ninja", tools::ninja_on_path()),
        ] {
            match on_path {
                Some(_) => self.good(name, "on PATH"),
                None if tool(name) => {
                    self.good(name, "not on PATH; its wheel is in the build folder")
                }
                None => self.later(name, "not on PATH; the build fetches its wheel"),
            }
        }
    }

    /// The places that are searched, in order, each with what it holds.
    fn search(&mut self, options: &Options) {
        println!("where MLX comes from, the first that is set wins");
        println!(
            "  -        0 builds are kept in {} ({}, {} names another folder)",
            options.root.display(),
            megabytes(&options.root),
            native::cache::VARIABLE
        );
        match &options.mlx_c_dir {
            Some(dir) => match Prefix::given(dir, &options.target) {
                Ok(_) => self.good("1 MLX_C_DIR", &dir.display().to_string()),
                Err(failure) => self.bad("1 MLX_C_DIR", &failure),
            },
            None => println!("  -        1 MLX_C_DIR: not set"),
        }
        match &options.mlx_dir {
            Some(dir) => match prefix::installed_mlx(dir) {
                Ok(found) => self.good("2 MLX_DIR", &found.display().to_string()),
                Err(failure) => self.bad("2 MLX_DIR", &failure),
            },
            None => println!("  -        2 MLX_DIR: not set"),
        }
        let wheel = native::wheel_dir(options);
        let unused =
            options.mlx_c_dir.is_some() || options.mlx_dir.is_some() || options.from_source;
        match (unused, prefix::installed_mlx(&wheel)) {
            (true, _) => println!("  -        3 wheel: not used"),
            (false, Ok(found)) => self.good("3 wheel", &found.display().to_string()),
            (false, Err(_)) => self.later("3 wheel", "the build downloads it"),
        }
        let source = if options.from_source {
            "asked for"
        } else {
            "not asked for (MLX_FROM_SOURCE=1)"
        };
        println!("  -        4 MLX from source: {source}");
        if options.mlx_c_dir.is_some() {
            return;
        }
        match planned(options).map(|prefix| (prefix.entry().unfinished(), prefix)) {
            Some((None, prefix)) => self.good("libmlxc", &prefix.dir.display().to_string()),
            Some((Some(reason), _)) => {
                self.later(
                    "libmlxc",
                    &format!("{reason}; built by `cargo build` or `cargo xtask build-mlx`"),
                );
            }
            None => self.later(
                "libmlxc",
                "built by `cargo build` or `cargo xtask build-mlx`",
            ),
        }
    }

    /// The compiler of the CUDA kernels, and for which cards it compiles.
    fn kernels(&self, options: &Options) {
        if let Some(why) = cuda::left_out(options.backend) {
            println!("  -        CUDA kernels: {why}");
            return;
        }
        self.good("CUDA kernels for", &names(&options.architectures));
        let place = Toolkit::place(&options.root);
        if place.join(native::store::MARKER).is_file() {
            self.good("CUDA compiler", "its wheels are in the build folder");
        } else {
            self.later("CUDA compiler", "the build fetches its wheels (130 MB)");
        }
    }

    /// The driver, the cards, and what each of them runs.
    fn cards(&self, options: &Options) {
        let query = [
            "--query-gpu=name,compute_cap,driver_version",
            "--format=csv,noheader",
        ];
        let Some(cards) = tools::output_of(Command::new("nvidia-smi").args(query)) else {
            println!(
                "  -        GPU: none: no NVIDIA driver answers (nvidia-smi). The build needs none; programs do not start without"
            );
            return;
        };
        for card in cards.lines() {
            self.good("GPU", card);
            let capability = card.split(',').nth_back(1).and_then(cuda::capability);
            if options.backend == Backend::Cuda13
                && let Some(capability) = capability
            {
                println!(
                    "           runs {}",
                    binary(&options.architectures, capability)
                );
            }
        }
    }

    fn back_end(&mut self, options: &Options) {
        if matches!(options.backend, Backend::Cuda12 | Backend::Cuda13) {
            self.kernels(options);
            self.cards(options);
        }
        for dir in std::env::var("LD_LIBRARY_PATH")
            .unwrap_or_default()
            .split(':')
            .filter(|dir| !dir.is_empty())
        {
            if Path::new(dir).join(host::library("mlx")).is_file() {
                println!(
                    "  note     LD_LIBRARY_PATH puts {dir}'s {} in front",
                    host::library("mlx")
                );
            }
        }
    }
}

/// What a card of this compute capability runs of a build's kernels.
fn binary(list: &[Architecture], capability: u32) -> String {
    match cuda::choice(list, capability) {
        Some(one) if one.ptx => format!(
            "the PTX for {}, which the driver compiles at its first use",
            one.number()
        ),
        Some(one) => format!("the kernels for sm_{}", one.number()),
        None => format!(
            "none of the kernels: they are compiled for {}; set {} to {capability}, or unset it",
            names(list),
            cuda::VARIABLE
        ),
    }
}

fn names(list: &[Architecture]) -> String {
    let names: Vec<String> = list.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// The size of a folder on disk.
fn megabytes(folder: &Path) -> String {
    fn bytes(folder: &Path) -> u64 {
        let items = std::fs::read_dir(folder).into_iter().flatten().flatten();
        items
            .map(|item| match item.metadata() {
                Ok(meta) if meta.is_dir() => bytes(&item.path()),
                Ok(meta) => meta.len(),
                Err(_) => 0,
            })
            .sum()
    }
    format!("{} MB", bytes(folder) / 1_000_000)
}

/// The folder in which `cargo build` would put libmlxc, if it is known before MLX is installed.
fn planned(options: &Options) -> Option<Prefix> {
    let mlx = match (&options.mlx_dir, options.from_source) {
        (Some(dir), _) => Some(prefix::installed_mlx(dir).ok()?),
        (None, true) => None,
        (None, false) => Some(prefix::installed_mlx(&native::wheel_dir(options)).ok()?),
    };
    Prefix::find(options, mlx.as_deref()).ok()
}

/// Whether there is nothing left to build.
fn is_built(options: &Options) -> bool {
    match &options.mlx_c_dir {
        Some(dir) => Prefix::given(dir, &options.target).is_ok(),
        None => planned(options).is_some_and(|prefix| prefix.entry().unfinished().is_none()),
    }
}

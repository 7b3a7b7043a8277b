//! `build-mlx`: the native build by hand.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, Result, anyhow, bail};

use crate::cache;
use crate::dist::formats;
use crate::native::host::{self, Backend};
use crate::native::prefix::Prefix;
use crate::native::{self, Options, prebuilt};
use crate::scratch::Scratch;

/// Flags that replace the variables which `cargo build` reads.
#[derive(clap::Args)]
pub struct Arguments {
    /// Which MLX: cpu, cuda12, cuda13 or metal (MLX_BACKEND)
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// An installed MLX, or a Python environment that has it (MLX_DIR)
    #[arg(long, value_name = "DIR")]
    mlx_dir: Option<PathBuf>,
    /// A finished folder of this build, to be checked (MLX_C_DIR)
    #[arg(long, value_name = "DIR")]
    mlx_c_dir: Option<PathBuf>,
    /// Build MLX itself from its sources, which needs GitHub (MLX_FROM_SOURCE=1)
    #[arg(long, conflicts_with_all = ["mlx_dir", "mlx_c_dir"])]
    from_source: bool,
    /// Also pack libmlxc as a wheel into this folder, for MLX_PREBUILT_DIR or a release, and print its line of
    /// mlx-c-sys/requirements/prebuilt.txt
    #[arg(long, value_name = "DIR")]
    pack: Option<PathBuf>,
    /// Remove other builds of libmlxc from the cache, as `cache --prune 0` does; programs that were built with them no
    /// longer find theirs
    #[arg(long)]
    prune: bool,
}

/// The options that the variables give, overridden by the flags.
fn options(arguments: &Arguments) -> Result<Options> {
    let mut options = from_env()?;
    if let Some(name) = &arguments.backend {
        options.backend = Backend::parse(name, &host::triple()).map_err(|e| anyhow!("{e}"))?;
    }
    // A flag for one source of MLX overrides a variable for another source.
    if arguments.mlx_dir.is_some() || arguments.mlx_c_dir.is_some() || arguments.from_source {
        options.mlx_dir = arguments.mlx_dir.clone();
        options.mlx_c_dir = arguments.mlx_c_dir.clone();
        options.from_source = arguments.from_source;
    }
    Ok(options)
}

/// The options that `cargo build` would use.
pub fn from_env() -> Result<Options> {
    Options::from_env(&host::triple()).map_err(|e| anyhow!("{e}"))
}

/// Builds, and prints where the result is and how to use it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let options = options(arguments)?;
    let start = Instant::now();
    let mut progress = Progress {
        start,
        terminal: std::io::stderr().is_terminal(),
        open: false,
    };
    let result = native::ensure(&options, &mut |step| progress.step(step));
    progress.close();
    let prefix = result.map_err(|e| anyhow!("{e}"))?;
    eprintln!(
        "done in {:.0} s: libmlxc and its MLX are ready",
        start.elapsed().as_secs_f64()
    );
    eprintln!("  MLX     {}", prefix.mlx.display());
    eprintln!("  libmlxc {}", prefix.dir.display());
    if let Some(to) = &arguments.pack {
        pack(&options, &prefix, to)?;
    }
    if arguments.prune {
        cache::prune(&options, &prefix)?;
    }
    let variables: Vec<String> = [
        (options.backend != Backend::default_for(&host::triple()))
            .then(|| format!("MLX_BACKEND={}", options.backend.name())),
        options
            .mlx_c_dir
            .is_none()
            .then(|| format!("MLX_C_DIR={}", prefix.dir.display())),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !variables.is_empty() {
        eprintln!("to have cargo use exactly this one:");
        println!("export {}", variables.join(" "));
    }
    Ok(())
}

/// Writes a wheel of a finished folder to `to`, and beside it a file with its SHA-256.
fn pack(options: &Options, prefix: &Prefix, to: &Path) -> Result<()> {
    if !cfg!(target_os = "linux") || !prefix.mlx.ends_with("mlx") || options.mlx_dir.is_some() {
        bail!(
            "a libmlxc can be packed on Linux only, and only one that was built with the wheel of MLX"
        );
    }
    let scratch = Scratch::new("pack")?;
    for part in ["lib", "include"] {
        formats::copy_all(&prefix.dir.join(part), &scratch.path().join(part))?;
    }
    let license = "LICENSE-mlx-c";
    fs::copy(prefix.dir.join(license), scratch.path().join(license))?;
    let platform = formats::platform(scratch.path(), env::consts::ARCH)?;
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    let name = prebuilt::file_name(options, &platform);
    let version = prebuilt::version(options);
    formats::wheel(
        scratch.path(),
        &to.join(&name),
        &formats::Project {
            name: prebuilt::PROJECT,
            version: &version,
            platform: &platform,
            summary: "mlx-c and the kernels of mlx-rust, built",
            program: None,
        },
    )?;
    let sha256 = sha256(&to.join(&name))?;
    fs::write(
        to.join(format!("{name}.sha256")),
        format!("{sha256}  {name}\n"),
    )?;
    println!("{}", to.join(&name).display());
    println!("{version} {} {sha256} ADDRESS", env::consts::ARCH);
    Ok(())
}

/// The SHA-256 of a file, as `sha256sum` prints it.
fn sha256(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum")
        .arg(file)
        .output()
        .context("cannot run sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let digest = text.split_whitespace().next().unwrap_or_default();
    if !output.status.success() || digest.len() != 64 {
        bail!(
            "sha256sum: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(digest.to_owned())
}

struct Progress {
    start: Instant,
    terminal: bool,
    /// Whether the last line on the terminal may be overwritten by the next one.
    open: bool,
}

impl Progress {
    fn step(&mut self, text: &str) {
        let detail = text.starts_with('[');
        if detail && !self.terminal {
            return;
        }
        let seconds = self.start.elapsed().as_secs();
        let mut err = std::io::stderr();
        // A progress line that cannot be written is ignored.
        let _ = if detail {
            let short: String = text.chars().take(70).collect();
            write!(err, "\r\x1b[K{seconds:4} s  {short}").and_then(|()| err.flush())
        } else {
            self.close();
            writeln!(err, "{seconds:4} s  {text}")
        };
        self.open = detail;
    }

    fn close(&mut self) {
        if self.open {
            eprint!("\r\x1b[K");
            self.open = false;
        }
    }
}

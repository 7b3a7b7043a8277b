//! Configures and builds libmlxc through the crate `cmake`, always as Release.
//!
//! The crate prints to the standard output, where cargo reads the instructions of a build script,
//! and panics when CMake fails. So it runs in a process of its own, which is this program with
//! other arguments. The output of that process is the progress of the build, and its last lines are
//! part of the error.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use super::cuda;
use super::host::{self, Backend};
use super::kernels;
use super::pins;
use super::prefix::Prefix;
use super::report::{Failure, Result};
use super::source;
use super::store;
use super::tools;
use super::{Options, kernel_cache};

/// Builds into `partial`, which becomes `prefix.dir`.
pub fn build(
    options: &Options,
    prefix: &Prefix,
    partial: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    tools::compiler()?;
    let compiler = tools::Compiler::get()?;
    let cmake = tools::cmake(&options.root, say)?;
    let ninja = tools::ninja(&options.root, say)?;
    // Always an empty folder: files of a killed build may be incomplete.
    let work = store::sibling(&prefix.dir, "work");
    store::remove(&work)?;
    say("fetching the mlx-c sources");
    let (mlx_c, shim) = source::unpack(&work)?;
    let from_source = prefix.mlx == prefix.dir;

    let embedded = work.join("kernels");
    let toolkit = match options.backend {
        Backend::Cuda13 => Some(cuda::Toolkit::ensure(&options.root, say)?),
        _ => None,
    };
    if let Some(toolkit) = &toolkit {
        say("compiling the CUDA kernels");
        let cache = kernel_cache(&options.root);
        let (files, targets) = (&pins::SHIM, &options.architectures);
        let compiled = kernels::compile(toolkit, &cache, &shim, files, targets, say)?;
        kernels::embed(toolkit, &compiled, &embedded)?;
    }

    let step = Step {
        cmake,
        source: shim,
        work: work.clone(),
        from_source,
    };
    let mut defines: Vec<(&str, OsString)> = vec![
        ("CMAKE_MAKE_PROGRAM", ninja.into()),
        // The crate would leave out the flags for optimisation and debug information.
        ("CMAKE_CXX_FLAGS", compiler.flags()),
        ("CMAKE_INSTALL_PREFIX", partial.into()),
        ("MLXC_SOURCE", mlx_c.clone().into()),
        ("MLX_RUNPATH", runpath(options, prefix)),
        ("INSTALL_DIR", prefix.lib().into()),
        ("MLXRS_INPUTS", pins::inputs().into()),
    ];
    if let Some(cache) = &compiler.cache {
        defines.push(("CMAKE_CXX_COMPILER_LAUNCHER", cache.clone()));
    }
    if let Some(toolkit) = toolkit {
        defines.push(("MLXRS_CUDA_TOOLKIT", toolkit.dir.into()));
        defines.push(("MLXRS_CUDA_KERNELS", embedded.into()));
    }
    if from_source {
        let cuda = matches!(options.backend, Backend::Cuda12 | Backend::Cuda13);
        let on = |on: bool| OsString::from(if on { "ON" } else { "OFF" });
        defines.push(("MLX_TAG", format!("v{}", pins::MLX).into()));
        defines.push(("MLX_BUILD_CUDA", on(cuda)));
        defines.push(("MLX_BUILD_METAL", on(options.backend == Backend::Metal)));
    } else {
        defines.push(("MLX_ROOT", prefix.mlx.clone().into()));
    }
    step.run(&defines, say)?;
    let license = partial.join("LICENSE-mlx-c");
    fs::copy(mlx_c.join("LICENSE"), &license).map_err(|e| Failure::io("write", &license, &e))?;
    store::remove(&work)
}

/// Where libmlxc looks for libmlx: on Linux relative to itself if both are in the cache, so that it can be used in another
/// one.
fn runpath(options: &Options, prefix: &Prefix) -> OsString {
    let root = fs::canonicalize(&options.root).unwrap_or_else(|_| options.root.clone());
    match prefix.mlx.strip_prefix(&root) {
        Ok(inner) if prefix.target.contains("linux") => {
            let mut path = OsString::from("$ORIGIN/../../");
            path.push(inner.join("lib"));
            path
        }
        _ => prefix.mlx.join("lib").into(),
    }
}

/// The first argument of the process that runs the crate `cmake`.
const STEP: &str = "--run-cmake";

/// Runs the crate `cmake` if this process was started for it, and returns whether it was. Programs
/// that build call this at their start.
///
/// # Panics
/// CMake fails.
pub fn step() -> bool {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != STEP) {
        return false;
    }
    // Prints only the message, without its source location and without the hint about
    // RUST_BACKTRACE: CMake's own messages come before it.
    panic::set_hook(Box::new(|panic| {
        let text = panic.payload().downcast_ref::<String>();
        let text = text.map_or("the crate cmake fails", |text| text.trim());
        eprintln!("{}", text.lines().next().unwrap_or_default());
    }));
    let mut next = || arguments.next().unwrap_or_default();
    let triple = host::triple();
    let mut config = cmake::Config::new(next());
    config
        .out_dir(next())
        .target(&triple)
        .host(&triple)
        .generator("Ninja")
        .profile("Release")
        .init_c_cfg(tools::build_of(false))
        .init_cxx_cfg(tools::build_of(true))
        .no_default_flags(true);
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        config.define(name, value);
    }
    config.build();
    true
}

/// The program that runs [`step`]: this one. A test starts the build script instead, because a test
/// does not call `step`.
fn program() -> Result<PathBuf> {
    match option_env!("MLXC_BUILD_SCRIPT") {
        Some(script) => Ok(script.into()),
        None => env::current_exe()
            .map_err(|e| Failure::new("this program is gone").found(e.to_string())),
    }
}

/// What a run of the crate `cmake` needs beside the variables of `CMakeLists.txt`.
struct Step {
    cmake: PathBuf,
    /// The folder of `CMakeLists.txt`.
    source: PathBuf,
    /// The folder to build in.
    work: PathBuf,
    from_source: bool,
}

impl Step {
    fn run(&self, defines: &[(&str, OsString)], say: &mut dyn FnMut(&str)) -> Result<()> {
        say("configuring mlx-c");
        let mut command = Command::new(program()?);
        command.arg(STEP).arg(&self.source).arg(&self.work);
        command.args(
            defines
                .iter()
                .flat_map(|(name, value)| [OsStr::new(name), value]),
        );
        // Of the variables that name a CMake, the crate reads this one first.
        command.env(format!("CMAKE_{}", host::triple()), &self.cmake);
        let compiling = if self.from_source {
            "compiling MLX and mlx-c"
        } else {
            "compiling mlx-c"
        };
        let mut first = true;
        let mut lines = |text: &str| {
            // Ninja's "[3/31] Building …".
            if text.starts_with('[') {
                if std::mem::take(&mut first) {
                    say(compiling);
                }
                say(text);
            }
        };
        let Some(output) = read(&mut command, &mut lines)? else {
            return Ok(());
        };
        // CMake writes this file at the end of its configuration.
        let what = if self.work.join("build/build.ninja").is_file() {
            "mlx-c does not compile"
        } else {
            "CMake could not configure mlx-c"
        };
        let failure = Failure::command(what, &output)
            .sought(format!(
                "a compiler for C++20; found {}",
                tools::compiler().unwrap_or_default()
            ))
            .fix("install g++ 12 or later, or clang 16 or later, or set CXX to one");
        Err(if self.from_source {
            failure.fix("building MLX from source needs GitHub, BLAS and LAPACK with headers; unset MLX_FROM_SOURCE to use the wheel")
        } else {
            failure
        })
    }
}

/// Runs a command, and gives each line of its standard output to `say`. Its output, if it fails.
fn read(command: &mut Command, say: &mut dyn FnMut(&str)) -> Result<Option<Output>> {
    // Flags that cargo sets for other crates' make, and a user's flags for other projects, must not
    // reach this build.
    for name in ["MAKEFLAGS", "MFLAGS", "CMAKE_GENERATOR", "DESTDIR"] {
        command.env_remove(name);
    }
    let program = command.get_program().to_owned();
    let failed = |e: &std::io::Error| Failure::io("run", Path::new(&program), e);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e))?;
    let errors = child.stderr.take().map(|mut pipe| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes)
        })
    });
    let mut stdout = Vec::new();
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|pipe| BufReader::new(pipe).split(b'\n'))
    {
        let line = line.map_err(|e| failed(&e))?;
        say(&String::from_utf8_lossy(&line));
        stdout.extend(line);
        stdout.push(b'\n');
    }
    let status = child.wait().map_err(|e| failed(&e))?;
    let stderr = errors
        .and_then(|thread| thread.join().ok()?.ok())
        .unwrap_or_default();
    Ok((!status.success()).then_some(Output {
        status,
        stdout,
        stderr,
    }))
}

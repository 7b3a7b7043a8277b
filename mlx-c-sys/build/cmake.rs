//! Configures and builds libmlxc, always as Release.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use super::cuda;
use super::host::Backend;
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
    let cmake = tools::cmake(&options.root, say)?;
    let ninja = tools::ninja(&options.root, say)?;
    // Always an empty folder: files of a killed build may be incomplete.
    let work = store::sibling(&prefix.dir, "work");
    store::remove(&work)?;
    say("fetching the mlx-c sources");
    let (mlx_c, shim) = source::unpack(&work)?;
    let from_source = prefix.mlx == prefix.dir;
    let define = |name: &str, value: &Path| {
        let mut text = std::ffi::OsString::from(format!("-D{name}="));
        text.push(value);
        text
    };

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

    say("configuring mlx-c");
    let out = work.join("out");
    let mut configure = Command::new(&cmake);
    configure
        .args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-S"])
        .arg(&shim)
        .arg("-B")
        .arg(&out);
    configure.arg(define("CMAKE_MAKE_PROGRAM", &ninja));
    configure.arg(define("CMAKE_INSTALL_PREFIX", partial));
    configure.arg(define("MLXC_SOURCE", &mlx_c));
    configure.arg(define("MLX_RUNPATH", &prefix.mlx.join("lib")));
    configure.arg(define("INSTALL_DIR", &prefix.lib()));
    configure.arg(format!("-DMLXRS_INPUTS={}", pins::inputs()));
    if let Some(toolkit) = &toolkit {
        configure.arg(define("MLXRS_CUDA_TOOLKIT", &toolkit.dir));
        configure.arg(define("MLXRS_CUDA_KERNELS", &embedded));
    }
    if from_source {
        configure.arg(format!("-DMLX_TAG=v{}", pins::MLX));
        let cuda = matches!(options.backend, Backend::Cuda12 | Backend::Cuda13);
        for (name, on) in [("CUDA", cuda), ("METAL", options.backend == Backend::Metal)] {
            configure.arg(format!(
                "-DMLX_BUILD_{name}={}",
                if on { "ON" } else { "OFF" }
            ));
        }
    } else {
        configure.arg(define("MLX_ROOT", &prefix.mlx));
    }
    run(
        &mut configure,
        "CMake could not configure mlx-c",
        from_source,
        &mut |_| {},
    )?;

    say(if from_source {
        "compiling MLX and mlx-c"
    } else {
        "compiling mlx-c"
    });
    let mut compile = Command::new(&cmake);
    compile
        .arg("--build")
        .arg(&out)
        .args(["--target", "install"]);
    if let Ok(jobs) = std::env::var("NUM_JOBS") {
        compile.arg("--parallel").arg(jobs);
    }
    run(&mut compile, "mlx-c does not compile", from_source, say)?;
    let license = partial.join("LICENSE-mlx-c");
    fs::copy(mlx_c.join("LICENSE"), &license).map_err(|e| Failure::io("write", &license, &e))?;
    store::remove(&work)
}

fn run(
    command: &mut Command,
    what: &str,
    from_source: bool,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    // Cargo's own flags for the make of other crates, and a user's for other projects, do not belong here.
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
        let text = String::from_utf8_lossy(&line);
        // Ninja's "[3/31] Building …".
        if text.starts_with('[') {
            say(&text);
        }
        stdout.extend(line);
        stdout.push(b'\n');
    }
    let status = child.wait().map_err(|e| failed(&e))?;
    let stderr = errors
        .and_then(|thread| thread.join().ok()?.ok())
        .unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    let failure = Failure::command(
        what,
        &Output {
            status,
            stdout,
            stderr,
        },
    )
    .sought(format!(
        "a compiler for C++20; found {}",
        tools::compiler().unwrap_or_default()
    ))
    .fix("install g++ 12 or later, or clang 16 or later, or set CXX to one");
    Err(if from_source {
        failure.fix("building MLX from source needs GitHub, BLAS and LAPACK with headers; unset MLX_FROM_SOURCE to use the wheel")
    } else {
        failure
    })
}

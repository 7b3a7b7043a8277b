//! Finds or builds MLX and mlx-c, and tells cargo what to link.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[cfg(feature = "bindgen")]
#[path = "build/bindings.rs"]
mod bindings;
#[path = "build/entries.rs"]
mod entries;
#[path = "build/loader.rs"]
mod loader;
#[path = "build/native.rs"]
mod native;

use native::report::{Failure, Result};

fn main() -> ExitCode {
    if native::cmake::step() {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            eprintln!("  `cargo xtask doctor` looks at the whole machine");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    for name in
        native::VARIABLES
            .iter()
            .chain(&[native::LEFT_OUT, "DOCS_RS", "LIBCLANG_PATH", "PYTHON"])
    {
        println!("cargo::rerun-if-env-changed={name}");
    }
    for name in native::tools::compiler_variables() {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!(
        "cargo::rerun-if-changed={}",
        native::pins::shim_folder().display()
    );
    // For `tests/two_builds.rs`, which runs this program.
    if let Ok(program) = env::current_exe() {
        println!("cargo::rustc-env=MLXC_BUILD_SCRIPT={}", program.display());
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    let target = variable("TARGET")?;
    #[cfg(feature = "bindgen")]
    bindings::write(&native::Options::from_env(&target)?.root, &out)?;
    let text = kept_bindings(&out)?;
    if native::is_left_out()? {
        tell_places("".as_ref(), "".as_ref());
        if target.contains("linux") {
            loader::write(&target, &text, None, &out)?;
        }
        return Ok(());
    }
    let options = native::Options::from_env(&target)?;
    if target != native::host::triple() && options.mlx_c_dir.is_none() {
        return Err(
            Failure::new("MLX is built only for the machine that builds it")
                .fix("set MLX_C_DIR to a folder that `cargo xtask build-mlx` has made for the target")
                .fix(format!("or set {}=1 to check or document the code without MLX", native::LEFT_OUT)),
        );
    }
    let prefix = native::ensure(&options, &mut |step| eprintln!("{step}"))?;
    tell_places(&prefix.dir, &prefix.mlx);

    // Cargo runs this script again when the marker of the finished folder is newer than the last run, or gone. A marker
    // that this run has just written would be newer, and the script would run a second time for nothing: so it gets an
    // old date.
    let marker = prefix.dir.join(native::store::MARKER);
    if let Ok(file) = std::fs::File::open(&marker) {
        let _ = file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1));
    }
    println!(
        "cargo::rerun-if-changed={}",
        prefix.dir.join(native::store::MARKER).display()
    );
    let lib = prefix.lib();
    if target.contains("linux") {
        loader::write(&target, &text, Some(&prefix), &out)?;
        #[cfg(feature = "mimalloc")]
        operators();
    } else {
        println!("cargo::rustc-link-search=native={}", lib.display());
        println!("cargo::rustc-link-lib=dylib=mlxc");
    }
    // For build scripts of dependents, as DEP_MLXC_ROOT and so on.
    let metadata: [(&str, &Path); 4] = [
        ("root", &prefix.dir),
        ("include", &prefix.include()),
        ("lib", &lib),
        ("mlx", &prefix.mlx),
    ];
    for (key, path) in metadata {
        println!("cargo::metadata={key}={}", path.display());
    }
    Ok(())
}

/// For `src/libraries.rs` and `cargo xtask dist`: the folders of libmlxc and MLX.
fn tell_places(build: &Path, mlx: &Path) {
    println!("cargo::rustc-env=MLXC_BUILD={}", build.display());
    println!("cargo::rustc-env=MLXC_MLX={}", mlx.display());
}

/// The bindings that the crate is compiled with.
fn kept_bindings(out: &Path) -> Result<String> {
    let path = match cfg!(feature = "bindgen") {
        true => out.join("bindings.rs"),
        false => PathBuf::from("src/bindings.rs"),
    };
    println!("cargo::rerun-if-changed=src/bindings.rs");
    std::fs::read_to_string(&path).map_err(|e| Failure::io("read", &path, &e))
}

/// Compiles `operator new` by mimalloc. Only programs that call its function link it.
#[cfg(feature = "mimalloc")]
fn operators() {
    println!("cargo::rerun-if-changed=memory");
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .file("memory/operators.cpp")
        .compile("mlxrs_operators");
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|e| Failure::new(format!("{name}: {e}")).fix("run this through cargo"))
}

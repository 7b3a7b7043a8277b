//! Bindings, generated at build time from the installed headers.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};

use crate::native::Options;
use crate::native::prefix::Prefix;
use crate::native::report::{Failure, Result};
use crate::native::{pins, tools};

/// The version of the generated code. It must change when this file generates other code from the same headers.
const GENERATOR: &str = concat!("2 ", env!("CARGO_PKG_VERSION"));

/// Writes the bindings to `out`, and returns them.
pub fn write(options: &Options, prefix: &Prefix, out: &Path) -> Result<String> {
    let text = text(options, prefix)?;
    fs::write(out, &text).map_err(|e| Failure::io("write", out, &e))?;
    Ok(text)
}

fn text(options: &Options, prefix: &Prefix) -> Result<String> {
    if let Some(given) = std::env::var_os("MLX_C_BINDINGS").filter(|path| !path.is_empty()) {
        let given = PathBuf::from(given);
        println!("cargo::rerun-if-changed={}", given.display());
        let text = fs::read_to_string(&given)
            .map_err(|e| Failure::io("read MLX_C_BINDINGS", &given, &e))?;
        if !text.contains("fn mlxrs_error_get") {
            return Err(Failure::new(format!("MLX_C_BINDINGS={} cannot be used", given.display()))
                .sought("bindings with the mlxrs_* functions of this version's shim")
                .fix("unset MLX_C_BINDINGS, or give it a copy of bindings.rs from a build of this version"));
        }
        return Ok(text);
    }
    // The same headers give the same bindings: other profiles and projects take them from the cache.
    let name = format!("bindings-{}.rs", pins::digest([GENERATOR, &pins::inputs()]));
    let kept = prefix.dir.join(name);
    if let Ok(text) = fs::read_to_string(&kept) {
        return Ok(text);
    }
    let text = generate(options, prefix)?;
    let partial = kept.with_extension(format!("{}.partial", std::process::id()));
    // A given folder may be read-only: then every profile generates its own.
    let _ = fs::write(&partial, &text).and_then(|()| fs::rename(&partial, &kept));
    Ok(text)
}

fn generate(options: &Options, prefix: &Prefix) -> Result<String> {
    find_libclang(options)?;
    let include = prefix.include();
    let mut builder = bindgen::Builder::default()
        .header(include.join("mlxrs.h").to_string_lossy())
        .clang_arg(format!("-I{}", include.display()))
        .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|e| Failure::new(e.to_string()))?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .allowlist_function("_?mlx_.*|mlxrs_.*")
        .allowlist_type("mlx_.*|mlxrs_.*")
        .allowlist_var("MLX_.*|MLXRS_.*|mlx_.*")
        // As if half.h were read already: on Arm it includes headers that only the clang they belong to can read, for
        // accessors of half precision that exist there alone; raw bits are the same everywhere.
        .clang_arg("-DMLX_HALF_H")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_debug(true)
        .generate_comments(true)
        .layout_tests(true);
    if let Some(own) = tools::compiler_include() {
        builder = builder
            .clang_arg("-isystem")
            .clang_arg(own.to_string_lossy());
    }
    let bindings = builder.generate().map_err(|e| {
        Failure::new("bindgen could not read the headers of mlx-c")
            .sought(include.join("mlxrs.h").display().to_string())
            .found(e.to_string())
            .fix("set MLX_C_BINDINGS to ready-made bindings of this version")
    })?;
    Ok(bindings.to_string())
}

/// Makes bindgen find a libclang: `LIBCLANG_PATH`, the machine's, or the pinned wheel's.
fn find_libclang(options: &Options) -> Result<()> {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return Ok(());
    }
    // bindgen has no way to ask: it panics when there is none.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let found = panic::catch_unwind(bindgen::clang_version).is_ok();
    panic::set_hook(hook);
    if found {
        return Ok(());
    }
    let dir = tools::libclang(&options.root, &mut |_| {})?;
    // SAFETY: a build script has one thread at this point, so no other thread reads the environment.
    unsafe { std::env::set_var("LIBCLANG_PATH", dir) };
    Ok(())
}

//! Bindings from the headers of mlx-c and of the shim, for the feature `bindgen`. `src/bindings.rs` keeps what this has
//! written, so that a build needs neither bindgen nor libclang.

use std::fs;
use std::panic;
use std::path::Path;

use crate::native::report::{Failure, Result};
use crate::native::{source, tools};

/// Writes the bindings to `out`/bindings.rs. The headers are taken from cargo's registry and `shim/`.
pub fn write(root: &Path, out: &Path) -> Result<()> {
    find_libclang(root)?;
    let (mlx_c, shim) = source::unpack(&out.join("headers"))?;
    let header = shim.join("mlxrs.h");
    let mut builder = bindgen::Builder::default()
        .header(header.to_string_lossy())
        .header(shim.join("mlxrs_ring.h").to_string_lossy())
        .header(shim.join("mlxrs_peers.h").to_string_lossy())
        .clang_arg(format!("-I{}", mlx_c.display()))
        .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|e| Failure::new(e.to_string()))?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .allowlist_function("_?mlx_.*|mlxrs_.*")
        .allowlist_type("mlx_.*|mlxrs_.*")
        .allowlist_var("MLX_.*|MLXRS_.*|mlx_.*")
        // As if half.h were read already: on Arm it includes headers that only the clang they belong to can read, for
        // accessors of half precision that exist there alone; raw bits are the same everywhere.
        .clang_arg("-DMLX_HALF_H")
        // Each C library has its own stream. Programs have pointers to it only.
        .blocklist_type("FILE|_IO_.*|__s?FILE|__off(64)?_t")
        .raw_line("/// A stream of the C library, behind a pointer.")
        .raw_line("#[repr(C)]\n#[derive(Debug)]\npub struct FILE {\n    _private: [u8; 0],\n}")
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
            .sought(header.display().to_string())
            .found(e.to_string())
            .fix("build without the feature `bindgen`: src/bindings.rs has the bindings of this version")
    })?;
    let path = out.join("bindings.rs");
    fs::write(&path, bindings.to_string()).map_err(|e| Failure::io("write", &path, &e))
}

/// Makes bindgen find a libclang: `LIBCLANG_PATH`, the machine's, or the pinned wheel's.
fn find_libclang(root: &Path) -> Result<()> {
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
    let dir = tools::libclang(root, &mut |_| {})?;
    // SAFETY: a build script has one thread at this point, so no other thread reads the environment.
    unsafe { std::env::set_var("LIBCLANG_PATH", dir) };
    Ok(())
}

//! Code for `src/loader.rs`, which loads libmlxc at run time: an entry point for each function of the bindings, and the
//! path of the library at build time.
//!
//! Linking against the library would need an rpath in every program that depends on this crate, and cargo lets no
//! library set one for its users.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::entries;
use crate::native::prefix::Prefix;
use crate::native::report::{Failure, Result};
use crate::native::{host, pins};

/// Writes `entries.s` and `entries.rs` to `out`.
pub fn write(target: &str, bindings: &str, prefix: Option<&Prefix>, out: &Path) -> Result<()> {
    let functions = functions(bindings);
    let names: Vec<&str> = functions.iter().map(|(name, _)| *name).collect();
    let architecture = target.split('-').next().unwrap_or_default();
    let assembly = entries::assembly(architecture, &names).ok_or_else(|| {
        Failure::new(format!("MLX is not built for {target}"))
            .sought("Linux on x86-64 or aarch64, or macOS")
    })?;
    let entry = prefix.and_then(|prefix| prefix.dir.file_name());
    let library = prefix.map(|prefix| prefix.lib().join(host::library_of(target, "mlxc")));
    let library = library.unwrap_or_default();
    let library = library.to_string_lossy();
    let mut constants = format!(
        "const INPUTS: &str = {:?};\nconst BUILT_AT: &str = {library:?};\nconst CACHE_ENTRY: &str = {:?};\n",
        pins::inputs(),
        entry.unwrap_or_default().to_string_lossy(),
    );
    let _ = writeln!(
        constants,
        "/// The functions, and whether each returns a status.\nstatic FUNCTIONS: [(&core::ffi::CStr, bool); {}] = [",
        functions.len()
    );
    for (name, is_status) in &functions {
        let _ = writeln!(constants, "    (c{name:?}, {is_status}),");
    }
    constants += "];\n";
    for (name, text) in [("entries.s", assembly), ("entries.rs", constants)] {
        let path = out.join(name);
        fs::write(&path, text).map_err(|e| Failure::io("write", &path, &e))?;
    }
    Ok(())
}

/// The functions that the bindings declare, and whether each returns an `int`, in the order of their names.
fn functions(bindings: &str) -> Vec<(&str, bool)> {
    let functions = bindings.split("pub fn ").skip(1).filter_map(|text| {
        let (name, rest) = text.split_once('(')?;
        let (head, _) = rest.split_once(';')?;
        let result = head.rsplit_once("->").map_or("", |(_, result)| result);
        Some((name, result.trim() == "::std::os::raw::c_int"))
    });
    let mut functions: Vec<(&str, bool)> = functions.collect();
    functions.sort_unstable();
    functions.dedup();
    functions
}

//! Code for `src/loader.rs`, which loads libmlxc at run time: an entry point for each function of the bindings, and the
//! path of the library at build time.
//!
//! Linking against the library would need an rpath in every program that depends on this crate, and cargo lets no
//! library set one for its users.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::native::prefix::Prefix;
use crate::native::report::{Failure, Result};
use crate::native::{host, pins};

/// Writes `entries.s` and `entries.rs` to `out`.
pub fn write(target: &str, bindings: &str, prefix: &Prefix, out: &Path) -> Result<()> {
    let names = functions(bindings);
    let assembly = assembly(target, &names)?;
    let entry = prefix.dir.file_name().unwrap_or_default();
    let library = prefix.lib().join(host::library("mlxc"));
    let library = library.to_string_lossy();
    let mut constants = format!(
        "const INPUTS: &str = {:?};\nconst BUILT_AT: &str = {library:?};\nconst CACHE_ENTRY: &str = {:?};\n",
        pins::inputs(),
        entry.to_string_lossy(),
    );
    let _ = writeln!(
        constants,
        "static NAMES: [&core::ffi::CStr; {}] = [",
        names.len()
    );
    for name in &names {
        let _ = writeln!(constants, "    c{name:?},");
    }
    constants += "];\n";
    for (name, text) in [("entries.s", assembly), ("entries.rs", constants)] {
        let path = out.join(name);
        fs::write(&path, text).map_err(|e| Failure::io("write", &path, &e))?;
    }
    Ok(())
}

/// The functions that the bindings declare.
fn functions(bindings: &str) -> Vec<&str> {
    let names = bindings.lines().filter_map(|line| {
        let (name, _) = line.trim_start().strip_prefix("pub fn ")?.split_once('(')?;
        Some(name)
    });
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// A jump for each function through its slot in a table, which the loader fills before `main`.
fn assembly(target: &str, names: &[&str]) -> Result<String> {
    let architecture = target.split('-').next().unwrap_or_default();
    let jump = |index: usize| {
        let at = 8 * index;
        match architecture {
            "x86_64" => Ok(format!("jmpq *mlxc_entries+{at}(%rip)")),
            "aarch64" => Ok(format!(
                "adrp x16, mlxc_entries+{at}\nldr x16, [x16, :lo12:mlxc_entries+{at}]\nbr x16"
            )),
            _ => Err(Failure::new(format!("MLX is not built for {target}"))
                .sought("Linux on x86-64 or aarch64, or macOS")),
        }
    };
    let mut text = String::from(".text\n");
    for (index, name) in names.iter().enumerate() {
        let jump = jump(index)?;
        let _ = write!(
            text,
            ".globl {name}\n.hidden {name}\n.type {name}, %function\n.p2align 2\n{name}:\n{jump}\n.size {name}, .-{name}\n"
        );
    }
    // The loader runs with the constructors. A program that uses any function of the library links this section too.
    let _ = write!(
        text,
        ".section .init_array,\"aw\"\n.p2align 3\n.quad mlxc_load\n\
         .bss\n.globl mlxc_entries\n.hidden mlxc_entries\n.p2align 3\nmlxc_entries:\n.zero {}\n.text\n",
        8 * names.len()
    );
    Ok(text)
}

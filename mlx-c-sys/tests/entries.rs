//! The entry points of libmlxc assemble for each processor, whatever processor this machine has.
//!
//! The compiler has an assembler for every processor, but the standard library of another target
//! may not be installed. So the crate that is compiled here uses no standard library, which only a
//! nightly compiler or `RUSTC_BOOTSTRAP` allows.

#[path = "../build/entries.rs"]
mod entries;

use std::fs;
use std::path::Path;
use std::process::Command;

const CRATE: &str = r#"
#![feature(no_core, lang_items, rustc_attrs, decl_macro)]
#![allow(internal_features)]
#![no_core]
#![no_std]

#[lang = "pointee_sized"]
pub trait PointeeSized {}
#[lang = "meta_sized"]
pub trait MetaSized: PointeeSized {}
#[lang = "sized"]
pub trait Sized: MetaSized {}

#[rustc_builtin_macro]
pub macro global_asm() {}
#[rustc_builtin_macro]
pub macro include_str() {}
#[rustc_builtin_macro]
pub macro concat() {}
#[rustc_builtin_macro]
pub macro env() {}
#[rustc_builtin_macro]
pub macro include() {}

include!(env!("ENTRIES"));
"#;

#[test]
fn entry_points_assemble_for_each_processor() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("lib.rs");
    fs::write(&source, CRATE).unwrap();
    let names = ["mlx_add", "mlx_subtract", "mlxrs_error_get"];
    for architecture in ["x86_64", "aarch64"] {
        let text = entries::assembly(architecture, &names).unwrap();
        let compile = |text: &str| {
            fs::write(folder.path().join("entries.s"), text).unwrap();
            let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
                .args(["--edition", "2024", "--crate-type", "lib", "--emit", "obj"])
                .arg(format!("--target={architecture}-unknown-linux-gnu"))
                .args(["-C", "panic=abort", "--out-dir"])
                .args([folder.path(), &source])
                .env("RUSTC_BOOTSTRAP", "1")
                .env("OUT_DIR", folder.path())
                .env(
                    "ENTRIES",
                    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/entries.rs"),
                )
                .output()
                .unwrap();
            (
                output.status.success(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        let (done, said) = compile(&text);
        assert!(done, "{architecture}: {said}");
        let object = fs::read(folder.path().join("lib.o")).unwrap();
        for name in names {
            let name = name.as_bytes();
            assert!(object.windows(name.len()).any(|part| part == name));
        }
        // The text was really assembled.
        let (done, said) = compile(&format!("{text}no_instruction x99\n"));
        assert!(!done && said.contains("no_instruction"), "{said}");
    }
    assert_eq!(entries::assembly("riscv64", &names), None);
}

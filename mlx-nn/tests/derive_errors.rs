//! The errors of the compiler for wrong uses of `#[derive(Module)]`, and their places.

use std::path::{Path, PathBuf};
use std::process::Command;

const WRONG: &str = r#"use mlx_nn::{Linear, Module, Param, mlx_core::Array};

#[derive(Module)]
pub struct Constant {
    pub first: Linear,
    pub weight: Array,
}

type Size = i32;
#[derive(Module)]
pub struct Alias {
    pub size: Size,
}

#[derive(Module)]
pub enum Variant {
    One(Param),
    Two { state: std::collections::HashMap<u8, Linear> },
}

#[derive(Module)]
pub struct Buffer {
    #[module(state)]
    pub mean: Param,
}

#[derive(Module)]
pub struct Generic<M, S> {
    pub inner: Vec<M>,
    #[module(skip)]
    pub kind: S,
}
pub struct Plain;
pub fn needs(module: Generic<Plain, Plain>) -> usize {
    module.num_parameters()
}
pub fn fits(module: Generic<Linear, Plain>) -> usize {
    module.num_parameters()
}
"#;

const ATTRIBUTES: &str = r#"use mlx_nn::{Linear, Module, mlx_core::Array};

#[derive(Module)]
pub struct Unknown {
    #[module(buffer)]
    pub mean: Array,
}

#[derive(Module)]
pub struct Both {
    #[module(skip, state)]
    pub mean: Array,
    #[module(rename = "")]
    pub other: Linear,
    #[module(flat, rename = "name")]
    pub third: Linear,
}

#[derive(Module)]
pub struct Nameless(#[module(state)] Array);

#[derive(Module)]
#[module(rename = "name")]
pub struct Renamed(Linear);

#[derive(Module)]
pub union Union {
    pub number: u32,
}
"#;

/// The newest library of this name in the folder of the test: the one that the test was built with,
/// or an equal one.
fn library(folder: &Path, name: &str) -> PathBuf {
    let files = std::fs::read_dir(folder).expect("the folder of the test");
    let libraries = files.filter_map(|file| {
        let path = file.ok()?.path();
        let is = path.extension()? == "rlib"
            && path
                .file_stem()?
                .to_str()?
                .starts_with(&format!("lib{name}-"));
        is.then(|| Some((path.metadata().ok()?.modified().ok()?, path)))?
    });
    libraries.max().expect("a library").1
}

/// `line:column: message` of each error in `source`.
fn errors(source: &str) -> Vec<String> {
    let this = std::env::current_exe().expect("the test has a path");
    let folder = this.parent().expect("the test is in a folder");
    let scratch = tempfile::tempdir().expect("a folder");
    let file = scratch.path().join("wrong.rs");
    std::fs::write(&file, source).expect("the source is written");
    let beside = |cargo: String| Path::new(&cargo).with_file_name("rustc");
    let rustc = std::env::var("CARGO").map(beside).ok();
    let rustc = rustc.filter(|rustc| rustc.is_file());
    let output = Command::new(rustc.unwrap_or_else(|| "rustc".into()))
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
        ])
        .args(["--error-format", "short", "--out-dir"])
        .arg(scratch.path())
        .arg("-L")
        .arg(folder)
        .arg("--extern")
        .arg(format!("mlx_nn={}", library(folder, "mlx_nn").display()))
        .arg(&file)
        .output()
        .expect("rustc runs");
    let text = String::from_utf8(output.stderr).expect("messages are text");
    let own = format!("{}:", file.display());
    let lines = text.lines().filter_map(|line| line.strip_prefix(&own));
    let errors: Vec<String> = lines
        .filter(|line| line.contains(": error"))
        .map(str::to_owned)
        .collect();
    assert!(!errors.is_empty(), "{text}");
    errors
}

/// Whether each error is at one of these places with this text, and each place has an error.
#[track_caller]
fn compare(found: &[String], expected: &[(&str, &str)]) {
    for error in found {
        let is = |(place, text): &&(&str, &str)| error.starts_with(place) && error.contains(text);
        assert!(expected.iter().any(|place| is(&place)), "{error}");
    }
    for (place, text) in expected {
        let is = |error: &String| error.starts_with(place) && error.contains(text);
        assert!(found.iter().any(is), "{place} {text}: {found:#?}");
    }
}

#[test]
fn a_field_of_a_wrong_type_is_where_the_error_points() {
    let expected = [
        ("6:17:", "Array` is no module"),
        ("12:15:", "`i32` is no module"),
        ("18:18:", "`HashMap<u8, mlx_nn::Linear>` is no module"),
        ("24:15:", "Param` cannot be a module's state"),
        ("35:12:", "num_parameters"),
    ];
    compare(&errors(WRONG), &expected);
}

#[test]
fn a_wrong_attribute_is_where_the_error_points() {
    let expected = [
        (
            "5:14:",
            "expected `skip`, `state`, `flat` or `rename = \"name\"`",
        ),
        ("11:20:", "`skip`, `state` and `flat` exclude each other"),
        ("13:23:", "a name is not empty"),
        ("15:5:", "`rename` has no meaning"),
        ("20:21:", "a buffer needs a name"),
        ("23:10:", "expected `crate = path`"),
        ("27:11:", "a union cannot be a module"),
    ];
    compare(&errors(ATTRIBUTES), &expected);
}

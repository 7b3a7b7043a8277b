//! The compiler's errors for wrong operands, axes, shapes and indices, and the places that they
//! name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Wrong lines, and the words of the error or its notes.
const WRONG: [(&str, &str); 20] = [
    (r#"Array::from("text");"#, "arrays cannot be made of"),
    (r#"mlx_core::array!["a", "b"];"#, "arrays cannot be made of"),
    (r#"x + "one";"#, "`str` is neither an array nor a number"),
    (
        "x.add(vec![1.0]);",
        "`Vec<{float}>` is neither an array nor a number",
    ),
    (
        "x.multiply(x.exp());",
        "becomes an array by `?`: `x.add(y.exp()?)`",
    ),
    (r#"x.sum("rows", false);"#, "`&str` does not name axes"),
    ("x.sum(1.0, false);", "`x.sum(.., false)`"),
    ("x.reshape(1.5);", "`{float}` is not a shape"),
    (
        "Array::zeros([1.0, 2.0], F32);",
        "`{float}` is not the size of a dimension",
    ),
    (
        "x.reshape((1, true));",
        "sizes are `i32`, `u32`, `i64` or `usize`",
    ),
    (r#"x.i("all");"#, "`&str` is not an index of an array"),
    (
        "x.i((.., 1.5));",
        "`(RangeFull, {float})` is not an index of an array",
    ),
    (
        "x.i((0, &1..&3));",
        "or a tuple of these: `x.i((.., -1, 1..3))`",
    ),
    (
        "x.i(step(3, 1));",
        "`{integer}` is not a range of positions",
    ),
    (
        "mlx_core::arange(0, true, 1, F32);",
        "`bool` is not a number to count with",
    ),
    (
        "let s = 1f32; s * x;",
        "cannot multiply `f32` by `&mlx_core::Array`",
    ),
    (
        "mlx_core::grad(|x: Array| x.sum_all());",
        "write the types of the arguments, which are references",
    ),
    (
        "mlx_core::vmap(|x: &f32| x.clone());",
        "is no function that can be transformed",
    ),
    (
        r#"mlx_core::random::gumbel("key", 3, F32);"#,
        "or `None` for the thread's next key",
    ),
    (
        "let y = x.clone(); std::thread::spawn(move || y.sum_all().is_ok());",
        "CallFreezeAndSendWhatItReturns",
    ),
];

/// The newest library of this name beside the test: the one that the test was built with, or an
/// equal build of it.
fn library(folder: &Path, name: &str) -> PathBuf {
    let start = format!("lib{name}-");
    let mut newest: Option<(SystemTime, PathBuf)> = None;
    for file in std::fs::read_dir(folder).expect("the folder of the test") {
        let path = file.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(|name| name.starts_with(&start) && name.ends_with(".rlib")) {
            continue;
        }
        let changed = path.metadata().and_then(|data| data.modified());
        newest = newest.max(Some((changed.expect("a time"), path)));
    }
    newest.expect("a library").1
}

/// What rustc prints for a program.
fn compiled(source: &str) -> String {
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
            "--out-dir",
        ])
        .arg(scratch.path())
        .arg("-L")
        .arg(folder)
        .arg("--extern")
        .arg(format!(
            "mlx_core={}",
            library(folder, "mlx_core").display()
        ))
        .arg(&file)
        .output()
        .expect("rustc runs");
    String::from_utf8(output.stderr).expect("messages are text")
}

#[test]
fn errors_name_the_right_call() {
    let head = "use mlx_core::{Array, DType::F32, step};\n";
    let lines: Vec<String> = WRONG
        .iter()
        .enumerate()
        .map(|(at, (line, _))| format!("pub fn wrong{at}(x: &Array) {{ {line} }}\n"))
        .collect();
    let text = compiled(&(head.to_owned() + &lines.concat()));
    // Each error begins with a line `error…`, and names its place as `wrong.rs:line`.
    let errors: Vec<&str> = text.split("\nerror").collect();
    let mut faults = String::new();
    for (at, (line, expected)) in WRONG.iter().enumerate() {
        let place = format!("wrong.rs:{}:", at + 2);
        let own = errors.iter().find(|error| error.contains(&place));
        let own = own.unwrap_or_else(|| panic!("no error for {line}: {text}"));
        if !own.contains(expected) {
            faults += &format!("{line}: expected {expected:?} in: error{own}\n");
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

#[test]
fn right_calls_compile() {
    let text = compiled(
        "use mlx_core::{Array, DType::F32, Result, step};
        pub fn right(x: &Array) -> Result<Array> {
            let s = 1f32;
            let y = ((x + 1)? * s)?.reshape((1, -1))?.sum(.., false)?;
            y + Array::zeros([1, 2], F32)?.i((.., step(.., 1)))
        }",
    );
    assert!(!text.contains("error"), "{text}");
}

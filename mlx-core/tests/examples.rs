//! Each example prints the text of the file beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of an example, built if cargo has not built it with the tests, or before its source changed.
fn program(name: &str, source: &Path) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().unwrap().parent().unwrap();
    let program = built.join("examples").join(name);
    let changed = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified());
    let fresh = changed(&program).is_ok_and(|built| built >= changed(source).unwrap());
    if !fresh {
        let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
        let status = Command::new(cargo)
            .args([
                "build",
                "--package",
                env!("CARGO_PKG_NAME"),
                "--example",
                name,
            ])
            .status()
            .unwrap();
        assert!(status.success(), "{name} does not compile");
    }
    program
}

#[test]
fn examples_print_what_is_committed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let source = entry.unwrap().path();
        if source.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let name = source.file_stem().unwrap().to_str().unwrap().to_owned();
        let output = Command::new(program(&name, &source)).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{name}: {}: {errors}",
            output.status
        );
        let expected = std::fs::read_to_string(source.with_extension("txt")).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{name}");
        names.push(name);
    }
    assert!(names.len() >= 3, "{names:?}");
}

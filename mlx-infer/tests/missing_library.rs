//! Without the library of MLX a command ends with exit code 1 and says where it looked.
#![cfg(feature = "cli")]
#![cfg(target_os = "linux")]

use std::fs;
use std::process::Command;

const NAME: &[u8] = b"libmlxc.so";
const OTHER: &[u8] = b"libnone.so";

#[test]
fn a_command_says_that_the_library_is_missing() {
    // A copy of the program that looks for a library of another name.
    let source = env!("CARGO_BIN_EXE_mlx-infer");
    let mut bytes = fs::read(source).unwrap();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|&byte| byte == NAME[0]) {
        at += found;
        if bytes[at..].starts_with(NAME) {
            bytes[at..at + NAME.len()].copy_from_slice(OTHER);
        }
        at += 1;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("mlx-infer");
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, fs::metadata(source).unwrap().permissions()).unwrap();
    let run = |line: &str| {
        let output = Command::new(&program)
            .args(line.split(' '))
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), output.stdout, stderr)
    };
    let (code, stdout, stderr) = run("score --tokens 1,2");
    assert_eq!((code, stdout.as_slice()), (Some(1), &b""[..]), "{stderr}");
    assert!(stderr.contains("error: "), "{stderr}");
    assert!(
        stderr.contains("cannot load libnone.so, which this program was built with"),
        "{stderr}"
    );
    assert!(stderr.contains("\n  not there: /"), "{stderr}");
    assert!(
        stderr.contains("to fix it: build the program again"),
        "{stderr}"
    );
    // Commands that need no library work.
    let (code, stdout, stderr) = run("--help");
    assert!(code == Some(0) && !stdout.is_empty(), "{stderr}");
}

//! Without the library of MLX every call fails by an error, and nothing ends the process.
#![cfg(target_os = "linux")]

use std::fs;
use std::process::{Command, Output};

use mlx_core::transforms::{Compiled, compile};
use mlx_core::{
    Array, DType, Device, ErrorKind, Graph, Result, Safetensors, Stream, fast, memory, profile,
    random, settings, synchronize, zeros,
};

const CHILD: &str = "MLX_CORE_TEST_WITHOUT_LIBRARY";
const NAME: &[u8] = b"libmlxc.so";
const OTHER: &[u8] = b"libnone.so";

/// Runs a copy of this program that looks for a library of another name, for which there is no file.
fn without_library(folder: &std::path::Path) -> Output {
    let mut bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|&byte| byte == NAME[0]) {
        at += found;
        if bytes[at..].starts_with(NAME) {
            bytes[at..at + NAME.len()].copy_from_slice(OTHER);
        }
        at += 1;
    }
    let program = folder.join("program");
    fs::write(&program, bytes).unwrap();
    let mode = fs::metadata(std::env::current_exe().unwrap())
        .unwrap()
        .permissions();
    fs::set_permissions(&program, mode).unwrap();
    Command::new(program)
        .args(["every_call_fails", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap()
}

/// Run by the child.
#[test]
fn every_call_fails() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let fails = |what: &str, result: Result<()>| {
        let error = result.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Library, "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains("cannot load libnone.so"), "{what}: {text}");
        assert!(text.contains("\n  not there: /"), "{what}: {text}");
        assert!(
            text.contains("to fix it: build the program again"),
            "{what}: {text}"
        );
    };
    let twice = |x: &[Array]| Ok(vec![x[0].add(&x[0])?]);
    fails("init", mlx_core::init());
    fails("scalar", Array::scalar(1.0f32).map(drop));
    fails("from_slice", Array::from_slice(&[1.0f32], &[1]).map(drop));
    fails("zeros", zeros(&[2], DType::F32).map(drop));
    fails("key", random::Key::new(1).map(drop));
    fails("default device", Device::default_device().map(drop));
    fails("set_default", Device::CPU.set_default());
    fails("is_available", Device::GPU.is_available().map(drop));
    fails("info", Device::CPU.info().map(drop));
    fails("stream", Stream::new(Device::CPU).map(drop));
    fails("synchronize", synchronize());
    fails("eval", mlx_core::eval([] as [&Array; 0]));
    fails("form", fast::form(fast::Op::Norm).map(drop));
    fails(
        "plainly",
        fast::plainly(|| zeros(&[2], DType::F32)).map(drop),
    );
    fails("active", memory::active().map(drop));
    fails("set_cache_limit", memory::set_cache_limit(0).map(drop));
    fails("clear_cache", memory::clear_cache());
    fails("settings", settings::check());
    compile::set_enabled(true);
    let compiled = Compiled::new(twice, false);
    fails("compiled", compiled.call(&[]).map(drop));
    fails("compiled again", compiled.call(&[]).map(drop));
    drop(compiled);
    fails("graph", Graph::of([] as [&Array; 0]).map(drop));
    // Calls whose result cannot be an error.
    profile::start();
    assert!(profile::end().is_empty());
    memory::set_array_limit(1 << 20);
    assert_eq!(memory::array_limit(), 1 << 20);
    // A file is read without the library, until an array is wanted.
    let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend([0; 4]);
    let file = Safetensors::from_bytes(file).unwrap();
    fails("array of a file", file.array("a").map(drop));
    // Other threads get the same error.
    let other = std::thread::spawn(|| Array::scalar(1.0f32).map(drop).unwrap_err().kind());
    assert_eq!(other.join().unwrap(), ErrorKind::Library);
    println!("every call failed");
}

#[test]
fn a_missing_library_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = without_library(folder.path());
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains("every call failed"), "{text}");
}

#[test]
fn the_library_can_be_loaded_early() {
    mlx_core::init().unwrap();
    mlx_core::init().unwrap();
}

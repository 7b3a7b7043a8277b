//! The C++ allocator in processes with and without a limit of address space.
#![cfg(all(target_os = "linux", feature = "mimalloc"))]

use std::process::Command;

use mlx_c_sys::operators::mlxrs_operators_are_mimalloc;
use mlx_c_sys::{mlx_array_free, mlx_array_new_float32};

unsafe extern "C" {
    fn mi_is_in_heap_region(memory: *const std::ffi::c_void) -> bool;
}

/// The C++ object behind a handle comes from mimalloc in a process without a limit of address space, and from malloc in
/// one with a limit.
#[test]
fn objects_of_cpp_come_from_the_allocator_of_the_program() {
    // SAFETY: a fresh handle, which is freed once.
    let is_mimalloc = unsafe {
        let array = mlx_array_new_float32(1.0);
        let found = mi_is_in_heap_region(array.ctx);
        mlx_array_free(array);
        found
    };
    assert_eq!(is_mimalloc, mlxrs_operators_are_mimalloc());
    println!("mimalloc: {is_mimalloc}");
}

#[test]
fn a_limited_process_keeps_malloc() {
    let of = |limit: &str| {
        let output = Command::new("sh")
            .args(["-c", &format!("ulimit -v {limit}; exec \"$@\""), "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["objects_of_cpp", "--nocapture"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{limit}: {text}");
        text
    };
    assert!(of("unlimited").contains("mimalloc: true"));
    assert!(of("4000000").contains("mimalloc: false"));
}

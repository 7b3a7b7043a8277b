//! Compiles C++'s operators for Linux; elsewhere there is nothing to do.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=src/operators.cpp");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let include = env::var_os("DEP_MIMALLOC_INCLUDE_DIR").expect("libmimalloc-sys tells it");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(PathBuf::from(include))
        .file("src/operators.cpp")
        // Nobody in the program calls them by name: all of it goes in, and libraries find it there.
        .link_lib_modifier("+whole-archive")
        .compile("mlx_alloc");
}

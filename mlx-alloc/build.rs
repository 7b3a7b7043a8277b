//! Compiles C++'s operators for Linux; elsewhere there is nothing to do.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=src");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .files(["src/operators.cpp", "src/pool.cpp"])
        // Nobody in the program calls them by name: all of it goes in, and libraries find it there.
        .link_lib_modifier("+whole-archive")
        .compile("mlx_alloc");
}

//! The tools that the build runs: those of the machine where it has them, else pinned wheels in the build's own
//! folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::host;
use super::pins;
use super::pip;
use super::report::{Failure, Result};

/// A tool on PATH that is good enough.
pub fn cmake_on_path() -> Option<PathBuf> {
    let text = output_of(Command::new("cmake").arg("--version"))?;
    let version = text.split_whitespace().nth(2)?;
    let mut numbers = version.split('.').map_while(|n| n.parse().ok());
    let found: (u32, u32) = (numbers.next()?, numbers.next()?);
    (found >= pins::CMAKE_MIN).then(|| "cmake".into())
}

/// Ninja of the machine.
pub fn ninja_on_path() -> Option<PathBuf> {
    output_of(Command::new("ninja").arg("--version")).map(|_| "ninja".into())
}

/// The machine's CMake, or the pinned wheel's.
pub fn cmake(root: &Path, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    match cmake_on_path() {
        Some(path) => Ok(path),
        None => wheel(
            root,
            "cmake",
            pins::REQUIRE_CMAKE,
            "cmake/data/bin/cmake",
            say,
        ),
    }
}

/// The machine's Ninja, or the pinned wheel's.
pub fn ninja(root: &Path, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    match ninja_on_path() {
        Some(path) => Ok(path),
        None => wheel(root, "ninja", pins::REQUIRE_NINJA, "bin/ninja", say),
    }
}

/// The folder of the libclang wheel.
pub fn libclang(root: &Path, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let library = format!("clang/native/{}", host::library("clang"));
    let path = wheel(root, "libclang", pins::REQUIRE_LIBCLANG, &library, say)?;
    Ok(path.parent().unwrap_or(root).to_owned())
}

fn wheel(
    root: &Path,
    name: &str,
    requirements: &str,
    file: &str,
    say: &mut dyn FnMut(&str),
) -> Result<PathBuf> {
    let dir = root.join("tools").join(name);
    Ok(pip::unpack(dir, name, requirements, [PathBuf::from(file)], say)?.join(file))
}

/// The C++ compiler that CMake will take: `CXX`, else `c++`. Returns what it says of itself.
pub fn compiler() -> Result<String> {
    output_of(compiler_command().arg("--version"))
        .and_then(|text| text.lines().next().map(str::to_owned))
        .ok_or_else(|| {
            Failure::new("there is no C++ compiler")
                .sought(format!("{:?}", compiler_command().arg("--version")))
                .fix("install g++ 12 or later, or clang 16 or later (on Debian or Ubuntu: apt-get install g++)")
                .fix("or set CXX to a compiler for C++20")
        })
}

/// Everything beside the sources that decides what the compiler makes: its version, and the flags that CMake takes from
/// the environment. One line.
pub fn compiler_and_flags() -> Result<String> {
    let flags = std::env::var("CXXFLAGS").unwrap_or_default();
    let words = [compiler()?, std::env::var("CXX").unwrap_or_default(), flags].join(" ");
    Ok(words.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The command of the compiler: `CXX` may have arguments, or a compiler cache in front ("ccache g++").
fn compiler_command() -> Command {
    let text = std::env::var("CXX").unwrap_or_default();
    let mut words = text.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("c++"));
    command.args(words);
    command
}

/// The compiler without arguments and without a cache in front, as nvcc takes it.
pub fn preprocessor() -> String {
    let text = std::env::var("CXX").unwrap_or_default();
    let mut words = text.split_whitespace();
    let caches = ["ccache", "sccache"];
    let is_cache = |word: &&str| caches.iter().any(|cache| Path::new(word).ends_with(cache));
    words
        .find(|word| !is_cache(word))
        .unwrap_or("c++")
        .to_owned()
}

/// The compiler's own headers (stddef.h), which the libclang wheel comes without.
pub fn compiler_include() -> Option<PathBuf> {
    let text = output_of(compiler_command().arg("-print-file-name=include"))?;
    let path = PathBuf::from(text.trim());
    path.is_absolute().then_some(path)
}

/// The output of a command, if it can be run and succeeds.
pub fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

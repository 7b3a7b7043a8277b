//! The tools that the build runs: those of the machine if it has them, else pinned wheels in the
//! build's own folder.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::host;
use super::pins;
use super::pip;
use super::report::{Failure, Result};

/// CMake on PATH, if it is new enough.
pub fn cmake_on_path() -> Option<PathBuf> {
    let text = output_of(Command::new("cmake").arg("--version"))?;
    let version = text.split_whitespace().nth(2)?;
    let mut numbers = version.split('.').map_while(|n| n.parse().ok());
    let found: (u32, u32) = (numbers.next()?, numbers.next()?);
    (found >= pins::CMAKE_MIN).then(|| "cmake".into())
}

/// Ninja on PATH.
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

/// The variables that [`build_of`] reads: `CXX` and `CXXFLAGS`, also with a triple at the end or
/// with `HOST_` before them.
pub fn compiler_variables() -> Vec<String> {
    let triple = host::triple();
    let of = |name: &str| {
        [
            format!("{name}_{triple}"),
            format!("{name}_{}", triple.replace('-', "_")),
            format!("HOST_{name}"),
            name.to_owned(),
        ]
    };
    ["CXX", "CXXFLAGS"]
        .iter()
        .flat_map(|name| of(name))
        .collect()
}

/// The rules by which the crate `cc` finds a compiler for this machine and its flags. It adds no flags of its own:
/// `shim/CMakeLists.txt` has those that matter.
pub fn build_of(cpp: bool) -> cc::Build {
    let triple = host::triple();
    let mut build = cc::Build::new();
    build
        .cpp(cpp)
        .target(&triple)
        .host(&triple)
        .opt_level(0)
        .debug(false)
        .warnings(false)
        .no_default_flags(true)
        // Without the flags for Rust's code, and without instructions to cargo, which `xtask` must
        // not print.
        .inherit_rustflags(false)
        .cargo_metadata(false)
        .cargo_warnings(false);
    build
}

/// The C++ compiler, as the crate `cc` finds it.
pub struct Compiler {
    /// The compiler cache in front of it: that of `CXX` ("ccache g++"), else that of cargo (`RUSTC_WRAPPER`).
    pub cache: Option<OsString>,
    /// The compiler of `CXX`, else [`Compiler::USUAL`].
    pub path: PathBuf,
    /// The arguments that `CXX` has, and those of `CXXFLAGS`.
    flags: Vec<OsString>,
}

impl Compiler {
    const USUAL: &str = "c++";

    /// The compiler, whether it exists or not.
    pub fn get() -> Result<&'static Self> {
        static COMPILER: LazyLock<std::result::Result<Compiler, String>> = LazyLock::new(|| {
            let tool = build_of(true).try_get_compiler();
            Ok(Compiler::of(&tool.map_err(|error| error.to_string())?))
        });
        COMPILER.as_ref().map_err(|found| missing().found(found))
    }

    fn of(tool: &cc::Tool) -> Self {
        let command = tool.to_command();
        let cache = Some(command.get_program()).filter(|program| *program != tool.path());
        let flags = command.get_args().skip(usize::from(cache.is_some()));
        // `cc` adds one of these, which silence warnings: the second one for a compiler that it does not recognise.
        let flags = flags.filter(|flag| *flag != "-w" && *flag != "-W0");
        Self {
            cache: cache.map(OsStr::to_owned),
            path: tool.path().to_owned(),
            flags: flags.map(OsStr::to_owned).collect(),
        }
    }

    /// The flags in one text, as `CXXFLAGS` has them.
    pub fn flags(&self) -> OsString {
        self.flags.join(OsStr::new(" "))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.flags);
        command
    }
}

fn missing() -> Failure {
    Failure::new("there is no C++ compiler")
        .fix("install g++ 12 or later, or clang 16 or later (on Debian or Ubuntu: apt-get install g++)")
        .fix("or set CXX to a compiler for C++20")
}

/// The version text of the C++ compiler.
pub fn compiler() -> Result<String> {
    let mut command = Compiler::get()?.command();
    output_of(command.arg("--version"))
        .and_then(|text| text.lines().next().map(str::to_owned))
        .ok_or_else(|| missing().sought(format!("{command:?}")))
}

/// All inputs besides the sources that decide what the compiler produces: its version, its name
/// unless it is the usual one, and its flags. One line.
pub fn compiler_and_flags() -> Result<String> {
    let (version, compiler) = (compiler()?, Compiler::get()?);
    let name = compiler.path.to_string_lossy();
    let name = if name == Compiler::USUAL { "" } else { &name };
    let words = format!("{version} {name} {}", compiler.flags().display());
    Ok(words.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The compiler's own headers (stddef.h), which the libclang wheel does not contain.
pub fn compiler_include() -> Option<PathBuf> {
    let mut command = Compiler::get().ok()?.command();
    let text = output_of(command.arg("-print-file-name=include"))?;
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

//! The build script of this crate with a tool chain that writes files instead of compiling: two builds at once with an
//! empty cache, in two processes, as in two `cargo build`s; and what the tools are told.
#![cfg(unix)]

#[path = "../build/native.rs"]
mod native;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use native::{host, pins};

/// Replaces CMake: reports overlapping runs, takes half a second, and creates the files of an installation. Fails once
/// in either of its runs if the test asks for it. Keeps the arguments of its first run.
const CMAKE: &str = r#"#!/bin/sh
case "$1" in
--version) echo "cmake version 3.31.0" ;;
--build)
    mkdir "$LOG.busy" || echo overlap >> "$LOG"
    echo start >> "$LOG"
    echo "[1/1] Building CXX object bread.o"
    sleep 0.5
    rmdir "$LOG.busy"
    if rm "$LOG.fails" 2>/dev/null; then exit 1; fi
    prefix=$(cat "$2/prefix")
    mkdir -p "$prefix/lib" "$prefix/include/mlx/c"
    echo library > "$prefix/lib/$LIBRARY"
    echo header > "$prefix/include/mlx/c/mlx.h"
    echo header > "$prefix/include/mlxrs.h"
    echo end >> "$LOG"
    ;;
*)
    printf '%s\n' "$@" > "$LOG.arguments"
    if rm "$LOG.unconfigured" 2>/dev/null; then echo "CMake Error: no bread" >&2; exit 1; fi
    for argument; do
        case "$argument" in
        -DCMAKE_INSTALL_PREFIX=*) prefix=${argument#*=} ;;
        esac
        [ "$last" = -B ] && out=$argument
        last=$argument
    done
    mkdir -p "$out"
    echo "$prefix" > "$out/prefix"
    echo > "$out/build.ninja"
    ;;
esac
"#;

/// Replaces the C++ compiler: creates the output file.
const COMPILER: &str = r#"#!/bin/sh
echo 'pretended compiler 1.0'
while [ $# -gt 0 ]; do
    case "$1" in
    -o) echo object > "$2" ;;
    -Fo*) echo object > "${1#-Fo}" ;;
    esac
    shift
done
"#;
const NINJA: &str = "#!/bin/sh\necho 1.12\n";

struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for (name, text) in [("cmake", CMAKE), ("ninja", NINJA), ("c++", COMPILER)] {
            let path = machine.write(&format!("bin/{name}"), text);
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut header = String::new();
        for (name, number) in ["MAJOR", "MINOR", "PATCH"].iter().zip(pins::MLX.split('.')) {
            header += &format!("#define MLX_VERSION_{name} {number}\n");
        }
        machine.write("mlx/include/mlx/version.h", &header);
        machine.write(&format!("mlx/lib/{}", host::library("mlx")), "library");
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("log")).unwrap_or_default()
    }

    /// Starts the build script of a project.
    fn start(&self, project: &str) -> Child {
        self.command(project).spawn().unwrap()
    }

    fn command(&self, project: &str) -> Command {
        let out = self.at(project);
        fs::create_dir_all(&out).unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(env!("MLXC_BUILD_SCRIPT"));
        for name in native::VARIABLES.into_iter().chain([native::LEFT_OUT]) {
            command.env_remove(name);
        }
        for name in native::tools::compiler_variables() {
            command.env_remove(name);
        }
        command
            .env("PATH", format!("{}:{path}", self.at("bin").display()))
            .env("CXX", self.at("bin/c++"))
            .env("MLX_CACHE_DIR", self.at("cache"))
            .env("MLX_DIR", self.at("mlx"))
            .env("OUT_DIR", out)
            .env("TARGET", host::triple())
            .env("HOST", host::triple())
            .env("OPT_LEVEL", "0")
            .env("DEBUG", "false")
            .env("LOG", self.at("log"))
            .env("LIBRARY", host::library("mlxc"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts two builds, the second while the first one runs.
    fn both(&self) -> [Output; 2] {
        let first = self.start("first");
        let started = Instant::now();
        while self.log().is_empty() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "nothing is built"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let second = self.start("second");
        [first, second].map(|build| build.wait_with_output().unwrap())
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The folder that a build script reports to cargo.
fn root(output: &Output) -> PathBuf {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    let root = stdout
        .lines()
        .find_map(|line| line.strip_prefix("cargo::metadata=root="));
    PathBuf::from(root.unwrap())
}

#[test]
fn the_second_build_waits_and_takes_what_the_first_has_made() {
    let machine = Machine::new();
    let outputs = machine.both();
    assert_eq!(machine.log(), "start\nend\n");
    assert_eq!(root(&outputs[0]), root(&outputs[1]));
    assert!(root(&outputs[0]).starts_with(machine.at("cache").canonicalize().unwrap()));
    assert!(text(&outputs[0].stderr).contains("compiling mlx-c"));
    assert_eq!(text(&outputs[1].stderr), "");
    for project in ["first", "second"] {
        assert!(machine.at(project).join("entries.rs").is_file());
    }
    // Only the finished folder and its lock are left, and a third build makes nothing.
    let third = machine.start("third").wait_with_output().unwrap();
    assert_eq!(root(&third), root(&outputs[0]));
    assert_eq!(machine.log(), "start\nend\n");
    let names = fs::read_dir(machine.at("cache")).unwrap();
    let names = names.map(|item| item.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let kept = root(&third)
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(names, [kept.clone(), format!("{kept}.lock")]);
}

#[test]
fn a_build_that_fails_leaves_its_place_to_the_other() {
    let machine = Machine::new();
    machine.write("log.fails", "");
    let [first, second] = machine.both();
    assert_eq!(first.status.code(), Some(1));
    assert!(text(&first.stderr).contains("mlx-c does not compile"));
    assert!(
        root(&second)
            .join("lib")
            .join(host::library("mlxc"))
            .is_file()
    );
    assert_eq!(machine.log(), "start\nstart\nend\n");
}

#[test]
fn a_project_that_cmake_refuses_is_an_error_with_its_words() {
    let machine = Machine::new();
    machine.write("log.unconfigured", "");
    let output = machine.start("first").wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    for part in [
        "CMake could not configure mlx-c",
        "CMake Error: no bread",
        "pretended compiler 1.0",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Cargo reads the standard output of a build script.
    let other = text(&output.stdout)
        .lines()
        .find(|line| !line.starts_with("cargo::"));
    assert_eq!(other, None);
}

#[test]
fn the_compiler_and_its_flags_are_those_of_the_environment() {
    let machine = Machine::new();
    let compiler = machine.at("bin/c++");
    let path = machine.write("bin/ccache", "#!/bin/sh\nexec \"$@\"\n");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let build = |project: &str, variables: &[(&str, &str)]| {
        let mut command = machine.command(project);
        command.envs(variables.iter().copied());
        let root = root(&command.output().unwrap());
        (
            root,
            fs::read_to_string(machine.at("log.arguments")).unwrap(),
        )
    };
    let (plain, told) = build("plain", &[]);
    let compiler = compiler.display();
    let told: Vec<&str> = told.lines().collect();
    for argument in [
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        &format!("-DCMAKE_CXX_COMPILER={compiler}"),
        &format!("-DMLXRS_INPUTS={}", pins::inputs()),
    ] {
        assert!(told.contains(&argument), "{argument}: {told:?}");
    }
    // A cache in front of the compiler makes the same library, other flags another one.
    let cached = format!("ccache {compiler}");
    let (same, _) = build("cached", &[("CXX", &cached)]);
    assert_eq!(same, plain);
    let cached = format!("{cached} -m64");
    let flags = [("CXX", &*cached), ("CXXFLAGS", "-DBREAD=1 -g")];
    let (other, told) = build("flags", &flags);
    assert_ne!(other, plain);
    assert!(
        told.contains("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache\n"),
        "{told}"
    );
    assert!(
        told.contains("-DCMAKE_CXX_FLAGS=-m64 -DBREAD=1 -g\n"),
        "{told}"
    );
}

#[test]
fn a_build_without_mlx_needs_no_tool_and_no_cache() {
    let machine = Machine::new();
    let build = |variable: (&str, &str), target: &str| {
        let mut command = machine.command("checked");
        command.env("PATH", "").env("CXX", "no-compiler");
        for name in ["MLX_DIR", "MLX_CACHE_DIR", "HOME", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        command.env("TARGET", target).env(variable.0, variable.1);
        command.output().unwrap()
    };
    let targets = [
        &*host::triple(),
        "aarch64-unknown-linux-gnu",
        "aarch64-apple-darwin",
    ];
    for target in targets {
        for variable in [("DOCS_RS", "1"), (native::LEFT_OUT, "1")] {
            let output = build(variable, target);
            assert!(output.status.success(), "{}", text(&output.stderr));
            let told = text(&output.stdout);
            assert!(!told.contains("rustc-link"), "{told}");
            let entries = machine.at("checked").join("entries.s");
            if target.contains("linux") {
                let assembly = fs::read_to_string(&entries).unwrap();
                assert!(assembly.contains(".globl mlx_add\n"), "{target}");
                fs::remove_file(&entries).unwrap();
            }
            assert!(!entries.exists());
        }
    }
    assert_eq!(machine.log(), "");
    assert!(!machine.at("cache").exists());
    let output = build((native::LEFT_OUT, "yes"), &host::triple());
    let error = text(&output.stderr);
    assert!(
        error.contains("MLX_NO_NATIVE is neither 0 nor 1"),
        "{error}"
    );
}

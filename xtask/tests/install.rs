//! Programs find libmlxc wherever they were built and wherever they are: built from git, built in a target folder that
//! is deleted later, installed by cargo, or moved together with their libraries.
#![cfg(target_os = "linux")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The second run of the tests, without our CPU kernels, would build the same programs again.
fn is_second_run() -> bool {
    std::env::var_os("MLX_CPU_KERNELS").is_some()
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Variables of cargo that belong to the machine. The others are of the cargo that runs this test.
const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_INCREMENTAL", "CARGO_PROFILE_DEV_DEBUG"];

fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_") && !KEPT.contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command
}

/// A cargo home with all contents of the user's except the checkouts of git repositories.
fn cargo_home(folder: &Path) -> PathBuf {
    let home = folder.join("cargo-home");
    fs::create_dir(&home).unwrap();
    let user = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cargo"),
    };
    for item in fs::read_dir(user).unwrap() {
        let item = item.unwrap();
        if item.file_name() != OsStr::new("git") {
            symlink(item.path(), home.join(item.file_name())).unwrap();
        }
    }
    home
}

/// A program that adds, and prints the sum and every file that is mapped into memory. With an argument it prints the
/// files that it needs on another machine, and their places.
const SUM: &str = r#"
fn main() -> mlx_core::Result<()> {
    if std::env::args().count() > 1 {
        for library in mlx_core::mlx_c_sys::libraries().unwrap() {
            println!("{}\t{}", library.file.display(), library.place.display());
        }
        return Ok(());
    }
    let x = mlx_core::Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
    println!("{}", x.sum(.., false)?.item::<f32>()?);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files: std::collections::BTreeSet<_> =
        maps.lines().filter_map(|line| Some(&line[line.find('/')?..])).collect();
    files.iter().for_each(|file| println!("{file}"));
    Ok(())
}
"#;

/// The libraries of MLX and of this project that the program loads in an empty environment.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let printed = output(Command::new(program).env_clear());
    let mut lines = printed.lines();
    assert_eq!(lines.next(), Some("6"));
    let own = |name: &str| {
        let stems = [
            "libmlx",
            "libblas",
            "liblapack",
            "libgfortran",
            "libquadmath",
        ];
        stems.iter().any(|stem| name.starts_with(stem))
    };
    lines
        .map(PathBuf::from)
        .filter(|file| own(&file.file_name().unwrap().to_string_lossy()))
        .collect()
}

/// The program runs where there is nothing but the C and C++ libraries, it, and the files that it lists.
fn runs_in_a_root_of_its_own(folder: &Path, program: &Path) {
    let (root, packed) = (folder.join("root"), folder.join("root/packed"));
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    copy(program, &packed.join("sum"));
    let mapped = output(Command::new(program).env_clear());
    let of_system = [
        "ld-linux",
        "libc.",
        "libm.",
        "libdl.",
        "libpthread.",
        "librt.",
        "libgcc_s.",
        "libstdc++.",
    ];
    for file in mapped.lines().skip(1).map(Path::new) {
        let name = file.file_name().unwrap().to_string_lossy();
        if of_system.iter().any(|start| name.starts_with(start)) {
            // A mapped file is named without links, and a program names it by one: libstdc++.so.6.
            let short = name.split(".so.").next().unwrap().to_owned();
            let version = name.split(".so.").nth(1).unwrap_or("");
            let short = format!("{short}.so.{}", version.split('.').next().unwrap());
            copy(file, &root.join(file.strip_prefix("/").unwrap()));
            copy(file, &root.join("lib").join(&short));
            copy(file, &root.join("lib64").join(&short));
        }
    }
    let listed = output(Command::new(program).arg("libraries").env_clear());
    assert!(listed.contains("\tlib/mlx/lib/libmlxc.so\n"), "{listed}");
    assert!(listed.contains("\tlicenses/"), "{listed}");
    for line in listed.lines() {
        let (file, place) = line.split_once('\t').unwrap();
        copy(Path::new(file), &packed.join(place));
    }
    let inside = |program: &str| {
        let mut command = Command::new("unshare");
        command.arg("--map-root-user").arg("--root").arg(&root);
        command.arg(program).env_clear();
        command.env("LD_LIBRARY_PATH", "/lib64").output().unwrap()
    };
    if !Command::new("unshare")
        .args(["--map-root-user", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("left out: this machine gives no process a root of its own");
        return;
    }
    let ran = inside("/packed/sum");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "6\n", "{errors}");
    // Without the libraries it says how to get them.
    fs::remove_dir_all(packed.join("lib")).unwrap();
    let ran = inside("/packed/sum");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success());
    for cure in ["cargo xtask dist", "mlx_c_sys::libraries()"] {
        assert!(errors.contains(cure), "{errors}");
    }
}

#[test]
fn a_program_of_a_git_dependency_outlives_its_target_folder_and_moves_with_its_libraries() {
    if is_second_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    fs::create_dir_all(project.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"sum\"\nversion = \"1.0.0\"\nedition = \"2024\"\n\
         [dependencies]\nmlx-core = {{ git = \"file://{}\" }}\n[profile.dev]\ndebug = false\n",
        repository().display()
    );
    fs::write(project.join("Cargo.toml"), manifest).unwrap();
    fs::write(project.join("src/main.rs"), SUM).unwrap();
    fs::copy(repository().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    // Created before cargo could put its mark there, like the cache mounts of containers.
    let target = folder.path().join("target");
    fs::create_dir(&target).unwrap();
    output(
        cargo()
            .args(["build", "--quiet"])
            .current_dir(&project)
            .env("CARGO_HOME", cargo_home(folder.path()))
            .env("CARGO_TARGET_DIR", &target),
    );
    let program = folder.path().join("bin/sum");
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::copy(target.join("debug/sum"), &program).unwrap();
    fs::remove_dir_all(&target).unwrap();
    fs::remove_dir_all(&project).unwrap();
    let built = libraries(&program);
    assert!(built.len() >= 2, "{built:?}");

    runs_in_a_root_of_its_own(folder.path(), &program);

    // Libraries beside the program or in ../lib, all in one folder, take precedence over the cache.
    for place in ["bin", "lib"] {
        let place = folder.path().join(place);
        fs::create_dir_all(&place).unwrap();
        for file in &built {
            fs::copy(file, place.join(file.file_name().unwrap())).unwrap();
        }
        let place = place.canonicalize().unwrap();
        for file in libraries(&program) {
            assert_eq!(file.parent(), Some(&*place), "{}", file.display());
        }
        for file in &built {
            fs::remove_file(place.join(file.file_name().unwrap())).unwrap();
        }
    }

    // A file with the library's name that is not a library of this build is ignored.
    fs::write(folder.path().join("bin/libmlxc.so"), "no library").unwrap();
    assert_eq!(libraries(&program), built);
}

#[test]
fn an_installed_command_needs_nothing_of_the_target_folder() {
    if is_second_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The dependencies are there already, built for the tests.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    output(
        cargo()
            .args(["install", "--quiet", "--debug", "--locked", "--no-track"])
            .arg("--path")
            .arg(repository().join("mlx-infer"))
            .arg("--root")
            .arg(folder.path())
            .env("CARGO_TARGET_DIR", target),
    );
    let printed = output(
        Command::new(folder.path().join("bin/mlx-infer"))
            .args(["generate", "--prompt", "47 + 38 ="])
            .env_clear(),
    );
    assert_eq!(printed.trim(), "85");
    let program = fs::read(folder.path().join("bin/mlx-infer")).unwrap();
    let inside = target.join("mlx").to_string_lossy().into_owned();
    let holds = |text: &str| {
        program
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    assert!(!holds(&inside), "the program names {inside}");
}

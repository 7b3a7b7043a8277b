//! `dist`: an archive with a release binary and every library it needs, that runs from any folder;
//! on Linux also a Debian package, a wheel and a `Dockerfile` of the same files.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::native::{self, LEFT_OUT, host};
use crate::{build_mlx, cargo};

mod bare;
mod crates;
pub mod formats;
mod licenses;
#[path = "../../mlx-c-sys/build/package.rs"]
mod package;
mod trial;

use self::formats::PackedFolder;
use self::trial::Packages;

/// Arguments of `dist`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The manifest of the program to pack, which may be outside this repository; by default this repository's
    #[arg(long, value_name = "FILE")]
    manifest_path: Option<PathBuf>,
    /// The program; by default the only one of the package, or mlx-infer in this repository
    #[arg(long, value_name = "NAME")]
    bin: Option<String>,
    /// Pack the program that the tests of this repository use, which has no optimisation: shows in little time whether
    /// packing works
    #[arg(long, conflicts_with_all = ["manifest_path", "cargo"])]
    debug: bool,
    /// Also build the image of the CPU back end by docker or podman, and run it
    #[arg(long)]
    image: bool,
    /// Arguments for `cargo build`, such as `--features NAME`
    #[arg(last = true, value_name = "ARGS")]
    cargo: Vec<String>,
}

/// A program that is to be packed.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    package: String,
    version: String,
    name: String,
}

/// What cargo has built: the program, the folders of libmlxc and MLX that it was built with, and the identifiers of the
/// packages that it was compiled of.
#[derive(Debug, PartialEq, Eq)]
struct Built {
    program: PathBuf,
    libmlxc: PathBuf,
    mlx: PathBuf,
    packages: BTreeSet<String>,
}

/// Builds, collects and packs.
pub fn run(arguments: &Arguments) -> Result<()> {
    let manifest = match &arguments.manifest_path {
        Some(given) => given.clone(),
        None => cargo::repository().join("Cargo.toml"),
    };
    let manifest = fs::canonicalize(&manifest).with_context(|| manifest.display().to_string())?;
    let bin = match (&arguments.bin, &arguments.manifest_path) {
        (None, None) => Some("mlx-infer"),
        (bin, _) => bin.as_deref(),
    };
    let found = metadata(&manifest, &["--no-deps"])?;
    let program = program(&found, bin)?;
    let built = build(&manifest, &program, arguments)?;
    let target = cargo::build_directory_of(&found)?.join(match arguments.debug {
        true => "dist-debug",
        false => "dist",
    });
    let backend = build_mlx::from_env()?.backend.name();
    let name = format!(
        "{}-{}-{}-{backend}",
        program.name,
        program.version,
        host::triple(),
    );
    let folder = target.join(&name);
    native::store::remove(&folder).map_err(|e| anyhow!("{e}"))?;
    let own = built
        .program
        .file_name()
        .context("the program has no name")?;
    copy(&built.program, &folder.join(own))?;
    for (file, place) in package::files(&built.libmlxc, &built.mlx)? {
        copy(&file, &folder.join(place))?;
    }
    if cfg!(target_os = "linux") {
        // Symbols are four fifths of the program. MLX's libraries stay as they are: the tool that made its wheel has
        // moved their parts, and `strip` damages such files.
        let libmlxc = folder.join(package::LIBRARIES).join("libmlxc.so");
        cargo::run(Command::new("strip").arg(folder.join(own)).arg(libmlxc))?;
    }
    let full = metadata(&manifest, &["--filter-platform", &host::triple()])?;
    let of_crates = crates::text(&full, &program.package, &built.packages)?;
    licenses::write(&folder, &of_crates)?;
    let archive = target.join(format!("{name}.tar.gz"));
    let packed = formats::tar(&target, &name)?;
    fs::write(&archive, packed).with_context(|| archive.display().to_string())?;
    println!("{}", archive.display());
    // The packages have this repository's name.
    if cfg!(target_os = "linux") && arguments.manifest_path.is_none() {
        let packed = PackedFolder {
            folder: &folder,
            program: &program.name,
            version: &program.version,
            processor: env::consts::ARCH,
            backend,
        };
        let debian = packed.debian(&target)?;
        println!("{}", debian.display());
        let dockerfile = packed.dockerfile(&target, &format!("{name}.tar.gz"))?;
        if let Some(dockerfile) = &dockerfile {
            println!("{}", dockerfile.display());
        }
        // The wheel has the name of the repository, and the repository's first program.
        if program.name == "mlx-infer" {
            let wheel = packed.wheel(&target)?;
            println!("{}", wheel.display());
            let packages = Packages {
                packed: &packed,
                archive: &archive,
                debian: &debian,
                wheel: &wheel,
                work: &target.join("tried"),
            };
            if backend == "cpu" {
                packages.try_all()?;
                if arguments.image {
                    packages.try_image(&dockerfile.context("there is no Dockerfile")?)?;
                }
            }
        }
    }
    Ok(())
}

/// A command of cargo in the folder of a manifest, whose settings it uses.
fn command(subcommand: &str, manifest: &Path) -> Command {
    let mut command = cargo::command([subcommand, "--manifest-path"]);
    command.arg(manifest);
    command.current_dir(manifest.parent().unwrap_or(Path::new(".")));
    command
}

fn metadata(manifest: &Path, more: &[&str]) -> Result<Value> {
    let output = command("metadata", manifest)
        .arg("--format-version=1")
        .args(more)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("cargo metadata: {}", reason.trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

/// The program of this name, or the only one.
fn program(metadata: &Value, name: Option<&str>) -> Result<Program> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut programs = Vec::new();
    for package in list(&metadata["packages"]) {
        let is_program = |target: &Value| list(&target["kind"]).iter().any(|kind| kind == "bin");
        for target in list(&package["targets"]).into_iter().filter(is_program) {
            programs.push(Program {
                package: text(&package["name"]),
                version: text(&package["version"]),
                name: text(&target["name"]),
            });
        }
    }
    let names: Vec<&str> = programs.iter().map(|program| &*program.name).collect();
    let names = names.join(", ");
    let found = match name {
        Some(name) => programs.into_iter().find(|program| program.name == name),
        None if programs.len() == 1 => programs.pop(),
        None => None,
    };
    found.with_context(|| match name {
        _ if names.is_empty() => "the manifest has no program".to_owned(),
        Some(name) => format!("there is no program {name}, but {names}"),
        None => format!("there are several programs: choose one by --bin: {names}"),
    })
}

/// Builds the program, and reads from cargo's messages with which libraries.
fn build(manifest: &Path, program: &Program, arguments: &Arguments) -> Result<Built> {
    let mut command = match arguments.debug {
        // Built by the same command as the tests, the program is there already.
        true => {
            let mut command = command("test", manifest);
            command.args(["--workspace", "--no-run"]);
            command
        }
        false => {
            let mut command = command("build", manifest);
            command.args(["--release", "--package", &program.package]);
            command.args(["--bin", &program.name]);
            if arguments.manifest_path.is_none() {
                // This repository's setting is for short builds.
                command.args(["--config", "profile.release.lto=false"]);
            }
            command
        }
    };
    let output = command
        .arg("--message-format=json-render-diagnostics")
        .args(&arguments.cargo)
        .env_remove(LEFT_OUT)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo build")?;
    if !output.status.success() {
        bail!("cargo build: {}", output.status);
    }
    built(&String::from_utf8_lossy(&output.stdout), &program.name)
}

fn built(messages: &str, name: &str) -> Result<Built> {
    let (mut executable, mut build, mut mlx) = (None, None, None);
    let mut packages = BTreeSet::new();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if message["reason"] == "compiler-artifact"
            && let Some(package) = message["package_id"].as_str()
        {
            packages.insert(package.to_owned());
        }
        if message["target"]["name"] == name
            && message["profile"]["test"] != true
            && let Some(path) = message["executable"].as_str()
        {
            executable = Some(PathBuf::from(path));
        }
        for variable in message["env"].as_array().into_iter().flatten() {
            let value = || variable[1].as_str().map(PathBuf::from);
            match variable[0].as_str() {
                Some("MLXC_BUILD") => build = value(),
                Some("MLXC_MLX") => mlx = value(),
                _ => {}
            }
        }
    }
    let (Some(libmlxc), Some(mlx)) = (build, mlx) else {
        bail!("the program {name} does not depend on this version of mlx-c-sys");
    };
    Ok(Built {
        program: executable.context("cargo names no program that it has built")?,
        libmlxc,
        mlx,
        packages,
    })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_program_is_the_only_one_or_the_one_that_is_named() {
        let package = |name: &str, programs: &[&str]| {
            let target = |name: &&str| json!({"name": name, "kind": ["bin"]});
            let mut targets: Vec<Value> = programs.iter().map(target).collect();
            targets.push(json!({"name": "a_library", "kind": ["lib"]}));
            json!({"name": name, "version": "0.2.0", "targets": targets})
        };
        let one = json!({"packages": [package("own", &["own"])]});
        assert_eq!(program(&one, None).unwrap().name, "own");
        let two = json!({"packages": [package("a", &["x", "y"]), package("b", &[])]});
        let found = program(&two, Some("y")).unwrap();
        assert_eq!((&*found.package, &*found.version), ("a", "0.2.0"));
        let error = program(&two, None).unwrap_err().to_string();
        assert!(error.contains("--bin: x, y"), "{error}");
        let error = program(&one, Some("other")).unwrap_err().to_string();
        assert!(error.contains("no program other, but own"), "{error}");
        let none = json!({"packages": [package("b", &[])]});
        assert!(program(&none, None).is_err());
    }

    #[test]
    fn the_libraries_are_those_of_the_build() {
        let script = json!({"reason": "build-script-executed",
            "env": [["MLXC_BUILD", "/cache/cpu"], ["MLXC_MLX", "/cache/mlx"]]});
        let own = json!({"reason": "compiler-artifact", "package_id": "own 1.0.0",
            "target": {"name": "own"}, "executable": "/target/own"});
        let expected = Built {
            program: "/target/own".into(),
            libmlxc: "/cache/cpu".into(),
            mlx: "/cache/mlx".into(),
            packages: BTreeSet::from(["own 1.0.0".to_owned()]),
        };
        let messages = format!("{script}\nno JSON\n{own}\n");
        assert_eq!(built(&messages, "own").unwrap(), expected);
        // The program with the unit tests has the same name.
        let tests = json!({"target": {"name": "own"}, "profile": {"test": true}, "executable": "/target/own-1"});
        let with_tests = format!("{messages}{tests}\n");
        assert_eq!(built(&with_tests, "own").unwrap(), expected);
        let error = built(&own.to_string(), "own").unwrap_err().to_string();
        assert!(error.contains("does not depend on"), "{error}");
    }
}

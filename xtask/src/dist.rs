//! `dist`: an archive with a release binary and every library it needs, that runs from any folder;
//! on Linux also a Debian package, a wheel and a `Dockerfile` of the same files.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::native::{self, LEFT_OUT, host};
use crate::{build_mlx, cargo};

mod bare;
mod formats;
#[path = "../../mlx-c-sys/build/package.rs"]
mod package;

use self::formats::{PackedFolder, fresh};

/// Arguments of `dist`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The manifest of the program to pack, which may be outside this repository; by default this repository's
    #[arg(long, value_name = "FILE")]
    manifest_path: Option<PathBuf>,
    /// The program; by default the only one of the package, or mlx-infer in this repository
    #[arg(long, value_name = "NAME")]
    bin: Option<String>,
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

/// What cargo has built: the program, and the folders of libmlxc and MLX that it was built with.
#[derive(Debug, PartialEq, Eq)]
struct Built {
    program: PathBuf,
    libmlxc: PathBuf,
    mlx: PathBuf,
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
    let metadata = metadata(&manifest)?;
    let program = program(&metadata, bin)?;
    let built = build(&manifest, &program, &arguments.cargo)?;
    let target = cargo::build_directory_of(&metadata)?.join("dist");
    let name = format!(
        "{}-{}-{}-{}",
        program.name,
        program.version,
        host::triple(),
        build_mlx::from_env()?.backend.name()
    );
    let folder = target.join(&name);
    native::store::remove(&folder).map_err(|e| anyhow!("{e}"))?;
    let own = built
        .program
        .file_name()
        .context("the program has no name")?;
    copy(&built.program, &folder.join(own))?;
    if cfg!(target_os = "linux") {
        // Symbols are four fifths of the program.
        cargo::run(Command::new("strip").arg(folder.join(own)))?;
    }
    for (file, place) in package::files(&built.libmlxc, &built.mlx)? {
        copy(&file, &folder.join(place))?;
    }
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(
            &cargo::repository().join(license),
            &folder.join("licenses/mlx-rust").join(license),
        )?;
    }
    // The server's page has these libraries in it.
    let vendor = cargo::repository().join("mlx-infer/src/serve/routes/page/vendor");
    for library in ["marked", "highlight"] {
        let license = vendor.join(format!("LICENSE-{library}"));
        copy(
            &license,
            &folder.join("licenses").join(library).join("LICENSE"),
        )?;
    }
    let archive = target.join(format!("{name}.tar.gz"));
    cargo::run(
        Command::new("tar")
            .arg("-czf")
            .arg(&archive)
            .arg("-C")
            .arg(&target)
            .arg(&name),
    )?;
    println!("{}", archive.display());
    // The packages have this repository's name.
    if cfg!(target_os = "linux") && arguments.manifest_path.is_none() {
        let backend = build_mlx::from_env()?.backend.name();
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
        println!("{}", dockerfile.display());
        // The wheel has the name of the repository, and the repository's first program.
        if program.name == "mlx-infer" {
            let wheel = packed.wheel(&target)?;
            println!("{}", wheel.display());
            if backend == "cpu" {
                let unpacked = target.join("tried");
                try_all(&program.name, &archive, &debian, &wheel, &unpacked)?;
            }
        }
    }
    Ok(())
}

/// Runs the program of each package in a root without anything else.
fn try_all(program: &str, archive: &Path, debian: &Path, wheel: &Path, work: &Path) -> Result<()> {
    let folder = |name: &str| fresh(&work.join(name));
    let of_archive = folder("archive")?;
    let mut untar = Command::new("tar");
    untar.arg("-xzf").arg(archive).arg("--strip-components=1");
    cargo::run(untar.arg("-C").arg(&of_archive))?;
    bare::tried(&of_archive, program, work, bare::QUESTION)?;
    let of_wheel = folder("wheel")?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--target"]);
    cargo::run(pip.arg(&of_wheel).arg(wheel))?;
    let place = format!("mlx_rust/program/{program}");
    bare::tried(&of_wheel, &place, work, bare::QUESTION)?;
    let of_debian = folder("debian")?;
    match Command::new("dpkg-deb")
        .arg("-x")
        .arg(debian)
        .arg(&of_debian)
        .status()
    {
        Err(_) => eprintln!("left out: there is no dpkg-deb to unpack the Debian package with"),
        Ok(status) if !status.success() => bail!("dpkg-deb cannot unpack {}", debian.display()),
        Ok(_) => {
            // The link in usr/bin is not followed when files are copied.
            fs::remove_dir_all(of_debian.join("usr/bin"))?;
            let place = format!("usr/lib/{program}/{program}");
            bare::tried(&of_debian, &place, work, bare::QUESTION)?;
        }
    }
    fs::remove_dir_all(work).with_context(|| work.display().to_string())
}

/// A command of cargo in the folder of a manifest, whose settings it uses.
fn command(subcommand: &str, manifest: &Path) -> Command {
    let mut command = cargo::command([subcommand, "--manifest-path"]);
    command.arg(manifest);
    command.current_dir(manifest.parent().unwrap_or(Path::new(".")));
    command
}

fn metadata(manifest: &Path) -> Result<Value> {
    let output = command("metadata", manifest)
        .args(["--format-version=1", "--no-deps"])
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
fn build(manifest: &Path, program: &Program, more: &[String]) -> Result<Built> {
    let output = command("build", manifest)
        .args([
            "--release",
            "--package",
            &program.package,
            "--bin",
            &program.name,
        ])
        .arg("--message-format=json-render-diagnostics")
        .args(more)
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
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if message["target"]["name"] == name
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
        let own = json!({"target": {"name": "own"}, "executable": "/target/own"});
        let expected = Built {
            program: "/target/own".into(),
            libmlxc: "/cache/cpu".into(),
            mlx: "/cache/mlx".into(),
        };
        let messages = format!("{script}\nno JSON\n{own}\n");
        assert_eq!(built(&messages, "own").unwrap(), expected);
        let error = built(&own.to_string(), "own").unwrap_err().to_string();
        assert!(error.contains("does not depend on"), "{error}");
    }
}

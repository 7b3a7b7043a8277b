//! `packages`: packs the crates as for a publication, unpacks the archives outside the workspace, and builds and runs a
//! program against each.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo;
use crate::scratch::Scratch;

/// A crate, the features that its program asks for, and what the program prints. A crate without a program of its own
/// is used by that of another.
struct Package {
    name: &'static str,
    features: &'static [&'static str],
    prints: Option<&'static str>,
}

const fn package(
    name: &'static str,
    features: &'static [&'static str],
    prints: &'static str,
) -> Package {
    Package {
        name,
        features,
        prints: Some(prints),
    }
}

const PACKAGES: [Package; 7] = [
    package("mlx-c-sys", &[], "0.32.4 true"),
    package("mlx-core", &[], "[7.0, 10.0, 15.0, 22.0]"),
    package("mlx-nn", &[], "[1, 2] [2, 1] l1.weight"),
    Package {
        name: "mlx-nn-derive",
        features: &[],
        prints: None,
    },
    package("mlx-models", &[], "[1, 3, 64]"),
    package("mlx-infer", &["default-model"], "85 true"),
    package("mlx-train", &[], "5 [2, 3]"),
];

/// What each archive holds beside its code.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Packs, unpacks, builds and runs.
pub fn run() -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let mut pack = cargo::command(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    for package in &PACKAGES {
        pack.args(["--package", package.name]);
    }
    cargo::run(&mut pack)?;
    let archives = cargo::target_directory()?.join("package");
    // Cargo looks for a workspace in the folders above a package, so the folder is outside the repository.
    let folder = Scratch::new("packages")?;
    let root = folder.path();
    for package in &PACKAGES {
        let name = format!("{}-{version}", package.name);
        cargo::run(
            Command::new("tar")
                // With the time of now: archives have one old date, by which cargo would take their code for built.
                .arg("-xzmf")
                .arg(archives.join(format!("{name}.crate")))
                .arg("-C")
                .arg(root),
        )?;
        for file in FILES {
            let path = root.join(&name).join(file);
            let is_there = path.is_file() && !path.is_symlink();
            ensure!(is_there, "the archive of {} has no {file}", package.name);
        }
        if package.prints.is_some() {
            write_program(root, package)?;
        }
    }
    let repository = cargo::repository();
    let settings = fs::read_to_string(repository.join("Cargo.toml"))?;
    fs::write(root.join("Cargo.toml"), workspace(&settings, version))?;
    fs::copy(repository.join("Cargo.lock"), root.join("Cargo.lock"))?;
    let target = cargo::build_directory()?;
    let mut build = cargo::command(["build", "--workspace", "--quiet"]);
    build.current_dir(root).env("CARGO_TARGET_DIR", &target);
    cargo::run(&mut build)?;
    for package in &PACKAGES {
        let Some(prints) = package.prints else {
            continue;
        };
        let program = target.join("debug").join(program_of(package));
        let output = Command::new(&program)
            .arg(repository.join("testdata/models/qwen3"))
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || printed.trim() != prints {
            bail!(
                "the program on {}: {}, and it printed {:?}, not {:?}\n{}",
                package.name,
                output.status,
                printed.trim(),
                prints,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        eprintln!(
            "{}: packed, unpacked, built, and its program ran",
            package.name
        );
    }
    Ok(())
}

fn program_of(package: &Package) -> String {
    format!("program-on-{}", package.name)
}

fn write_program(root: &Path, package: &Package) -> Result<()> {
    let program = program_of(package);
    let folder = root.join(&program);
    let source = cargo::repository().join(format!("xtask/packages/{}.rs", package.name));
    fs::create_dir_all(folder.join("src"))?;
    fs::copy(&source, folder.join("src/main.rs")).with_context(|| source.display().to_string())?;
    let manifest = format!(
        "[package]\nname = \"{program}\"\nversion = \"1.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         {} = {{ version = \"{}\", default-features = false, features = {:?} }}\n",
        package.name,
        env!("CARGO_PKG_VERSION"),
        package.features
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    Ok(())
}

/// The manifest around the programs: the archives in place of the registry, and the profiles of the repository, so that
/// the dependencies that it has built are not built again.
fn workspace(settings: &str, version: &str) -> String {
    let programs = PACKAGES.iter().filter(|package| package.prints.is_some());
    let programs = programs.map(program_of);
    let programs: Vec<String> = programs.collect();
    let mut text = format!("[workspace]\nresolver = \"3\"\nmembers = {programs:?}\n");
    let archives: Vec<String> = (PACKAGES.iter())
        .map(|package| format!("{}-{version}", package.name))
        .collect();
    let _ = writeln!(text, "exclude = {archives:?}\n\n[patch.crates-io]");
    for (package, archive) in PACKAGES.iter().zip(&archives) {
        let _ = writeln!(text, "{} = {{ path = {archive:?} }}", package.name);
    }
    if let Some(at) = settings.find("\n[profile.dev]") {
        text += &settings[at..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_published_crate_is_packed() {
        let manifest = fs::read_to_string(cargo::repository().join("Cargo.toml")).unwrap();
        let members = manifest.split("members = [").nth(1).unwrap();
        let members = members.split(']').next().unwrap();
        let members = members.split(", ").map(|name| name.trim_matches('"'));
        let members = members.filter(|name| *name != "xtask");
        let own: Vec<String> = members.map(|path| path.replace('/', "-")).collect();
        let packed: Vec<&str> = PACKAGES.iter().map(|package| package.name).collect();
        assert_eq!(own, packed);
        let text = workspace(&manifest, "9.9.9");
        assert!(
            text.contains("mlx-nn = { path = \"mlx-nn-9.9.9\" }"),
            "{text}"
        );
        assert!(text.contains("\n[profile.dev.package]"), "{text}");
    }
}

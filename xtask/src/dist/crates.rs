//! The licences of the crates and of Rust's standard library, which are in the program itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::formats::all_files;

/// A crate that is not of the program's own workspace.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Foreign {
    name: String,
    version: String,
    /// The SPDX expression of its manifest.
    license: String,
    repository: String,
    folder: PathBuf,
}

/// The text for the file of licences: a list of the crates, then each text once, with the crates that have it.
///
/// `metadata` is that of `cargo metadata` with dependencies, `package` the program's package, and `built` has the
/// identifiers of the packages that cargo has compiled for it.
///
/// # Errors
/// A crate names no licence, or has no file with one.
pub fn text(metadata: &Value, package: &str, built: &BTreeSet<String>) -> Result<String> {
    let crates = foreign(metadata, package, built)?;
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for of in &crates {
        let files = license_files(&of.folder)?;
        if files.is_empty() {
            bail!(
                "{} {} ({}) has no file with its licence in {}",
                of.name,
                of.version,
                of.license,
                of.folder.display()
            );
        }
        for file in files {
            let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
            // Some files differ in their line ends only.
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
            let place = file.strip_prefix(&of.folder).unwrap_or(&file);
            let owner = format!("{} {}: {}", of.name, of.version, place.display());
            texts.entry(text.trim().to_owned()).or_default().push(owner);
        }
    }
    let mut out = String::from(
        "The program has code of these crates in it. Their licences follow, each text once.\n\n",
    );
    for of in &crates {
        writeln!(
            out,
            "{} {}: {} ({})",
            of.name, of.version, of.license, of.repository
        )?;
    }
    let mut texts: Vec<(String, Vec<String>)> = texts.into_iter().collect();
    texts.sort_by(|a, b| a.1.cmp(&b.1));
    for (text, owners) in texts {
        write!(
            out,
            "\n{}\n{}\n\n{text}\n",
            "=".repeat(100),
            owners.join("\n")
        )?;
    }
    Ok(out)
}

/// The crates that the package's normal dependencies lead to, among those that were compiled.
fn foreign(metadata: &Value, package: &str, built: &BTreeSet<String>) -> Result<Vec<Foreign>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text_of(&package["id"]), package))
        .collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (text_of(&node["id"]), node))
        .collect();
    let own: BTreeSet<String> = list(&metadata["workspace_members"])
        .iter()
        .map(text_of)
        .collect();
    let root = own
        .iter()
        .find(|id| packages.get(*id).is_some_and(|of| of["name"] == package));
    let mut waiting = vec![
        root.context("cargo metadata does not have the package")?
            .clone(),
    ];
    let mut seen = BTreeSet::new();
    let mut crates = Vec::new();
    while let Some(id) = waiting.pop() {
        if !built.contains(&id) || !seen.insert(id.clone()) {
            continue;
        }
        let of = packages.get(&id).with_context(|| id.clone())?;
        let is_macro = |target: &Value| {
            list(&target["kind"])
                .iter()
                .any(|kind| kind == "proc-macro")
        };
        // A procedural macro runs in the compiler, and is not in the program.
        if list(&of["targets"]).iter().any(is_macro) {
            continue;
        }
        for dependency in list(&nodes.get(&id).with_context(|| id.clone())?["deps"]) {
            let kinds = list(&dependency["dep_kinds"]);
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                waiting.push(text_of(&dependency["pkg"]));
            }
        }
        if own.contains(&id) {
            continue;
        }
        let name = text_of(&of["name"]);
        let license = text_of(&of["license"]);
        if license.is_empty() && of["license_file"].is_null() {
            bail!("the crate {name} names no licence");
        }
        let manifest = PathBuf::from(text_of(&of["manifest_path"]));
        crates.push(Foreign {
            name,
            version: text_of(&of["version"]),
            license,
            repository: text_of(&of["repository"]),
            folder: manifest.parent().unwrap_or(Path::new(".")).to_owned(),
        });
    }
    crates.sort();
    Ok(crates)
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The files with licences below a folder. Crates with code in C have those of its authors in inner folders.
fn license_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_license = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_lowercase();
        let starts = ["licen", "unlicen", "copying", "copyright", "notice"];
        // Not a source file such as `licenses.rs`.
        let is_code = [".rs", ".c", ".h", ".py", ".json", ".sh"];
        starts.iter().any(|start| name.starts_with(start))
            && !is_code.iter().any(|end| name.ends_with(end))
    };
    Ok(all_files(folder)?.into_iter().filter(is_license).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Metadata of a program, and its crates in the folder: one that it needs, one that only builds it, one that another
    /// target needs, and a procedural macro.
    fn metadata(folder: &Path) -> Value {
        let package = |name: &str, kind: &str| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "license_file": null,
                "repository": format!("https://example.org/{name}"), "targets": [{"kind": [kind]}],
                "manifest_path": folder.join(name).join("Cargo.toml")})
        };
        let needs = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let node = |name: &str, deps: Value| json!({"id": name, "deps": deps});
        json!({
            "packages": [package("own", "bin"), package("inner", "lib"), package("outer", "lib"),
                package("builder", "lib"), package("elsewhere", "lib"), package("macro", "proc-macro")],
            "workspace_members": ["own"],
            "resolve": {"nodes": [
                node("own", json!([needs("outer", Value::Null), needs("builder", json!("build")),
                    needs("macro", Value::Null), needs("elsewhere", Value::Null)])),
                node("outer", json!([needs("inner", Value::Null)])),
                node("inner", json!([])), node("builder", json!([])), node("elsewhere", json!([])), node("macro", json!([])),
            ]},
        })
    }

    #[test]
    fn the_licences_are_those_of_the_crates_in_the_program() {
        let work = tempfile::tempdir().unwrap();
        let metadata = metadata(work.path());
        let built = ["own", "inner", "outer", "builder", "macro"];
        let built = built.map(str::to_owned).into();
        let write = |place: &str, text: &str| {
            let file = work.path().join(place);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("inner/Cargo.toml", "");
        write("outer/LICENSE-MIT", "Copyright of outer\r\nMIT\r\n");
        write("outer/src/license.rs", "code");
        write("outer/c/COPYING", "BSD");
        let error = text(&metadata, "own", &built).unwrap_err().to_string();
        assert!(error.contains("inner 1.0.0 (MIT) has no file"), "{error}");
        write("inner/licence.txt", "Copyright of outer\nMIT");
        let text = text(&metadata, "own", &built).unwrap();
        let line = "=".repeat(100);
        let expected = format!(
            "The program has code of these crates in it. Their licences follow, each text once.\n\n\
             inner 1.0.0: MIT (https://example.org/inner)\nouter 1.0.0: MIT (https://example.org/outer)\n\
             \n{line}\ninner 1.0.0: licence.txt\nouter 1.0.0: LICENSE-MIT\n\nCopyright of outer\nMIT\n\
             \n{line}\nouter 1.0.0: c/COPYING\n\nBSD\n"
        );
        assert_eq!(text, expected);
    }
}

//! `families`: writes the table of model types in `docs/guide/models.md`, from the list of families
//! and the first paragraph of each family's file. It also formats these files: a macro writes their
//! `mod` lines, and rustfmt does not expand macros.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo;

const LIST: &str = "mlx-models/src/families.rs";
const FOLDER: &str = "mlx-models/src/families";
const BEGIN: &str = "<!-- written by `cargo xtask families` -->\n";
const END: &str = "<!-- end -->\n";
/// The files with a table, and the function that makes it from the registry.
const TABLES: [(&str, Table); 1] = [("docs/guide/models.md", descriptions)];

type Table = fn(&Path, &[(Vec<&str>, &str)]) -> Result<String>;

/// Writes the tables, and formats the families' files.
pub fn run() -> Result<()> {
    let root = cargo::repository();
    if !rustfmt(root, false)? {
        bail!("rustfmt refuses a family's file");
    }
    for (file, text) in with_tables(root)? {
        fs::write(root.join(file), text).context(file)?;
    }
    Ok(())
}

/// The fault in the tables or in the format of the families' files, if there is one.
pub fn fault(root: &Path) -> Result<Option<String>> {
    if !rustfmt(root, true)? {
        return Ok(Some(format!(
            "{FOLDER}: a file is not formatted: cargo xtask families"
        )));
    }
    for (file, text) in with_tables(root)? {
        if fs::read_to_string(root.join(file)).context(file)? != text {
            return Ok(Some(format!(
                "{file}: its models are not those of the registry: cargo xtask families"
            )));
        }
    }
    Ok(None)
}

/// Formats the families' files; with `check` only returns whether they are formatted.
fn rustfmt(root: &Path, check: bool) -> Result<bool> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join(FOLDER)).context(FOLDER)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    let status = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .args(check.then_some("--check"))
        .args(files)
        .stdout(Stdio::null())
        .current_dir(root)
        .status()
        .context("cannot run rustfmt")?;
    Ok(status.success())
}

/// The files with a table, and their correct contents.
fn with_tables(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let list = fs::read_to_string(root.join(LIST)).context(LIST)?;
    let families = families(&list)?;
    let with = |(file, table): (&'static str, Table)| {
        let text = fs::read_to_string(root.join(file)).context(file)?;
        let (before, rest) = text
            .split_once(BEGIN)
            .with_context(|| format!("{file} has no table of models"))?;
        let (_, after) = rest
            .split_once(END)
            .with_context(|| format!("the table of models in {file} has no end"))?;
        let table = table(root, &families)?;
        Ok((file, format!("{before}{BEGIN}{table}{END}{after}")))
    };
    TABLES.into_iter().map(with).collect()
}

/// A row for each family, with its description.
fn descriptions(root: &Path, families: &[(Vec<&str>, &str)]) -> Result<String> {
    let mut table = String::from("| `model_type` | what it is |\n|---|---|\n");
    for (types, module) in families {
        let file = format!("{FOLDER}/{module}.rs");
        let text = fs::read_to_string(root.join(&file)).context(file)?;
        let types: Vec<String> = types.iter().map(|name| format!("`{name}`")).collect();
        table += &format!("| {} | {} |\n", types.join(", "), paragraph(&text));
    }
    Ok(table)
}

/// The types of each family, and its module: the entries `module: ["type", ...] {` of the list.
fn families(list: &str) -> Result<Vec<(Vec<&str>, &str)>> {
    let (_, list) = list
        .split_once("\nfamilies! {\n")
        .context("the list of families is missing")?;
    let entries = list.lines().filter_map(|line| {
        let (module, rest) = line.strip_prefix("    ")?.split_once(": [")?;
        (!module.starts_with(' ')).then_some((module, rest))
    });
    entries
        .map(|(module, rest)| {
            let (types, _) = rest
                .split_once(']')
                .with_context(|| format!("the types of {module} have no end in their line"))?;
            let types = types.split(',').map(|name| name.trim().trim_matches('"'));
            Ok((types.collect(), module))
        })
        .collect()
}

/// The first paragraph of a module's documentation, in one line.
fn paragraph(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//! "));
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_found_in_the_list() {
        let list = r#"
families! {
    llama: ["llama"] {}
    gemma3: ["gemma3_text", "gemma3"] {
        tied: true,
        tied_keys: &["tied"],
    }
    stablelm: ["stablelm"] {}
    phi: ["phi"] {
        names: phi::names,
    }
}
"#;
        let found = families(list).unwrap();
        let modules: Vec<&str> = found.iter().map(|family| family.1).collect();
        assert_eq!(modules, ["llama", "gemma3", "stablelm", "phi"]);
        assert_eq!(found[1].0, ["gemma3_text", "gemma3"]);
        assert_eq!(
            paragraph("//! One\n//! two.\n//!\n//! Three.\n"),
            "One two."
        );
    }
}

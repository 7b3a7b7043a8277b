//! `families`: the table of model types of `docs/guide/models.md`, from the registry and the first
//! paragraph of each family's file.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cargo;

const REGISTRY: &str = "mlx-models/src/registry/families.rs";
const BEGIN: &str = "<!-- written by `cargo xtask families` -->\n";
const END: &str = "<!-- end -->\n";
/// The files with a table, and how it is made of the registry.
const TABLES: [(&str, Table); 1] = [("docs/guide/models.md", descriptions)];

type Table = fn(&Path, &[(Vec<&str>, &str)]) -> Result<String>;

/// Writes the tables.
pub fn run() -> Result<()> {
    let root = cargo::repository();
    for (file, text) in with_tables(root)? {
        fs::write(root.join(file), text).context(file)?;
    }
    Ok(())
}

/// What is wrong with the tables, if anything is.
pub fn fault(root: &Path) -> Result<Option<String>> {
    for (file, text) in with_tables(root)? {
        if fs::read_to_string(root.join(file)).context(file)? != text {
            return Ok(Some(format!(
                "{file}: its models are not those of the registry: cargo xtask families"
            )));
        }
    }
    Ok(None)
}

/// The files with the tables that belong there.
fn with_tables(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let registry = fs::read_to_string(root.join(REGISTRY)).context(REGISTRY)?;
    let families = families(&registry)?;
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

/// A row for each family, with what it is.
fn descriptions(root: &Path, families: &[(Vec<&str>, &str)]) -> Result<String> {
    let mut table = String::from("| `model_type` | what it is |\n|---|---|\n");
    for (types, module) in families {
        let file = format!("mlx-models/src/{module}.rs");
        let text = fs::read_to_string(root.join(&file)).context(file)?;
        let types: Vec<String> = types.iter().map(|name| format!("`{name}`")).collect();
        table += &format!("| {} | {} |\n", types.join(", "), paragraph(&text));
    }
    Ok(table)
}

/// The types of each family, and the module that loads it.
fn families(registry: &str) -> Result<Vec<(Vec<&str>, &str)>> {
    let entries = registry.split("Family::new(&[").skip(1);
    entries
        .map(|entry| {
            let (types, builder) = entry
                .split_once(']')
                .context("types of a family have no end")?;
            let types = types.split(',').map(|name| name.trim().trim_matches('"'));
            let types = types.filter(|name| !name.is_empty()).collect();
            let module = match builder.split_once("build!(") {
                Some((before, after)) if !before.contains("::load") => {
                    after.split_once(')').map(|of| of.0)
                }
                _ => builder.split_once("::load").map(|of| {
                    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    let start = of.0.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
                    &of.0[start..]
                }),
            };
            Ok((types, module.context("a family has no module")?))
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
    fn modules_are_found_in_every_form() {
        let registry = r#"
            Family::new(&["llama"], build!(llama)),
            Family { tied: true, ..Family::new(&["gemma3_text", "gemma3"], |source| {
                Ok(Box::new(gemma3::load(source)?))
            }) },
            Family::new(&["stablelm"], stablelm::load),
            Family { ..Family::new(&["phi"], build!(phi)) },
        "#;
        let found = families(registry).unwrap();
        let modules: Vec<&str> = found.iter().map(|family| family.1).collect();
        assert_eq!(modules, ["llama", "gemma3", "stablelm", "phi"]);
        assert_eq!(found[1].0, ["gemma3_text", "gemma3"]);
        assert_eq!(
            paragraph("//! One\n//! two.\n//!\n//! Three.\n"),
            "One two."
        );
    }
}

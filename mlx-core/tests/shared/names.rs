//! Compares the names of Python's MLX with the tables of a crate's module `python`, and these with the crate's items.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The names that Python has, by groups, as `xtask/golden/names.py` found them.
fn python(groups: &dyn Fn(&str) -> bool) -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("testdata/names/golden.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let all = document["names"].as_object().unwrap().iter();
    all.filter(|(group, _)| groups(group))
        .map(|(group, names)| {
            let names = names.as_array().unwrap().iter();
            (
                group.clone(),
                names
                    .map(|name| name.as_str().unwrap().to_owned())
                    .collect(),
            )
        })
        .collect()
}

/// A row of a table: Python's name, and links to the crate's items or the reason why there is none.
struct Row {
    name: String,
    ours: Vec<String>,
    text: String,
}

/// The rows under each title of `src/python.rs`.
fn tables(source: &str) -> BTreeMap<String, Vec<Row>> {
    let mut tables: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    let mut title = String::new();
    for line in source.lines() {
        let line = line.trim_start_matches("//!").trim();
        if let Some(heading) = line.strip_prefix("# `") {
            title = heading.trim_end_matches('`').to_owned();
        }
        let Some(row) = line.strip_prefix("| `") else {
            continue;
        };
        let (name, text) = row.split_once("` | ").unwrap();
        let text = text.trim_end_matches('|').trim();
        // `mx.fft.fft` is `fft` of the group.
        let name = name.rsplit('.').next().unwrap().to_owned();
        let links = text.split("[`").skip(1);
        tables.entry(title.clone()).or_default().push(Row {
            name,
            ours: links
                .map(|link| link.split_once("`]").unwrap().0.to_owned())
                .collect(),
            text: text.to_owned(),
        });
    }
    tables
}

/// What the sources of a crate declare: `name`, `module::name` and `Type::name`.
struct Items(BTreeSet<String>);

impl Items {
    fn of(src: &Path) -> Self {
        let mut items = Self(BTreeSet::new());
        let mut folders = vec![src.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let module = path.strip_prefix(src).unwrap().with_extension("");
                    let modules: Vec<&str> =
                        module.iter().map(|part| part.to_str().unwrap()).collect();
                    items.add(&std::fs::read_to_string(&path).unwrap(), &modules);
                }
            }
        }
        items
    }

    fn add(&mut self, text: &str, modules: &[&str]) {
        let word = |text: &str| -> String {
            let letters = text.chars();
            letters
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect()
        };
        // What is exported under another path, or was made by a macro. It compiles, so it exists.
        for exports in text.split("\npub use ").skip(1) {
            let list = exports.split(';').next().unwrap();
            for name in list.split(|c: char| !c.is_alphanumeric() && c != '_') {
                for module in modules {
                    self.0.insert(format!("{module}::{name}"));
                }
                self.0.insert(name.to_owned());
            }
        }
        // The type of the `impl` or enum around a line.
        let mut owner: Option<String> = None;
        let mut in_macro = false;
        for line in text.lines() {
            let inner = line.trim_start();
            let is_outer = inner.len() == line.len();
            if is_outer && (inner.starts_with("impl") || inner.starts_with("pub trait ")) {
                let head = inner.split(" for ").last().unwrap();
                let head = head.trim_start_matches("pub trait ");
                // Behind `impl<…>`.
                let head = match head.strip_prefix("impl<") {
                    Some(rest) => rest.split_once("> ").map_or("", |(_, rest)| rest),
                    None => head.trim_start_matches("impl "),
                };
                owner = Some(word(head));
            } else if is_outer && line.starts_with('}') {
                owner = None;
            }
            if is_outer {
                in_macro = line.ends_with("! {");
            }
            if let Some(rest) = inner.strip_prefix("pub enum ").filter(|_| is_outer) {
                owner = Some(word(rest));
            }
            let mut declared = None;
            if let Some(rest) = inner.strip_prefix("pub ") {
                let rest = rest.trim_start_matches("const fn").trim_start_matches("fn");
                let kinds = [
                    "struct ", "enum ", "trait ", "const ", "static ", "type ", "mod ",
                ];
                let rest = kinds
                    .iter()
                    .find_map(|kind| rest.strip_prefix(kind))
                    .unwrap_or(rest);
                declared = Some(word(rest.trim_start())).filter(|name| !name.is_empty());
            } else if let Some(rest) = inner.strip_prefix("macro_rules! ") {
                self.0.insert(format!("{}!", word(rest)));
            } else if let Some(owner) = &owner
                && (inner.starts_with("fn ") || inner.starts_with(char::is_uppercase))
            {
                // A function of a trait, or a variant.
                self.0.insert(format!(
                    "{owner}::{}",
                    word(inner.trim_start_matches("fn "))
                ));
            }
            // What a macro declares: `name = …;`, or several names.
            if in_macro && let Some((names, _)) = inner.split_once(" = ") {
                let method = modules[0] == "ops" && modules.last() != Some(&"create");
                for name in names.split(", ").filter(|name| word(name) == *name) {
                    for owner in if method { &["Array"] } else { modules } {
                        self.0.insert(format!("{owner}::{name}"));
                    }
                }
            }
            let Some(name) = declared else {
                continue;
            };
            match &owner {
                Some(owner) if !is_outer => {
                    self.0.insert(format!("{owner}::{name}"));
                }
                _ => {
                    for module in modules {
                        self.0.insert(format!("{module}::{name}"));
                    }
                    self.0.insert(name);
                }
            }
        }
    }

    /// Whether a path of a link is declared. Its last two parts count: the type or module, and the name.
    fn has(&self, path: &str) -> bool {
        if ["std::", "f32::"]
            .iter()
            .any(|library| path.starts_with(library))
        {
            return true;
        }
        let path = path.split_once('@').map_or(path, |(_, path)| path);
        let parts: Vec<&str> = path.trim_end_matches("()").split("::").collect();
        let last = &parts[parts.len().saturating_sub(2)..];
        let last = if matches!(last[0], "crate" | "super" | "self") {
            &last[1..]
        } else {
            last
        };
        self.0.contains(&last.join("::"))
    }
}

/// Each name of Python in `groups` has one row in its table, each row has a name of Python, and links to items that
/// exist or a reason. Returns how many names have an item.
pub fn check(groups: &dyn Fn(&str) -> bool) -> BTreeMap<String, (usize, usize)> {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(crate_root.join("src/python.rs")).unwrap();
    let (python, tables) = (python(groups), tables(&source));
    let items = Items::of(&crate_root.join("src"));
    let mut faults = Vec::new();
    let mut counts = BTreeMap::new();
    for (group, names) in &python {
        let rows = tables.get(group).map_or(&[][..], |rows| rows);
        let mut seen = BTreeSet::new();
        for row in rows {
            if !seen.insert(row.name.clone()) {
                faults.push(format!("{group}: {} has two rows", row.name));
            }
            if row.ours.is_empty() && row.text.len() < 8 {
                faults.push(format!(
                    "{group}: {} has neither an item nor a reason",
                    row.name
                ));
            }
            let lost = row.ours.iter().filter(|path| !items.has(path));
            faults.extend(lost.map(|path| format!("{group}: {}: no item {path}", row.name)));
        }
        faults.extend(
            names
                .difference(&seen)
                .map(|name| format!("{group}: {name} has no row")),
        );
        faults.extend(
            seen.difference(names)
                .map(|name| format!("{group}: Python has no {name}")),
        );
        let ours = rows.iter().filter(|row| row.text.starts_with("[`")).count();
        counts.insert(group.clone(), (ours, names.len()));
    }
    faults.extend(
        tables
            .keys()
            .filter(|group| !python.contains_key(*group))
            .map(|group| format!("Python has no group {group}")),
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    counts
}

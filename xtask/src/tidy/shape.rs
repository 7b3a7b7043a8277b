//! The shape of sources: the length of files and functions, the number of files over which the
//! `impl` of a type is spread, and whether two types have one name.

use std::collections::{BTreeMap, BTreeSet};

/// A file holds one idea. Files above this length are named; those above the limit are refused.
pub(super) const WARN_LINES: usize = 700;
pub(super) const MOST_LINES: usize = 1_000;
/// The most lines of a function that is not listed.
const FUNCTION_LINES: usize = 100;
/// The most files in which a type has an inherent `impl`. Implementations of traits do not count.
const IMPL_FILES: usize = 3;

/// Longer functions: crate, name and reason.
const LONG: [(&str, &str, &str); 24] = [
    ("mlx-core", "a_query_is_alone_with_its_keys", CASES),
    ("mlx-core", "apply", "one arm for each operation"),
    ("mlx-core", "cases", CASES),
    (
        "mlx-core",
        "parts_that_do_not_belong_together_are_refused",
        CASES,
    ),
    ("mlx-core", "products_and_convolutions_refuse", CASES),
    ("mlx-core", "rows", CASES),
    (
        "mlx-infer",
        "bad_grammars_are_refused_before_submission",
        CASES,
    ),
    ("mlx-infer", "cases", CASES),
    ("mlx-infer", "completions", STEPS),
    ("mlx-infer", "faults_of_a_request_name_the_parameter", CASES),
    ("mlx-infer", "frame", "one arm for each form of calls"),
    ("mlx-infer", "on_str", "one arm for each method of str"),
    (
        "mlx-infer",
        "other_files_come_along_and_failures_leave_nothing",
        CASES,
    ),
    (
        "mlx-infer",
        "run",
        "the scheduler's test drives a whole schedule",
    ),
    ("mlx-infer", "take", "one arm for each place in a call"),
    ("mlx-infer", "verify", STEPS),
    ("mlx-infer", "written", CASES),
    ("mlx-models", "agree", CASES),
    ("mlx-models", "assemble", STEPS),
    ("mlx-models", "convert_with", STEPS),
    ("mlx-nn", "new", "one arm for each kind of rope"),
    ("mlx-train", "run", STEPS),
    ("mlx-train", "settings_of_mlx_lm_are_understood", CASES),
    ("xtask", "run", STEPS),
];
const CASES: &str = "a table of cases";
const STEPS: &str = "steps in order, which share their values";

/// Types with more files: crate, name, and files today. The list only shrinks.
const SPREAD: [(&str, &str, usize); 1] = [("mlx-core", "Array", 14)];

/// The measurements of all sources.
#[derive(Default)]
pub(super) struct Shape {
    /// Crate, name, place and lines of long functions.
    long: Vec<(String, String, String, usize)>,
    /// The files with an `impl` of a type, and those that define it, by crate and name.
    impls: BTreeMap<(String, String), BTreeSet<String>>,
    defined: BTreeMap<(String, String), BTreeSet<String>>,
    /// The files that define a type, a trait or an alias which other files can use, by crate and name.
    shared: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Shape {
    /// Adds a source in Rust.
    pub(super) fn add(&mut self, file: &str, text: &str) {
        let folder = file.split('/').next().unwrap_or_default();
        for (name, line, lines) in functions(text) {
            if lines > FUNCTION_LINES {
                let place = format!("{file}:{line}");
                self.long.push((folder.to_owned(), name, place, lines));
            }
        }
        if ["/tests/", "/benches/", "/examples/"]
            .iter()
            .any(|part| file.contains(part))
        {
            return;
        }
        let key = |name: &str| (folder.to_owned(), name.to_owned());
        for name in own_impls(text) {
            self.impls
                .entry(key(&name))
                .or_default()
                .insert(file.to_owned());
        }
        for name in text.lines().filter_map(definition) {
            self.defined
                .entry(key(name))
                .or_default()
                .insert(file.to_owned());
        }
        // Each command of xtask has its own Arguments. A file `absent.rs` stands in for types of a feature that is off.
        let counts = !file.ends_with("tests.rs") && !file.ends_with("/absent.rs");
        if folder != "xtask" && counts {
            for name in text.lines().filter_map(shared_definition) {
                self.shared
                    .entry(key(name))
                    .or_default()
                    .insert(file.to_owned());
            }
        }
    }

    /// The faults of all sources.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (folder, name, place, lines) in &self.long {
            if !LONG
                .iter()
                .any(|(of, long, _)| of == folder && long == name)
            {
                faults.push(format!(
                    "{place}: the function {name} has {lines} lines; more than {FUNCTION_LINES} need a reason in tidy's list"
                ));
            }
        }
        for (folder, name, _) in LONG {
            if !self
                .long
                .iter()
                .any(|(of, long, ..)| of == folder && long == name)
            {
                faults.push(format!(
                    "{folder}: no function {name} is longer than {FUNCTION_LINES} lines: strike it from tidy's list"
                ));
            }
        }
        for ((folder, name), files) in &self.shared {
            if files.len() > 1 {
                let files: Vec<&str> = files.iter().map(String::as_str).collect();
                faults.push(format!(
                    "{folder}: {} types that other files can use are called {name}: {}",
                    files.len(),
                    files.join(", ")
                ));
            }
        }
        let none = BTreeSet::new();
        let count = |key: &(String, String), files: &BTreeSet<String>| {
            // Several types of one name may be defined in several files; each has an `impl` of its
            // own.
            1 + files
                .difference(self.defined.get(key).unwrap_or(&none))
                .count()
        };
        let listed = |folder: &str, name: &str| {
            let found = SPREAD
                .iter()
                .find(|(of, known, _)| *of == folder && *known == name);
            found.map_or(IMPL_FILES, |(.., files)| *files)
        };
        for (key @ (folder, name), files) in &self.impls {
            let (files, most) = (count(key, files), listed(folder, name));
            if files > most {
                faults.push(format!(
                    "{folder}: the impl of {name} is in {files} files, at most {most}"
                ));
            }
        }
        for (folder, name, most) in SPREAD {
            let key = (folder.to_owned(), name.to_owned());
            let files = self.impls.get(&key).map_or(0, |files| count(&key, files));
            if files < most {
                faults.push(format!(
                    "{folder}: the impl of {name} is in {files} files: write that into tidy's list, which had {most}"
                ));
            }
        }
        faults
    }
}

/// The name of each function with a body, its first line (from 1) and its number of lines. The
/// source is formatted, so a body ends with a brace at the indentation of the function.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let opens = lines[first..]
            .iter()
            .position(|line| line.ends_with(['{', ';', '}']));
        let Some(opens) = opens.filter(|at| lines[first + at].ends_with('{')) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        let last = lines[first + opens..].iter().position(|line| **line == end);
        if let Some(last) = last {
            found.push((name.to_owned(), first + 1, opens + last + 1));
        }
    }
    found
}

/// The name of the function that begins on a line.
fn function(line: &str) -> Option<&str> {
    let mut rest = without_visibility(line.trim_start());
    for word in ["const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    word(rest.strip_prefix("fn ")?)
}

/// The name of the type that a line without indentation defines.
fn definition(line: &str) -> Option<&str> {
    let rest = without_visibility(line);
    let kinds = ["struct ", "enum ", "union "];
    word(kinds.iter().find_map(|kind| rest.strip_prefix(kind))?)
}

/// The name of the type, trait or alias with a visibility that a line without indentation defines.
fn shared_definition(line: &str) -> Option<&str> {
    let rest = without_visibility(line);
    if rest.len() == line.len() {
        return None;
    }
    let kinds = ["struct ", "enum ", "union ", "trait ", "type "];
    word(kinds.iter().find_map(|kind| rest.strip_prefix(kind))?)
}

fn without_visibility(line: &str) -> &str {
    match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ").map_or(line, |(_, rest)| rest),
        None => line.strip_prefix("pub ").unwrap_or(line),
    }
}

/// The names of types that have an `impl` of their own, not of a trait.
fn own_impls(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(rest) = line
            .strip_prefix("impl")
            .filter(|rest| rest.starts_with(['<', ' ']))
        else {
            continue;
        };
        let mut head = rest.to_owned();
        while !head.contains('{') {
            let Some(line) = lines.next() else { break };
            head = format!("{head} {}", line.trim());
        }
        let head = without_generics(&head);
        if !head.contains(" for ") {
            let path: String = head
                .chars()
                .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':'))
                .collect();
            found.extend(path.rsplit("::").next().map(str::to_owned));
        }
    }
    found
}

/// The head of an `impl` without the generic parameters after the word.
fn without_generics(head: &str) -> &str {
    if !head.starts_with('<') {
        return head.trim_start();
    }
    let mut depth = 0;
    let mut before = ' ';
    for (at, c) in head.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return head[at + 1..].trim_start();
        }
        before = c;
    }
    head
}

fn word(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    let word = &text[..end.unwrap_or(text.len())];
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let mut shape = Shape::default();
        for (file, text) in files {
            shape.add(file, text);
        }
        let mut faults = shape.faults();
        // Faults of the lists concern the whole repository.
        faults.retain(|fault| {
            !fault.contains("tidy's list, which had") && !fault.contains("strike it")
        });
        faults
    }

    #[test]
    fn long_functions_need_a_reason() {
        let of = |lines: usize, name: &str| {
            format!(
                "impl A {{\n    pub(super) const fn {name}(\n        a: u8,\n    ) {{\n{}    }}\n}}\n",
                "        x;\n".repeat(lines - 4)
            )
        };
        assert_eq!(faults(&[("mlx-nn/src/a.rs", &of(100, "made"))]), [""; 0]);
        let found = faults(&[("mlx-nn/src/a.rs", &of(101, "made"))]);
        assert!(
            found.len() == 1
                && found[0].starts_with("mlx-nn/src/a.rs:2: the function made has 101 lines"),
            "{found:?}"
        );
        assert_eq!(faults(&[("mlx-nn/src/a.rs", &of(101, "new"))]), [""; 0]);
        let declared = "trait T {\n    fn a();\n    fn b() {}\n}\n".to_owned() + &"x\n".repeat(200);
        assert_eq!(functions(&declared), []);
    }

    #[test]
    fn a_type_is_in_three_files() {
        let own = "pub struct Whole<T>(T);\nimpl<T: Into<Vec<u8>>> Whole<T> {\n}\nimpl fmt::Debug for Whole<u8> {\n}\n";
        let more = "impl super::Whole<u8> {\n}\n";
        let files = ["a", "b", "c", "d"].map(|name| format!("mlx-nn/src/{name}.rs"));
        let texts = [own, more, more, more];
        let all: Vec<(&str, &str)> = files.iter().map(String::as_str).zip(texts).collect();
        assert_eq!(faults(&all[..3]), [""; 0]);
        let found = faults(&all);
        assert_eq!(
            found,
            ["mlx-nn: the impl of Whole is in 4 files, at most 3"]
        );
        let own = own.replace("pub struct", "struct");
        let same_name = files.iter().map(|file| (file.as_str(), own.as_str()));
        let same_name: Vec<(&str, &str)> = same_name.collect();
        assert_eq!(faults(&same_name), [""; 0]);
    }

    #[test]
    fn a_name_means_one_type() {
        let (own, other) = ("pub(crate) struct Row(u8);\n", "pub trait Row {\n}\n");
        let private = "struct Row;\nimpl A {\n    pub type Row = u8;\n}\n";
        let of = |files: [&str; 2], texts: [&str; 2]| {
            faults(&Vec::from_iter(files.into_iter().zip(texts)))
        };
        let files = ["mlx-nn/src/a.rs", "mlx-nn/src/b/c.rs"];
        assert_eq!(
            of(files, [own, other]),
            [
                "mlx-nn: 2 types that other files can use are called Row: mlx-nn/src/a.rs, mlx-nn/src/b/c.rs"
            ]
        );
        assert_eq!(of(files, [own, private]), [""; 0]);
        assert_eq!(
            of(["mlx-nn/src/a.rs", "mlx-core/src/a.rs"], [own, other]),
            [""; 0]
        );
        assert_eq!(
            of(["xtask/src/a.rs", "xtask/src/b.rs"], [own, own]),
            [""; 0]
        );
        assert_eq!(
            of(["mlx-nn/src/a.rs", "mlx-nn/src/a/tests.rs"], [own, own]),
            [""; 0]
        );
    }

    #[test]
    fn lists_have_nothing_that_is_gone() {
        let found = Shape::default().faults();
        assert_eq!(found.len(), LONG.len() + SPREAD.len());
    }
}

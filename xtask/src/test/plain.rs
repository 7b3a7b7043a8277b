//! The tests that run a second time, with MLX's own operations in place of the CPU kernels: all but those named here.
//!
//! A test is named here if its result cannot depend on the kernels: it reads files, renders templates, speaks HTTP, parses
//! flags, schedules rows or builds. A new test file is not named, so it runs twice.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cargo;

/// Test files that run once. Documentation tests, and the unit tests of programs, run once too.
const ONCE: &[&str] = &[
    // mlx-c-sys: the native build, and the allocator of C++.
    "build",
    "operators",
    "two_builds",
    // mlx-core: files, and the end of a process.
    "exit",
    "safetensors_hostile",
    // mlx-models: `golden.rs` computes every family twice.
    "config_keys",
    // mlx-infer: text, HTTP, and models by name.
    "hostile_originals",
    "hostile_text",
    "hostile_tokenizers",
    "hub",
    "serve",
    "templates",
    "tokenizers",
    // mlx-train: `golden.rs`, `traps.rs` and `trainer.rs` train twice.
    "command",
    "data",
    "fifth_class",
    "interrupts",
    "options",
    "resume",
    "streams",
    // xtask: installed programs.
    "install",
];

/// Test files of which only these modules run twice, and `lib` for the unit tests of the libraries.
const PARTS: &[(&str, &[&str])] = &[
    (
        "lib",
        &["closure::", "engine::", "prompt_cache::", "sampler::"],
    ),
    (
        "batch",
        &[
            "adapters::",
            "heads::",
            "independence::",
            "poison::",
            "prefixes::",
            "quantized::",
            "speculation::",
        ],
    ),
    (
        "model",
        &[
            "default_model::",
            "finite::",
            "generate::",
            "prompt_cache::",
            "score::",
        ],
    ),
];

/// The arguments of `cargo test --workspace` for each part. One run of cargo filters all its test files alike.
pub(super) fn runs() -> Result<Vec<Vec<String>>> {
    let is_part = |name: &str| PARTS.iter().any(|(part, _)| *part == name);
    let mut whole = Vec::new();
    for name in files()? {
        if !ONCE.contains(&name.as_str()) && !is_part(&name) {
            whole.extend(["--test".to_owned(), name]);
        }
    }
    let mut runs = vec![whole];
    for (name, modules) in PARTS {
        let target = match *name {
            "lib" => vec!["--lib"],
            file => vec!["--test", file],
        };
        let arguments = target.iter().chain(&["--"]).chain(modules.iter());
        runs.push(arguments.map(|&argument| argument.to_owned()).collect());
    }
    Ok(runs)
}

/// The names of all test files of the workspace.
fn files() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for package in fs::read_dir(cargo::repository())? {
        let tests = package?.path().join("tests");
        if !tests.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&tests)? {
            let path = entry?.path();
            let is_test = match path.is_dir() {
                true => path.join("main.rs").is_file(),
                false => path.extension().is_some_and(|extension| extension == "rs"),
            };
            if is_test {
                names.insert(stem(&path)?);
            }
        }
    }
    Ok(names)
}

fn stem(path: &Path) -> Result<String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    Ok(stem.context("a test file without a name")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{ONCE, PARTS, cargo, files};

    #[test]
    fn named_files_and_modules_exist() {
        let names = files().unwrap();
        let parts = PARTS.iter().map(|(name, _)| *name);
        for name in parts
            .filter(|name| *name != "lib")
            .chain(ONCE.iter().copied())
        {
            assert!(names.contains(name), "no test file is named {name}");
        }
        for (name, modules) in PARTS.iter().filter(|(name, _)| *name != "lib") {
            let folder = cargo::repository().join("mlx-infer/tests").join(name);
            for module in *modules {
                let file = folder
                    .join(module.trim_end_matches(':'))
                    .with_extension("rs");
                assert!(file.is_file(), "{} is missing", file.display());
            }
        }
    }
}

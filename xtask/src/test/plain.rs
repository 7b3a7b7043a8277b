//! The tests that run a second time, with MLX's own operations in place of the CPU kernels: all but those named here.
//!
//! A test is named here if its result cannot depend on the kernels: it reads files, renders templates, speaks HTTP, parses
//! flags, schedules rows or builds. A new test file is not named, so it runs twice.

use super::programs::{Kind, Program};

/// Test files that run once. Documentation tests, and the unit tests of programs, run once too.
const ONCE: &[&str] = &[
    // mlx-c-sys: the native build, and the allocator of C++.
    "build",
    "operators",
    "two_builds",
    // mlx-core: files, the end of a process, and what compiles.
    "diagnostics",
    "exit",
    "files",
    "safetensors_hostile",
    "shapes",
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
        &[
            "closure::",
            "engine::prompt_cache::",
            "engine::rows::",
            "engine::tests::",
            "engine::worker::",
            "sampling::",
            "tasks::tests::",
        ],
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

/// The filters with which a program runs a second time, or nothing if it runs once.
pub(super) fn filters(program: &Program) -> Option<Vec<String>> {
    let name = match program.kind {
        Kind::Library => "lib",
        Kind::Command => return None,
        Kind::Tests => program.name.as_str(),
    };
    if ONCE.contains(&name) {
        return None;
    }
    let part = PARTS.iter().find(|(part, _)| *part == name);
    let modules = part.map_or(&[][..], |(_, modules)| modules);
    Some(modules.iter().map(|&module| module.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::PathBuf;

    use super::{Kind, ONCE, PARTS, Program, filters};
    use crate::cargo;

    /// The names of all test files of the workspace.
    fn files() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for package in fs::read_dir(cargo::repository()).unwrap() {
            let tests = package.unwrap().path().join("tests");
            if !tests.is_dir() {
                continue;
            }
            for entry in fs::read_dir(&tests).unwrap() {
                let path = entry.unwrap().path();
                let is_test = match path.is_dir() {
                    true => path.join("main.rs").is_file(),
                    false => path.extension().is_some_and(|extension| extension == "rs"),
                };
                if is_test {
                    names.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        names
    }

    #[test]
    fn named_files_and_modules_exist() {
        let names = files();
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

    #[test]
    fn a_second_run_leaves_out_what_is_named_and_takes_only_the_named_modules() {
        let of = |kind, name: &str| {
            filters(&Program {
                kind,
                name: name.to_owned(),
                folder: PathBuf::new(),
                file: PathBuf::new(),
            })
        };
        assert_eq!(of(Kind::Tests, "hub"), None);
        assert_eq!(of(Kind::Command, "mlx-infer"), None);
        assert_eq!(of(Kind::Tests, "golden"), Some(vec![]));
        let model = of(Kind::Tests, "model").unwrap();
        assert!(model.contains(&"score::".to_owned()), "{model:?}");
        let library = of(Kind::Library, "mlx_infer").unwrap();
        assert!(library.contains(&"sampling::".to_owned()), "{library:?}");
    }
}

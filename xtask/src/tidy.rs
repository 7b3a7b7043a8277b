//! `tidy`: the house rules that no compiler knows. Each is a line of CONTRIBUTING.md.

mod links;
mod prose;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{bindings, cargo, families};

mod graph;
mod rooms;
mod shape;

use shape::{MOST_LINES, Shape, WARN_LINES};

/// Lower ceilings: the shared decoder should be read in one sitting, and a model file holds only the model's
/// differences.
const DECODER: (&str, usize) = ("mlx-models/src/decoders/pre_norm.rs", 150);
const MODEL: usize = 200;

/// The bytes of all golden files.
const GOLDEN_BYTES: u64 = 24_000_000;

/// Words that begin the names of model files, and that decoder.rs does not know.
const MODELS: [&str; 9] = [
    "llama", "mistral", "qwen", "gemma", "phi", "mixtral", "olmo", "deepseek", "gpt_oss",
];

/// File stems that do not describe a content.
const NAMELESS: [&str; 7] = [
    "util", "utils", "common", "helper", "helpers", "misc", "mod",
];

/// Crates (and `xtask`) without `unsafe` code.
const SAFE: [&str; 6] = [
    "mlx-nn",
    "mlx-nn/derive",
    "mlx-models",
    "mlx-infer",
    "mlx-train",
    "xtask",
];

/// Where `unsafe` may stand: the bindings, and the files and folders of mlx-core that call them.
const UNSAFE: [&str; 23] = [
    "mlx-c-sys/",
    "mlx-core/src/array.rs",
    "mlx-core/src/device.rs",
    "mlx-core/src/distributed.rs",
    "mlx-core/src/distributed/",
    "mlx-core/src/eval.rs",
    "mlx-core/src/export.rs",
    "mlx-core/src/export/dot.rs",
    "mlx-core/src/ffi.rs",
    "mlx-core/src/ffi/",
    "mlx-core/src/files/mapped.rs",
    "mlx-core/src/files/source.rs",
    "mlx-core/src/frozen.rs",
    "mlx-core/src/inplace.rs",
    "mlx-core/src/kernel/",
    "mlx-core/src/memory.rs",
    "mlx-core/src/memory/",
    "mlx-core/src/poison.rs",
    "mlx-core/src/profile.rs",
    "mlx-core/src/replay.rs",
    "mlx-core/src/settings.rs",
    "mlx-core/src/stream.rs",
    "mlx-core/src/transforms/",
];

/// Text that must not be in the repository, and why. Split, so that this file passes.
const FORBIDDEN: [(&str, &str); 12] = [
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/op", "t/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/Us", "ers/"), "a path of one machine"),
    (
        concat!("py", "pi.org"),
        "a registry's host name: name the client's package",
    ),
    (
        concat!("crates", ".io"),
        "a registry's host name: name the client's package",
    ),
    (
        concat!("python", "hosted"),
        "a registry's host name: name the client's package",
    ),
    (concat!("to", "do!("), "unfinished work"),
    (concat!("unimpl", "emented!("), "unfinished work"),
    (concat!("FIX", "ME"), "unfinished work"),
    (concat!("#[ig", "nore"), "a test that does not run"),
];

/// The golden files together are small.
fn golden_fault(root: &Path, files: &[String]) -> Option<String> {
    let golden = files.iter().filter(|file| file.starts_with("testdata/"));
    let bytes = golden.filter_map(|file| Some(fs::metadata(root.join(file)).ok()?.len()));
    let sum: u64 = bytes.sum();
    (sum >= GOLDEN_BYTES).then(|| format!("testdata/: {sum} bytes, at most {GOLDEN_BYTES}"))
}

/// Checks every file that is or would be committed.
pub fn run() -> Result<()> {
    let root = cargo::repository();
    let mut faults = Vec::new();
    let files = files(root)?;
    let mut shape = Shape::default();
    for file in &files {
        // Removed but not yet staged, or a link: nothing to read.
        let Ok(bytes) = fs::read(root.join(file)) else {
            continue;
        };
        faults.extend(name_fault(file));
        // Written by a tool: no rule for our own text holds.
        if file == bindings::FILE {
            continue;
        }
        if let Ok(text) = String::from_utf8(bytes) {
            faults.extend(faults_in(file, &text));
            faults.extend(prose::faults_in(file, &text));
            faults.extend(links::faults_in(root, file, &text));
            let lines = text.lines().count();
            if is_source(file) && (WARN_LINES..=MOST_LINES).contains(&lines) {
                eprintln!(
                    "{file}: {lines} lines; a file holds one idea, and more than {MOST_LINES} are refused"
                );
            }
            if file.ends_with(".rs") {
                shape.add(file, &text);
            }
        }
    }
    for name in SAFE {
        for top in ["src/lib.rs", "src/main.rs"] {
            let file = format!("{name}/{top}");
            if fs::read_to_string(root.join(&file))
                .is_ok_and(|text| !text.contains("#![forbid(unsafe_code)]"))
            {
                faults.push(format!("{file}: lacks #![forbid(unsafe_code)]"));
            }
        }
    }
    faults.extend(shape.faults());
    faults.extend(bindings::fault(root));
    faults.extend(families::fault(root)?);
    faults.extend(golden_fault(root, &files));
    for fault in &faults {
        eprintln!("{fault}");
    }
    match faults.len() {
        0 => eprintln!("tidy: {} files", files.len()),
        n => bail!("tidy: {n} faults"),
    }
    Ok(())
}

/// Tracked files, and those that git neither tracks nor ignores.
fn files(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!(
            "git ls-files: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

fn name_fault(file: &str) -> Option<String> {
    let stem = Path::new(file).file_stem()?.to_str()?;
    let source = is_source(file);
    (source && NAMELESS.contains(&stem))
        .then(|| format!("{file}: the name \"{stem}\" says nothing of what is inside"))
}

fn is_source(file: &str) -> bool {
    let extension = Path::new(file).extension().and_then(|e| e.to_str());
    matches!(
        extension,
        Some("rs" | "cpp" | "h" | "cu" | "metal" | "py" | "sh")
    )
}

/// The most lines that `file` may have.
fn ceiling(file: &str) -> usize {
    let model = file
        .strip_prefix("mlx-models/src/families/")
        .is_some_and(|name| MODELS.iter().any(|m| name.starts_with(m)));
    match file {
        _ if file == DECODER.0 => DECODER.1,
        _ if model => MODEL,
        _ => MOST_LINES,
    }
}

fn faults_in(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // Files written by tools, and data: we do not choose the names and licences in them.
    let written = file.ends_with(".lock")
        || file.starts_with("testdata/")
        || file.starts_with("LICENSE")
        || file.contains("/vendor/");
    let lines = text.lines().count();
    if is_source(file) && lines > ceiling(file) {
        faults.push(format!("{file}: {lines} lines, at most {}", ceiling(file)));
    }
    faults.extend(rooms::faults(file, text));
    for (number, line) in text.lines().enumerate() {
        let at = format!("{file}:{}", number + 1);
        if !written {
            let found = FORBIDDEN.iter().filter(|(word, _)| line.contains(word));
            faults.extend(found.map(|(word, why)| format!("{at}: \"{word}\": {why}")));
        }
        if file.ends_with(".rs")
            && has_unsafe(line)
            && !UNSAFE.iter().any(|place| file.starts_with(place))
        {
            faults.push(format!(
                "{at}: unsafe code belongs in mlx-c-sys, or in a file that tidy lists"
            ));
        }
        faults.extend(graph::fault(file, line).map(|fault| format!("{at}: {fault}")));
        if file == DECODER.0 {
            let lower = line.to_lowercase();
            let named = MODELS.iter().filter(|model| lower.contains(*model));
            faults.extend(
                named.map(|model| format!("{at}: the shared decoder knows the model {model}")),
            );
        }
    }
    faults
}

/// True for a line of code, not a comment, that opens unsafe code.
fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let opens = |word: &str| {
        let before = code.find(word).map(|at| code[..at].chars().next_back());
        before.is_some_and(|c| !c.is_some_and(|c| c.is_alphanumeric() || c == '_'))
    };
    [" {", " fn", " impl", " extern", "("]
        .iter()
        .any(|end| opens(&format!("{}{end}", concat!("uns", "afe"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_finds_what_it_is_for() {
        let long = "x\n".repeat(MOST_LINES + 1);
        let model = "x\n".repeat(MODEL + 1);
        let decoder = "x\n".repeat(DECODER.1 + 1);
        let cases = [
            ("a.rs", long.as_str(), "1001 lines"),
            ("mlx-models/src/families/qwen3_moe.rs", &model, "201 lines"),
            (DECODER.0, &decoder, "151 lines"),
            (DECODER.0, "if Llama {", "knows the model llama"),
            ("a.md", concat!("see /wo", "rk/x"), "a path of one machine"),
            ("a.rs", concat!("to", "do!()"), "unfinished work"),
            (
                "mlx-nn/src/a.rs",
                concat!("uns", "afe { x }"),
                "unsafe code belongs in",
            ),
        ];
        for (file, text, expected) in cases {
            let faults = faults_in(file, text);
            assert!(
                faults.len() == 1 && faults[0].contains(expected),
                "{file}: {faults:?}"
            );
        }
        assert!(name_fault("mlx-nn/src/utils.rs").is_some());
        assert!(name_fault("mlx-nn/src/linear/mod.rs").is_some());
    }

    #[test]
    fn what_is_allowed_passes() {
        let long = "x\n".repeat(MOST_LINES);
        for (file, text) in [
            ("a.rs", long.as_str()),
            ("a.md", &"x\n".repeat(1000)),
            (
                "Cargo.lock",
                concat!("registry+https://github.com/rust-lang/crates", ".io-index"),
            ),
            ("mlx-core/src/array.rs", concat!("uns", "afe { x }")),
            ("mlx-nn/src/a.rs", "// unsafe { x } is not here"),
            ("mlx-models/src/registry.rs", "llama"),
        ] {
            assert_eq!(faults_in(file, text), Vec::<String>::new(), "{file}");
        }
        assert!(name_fault("docs/common.md").is_none());
    }
}

//! Rooms: the modules at the root of a crate, and which of them may import which. A room is
//! `src/room.rs` and the files in `src/room/`. Paths that begin with `crate::`, or with as many
//! `super::` as lead to the root, are read in code, not in comments.

/// A crate's rooms, each after those that it may import. The root itself, `lib.rs` or `main.rs`,
/// may import all.
type Rooms = &'static [(&'static str, &'static [&'static str])];

/// The crates with rooms. Every module at their root is one.
const CRATES: &[(&str, Rooms)] = &[
    (
        "mlx-models",
        &[
            ("config", &[]),
            ("checkpoint", &["config"]),
            ("model", &["checkpoint"]),
            ("adapter", &["checkpoint", "model"]),
            ("decoders", &["config", "checkpoint", "model"]),
            (
                "draft_heads",
                &["config", "checkpoint", "model", "decoders"],
            ),
            ("families", &["config", "model", "decoders", "draft_heads"]),
            (
                "registry",
                &["config", "checkpoint", "model", "draft_heads", "families"],
            ),
            (
                "convert",
                &["config", "checkpoint", "model", "draft_heads", "registry"],
            ),
        ],
    ),
    (
        "mlx-infer",
        &[
            ("error", &[]),
            ("work_sizes", &[]),
            ("json", &[]),
            ("text", &["error", "json"]),
            ("request", &["error", "work_sizes"]),
            ("grammar", &["error", "text", "request"]),
            ("sampling", &["error", "request", "grammar"]),
            (
                "model",
                &["error", "work_sizes", "text", "request", "grammar"],
            ),
            (
                "engine",
                &["error", "text", "request", "grammar", "sampling", "model"],
            ),
            (
                "tasks",
                &[
                    "error",
                    "work_sizes",
                    "text",
                    "request",
                    "sampling",
                    "model",
                    "engine",
                ],
            ),
            (
                "backend",
                &["error", "text", "request", "model", "engine", "tasks"],
            ),
            ("host", &["error", "text", "request"]),
            ("hub", &["error", "text", "request", "host"]),
            (
                "serve",
                &[
                    "error", "text", "request", "model", "engine", "tasks", "backend", "host",
                ],
            ),
            // The program uses the library by its public paths.
            ("cli", &[]),
        ],
    ),
];

/// Rooms without arrays and models: of the crates below they may import only [`FILES`], which read
/// ordinary files and the metadata of GGUF.
const ALONE: [(&str, &str); 2] = [("mlx-infer", "text"), ("mlx-infer", "hub")];
const BELOW: [&str; 4] = ["mlx_core", "mlx_nn", "mlx_models", "mlx_c_sys"];
const FILES: [[&str; 3]; 2] = [["mlx_core", "::", "files"], ["mlx_core", "::", "gguf"]];

/// The imports of a file from rooms that its own room may not import.
pub(super) fn faults(file: &str, text: &str) -> Vec<String> {
    let place = CRATES.iter().find_map(|(name, rooms)| {
        let inside = file.strip_prefix(name)?.strip_prefix("/src/")?;
        Some((*name, *rooms, inside.strip_suffix(".rs")?))
    });
    let Some((name, rooms, inside)) =
        place.filter(|(.., inside)| !["lib", "main"].contains(inside))
    else {
        return Vec::new();
    };
    let room = inside.split('/').next().unwrap_or(inside);
    let Some((_, known)) = rooms.iter().find(|(name, _)| *name == room) else {
        return vec![format!(
            "{file}: {room} is no room of its crate; {} lists them",
            file!()
        )];
    };
    let depth = inside.split('/').count();
    let foreign = imports(text, depth).into_iter().filter_map(|(line, name)| {
        let is_room = rooms.iter().any(|(room, _)| *room == name);
        match name == room || known.contains(&name.as_str()) {
            true => None,
            false if is_room => Some(format!("{file}:{line}: {room} must not import {name}")),
            false => Some(format!(
                "{file}:{line}: crate::{name} is no room: name the room that has it"
            )),
        }
    });
    let below = match ALONE.contains(&(name, room)) {
        true => below(text),
        false => Vec::new(),
    };
    let below = below
        .into_iter()
        .map(|(line, name)| format!("{file}:{line}: {room} must not import {name}"));
    foreign.chain(below).collect()
}

/// The crates below that a file names, other than [`FILES`], each with its line.
fn below(text: &str) -> Vec<(usize, String)> {
    let tokens = tokens(text);
    let names = tokens.iter().enumerate().filter(|(at, (_, token))| {
        let path = tokens[*at..].iter().map(|(_, token)| token.as_str());
        let path: Vec<&str> = path.take(FILES[0].len()).collect();
        BELOW.contains(&token.as_str()) && !FILES.iter().any(|file| path == file)
    });
    names.map(|(_, found)| found.clone()).collect()
}

/// The names that a file takes from the crate's root, each with its line. The file's module is `depth` below the root.
fn imports(text: &str, depth: usize) -> Vec<(usize, String)> {
    let tokens = tokens(text);
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| token.1 == word);
    let mut found = Vec::new();
    // For each open brace, whether it belongs to a module.
    let mut braces = Vec::new();
    for (at, (_, token)) in tokens.iter().enumerate() {
        // The index after the path to the root that begins at this token, if one does.
        let root = match token.as_str() {
            "{" => {
                braces.push(at >= 2 && is(at - 2, "mod"));
                None
            }
            "}" => {
                braces.pop();
                None
            }
            "crate" if is(at + 1, "::") => Some(at + 2),
            "super" if at == 0 || !is(at - 1, "::") => {
                let inner = braces.iter().filter(|is_module| **is_module).count();
                let mut end = at;
                while is(end, "super") && is(end + 1, "::") {
                    end += 2;
                }
                ((end - at) / 2 == depth + inner).then_some(end)
            }
            _ => None,
        };
        if let Some(root) = root {
            found.extend(heads(&tokens, root));
        }
    }
    found
}

/// The first names of the path, or of the group of paths, that begins at a token. Macros belong to
/// no room.
fn heads(tokens: &[(usize, String)], start: usize) -> Vec<(usize, String)> {
    let is_macro = |at: usize| tokens.get(at + 1).is_some_and(|token| token.1 == "!");
    let mut found = Vec::new();
    let (mut at, mut depth) = (start, 0);
    while let Some((line, token)) = tokens.get(at) {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," => {}
            _ => {
                let begins = at == start || ["{", ","].contains(&tokens[at - 1].1.as_str());
                if begins && depth <= 1 && token != "self" && !is_macro(at) {
                    found.push((*line, token.clone()));
                }
            }
        }
        if depth == 0 {
            break;
        }
        at += 1;
    }
    found
}

/// The tokens of the code, each with its line: names, `::`, and every other character but white
/// space. Comments, strings and character literals are left out.
fn tokens(text: &str) -> Vec<(usize, String)> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut line, mut at) = (Vec::new(), 1, 0);
    let begins = |at: usize, with: &str| {
        let rest = chars[at..].iter().copied();
        rest.take(with.len()).eq(with.chars())
    };
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    while at < chars.len() {
        let start = at;
        if begins(at, "//") {
            at += chars[at..].iter().take_while(|c| **c != '\n').count();
        } else if let Some(hashes) = raw_string(&chars[at..]) {
            let end = format!("\"{}", "#".repeat(hashes));
            at += hashes + 2;
            while at < chars.len() && !begins(at, &end) {
                at += 1;
            }
            at += end.len();
        } else if chars[at] == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += 1 + usize::from(chars[at] == '\\');
            }
            at += 1;
        } else if chars[at] == '\'' && chars.get(at + 1) == Some(&'\\') {
            at += 3;
            at += chars[at.min(chars.len())..]
                .iter()
                .take_while(|c| **c != '\'')
                .count();
            at += 1;
        } else if chars[at] == '\'' && chars.get(at + 2) == Some(&'\'') {
            at += 3;
        } else if is_name(chars[at]) {
            at += chars[at..].iter().take_while(|c| is_name(**c)).count();
            found.push((line, chars[start..at].iter().collect()));
        } else if begins(at, "::") {
            at += 2;
            found.push((line, "::".to_owned()));
        } else {
            at += 1;
            if !chars[start].is_whitespace() {
                found.push((line, chars[start].to_string()));
            }
        }
        at = at.min(chars.len());
        line += chars[start..at].iter().filter(|c| **c == '\n').count();
    }
    found
}

/// The number of hashes of the raw string that begins here, if one does.
fn raw_string(chars: &[char]) -> Option<usize> {
    let rest = chars.strip_prefix(&['r'])?;
    let hashes = rest.iter().take_while(|c| **c == '#').count();
    (rest.get(hashes) == Some(&'"')).then_some(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The faults of a file of mlx-models, without its name.
    fn of(file: &str, text: &str) -> Vec<String> {
        let file = format!("mlx-models/src/{file}");
        let faults = faults(&file, text);
        let rest = |fault: String| fault.strip_prefix(&file).unwrap().to_owned();
        faults.into_iter().map(rest).collect()
    }

    #[test]
    fn rooms_import_only_rooms_before_them() {
        for (name, rooms) in CRATES {
            for (at, (room, known)) in rooms.iter().enumerate() {
                let before = |known: &&str| rooms[..at].iter().any(|(name, _)| name == known);
                assert!(known.iter().all(before), "{name}: {room}");
            }
        }
    }

    #[test]
    fn imports_of_other_rooms_are_found_in_every_form() {
        let no = |line: usize, name: &str| format!(":{line}: config must not import {name}");
        for (text, expected) in [
            ("use crate::registry::Registry;", vec![no(1, "registry")]),
            ("\npub use crate::model;", vec![no(2, "model")]),
            (
                "use crate::{\n    config::Config,\n    model::{Model, families},\n    convert,\n};",
                vec![no(3, "model"), no(4, "convert")],
            ),
            ("fn a() -> crate::model::Names {}", vec![no(1, "model")]),
            ("let a = '\"'; crate::model::b(\"\");", vec![no(1, "model")]),
            ("use super::model::Model;", vec![no(1, "model")]),
            (
                "mod tests { use super::super::model::Model; }",
                vec![no(1, "model")],
            ),
        ] {
            assert_eq!(of("config.rs", text), expected, "{text}");
        }
        let inside = "use super::super::model::Model;\nmod a { use super::super::super::convert; }";
        let expected = vec![no(1, "model"), no(2, "convert")];
        assert_eq!(of("config/rope.rs", inside), expected);
        let fault = of("config.rs", "use crate::Model;").remove(0);
        assert!(fault.contains("crate::Model is no room"), "{fault}");
        let fault = of("helpers/a.rs", "").remove(0);
        assert!(fault.contains("helpers is no room"), "{fault}");
    }

    #[test]
    fn some_rooms_name_no_crate_below() {
        for (file, text, expected) in [
            (
                "text/stop.rs",
                "let a = mlx_core::zeros();",
                Some(":1: text must not import mlx_core"),
            ),
            (
                "hub/name.rs",
                "\nuse mlx_models::Weights;",
                Some(":2: hub must not import mlx_models"),
            ),
            (
                "hub/name.rs",
                "use crate::model::LoadedModel;",
                Some(":1: hub must not import model"),
            ),
            (
                "text/stop.rs",
                "use crate::engine::Engine;",
                Some(":1: text must not import engine"),
            ),
            ("text/files.rs", "use mlx_core::files;", None),
            ("text/files.rs", "mlx_core::gguf::find(path)?;", None),
            ("text/stop.rs", "use crate::error::Error;", None),
            ("text/stop.rs", "// mlx_core::Array", None),
            ("model/read.rs", "use mlx_core::Array;", None),
        ] {
            let file = format!("mlx-infer/src/{file}");
            let expected = expected.map(|fault| format!("{file}{fault}"));
            let found = faults(&file, text);
            assert_eq!(found, Vec::from_iter(expected), "{file}: {text}");
        }
    }

    #[test]
    fn what_is_allowed_passes() {
        for (file, text) in [
            ("lib.rs", "pub use crate::registry::Registry;"),
            ("checkpoint.rs", "use crate::config::{self, Config};"),
            ("checkpoint/weights.rs", "use crate::checkpoint::Names;"),
            (
                "config.rs",
                "// crate::model\n/// [`x`](crate::model::Model)",
            ),
            ("config.rs", "let a = \"\\\"crate::model\";"),
            ("config.rs", "let a = r#\"\"crate::model\"#;"),
            ("config.rs", "mod tests { use super::*; }"),
            (
                "config/rope.rs",
                "use super::model; fn a<'a>(a: &'a str) {}",
            ),
            ("config.rs", "mod a { fn b() {} use super::model; }"),
            ("config.rs", "crate::module!(A {});"),
        ] {
            assert_eq!(of(file, text), Vec::<String>::new(), "{file}: {text}");
        }
        assert!(faults("mlx-nn/src/a.rs", "use crate::b;").is_empty());
        assert!(faults("mlx-models/tests/a.rs", "use crate::b;").is_empty());
    }
}

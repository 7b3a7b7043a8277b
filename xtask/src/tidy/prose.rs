//! Rules for text: the README stays short, lines can be read, and no edit leaves a sentence twice.

use std::path::Path;

/// The most lines of the README, and the most characters of a line of it.
const README: (usize, usize) = (150, 120);
/// The most characters of a line of text, in Markdown and in comments. Tables and code may be wider.
const WIDTH: usize = 160;
/// The number of equal characters at their beginnings from which two successive lines of text count
/// as doubled.
const SAME: usize = 40;

/// The faults in the text of a file.
pub fn faults_in(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if file == "README.md" {
        let (most, width) = README;
        let lines = text.lines().count();
        if lines > most {
            faults.push(format!("{file}: {lines} lines, at most {most}"));
        }
        for (at, line) in text.lines().enumerate() {
            let characters = line.chars().count();
            if characters > width {
                faults.push(format!(
                    "{file}:{}: {characters} characters, at most {width}",
                    at + 1
                ));
            }
        }
    }
    let Some(prose) = prose_of(file) else {
        return faults;
    };
    let mut before = "";
    let mut in_code = false;
    for (at, line) in text.lines().enumerate() {
        let Some(words) = prose(line.trim()) else {
            (before, in_code) = ("", false);
            continue;
        };
        if words.starts_with("```") {
            (before, in_code) = ("", !in_code);
            continue;
        }
        if in_code || words.starts_with('|') {
            before = "";
            continue;
        }
        let characters = line.chars().count();
        if characters > WIDTH {
            faults.push(format!(
                "{file}:{}: {characters} characters of text, at most {WIDTH}",
                at + 1
            ));
        }
        if is_doubled(before, words) {
            faults.push(format!("{file}:{}: repeats the line before", at + 1));
        }
        before = words;
    }
    faults
}

/// The function that finds the text of a line: the whole line of Markdown, the comment of a source.
/// `None` for other files, for data, and for records, whose text is not changed later.
fn prose_of(file: &str) -> Option<fn(&str) -> Option<&str>> {
    let record = file.starts_with("records/") && file != "records/README.md";
    if record || file.starts_with("testdata/") && !file.ends_with(".md") {
        return None;
    }
    match Path::new(file).extension()?.to_str()? {
        "md" => Some(|line| Some(line)),
        "rs" | "cpp" | "h" | "cu" | "cuh" | "metal" => Some(slashes),
        "py" | "sh" => Some(|line| line.strip_prefix('#').map(str::trim)),
        _ => None,
    }
}

/// The text of a comment of two or three slashes.
fn slashes(line: &str) -> Option<&str> {
    let text = line.strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim())
}

/// Whether a line repeats the line before it. Lines without words are separators or drawings.
fn is_doubled(before: &str, line: &str) -> bool {
    let has_words = line
        .split_whitespace()
        .any(|word| word.chars().filter(|c| c.is_alphabetic()).count() >= 3);
    if !has_words || before.is_empty() {
        return false;
    }
    let same = before.chars().zip(line.chars()).take_while(|(a, b)| a == b);
    before == line || same.count() >= SAME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_finds_what_it_is_for() {
        let lines = "x\n".repeat(README.0 + 1);
        let wide = "x".repeat(README.1 + 1);
        let long = "word ".repeat(WIDTH / 5 + 1);
        let begins = "An index out of range is reported by the evaluation";
        for (file, text, expected) in [
            ("README.md", lines.as_str(), "151 lines"),
            ("README.md", &format!("| {wide} |"), "125 characters"),
            ("docs/a.md", &long, "characters of text"),
            ("a.rs", &format!("/// {long}"), "characters of text"),
            ("a.cuh", &format!("  // {long}"), "characters of text"),
            ("a.py", &format!("# {long}"), "characters of text"),
            ("a.rs", "/// The rows.\n/// The rows.\n", "a.rs:2: repeats"),
            (
                "a.h",
                &format!("// {begins}.\n// {begins}, once.\n"),
                "a.h:2: repeats",
            ),
            ("a.md", "The rows.\nThe rows.\n", "a.md:2: repeats"),
        ] {
            let faults = faults_in(file, text);
            assert!(
                faults.len() == 1 && faults[0].contains(expected),
                "{file}: {faults:?}"
            );
        }
    }

    #[test]
    fn what_is_allowed_passes() {
        let long = "word ".repeat(WIDTH / 5 + 1);
        for (file, text) in [
            ("README.md", "x\n".repeat(README.0).as_str()),
            ("docs/a.md", &"x\n\n".repeat(1000)),
            ("docs/a.md", &format!("| {long} |")),
            ("docs/a.md", &format!("```\n{long}\n{long}\n```\n")),
            ("a.rs", &format!("/// | {long} |\n/// | {long} |\n")),
            ("a.rs", &format!("let x = \"{long}\";")),
            ("a.rs", "//! ```\n//! let a = 1;\n//! let a = 1;\n//! ```\n"),
            ("a.rs", "/// The rows.\nrows: i32,\n/// The rows.\n"),
            ("a.rs", "// ─────\n// ─────\n"),
            ("records/2026.md", &format!("{long}\n{long}")),
            ("testdata/a.py", &format!("# {long}")),
        ] {
            assert_eq!(faults_in(file, text), Vec::<String>::new(), "{file}");
        }
    }
}

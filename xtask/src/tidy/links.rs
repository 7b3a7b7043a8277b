//! Links between the files of the repository: the target of each link in a Markdown file exists,
//! including the heading.

use std::fs;
use std::path::{Path, PathBuf};

/// The links of `file` without a target.
pub fn faults_in(root: &Path, file: &str, text: &str) -> Vec<String> {
    if !file.ends_with(".md") {
        return Vec::new();
    }
    let folder = root.join(file);
    let folder = folder.parent().unwrap_or(root);
    let found = links(text).filter_map(|(number, link)| {
        let reason = fault(folder, &root.join(file), link)?;
        Some(format!("{file}:{number}: the link {link}: {reason}"))
    });
    found.collect()
}

/// Why a link of `file`, which is in `folder`, has no target.
fn fault(folder: &Path, file: &Path, link: &str) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => PathBuf::from(file),
        _ => folder.join(path),
    };
    if !target.exists() {
        return Some("no such file");
    }
    if heading.is_empty() || target.extension().is_none_or(|e| e != "md") {
        return None;
    }
    let text = fs::read_to_string(&target).unwrap_or_default();
    let has = headings(&text).any(|found| found == heading);
    (!has).then_some("no such heading")
}

/// The lines outside blocks of code, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code).then_some((at + 1, line))
    })
}

/// The targets `](target)` of a text, with their lines.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    lines(text).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1);
        let targets = targets.filter_map(|rest| rest.split_once(')'));
        targets.map(move |(target, _)| (number, target))
    })
}

/// The headings of a text as links name them: small letters, digits, `-` and `_`, blanks as `-`.
fn headings(text: &str) -> impl Iterator<Item = String> {
    lines(text).filter_map(|(_, line)| {
        let title = line.strip_prefix('#')?.trim_start_matches('#');
        let title = title.strip_prefix(' ')?.trim().to_lowercase();
        let kept = title.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then_some(c),
        });
        Some(kept.collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir(root.join("docs")).unwrap();
        fs::write(root.join("docs/b.md"), "# Two words, `code`\n").unwrap();
        fs::write(root.join("a.rs"), "").unwrap();
        for (link, reason) in [
            ("b.md", None),
            ("b.md#two-words-code", None),
            ("../a.rs", None),
            ("https://example.org/c.md#x", None),
            ("#here", None),
            ("c.md", Some("no such file")),
            ("b.md#two", Some("no such heading")),
            ("#there", Some("no such heading")),
        ] {
            let text = format!("# Here\n\nSee [it]({link}).\n");
            fs::write(root.join("docs/a.md"), &text).unwrap();
            let faults = faults_in(root, "docs/a.md", &text);
            let expected = reason.map(|why| format!("docs/a.md:3: the link {link}: {why}"));
            assert_eq!(faults, Vec::from_iter(expected), "{link}");
        }
        let code = "```\n[x](nowhere.md)\n```\n";
        assert!(faults_in(root, "docs/a.md", code).is_empty());
        assert!(faults_in(root, "a.rs", "// [x](nowhere.md)").is_empty());
    }
}

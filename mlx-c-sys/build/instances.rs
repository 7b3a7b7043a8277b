//! The sources of the shim that only instantiate templates, from the list `shim/ops/instances.txt`.

/// Where the list is in the shim.
pub const LIST: &str = "ops/instances.txt";

/// The sources of the list: path, text.
///
/// # Errors
/// The line that is wrong, and what is wrong with it.
pub fn sources(list: &str) -> Result<Vec<(String, String)>, String> {
    let mut sources = Vec::new();
    // The text before the first source explains the list to readers.
    for part in list.split("\n== ").skip(1) {
        let (head, text) = part.split_once('\n').unwrap_or((part, ""));
        let (path, words) = head
            .split_once(':')
            .ok_or_else(|| format!("\"== {head}\" has no colon after the path"))?;
        for words in words.split('|') {
            let words: Vec<&str> = words.split_whitespace().collect();
            let path = filled(path.trim(), &words)?;
            if sources.iter().any(|(known, _)| *known == path) {
                return Err(format!("{path} is there twice"));
            }
            let text = filled(text, &words).map_err(|what| format!("{path}: {what}"))?;
            sources.push((path, format!("{}\n", text.trim_end())));
        }
    }
    Ok(sources)
}

/// `text` with its words.
fn filled(text: &str, words: &[&str]) -> Result<String, String> {
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digit = part.chars().next().and_then(|c| c.to_digit(10));
        let word = digit.and_then(|n| words.get((n as usize).checked_sub(1)?));
        let Some(word) = word else {
            let known = words.join(" ");
            let line = part.lines().next().unwrap_or_default();
            return Err(format!("\"${line}\" is none of the words \"{known}\""));
        };
        out += word;
        out += &part[1..];
    }
    Ok(out)
}

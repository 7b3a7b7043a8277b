//! JSON as Python writes it: `Infinity`, `-Infinity` and `NaN` stand for numbers.

use serde_json::Value;

const NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Parses a document that may hold infinite numbers and NaN, which JSON does not have. They become the objects that
/// transformers 5 writes: `{"__float__": "Infinity"}`.
///
/// # Errors
/// The document is not valid JSON for another reason.
pub fn parse(text: &[u8]) -> serde_json::Result<Value> {
    // Editors on Windows write a byte order mark.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    serde_json::from_slice(text).or_else(|error| match tagged(text) {
        Some(tagged) => serde_json::from_slice(&tagged),
        None => Err(error),
    })
}

/// The text with infinite numbers and NaN written as objects; `None` if it has none outside of strings.
fn tagged(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let (mut at, mut in_string, mut found) = (0, false, false);
    while at < text.len() {
        let rest = &text[at..];
        let number = NUMBERS
            .iter()
            .find(|name| rest.starts_with(name.as_bytes()));
        if let Some(name) = number.filter(|_| !in_string) {
            out.extend(format!("{{\"__float__\": \"{name}\"}}").bytes());
            at += name.len();
            found = true;
            continue;
        }
        match rest[0] {
            b'"' => in_string = !in_string,
            // An escaped quote does not end the string.
            b'\\' if in_string && rest.len() > 1 => {
                out.push(rest[0]);
                at += 1;
            }
            _ => {}
        }
        out.push(text[at]);
        at += 1;
    }
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_json_does_not_have() {
        let text = br#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "NaN": "\\\" Infinity"}"#;
        assert_eq!(
            parse(text).unwrap(),
            json!({
                "a": [0.0, {"__float__": "Infinity"}],
                "b": {"__float__": "-Infinity"},
                "c": {"__float__": "NaN"},
                "NaN": "\\\" Infinity",
            })
        );
        assert!(parse(b"[Infinite]").is_err());
        let error = parse(b"{\"a\": nothing}").unwrap_err().to_string();
        assert!(error.contains("column 8"), "{error}");
    }
}

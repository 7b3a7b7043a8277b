//! Checks of tokenizer.json that the tokenizers crate does not make: on these files it panics, asks for
//! memory without bound, or never ends.

use serde_json::Value;

use super::pipeline::TokenizerJson;
use crate::error::{Error, Result};

/// How much longer a text may become by the replacements of one part. Published files stay below 8.
const MAX_GROWTH: usize = 64;
/// Published prefixes have two bytes.
const MAX_PREFIX_BYTES: usize = 64;

/// Refuses a malformed part, by name and place in the file.
pub(super) fn check(json: &TokenizerJson<'_>, bytes: &[u8], place: &str) -> Result<()> {
    for (name, part) in json.parts() {
        let Some(part) = part else { continue };
        let at = part
            .get()
            .as_ptr()
            .addr()
            .saturating_sub(bytes.as_ptr().addr());
        let before = &bytes[..at.min(bytes.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let column = 1 + before
            .iter()
            .rev()
            .take_while(|byte| **byte != b'\n')
            .count();
        let refuse = |path: &str, what: &str| {
            Error::format(format!(
                "{place}: {path}: {what} ({name} begins at line {line} column {column})"
            ))
        };
        if name == "model" {
            let model: Prefix = serde_json::from_str(part.get())
                .map_err(|error| refuse(name, &error.to_string()))?;
            let length = model.continuing_subword_prefix.unwrap_or_default().len();
            if length > MAX_PREFIX_BYTES {
                let what = format!(
                    "continuing_subword_prefix has {length} bytes; expected at most {MAX_PREFIX_BYTES}"
                );
                return Err(refuse(name, &what));
            }
            continue;
        }
        let value: Value =
            serde_json::from_str(part.get()).map_err(|error| refuse(name, &error.to_string()))?;
        let mut growth = 1;
        step(&value, name, &mut growth).map_err(|(path, what)| refuse(&path, &what))?;
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct Prefix {
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
}

/// Where and why a step is refused.
type Refused = (String, String);

fn step(value: &Value, path: &str, growth: &mut usize) -> std::result::Result<(), Refused> {
    let refused = |what: String| Err((path.to_owned(), what));
    let kind = value
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match kind {
        "Replace" => {
            let content = value
                .get("content")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .len();
            let pattern = value.get("pattern").unwrap_or(&Value::Null);
            let factor = match pattern.get("String").and_then(Value::as_str) {
                Some("") => return refused("Replace: the pattern is empty".to_owned()),
                Some(text) => content.div_ceil(text.len()),
                // A regular expression may match between any two characters.
                None => content.saturating_add(1),
            };
            *growth = growth.saturating_mul(factor.max(1));
            if *growth > MAX_GROWTH {
                return refused(format!(
                    "Replace makes a text up to {growth} times as long; expected at most {MAX_GROWTH} times"
                ));
            }
        }
        "FixedLength" if value.get("length").and_then(Value::as_u64) == Some(0) => {
            return refused("FixedLength: the length is 0".to_owned());
        }
        "Precompiled" => {
            let map = value
                .get("precompiled_charsmap")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if let Some(what) = charsmap_fault(map) {
                return refused(format!("Precompiled: {what}"));
            }
        }
        "TemplateProcessing" => {
            let single = value.get("single").and_then(Value::as_array);
            let mut sequences = single.into_iter().flatten().filter_map(sequence);
            if sequences.clone().any(|id| id == "B") || !sequences.any(|id| id == "A") {
                return refused(
                    "TemplateProcessing: single must have sequence A, and no B".to_owned(),
                );
            }
        }
        _ => {}
    }
    for key in ["normalizers", "pretokenizers", "processors", "decoders"] {
        let steps = value.get(key).and_then(Value::as_array);
        for (at, inner) in steps.into_iter().flatten().enumerate() {
            step(inner, &format!("{path}.{key}[{at}]"), growth)?;
        }
    }
    Ok(())
}

/// The sequence that a piece of a template stands for: `{"Sequence": {"id": "A"}}`, or `$A` and the like.
fn sequence(piece: &Value) -> Option<&str> {
    if let Some(text) = piece.as_str() {
        let id = text.strip_prefix('$')?;
        return Some(if id.starts_with(['B', 'b']) { "B" } else { "A" });
    }
    piece.get("Sequence")?.get("id")?.as_str()
}

/// What is wrong with a character map: base64 of the length of a table in bytes, the table, and a text.
fn charsmap_fault(base64: &str) -> Option<String> {
    let digits = base64.trim_end_matches('=');
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let bytes = digits.len() / 4 * 3 + [0, 0, 1, 2][digits.len() % 4];
    let Some(head) = digits.as_bytes().get(..6) else {
        return Some(format!(
            "the map has {bytes} bytes; expected a table of at least 4"
        ));
    };
    let mut bits: u64 = 0;
    for byte in head {
        let Some(six) = value(*byte) else {
            return Some("the map is not base64".to_owned());
        };
        bits = bits << 6 | u64::from(six);
    }
    let length = ((bits >> 4) as u32).swap_bytes() as usize;
    if length < 4 || length > bytes.saturating_sub(4) {
        return Some(format!(
            "the map says that its table has {length} bytes, and {} follow",
            bytes.saturating_sub(4)
        ));
    }
    None
}

//! Checks of tokenizer.json that the tokenizers crate lacks: without them it panics, allocates
//! without a limit, or never ends.

use serde_json::Value;
use serde_json::value::RawValue;

use super::pipeline::TokenizerJson;
use super::steps::{PipelineStep, position, steps};
use crate::error::{self, Error};

/// The factor by which the replacements of one part may lengthen a text. Published files stay below
/// 8.
const MAX_GROWTH: usize = 64;
/// The longest prefix in bytes. Published prefixes have two.
const MAX_PREFIX_BYTES: usize = 64;

/// Refuses a malformed part, by its name and position in the file.
pub(super) fn check(json: &TokenizerJson<'_>, bytes: &[u8], place: &str) -> error::Result<()> {
    let refuse = |step: &PipelineStep<'_>, what: &str| {
        let at = position(bytes, step.json);
        Error::format(format!("{place}: {}: {what} ({at})", step.name))
    };
    for (name, part) in json.parts() {
        let Some(part) = part else { continue };
        if name == "model" {
            model(part).map_err(|(step, what)| refuse(&step, &what))?;
            continue;
        }
        let mut growth = 1;
        for step in steps(name, part).map_err(|(step, what)| refuse(&step, &what))? {
            if let Some(what) = step_fault(&step, &mut growth) {
                return Err(refuse(&step, &what));
            }
        }
    }
    Ok(())
}

/// Checks the model. It is read only once, because it contains the whole vocabulary.
fn model(json: &RawValue) -> Result<(), (PipelineStep<'_>, String)> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Outline {
        r#type: Option<String>,
        continuing_subword_prefix: Option<String>,
    }
    let read = serde_json::from_str::<Outline>(json.get());
    let fault = read.as_ref().err().map(ToString::to_string);
    let Outline {
        r#type,
        continuing_subword_prefix,
    } = read.unwrap_or_default();
    let length = continuing_subword_prefix.unwrap_or_default().len();
    let is_long = length > MAX_PREFIX_BYTES;
    let fault = fault.or(is_long.then(|| {
        format!("continuing_subword_prefix has {length} bytes; expected at most {MAX_PREFIX_BYTES}")
    }));
    let step = || PipelineStep::new("model", r#type.unwrap_or_default(), json);
    fault.map_or(Ok(()), |what| Err((step(), what)))
}

/// The fault of a step, if there is one. `growth` is the factor by which the steps of a part can
/// lengthen a text.
fn step_fault(step: &PipelineStep<'_>, growth: &mut usize) -> Option<String> {
    let value: Value = match serde_json::from_str(step.json.get()) {
        Ok(value) => value,
        Err(error) => return Some(error.to_string()),
    };
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    match step.kind.as_str() {
        "Replace" => {
            let content = text("content").len();
            let pattern = value.get("pattern").unwrap_or(&Value::Null);
            let factor = match pattern.get("String").and_then(Value::as_str) {
                Some("") => return Some("the pattern is empty".to_owned()),
                Some(text) => content.div_ceil(text.len()),
                // A regular expression may match between any two characters.
                None => content.saturating_add(1),
            };
            *growth = growth.saturating_mul(factor.max(1));
            (*growth > MAX_GROWTH).then(|| {
                format!(
                    "it makes a text up to {growth} times as long; expected at most {MAX_GROWTH} times"
                )
            })
        }
        "FixedLength" if value.get("length").and_then(Value::as_u64) == Some(0) => {
            Some("the length is 0".to_owned())
        }
        "Precompiled" => charsmap_fault(text("precompiled_charsmap")),
        "TemplateProcessing" => {
            let single = value.get("single").and_then(Value::as_array);
            let mut sequences = single.into_iter().flatten().filter_map(sequence);
            let is_fault = sequences.clone().any(|id| id == "B") || !sequences.any(|id| id == "A");
            is_fault.then(|| "single must have sequence A, and no B".to_owned())
        }
        _ => None,
    }
}

/// The sequence in a piece of a template: `{"Sequence": {"id": "A"}}`, or `$A` and the like.
fn sequence(piece: &Value) -> Option<&str> {
    if let Some(text) = piece.as_str() {
        let id = text.strip_prefix('$')?;
        return Some(if id.starts_with(['B', 'b']) { "B" } else { "A" });
    }
    piece.get("Sequence")?.get("id")?.as_str()
}

/// The fault of a character map: base64 of a table's length in bytes, the table, and a text.
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

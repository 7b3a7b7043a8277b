//! The steps of a pipeline in tokenizer.json, each with its name and its position in the file.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The deepest nesting of sequences of steps. Published files have two levels.
const MAX_DEPTH: usize = 16;

/// A step of a part: `normalizer (NFC)`, or within a sequence `normalizer[2] (Precompiled)`.
pub(super) struct PipelineStep<'a> {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) json: &'a RawValue,
}

impl<'a> PipelineStep<'a> {
    /// The step of type `kind` at `path`.
    pub(super) fn new(path: &str, kind: String, json: &'a RawValue) -> Self {
        let name = match kind.is_empty() {
            true => path.to_owned(),
            false => format!("{path} ({kind})"),
        };
        Self { name, kind, json }
    }
}

/// The outline of a step: its type, and for a sequence the steps inside it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Outline<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    normalizers: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    pretokenizers: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    processors: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    decoders: Option<Vec<&'a RawValue>>,
}

/// The steps of a part, those inside a sequence before the sequence itself; or the position where sequences are nested
/// too deep.
pub(super) fn steps<'a>(
    part: &str,
    json: &'a RawValue,
) -> Result<Vec<PipelineStep<'a>>, (PipelineStep<'a>, String)> {
    let mut found = Vec::new();
    walk(part.to_owned(), json, 0, &mut found)?;
    Ok(found)
}

fn walk<'a>(
    path: String,
    json: &'a RawValue,
    depth: usize,
    found: &mut Vec<PipelineStep<'a>>,
) -> Result<(), (PipelineStep<'a>, String)> {
    // A value that is not an object, or lacks a required list, counts as one step. Its reader reports the fault.
    let outline: Outline<'a> = serde_json::from_str(json.get()).unwrap_or_default();
    let kind = outline
        .kind
        .and_then(|kind| serde_json::from_str(kind.get()).ok());
    let kind: String = kind.unwrap_or_default();
    let step = PipelineStep::new(&path, kind, json);
    if depth > MAX_DEPTH {
        let what = format!("sequences are nested deeper than {MAX_DEPTH}");
        return Err((step, what));
    }
    let lists = [
        outline.normalizers,
        outline.pretokenizers,
        outline.processors,
        outline.decoders,
    ];
    for (at, inner) in lists.into_iter().flatten().flatten().enumerate() {
        walk(format!("{path}[{at}]"), inner, depth + 1, found)?;
    }
    found.push(step);
    Ok(())
}

/// The position of a part in the file `bytes`: `line 1 column 20`.
pub(super) fn position(bytes: &[u8], json: &RawValue) -> String {
    let at = json.get().as_ptr().addr();
    let at = at.saturating_sub(bytes.as_ptr().addr()).min(bytes.len());
    let is_end = |byte: &&u8| **byte == b'\n';
    let before = &bytes[..at];
    let line = 1 + before.iter().filter(is_end).count();
    let column = 1 + before.iter().rev().take_while(|byte| !is_end(byte)).count();
    format!("line {line} column {column}")
}

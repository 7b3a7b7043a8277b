//! Finds the part of a tokenizer on which the tokenizers crate fails or panics, by repeating the call part by part.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{
    AddedToken, Decoder, Model, ModelWrapper, NormalizedString, Normalizer, OffsetType,
    PaddingParams, PostProcessorWrapper, PreTokenizedString, PreTokenizer, Tokenizer,
    TruncationParams,
};

use super::pipeline::TokenizerJson;
use super::quiet::quietly;
use super::steps::{PipelineStep, position, steps};

/// The part of a file that cannot be read, its fault, and its position. If `is_rebuilt`, the class
/// builds the pipeline, so only the model, the post-processor and the added tokens come from the
/// file.
pub(super) fn reading(json: &TokenizerJson<'_>, bytes: &[u8], is_rebuilt: bool) -> Option<String> {
    type Read = fn(&str) -> Option<String>;
    let [normalizer, pre_tokenizer, model, post_processor, decoder] = json.parts();
    let mut parts: Vec<((&'static str, Option<&RawValue>), Read)> = vec![
        (post_processor, fault::<PostProcessorWrapper>),
        (model, fault::<ModelWrapper>),
    ];
    if !is_rebuilt {
        parts.splice(
            0..0,
            [
                (
                    ("truncation", json.truncation),
                    fault::<TruncationParams> as Read,
                ),
                (("padding", json.padding), fault::<PaddingParams>),
                (normalizer, fault::<NormalizerWrapper>),
                (pre_tokenizer, fault::<PreTokenizerWrapper>),
                (decoder, fault::<DecoderWrapper>),
            ],
        );
    }
    let mut all: Vec<(PipelineStep<'_>, Read)> = Vec::new();
    for ((name, part), read) in parts {
        let Some(part) = part else { continue };
        match steps(name, part) {
            Ok(found) => all.extend(found.into_iter().map(|step| (step, read))),
            Err((step, what)) => return Some(message(&step, &what, bytes)),
        }
    }
    for (step, read) in &all {
        if let Some(what) = read(step.json.get()) {
            return Some(message(step, &what, bytes));
        }
    }
    for (index, token) in json.added_tokens.iter().enumerate() {
        if let Some(what) = fault::<WithId>(token.get()) {
            let place = position(bytes, token);
            return Some(format!("added_tokens[{index}]: {what} ({place})"));
        }
    }
    if is_rebuilt {
        return None;
    }
    // Added tokens are normalized when they are read.
    let whole = normalizer.1?;
    let whole: NormalizerWrapper = serde_json::from_str(whole.get()).ok()?;
    json.added_tokens.iter().find_map(|token| {
        let WithId { token, .. } = serde_json::from_str(token.get()).ok()?;
        let (_, found) = normalize(&whole, &token.content);
        found.map(|(name, what)| format!("{name}: {what}, on the added token {:?}", token.content))
    })
}

/// An added token in the form of the file.
#[derive(Deserialize)]
struct WithId {
    #[expect(dead_code, reason = "it must be there")]
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

fn message(step: &PipelineStep<'_>, what: &str, bytes: &[u8]) -> String {
    format!("{}: {what} ({})", step.name, position(bytes, step.json))
}

/// The fault of a part of type `T`.
fn fault<T: DeserializeOwned>(text: &str) -> Option<String> {
    quietly(|| Ok(serde_json::from_str::<T>(text).map(drop)?))
        .err()
        .map(|fault| fault.what)
}

/// A part, and its fault.
type Found = Option<(String, String)>;

/// The step that fails for a text.
pub(super) fn encoding(inner: &Tokenizer, text: &str) -> Found {
    let mut normalized = NormalizedString::from(text);
    if let Some(normalizer) = inner.get_normalizer() {
        let found;
        (normalized, found) = normalize(normalizer, text);
        if found.is_some() {
            return found;
        }
    }
    let mut pieces = PreTokenizedString::from(normalized);
    let leaves = inner
        .get_pre_tokenizer()
        .map(|step| split("pre_tokenizer", step));
    for (name, step) in leaves.unwrap_or_default() {
        if let Err(fault) = quietly(|| step.pre_tokenize(&mut pieces)) {
            return Some((named(&name, step), fault.what));
        }
    }
    let model = inner.get_model();
    if let Err(fault) = quietly(|| pieces.tokenize(|piece| model.tokenize(piece.get()))) {
        return Some((named("model", model), fault.what));
    }
    let processor = inner.get_post_processor()?;
    let encoded = quietly(|| pieces.into_encoding(None, 0, OffsetType::None)).ok()?;
    let done = quietly(|| inner.post_process(encoded, None, true));
    done.err()
        .map(|fault| (named("post_processor", processor), fault.what))
}

/// The step that fails on these tokens.
pub(super) fn decoding(inner: &Tokenizer, mut tokens: Vec<String>) -> Found {
    let leaves = inner.get_decoder().map(|step| decoders("decoder", step));
    for (name, step) in leaves.unwrap_or_default() {
        match quietly(|| step.decode_chain(tokens)) {
            Ok(after) => tokens = after,
            Err(fault) => return Some((named(&name, step), fault.what)),
        }
    }
    None
}

fn normalize(normalizer: &NormalizerWrapper, text: &str) -> (NormalizedString, Found) {
    let mut normalized = NormalizedString::from(text);
    for (name, step) in normalizers("normalizer", normalizer) {
        if let Err(fault) = quietly(|| step.normalize(&mut normalized)) {
            return (normalized, Some((named(&name, step), fault.what)));
        }
    }
    (normalized, None)
}

/// The path of a step with its type.
fn named(path: &str, step: &impl serde::Serialize) -> String {
    #[derive(Deserialize)]
    struct Kind {
        r#type: String,
    }
    let text = quietly(|| Ok(serde_json::to_string(step)?)).ok();
    let kind = text.and_then(|text| serde_json::from_str::<Kind>(&text).ok());
    kind.map_or(path.to_owned(), |kind| format!("{path} ({})", kind.r#type))
}

/// The steps inside sequences, each with its path.
macro_rules! leaves {
    ($name:ident, $Wrapper:ident, $list:expr) => {
        fn $name<'a>(path: &str, step: &'a $Wrapper) -> Vec<(String, &'a $Wrapper)> {
            let $Wrapper::Sequence(sequence) = step else {
                return vec![(path.to_owned(), step)];
            };
            let inside: &'a [$Wrapper] = $list(sequence);
            let inner = inside.iter().enumerate();
            let inner = inner.flat_map(|(at, step)| $name(&format!("{path}[{at}]"), step));
            inner.collect()
        }
    };
}

leaves!(normalizers, NormalizerWrapper, AsRef::as_ref);
leaves!(split, PreTokenizerWrapper, AsRef::as_ref);
leaves!(
    decoders,
    DecoderWrapper,
    |sequence: &'a tokenizers::decoders::sequence::Sequence| sequence.get_decoders()
);

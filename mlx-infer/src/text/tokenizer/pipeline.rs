//! The pipeline that a class builds from tokenizer.json.
//!
//! If the checkpoint's tokenizer is one of its model classes, transformers 5 keeps only the vocabulary, the merges and
//! (except for two classes) the post-processor of `tokenizer.json`, and builds the rest of the pipeline from
//! `tokenizer_config.json`. This module does the same, so that the ids are equal.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;
use tokenizers::processors::template::TemplateProcessing;

use super::classes::Class;
use super::config::{TokenizerConfig, added_token};
use crate::error::{Error, Result};

/// The pattern by which Qwen's tokenizers split text into words (transformers, `tokenization_qwen2.py`).
const QWEN2_WORDS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// The pattern of Qwen 3.5, whose words also include combining marks (`tokenization_qwen3_5.py`).
const QWEN3_5_WORDS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The parts of `tokenizer.json` that are read here. The vocabulary stays text until the tokenizers crate reads it.
#[derive(Deserialize)]
pub(super) struct TokenizerJson<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(borrow, default)]
    pub(super) added_tokens: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    decoder: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) truncation: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) padding: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ModelJson<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    vocab: Option<&'a RawValue>,
    #[serde(borrow)]
    merges: Option<&'a RawValue>,
}

impl<'a> TokenizerJson<'a> {
    pub(super) fn parse(bytes: &'a [u8], place: &str) -> Result<Self> {
        serde_json::from_slice(bytes)
            .map_err(|error| Error::format(format!("{place}: not a tokenizer: {error}")))
    }

    /// The parts that are checked, by name.
    pub(super) fn parts(&self) -> [(&'static str, Option<&'a RawValue>); 5] {
        [
            ("normalizer", self.normalizer),
            ("pre_tokenizer", self.pre_tokenizer),
            ("model", Some(self.model)),
            ("post_processor", self.post_processor),
            ("decoder", self.decoder),
        ]
    }

    /// Id and token of every added token.
    pub(super) fn added_tokens(&self, place: &str) -> Result<Vec<(u32, AddedToken)>> {
        let read = |(index, json): (usize, &&RawValue)| {
            let name = format!("{place}: added_tokens[{index}]");
            let wrong = |what: String| Error::format(format!("{name}: {what}"));
            let value: Value =
                serde_json::from_str(json.get()).map_err(|error| wrong(error.to_string()))?;
            let id = value.get("id").and_then(Value::as_u64);
            let id = id.and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| wrong(format!("no id in {value}")))?;
            Ok((id, added_token(&name, &value)?))
        };
        self.added_tokens.iter().enumerate().map(read).collect()
    }

    /// The token that `padding` names.
    pub(super) fn pad_token(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Padding {
            pad_token: String,
        }
        let padding = serde_json::from_str::<Padding>(self.padding?.get()).ok();
        padding.map(|padding| padding.pad_token)
    }

    /// The text of the tokenizer that `class` makes from this file.
    pub(super) fn rebuild(
        &self,
        class: Class,
        config: &TokenizerConfig,
        place: &str,
    ) -> Result<String> {
        let model: ModelJson<'_> = serde_json::from_str(self.model.get())
            .map_err(|error| Error::format(format!("{place}: model: {error}")))?;
        if model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
            return Err(Error::unsupported(format!(
                "{place}: tokenizer_class {} needs a BPE model, found {}",
                class.name(),
                model.kind.unwrap_or_default()
            )));
        }
        let vocab = model.vocab.map_or("{}", RawValue::get);
        let merges = model.merges.map_or("[]", RawValue::get);
        let pipeline = Pipeline::of(class, config);
        let mut flags = pipeline.model;
        flags.insert("type".to_owned(), json!("BPE"));
        let flags = Value::Object(flags).to_string();
        let flags = flags.trim_end_matches('}');
        // The parts are joined as text. The vocabulary has hundreds of thousands of entries, and is
        // parsed only once, by the tokenizers crate.
        Ok(format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{},"pre_tokenizer":{},"post_processor":{},"decoder":{},"model":{flags},"vocab":{vocab},"merges":{merges}}}}}"#,
            pipeline.normalizer,
            pipeline.pre_tokenizer,
            self.post_processor.map_or("null", RawValue::get),
            pipeline.decoder,
        ))
    }
}

struct Pipeline {
    model: Map<String, Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
}

impl Pipeline {
    fn of(class: Class, config: &TokenizerConfig) -> Self {
        match class {
            Class::Serialized => unreachable!("a serialized pipeline is not rebuilt"),
            Class::Llama => Self::llama(config),
            Class::Gemma => Self::gemma(config),
            Class::CodeLlama => Self::code_llama(config),
            Class::Gpt2 | Class::CodeGen => Self::gpt2(config),
            Class::GptNeoX => Self::gpt_neox(config),
            Class::Cohere => Self::cohere(config),
            Class::Qwen2 => Self::qwen(config, QWEN2_WORDS),
            Class::Qwen3_5 => Self::qwen(config, QWEN3_5_WORDS),
        }
    }

    fn llama(config: &TokenizerConfig) -> Self {
        let prefix = config.add_prefix_space.unwrap_or(true);
        let scheme = match (prefix, config.legacy) {
            (false, _) => "never",
            (true, true) => "always",
            (true, false) => "first",
        };
        let mut decoders = sentencepiece_decoders();
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Self {
            model: flags(json!({"fuse_unk": true, "byte_fallback": true})),
            normalizer: Value::Null,
            pre_tokenizer: json!({
                "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false
            }),
            decoder: json!({"type": "Sequence", "decoders": decoders}),
        }
    }

    fn code_llama(config: &TokenizerConfig) -> Self {
        let prefix = config.add_prefix_space.unwrap_or(true);
        let scheme = if prefix { "first" } else { "never" };
        let unk = config.named_content("unk_token").unwrap_or("None");
        let mut decoders = sentencepiece_decoders();
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        Self {
            model: flags(json!({"unk_token": unk, "fuse_unk": true, "byte_fallback": true})),
            normalizer: Value::Null,
            pre_tokenizer: json!({
                "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false
            }),
            decoder: json!({"type": "Sequence", "decoders": decoders}),
        }
    }

    fn gpt2(config: &TokenizerConfig) -> Self {
        let prefix = config.add_prefix_space.unwrap_or(false);
        Self {
            model: flags(json!({"continuing_subword_prefix": "", "end_of_word_suffix": ""})),
            normalizer: Value::Null,
            pre_tokenizer: byte_level(prefix, true),
            decoder: byte_level(true, true),
        }
    }

    fn gpt_neox(config: &TokenizerConfig) -> Self {
        Self {
            normalizer: json!({"type": "NFC"}),
            ..Self::gpt2(config)
        }
    }

    fn cohere(config: &TokenizerConfig) -> Self {
        let prefix = config.add_prefix_space.unwrap_or(false);
        Self {
            model: flags(json!({"continuing_subword_prefix": "", "end_of_word_suffix": ""})),
            normalizer: json!({"type": "NFC"}),
            pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true},
                byte_level(prefix, true),
            ]}),
            decoder: byte_level(prefix, true),
        }
    }

    fn gemma(config: &TokenizerConfig) -> Self {
        let unk = config.named_content("unk_token").unwrap_or("None");
        Self {
            model: flags(json!({"unk_token": unk, "fuse_unk": true, "byte_fallback": true})),
            normalizer: json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
            pre_tokenizer: json!({
                "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false
            }),
            decoder: json!({"type": "Sequence", "decoders": sentencepiece_decoders()}),
        }
    }

    fn qwen(config: &TokenizerConfig, words: &str) -> Self {
        let prefix = config.add_prefix_space.unwrap_or(false);
        Self {
            model: flags(json!({"continuing_subword_prefix": "", "end_of_word_suffix": ""})),
            normalizer: json!({"type": "NFC"}),
            pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false},
                byte_level(prefix, false),
            ]}),
            decoder: byte_level(true, true),
        }
    }
}

fn byte_level(prefix: bool, splits_words: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": splits_words
    })
}

fn sentencepiece_decoders() -> Vec<Value> {
    vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ]
}

fn flags(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(flags) => flags,
        _ => Map::new(),
    }
}

/// Sets the post-processor of the classes that replace that of the file: Code Llama starts every
/// text with its `bos_token`, GPT-NeoX puts no tokens around a text. As in transformers,
/// `add_bos_token` and `add_eos_token` have no effect together with a tokenizer.json.
pub(super) fn post_process(
    inner: &mut tokenizers::Tokenizer,
    class: Class,
    config: &TokenizerConfig,
) -> tokenizers::Result<()> {
    let bos = match class {
        Class::CodeLlama => config.named_content("bos_token"),
        Class::GptNeoX => None,
        _ => return Ok(()),
    };
    let template = match bos {
        None => None,
        Some(bos) => {
            let id = inner.token_to_id(bos);
            let id = id.ok_or_else(|| format!("bos_token {bos:?} is not in the vocabulary"))?;
            let mut template = TemplateProcessing::builder();
            template.try_single(vec![bos.to_owned(), "$A".to_owned()])?;
            Some(template.special_tokens(vec![(bos, id)]).build()?)
        }
    };
    inner.with_post_processor(template);
    Ok(())
}

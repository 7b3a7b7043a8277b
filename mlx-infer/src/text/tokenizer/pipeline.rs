//! The pipeline that a class builds from tokenizer.json.
//!
//! If the checkpoint's tokenizer is one of its model classes, transformers 5 keeps only the vocabulary, the merges and
//! (except for two classes) the post-processor of `tokenizer.json`, and builds the rest of the pipeline from
//! `tokenizer_config.json`. This module does the same, so that the ids are equal.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;
use tokenizers::processors::roberta::RobertaProcessing;
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
        let wanted = class.model();
        if model.kind.as_deref().is_some_and(|kind| kind != wanted) {
            return Err(Error::unsupported(format!(
                "{place}: tokenizer_class {} needs a model of type {wanted}, found {}",
                class.name(),
                model.kind.unwrap_or_default()
            )));
        }
        let vocab = model.vocab.map_or("{}", RawValue::get);
        let merges = match wanted {
            "BPE" => format!(r#","merges":{}"#, model.merges.map_or("[]", RawValue::get)),
            _ => String::new(),
        };
        let mut pipeline = Pipeline::of(class, config);
        if class == Class::XlmRoberta {
            pipeline.normalizer = self.charsmap(place)?;
        }
        let mut flags = pipeline.model;
        flags.insert("type".to_owned(), json!(wanted));
        let flags = Value::Object(flags).to_string();
        let flags = flags.trim_end_matches('}');
        // The parts are joined as text. The vocabulary has hundreds of thousands of entries, and is
        // parsed only once, by the tokenizers crate.
        Ok(format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{},"pre_tokenizer":{},"post_processor":{},"decoder":{},"model":{flags},"vocab":{vocab}{merges}}}}}"#,
            pipeline.normalizer,
            pipeline.pre_tokenizer,
            self.post_processor.map_or("null", RawValue::get),
            pipeline.decoder,
        ))
    }
}

impl TokenizerJson<'_> {
    /// The first character map among the normalizers, which is all that the class keeps of them.
    fn charsmap(&self, place: &str) -> Result<Value> {
        let Some(json) = self.normalizer else {
            return Ok(Value::Null);
        };
        let value: Value = serde_json::from_str(json.get())
            .map_err(|error| Error::format(format!("{place}: normalizer: {error}")))?;
        let steps = match value.get("normalizers") {
            Some(Value::Array(steps)) => steps.clone(),
            _ => vec![value],
        };
        let is_map = |step: &Value| {
            step["type"] == "Precompiled" && step.get("precompiled_charsmap").is_some()
        };
        Ok(steps.into_iter().find(is_map).unwrap_or(Value::Null))
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
            Class::Bert => Self::bert(config),
            Class::Roberta => Self::roberta(config),
            Class::XlmRoberta => Self::xlm_roberta(config),
        }
    }

    fn bert(config: &TokenizerConfig) -> Self {
        let unk = config.named_content("unk_token").unwrap_or("[UNK]");
        Self {
            model: flags(json!({
                "unk_token": unk, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100
            })),
            normalizer: json!({
                "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": config.chinese_chars,
                "strip_accents": config.strip_accents, "lowercase": config.lower_case
            }),
            pre_tokenizer: json!({"type": "BertPreTokenizer"}),
            decoder: json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        }
    }

    fn roberta(config: &TokenizerConfig) -> Self {
        let prefix = config.add_prefix_space.unwrap_or(false);
        Self {
            model: flags(json!({
                "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false
            })),
            normalizer: Value::Null,
            pre_tokenizer: byte_level(prefix, true),
            decoder: byte_level(true, true),
        }
    }

    /// The normalizer is that of the file.
    fn xlm_roberta(config: &TokenizerConfig) -> Self {
        let prefix = config.add_prefix_space.unwrap_or(true);
        let scheme = if prefix { "always" } else { "never" };
        let metaspace = json!({
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true
        });
        Self {
            model: flags(json!({"unk_id": 3, "byte_fallback": false})),
            normalizer: Value::Null,
            pre_tokenizer: json!({
                "type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]
            }),
            decoder: metaspace,
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
/// text with its `bos_token`, GPT-NeoX puts no tokens around a text, and encoders put tokens around
/// texts and pairs. As in transformers, `add_bos_token` and `add_eos_token` have no effect together
/// with a tokenizer.json.
pub(super) fn post_process(
    inner: &mut tokenizers::Tokenizer,
    class: Class,
    config: &TokenizerConfig,
) -> tokenizers::Result<()> {
    let named = |inner: &tokenizers::Tokenizer, name: &str| -> tokenizers::Result<(String, u32)> {
        let content = config.named_content(name).unwrap_or_default().to_owned();
        let id = inner.token_to_id(&content);
        let id = id.ok_or_else(|| format!("{name} {content:?} is not in the vocabulary"))?;
        Ok((content, id))
    };
    let piece = |token: &(String, u32), kind: u32| format!("{}:{kind}", token.0);
    match class {
        Class::CodeLlama if config.named_content("bos_token").is_some() => {
            let bos = named(inner, "bos_token")?;
            let mut template = TemplateProcessing::builder();
            template.try_single(vec![bos.0.clone(), "$A".to_owned()])?;
            inner.with_post_processor(Some(template.special_tokens(vec![bos]).build()?));
        }
        Class::CodeLlama | Class::GptNeoX => {
            inner.with_post_processor(None::<TemplateProcessing>);
        }
        Class::Bert => {
            let (cls, sep) = (named(inner, "cls_token")?, named(inner, "sep_token")?);
            let (first, second) = (piece(&sep, 0), piece(&sep, 1));
            let single = vec![piece(&cls, 0), "$A:0".to_owned(), first];
            let pair = [single.clone(), vec!["$B:1".to_owned(), second]].concat();
            set_template(inner, single, pair, vec![cls, sep])?;
        }
        Class::XlmRoberta => {
            let (bos, eos) = (named(inner, "bos_token")?, named(inner, "eos_token")?);
            let end = eos.0.clone();
            let single = vec![bos.0.clone(), "$A".to_owned(), end.clone()];
            let pair = [single.clone(), vec![end.clone(), "$B".to_owned(), end]].concat();
            set_template(inner, single, pair, vec![bos, eos])?;
        }
        Class::Roberta => {
            let (sep, cls) = (named(inner, "sep_token")?, named(inner, "cls_token")?);
            let prefix = config.add_prefix_space.unwrap_or(false);
            let processor = RobertaProcessing::new(sep, cls).add_prefix_space(prefix);
            inner.with_post_processor(Some(processor));
        }
        _ => {}
    }
    Ok(())
}

/// Puts these tokens around texts and pairs.
fn set_template(
    inner: &mut tokenizers::Tokenizer,
    single: Vec<String>,
    pair: Vec<String>,
    tokens: Vec<(String, u32)>,
) -> tokenizers::Result<()> {
    let mut template = TemplateProcessing::builder();
    template.try_single(single)?.try_pair(pair)?;
    inner.with_post_processor(Some(template.special_tokens(tokens).build()?));
    Ok(())
}

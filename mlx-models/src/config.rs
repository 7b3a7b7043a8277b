//! Reading `config.json`: every key is read, is known to have no effect, or is reported.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use mlx_core::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

mod bits;
mod json;
pub(crate) mod keys;
pub mod plan;
pub mod quantization;
pub mod rope;
mod source;
pub(crate) mod text;

pub use bits::Bits;
pub use json::parse;
pub use source::Source;
pub(crate) use source::{OF_OTHER_TOWER, TOKEN_MAP};

/// Keys that do not change what inference computes.
const IGNORED: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "boi_token_index",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eoi_token_index",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "head_dim_original",
    "id2label",
    "image_token_index",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "max_position_embeddings",
    "min_length",
    "mm_tokens_per_image",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "quantization",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "vision_config",
];

/// A JSON object that records which of its keys were read.
#[derive(Clone, Debug)]
pub struct Config {
    place: String,
    map: Map<String, Value>,
    /// The keys that were read. Copies of the config share the set.
    read: Rc<RefCell<BTreeSet<String>>>,
}

impl Config {
    /// Wraps a parsed `config.json`.
    ///
    /// # Errors
    /// The JSON value is not an object.
    pub fn new(place: &str, value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self {
                place: place.to_owned(),
                map,
                read: Rc::default(),
            }),
            _ => Err(Error::new(
                ErrorKind::Format,
                format!("{place}: expected a JSON object"),
            )),
        }
    }

    /// An error about this document.
    pub fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Format, format!("{}: {message}", self.place))
    }

    /// An error about something that this version does not support.
    pub fn unsupported(&self, message: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Unsupported, format!("{}: {message}", self.place))
    }

    /// The value of `key`; null counts as absent.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(key.to_owned());
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The value of `key`, without counting it as read.
    pub(crate) fn raw(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The same object, in which keys also have other names: `(key, other name)`. The key takes precedence.
    pub fn with_aliases(&self, aliases: &[(&str, &str)]) -> Self {
        let mut aliased = self.clone();
        for &(key, alias) in aliases {
            let given = self.value(key).is_none().then(|| self.value(alias));
            if let Some(value) = given.flatten() {
                aliased.map.insert(key.to_owned(), value.clone());
            }
        }
        aliased
    }

    /// The config without these keys, which have no effect in a family although others have them.
    pub(crate) fn without(&self, keys: &[&str]) -> Self {
        self.ignore(keys);
        let mut left = self.clone();
        for &key in keys {
            left.map.shift_remove(key);
        }
        left
    }

    /// Replaces the value of `key`, for instance by the value that follows from the checkpoint's
    /// tensors.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.map.insert(key.to_owned(), value);
    }

    /// Whether the object has `key` and its value is null.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// The object at `key`. Its messages name the key.
    ///
    /// # Errors
    /// The value is no object.
    pub fn object(&self, key: &str) -> Result<Option<Config>> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => Config::new(&format!("{}: {key}", self.place), value.clone()).map(Some),
        }
    }

    /// An object with these entries, for a config without `key`. Its messages name the key.
    pub fn part<const N: usize>(&self, key: &str, entries: [(&str, Value); N]) -> Config {
        Config {
            place: format!("{}: {key}", self.place),
            map: entries
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            read: Rc::default(),
        }
    }

    /// Adds the keys of another object. A key that both have takes the other object's value.
    pub fn update(&mut self, other: Config) {
        self.map.extend(other.map);
    }

    /// The value of `key`; `None` if the key is absent or null.
    ///
    /// # Errors
    /// The value has another type.
    pub fn opt<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => T::deserialize(value)
                .map(Some)
                .map_err(|error| self.error(format!("{key}: {error} (found {})", short(value)))),
        }
    }

    /// The value of `key`, or `default` if the key is absent or null.
    ///
    /// # Errors
    /// The value has another type.
    pub fn or<T: DeserializeOwned>(&self, key: &str, default: T) -> Result<T> {
        Ok(self.opt(key)?.unwrap_or(default))
    }

    /// The value of `key`, which the config must have.
    ///
    /// # Errors
    /// The key is absent or null, or the value has another type.
    pub fn required<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        self.opt(key)?
            .ok_or_else(|| self.error(format!("{key} is missing")))
    }

    /// A size: a whole number from 1 to 2^24.
    ///
    /// # Errors
    /// The key is absent and has no default, or its value is not such a number.
    pub fn size(&self, key: &str, default: Option<i32>) -> Result<i32> {
        const LIMIT: i64 = 1 << 24;
        let value: i64 = match self.opt(key)? {
            Some(value) => value,
            None if self.is_null(key) => {
                return Err(self.error(format!("{key} must be a number, found null")));
            }
            None => default
                .map(i64::from)
                .ok_or_else(|| self.error(format!("{key} is missing")))?,
        };
        if !(1..=LIMIT).contains(&value) {
            return Err(self.error(format!("{key} must be in 1..={LIMIT}, found {value}")));
        }
        Ok(value as i32)
    }

    /// A positive finite number.
    ///
    /// # Errors
    /// The key is absent and has no default, or its value is not such a number.
    pub fn positive(&self, key: &str, default: Option<f64>) -> Result<f64> {
        let value = match self.opt::<f64>(key)? {
            Some(value) => value,
            None => default.ok_or_else(|| self.error(format!("{key} is missing")))?,
        };
        if !(value.is_finite() && value > 0.0) {
            return Err(self.error(format!("{key} must be a positive number, found {value}")));
        }
        Ok(value)
    }

    /// All keys.
    pub fn keys(&self) -> Vec<String> {
        self.map.keys().cloned().collect()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Marks keys that a family ignores as read.
    pub fn ignore(&self, keys: &[&str]) {
        self.read
            .borrow_mut()
            .extend(keys.iter().map(|&key| key.to_owned()));
    }

    /// The keys that were not read and are not known to have no effect.
    pub fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        // A null has no effect.
        let unread = |(key, value): &(&String, &Value)| {
            !value.is_null() && !read.contains(*key) && !IGNORED.contains(&key.as_str())
        };
        self.map
            .iter()
            .filter(unread)
            .map(|(key, _)| key.clone())
            .collect()
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

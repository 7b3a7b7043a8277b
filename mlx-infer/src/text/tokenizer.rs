//! Text to ids and back, with the ids that transformers gives.
//!
//! The `tokenizers` crate does the work. This module prepares its input: the checkpoint's pipeline ([`pipeline`]), its
//! special tokens ([`config`]), and the ids that end a text.

mod absent;
mod auto;
mod blame;
mod checks;
mod classes;
mod config;
mod convert;
mod eos;
mod least;
mod pipeline;
mod quiet;
mod steps;
mod trie;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use serde_json::{Map, Value};
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{
    AddedToken, Decoder, DecoderWrapper, ModelWrapper, PostProcessor, TruncationParams,
};

use self::classes::{Class, class_defaults, class_in};
use self::config::{ConfigToken, TokenizerConfig, object};
use self::least::Least;
use self::pipeline::TokenizerJson;
use self::quiet::quietly;
use self::trie::Trie;
use crate::error::{Error, Result};
use crate::text::detokenize::{Detokenizer, Steps, byte_level};
use crate::text::files::{Files, MAX_TOKENIZER_BYTES};

pub(crate) use self::absent::is_readable;
pub(crate) use self::config::kind as json_kind;
pub(crate) use self::convert::gguf;

const FILE: &str = "tokenizer.json";

/// The ids that end a text, for a checkpoint without a tokenizer.
pub(crate) fn eos_ids(files: &Files) -> Result<Vec<u32>> {
    eos::ids(
        files,
        &object(files, "config.json")?.unwrap_or_default(),
        None,
    )
}

/// A checkpoint's tokenizer. Clones share it.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    tokenizers: tokenizers::Tokenizer,
    /// Name (`bos_token`, …) and text of each named special token, for templates.
    named: Vec<(String, String)>,
    bos_id: Option<u32>,
    eos_ids: Vec<u32>,
    clean_up: bool,
    steps: Steps,
    /// Whether the decoder, or a step of it, reads characters that stand for bytes.
    is_byte_level: bool,
    /// Finds the tokens of texts in place of the tokenizer's model, if there is one.
    trie: Option<Trie>,
    least: OnceLock<Option<Least>>,
    /// The location of tokenizer.json, for messages.
    place: String,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and the files that belong to it: `tokenizer_config.json`, `special_tokens_map.json`,
    /// `added_tokens.json`, and the ids that end a text from `config.json` and `generation_config.json`. Without
    /// `tokenizer.json`, one of `tekken.json`, `tiktoken.model` and SentencePiece's `tokenizer.model` is converted, as
    /// in transformers, or RWKV's vocabulary is read, as by its Python code.
    ///
    /// # Errors
    /// None of these files exists, one of them is malformed, or they need a feature that is not
    /// supported.
    pub fn load(files: &Files) -> Result<Self> {
        let model_config = object(files, "config.json")?.unwrap_or_default();
        if let Some(bytes) = files.read(FILE)? {
            let place = files.locate(FILE);
            let json = TokenizerJson::parse(&bytes, &place)?;
            checks::check(&json, &bytes, &place)?;
            let config = TokenizerConfig::load(files, &json.added_tokens(&place)?)?;
            let class = class_in(&config, &model_config, contains(&bytes, b"\"ByteLevel\""))
                .map_err(|what| Error::unsupported(format!("{}: {what}", files.describe())))?;
            return Self::build(
                files,
                &model_config,
                (&json, &bytes, place),
                class,
                config,
                None,
            );
        }
        let Some((name, original)) = convert::find(files)? else {
            return Err(absent::error(files)?);
        };
        let place = files.locate(name);
        let mut config = TokenizerConfig::load(files, &[])?;
        let class = class_in(&config, &model_config, false);
        let mut converted = convert::convert((name, &original), class, &config, &place)?;
        converted.complete(&mut config);
        let text = std::mem::take(&mut converted.json);
        let json = TokenizerJson::parse(text.as_bytes(), &place)?;
        checks::check(&json, text.as_bytes(), &place)?;
        let class = converted.class;
        let parts = (&json, text.as_bytes(), place);
        Self::build(files, &model_config, parts, class, config, Some(converted))
    }

    /// Reads one file in the format of `tokenizer.json`, and no other: the tokenizer knows its special tokens, and not
    /// which of them end a text. [`load`](Self::load) reads a checkpoint's other files too.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::Tokenizer;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("words.json");
    /// # std::fs::write(&path, mlx_infer::default_model_files().read("tokenizer.json")?.unwrap()).unwrap();
    /// let tokenizer = Tokenizer::from_file(&path)?;
    /// let ids = tokenizer.encode("The red fox", false)?;
    /// assert_eq!(tokenizer.decode(&ids, true)?, "The red fox");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The file is missing, malformed, or asks for something that is not supported.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = mlx_core::files::read(path, MAX_TOKENIZER_BYTES)?;
        let name = path.display().to_string();
        Self::load(&Files::given(name, [(FILE, bytes)]))
    }

    /// Builds the tokenizer of a tokenizer.json (parsed, as text, and its location), or of a file
    /// that was `converted`.
    fn build(
        files: &Files,
        model_config: &Map<String, Value>,
        (json, bytes, place): (&TokenizerJson<'_>, &[u8], String),
        class: Class,
        mut config: TokenizerConfig,
        converted: Option<convert::Converted>,
    ) -> Result<Self> {
        for (name, content) in class_defaults(class) {
            config.default_named(name, content);
        }
        if let Some(content) = json.pad_token() {
            config.default_named("pad_token", &content);
        }
        let is_rebuilt = class != Class::Serialized;
        let built = match is_rebuilt {
            false => quietly(|| tokenizers::Tokenizer::from_bytes(bytes)),
            true => {
                let text = json.rebuild(class, &config, &place)?;
                quietly(|| tokenizers::Tokenizer::from_bytes(text))
            }
        };
        let mut inner = built.map_err(|fault| {
            let part = blame::reading(json, bytes, is_rebuilt).unwrap_or(fault.what);
            Error::format(format!("{place}: {part}"))
        })?;
        let added = quietly(|| {
            inner.with_truncation(None)?;
            inner.with_padding(None);
            inner.set_encode_special_tokens(config.split_special);
            if let Some(converted) = &converted {
                inner.add_tokens(converted.added.clone())?;
            }
            add_tokens(&mut inner, class, &config)?;
            match &converted {
                Some(converted) => converted.post_process(&mut inner, &config),
                None => pipeline::post_process(&mut inner, class, &config),
            }
        });
        added.map_err(|fault| {
            let part = || blame::reading(json, bytes, is_rebuilt);
            fault.error(&place, part)
        })?;
        let named = named_contents(&config);
        let id_of = |name: &str| {
            config
                .named_content(name)
                .and_then(|text| inner.token_to_id(text))
        };
        let bos_id = id_of("bos_token");
        let eos_ids = eos::ids(files, model_config, id_of("eos_token"))?;
        let is_bpe = matches!(inner.get_model(), ModelWrapper::BPE(_));
        let clean_up = config.clean_up && (!is_bpe || config.clean_up_bpe);
        let steps = Steps::of(&inner, clean_up)?;
        let is_byte_level = is_byte_level(&inner);
        Ok(Self(Arc::new(Inner {
            tokenizers: inner,
            named,
            bos_id,
            eos_ids,
            clean_up,
            steps,
            is_byte_level,
            trie: converted.and_then(|converted| converted.trie),
            least: OnceLock::new(),
            place,
        })))
    }

    /// The ids of a text. With `add_special` the tokens that the tokenizer puts around texts (such as `<bos>`) are
    /// added; without it only those that the text itself contains.
    ///
    /// # Errors
    /// The tokenizer refuses the text, for instance a word outside of a vocabulary without an
    /// unknown token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let inner = &self.0.tokenizers;
        let encoded = quietly(|| match &self.0.trie {
            Some(trie) => {
                let encoding = inner.post_process(trie.encode(inner, text)?, None, add_special)?;
                Ok(encoding.get_ids().to_vec())
            }
            None => Ok(inner.encode_fast(text, add_special)?.get_ids().to_vec()),
        });
        encoded.map_err(|fault| fault.error("encode", || self.blamed(blame::encoding(inner, text))))
    }

    /// The ids and token types of a text, or of a pair of texts, with the tokens that the tokenizer
    /// puts around them. They have at most `most` tokens: what is left over is cut from the end of
    /// the text, or of the longer text of the pair.
    ///
    /// # Errors
    /// The tokenizer refuses a text, or `most` leaves no room for a text.
    pub(crate) fn encode_cut(
        &self,
        text: &str,
        pair: Option<&str>,
        most: usize,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let inner = &self.0.tokenizers;
        let around = inner
            .get_post_processor()
            .map_or(0, |processor| processor.added_tokens(pair.is_some()));
        if most <= around {
            let message =
                format!("{most} tokens leave no room for a text: {around} are put around it");
            return Err(Error::argument(message));
        }
        let encoded = quietly(|| {
            let encode = |text: &str| match &self.0.trie {
                Some(trie) => trie.encode(inner, text),
                None => inner.encode(text, false),
            };
            let first = encode(text)?;
            let second = pair.map(encode).transpose()?;
            let cut = TruncationParams {
                max_length: most - around,
                ..TruncationParams::default()
            };
            let (first, second) = truncate_encodings(first, second, &cut)?;
            inner.post_process(first, second, true)
        });
        let encoding = encoded
            .map_err(|fault| fault.error("encode", || self.blamed(blame::encoding(inner, text))))?;
        Ok((
            encoding.get_ids().to_vec(),
            encoding.get_type_ids().to_vec(),
        ))
    }

    /// The ids of many texts, encoded on all cores; the same as [`Tokenizer::encode`] of each.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`], for the first text with an error.
    pub fn encode_batch<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        add_special: bool,
    ) -> Result<Vec<Vec<u32>>> {
        texts
            .par_iter()
            .map(|text| self.encode(text.as_ref(), add_special))
            .collect()
    }

    /// The text of ids. With `skip_special`, special tokens are left out. Ids outside of the
    /// vocabulary are always left out.
    ///
    /// # Errors
    /// The decoder refuses the tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        // Some decoders of the tokenizers crate fail for an empty list.
        if ids
            .iter()
            .all(|id| self.token_for_decoding(*id, skip_special).is_none())
        {
            return Ok(String::new());
        }
        let inner = &self.0.tokenizers;
        let tokens = || -> Vec<String> {
            let token = |&id: &u32| self.token_to_decode(id, skip_special);
            ids.iter().filter_map(token).collect()
        };
        let decoded = quietly(|| match inner.get_decoder() {
            Some(decoder) => decoder.decode(tokens()),
            None => Ok(tokens().join(" ")),
        });
        let text = decoded.map_err(|fault| {
            let tokens = tokens();
            fault.error("decode", || self.blamed(blame::decoding(inner, tokens)))
        })?;
        Ok(if self.0.clean_up {
            clean_up(&text)
        } else {
            text
        })
    }

    /// A description of the part of the file and its fault.
    fn blamed(&self, found: Option<(String, String)>) -> Option<String> {
        found.map(|(part, what)| format!("{}: {part}: {what}", self.0.place))
    }

    /// A decoder that returns the text of ids as they arrive.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special)
    }

    /// The token of an id, as the vocabulary spells it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.token_for_decoding(id, false)
    }

    /// The id of a token, as the vocabulary spells it.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.tokenizers.token_to_id(token)
    }

    /// The number of ids, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.0.tokenizers.get_vocab_size(true)
    }

    /// The token that starts a text, if the tokenizer names one.
    pub fn bos_id(&self) -> Option<u32> {
        self.0.bos_id
    }

    /// The ids that end a text: those of generation_config.json, or if it names none, those of
    /// config.json (or its `text_config`); and the tokenizer's `eos_token`.
    pub fn eos_ids(&self) -> &[u32] {
        &self.0.eos_ids
    }

    /// Whether a token is special: a mark for the model, not text.
    pub fn is_special(&self, token: &str) -> bool {
        self.0
            .tokenizers
            .get_added_vocabulary()
            .is_special_token(token)
    }

    /// The texts of all special tokens.
    pub(crate) fn special_texts(&self) -> Vec<String> {
        let added = self.0.tokenizers.get_added_tokens_decoder();
        let special = added.values().filter(|token| token.special);
        special.map(|token| token.content.clone()).collect()
    }

    /// The least number of tokens that a text can have, without tokenising it. It is 0 for
    /// tokenizers that can drop text.
    #[cfg_attr(not(feature = "serve"), expect(dead_code, reason = "the server asks"))]
    pub(crate) fn least_tokens(&self, text: &str) -> usize {
        let least = self.0.least.get_or_init(|| Least::of(&self.0.tokenizers));
        least.map_or(0, |least| least.tokens(text))
    }

    /// The special tokens whose text is in one of these texts.
    pub(crate) fn special_in(&self, texts: &[String]) -> Vec<u32> {
        if texts.is_empty() {
            return Vec::new();
        }
        let added = self.0.tokenizers.get_added_tokens_decoder();
        let is_in = |content: &str| texts.iter().any(|text| text.contains(content));
        let found = added.iter().filter(|(_, token)| {
            token.special && !token.content.is_empty() && is_in(&token.content)
        });
        found.map(|(&id, _)| id).collect()
    }

    /// Name and text of the named special tokens (`bos_token`, …), which chat templates may use.
    pub fn special_tokens(&self) -> &[(String, String)] {
        &self.0.named
    }

    pub(crate) fn steps(&self) -> &Steps {
        &self.0.steps
    }

    /// Like [`token_for_decoding`](Self::token_for_decoding), but in the form that the decoder
    /// reads. An added token is a text, and a byte-level decoder would take some of its letters for
    /// bytes: `č` for a carriage return. If the model's vocabulary has the token under the same id,
    /// it is not changed.
    pub(crate) fn token_to_decode(&self, id: u32, skip_special: bool) -> Option<String> {
        let token = self.token_for_decoding(id, skip_special)?;
        if !self.0.is_byte_level {
            return Some(token);
        }
        let of_model = tokenizers::Model::id_to_token(self.0.tokenizers.get_model(), id);
        match of_model.as_ref() == Some(&token) {
            true => Some(token),
            false => Some(byte_level(&token)),
        }
    }

    /// The token for decoding an id: added tokens take precedence over the model's.
    pub(crate) fn token_for_decoding(&self, id: u32, skip_special: bool) -> Option<String> {
        let added = self
            .0
            .tokenizers
            .get_added_vocabulary()
            .simple_id_to_token(id);
        let token =
            added.or_else(|| tokenizers::Model::id_to_token(self.0.tokenizers.get_model(), id))?;
        if skip_special && self.is_special(&token) {
            None
        } else {
            Some(token)
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("named", &self.0.named)
            .field("eos_ids", &self.0.eos_ids)
            .finish_non_exhaustive()
    }
}

/// Adds the tokens of the configuration that the pipeline does not have. The order determines new ids.
fn add_tokens(
    inner: &mut tokenizers::Tokenizer,
    class: Class,
    config: &TokenizerConfig,
) -> tokenizers::Result<()> {
    let known = inner.get_added_tokens_decoder();
    let mut by_content: HashMap<&str, Vec<&AddedToken>> = HashMap::new();
    for token in known.values() {
        by_content.entry(&token.content).or_default().push(token);
    }
    let is_known = |token: &AddedToken| {
        let found = by_content.get(token.content.as_str());
        found.is_some_and(|found| found.contains(&token))
    };
    let mut missing: Vec<AddedToken> = config
        .added
        .values()
        .filter(|token| !is_known(token))
        .cloned()
        .collect();
    let mut contents: HashSet<String> = known.values().map(|token| token.content.clone()).collect();
    contents.extend(missing.iter().map(|token| token.content.clone()));
    let named = config.named.iter().filter_map(|(_, token)| token.as_ref());
    let is_named = |content: &str| {
        config
            .named
            .iter()
            .any(|(_, token)| token.as_ref().is_some_and(|t| t.content() == content))
    };
    for token in named.clone().chain(&config.extra) {
        if contents.insert(token.content().to_owned()) {
            missing.push(match token {
                ConfigToken::Text(text) => AddedToken::from(text.clone(), true),
                ConfigToken::Full(full) => full.clone(),
            });
        }
    }
    // A named token is special, even if the file says that it is not.
    let ordinary = known.values().filter(|token| !token.special);
    let named_only: Vec<AddedToken> = ordinary
        .filter(|token| is_named(&token.content))
        .filter(|token| missing.iter().all(|other| other.content != token.content))
        .cloned()
        .collect();
    missing.extend(named_only);
    for token in &mut missing {
        token.special |= is_named(&token.content);
    }
    inner.add_tokens(missing)?;
    if class == Class::Qwen2 {
        // The class adds its special tokens once more, without matching options.
        let plain = |token: &ConfigToken| AddedToken::from(token.content(), true);
        inner.add_tokens(named.chain(&config.extra).map(plain).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn is_byte_level(tokenizer: &tokenizers::Tokenizer) -> bool {
    fn reads_bytes(decoder: &DecoderWrapper) -> bool {
        match decoder {
            DecoderWrapper::ByteLevel(_) => true,
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(reads_bytes),
            _ => false,
        }
    }
    tokenizer.get_decoder().is_some_and(reads_bytes)
}

fn contains(text: &[u8], sought: &[u8]) -> bool {
    text.windows(sought.len()).any(|window| window == sought)
}

fn named_contents(config: &TokenizerConfig) -> Vec<(String, String)> {
    let pairs = config.named.iter();
    pairs
        .filter_map(|(name, token)| Some((name.clone(), token.as_ref()?.content().to_owned())))
        .collect()
}

/// Removes the spaces that word-piece vocabularies put before punctuation (transformers' `clean_up_tokenization`).
pub(crate) fn clean_up(text: &str) -> String {
    let pairs = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    pairs
        .into_iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

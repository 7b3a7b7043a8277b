//! A tokenizer and its templates as metadata of GGUF: the inverse of [`files`](super::files).

use std::collections::{BTreeMap, HashMap};

use mlx_core::gguf::Value as Stored;
use serde_json::Value;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::words::Words;
use super::{CONTROL, NORMAL, PREFIX, UNKNOWN, USER_DEFINED};
use crate::error::{Error, Result};
use crate::text::tokenizer::Tokenizer;
use crate::text::tokenizer::quiet::quietly;

const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Texts that tokenizers split in different ways, from which those of GGUF are told apart. None begins with a space:
/// llama.cpp and transformers disagree there for pieces.
const TEXTS: [&str; 14] = [
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure you'll say it's John's; WE'LL SEE, they've gone. don't!",
    "1 12 123 1234 12345 3.14159 2026-11-27 0x1F",
    "a1b22c333 x_y camelCase HTTPServer snake_case_NAME",
    "tabs\tand\nlines\n\n\nmore\r\nend  two   three    four     ",
    "!!! ??? ... --- === ##### /* c */ // x\n\n}\n];",
    "über Straße naïve Café e\u{301}te\u{301} n\u{303} \u{2126}",
    "Привет, мир! Ελληνικά עברית العربية हिन्दी ไทย",
    "世界你好，今天天气很好。日本語のテキスト カタカナ 한국어 문장",
    "👍🏽 🚀🚀 👨‍👩‍👧‍👦 ½ ² ≤ € £",
    "def f(x):\n    return x**2 + 3\n\n\nclass A:\n\tpass\n",
    "<a href=\"https://example.org/?q=1&r=2\">link</a> {\"k\": [1, 2.5, null]}",
    "x=1;y='a' \"quoted text\" (parens) [brackets] $100,000.00 50% #tag @user",
    "\n\nText after lines ... 'S 'T 'RE 'll'd",
];

/// The metadata of a tokenizer for a model whose embedding has this number of rows. Ids without a token get one that no
/// text leads to.
///
/// # Errors
/// llama.cpp has no tokenizer with the same ids: the model is neither byte-level BPE nor SentencePiece's BPE, words are
/// split in another way than those that it has names for, or other tokens than a start and an end are put around texts.
pub(crate) fn metadata(
    tokenizer: &Tokenizer,
    templates: &BTreeMap<String, String>,
    rows: usize,
) -> Result<BTreeMap<String, Stored>> {
    let inner = &tokenizer.0.tokenizers;
    let json = inner.to_string(false).map_err(|error| {
        Error::unsupported(format!("the tokenizer cannot be written as JSON: {error}"))
    })?;
    let json: Value = serde_json::from_str(&json)
        .map_err(|error| Error::format(format!("the tokenizer's JSON: {error}")))?;
    let model = &json["model"];
    let is_pieces = model["byte_fallback"] == true;
    if model["type"] != "BPE" || !(is_pieces || tokenizer.0.is_byte_level) {
        return Err(Error::unsupported(format!(
            "a tokenizer of type {} cannot be written in GGUF; those that can: byte-level BPE, and BPE of SentencePiece's \
             pieces",
            model["type"]
        )));
    }
    let mut writer = Writer {
        tokenizer,
        rows,
        metadata: BTreeMap::new(),
    };
    let unknown = model["unk_token"].as_str();
    let (texts, kinds) = writer.tokens(is_pieces, unknown);
    let merges = merges(model)?;
    if is_pieces {
        writer.put("model", "llama");
        writer.put("pre", "default");
        writer.put("scores", scores(&texts, &kinds, &merges));
        let first = tokenizer.encode("a", false)?;
        let first = first.first().and_then(|&id| tokenizer.id_to_token(id));
        writer.put(
            "add_space_prefix",
            first.is_some_and(|text| text.starts_with('▁')),
        );
    } else {
        writer.put("model", "gpt2");
        writer.put("pre", writer.words()?.names[0]);
        let merges: Vec<String> = merges
            .into_iter()
            .map(|(left, right)| format!("{left} {right}"))
            .collect();
        writer.put("merges", merges);
    }
    writer.put("tokens", texts);
    writer.put("token_type", kinds);
    writer.special(unknown)?;
    let mut metadata = writer.metadata;
    const TEMPLATE: &str = "tokenizer.chat_template";
    let mut names = Vec::new();
    for (name, source) in templates {
        match name.as_str() {
            "default" => {
                metadata.insert(TEMPLATE.to_owned(), source.as_str().into());
            }
            name => {
                names.push(name.to_owned());
                metadata.insert(format!("{TEMPLATE}.{name}"), source.as_str().into());
            }
        }
    }
    if !names.is_empty() {
        metadata.insert("tokenizer.chat_templates".to_owned(), names.into());
    }
    Ok(metadata)
}

/// Compares a tokenizer with that of the file to which it was written.
///
/// # Errors
/// A text has other ids, or an id that ends texts is missing.
pub(crate) fn check(tokenizer: &Tokenizer, of_file: &Tokenizer) -> Result<()> {
    for text in TEXTS {
        let (expected, found) = (tokenizer.encode(text, true)?, of_file.encode(text, true)?);
        if expected != found {
            let at = expected
                .iter()
                .zip(&found)
                .take_while(|(a, b)| a == b)
                .count();
            return Err(Error::unsupported(format!(
                "the tokenizer has no counterpart in GGUF: {text:?} would have other ids from token {at} on ({:?} \
                 instead of {:?})",
                found.get(at).and_then(|&id| of_file.id_to_token(id)),
                expected.get(at).and_then(|&id| tokenizer.id_to_token(id)),
            )));
        }
    }
    let ends = tokenizer.eos_ids().iter();
    let missing = ends.copied().find(|id| !of_file.eos_ids().contains(id));
    match missing {
        None => Ok(()),
        Some(id) => Err(Error::unsupported(format!(
            "token {id} ends texts too, and GGUF has keys for three such tokens"
        ))),
    }
}

struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    rows: usize,
    metadata: BTreeMap<String, Stored>,
}

impl Writer<'_> {
    fn put(&mut self, key: &str, value: impl Into<Stored>) {
        self.metadata.insert(format!("{PREFIX}{key}"), value.into());
    }

    /// The text and the kind of each id.
    fn tokens(&self, is_pieces: bool, unknown: Option<&str>) -> (Vec<String>, Vec<i32>) {
        let added = self.tokenizer.0.tokenizers.get_added_tokens_decoder();
        let token = |id: u32| {
            let Some(text) = self.tokenizer.id_to_token(id) else {
                return (format!("[PAD{id}]"), UNUSED);
            };
            let kind = match added.get(&id) {
                _ if is_pieces && unknown == Some(text.as_str()) => UNKNOWN,
                Some(token) if token.special => CONTROL,
                Some(_) => USER_DEFINED,
                None if is_pieces && is_byte(&text) => BYTE,
                None => NORMAL,
            };
            (text, kind)
        };
        (0..self.rows as u32).map(token).unzip()
    }

    /// The way in which texts are split into words. Those whose other settings are the tokenizer's own come first.
    fn words(&self) -> Result<&'static Words> {
        let inner = &self.tokenizer.0.tokenizers;
        let ModelWrapper::BPE(bpe) = inner.get_model() else {
            return Err(Error::unsupported("the tokenizer is no BPE"));
        };
        let composes = inner.get_normalizer().is_some();
        let mut all: Vec<&'static Words> = Words::all().iter().collect();
        all.sort_by_key(|words| {
            (
                words.ignores_merges != bpe.ignore_merges,
                words.composes != composes,
            )
        });
        let expected: Result<Vec<_>> = TEXTS
            .iter()
            .map(|text| self.tokenizer.encode(text, false))
            .collect();
        let expected = expected?;
        let wrong = |error: serde_json::Error| Error::format(error.to_string());
        for words in all {
            let mut candidate = inner.clone();
            let mut bpe = bpe.clone();
            bpe.ignore_merges = words.ignores_merges;
            let splits: PreTokenizerWrapper =
                serde_json::from_value(words.pre_tokenizer()).map_err(wrong)?;
            let normalizer: Option<NormalizerWrapper> =
                serde_json::from_value(words.normalizer()).map_err(wrong)?;
            candidate.with_model(ModelWrapper::BPE(bpe));
            candidate.with_pre_tokenizer(Some(splits));
            candidate
                .with_normalizer(normalizer)
                .map_err(|error| Error::format(error.to_string()))?;
            let same = TEXTS.iter().zip(&expected).all(|(text, expected)| {
                let found = quietly(|| Ok(candidate.encode_fast(*text, false)?.get_ids().to_vec()));
                found.is_ok_and(|found| found == *expected)
            });
            if same {
                return Ok(words);
            }
        }
        Err(Error::unsupported(format!(
            "the tokenizer splits texts in a way that GGUF has no name for; known: {}",
            Words::names()
        )))
    }

    /// The named tokens, and those that are put around texts.
    fn special(&mut self, unknown: Option<&str>) -> Result<()> {
        let tokenizer = self.tokenizer;
        let named = |name: &str| {
            let mut named = tokenizer.special_tokens().iter();
            let found = named.find(|(found, _)| found == name);
            found.and_then(|(_, text)| tokenizer.token_to_id(text))
        };
        let eos = named("eos_token").or(tokenizer.eos_ids().first().copied());
        let mut ends = tokenizer.eos_ids().iter().copied();
        let mut other = || ends.find(|&id| Some(id) != eos);
        let ids = [
            ("bos_token_id", tokenizer.bos_id()),
            ("eos_token_id", eos),
            ("eot_token_id", other()),
            ("eom_token_id", other()),
            ("padding_token_id", named("pad_token")),
            (
                "unknown_token_id",
                named("unk_token").or(unknown.and_then(|text| tokenizer.token_to_id(text))),
            ),
        ];
        for (key, id) in ids {
            if let Some(id) = id.filter(|&id| (id as usize) < self.rows) {
                self.put(key, id);
            }
        }
        let (bare, around) = (tokenizer.encode("a", false)?, tokenizer.encode("a", true)?);
        let at = around
            .windows(bare.len().max(1))
            .position(|part| part == bare);
        let Some(at) = at else {
            return Err(Error::unsupported("special tokens change the ids of texts"));
        };
        let (before, after) = (&around[..at], &around[at + bare.len()..]);
        let adds_bos = !before.is_empty();
        let adds_eos = !after.is_empty();
        if (adds_bos && before != tokenizer.bos_id().as_slice())
            || (adds_eos && after != eos.as_slice())
        {
            return Err(Error::unsupported(format!(
                "the tokens {before:?} and {after:?} are put around texts; GGUF has keys for bos_token and eos_token"
            )));
        }
        self.put("add_bos_token", adds_bos);
        self.put("add_eos_token", adds_eos);
        Ok(())
    }
}

/// The pairs that are joined, in their order.
fn merges(model: &Value) -> Result<Vec<(String, String)>> {
    let wrong = |found: &Value| Error::format(format!("the tokenizer's merge {found} is no pair"));
    let pair = |merge: &Value| {
        let pair = match merge {
            Value::String(text) => text.split_once(' '),
            other => other[0].as_str().zip(other[1].as_str()),
        };
        let (left, right) = pair.ok_or_else(|| wrong(merge))?;
        Ok((left.to_owned(), right.to_owned()))
    };
    let merges = model["merges"].as_array();
    merges.into_iter().flatten().map(pair).collect()
}

/// SentencePiece's scores: the earlier a merge makes a piece, the higher; pieces that no merge makes come last.
fn scores(texts: &[String], kinds: &[i32], merges: &[(String, String)]) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let score = |(text, &kind): (&String, &i32)| match (kind, ranks.get(text)) {
        (NORMAL, Some(&rank)) => -(rank as f32),
        (NORMAL, None) => -(merges.len() as f32),
        _ => 0.0,
    };
    texts.iter().zip(kinds).map(score).collect()
}

/// Whether a piece is one byte, such as `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| {
        digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

//! Byte-level vocabularies with ranks: tiktoken's files, and Mistral's tekken.json.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use super::super::classes::Class;
use super::super::config::{ConfigToken, TokenizerConfig};
use super::{Converted, merges};

/// The pattern that transformers uses for files without one.
const WORDS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The most special tokens of a tekken.json, and the most ids after the vocabulary for those of a
/// tiktoken file.
const MAX_SPECIAL: usize = 1 << 17;

/// Whether each line of the file is a token in base64 and its rank.
pub(super) fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    line_of(line).is_some()
}

fn line_of(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let mut parts = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let token = STANDARD.decode(parts.next()?).ok()?;
    let rank = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((token, rank))
}

/// Converts a file of tiktoken. The special tokens are those of the configuration. Their ids come
/// after the vocabulary.
pub(super) fn tiktoken(bytes: &[u8], config: &TokenizerConfig) -> Result<Converted, String> {
    let mut ranks = Vec::new();
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if !line.trim_ascii().is_empty() {
            let read = line_of(line);
            ranks.push(read.ok_or_else(|| {
                format!(
                    "line {}: expected a token in base64 and its rank",
                    number + 1
                )
            })?);
        }
    }
    let base = ranks.len();
    let mut special: Vec<String> = Vec::new();
    if let Some((&last, _)) = config
        .added
        .last_key_value()
        .filter(|&(&last, _)| last as usize >= base)
    {
        if last as usize - base > MAX_SPECIAL {
            return Err(format!(
                "an added token has the id {last}, far behind the {base} tokens of the vocabulary"
            ));
        }
        let name = |id: u32| match config.added.get(&id) {
            Some(token) => token.content.clone(),
            None => format!("<|reserved_token_{id}|>"),
        };
        special.extend((base as u32..=last).map(name));
    }
    let known: HashSet<String> = special.iter().cloned().collect();
    let extra = config.extra.iter().map(ConfigToken::content);
    special.extend(
        extra
            .filter(|token| !known.contains(*token))
            .map(str::to_owned),
    );
    converted(&ranks, 0, WORDS, special)
}

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: Option<usize>,
    default_num_special_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct TekkenToken {
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: usize,
    token_str: String,
}

/// Converts Mistral's file. The ids of its special tokens come before the vocabulary.
pub(super) fn tekken(bytes: &[u8]) -> Result<Converted, String> {
    let file: Tekken =
        serde_json::from_slice(bytes).map_err(|error| format!("not a tekken file: {error}"))?;
    let Some(mut special) = file.special_tokens else {
        return Err(
            "special_tokens is missing; in such older files they are known to mistral-common alone: convert it there to tokenizer.json".to_owned(),
        );
    };
    special.sort_by(|a, b| (a.rank, &a.token_str).cmp(&(b.rank, &b.token_str)));
    if let Some((at, token)) = special
        .iter()
        .enumerate()
        .find(|(at, token)| token.rank != *at)
    {
        return Err(format!(
            "special_tokens: the ranks must be 0, 1, 2 and so on; {:?} has {} in place {at}",
            token.token_str, token.rank
        ));
    }
    let count = file
        .config
        .default_num_special_tokens
        .unwrap_or(special.len());
    if count > MAX_SPECIAL {
        return Err(format!(
            "default_num_special_tokens must be at most {MAX_SPECIAL}, given {count}"
        ));
    }
    let fillers = (special.len()..count).map(|id| format!("<SPECIAL_{id}>"));
    let special: Vec<String> = special
        .iter()
        .map(|token| token.token_str.clone())
        .chain(fillers)
        .collect();
    let mut vocab = file.vocab;
    if let Some(size) = file.config.default_vocab_size {
        // Entries beyond the size are padding, which is left out.
        vocab.truncate(size.saturating_sub(count));
    }
    let decode = |(at, token): (usize, TekkenToken)| {
        let bytes = STANDARD.decode(token.token_bytes);
        let bytes = bytes.map_err(|_| format!("vocab[{at}]: token_bytes is not base64"))?;
        Ok((bytes, at as u32))
    };
    let ranks = vocab
        .into_iter()
        .enumerate()
        .map(decode)
        .collect::<Result<Vec<_>, String>>()?;
    converted(&ranks, count as u32, &file.config.pattern, special)
}

/// The tokenizer of a vocabulary whose ids begin at `first`. Special tokens without an id before
/// the vocabulary get ids after it.
fn converted(
    ranks: &[(Vec<u8>, u32)],
    first: u32,
    words: &str,
    special: Vec<String>,
) -> Result<Converted, String> {
    let letters = letters();
    let text = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|&byte| letters[byte as usize])
            .collect::<String>()
    };
    let tokens = ranks.iter().map(|(token, rank)| (token.as_slice(), *rank));
    let merges = merges::of(tokens, |token| 1..token.len())?;
    let merges: Vec<Value> = merges
        .iter()
        .map(|&(left, right, _)| json!([text(left), text(right)]))
        .collect();
    let mut vocab = Map::new();
    for (token, rank) in ranks {
        let id = rank
            .checked_add(first)
            .ok_or_else(|| format!("the rank {rank} is too large"))?;
        vocab.insert(text(token), id.into());
    }
    if first > 0 {
        vocab.extend(
            special
                .iter()
                .zip(0u32..)
                .map(|(token, id)| (token.clone(), id.into())),
        );
    }
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": true, "vocab": vocab, "merges": merges,
        },
    });
    Ok(Converted {
        json: json.to_string(),
        // The pipeline is the one in this text, for every class.
        class: Class::Serialized,
        added: special
            .into_iter()
            .map(|token| AddedToken::from(token, true))
            .collect(),
        named: Vec::new(),
        extra: Vec::new(),
        has_ends: false,
        trie: None,
    })
}

/// The letter that represents each byte. Printable bytes are represented by their own letters, the
/// others in order by those from U+0100 on.
pub(super) fn letters() -> [char; 256] {
    let mut others = 0x100..;
    std::array::from_fn(|byte| match byte as u8 {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => others
            .next()
            .and_then(char::from_u32)
            .expect("there are 68 of them"),
    })
}

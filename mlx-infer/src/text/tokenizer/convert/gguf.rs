//! The tokenizer and the chat template in the metadata of a model in GGUF, as the files of a checkpoint.
//!
//! The ids are those of llama.cpp, which agree with those of transformers for the published tokenizers.

mod words;
pub(crate) mod write;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use mlx_core::gguf::{FromValue, Gguf};
use serde_json::{Map, Value, json};

use super::merges;
use crate::error::{Error, Result};
use words::Words;

/// The prefix of all keys.
const PREFIX: &str = "tokenizer.ggml.";

/// What `tokenizer.ggml.token_type` says of a token.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Texts of marks that end a turn. llama.cpp stops at them although files name one end at most.
const ENDS: [&str; 10] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|END_OF_TURN_TOKEN|>",
];
/// In OpenAI's format this mark ends a message within a turn.
const HARMONY_END: &str = "<|end|>";
const HARMONY_CALL: &str = "<|call|>";

type Files = BTreeMap<String, Vec<u8>>;

/// `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` of a model whose first file is `path`.
/// Without a tokenizer in the file there are none. `general.architecture` comes first.
///
/// # Errors
/// The file is malformed, or its tokenizer is not supported.
pub(in crate::text) fn files(path: &Path) -> Result<(String, Files)> {
    let file = Gguf::open(path)?;
    let tokens = Tokens::read(&file)?;
    let mut files = Files::new();
    let architecture: &str = file.value("general.architecture")?;
    let Some(tokens) = tokens else {
        return Ok((architecture.to_owned(), files));
    };
    let parts = match tokens.model {
        "gpt2" => tokens.byte_level()?,
        "llama" => tokens.pieces()?,
        other => {
            return Err(Error::unsupported(format!(
                "{}: {PREFIX}model {other:?} is not supported; supported: gpt2, llama",
                file.label()
            )));
        }
    };
    let mut put = |name: &str, value: Value| {
        files.insert(name.to_owned(), value.to_string().into_bytes());
    };
    put("tokenizer.json", tokens.json(parts)?);
    put("tokenizer_config.json", tokens.config()?);
    put(
        "generation_config.json",
        json!({"eos_token_id": tokens.ends()?}),
    );
    Ok((architecture.to_owned(), files))
}

/// The tokens of a file.
struct Tokens<'a> {
    file: &'a Gguf,
    /// `gpt2` for byte-level BPE, `llama` for SentencePiece.
    model: &'a str,
    texts: &'a [String],
    kinds: &'a [i32],
}

/// The parts of tokenizer.json that depend on the kind of tokenizer.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Map<String, Value>,
    adds_bos: bool,
    /// Tokens that no merges lead to.
    whole: HashSet<usize>,
}

impl<'a> Tokens<'a> {
    /// `None` if the file has no tokenizer.
    fn read(file: &'a Gguf) -> Result<Option<Self>> {
        let model: Option<&str> = file.find("tokenizer.ggml.model")?;
        let Some(model) = model.filter(|&model| model != "none") else {
            return Ok(None);
        };
        let texts: &[String] = file.value("tokenizer.ggml.tokens")?;
        let kinds: &[i32] = file.find("tokenizer.ggml.token_type")?.unwrap_or_default();
        if !kinds.is_empty() && kinds.len() != texts.len() {
            return Err(Error::format(format!(
                "{}: {PREFIX}token_type has {} elements, and {PREFIX}tokens {}",
                file.label(),
                kinds.len(),
                texts.len()
            )));
        }
        Ok(Some(Self {
            file,
            model,
            texts,
            kinds,
        }))
    }

    fn find<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        Ok(self.file.find(&format!("{PREFIX}{key}"))?)
    }

    /// What a token is. Known marks are special, whatever the file says.
    fn kind(&self, id: usize) -> Option<i32> {
        match self.texts.get(id) {
            Some(text) if ENDS.contains(&text.as_str()) => Some(CONTROL),
            _ => self.kinds.get(id).copied(),
        }
    }

    fn is(&self, id: usize, kind: i32) -> bool {
        self.kind(id) == Some(kind)
    }

    /// The token that a key names by its id. Without the keys SentencePiece's defaults apply.
    fn named(&self, key: &str) -> Result<Option<(u32, &'a str)>> {
        let usual = match (self.model, key) {
            ("llama", "unknown_token_id") => Some(0),
            ("llama", "bos_token_id") => Some(1),
            ("llama", "eos_token_id") => Some(2),
            _ => None,
        };
        let Some(id) = self.find::<u32>(key)?.or(usual) else {
            return Ok(None);
        };
        match self.texts.get(id as usize) {
            Some(text) => Ok(Some((id, text))),
            None => Err(Error::format(format!(
                "{}: {PREFIX}{key} is {id}, and there are {} tokens",
                self.file.label(),
                self.texts.len()
            ))),
        }
    }

    /// The vocabulary. Of equal texts the last has it, as in llama.cpp.
    fn vocabulary(&self) -> Map<String, Value> {
        let ids = self.texts.iter().cloned().zip(0u32..);
        ids.map(|(text, id)| (text, id.into())).collect()
    }

    fn byte_level(&self) -> Result<Parts> {
        let name = self.find::<&str>("pre")?.unwrap_or("default");
        let words = Words::named(name).ok_or_else(|| {
            Error::unsupported(format!(
                "{}: {PREFIX}pre {name:?} is not supported; supported: {}",
                self.file.label(),
                Words::names()
            ))
        })?;
        let known: HashSet<&str> = self.texts.iter().map(String::as_str).collect();
        let merges: &[String] = self.find("merges")?.unwrap_or_default();
        let mut pairs: Vec<Value> = Vec::with_capacity(merges.len());
        for (at, merge) in merges.iter().enumerate() {
            // A token may begin with a space.
            let cut = merge
                .char_indices()
                .skip(1)
                .find(|(_, letter)| *letter == ' ');
            let (left, right) = match cut {
                Some((cut, _)) => (&merge[..cut], &merge[cut + 1..]),
                None => {
                    return Err(Error::format(format!(
                        "{}: {PREFIX}merges: element {at}, {merge:?}, is not two tokens",
                        self.file.label()
                    )));
                }
            };
            let joined = format!("{left}{right}");
            if [left, right, joined.as_str()]
                .iter()
                .all(|part| known.contains(part))
            {
                pairs.push(json!([left, right]));
            }
        }
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": words.ignores_merges, "vocab": self.vocabulary(), "merges": pairs,
        });
        Ok(Parts {
            normalizer: words.normalizer(),
            pre_tokenizer: words.pre_tokenizer(),
            decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
            model: object(model),
            adds_bos: words.adds_bos,
            whole: HashSet::new(),
        })
    }

    /// SentencePiece's pieces: neighbours are joined to the piece with the highest score.
    fn pieces(&self) -> Result<Parts> {
        let wrong = |what: String| Error::format(format!("{}: {what}", self.file.label()));
        let scores: &[f32] = self.find("scores")?.unwrap_or_default();
        if scores.len() != self.texts.len() {
            return Err(wrong(format!(
                "{PREFIX}scores has {} elements, and {PREFIX}tokens {}",
                scores.len(),
                self.texts.len()
            )));
        }
        let mut order: Vec<usize> = (0..self.texts.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut ranks = vec![0u32; order.len()];
        for (rank, &id) in (0..).zip(&order) {
            ranks[id] = rank;
        }
        // Control tokens and unused ones are not made of pieces.
        let plain = |id: &usize| !(self.is(*id, CONTROL) || self.is(*id, UNKNOWN));
        let tokens = (0..self.texts.len()).filter(plain);
        let tokens = tokens.map(|id| (self.texts[id].as_bytes(), ranks[id]));
        let cuts = |token: &[u8]| {
            let is_start: Vec<bool> = token.iter().map(|byte| byte & 0xc0 != 0x80).collect();
            (1..token.len()).filter(move |&at| is_start[at])
        };
        let found = merges::of(tokens, cuts).map_err(wrong)?;
        let text = |part| std::str::from_utf8(part).expect("pieces are cut between characters");
        let pairs: Vec<Value> = found
            .iter()
            .map(|&(left, right, _)| json!([text(left), text(right)]))
            .collect();
        let unknown = self.named("unknown_token_id")?.map(|(_, text)| text);
        let prefix = self.find("add_space_prefix")?.unwrap_or(true);
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let normalizer = match prefix {
            true => {
                json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]})
            }
            false => spaces,
        };
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": self.vocabulary(), "merges": pairs,
        });
        Ok(Parts {
            normalizer,
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model: object(model),
            adds_bos: true,
            whole: self.whole(),
        })
    }

    /// Pieces of two letters of which one is no piece itself. llama.cpp joins any neighbours; merges join tokens.
    fn whole(&self) -> HashSet<usize> {
        let one = self.texts.iter().filter_map(|text| {
            let mut letters = text.chars();
            letters.next().filter(|_| letters.as_str().is_empty())
        });
        let letters: HashSet<char> = one.collect();
        let is_whole = |&id: &usize| {
            let text = &self.texts[id];
            self.is(id, NORMAL)
                && text.chars().count() == 2
                && text.chars().any(|letter| !letters.contains(&letter))
        };
        (0..self.texts.len()).filter(is_whole).collect()
    }

    /// tokenizer.json.
    fn json(&self, parts: Parts) -> Result<Value> {
        let added = |(id, text): (usize, &String)| {
            let special = match self.kind(id) {
                Some(CONTROL | UNKNOWN) => true,
                Some(USER_DEFINED) => false,
                _ if parts.whole.contains(&id) => false,
                _ => return None,
            };
            let token = json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            });
            Some(token).filter(|_| !text.is_empty())
        };
        let added: Vec<Value> = self.texts.iter().enumerate().filter_map(added).collect();
        let adds = |key: &str, usual: bool| self.find(key).map(|found| found.unwrap_or(usual));
        let bos = match adds("add_bos_token", parts.adds_bos)? {
            true => self.named("bos_token_id")?,
            false => None,
        };
        let eos = match adds("add_eos_token", false)? {
            true => self.named("eos_token_id")?,
            false => None,
        };
        let special = |token: Option<(u32, &str)>, kind: u32| {
            token.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": kind}}))
        };
        let around = |kind: u32, sequence: &str| {
            let text = json!({"Sequence": {"id": sequence, "type_id": kind}});
            let parts = [special(bos, kind), Some(text), special(eos, kind)];
            parts.into_iter().flatten().collect::<Vec<_>>()
        };
        let specials: Map<String, Value> = [bos, eos]
            .into_iter()
            .flatten()
            .map(|(id, text)| {
                (
                    text.to_owned(),
                    json!({"id": text, "ids": [id], "tokens": [text]}),
                )
            })
            .collect();
        let post_processor = match specials.is_empty() {
            true => Value::Null,
            false => {
                let pair = [around(0, "A"), around(1, "B")].concat();
                json!({
                    "type": "TemplateProcessing", "single": around(0, "A"), "pair": pair, "special_tokens": specials,
                })
            }
        };
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": parts.normalizer, "pre_tokenizer": parts.pre_tokenizer,
            "post_processor": post_processor, "decoder": parts.decoder, "model": parts.model,
        }))
    }

    /// tokenizer_config.json, with the chat templates.
    fn config(&self) -> Result<Value> {
        let mut config = Map::new();
        config.insert(
            "tokenizer_class".to_owned(),
            json!("PreTrainedTokenizerFast"),
        );
        for (name, key) in [
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        ] {
            if let Some((_, text)) = self.named(key)? {
                config.insert(name.to_owned(), json!(text));
            }
        }
        config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        const TEMPLATE: &str = "tokenizer.chat_template";
        if let Some(template) = self.file.find::<&str>(TEMPLATE)? {
            let names: &[String] = self
                .file
                .find("tokenizer.chat_templates")?
                .unwrap_or_default();
            let mut templates = vec![json!({"name": "default", "template": template})];
            for name in names {
                if let Some(template) = self.file.find::<&str>(&format!("{TEMPLATE}.{name}"))? {
                    templates.push(json!({"name": name, "template": template}));
                }
            }
            let templates = match templates.len() {
                1 => json!(template),
                _ => json!(templates),
            };
            config.insert("chat_template".to_owned(), templates);
        }
        Ok(Value::Object(config))
    }

    /// The ids that end a text: those that the file names, and known marks.
    fn ends(&self) -> Result<Vec<u32>> {
        let mut ends: Vec<u32> = Vec::new();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            ends.extend(self.named(key)?.map(|(id, _)| id));
        }
        let marks = (0u32..)
            .zip(self.texts)
            .filter(|(_, text)| ENDS.contains(&text.as_str()));
        let marks: HashMap<&str, u32> = marks.map(|(id, text)| (text.as_str(), id)).collect();
        let is_harmony = marks.contains_key(HARMONY_CALL);
        let used = ENDS
            .iter()
            .filter(|&&mark| !(is_harmony && mark == HARMONY_END));
        for &id in used.filter_map(|mark| marks.get(mark)) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        Ok(ends)
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

//! A lower bound on the number of tokens of a text, from its length and the longest token: long
//! texts can be refused before they are tokenised.

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};

use crate::text::detokenize::append_bytes;

/// The most bytes of a text that a normaliser turns into one byte: a composed character has at
/// least 2 bytes, and replaces at most 4 characters of 4 bytes each.
const COMPOSED: usize = 8;
/// The same for a normaliser that replaces single characters: at most 4 bytes become 1.
const LOWERED: usize = 4;

/// The most text that one token covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Least {
    /// In bytes; `None` if white space can vanish.
    bytes: Option<usize>,
    /// In bytes that are not white space.
    solid: usize,
}

impl Least {
    /// The bound of a tokenizer. `None` if it can drop text, or join any amount of text in one
    /// token, as a tokenizer with an unknown token can.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        if tokenizer.get_truncation().is_some() {
            return None;
        }
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).ok()?;
        let words = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
        let (mut is_byte_level, mut drops_blanks, mut factor) = (false, false, 1);
        for step in steps(&normalizer, "normalizers") {
            match step["type"].as_str()? {
                "ByteLevel" => is_byte_level = true,
                "NFC" | "NFD" => factor *= COMPOSED,
                "Lowercase" => factor *= LOWERED,
                "Prepend" => {}
                "Strip" => drops_blanks = true,
                "Replace" => {
                    let from = step["pattern"]["String"].as_str()?;
                    if step["content"].as_str()?.len() < from.len() {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        for step in steps(&words, "pretokenizers") {
            match step["type"].as_str()? {
                "ByteLevel" => is_byte_level = true,
                "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer" => drops_blanks = true,
                "Split" | "Punctuation" if step["behavior"] == "Removed" => return None,
                "Split" | "Punctuation" | "Metaspace" | "Digits" | "UnicodeScripts" => {}
                _ => return None,
            }
        }
        let has_fallback = match tokenizer.get_model() {
            ModelWrapper::BPE(model) => model.byte_fallback,
            ModelWrapper::Unigram(model) => model.byte_fallback(),
            _ => false,
        };
        let is_bpe = matches!(tokenizer.get_model(), ModelWrapper::BPE(_));
        let vocab = tokenizer.get_vocab(false);
        // If not every byte has a token, some texts have no tokens.
        let has_bytes = match is_byte_level && is_bpe {
            true => {
                vocab
                    .keys()
                    .filter(|token| token.chars().count() == 1)
                    .count()
                    >= 256
            }
            false => {
                has_fallback && (0..256).all(|byte| vocab.contains_key(&format!("<0x{byte:02X}>")))
            }
        };
        if !has_bytes {
            return None;
        }
        let (mut bytes, mut solid) = (1, 1);
        let mut count = |text: &[u8]| {
            bytes = bytes.max(text.len());
            solid = solid.max(
                text.iter()
                    .filter(|byte| !byte.is_ascii_whitespace())
                    .count(),
            );
        };
        let mut decoded = Vec::new();
        for token in vocab.keys() {
            if is_byte_level {
                decoded.clear();
                append_bytes(token, &mut decoded);
                count(&decoded);
            } else {
                count(token.as_bytes());
            }
        }
        for token in tokenizer.get_added_tokens_decoder().values() {
            drops_blanks |= token.lstrip || token.rstrip;
            count(token.content.as_bytes());
        }
        Some(Self {
            bytes: (!drops_blanks).then_some(bytes * factor),
            solid: solid * factor,
        })
    }

    /// The least number of tokens that a text can have.
    pub(super) fn tokens(self, text: &str) -> usize {
        let solid = text
            .chars()
            .filter(|c| !c.is_whitespace())
            .map(char::len_utf8);
        let by_solid = solid.sum::<usize>().div_ceil(self.solid);
        let by_bytes = self.bytes.map_or(0, |bytes| text.len().div_ceil(bytes));
        by_solid.max(by_bytes)
    }
}

/// The steps of a part of the pipeline, without sequences around them.
fn steps<'v>(part: &'v Value, list: &str) -> Vec<&'v Value> {
    match part {
        Value::Null => Vec::new(),
        part if part["type"] == "Sequence" => {
            let inner = part[list].as_array().into_iter().flatten();
            inner.flat_map(|step| steps(step, list)).collect()
        }
        part => vec![part],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::files::Files;
    use crate::text::tokenizer;

    #[test]
    fn no_text_has_fewer_tokens() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/text/tokenizers");
        let texts = [
            String::new(),
            " ".repeat(900),
            "the red fox ".repeat(90),
            "e\u{301}\u{212a}".repeat(200),
            "\u{3b1}\u{313}\u{300}\u{345}".repeat(100),
            "\u{1f600}漢字\n\n\t".repeat(60),
            "-".repeat(700),
            "<|im_end|>   ".repeat(50),
        ];
        let mut known = 0;
        for folder in std::fs::read_dir(root).unwrap() {
            let folder = folder.unwrap().path();
            let Ok(files) = Files::directory(&folder) else {
                continue;
            };
            let Ok(tokenizer) = tokenizer::Tokenizer::load(&files) else {
                continue;
            };
            let Some(least) = Least::of(&tokenizer.0.tokenizers) else {
                continue;
            };
            known += 1;
            for text in &texts {
                let Ok(ids) = tokenizer.encode(text, false) else {
                    continue;
                };
                assert!(
                    least.tokens(text) <= ids.len(),
                    "{folder:?} {text:?}: {least:?}"
                );
            }
        }
        assert!(known >= 3, "{known}");
    }
}

//! A tokenizer for random checkpoints of published shapes: every id is a word, so that a server has
//! text for each token.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// Bytes are the first ids, as in published byte-level vocabularies.
const BYTES: usize = 256;

/// Writes `tokenizer.json` and `tokenizer_config.json` for `vocab` ids, unless they are there. The
/// last id ends a text.
pub fn write(folder: &Path, vocab: usize) -> Result<()> {
    let (tokenizer, config) = (
        folder.join("tokenizer.json"),
        folder.join("tokenizer_config.json"),
    );
    // Written last.
    if config.exists() {
        return Ok(());
    }
    let put = |path: &Path, value: &Value| {
        fs::write(path, value.to_string())
            .with_context(|| format!("cannot write {}", path.display()))
    };
    put(&tokenizer, &document(vocab))?;
    let end = json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": false});
    put(&config, &end)
}

const END: &str = "<|endoftext|>";

fn document(vocab: usize) -> Value {
    let words = (0..vocab - 1 - BYTES).map(word);
    let tokens: Map<String, Value> = bytes()
        .map(String::from)
        .chain(words)
        .enumerate()
        .map(|(id, token)| (token, id.into()))
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{
            "id": vocab - 1, "content": END, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": level,
        "post_processor": null,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            // A word that is in the vocabulary is one token without merges.
            "ignore_merges": true, "vocab": tokens, "merges": [],
        },
    })
}

/// A blank and at least four letters; another word for each number.
fn word(mut number: usize) -> String {
    let mut letters = String::new();
    while letters.len() < 4 || number > 0 {
        letters.insert(0, char::from(b'a' + (number % 26) as u8));
        number /= 26;
    }
    format!("Ġ{letters}")
}

/// The characters that stand for bytes in byte-level vocabularies (GPT-2): printable ones stand for
/// themselves, the others for characters from U+0100 on.
fn bytes() -> impl Iterator<Item = char> {
    let is_printable = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let printable = (0..=255).filter(is_printable).map(char::from);
    let others = (0..=255u8).filter(move |byte| !is_printable(byte)).count() as u32;
    printable.chain((0..others).filter_map(|at| char::from_u32(0x100 + at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_a_token_of_its_own() {
        for vocab in [1000, 151_936] {
            let document = document(vocab);
            let tokens = document["model"]["vocab"].as_object().unwrap();
            // The end of a text is an added token.
            assert_eq!(tokens.len(), vocab - 1);
        }
        assert_eq!(
            (word(0), word(27)),
            ("Ġaaaa".to_owned(), "Ġaabb".to_owned())
        );
    }
}

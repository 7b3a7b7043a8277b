//! SentencePiece models.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use super::super::classes::Class;
use super::super::config::TokenizerConfig;
use super::proto::{Model, PieceKind};
use super::{Converted, merges};

/// Makes the tokenizer of `class` from a model file. The model classes of transformers are always
/// BPE, however the file was trained. Other classes use the kind that the file gives, and have no
/// step that puts a space before a text.
pub(super) fn convert(
    model: &Model,
    class: Class,
    config: &TokenizerConfig,
) -> Result<Converted, String> {
    let is_serialized = class == Class::Serialized;
    let json = match is_serialized && model.kind == 1 {
        true => json!({
            "type": "Unigram",
            "unk_id": model.unk_id,
            "byte_fallback": model.byte_fallback,
            "vocab": model.pieces.iter().map(|piece| json!([piece.text, f64::from(piece.score)])).collect::<Vec<_>>(),
        }),
        false => bpe(model, is_serialized, config)?,
    };
    let mut normalizers =
        vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
    if !model.charsmap.is_empty() {
        let map = STANDARD.encode(&model.charsmap);
        normalizers.insert(
            0,
            json!({"type": "Precompiled", "precompiled_charsmap": map}),
        );
    }
    let mut decoders = vec![json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})];
    if model.byte_fallback {
        decoders.extend([json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    }
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": json,
    });
    let named = [
        ("bos_token", &model.bos),
        ("eos_token", &model.eos),
        ("unk_token", &model.unk),
    ];
    let named = named
        .into_iter()
        .filter_map(|(name, text)| Some((name, text.clone()?)));
    let extra = model
        .pieces
        .iter()
        .filter(|piece| piece.kind != PieceKind::Other);
    let extra = extra.map(|piece| {
        AddedToken::from(piece.text.clone(), piece.kind == PieceKind::Control).normalized(false)
    });
    Ok(Converted {
        json: json.to_string(),
        class,
        added: Vec::new(),
        named: if is_serialized {
            named.collect()
        } else {
            Vec::new()
        },
        extra: extra.collect(),
        has_ends: true,
        trie: None,
    })
}

fn bpe(model: &Model, is_serialized: bool, config: &TokenizerConfig) -> Result<Value, String> {
    let mut pieces: Vec<(&str, u32)> = Vec::with_capacity(model.pieces.len());
    pieces.extend(
        model
            .pieces
            .iter()
            .zip(0..)
            .map(|(piece, id)| (piece.text.as_str(), id)),
    );
    let tokens = pieces.iter().map(|&(text, id)| (text.as_bytes(), id));
    let cuts = |token: &[u8]| {
        let is_start: Vec<bool> = token.iter().map(|byte| byte & 0xc0 != 0x80).collect();
        (1..token.len()).filter(move |&at| is_start[at])
    };
    let mut found = merges::of(tokens, cuts)?;
    let text = |part| std::str::from_utf8(part).expect("pieces are cut between characters");
    let length = |part| text(part).chars().count();
    found.sort_by_key(|&(left, right, rank)| (rank, length(left), length(right)));
    let merges: Vec<Value> = found
        .iter()
        .map(|&(left, right, _)| json!([text(left), text(right)]))
        .collect();
    if is_serialized {
        // Tokens of the configuration replace pieces that were reserved for them.
        for (&id, token) in &config.added {
            let is_new = !pieces.iter().any(|(text, _)| *text == token.content);
            if let Some(piece) = pieces.get_mut(id as usize).filter(|_| is_new) {
                piece.0 = &token.content;
            }
        }
    }
    let vocab: Map<String, Value> = pieces
        .iter()
        .map(|&(text, id)| (text.to_owned(), id.into()))
        .collect();
    Ok(json!({
        "type": "BPE", "dropout": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "unk_token": model.unk, "fuse_unk": true, "byte_fallback": model.byte_fallback, "ignore_merges": false,
        "vocab": vocab, "merges": merges,
    }))
}

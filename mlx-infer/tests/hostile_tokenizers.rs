//! Parts of tokenizer.json that make the tokenizers crate panic, fill memory or take minutes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use mlx_infer::{ErrorKind, Files, Tokenizer};
use serde_json::{Value, json};

fn good() -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/text/tokenizers/llama3/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn load(json: &Value) -> mlx_infer::Result<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::load(&Files::directory(dir.path()).unwrap())
}

fn with_part(name: &str, part: Value) -> mlx_infer::Result<Tokenizer> {
    let mut json = good();
    json[name] = part;
    load(&json)
}

#[test]
fn parts_that_the_tokenizers_crate_cannot_stand_are_refused_by_name() {
    let replace = |pattern: &str, content: usize| json!({"type": "Replace", "pattern": {"String": pattern}, "content": "a".repeat(content)});
    let template = |id: &str| {
        json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": id, "type_id": 0}}],
               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
               "special_tokens": {}})
    };
    let chain = vec![replace("a", 10_000); 3];
    let cases = [
        ("normalizer", replace("", 1)),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": chain}),
        ),
        (
            "normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        ),
        (
            "normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": ""}),
        ),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
        ("post_processor", template("B")),
        (
            "decoder",
            json!({"type": "Sequence", "decoders": [replace("", 1)]}),
        ),
    ];
    for (name, part) in cases {
        let error = with_part(name, part.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format, "{part}: {error}");
        let text = error.to_string();
        assert!(
            text.contains("tokenizer.json")
                && text.contains(name)
                && text.contains("line 1 column"),
            "{part}: {text}"
        );
    }
}

#[test]
fn many_added_tokens_load_quickly() {
    let mut json = good();
    let list = json["added_tokens"].as_array_mut().unwrap();
    list.extend((0..60_000).map(|id| {
        json!({"id": id, "content": format!("t{id}"), "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": false})
    }));
    let start = Instant::now();
    load(&json).unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
}

//! Parts of tokenizer.json for which the tokenizers crate panics, fills memory or takes minutes.

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
    load_text(&json.to_string())
}

fn load_text(json: &str) -> mlx_infer::Result<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
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

/// The steps of a chain; only step `at` is bad.
fn chain(kind: &str, list: &str, good: &Value, bad: &Value, at: usize) -> Value {
    let mut steps = vec![good.clone(); 4];
    steps[at] = bad.clone();
    json!({"type": kind, list: steps})
}

/// Parts that the tokenizers crate refuses, or on which it panics, are reported with the part, the
/// step in it, its type and its place in the file.
#[test]
fn a_fault_is_found_in_the_file() {
    let nfc = json!({"type": "NFC"});
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let fuse = json!({"type": "Fuse"});
    // The text after the table is not UTF-8: the crate panics.
    let map = json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAD/"});
    let bad_regex = json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""});
    let split = json!({"type": "Split", "pattern": {"Regex": "["}, "behavior": "Isolated", "invert": false});
    let processors = chain(
        "Sequence",
        "processors",
        &level,
        &json!({"type": "TemplateProcessing", "single": ["$A"]}),
        2,
    );
    let nested = json!({"type": "Sequence", "normalizers": [nfc, chain("Sequence", "normalizers", &nfc, &bad_regex, 3)]});
    for (part, value, name) in [
        (
            "normalizer",
            chain("Sequence", "normalizers", &nfc, &bad_regex, 2),
            "normalizer[2] (Replace): ",
        ),
        ("normalizer", nested, "normalizer[1][3] (Replace): "),
        (
            "normalizer",
            json!({"type": "Nonsense"}),
            "normalizer (Nonsense): ",
        ),
        (
            "normalizer",
            chain("Sequence", "normalizers", &nfc, &json!(3), 1),
            "normalizer[1]: ",
        ),
        (
            "normalizer",
            chain("Sequence", "normalizers", &nfc, &map, 1),
            "normalizer[1] (Precompiled): ",
        ),
        (
            "pre_tokenizer",
            chain("Sequence", "pretokenizers", &level, &split, 3),
            "pre_tokenizer[3] (Split): ",
        ),
        (
            "post_processor",
            processors,
            "post_processor[2] (TemplateProcessing): ",
        ),
        (
            "decoder",
            chain("Sequence", "decoders", &fuse, &json!({"type": "Strip"}), 0),
            "decoder[0] (Strip): ",
        ),
        (
            "model",
            json!({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}),
            "model (BPE): ",
        ),
        ("model", json!({"type": "WordPiece"}), "model (WordPiece): "),
        ("truncation", json!({"max_length": "x"}), "truncation: "),
        ("padding", json!({"strategy": 3}), "padding: "),
    ] {
        let error = with_part(part, value.clone()).expect_err(&value.to_string());
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Format, "{value}: {text}");
        assert!(
            text.contains(&format!("tokenizer.json: {name}")),
            "{value}: {text}"
        );
        assert!(
            text.ends_with(')') && text.contains("(line 1 column "),
            "{value}: {text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let mut json = good();
    json["added_tokens"][1] = json!({"id": 9, "content": "x", "special": "no"});
    let text = load(&json).unwrap_err().to_string();
    assert!(text.contains("tokenizer.json: added_tokens[1]: "), "{text}");
    let mut json = good();
    json["added_tokens"][1] = json!({"content": "x"});
    let text = load(&json).unwrap_err().to_string();
    assert!(
        text.contains("tokenizer.json: added_tokens[1]: no id"),
        "{text}"
    );
    for depth in [17, 100, 100_000] {
        let open = "{\"type\":\"Sequence\",\"normalizers\":[".repeat(depth);
        let deep = format!("{open}{nfc}{}", "]}".repeat(depth));
        let mut json = good();
        json["normalizer"] = json!("HERE");
        let text = load_text(&json.to_string().replace("\"HERE\"", &deep));
        let text = text.unwrap_err().to_string();
        let is_told = text.contains("nested deeper than 16") || text.contains("recursion limit");
        assert!(is_told && text.lines().count() == 1, "{text}");
    }
}

/// The error for a step that fails on a text or on tokens names the step as well.
#[test]
fn a_fault_of_a_step_at_work_is_found() {
    let strip = json!({"type": "Strip", "content": "a", "start": 0, "stop": 2});
    let tokenizer = with_part(
        "decoder",
        chain("Sequence", "decoders", &json!({"type": "Fuse"}), &strip, 3),
    )
    .unwrap();
    let id = tokenizer.token_to_id("a").unwrap();
    let text = tokenizer.decode(&[id], false).unwrap_err().to_string();
    assert!(
        text.starts_with("decode: the tokenizer is malformed: "),
        "{text}"
    );
    assert!(
        text.contains("tokenizer.json: decoder[3] (Strip): "),
        "{text}"
    );
    // The template names a token that the part does not list.
    let template = json!({"type": "TemplateProcessing", "pair": [], "special_tokens": {},
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<x>", "type_id": 0}}]});
    let tokenizer = with_part("post_processor", template).unwrap();
    let text = tokenizer.encode("a", true).unwrap_err().to_string();
    let start = "encode: the tokenizer is malformed: ";
    assert!(
        text.starts_with(start) && text.lines().count() == 1,
        "{text}"
    );
    assert!(
        text.contains("tokenizer.json: post_processor (TemplateProcessing): "),
        "{text}"
    );
}

//! Malformed files of the formats that are converted to tokenizer.json: errors that name the file
//! and the fault, and never a panic or a hang.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use mlx_infer::{ErrorKind, Files, Result, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn original(case: &str, name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata/text/tokenizers");
    std::fs::read(path.join(case).join(name)).unwrap()
}

fn load(files: &[(&str, &[u8])]) -> Result<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    Tokenizer::load(&Files::directory(dir.path()).unwrap())
}

fn refused(files: &[(&str, &[u8])], kind: ErrorKind, expected: &str) {
    let error = load(files).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(expected), "{error}: {expected}");
}

/// A field of a message: its number, and its bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend(bytes);
    field
}

#[test]
fn models_of_sentencepiece_are_refused_by_name() {
    let model = "tokenizer.model";
    for (bytes, expected) in [
        (
            &b"x"[..],
            "tokenizer.model: not a SentencePiece model: the model is cut short",
        ),
        (
            &b""[..],
            "tokenizer.model: not a SentencePiece model: it has no pieces",
        ),
        (&[0x0b][..], "the model has a field of kind 3"),
        (
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f][..],
            "the model is cut short",
        ),
        (&field(1, &field(1, b"\xff"))[..], "a text is not utf-8"),
        (&field(2, &[0x18])[..], "trainer_spec is cut short"),
    ] {
        refused(&[(model, bytes)], ErrorKind::Format, expected);
    }
    let good = original("spm_llama", model);
    let gpt2 = br#"{"tokenizer_class": "GPT2Tokenizer"}"#;
    refused(
        &[(model, &good), ("tokenizer_config.json", gpt2)],
        ErrorKind::Unsupported,
        "tokenizer_class GPT2Tokenizer does not read SentencePiece's files; those that do: LlamaTokenizer",
    );
    // A table of the normaliser whose length field is wrong.
    let table = [field(1, &field(1, b"a")), field(3, &field(2, &[0xff; 8]))].concat();
    refused(
        &[(model, &table)],
        ErrorKind::Format,
        "the map says that its table has",
    );
}

#[test]
fn long_pieces_take_no_time() {
    let started = Instant::now();
    let llama = br#"{"tokenizer_class": "LlamaTokenizer"}"#;
    let long = field(1, &field(1, &b"a".repeat(40_000)));
    let files: [(&str, &[u8]); 2] = [("tokenizer.model", &long), ("tokenizer_config.json", llama)];
    refused(
        &files,
        ErrorKind::Format,
        "the tokens are too long to find their merges",
    );
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn vocabularies_with_ranks_are_refused_by_name() {
    let tekken = original("tekken", "tekken.json");
    let tekken: Value = serde_json::from_slice(&tekken).unwrap();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut json = tekken.clone();
        change(&mut json);
        json.to_string().into_bytes()
    };
    for (bytes, expected) in [
        (b"{".to_vec(), "tekken.json: not a tekken file: "),
        (
            changed(&|json| json["special_tokens"] = Value::Null),
            "special_tokens is missing",
        ),
        (
            changed(&|json| json["special_tokens"][2]["rank"] = 7.into()),
            "the ranks must be 0, 1, 2 and so on",
        ),
        (
            changed(&|json| json["vocab"][3]["token_bytes"] = "?".into()),
            "vocab[3]: token_bytes is not base64",
        ),
        (
            changed(&|json| json["config"]["default_num_special_tokens"] = json!(1u64 << 40)),
            "default_num_special_tokens must be at most 131072",
        ),
        (
            changed(&|json| json["config"]["pattern"] = "(".into()),
            "tekken.json: ",
        ),
    ] {
        refused(&[("tekken.json", &bytes)], ErrorKind::Format, expected);
    }
    let tiktoken = original("tiktoken", "tiktoken.model");
    let with = |line: &[u8]| [&tiktoken, line].concat();
    for line in [
        &b"?? 3\n"[..],
        b"YQ==\n",
        b"YQ== -1\n",
        b"YQ== 1 2\n",
        b"YQ== 99999999999\n",
    ] {
        let files: [(&str, &[u8]); 1] = [("tiktoken.model", &with(line))];
        refused(
            &files,
            ErrorKind::Format,
            "tiktoken.model: line 351: expected a token in base64 and its rank",
        );
    }
    let far = br#"{"added_tokens_decoder": {"4000000000": {"content": "<x>"}}}"#;
    refused(
        &[
            ("tiktoken.model", &tiktoken),
            ("tokenizer_config.json", far),
        ],
        ErrorKind::Format,
        "an added token has the id 4000000000, far behind the 350 tokens of the vocabulary",
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A truncated file, or one with one changed byte: it loads or is refused, and texts are
    /// encoded or refused.
    #[test]
    fn damaged_files_are_errors(case in 0..3usize, at in 0..20_000usize, byte: u8, cut: bool) {
        let (case, name) = [("spm_llama", "tokenizer.model"), ("spm_unigram", "tokenizer.model"), ("tiktoken", "tiktoken.model")][case];
        let mut bytes = original(case, name);
        let at = at % bytes.len();
        match cut {
            true => bytes.truncate(at),
            false => bytes[at] = byte,
        }
        if let Ok(tokenizer) = load(&[(name, &bytes)]) {
            let _ = tokenizer.encode("Hello  world é\n", true);
        }
    }
}

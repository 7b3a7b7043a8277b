//! Tokenizers, compared with transformers on testdata/text/tokenizers (written by xtask/golden/text.py).

use std::path::PathBuf;

use mlx_infer::{Files, Tokenizer};
use proptest::prelude::*;
use serde_json::Value;

const CASES: [&str; 30] = [
    "code_llama",
    "code_llama_bare",
    "codegen",
    "cohere",
    "flags",
    "gemma",
    "gemma_untyped",
    "gpt2",
    "gpt_neox",
    "llama2",
    "llama2_legacy",
    "llama3",
    "llama3_as_llama",
    "mistral",
    "phi3",
    "qwen",
    "qwen2_overruled",
    "qwen3_5",
    "spm_gemma",
    "spm_llama",
    "spm_llama_legacy",
    "spm_serialized",
    "spm_unigram",
    "spm_unigram_bytes",
    "tekken",
    "tekken_ends",
    "tiktoken",
    "tiktoken_as_model",
    "unigram",
    "wordpiece",
];

fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/text/tokenizers")
        .join(case)
}

fn load(case: &str) -> (Tokenizer, Value) {
    let tokenizer = Tokenizer::load(&Files::directory(folder(case)).unwrap()).unwrap();
    let golden = std::fs::read_to_string(folder(case).join("golden.json")).unwrap();
    (tokenizer, serde_json::from_str(&golden).unwrap())
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn every_case_is_tested() {
    let mut found: Vec<String> = std::fs::read_dir(folder(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, CASES);
}

#[test]
fn texts_become_the_same_ids() {
    for case in CASES {
        let (tokenizer, golden) = load(case);
        let cases = golden["encoded"].as_array().unwrap();
        assert!(cases.len() > 20);
        for encoded in cases {
            let text = encoded["text"].as_str().unwrap();
            let expected = ids(&encoded["ids"]);
            let bare = encoded.get("bare").map_or_else(|| expected.clone(), ids);
            assert_eq!(
                tokenizer.encode(text, true).unwrap(),
                expected,
                "{case}: {text:?}"
            );
            assert_eq!(
                tokenizer.encode(text, false).unwrap(),
                bare,
                "{case}: {text:?} without special tokens"
            );
        }
        let texts: Vec<&str> = cases
            .iter()
            .map(|encoded| encoded["text"].as_str().unwrap())
            .collect();
        let expected: Vec<Vec<u32>> = cases.iter().map(|encoded| ids(&encoded["ids"])).collect();
        assert_eq!(
            tokenizer.encode_batch(&texts, true).unwrap(),
            expected,
            "{case}"
        );
    }
}

/// A folder with RWKV's vocabulary, and its configuration as published.
fn rwkv(vocabulary: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let end = "<|rwkv_tokenizer_end_of_text|>";
    let config = serde_json::json!({
        "added_tokens_decoder": {"0": {
            "content": end, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false, "special": true,
        }},
        "auto_map": {"AutoTokenizer": ["hf_rwkv_tokenizer.RwkvTokenizer", null]},
        "bos_token": end,
        "eos_token": "\n\n",
        "tokenizer_class": "RwkvTokenizer",
        "unk_token": end,
    });
    let files = [
        ("rwkv_vocab_v20230424.txt", vocabulary.to_owned()),
        ("tokenizer_config.json", config.to_string()),
        (
            "config.json",
            r#"{"model_type": "rwkv7", "eos_token_id": 0}"#.to_owned(),
        ),
    ];
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

/// `testdata/text/rwkv.json`: ids of the package `rwkv`.
#[test]
fn the_vocabulary_of_rwkv_gives_its_ids() {
    let golden = std::fs::read_to_string(folder("../rwkv.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let vocabulary = golden["vocabulary"].as_str().unwrap();
    let dir = rwkv(vocabulary);
    let tokenizer = Tokenizer::load(&Files::directory(dir.path()).unwrap()).unwrap();
    let cases = golden["encoded"].as_array().unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        // The configuration makes a special token of two line ends, as in transformers.
        if text.contains("\n\n") {
            continue;
        }
        assert_eq!(
            tokenizer.encode(text, true).unwrap(),
            ids(&case["ids"]),
            "{text:?}"
        );
        assert_eq!(tokenizer.decode(&ids(&case["ids"]), true).unwrap(), text);
        let mut detokenizer = tokenizer.detokenizer(true);
        let mut streamed = String::new();
        for id in ids(&case["ids"]) {
            streamed += &detokenizer.push(id).unwrap();
        }
        streamed += &detokenizer.finish().unwrap();
        assert_eq!(streamed, text);
    }
    // The file's lines and the end of a text are the first ids.
    let first = vocabulary.lines().count() as u32 + 1;
    let end = "<|rwkv_tokenizer_end_of_text|>";
    let text = format!("{end}Hello\n\nHello");
    let [hello] = tokenizer.encode("Hello", false).unwrap()[..] else {
        panic!("Hello is one token");
    };
    assert_eq!(
        tokenizer.encode(&text, false).unwrap(),
        [0, hello, first, hello]
    );
    assert_eq!(
        tokenizer.decode(&[0, hello, first], false).unwrap(),
        format!("{end}Hello\n\n")
    );
    assert_eq!(tokenizer.decode(&[0, hello, first], true).unwrap(), "Hello");
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.eos_ids()),
        (Some(0), &[0, first][..])
    );
    for (wrong, what) in [
        (
            vocabulary.replacen("'a' 1", "'a' 2", 1),
            "line 98: 'a' has 1 bytes, not 2",
        ),
        (
            vocabulary.replacen("98 'a' 1\n", "", 1),
            "no token is the byte 0x61",
        ),
        (
            vocabulary.replacen("98 'a'", "97 'a'", 1),
            "the id 97 is there twice",
        ),
    ] {
        let dir = rwkv(&wrong);
        let error = Tokenizer::load(&Files::directory(dir.path()).unwrap()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("rwkv_vocab_v20230424.txt") && error.contains(what),
            "{error}"
        );
    }
}

#[test]
fn ids_become_the_same_text() {
    for case in CASES {
        let (tokenizer, golden) = load(case);
        for decoded in golden["decoded"].as_array().unwrap() {
            let given = ids(&decoded["ids"]);
            for (key, skip) in [("text", false), ("skipped", true)] {
                let expected = decoded[key].as_str().unwrap();
                assert_eq!(
                    tokenizer.decode(&given, skip).unwrap(),
                    expected,
                    "{case}: {given:?} {key}"
                );
                let mut stream = tokenizer.detokenizer(skip);
                let mut text: String = given.iter().map(|id| stream.push(*id).unwrap()).collect();
                text += &stream.finish().unwrap();
                assert_eq!(text, expected, "{case}: {given:?} {key}, streamed");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// For any ids, also special tokens, single bytes and ids without a token, the joined pieces
    /// are the whole text.
    #[test]
    fn streamed_text_is_the_whole_text(
        at in 0..CASES.len(),
        draws in prop::collection::vec((any::<bool>(), 0..5000u32), 0..60),
        skip in any::<bool>(),
    ) {
        thread_local! {
            static LOADED: Vec<Tokenizer> = CASES.iter().map(|case| load(case).0).collect();
        }
        let tokenizer = LOADED.with(|loaded| loaded[at].clone());
        // Half of them are low ids: bytes, letters and special tokens.
        let ids: Vec<u32> = draws
            .into_iter()
            .map(|(low, id)| id % if low { 270 } else { tokenizer.vocab_size() as u32 + 5 })
            .collect();
        let mut stream = tokenizer.detokenizer(skip);
        let mut text = String::new();
        for id in &ids {
            let piece = stream.push(*id).unwrap();
            text += &piece;
        }
        text += &stream.finish().unwrap();
        prop_assert_eq!(&text, &tokenizer.decode(&ids, skip).unwrap(), "{}", CASES[at]);
        // Afterwards the stream can be used again from the start.
        let again: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        prop_assert_eq!(again + &stream.finish().unwrap(), text);
    }
}

/// A piece may not end inside a character, and a character may not wait for the token after it.
#[test]
fn characters_come_whole_and_at_once() {
    for case in ["qwen", "llama3", "llama2", "gemma"] {
        let (tokenizer, _) = load(case);
        let text = "né 世界 👍🏽 x";
        let mut stream = tokenizer.detokenizer(true);
        let mut shown = String::new();
        let mut pieces = 0;
        for id in tokenizer.encode(text, false).unwrap() {
            let piece = stream.push(id).unwrap();
            assert!(!piece.contains('\u{fffd}'), "{case}: {piece:?}");
            pieces += usize::from(!piece.is_empty());
            shown += &piece;
            assert!(text.starts_with(shown.as_str()), "{case}: {shown:?}");
        }
        shown += &stream.finish().unwrap();
        assert_eq!(shown, text, "{case}");
        assert!(pieces >= 4, "{case}: {pieces} pieces");
    }
}

#[test]
fn names_and_sizes_are_the_same() {
    for case in CASES {
        let (tokenizer, golden) = load(case);
        assert_eq!(
            tokenizer.vocab_size() as u64,
            golden["vocab_size"].as_u64().unwrap(),
            "{case}"
        );
        assert_eq!(
            tokenizer.bos_id().map(u64::from),
            golden["bos_id"].as_u64(),
            "{case}"
        );
        let eos = golden["special_tokens"].get("eos_token").map(|token| {
            tokenizer
                .token_to_id(token.as_str().unwrap())
                .map(u64::from)
        });
        assert_eq!(eos.flatten(), golden["eos_id"].as_u64(), "{case}");
        let mut named: Vec<(String, String)> = tokenizer.special_tokens().to_vec();
        let mut expected: Vec<(String, String)> = golden["special_tokens"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, token)| (name.clone(), token.as_str().unwrap().to_owned()))
            .collect();
        // transformers keeps names that only this model has in a separate attribute.
        named.sort();
        expected.sort();
        assert_eq!(named, expected, "{case}");
        // The tokenizers crate shows a normalised added token in its normalised form.
        for id in (0..tokenizer.vocab_size() as u32).filter(|_| case != "flags") {
            if let Some(token) = tokenizer.id_to_token(id) {
                assert_eq!(tokenizer.token_to_id(&token), Some(id), "{case}: {token:?}");
            }
        }
    }
}

#[test]
fn ends_of_text_come_from_the_first_file_that_names_one() {
    let of = |case: &str| {
        let (tokenizer, _) = load(case);
        let tokens: Vec<String> = tokenizer
            .eos_ids()
            .iter()
            .map(|id| tokenizer.id_to_token(*id).unwrap())
            .collect();
        tokens.join(" ")
    };
    assert_eq!(
        of("qwen"),
        "<|im_end|> <|endoftext|>",
        "generation_config.json, a list"
    );
    assert_eq!(
        of("llama3"),
        "<|eot_id|>",
        "generation_config.json before config.json"
    );
    assert_eq!(
        load("llama3_as_llama").0.eos_ids(),
        [3, 4],
        "config.json, a list"
    );
    assert_eq!(
        of("gemma"),
        "<eos> <end_of_turn>",
        "text_config of config.json"
    );
    assert_eq!(
        of("gemma_untyped"),
        "<eos>",
        "the tokenizer, where config.json says null"
    );
    assert_eq!(of("llama2"), "</s>", "the tokenizer");
    assert!(load("wordpiece").0.eos_ids().is_empty(), "no file");
}

/// The name of a file and a change of its content.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Value));

/// A copy of the tokenizer `case` with changed files.
fn changed(case: &str, files: &[Change<'_>]) -> (tempfile::TempDir, Tokenizer) {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(case);
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
        "generation_config.json",
    ] {
        let Ok(text) = std::fs::read_to_string(folder.join(name)) else {
            continue;
        };
        let mut json: Value = serde_json::from_str(&text).unwrap();
        for (_, change) in files.iter().filter(|(file, _)| *file == name) {
            change(&mut json);
        }
        std::fs::write(dir.path().join(name), json.to_string()).unwrap();
    }
    let tokenizer = Tokenizer::load(&Files::directory(dir.path()).unwrap()).unwrap();
    (dir, tokenizer)
}

#[test]
fn an_end_that_only_the_tokenizer_names_ends_too() {
    let only = |json: &mut Value| json["eos_token_id"] = serde_json::json!(350);
    let (_dir, tokenizer) = changed("qwen", &[("generation_config.json", &only)]);
    assert_eq!(
        tokenizer.eos_ids(),
        [350, tokenizer.token_to_id("<|im_end|>").unwrap()]
    );
}

/// The text of an added token is decoded unchanged, even if its letters stand for bytes in a
/// byte-level vocabulary.
#[test]
fn added_tokens_are_decoded_as_they_are_written() {
    let token = |text: &str, id: u32| {
        serde_json::json!({"id": id, "content": text, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": false})
    };
    let texts = ["koč", "õõ", "Ġĉ", "a b", "ascii"];
    let add = |json: &mut Value| {
        for (id, text) in (354..).zip(texts) {
            json["added_tokens"]
                .as_array_mut()
                .unwrap()
                .push(token(text, id));
        }
    };
    let configure = |json: &mut Value| {
        for (id, text) in (354_u32..).zip(texts) {
            json["added_tokens_decoder"][id.to_string()] = token(text, id);
        }
    };
    let (_dir, tokenizer) = changed(
        "qwen",
        &[
            ("tokenizer.json", &add),
            ("tokenizer_config.json", &configure),
        ],
    );
    for (id, text) in (354..).zip(texts) {
        assert_eq!(tokenizer.encode(text, false).unwrap(), [id], "{text}");
        assert_eq!(tokenizer.decode(&[id], false).unwrap(), text);
        assert_eq!(tokenizer.token_bytes(id).unwrap(), text.as_bytes());
        let mut stream = tokenizer.detokenizer(false);
        assert_eq!(stream.push(id).unwrap() + &stream.finish().unwrap(), text);
    }
    let all: Vec<u32> = (354..359).collect();
    assert_eq!(tokenizer.decode(&all, false).unwrap(), texts.concat());
}

/// A token that tokenizer_config.json names is special, even if tokenizer.json says that it is not. A map of names and a
/// list may stand in one file.
#[test]
fn named_tokens_are_special() {
    let (id, text) = (353, "<tool_call>");
    let plain = |json: &mut Value| json["tokenizer_class"] = "PreTrainedTokenizerFast".into();
    let (_dir, tokenizer) = changed("qwen", &[("tokenizer_config.json", &plain)]);
    assert_eq!(tokenizer.decode(&[id], true).unwrap(), text);
    for named in [
        serde_json::json!({"call_token": text}),
        serde_json::json!({"eos_token": text}),
        serde_json::json!({
            "extra_special_tokens": {"call_token": text},
            "additional_special_tokens": ["<new>"],
        }),
    ] {
        let name = |json: &mut Value| {
            json["tokenizer_class"] = "PreTrainedTokenizerFast".into();
            for (key, value) in named.as_object().unwrap() {
                json[key] = value.clone();
            }
        };
        let (_dir, tokenizer) = changed("qwen", &[("tokenizer_config.json", &name)]);
        assert_eq!(tokenizer.decode(&[id], true).unwrap(), "", "{named}");
        assert_eq!(tokenizer.encode(text, false).unwrap(), [id], "{named}");
        let has_new = named.get("additional_special_tokens").is_some();
        assert_eq!(tokenizer.is_special("<new>"), has_new, "{named}");
    }
}

/// A token whose flags tokenizer_config.json changes keeps them when its name makes it special, and beside a map of names
/// the list of special_tokens_map.json counts.
#[test]
fn named_tokens_keep_their_flags() {
    let (id, text) = (353, "<tool_call>");
    let strip = |json: &mut Value| {
        json["tokenizer_class"] = "PreTrainedTokenizerFast".into();
        json["eos_token"] = text.into();
        json["added_tokens_decoder"] = serde_json::json!({"353": {
            "content": text, "lstrip": true, "rstrip": false, "single_word": false,
            "normalized": false, "special": false,
        }});
    };
    let (_dir, tokenizer) = changed("qwen", &[("tokenizer_config.json", &strip)]);
    assert!(tokenizer.is_special(text));
    // `lstrip` takes the space before the token.
    let spaced = tokenizer.encode(&format!("a {text}"), false).unwrap();
    let joined = tokenizer.encode(&format!("a{text}"), false).unwrap();
    assert_eq!(spaced, joined);
    assert_eq!(spaced.last(), Some(&id));

    // Its file is read if tokenizer_config.json does not list the added tokens.
    for is_listed in [true, false] {
        let map = |json: &mut Value| {
            json["tokenizer_class"] = "PreTrainedTokenizerFast".into();
            json["extra_special_tokens"] = serde_json::json!({"call_token": text});
            if !is_listed {
                json.as_object_mut().unwrap().remove("added_tokens_decoder");
            }
        };
        let (dir, _) = changed("qwen", &[("tokenizer_config.json", &map)]);
        let names = r#"{"additional_special_tokens": ["<new>"]}"#;
        std::fs::write(dir.path().join("special_tokens_map.json"), names).unwrap();
        let tokenizer = Tokenizer::load(&Files::directory(dir.path()).unwrap()).unwrap();
        assert!(tokenizer.is_special(text));
        assert_eq!(tokenizer.is_special("<new>"), !is_listed);
    }
}

/// Without the pipeline of its class the ids would differ: the file alone does not determine them.
#[test]
fn the_class_decides() {
    for (case, class) in [
        ("qwen2_overruled", "config.json"),
        ("llama2_legacy", "tokenizer_config.json"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(folder(case)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != class {
                std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
            }
        }
        let (tokenizer, golden) = load(case);
        let plain = Tokenizer::load(&Files::directory(dir.path()).unwrap()).unwrap();
        let differs = golden["encoded"].as_array().unwrap().iter().any(|encoded| {
            let text = encoded["text"].as_str().unwrap();
            tokenizer.encode(text, true).unwrap() != plain.encode(text, true).unwrap()
        });
        assert!(differs, "{case}");
    }
}

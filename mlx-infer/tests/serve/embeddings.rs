//! `/v1/embeddings`, `/v1/rerank` and `/v1/score`: the answers are the library's results, in the
//! forms of their APIs.

use std::process::Command;

use mlx_infer::{EmbedOptions, EmbedPrompt, LoadOptions, LoadedModel, RerankOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{SERVER, TestServer};
use crate::sentence::{case, folder, headless, pairs, texts};

/// A server of a case of `testdata/embed`, and the folder of its model.
pub fn server(name: &str) -> (TestServer, TempDir) {
    server_of(case(name))
}

fn server_of(case: &Value) -> (TestServer, TempDir) {
    let dir = folder(case);
    let path = dir.path().to_owned();
    let load = move || LoadedModel::load(path, LoadOptions::default());
    (TestServer::of(load, |_| ()), dir)
}

pub fn values(embedding: &Value) -> Vec<f32> {
    serde_json::from_value(embedding.clone()).unwrap()
}

/// Numbers of base64.
fn decoded(text: &str) -> Vec<f32> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter(|&byte| byte != b'=');
    let digits = digits.map(|byte| DIGITS.iter().position(|&digit| digit == byte).unwrap());
    let bits: Vec<bool> = digits
        .flat_map(|digit| (0..6).rev().map(move |bit| digit >> bit & 1 == 1))
        .collect();
    let byte = |bits: &[bool]| {
        bits.iter()
            .fold(0u8, |byte, &bit| byte << 1 | u8::from(bit))
    };
    let bytes: Vec<u8> = bits.chunks_exact(8).map(byte).collect();
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    bytes.chunks_exact(4).map(number).collect()
}

#[test]
fn embeddings_are_the_librarys_in_both_encodings() {
    let (server, dir) = server("nomic_bert");
    let model = LoadedModel::load(dir.path(), LoadOptions::default()).unwrap();
    let options = EmbedOptions {
        dimensions: Some(8),
        prompt: EmbedPrompt::Named("query".to_owned()),
        ..Default::default()
    };
    let prompts = || texts().into_iter().map(Into::into).collect();
    let expected = model.embed(prompts(), &options).unwrap();
    let mut body = json!({
        "model": "tiny", "input": texts(), "dimensions": 8, "prompt_name": "query", "user": "me",
    });
    let floats = server.ok("/v1/embeddings", &body);
    body["encoding_format"] = "base64".into();
    let packed = server.ok("/v1/embeddings", &body);
    let mut tokens = 0;
    for (index, expected) in expected.into_iter().enumerate() {
        let expected = expected.unwrap();
        tokens += expected.tokens;
        assert_eq!(floats["data"][index]["index"], index);
        assert_eq!(values(&floats["data"][index]["embedding"]), expected.values);
        let text = packed["data"][index]["embedding"].as_str().unwrap();
        assert_eq!(decoded(text), expected.values);
    }
    assert_eq!(
        floats["usage"],
        json!({"prompt_tokens": tokens, "total_tokens": tokens})
    );
    assert_eq!(
        (&floats["object"], &floats["model"]),
        (&json!("list"), &json!("tiny"))
    );
    // One text, and its ids.
    let ids = model
        .tokenizer()
        .unwrap()
        .encode(&texts()[0], true)
        .unwrap();
    let one = server.ok("/embeddings", &json!({"input": texts()[0]}));
    for input in [json!(ids), json!([ids])] {
        let same = server.ok("/v1/embeddings", &json!({"input": input}));
        assert_eq!(same["data"], one["data"]);
    }
    generates_nothing(&server, "nomic_bert model is an encoder");
}

/// Every route that needs logits of tokens is refused with these words.
fn generates_nothing(server: &TestServer, words: &str) {
    let messages = json!([{"role": "user", "content": "x"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "x"})),
        ("/v1/classify", json!({"input": "x", "labels": ["a", "b"]})),
        ("/v1/chat/completions", json!({"messages": messages})),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 5}),
        ),
        ("/v1/responses", json!({"input": "x"})),
        ("/api/generate", json!({"model": "tiny", "prompt": "x"})),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body.contains(words), "{path}: {}", answer.body);
    }
    assert_eq!(server.get("/ready").status, 200);
}

#[test]
fn a_decoder_without_its_head_embeds_only() {
    let (server, dir) = server_of(&headless("qwen3"));
    let model = LoadedModel::load(dir.path(), LoadOptions::default()).unwrap();
    let prompts = texts().into_iter().map(Into::into).collect();
    let expected = model.embed(prompts, &EmbedOptions::default()).unwrap();
    let found = server.ok("/v1/embeddings", &json!({"input": texts()}));
    for (index, expected) in expected.into_iter().enumerate() {
        let found = values(&found["data"][index]["embedding"]);
        assert_eq!(found, expected.unwrap().values);
    }
    let words = "no output head (lm_head.weight)";
    let pairs = json!({"query": "x", "documents": ["y"]});
    let answer = server.post("/v1/rerank", &pairs);
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.body.contains(words), "{}", answer.body);
    let shown = server.ok("/api/show", &json!({"model": "tiny"}));
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    generates_nothing(&server, words);
}

#[test]
fn the_decoder_of_a_chat_model_embeds_too() {
    let answer = SERVER.ok("/v1/embeddings", &json!({"input": ["The red fox", "x"]}));
    let model = LoadedModel::load_default().unwrap();
    let expected = model.embed(vec!["The red fox".into()], &EmbedOptions::default());
    let expected = expected.unwrap().remove(0).unwrap();
    let found = values(&answer["data"][0]["embedding"]);
    let far = found
        .iter()
        .zip(&expected.values)
        .map(|(a, b)| (a - b).abs());
    assert!(far.fold(0.0, f32::max) < 1e-5 && found.len() == expected.values.len());
}

/// Clients that ask at the same time get the answers of the library to each text alone, bad ones among
/// them, and no more passes are computed than there are requests that are not refused before.
#[test]
fn requests_at_the_same_time_are_as_alone() {
    let (server, dir) = server("nomic_bert");
    let model = LoadedModel::load(dir.path(), LoadOptions::default()).unwrap();
    let asked: Vec<String> = (0..24)
        .map(|n| "the red fox ".repeat(1 + n % 7) + &texts()[n % texts().len()])
        .collect();
    let client = server.client;
    let before = server.metric("mlx_text_passes_total");
    let ask = |text: &String| {
        let body = json!({"input": text});
        std::thread::spawn(move || client.ok("/v1/embeddings", &body))
    };
    let answers: Vec<_> = asked.iter().map(ask).collect();
    let refuse =
        |body: Value| std::thread::spawn(move || client.post("/v1/embeddings", &body).status);
    let refused = [
        refuse(json!({"input": ["x", ""], "dimensions": 100_000})),
        refuse(json!({"input": [[2, 99_999_999]]})),
    ];
    for (text, answer) in asked.into_iter().zip(answers) {
        let answer = answer.join().unwrap();
        let expected = model.embed(vec![text.into()], &EmbedOptions::default());
        let expected = expected.unwrap().remove(0).unwrap();
        assert_eq!(values(&answer["data"][0]["embedding"]), expected.values);
        assert_eq!(answer["usage"]["prompt_tokens"], expected.tokens);
    }
    assert_eq!(refused.map(|refused| refused.join().unwrap()), [400, 400]);
    let passes = server.metric("mlx_text_passes_total") - before;
    assert!((1.0..=26.0).contains(&passes), "{passes}");
}

#[test]
fn documents_are_ranked_in_the_forms_of_jina_and_cohere() {
    let (server, dir) = server("bert_rerank");
    let model = LoadedModel::load(dir.path(), LoadOptions::default()).unwrap();
    let documents: Vec<String> = pairs().into_iter().map(|pair| pair.1).collect();
    let query = &pairs()[0].0;
    let expected = model
        .rerank(query, &documents, &RerankOptions::default())
        .unwrap();
    let expected: Vec<f32> = expected.into_iter().map(|found| found.unwrap()).collect();
    let objects: Vec<Value> = documents.iter().map(|text| json!({"text": text})).collect();
    for (path, documents_in) in [
        ("/v1/rerank", json!(documents)),
        ("/rerank", json!(objects)),
        ("/v2/rerank", json!(documents)),
    ] {
        let body = json!({"model": "tiny", "query": query, "documents": documents_in});
        let answer = server.ok(path, &body);
        let results = answer["results"].as_array().unwrap();
        let mut order: Vec<usize> = Vec::new();
        for result in results {
            let index = result["index"].as_u64().unwrap() as usize;
            assert_eq!(
                result["relevance_score"].as_f64().unwrap() as f32,
                expected[index]
            );
            assert_eq!(result["document"]["text"], documents[index]);
            order.push(index);
        }
        assert!(
            order
                .windows(2)
                .all(|two| expected[two[0]] >= expected[two[1]])
        );
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2]);
        assert!(answer["usage"]["total_tokens"].as_u64().unwrap() > 10);
    }
    let body =
        json!({"query": query, "documents": documents, "top_n": 1, "return_documents": false});
    let top = server.ok("/v1/rerank", &body);
    assert_eq!(top["results"].as_array().unwrap().len(), 1);
    assert!(top["results"][0].get("document").is_none());

    let score = server.ok("/v1/score", &json!({"text_1": query, "text_2": documents}));
    let found: Vec<f32> = score["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["score"].as_f64().unwrap() as f32)
        .collect();
    assert_eq!(found, expected);
    let (first, second): (Vec<String>, Vec<String>) = pairs().into_iter().unzip();
    let both = server.ok("/v1/score", &json!({"text_1": first, "text_2": second}));
    let expected = model
        .score_pairs(pairs(), &RerankOptions::default())
        .unwrap();
    for (entry, expected) in both["data"].as_array().unwrap().iter().zip(expected) {
        assert_eq!(entry["score"].as_f64().unwrap() as f32, expected.unwrap());
    }
    for (path, body, param) in [
        ("/v1/rerank", json!({"query": "x"}), "documents"),
        (
            "/v1/rerank",
            json!({"query": "x", "documents": []}),
            "documents",
        ),
        (
            "/v1/rerank",
            json!({"query": "x", "documents": ["y"], "top_n": 0}),
            "top_n",
        ),
        (
            "/v1/rerank",
            json!({"query": "x", "documents": [1]}),
            "documents",
        ),
        (
            "/v1/score",
            json!({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}),
            "text_1",
        ),
        ("/v1/score", json!({"text_1": "a"}), "text_2"),
        (
            "/v1/score",
            json!({"text_1": "a", "text_2": "b", "instruction": "c"}),
            "instruction",
        ),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
}

#[test]
fn faults_of_embeddings_are_told() {
    let refused = |body: Value, param: Value, word: &str| {
        let answer = SERVER.post("/v1/embeddings", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], param, "{body}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(word),
            "{body}: {error}"
        );
    };
    refused(json!({}), json!("input"), "missing");
    refused(json!({"input": []}), json!("input"), "empty");
    refused(json!({"input": {"a": 1}}), json!("input"), "list of texts");
    refused(json!({"input": [[99_999_999]]}), json!("input"), "input 0");
    refused(
        json!({"input": "x", "encoding_format": "hex"}),
        json!("encoding_format"),
        "base64",
    );
    refused(
        json!({"input": "x", "dimensions": 100_000}),
        json!("dimensions"),
        "1..=192",
    );
    refused(
        json!({"input": "x", "dimensions": 0}),
        json!("dimensions"),
        "at least 1",
    );
    refused(
        json!({"input": "x", "prompt_name": "query"}),
        json!("prompt_name"),
        "no prompts",
    );
    let answer = SERVER.post("/v1/rerank", &json!({"query": "x", "documents": ["y"]}));
    assert_eq!(answer.status, 400);
    assert!(
        answer.body.contains("does not score pairs"),
        "{}",
        answer.body
    );
}

/// OpenAI's client asks for base64 unless it is told otherwise.
#[test]
fn the_official_client_works() {
    let Some(python) = std::env::var_os("MLX_TEST_PYTHON") else {
        eprintln!("left out: MLX_TEST_PYTHON names no Python with the clients");
        return;
    };
    let (server, _dir) = server("nomic_bert");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/clients_embed.py");
    let output = Command::new(python)
        .arg(script)
        .arg(format!("http://{}", server.address))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

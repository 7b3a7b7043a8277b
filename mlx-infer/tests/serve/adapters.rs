//! Adapters that come and go while the server runs: vLLM's and llama.cpp's routes.

use std::path::{Path, PathBuf};

use mlx_infer::LoadedModel;
use mlx_infer::serve::{PoolOptions, PooledModel};
use serde_json::{Value, json};

use crate::client::{Answer, SERVER, TestServer};

fn testdata(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    root.join(name)
}

/// A copy of an adapter in the folder `to`.
fn copy(name: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(testdata("train/adapters").join(name)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

fn server(change: impl FnOnce(&mut mlx_infer::serve::ServeOptions)) -> TestServer {
    let load = || LoadedModel::load(testdata("models/qwen3"), Default::default());
    TestServer::of(load, change)
}

fn body(model: &str) -> Value {
    json!({
        "model": model, "prompt": [7, 1, 30, 12, 44, 2, 19, 55, 3, 21, 9, 40], "max_tokens": 12,
        "temperature": 0, "ignore_eos": true, "return_token_ids": true, "logprobs": 0,
    })
}

fn ids(answer: &Value) -> Value {
    let ids = answer["choices"][0]["token_ids"].clone();
    assert_eq!(ids.as_array().unwrap().len(), 12, "{answer}");
    ids
}

fn refused(answer: &Answer, status: u16, word: &str) {
    assert!(
        answer.status == status && answer.body.contains(word),
        "expected {status} and {word:?}, found {}: {}",
        answer.status,
        answer.body
    );
}

#[test]
fn adapters_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    copy("peft-qwen3", &folder.path().join("sport"));
    copy("dora-llama_tied", &folder.path().join("other"));
    let root = folder.path().to_owned();
    let server = server(|options| options.adapters_dir = Some(root));
    let load = |name: &str, path: &str| {
        server.post(
            "/v1/load_lora_adapter",
            &json!({"lora_name": name, "lora_path": path}),
        )
    };
    let unload = |name: &str| server.post("/v1/unload_lora_adapter", &json!({"lora_name": name}));
    let base = ids(&server.ok("/v1/completions", &body("tiny")));
    refused(
        &server.post("/v1/completions", &body("sport")),
        404,
        "model_not_found",
    );
    assert_eq!(server.get("/lora-adapters").json(), json!([]));

    let answer = load("sport", "sport");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "Success: LoRA adapter 'sport' added successfully.")
    );
    let mut adapted = LoadedModel::load(testdata("models/qwen3"), Default::default()).unwrap();
    adapted.load_adapter(folder.path().join("sport")).unwrap();
    let expected = {
        let options = mlx_infer::GenerateOptions {
            max_tokens: 12,
            ignore_eos: true,
            ..Default::default()
        };
        let prompt = vec![7, 1, 30, 12, 44, 2, 19, 55, 3, 21, 9, 40];
        let mut generation = adapted.generate(prompt, &options).unwrap();
        let generated = generation
            .run(|_| std::ops::ControlFlow::Continue(()))
            .unwrap();
        let ids = generated.tokens.iter().map(|choice| choice.id);
        json!(ids.collect::<Vec<u32>>())
    };
    assert_eq!(ids(&server.ok("/v1/completions", &body("sport"))), expected);
    assert_ne!(base, expected);
    assert_eq!(ids(&server.ok("/v1/completions", &body("tiny"))), base);
    let models = server.get("/v1/models").json();
    let own = models["data"].as_array().unwrap();
    let own = own.iter().find(|model| model["id"] == "sport").unwrap();
    assert_eq!(own["parent"], "tiny");
    let listed = json!([{"id": 0, "name": "sport", "path": "sport", "scale": 0.0}]);
    assert_eq!(server.get("/lora-adapters").json(), listed);

    refused(&load("sport", "sport"), 400, "already");
    refused(&load("tiny", "sport"), 400, "already");
    refused(&load("", "sport"), 400, "must not be empty");
    refused(&load("a\nb", "sport"), 400, "control characters");
    refused(&load("default", "sport"), 400, "stands for the model");
    refused(&load("x", "absent"), 404, "absent");
    refused(&load("x", "../sport"), 403, "is not in the server's folder");
    refused(
        &load("x", testdata("train/adapters/peft-qwen3").to_str().unwrap()),
        403,
        "folder",
    );
    let other = load("x", "other");
    refused(&other, 400, "no layer of the model has this name");
    refused(
        &other,
        400,
        "the tensors of the adapter in other do not fit",
    );
    assert!(
        !other.body.contains(folder.path().to_str().unwrap()),
        "{}",
        other.body
    );
    refused(&unload("x"), 404, "sport");

    let answer = unload("sport");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "Success: LoRA adapter 'sport' removed successfully.")
    );
    refused(
        &server.post("/v1/completions", &body("sport")),
        404,
        "model_not_found",
    );
    refused(&unload("sport"), 404, "there is no adapter");
    assert_eq!(load("again", "sport").status, 200);
    assert_eq!(server.get("/lora-adapters").json()[0]["id"], 1);
    assert_eq!(ids(&server.ok("/v1/completions", &body("again"))), expected);
}

/// The scale of an adapter, by request and for all requests that choose none.
#[test]
fn scales_are_of_requests_or_of_all() {
    let server = server(|options| {
        options.engine.adapters = vec![("sport".to_owned(), testdata("train/adapters/peft-qwen3"))];
    });
    let base = ids(&server.ok("/v1/completions", &body("tiny")));
    let expected = ids(&server.ok("/v1/completions", &body("sport")));
    assert_ne!(base, expected);
    let scaled = |model: &str, lora: Value| {
        let mut body = body(model);
        body["lora"] = lora;
        server.post("/v1/completions", &body)
    };
    for (model, lora, is_adapted) in [
        ("tiny", json!([{"id": 0, "scale": 1.0}]), true),
        ("tiny", json!([{"name": "sport", "scale": 1}]), true),
        ("sport", json!([{"id": 0, "scale": 1.0}]), true),
        ("sport", json!([{"id": 0, "scale": 0.0}]), false),
        ("tiny", json!([]), false),
        ("sport", json!(null), true),
    ] {
        let answer = scaled(model, lora.clone());
        assert_eq!(answer.status, 200, "{lora}: {}", answer.body);
        let expected = if is_adapted { &expected } else { &base };
        assert_eq!(&ids(&answer.json()), expected, "{model}, {lora}");
    }
    refused(
        &scaled("tiny", json!([{"id": 3, "scale": 1.0}])),
        400,
        "the id 3",
    );
    refused(&scaled("tiny", json!([{"scale": 1.0}])), 400, "neither");
    refused(&scaled("tiny", json!("sport")), 400, "lora");
    let set = |scales: Value| server.post("/lora-adapters", &scales);
    assert_eq!(
        set(json!([{"id": 0, "scale": 1.0}])).json(),
        json!({"success": true})
    );
    assert_eq!(server.get("/lora-adapters").json()[0]["scale"], 1.0);
    assert_eq!(ids(&server.ok("/v1/completions", &body("tiny"))), expected);
    assert_eq!(
        ids(&scaled("tiny", json!([{"id": 0, "scale": 0}])).json()),
        base
    );
    refused(&set(json!([{"id": 9, "scale": 1.0}])), 400, "the id 9");
    refused(&set(json!({"id": 0, "scale": 1.0})), 400, "list");
    assert_eq!(set(json!([])).status, 200);
    assert_eq!(ids(&server.ok("/v1/completions", &body("tiny"))), base);
}

#[test]
fn without_a_folder_of_adapters_none_come_or_go() {
    let server = server(|options| {
        options.engine.adapters = vec![("sport".to_owned(), testdata("train/adapters/peft-qwen3"))];
    });
    let body = json!({"lora_name": "x", "lora_path": "sport"});
    refused(
        &server.post("/v1/load_lora_adapter", &body),
        403,
        "--adapters-dir",
    );
    let body = json!({"lora_name": "sport"});
    refused(
        &server.post("/v1/unload_lora_adapter", &body),
        403,
        "--adapters-dir",
    );
    assert_eq!(server.get("/lora-adapters").json()[0]["name"], "sport");
    // A server without adapters says so.
    let scales = json!([{"id": 0, "scale": 1}]);
    refused(
        &SERVER.post("/lora-adapters", &scales),
        400,
        "the id 0; there are: none",
    );
}

/// Adapters are there again after the model was unloaded.
#[test]
fn adapters_survive_sleep() {
    let folder = tempfile::tempdir().unwrap();
    copy("peft-qwen3", &folder.path().join("sport"));
    let root = folder.path().to_owned();
    let model = PooledModel::new(["tiny"], |_| {
        LoadedModel::load(testdata("models/qwen3"), Default::default())
    });
    let server = TestServer::pool(vec![model], PoolOptions::default(), |options| {
        options.adapters_dir = Some(root);
    });
    let body_of_load = json!({"lora_name": "sport", "lora_path": "sport"});
    assert_eq!(
        server.post("/v1/load_lora_adapter", &body_of_load).status,
        200
    );
    let before = ids(&server.ok("/v1/completions", &body("sport")));
    assert_eq!(server.post("/sleep", &json!({})).status, 200);
    assert_eq!(server.post("/wake_up", &json!({})).status, 200);
    assert_eq!(ids(&server.ok("/v1/completions", &body("sport"))), before);
}

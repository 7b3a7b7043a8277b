//! Requests of one engine with different adapters.

use std::path::{Path, PathBuf};

use mlx_infer::{
    Engine, EngineOptions, GenerateOptions, LoadOptions, LoadedModel, Request, SamplingParams,
};

const PROMPT: [u32; 12] = [7, 1, 30, 12, 44, 2, 19, 55, 3, 21, 9, 40];

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

fn adapter() -> PathBuf {
    testdata("train/adapters/peft-qwen3")
}

fn load() -> mlx_infer::Result<LoadedModel> {
    LoadedModel::load(testdata("models/qwen3"), LoadOptions::default())
}

fn options(seed: u64) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 24,
        ignore_eos: true,
        logprobs: Some(0),
        sampling: SamplingParams {
            temperature: 1.0,
            seed: Some(seed),
            ..Default::default()
        },
        ..Default::default()
    }
}

fn tokens(model: &LoadedModel, seed: u64) -> Vec<u32> {
    let result = model.batch_generate(
        vec![Request::new(PROMPT.to_vec(), options(seed))],
        &Default::default(),
    );
    let [result] = &result.unwrap()[..] else {
        panic!()
    };
    result.tokens.iter().map(|choice| choice.id).collect()
}

#[test]
fn each_request_has_the_tokens_of_its_adapter() {
    let base = load().unwrap();
    let mut adapted = load().unwrap();
    adapted.load_adapter(adapter()).unwrap();
    let engine_options = EngineOptions {
        adapters: vec![("one".to_owned(), adapter()), ("two".to_owned(), adapter())],
        ..Default::default()
    };
    let engine = Engine::start(load, engine_options).unwrap();
    let names = [None, Some("one"), Some("two")];
    let handles: Vec<_> = (0..12u64)
        .map(|at| {
            let request = Request::new(PROMPT.to_vec(), options(at / 3));
            let request = match names[at as usize % 3] {
                Some(name) => request.with_adapter(name),
                None => request,
            };
            engine.submit(request).unwrap()
        })
        .collect();
    for (at, handle) in handles.into_iter().enumerate() {
        let result = handle.wait();
        assert!(result.error.is_none(), "{:?}", result.error);
        let found: Vec<u32> = result.tokens.iter().map(|choice| choice.id).collect();
        let model = if at % 3 == 0 { &base } else { &adapted };
        assert_eq!(found, tokens(model, at as u64 / 3), "{at}");
    }
    assert_ne!(tokens(&base, 0), tokens(&adapted, 0));
    let unknown = engine.submit(Request::new(PROMPT.to_vec(), options(0)).with_adapter("three"));
    let message = unknown.unwrap_err().to_string();
    assert!(
        message.contains("three") && message.contains("one, two"),
        "{message}"
    );
    engine.finish().unwrap();
}

#[test]
fn an_adapter_of_another_model_ends_the_start() {
    let dora = testdata("train/adapters/dora-llama_tied");
    let engine_options = EngineOptions {
        adapters: vec![("x".to_owned(), dora)],
        ..Default::default()
    };
    let error = Engine::start(load, engine_options).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no layer of the model has this name"),
        "{error}"
    );
}

#[test]
fn without_an_engine_there_are_no_names() {
    let model = load().unwrap();
    let request = Request::new(PROMPT.to_vec(), options(0)).with_adapter("one");
    let results = model.batch_generate(vec![request], &Default::default());
    let error = results.unwrap().remove(0).error.unwrap();
    assert!(error.to_string().contains("only an engine"), "{error}");
}

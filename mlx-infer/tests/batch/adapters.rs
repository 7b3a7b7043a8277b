//! Requests of one engine with different adapters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mlx_infer::mlx_core::random::{self, Key};
use mlx_infer::mlx_core::{Array, DType, safetensors};
use mlx_infer::{
    BatchResult, Engine, EngineOptions, GenerateOptions, LoadOptions, LoadedModel,
    MAX_ADAPTER_RANK, Request, SamplingParams, Speculative,
};
use serde_json::json;
use tempfile::TempDir;

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

/// An adapter of mlx-lm's format for `q_proj`, `o_proj` and `down_proj` of the checkpoint's layers, and its head.
fn made(seed: u64, rank: i32, scale: f64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let noise = |seed: u64, shape: &[i32]| {
        random::normal_with(&Key::new(seed).unwrap(), shape, DType::F32, 0.0f32, 0.4f32).unwrap()
    };
    let mut tensors: BTreeMap<String, Array> = BTreeMap::new();
    let mut add = |name: &str, inputs, outputs| {
        let seed = seed * 100 + tensors.len() as u64;
        tensors.insert(format!("{name}.lora_a"), noise(seed, &[inputs, rank]));
        tensors.insert(format!("{name}.lora_b"), noise(seed + 1, &[rank, outputs]));
    };
    for layer in 0..2 {
        add(&format!("model.layers.{layer}.self_attn.q_proj"), 32, 64);
        add(&format!("model.layers.{layer}.self_attn.o_proj"), 64, 32);
        add(&format!("model.layers.{layer}.mlp.down_proj"), 48, 32);
    }
    add("lm_head", 32, 64);
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    let file = dir.path().join("adapters.safetensors");
    safetensors::save(file, arrays, &BTreeMap::new()).unwrap();
    let lora = json!({"rank": rank, "scale": scale, "dropout": 0.0, "keys": []});
    let config = json!({"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": lora});
    std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    dir
}

fn with(adapter: &Path) -> LoadedModel {
    let mut model = load().unwrap();
    model.load_adapter(adapter).unwrap();
    model
}

fn ids(result: &BatchResult) -> Vec<u32> {
    assert!(result.error.is_none(), "{:?}", result.error);
    result.tokens.iter().map(|choice| choice.id).collect()
}

/// The tokens of a request without an engine.
fn alone(model: &LoadedModel, prompt: &[u32], options: GenerateOptions) -> Vec<u32> {
    let request = Request::new(prompt.to_vec(), options);
    let results = model.batch_generate(vec![request], &Default::default());
    ids(&results.unwrap()[0])
}

#[test]
fn rows_of_different_adapters_share_steps() {
    let other = made(3, 5, 0.8);
    let models = [load().unwrap(), with(&adapter()), with(other.path())];
    let options_of_engine = EngineOptions {
        adapters: vec![
            ("peft".to_owned(), adapter()),
            ("made".to_owned(), other.path().to_owned()),
        ],
        ..Default::default()
    };
    let names = [None, Some("peft"), Some("made")];
    for drafts in [Speculative::Off, Speculative::Tokens(3)] {
        let load = || {
            let options = LoadOptions {
                max_draft: 4,
                ..Default::default()
            };
            LoadedModel::load(testdata("models/qwen3"), options)
        };
        let engine = Engine::start(load, options_of_engine.clone()).unwrap();
        let options = |seed: u64| {
            let mut options = options(seed);
            options.speculative = drafts;
            if drafts != Speculative::Off {
                // Few tokens are allowed, so the texts repeat themselves.
                let bias = |id: u32| (id, if (5..9).contains(&id) { 0.0 } else { -1000.0 });
                options.sampling.logit_bias = (0..64).map(bias).collect();
            }
            options
        };
        // Prompts of different lengths, in one step with rows that decode.
        let rows: Vec<(usize, Vec<u32>, u64)> = (0..18u64)
            .map(|at| {
                let len = 6 + (at as usize * 5) % 23;
                let prompt = (0..len).map(|place| (place as u32 * 7 + at as u32 / 3) % 60 + 3);
                (at as usize % 3, prompt.collect(), at / 3)
            })
            .collect();
        // The engine is held until all requests are there.
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let wait = move |_: &LoadedModel| {
            let _ = begin.send(());
            let _ = held.recv();
        };
        engine.run(None, wait).unwrap();
        begun.recv().unwrap();
        let handles: Vec<_> = rows
            .iter()
            .map(|(model, prompt, seed)| {
                let mut request = Request::new(prompt.clone(), options(*seed));
                request.adapter = names[*model].map(str::to_owned);
                engine.submit(request).unwrap()
            })
            .collect();
        drop(hold);
        let mut drafted = 0;
        for (handle, (model, prompt, seed)) in handles.into_iter().zip(&rows) {
            let result = handle.wait();
            let mut plain = options(*seed);
            plain.speculative = Speculative::Off;
            let expected = alone(&models[*model], prompt, plain);
            assert_eq!(
                ids(&result),
                expected,
                "{:?}, {} tokens",
                names[*model],
                prompt.len()
            );
            drafted += result.metrics.drafted_tokens;
        }
        let forwards = engine.load().forwards;
        match drafts {
            // 24 tokens of each row: one pass for each token of all rows, and some for prompts. Rows of one adapter
            // at a time would need three times as many.
            Speculative::Off => assert!(forwards < 40, "{forwards}"),
            _ => assert!(drafted > 20, "{drafted}"),
        }
        engine.finish().unwrap();
    }
}

#[test]
fn prefixes_belong_to_one_adapter_and_scale() {
    let other = made(4, 2, 1.0);
    let models = [load().unwrap(), with(&adapter()), with(other.path())];
    let engine = Engine::start(load, EngineOptions::default()).unwrap();
    engine.load_adapter("peft", &adapter()).unwrap();
    engine.load_adapter("made", other.path()).unwrap();
    let prompt: Vec<u32> = (0..40).map(|at| at * 7 % 60 + 3).collect();
    let ask = |name: Option<&str>, scale: f32| {
        let request = Request::new(prompt.clone(), options(1)).with_adapter_scale(scale);
        let request = match name {
            Some(name) => request.with_adapter(name),
            None => request,
        };
        let result = engine.submit(request).unwrap().wait();
        (ids(&result), result.metrics.cached_tokens)
    };
    let (half, _) = ask(Some("made"), 0.5);
    for (model, name) in [None, Some("peft"), Some("made")].into_iter().enumerate() {
        let expected = alone(&models[model], &prompt, options(1));
        let (first, cached) = ask(name, 1.0);
        assert_eq!((&first, cached), (&expected, 0), "{name:?}");
        let (again, cached) = ask(name, 1.0);
        assert_eq!(again, expected, "{name:?}");
        assert!(cached >= 32, "{name:?}: {cached}");
    }
    // Scale 0 is the model without an adapter, and shares its prefixes.
    let (zero, cached) = ask(Some("made"), 0.0);
    assert_eq!(zero, alone(&models[0], &prompt, options(1)));
    assert!(cached >= 32, "{cached}");
    assert_eq!(
        half,
        alone(&with(made(4, 2, 0.5).path()), &prompt, options(1))
    );
    assert_ne!(half, ask(Some("made"), 1.0).0);
    // A folder that is loaded again is another adapter.
    engine.unload_adapter("peft").unwrap();
    engine.load_adapter("peft", made(9, 3, 1.0).path()).unwrap();
    let (changed, cached) = ask(Some("peft"), 1.0);
    assert_eq!(
        changed,
        alone(&with(made(9, 3, 1.0).path()), &prompt, options(1))
    );
    assert_eq!(cached, 0);
    engine.finish().unwrap();
}

#[test]
fn an_adapter_leaves_when_its_rows_have_ended() {
    let engine = Engine::start(load, EngineOptions::default()).unwrap();
    engine.load_adapter("one", &adapter()).unwrap();
    let long = GenerateOptions {
        max_tokens: 300,
        ..options(2)
    };
    let request = || Request::new(PROMPT.to_vec(), long.clone()).with_adapter("one");
    let handle = engine.submit(request()).unwrap();
    std::thread::scope(|scope| {
        let unloading = scope.spawn(|| engine.unload_adapter("one"));
        // New requests are refused at once.
        while !engine.adapters().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = engine.submit(request()).unwrap_err().to_string();
        assert!(refused.contains("there is no adapter \"one\""), "{refused}");
        let result = handle.wait();
        assert_eq!(
            ids(&result),
            alone(&with(&adapter()), &PROMPT, long.clone())
        );
        unloading.join().unwrap().unwrap();
    });
    let error = engine.unload_adapter("one").unwrap_err().to_string();
    assert!(error.contains("there is no adapter \"one\""), "{error}");
    let base = engine
        .submit(Request::new(PROMPT.to_vec(), options(0)))
        .unwrap();
    assert_eq!(ids(&base.wait()), tokens(&load().unwrap(), 0));
    engine.finish().unwrap();
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_and_the_others_stay() {
    let engine = Engine::start(load, EngineOptions::default()).unwrap();
    engine.load_adapter("one", &adapter()).unwrap();
    let refused = |name: &str, dir: &Path| engine.load_adapter(name, dir).unwrap_err().to_string();
    assert!(refused("one", &adapter()).contains("already"));
    assert!(refused("", &adapter()).contains("must not be empty"));
    let of_other = refused("x", &testdata("train/adapters/dora-llama_tied"));
    assert!(
        of_other.contains("no layer of the model has this name"),
        "{of_other}"
    );
    let wrong = made(1, 2, 1.0);
    let arrays = [
        ("model.layers.0.self_attn.q_proj.lora_a", [31, 2]),
        ("model.layers.0.self_attn.q_proj.lora_b", [2, 64]),
    ];
    let arrays = arrays.map(|(name, shape)| {
        let key = Key::new(1).unwrap();
        (name, random::normal(&key, &shape, DType::F32).unwrap())
    });
    let arrays = arrays.iter().map(|(name, array)| (*name, array));
    safetensors::save(
        wrong.path().join("adapters.safetensors"),
        arrays,
        &BTreeMap::new(),
    )
    .unwrap();
    let shapes = refused("x", wrong.path());
    assert!(
        shapes.contains("model.layers.0.self_attn.q_proj") && shapes.contains("[31, 2]"),
        "{shapes}"
    );
    let rank = refused("x", made(1, MAX_ADAPTER_RANK as i32 + 1, 1.0).path());
    assert!(rank.contains("rank 513") && rank.contains("512"), "{rank}");
    let absent = refused("x", Path::new("no/such/folder"));
    assert!(absent.contains("no/such/folder"), "{absent}");
    let request = Request::new(PROMPT.to_vec(), options(0));
    let request = request.with_adapter("one").with_adapter_scale(f32::NAN);
    let scale = engine.submit(request).unwrap_err().to_string();
    assert!(scale.contains("must be finite"), "{scale}");
    let request = Request::new(PROMPT.to_vec(), options(0)).with_adapter("one");
    let result = engine.submit(request).unwrap().wait();
    assert_eq!(ids(&result), tokens(&with(&adapter()), 0));
    engine.finish().unwrap();
}

/// A folder with the model's own parameters has steps of its own, and is given at the start.
#[test]
fn parameters_of_the_model_itself_are_an_adapter_at_the_start() {
    let full = tempfile::tempdir().unwrap();
    let key = Key::new(6).unwrap();
    let norm = random::normal_with(&key, &[32], DType::F32, 1.0f32, 0.5f32).unwrap();
    let arrays = [("model.norm.weight", &norm)];
    let file = full.path().join("adapters.safetensors");
    safetensors::save(file, arrays, &BTreeMap::new()).unwrap();
    let config = json!({"fine_tune_type": "full", "num_layers": 2}).to_string();
    std::fs::write(full.path().join("adapter_config.json"), config).unwrap();
    let engine_options = EngineOptions {
        adapters: vec![
            ("full".to_owned(), full.path().to_owned()),
            ("one".to_owned(), adapter()),
        ],
        ..Default::default()
    };
    let engine = Engine::start(load, engine_options).unwrap();
    for (name, model) in [("full", with(full.path())), ("one", with(&adapter()))] {
        let request = Request::new(PROMPT.to_vec(), options(0)).with_adapter(name);
        let result = engine.submit(request).unwrap().wait();
        assert_eq!(ids(&result), tokens(&model, 0), "{name}");
    }
    let error = engine
        .load_adapter("x", full.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("parameters of the model itself"), "{error}");
    let error = engine.unload_adapter("full").unwrap_err().to_string();
    assert!(error.contains("cannot be unloaded"), "{error}");
    engine.finish().unwrap();
}

/// Scores are those of the adapter, too.
#[test]
fn other_work_has_the_adapter() {
    let engine = Engine::start(load, EngineOptions::default()).unwrap();
    engine.load_adapter("one", &adapter()).unwrap();
    let score = |model: &LoadedModel| -> Vec<f32> {
        let scores = model.score(vec![5u32, 9, 2, 40, 12], &Default::default());
        scores.unwrap().logprobs.into_iter().flatten().collect()
    };
    let of_engine = |name: Option<&str>| {
        let (send, receive) = std::sync::mpsc::channel();
        let job = move |model: &LoadedModel| {
            send.send(score(model)).unwrap();
        };
        engine.run(name, job).unwrap();
        receive.recv().unwrap()
    };
    let (base, adapted) = (score(&load().unwrap()), score(&with(&adapter())));
    assert_eq!(base.len(), 4);
    assert_eq!(of_engine(None), base);
    for (found, expected) in of_engine(Some("one")).iter().zip(&adapted) {
        assert!(
            (found - expected).abs() < 1e-5,
            "{found}, expected {expected}"
        );
    }
    assert_ne!(base, adapted);
    engine.finish().unwrap();
}

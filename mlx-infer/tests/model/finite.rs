//! Models that compute NaN: an error names its origin, or tokens whose logit is NaN are excluded.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::{Array, DType, Safetensors, safetensors};
use mlx_infer::{
    BatchResult, ClassifyOptions, Error, ErrorKind, GenerateOptions, Limits, LoadOptions,
    LoadedModel, Prompt, Request, ScoreOptions,
};
use tempfile::TempDir;

use crate::command::{mlx_infer, with_input};

const EMBEDDING: &str = "model.embed_tokens.weight";

/// A copy of the built-in model in which the number at `at` of tensor `name` is replaced.
fn with_number(name: &str, at: usize, number: f32) -> TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/default-model");
    let copy = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(file), copy.path().join(file)).unwrap();
    }
    let file = Safetensors::open(from.join("model.safetensors")).unwrap();
    let read = |tensor: &str| {
        let array = file.array(tensor).unwrap();
        if tensor != name {
            return array;
        }
        let mut numbers = array.astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        numbers[at] = number;
        let changed = Array::from_slice(&numbers, array.shape()).unwrap();
        changed.astype(array.dtype()).unwrap()
    };
    let arrays: Vec<(&str, Array)> = file.names().map(|name| (name, read(name))).collect();
    assert!(arrays.iter().any(|(tensor, _)| *tensor == name), "{name}");
    let path = copy.path().join("model.safetensors");
    let arrays = arrays.iter().map(|(name, array)| (*name, array));
    safetensors::save(path, arrays, &BTreeMap::new()).unwrap();
    copy
}

fn load(dir: &TempDir, allow_nan: bool) -> LoadedModel {
    let options = LoadOptions {
        allow_nan,
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    LoadedModel::load(dir.path(), options).unwrap()
}

fn options(temperature: f32) -> GenerateOptions {
    let mut options = GenerateOptions {
        max_tokens: 6,
        ignore_eos: true,
        ..Default::default()
    };
    options.sampling.temperature = temperature;
    options.sampling.seed = Some(1);
    options
}

fn batch(model: &LoadedModel) -> Vec<BatchResult> {
    let request = |t| Request::new(vec![5u32, 6, 7], options(t));
    let requests = [0.0, 1.0].map(request);
    model
        .batch_generate(requests.into(), &Limits::default())
        .unwrap()
}

fn labels() -> ClassifyOptions {
    ClassifyOptions {
        labels: vec![" yes".into(), " no, it is not".into()],
        ..Default::default()
    }
}

/// The errors of every function that runs the model.
fn errors(model: &LoadedModel) -> Vec<Error> {
    let prompt = || vec![5u32, 6, 7];
    let mut errors = Vec::new();
    for temperature in [0.0, 1.0] {
        let mut generation = model.generate(prompt(), &options(temperature)).unwrap();
        errors.extend(generation.find_map(Result::err));
    }
    errors.extend(batch(model).into_iter().filter_map(|result| result.error));
    errors.extend(model.score(prompt(), &ScoreOptions::default()).err());
    errors.extend(model.score(vec![5u32], &ScoreOptions::default()).err());
    for options in [labels(), ClassifyOptions::default()] {
        let results = model.classify(vec![Prompt::Tokens(prompt())], &options);
        errors.extend(results.unwrap().into_iter().filter_map(Result::err));
    }
    errors
}

#[test]
fn nan_is_an_error_that_names_its_origin() {
    let nan = f32::NAN;
    // NaN in the embedding, which is also the head; NaN in a layer; values that overflow in a
    // layer.
    for (name, number, origin) in [
        (EMBEDDING, nan, "model.embed_tokens.weight has NaN"),
        (
            "model.layers.1.mlp.up_proj.weight",
            nan,
            "model.layers.1.mlp.up_proj.weight has NaN",
        ),
        (
            "model.layers.2.mlp.down_proj.weight",
            f32::INFINITY,
            "layer 2 at token 0, where model.layers.2.mlp.down_proj.weight is infinite",
        ),
        (
            "model.layers.0.pre_feedforward_layernorm.weight",
            3e38,
            "layer 0 at token 0 (",
        ),
    ] {
        let copy = with_number(name, 3, number);
        let errors = errors(&load(&copy, false));
        assert_eq!(errors.len(), 8, "{name}: {errors:?}");
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::NotFinite, "{error}");
            let message = error.to_string();
            assert!(message.contains("not finite numbers"), "{message}");
            assert!(message.contains(origin), "{message}");
        }
    }
}

#[test]
fn allowed_nan_is_a_token_that_cannot_follow() {
    let whole = LoadedModel::load_default().unwrap();
    let ids = |result: &BatchResult| result.tokens.iter().map(|t| t.id).collect::<Vec<_>>();
    // The likeliest token is excluded, so another one must be chosen.
    let first = ids(&batch(&whole)[0])[0];
    let copy = with_number(EMBEDDING, first as usize * 192 + 5, f32::NAN);
    let model = load(&copy, true);
    assert!(errors(&model).is_empty());
    let score = model
        .score(vec![5u32, 6, 7], &ScoreOptions::default())
        .unwrap();
    assert!(
        score
            .next
            .iter()
            .all(|&(id, logprob)| id != first && logprob.is_finite())
    );
    let mut forbidden = options(0.0);
    forbidden.sampling.logit_bias = BTreeMap::from([(first, f32::NEG_INFINITY)]);
    let requests = vec![Request::new(vec![5u32, 6, 7], forbidden)];
    let expected = whole.batch_generate(requests, &Limits::default()).unwrap();
    // A bias of minus infinity is no fault.
    assert!(expected[0].error.is_none());
    assert_eq!(ids(&batch(&model)[0]), ids(&expected[0]));
}

#[test]
fn commands_fail_where_the_model_gives_nan() {
    let copy = with_number(EMBEDDING, 3, f32::NAN);
    let model = copy.path().to_str().unwrap();
    let commands: [(&[&str], &str); 4] = [
        (&["generate", "--tokens", "5,6"], ""),
        (&["score", "--tokens", "5,6"], ""),
        (&["classify", "--labels", "a,b"], "hello\n"),
        (&["batch"], "{\"tokens\":[5,6]}\n"),
    ];
    for (command, input) in commands {
        let run = |more: &[&str]| {
            let args = [command, &["--model", model], more].concat();
            match input {
                "" => mlx_infer(&args),
                input => with_input(&args, input.as_bytes()),
            }
        };
        let output = run(&[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
        let last = stderr.lines().last().unwrap();
        assert!(
            last.starts_with("error: the model's logits are not finite"),
            "{last}"
        );
        assert!(last.contains("model.embed_tokens.weight has NaN"), "{last}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(!stdout.contains("null"), "{stdout}");
        assert_eq!(run(&["--allow-nan"]).status.code(), Some(0), "{command:?}");
    }
}

/// `info` and `convert` do their work and report the NaN weights, in text and in JSON.
#[test]
fn info_and_convert_tell_of_weights_that_are_no_numbers() {
    let name = "model.layers.1.mlp.up_proj.weight";
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let dir = with_number(name, 7, number);
        let model = dir.path().to_str().unwrap();
        let out = tempfile::tempdir().unwrap();
        let out = out.path().join("out");
        let convert = [
            "convert",
            "--model",
            model,
            "--out",
            out.to_str().unwrap(),
            "--quantize",
        ];
        let run = |args: &[&str]| {
            let output = mlx_infer(args);
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{stderr}");
            String::from_utf8(output.stdout).unwrap()
        };
        let line = |text: &str, begin: &str| {
            let mut lines = text.lines();
            let found = lines
                .find(|line| line.starts_with(begin))
                .map(str::to_owned);
            found.unwrap_or_else(|| panic!("no {begin:?} in {text}"))
        };
        let told = line(&run(&["info", "--model", model]), "NaN, infinite");
        assert_eq!(
            told,
            format!("NaN, infinite   1 elements of 1 tensors, first in {name}")
        );
        let told = line(&run(&convert), "warning:");
        let expected = "warning: 1 elements of 1 tensors are NaN or infinite, first in";
        assert_eq!(told, format!("{expected} {name}"));
        let json: serde_json::Value =
            serde_json::from_str(&run(&["info", "--model", model, "--json"])).unwrap();
        let expected = serde_json::json!({"elements": 1, "tensors": 1, "first": name});
        assert_eq!(json["non_finite"], expected);
    }
    // For a model without NaN this line is missing.
    let dir = with_number(name, 7, 0.5);
    let output = mlx_infer(&["info", "--model", dir.path().to_str().unwrap()]);
    assert!(!String::from_utf8(output.stdout).unwrap().contains("NaN"));
}

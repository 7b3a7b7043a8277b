//! The answers of mlx_lm equal the native ones: greedy tokens, texts, penalties, log probabilities.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use mlx_core::DType;
use mlx_infer::{
    Files, GenerateOptions, LoadOptions, LoadedModel, Message, MlxLm, MlxLmOptions, Prompt,
    SamplingParams, TextModel, backends, default_model_files,
};

use crate::checkpoint;

/// The Python that has mlx_lm. `None` in the second run of the tests, without this project's CPU
/// kernels: it would repeat the same comparison.
fn python() -> Option<PathBuf> {
    if std::env::var_os("MLX_CPU_KERNELS").is_some() {
        return None;
    }
    let python = std::env::var_os("MLX_TEST_PYTHON").map(PathBuf::from);
    let has_it = |python: &PathBuf| {
        let all = backends(Some(python));
        all.iter()
            .any(|backend| backend.name == "mlx-lm" && backend.version.is_ok())
    };
    let found = python.filter(has_it);
    if found.is_none() {
        eprintln!("left out: MLX_TEST_PYTHON names no Python with mlx_lm");
    }
    found
}

/// Whether two log probabilities of the built-in model are as close as mlx_lm's rounding allows: it rounds the scale of
/// Gemma's embeddings to bf16, which moves very unlikely tokens by more than a hundredth.
fn is_near(a: f32, b: f32) -> bool {
    (a.exp() - b.exp()).abs() < 0.005
}

fn load(files: Files, dtype: Option<DType>, python: PathBuf) -> MlxLm {
    let options = MlxLmOptions {
        python: Some(python),
        dtype,
        timeout: Duration::from_secs(120),
        ..Default::default()
    };
    MlxLm::load(files, options).unwrap()
}

/// A request: its prompt and options.
fn requests() -> Vec<(Prompt, GenerateOptions)> {
    let base = GenerateOptions {
        max_tokens: 24,
        logprobs: Some(3),
        ..Default::default()
    };
    let with = |sampling| GenerateOptions {
        sampling,
        ..base.clone()
    };
    vec![
        ("The red fox".into(), base.clone()),
        ("47 + 38 =".into(), base.clone()),
        (
            "The old man".into(),
            with(SamplingParams {
                repeat_penalty: 1.5,
                repeat_context: 10,
                ..Default::default()
            }),
        ),
        (
            "The old man".into(),
            with(SamplingParams {
                presence_penalty: 1.0,
                frequency_penalty: 0.5,
                ..Default::default()
            }),
        ),
        (
            "The red fox".into(),
            with(SamplingParams {
                logit_bias: [(40, 3.0), (300, f32::NEG_INFINITY)].into(),
                ..Default::default()
            }),
        ),
    ]
}

#[test]
fn the_built_in_model_answers_as_natively() {
    let Some(python) = python() else { return };
    let (other, native) = (
        load(default_model_files(), None, python),
        LoadedModel::load_default().unwrap(),
    );
    let all = requests();
    let batch = TextModel::batch_generate(&other, &all).unwrap();
    for ((prompt, options), batched) in all.iter().zip(batch) {
        let batched = batched.unwrap();
        let run = |model: &dyn TextModel| {
            model
                .generate(prompt, options, &mut |_| ControlFlow::Continue(()))
                .unwrap()
        };
        let (expected, alone) = (run(&native), run(&other));
        for found in [&alone, &batched] {
            assert_eq!(found.text, expected.text, "{prompt:?} {options:?}");
            assert_eq!(found.reason, expected.reason);
            for (found, expected) in found.tokens.iter().zip(&expected.tokens) {
                assert_eq!(found.id, expected.id);
                assert!(
                    is_near(found.logprob.unwrap(), expected.logprob.unwrap()),
                    "{found:?} {expected:?}"
                );
                for (&(_, a), &(_, b)) in found.top.iter().zip(&expected.top) {
                    assert!(is_near(a, b), "{found:?} {expected:?}");
                }
            }
        }
    }
    let question = [Message::new("user", "What is 20 + 22?")];
    let options = GenerateOptions::default();
    let answer = TextModel::chat(
        &other,
        &question,
        &Default::default(),
        &options,
        &mut |_| ControlFlow::Continue(()),
    );
    assert_eq!(answer.unwrap().text.as_deref(), Some("42"));

    // Draws depend only on the seed.
    let drawn = |seed| {
        let options = GenerateOptions {
            sampling: SamplingParams {
                temperature: 1.5,
                top_p: 0.95,
                top_k: 50,
                min_p: 0.001,
                seed: Some(seed),
                ..Default::default()
            },
            max_tokens: 16,
            ..Default::default()
        };
        let prompt = "The red fox".into();
        other
            .generate(&prompt, &options, &mut |_| ControlFlow::Continue(()))
            .unwrap()
            .text
    };
    assert_eq!(drawn(u64::MAX), drawn(u64::MAX));
    assert_ne!(drawn(1), drawn(2));
    assert_eq!(other.info().n_parameters, native.info().n_parameters);
    assert_eq!(
        (other.info().vocab, other.info().max_positions),
        (native.info().vocab, native.info().max_positions)
    );
}

#[test]
fn fixtures_answer_as_natively() {
    let Some(python) = python() else { return };
    for case in ["gemma3_text", "qwen3_next"] {
        let files = Files::directory(checkpoint::dir(case)).unwrap();
        let dtype = Some(DType::F32);
        let other = load(files, dtype, python.clone());
        let native = LoadedModel::load(
            checkpoint::dir(case),
            LoadOptions {
                dtype,
                ..Default::default()
            },
        )
        .unwrap();
        let options = GenerateOptions {
            max_tokens: 12,
            ..Default::default()
        };
        for ids in [vec![3, 1, 4, 1, 5, 9, 2, 6], vec![7; 20]] {
            let prompt = Prompt::Tokens(ids);
            let run = |model: &dyn TextModel| {
                let generated =
                    model.generate(&prompt, &options, &mut |_| ControlFlow::Continue(()));
                generated
                    .unwrap()
                    .tokens
                    .iter()
                    .map(|choice| choice.id)
                    .collect::<Vec<_>>()
            };
            assert_eq!(run(&other), run(&native), "{case}");
        }
        assert_eq!(other.info().vocab, native.info().vocab);
        assert_eq!(other.info().max_positions, native.info().max_positions);
    }
}

//! A trained head for multi-token prediction: the model of `cargo xtask train-hybrid`.

use std::io::BufRead;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType};
use mlx_infer::{
    Constraint, GenerateOptions, Grammar, Limits, LoadOptions, LoadedModel, Message, Request,
    SamplingParams, Speculative,
};
use mlx_nn::{CacheOptions, ModelCache};
use serde_json::Value;

use crate::speculation::same;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

fn load(max_draft: usize) -> LoadedModel {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        max_draft,
        ..LoadOptions::default()
    };
    LoadedModel::load(testdata("hybrid-model"), options).unwrap()
}

/// Prompts that were held out of training, every `every`th.
fn prompts(model: &LoadedModel, every: usize) -> Vec<Vec<u32>> {
    let file = std::fs::File::open(testdata("default-model/heldout.jsonl")).unwrap();
    let lines = std::io::BufReader::new(file).lines().step_by(every);
    lines
        .map(|line| {
            let row: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let prompt = row["prompt"].as_str().unwrap();
            match row["form"].as_str() {
                Some("plain") => model.tokenizer().unwrap().encode(prompt, true).unwrap(),
                _ => model
                    .chat_ids(&[Message::new("user", prompt)], &Default::default())
                    .unwrap(),
            }
        })
        .collect()
}

/// The head predicts at least seven tenths of the tokens of greedy answers to held-out prompts,
/// each from the features and the token before it.
#[test]
fn most_first_drafts_are_right() {
    let texts = prompts(&load(0), 25);
    let options = mlx_models::LoadOptions {
        dtype: Some(DType::F32),
        drafts: true,
        ..Default::default()
    };
    let loaded = mlx_models::load(testdata("hybrid-model"), options).unwrap();
    let model = loaded.model.as_ref();
    let likeliest = |features: &Array| -> u32 {
        let logits = model.logits(features).unwrap();
        logits.argmax(-1, false).unwrap().item().unwrap()
    };
    let (mut drafts, mut right) = (0, 0);
    for text in texts {
        let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
        let (mut tokens, mut draft) = (text, None);
        for _ in 0..30 {
            let width = tokens.len() as i32;
            let input = Array::from_slice(&tokens, &[1, width]).unwrap();
            let mut step = cache.begin(&[tokens.len()]).unwrap();
            let hidden = model.hidden(&input, &mut step).unwrap();
            step.commit_all().unwrap();
            let last = hidden.slice_axis(1, width - 1, width).unwrap();
            let next = likeliest(&last);
            if let Some(draft) = draft {
                drafts += 1;
                right += usize::from(draft == next);
            }
            if [1, 5].contains(&next) {
                break;
            }
            tokens = vec![next];
            let input = Array::from_slice(&tokens, &[1, 1]).unwrap();
            let mut step = cache.begin(&[1]).unwrap();
            let head = model.drafting().unwrap();
            draft = Some(likeliest(&head.follow(&input, None, &mut step).unwrap()));
        }
    }
    assert!(drafts > 40, "{drafts}");
    assert!(10 * right >= 7 * drafts, "{right} of {drafts}");
}

/// Rows with the head's drafts take fewer steps and get the same tokens: greedy rows, sampled rows,
/// rows with a grammar, rows with penalties.
#[test]
fn its_drafts_save_steps_and_do_not_show() {
    let (plain, model) = (load(0), load(4));
    let words = Grammar::Regex("[a-zA-Z ,.]+".to_owned());
    let rows: Vec<(Vec<u32>, GenerateOptions)> = prompts(&model, 40)
        .into_iter()
        .enumerate()
        .map(|(row, text)| {
            let options = GenerateOptions {
                max_tokens: 24,
                logprobs: Some(2),
                ignore_eos: row % 4 == 2,
                grammar: (row % 4 == 3).then(|| Constraint::from(words.clone())),
                sampling: SamplingParams {
                    temperature: if row % 3 == 1 { 0.8 } else { 0.0 },
                    frequency_penalty: if row % 5 == 4 { 0.3 } else { 0.0 },
                    seed: Some(row as u64),
                    ..Default::default()
                },
                speculative: Speculative::Tokens(1 + row % 3),
                ..Default::default()
            };
            (text, options)
        })
        .collect();
    let requests = rows
        .iter()
        .map(|(text, options)| Request::new(text.clone(), options.clone()))
        .collect();
    let (mut steps, mut tokens) = (0, 0);
    let results = model.batch_generate(requests, &Limits::default()).unwrap();
    for (row, (result, (text, options))) in results.into_iter().zip(rows).enumerate() {
        assert!(result.error.is_none(), "row {row}: {:?}", result.error);
        let options = GenerateOptions {
            speculative: Speculative::Off,
            ..options
        };
        let mut generation = plain.generate(text, &options).unwrap();
        let expected = generation.run(|_| ControlFlow::Continue(())).unwrap();
        assert!(same(&result.tokens, &expected.tokens), "row {row}");
        steps += result.metrics.decode_steps;
        tokens += result.metrics.decode_tokens;
    }
    assert!(10 * steps < 8 * tokens, "{steps} steps for {tokens} tokens");
}

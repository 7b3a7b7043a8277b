//! Evaluation: its loss equals that of training, and its accuracy that of a plain loop, with the
//! head as a whole and in parts.

use std::path::Path;

use mlx_core::{DType, Result, memory};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::{Param, Path as Name, VisitMut};
use mlx_train::evaluate::{check, evaluate};
use mlx_train::loss::{logits, sum_loss};
use mlx_train::{Batch, Example};

fn model(name: &str) -> Box<dyn Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load(path.join(name), options).unwrap().model
}

fn examples(model: &dyn Model) -> Vec<Example> {
    let mut examples: Vec<Example> = (0..5usize)
        .map(|row| {
            let tokens = (0..6 + row * 3).map(|at| ((row * 5 + at * 7) % 60) as u32);
            Example::new(tokens.collect(), row)
        })
        .collect();
    examples[2].weights = Some((0..12).map(|at| [0.5, 0.0, 2.0][at % 3]).collect());
    // One example is the model's own continuation, so that some tokens are right.
    let mut said = vec![7u32, 1];
    for _ in 0..4 {
        let row = Example::new([said.as_slice(), &[0]].concat(), 1);
        let batch = Batch::new([[&row]]).unwrap();
        let next = logits(model, &batch).unwrap().argmax(-1, false).unwrap();
        said.push(*next.to_vec::<u32>().unwrap().last().unwrap());
    }
    examples.push(Example::new(said, 2));
    examples
}

#[test]
fn evaluation_is_the_loss_of_training_and_counts_what_is_right() {
    for name in ["qwen3", "gemma2", "q_gemma3_text_b4_g32"] {
        let model = model(name);
        let model = model.as_ref();
        let examples = examples(model);
        for chunk in [None, Some(1), Some(25), Some(64), Some(1000)] {
            let found = evaluate(model, &examples, 3, None, chunk).unwrap();
            // An evaluation orders its batches differently, but its sums are over all of them.
            let (mut sum, mut weight, mut right, mut rows, mut tokens) = (0.0, 0.0, 0, 0, 0);
            for example in &examples {
                let batch = Batch::new([[example]]).unwrap();
                let loss = sum_loss(model, &batch, chunk).unwrap();
                sum += f64::from(loss.item::<f32>().unwrap());
                weight += batch.weight;
                let best = logits(model, &batch).unwrap().argmax(-1, false).unwrap();
                let best = best.to_vec::<u32>().unwrap();
                let learnt: Vec<usize> = (1..example.tokens.len())
                    .filter(|&at| example.weight(at) > 0.0)
                    .collect();
                let good = learnt
                    .iter()
                    .filter(|&&at| best[at - 1] == example.tokens[at]);
                let good = good.count();
                tokens += learnt.len();
                right += good;
                rows += usize::from(good == learnt.len());
            }
            assert!(rows >= 1 && rows < examples.len(), "{name}: {rows} rows");
            let what = format!("{name}, {chunk:?}");
            assert!(
                (found.loss - sum / weight).abs() < 1e-5 * found.loss,
                "{what}"
            );
            assert_eq!(found.perplexity, found.loss.exp(), "{what}");
            assert_eq!(
                (found.tokens, found.examples),
                (tokens, examples.len()),
                "{what}"
            );
            assert_eq!(found.token_accuracy, right as f64 / tokens as f64, "{what}");
            assert_eq!(
                found.accuracy,
                rows as f64 / examples.len() as f64,
                "{what}"
            );
        }
        let error = evaluate(model, &examples, 3, None, Some(0)).unwrap_err();
        assert!(error.to_string().contains("at least 1, given 0"), "{error}");
    }
}

/// The loss of one batch equals the loss of training to the bit.
#[test]
fn evaluation_has_the_bits_of_training() {
    let model = model("gemma3_text");
    let examples = examples(model.as_ref());
    let (one, many) = (&examples[1..2], &examples[..3]);
    for chunk in [None, Some(25)] {
        for some in [one, many] {
            let batch = Batch::new(some.iter().map(|row| [row])).unwrap();
            let sum = sum_loss(model.as_ref(), &batch, chunk).unwrap();
            let sum = f64::from(sum.item::<f32>().unwrap());
            let found = evaluate(model.as_ref(), some, 3, None, chunk).unwrap();
            assert_eq!(found.loss, sum / batch.weight, "{chunk:?}");
        }
    }
}

/// With a large vocabulary, the logits of a whole batch are never in memory, and those of prompts are not computed.
#[test]
fn the_logits_of_an_evaluation_never_exist() {
    const VOCAB: usize = 30_000;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3/config.json");
    let text = std::fs::read(path).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    config["vocab_size"] = VOCAB.into();
    let model = mlx_models::initialised("wide", config, 1).unwrap().model;
    let tokens = |n: u32| (0..n).map(|at| at * 997 % 30_000).collect::<Vec<u32>>();
    let all = [Example::new(tokens(200), 0)];
    let answer = [Example::new(tokens(200), 195)];
    let peak = |examples: &[Example], chunk| {
        evaluate(model.as_ref(), examples, 1, None, chunk).unwrap();
        memory::reset_peak().unwrap();
        let before = memory::active().unwrap();
        evaluate(model.as_ref(), examples, 1, None, chunk).unwrap();
        memory::peak().unwrap() - before
    };
    let logits = 199 * VOCAB * 4;
    let whole = peak(&all, None);
    assert!(whole > logits, "{whole}");
    let sliced = peak(&all, Some(1000));
    assert!(sliced < logits / 4, "{sliced} of {logits}");
    let answer = peak(&answer, None);
    assert!(answer < logits / 4, "{answer} of {logits}");
}

#[test]
fn a_loss_of_nan_is_an_error_that_names_its_origin() {
    struct Break(&'static str);
    impl VisitMut for Break {
        fn param(&mut self, path: &Name, param: &mut Param) -> Result<()> {
            if path.as_str() == self.0 {
                param.set(param.value().multiply(f32::NAN)?);
            }
            Ok(())
        }
    }
    let mut model = model("qwen3");
    let examples = examples(model.as_ref());
    let found = evaluate(model.as_ref(), &examples, 3, None, None).unwrap();
    check(&found, model.as_ref(), &examples, None).unwrap();
    let name = "model.layers.1.mlp.gate_proj.weight";
    model
        .visit_mut(&mut Name::default(), &mut Break(name))
        .unwrap();
    for chunk in [None, Some(25)] {
        let found = evaluate(model.as_ref(), &examples, 3, None, chunk).unwrap();
        assert!(found.loss.is_nan());
        let error = check(&found, model.as_ref(), &examples, chunk).unwrap_err();
        assert!(
            error.to_string().contains(&format!("{name} has NaN")),
            "{error}"
        );
    }
}

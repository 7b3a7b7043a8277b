//! Runs: the order of the data, resumption to the bit, and checkpoints that survive a kill.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mlx_core::{DType, random};
use mlx_models::adapter::{AdapterConfig, AdapterKind};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::lora::{LoraConfig, attach};
use mlx_nn::trainable::{set_trainable, trainable};
use mlx_train::checkpoint::Output;
use mlx_train::feed::{Feed, FeedOptions};
use mlx_train::trainer::Event;
use mlx_train::{Example, Method, Schedule, Trainer, TrainerConfig};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(name)
}

fn model(lora: bool) -> Box<dyn Model> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let mut model = load(testdata("qwen3"), options).unwrap().model;
    if lora {
        let config = LoraConfig {
            rank: 2,
            dropout: 0.2,
            ..LoraConfig::default()
        };
        let key = random::Key::new(1).unwrap();
        attach(model.as_mut(), &config, &key, |path| {
            path.ends_with("_proj")
        })
        .unwrap();
    } else {
        set_trainable(model.as_mut(), |_| true).unwrap();
    }
    model
}

/// Texts that count upwards, which can be learnt.
fn examples(n: usize) -> Vec<Example> {
    (0..n)
        .map(|index| {
            let (first, length) = (index * 7 % 40, 4 + index * 5 % 13);
            let tokens = (first..first + length).map(|id| id as u32).collect();
            Example::new(tokens, index % 3)
        })
        .collect()
}

fn config(steps: u64) -> TrainerConfig {
    TrainerConfig {
        steps,
        batch_size: 2,
        batch_tokens: None,
        accumulate: 2,
        pack: None,
        recompute: false,
        ce_chunk: None,
        mtp: None,
        seed: 3,
        clip: Some(1.0),
        method: Method::AdamW(Default::default()),
        schedule: Schedule::cosine(3e-3, 1e-4, 20).with_warmup(3, 0.0),
        eval_every: 4,
        eval_batches: None,
        save_every: 3,
        patience: None,
    }
}

fn output(dir: &Path) -> Output {
    Output {
        dir: dir.to_owned(),
        config: AdapterConfig {
            kind: AdapterKind::Full,
            rank: 0,
            scale: 0.0,
            dropout: 0.0,
            num_layers: -1,
            keys: Vec::new(),
            facts: serde_json::Map::new(),
        },
    }
}

fn bits(model: &dyn Model) -> Vec<(String, Vec<u32>)> {
    let params = trainable(model).unwrap();
    let bits = |array: &mlx_core::Array| {
        let numbers = array.to_vec::<f32>().unwrap();
        numbers.into_iter().map(f32::to_bits).collect()
    };
    params
        .iter()
        .map(|(name, array)| (name.clone(), bits(array)))
        .collect()
}

/// The losses of a run, and the weights after it. The run stops after the steps of `breaks`, and is resumed each time
/// with a new model and a new trainer.
fn run(
    config: &TrainerConfig,
    lora: bool,
    dir: &Path,
    breaks: &[u64],
) -> (Vec<f64>, Vec<(String, Vec<u32>)>) {
    let (train, valid) = (examples(11), examples(4));
    let mut losses = Vec::new();
    let stops = breaks.iter().map(|&step| Some(step)).chain([None]);
    for (attempt, stop) in stops.enumerate() {
        let mut model = model(lora);
        let out = Some(output(dir));
        let mut trainer =
            Trainer::new(model.as_mut(), config.clone(), &train, &valid, out).unwrap();
        assert_eq!(trainer.resume().unwrap(), attempt > 0);
        let done = trainer
            .run(|event| {
                if let Event::Step { step, loss, .. } = event {
                    losses.push(*loss);
                    if Some(*step) == stop {
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(done, stop.is_none());
        if done {
            return (losses, bits(model.as_ref()));
        }
    }
    unreachable!("the last attempt has no stop")
}

#[test]
fn resumed_equals_uninterrupted() {
    for (lora, pack, recompute) in [
        (true, None, false),
        (false, None, false),
        (true, Some(16), false),
        (true, None, true),
    ] {
        let config = TrainerConfig {
            pack,
            recompute,
            ..config(12)
        };
        let whole = tempfile::tempdir().unwrap();
        let (losses, weights) = run(&config, lora, whole.path(), &[]);
        assert_eq!(losses.len(), 12);
        assert!(losses[11] < losses[0] * 0.9, "it learns: {losses:?}");
        let parts = tempfile::tempdir().unwrap();
        let (resumed_losses, resumed) = run(&config, lora, parts.path(), &[1, 5, 6, 11]);
        assert_eq!(losses, resumed_losses, "lora {lora}, pack {pack:?}");
        assert!(weights == resumed, "lora {lora}, pack {pack:?}");
    }
}

/// A save that is killed half-way leaves the checkpoint before it. The contents of the unfinished folder are ignored,
/// and the run continues to the same bits.
#[test]
fn an_unfinished_save_is_passed_over() {
    let whole = tempfile::tempdir().unwrap();
    let (_, weights) = run(&config(8), true, whole.path(), &[]);
    let dir = tempfile::tempdir().unwrap();
    let (train, valid) = (examples(11), examples(4));
    let mut first = model(true);
    let out = Some(output(dir.path()));
    let mut trainer = Trainer::new(first.as_mut(), config(8), &train, &valid, out).unwrap();
    trainer
        .run(|event| match event {
            Event::Step { step: 5, .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .unwrap();
    // The save of step 5 is interrupted: its files are truncated, and the folder does not have its final name yet.
    let checkpoints = dir.path().join("checkpoints");
    fs::rename(checkpoints.join("00000005"), checkpoints.join(".saving")).unwrap();
    for name in ["parameters.safetensors", "state.json"] {
        let path = checkpoints.join(".saving").join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    }
    let mut second = model(true);
    let out = Some(output(dir.path()));
    let mut trainer = Trainer::new(second.as_mut(), config(8), &train, &valid, out).unwrap();
    assert!(trainer.resume().unwrap());
    assert_eq!(trainer.progress().step, 3);
    assert!(trainer.run(|_| ControlFlow::Continue(())).unwrap());
    assert!(weights == bits(second.as_ref()));
    assert!(!checkpoints.join(".saving").exists());
}

#[test]
fn another_run_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    run(&config(3), true, dir.path(), &[]);
    let (train, other) = (examples(11), examples(10));
    let refused = |config: TrainerConfig, lora: bool, train: &[Example]| {
        let mut model = model(lora);
        let out = Some(output(dir.path()));
        let mut trainer = Trainer::new(model.as_mut(), config, train, &[], out).unwrap();
        trainer.resume().unwrap_err().to_string()
    };
    let error = refused(
        TrainerConfig {
            seed: 4,
            ..config(5)
        },
        true,
        &train,
    );
    assert!(
        error.ends_with("cannot be resumed: its seed is 3, not 4"),
        "{error}"
    );
    let error = refused(config(5), true, &other);
    assert!(error.contains("other examples"), "{error}");
    let error = refused(config(5), false, &train);
    assert!(error.contains("missing"), "{error}");
    // The folder is not overwritten either.
    let mut model = model(true);
    let out = Some(output(dir.path()));
    let mut trainer = Trainer::new(model.as_mut(), config(5), &train, &[], out).unwrap();
    let error = trainer.run(|_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("is of another run"), "{error}");
}

#[test]
fn training_ends_when_evaluations_get_no_better() {
    let train = examples(6);
    // A text unlike the training data: its loss rises.
    let valid = [Example::new(vec![40, 3, 33, 1, 50, 2, 21, 60], 0)];
    let mut model = model(false);
    let config = TrainerConfig {
        eval_every: 1,
        patience: Some(3),
        schedule: Schedule::constant(1e-2),
        ..config(200)
    };
    let mut trainer = Trainer::new(model.as_mut(), config, &train, &valid, None).unwrap();
    let mut evaluations = Vec::new();
    let done = trainer.run(|event| {
        if let Event::Evaluated { loss, .. } = event {
            evaluations.push(*loss);
        }
        ControlFlow::Continue(())
    });
    assert!(done.unwrap());
    let progress = trainer.progress();
    assert!(progress.stopped && progress.step < 200);
    let (best, step) = progress.best.unwrap();
    assert_eq!(progress.step, step + 3);
    assert_eq!(evaluations[step as usize - 1], best);
    assert!(evaluations.iter().all(|&loss| loss >= best));
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_by_name() {
    let train = examples(6);
    let mut model = model(false);
    let config = TrainerConfig {
        schedule: Schedule::constant(1e30),
        method: Method::Sgd(Default::default()),
        clip: None,
        ..config(10)
    };
    let mut trainer = Trainer::new(model.as_mut(), config, &train, &[], None).unwrap();
    let error = trainer.run(|_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("the loss is"), "{error}");
}

/// Every example occurs once in a round, another seed or round has another order, and a feed that
/// is set to the position of another feed continues like it.
#[test]
fn a_feed_is_a_permutation_a_round() {
    let examples = examples(50);
    for pack in [None, Some(24)] {
        let options = |seed| FeedOptions {
            batch_size: 4,
            batch_tokens: None,
            pack,
            seed,
        };
        let mut feed = Feed::new(&examples, options(1));
        let mut round = || {
            let (mut seen, mut batches) = (Vec::new(), Vec::new());
            while seen.len() < examples.len() {
                let batch = feed.next_batch();
                assert!(batch.len() <= 4 && !batch.is_empty());
                for row in &batch {
                    let places: usize = row.iter().map(|&i| examples[i].tokens.len() - 1).sum();
                    assert!(
                        pack.is_none_or(|limit| places < limit)
                            && (pack.is_some() || row.len() == 1)
                    );
                }
                seen.extend(batch.iter().flatten().copied());
                batches.push(batch);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..examples.len()).collect::<Vec<_>>());
            batches
        };
        let (first, second) = (round(), round());
        assert_ne!(first, second);
        assert_ne!(first[0], Feed::new(&examples, options(2)).next_batch());
        let mut original = Feed::new(&examples, options(1));
        for _ in 0..first.len() + 3 {
            original.next_batch();
        }
        let mut other = Feed::new(&examples, options(1));
        other.seek(original.position());
        for _ in 0..2 * first.len() {
            assert_eq!(original.next_batch(), other.next_batch());
        }
    }
}

/// A decoder of embeddings has no output head, and its loss cannot be computed.
#[test]
fn a_model_without_a_head_is_not_trained() {
    let mut model = model(true);
    model.remove_head().unwrap();
    let train = examples(2);
    let made = Trainer::new(model.as_mut(), config(1), &train, &[], None);
    let error = made.err().expect("it is refused").to_string();
    assert!(error.contains("no output head (lm_head.weight)"), "{error}");
}

//! Faults that other trainers had, each with a test that would find it. These have their test elsewhere:
//!
//! - The log of the softmax in 16 bits: `mlx-nn/tests/loss.rs`, `narrow_logits_are_summed_in_f32`.
//! - Different templates in training and in serving, and an end token that is never learnt:
//!   `data.rs`, `training_and_serving_share_the_template`.
//! - Adapters on layers that a fast path bypasses in serving: `mlx-models/tests/adapters.rs`,
//!   `every_layer_heeds_its_adapter`. Training is tested here.
#![cfg(feature = "cli")]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use mlx_core::{Array, DType, Safetensors, random};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::lora::{LoraConfig, attach};
use mlx_nn::trainable::{set_trainable, trainable};
use mlx_nn::{Param, VisitMut};
use mlx_train::loss::{logits, sum_loss};
use mlx_train::optim::Sgd;
use mlx_train::{
    Batch, Example, Gradients, Method, Schedule, Trainer, TrainerConfig, value_and_grad,
};

/// Models that together have every architecture and flag that changes the order of operations.
const MODELS: [&str; 10] = [
    "llama_bias",
    "llama_tied",
    "mistral",
    "qwen2_window",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "phi3",
    "phi3_longrope",
];

fn testdata(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../testdata/models").join(name)
}

fn model(name: &str) -> Box<dyn Model> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load(testdata(name), options).unwrap().model
}

fn full(name: &str) -> Box<dyn Model> {
    let mut model = model(name);
    set_trainable(model.as_mut(), |_| true).unwrap();
    model
}

fn examples(n: usize) -> Vec<Example> {
    let row = |row: usize| (0..12 + row).map(move |at| ((row * 5 + at * 7) % 60) as u32);
    (0..n)
        .map(|n| Example::new(row(n).collect(), n % 3))
        .collect()
}

fn batch(examples: &[Example]) -> Batch {
    Batch::new(examples.iter().map(|row| [row])).unwrap()
}

fn grads(model: &mut dyn Model, batch: &Batch) -> Gradients {
    let (_, grads) =
        value_and_grad(model, |model| Ok(vec![sum_loss(model, batch, None)?])).unwrap();
    grads
}

fn bits(model: &dyn Model) -> Vec<Vec<u32>> {
    let params = trainable(model).unwrap();
    let bits = |array: &Array| {
        let numbers = array.to_vec::<f32>().unwrap();
        numbers.into_iter().map(f32::to_bits).collect()
    };
    params.iter().map(|(_, array)| bits(array)).collect()
}

/// The weights after a run over `examples`.
fn run(examples: &[Example], config: TrainerConfig) -> Vec<Vec<u32>> {
    let mut model = full("qwen3");
    let mut trainer = Trainer::new(model.as_mut(), config, examples, &[], None).unwrap();
    assert!(trainer.run(|_| ControlFlow::Continue(())).unwrap());
    bits(model.as_ref())
}

fn config(steps: u64, schedule: Schedule) -> TrainerConfig {
    TrainerConfig {
        steps,
        batch_size: 4,
        batch_tokens: None,
        accumulate: 1,
        pack: None,
        recompute: false,
        ce_chunk: None,
        mtp: None,
        seed: 3,
        clip: None,
        method: Method::Sgd(Sgd::default()),
        schedule,
        eval_every: 100,
        eval_batches: None,
        save_every: 100,
        patience: None,
    }
}

/// "The schedule never reached the optimiser": with a rate that has fallen to 0 no parameter changes any more, and with
/// any other rate they change.
#[test]
fn the_schedule_reaches_the_weights() {
    let examples = examples(4);
    let falls = |steps| run(&examples, config(steps, Schedule::linear(1e-3, 0.0, 3)));
    let stays = |steps| run(&examples, config(steps, Schedule::constant(1e-3)));
    assert!(falls(3) == falls(6));
    assert!(stays(3) != stays(6));
    assert!(falls(2) != stays(2));
}

/// Accumulation in a run: two batches of two make the same step as one batch of four.
#[test]
fn an_accumulated_step_is_that_of_the_large_batch() {
    let examples = examples(4);
    let with = |batch_size, accumulate| TrainerConfig {
        batch_size,
        accumulate,
        ..config(3, Schedule::constant(1e-3))
    };
    let (one, parts) = (run(&examples, with(4, 1)), run(&examples, with(2, 2)));
    let mut largest = 0.0f32;
    for (one, part) in one.iter().flatten().zip(parts.iter().flatten()) {
        largest = largest.max((f32::from_bits(*one) - f32::from_bits(*part)).abs());
    }
    assert!(largest < 1e-5, "off by {largest}");
    assert!(run(&examples, with(2, 1)) != one);
}

/// "Packing crossed": another first document changes no bit of the second one's logits.
#[test]
fn packing_crosses_no_document() {
    for name in MODELS {
        let model = model(name);
        let [first, second] =
            [4, 9].map(|n| Example::new((0..n).map(|at| at * 5 % 60).collect(), 0));
        let mut other = first.clone();
        other
            .tokens
            .iter_mut()
            .for_each(|token| *token = 59 - *token);
        let of = |first: &Example| {
            let batch = Batch::new([[first, &second]]).unwrap();
            let logits = logits(model.as_ref(), &batch).unwrap();
            let [first, second] = [(0, 3), (3, 11)].map(|(from, to)| {
                logits
                    .slice_axis(1, from, to)
                    .unwrap()
                    .to_vec::<f32>()
                    .unwrap()
            });
            (first, second)
        };
        let (one, two) = (of(&first), of(&other));
        assert!(one.0 != two.0, "{name}");
        assert!(one.1 == two.1, "{name}");
    }
}

/// "A read-back on the host cut gradients", "a kernel without a derivative": along the gradient the loss rises at the
/// computed rate, in every architecture and for every parameter.
#[test]
fn every_parameter_has_its_gradient() {
    struct Move<'a>(&'a Gradients, f32);
    impl VisitMut for Move<'_> {
        fn param(&mut self, path: &mlx_nn::Path, param: &mut Param) -> mlx_core::Result<()> {
            let step = self.0[path.as_str()].multiply(self.1)?;
            param.set(param.value().add(step)?);
            Ok(())
        }
    }
    let batch = batch(&examples(3));
    for name in MODELS {
        let mut model = full(name);
        let model = model.as_mut();
        let grads = grads(model, &batch);
        let mut squares = 0.0;
        for (parameter, grad) in &grads {
            let square = grad.square().unwrap().sum(.., false).unwrap();
            let square = f64::from(square.item::<f32>().unwrap());
            // A bias of the keys adds the same number to all scores of a query, so it has no
            // gradient.
            let flat = parameter.ends_with("k_proj.bias");
            assert!(square > 1e-9 || flat, "{name}: {parameter} has no gradient");
            squares += square;
        }
        let mut loss = |by: f64| {
            let path = &mut mlx_nn::Path::default();
            model.visit_mut(path, &mut Move(&grads, by as f32)).unwrap();
            let loss = sum_loss(model, &batch, None).unwrap();
            f64::from(loss.item::<f32>().unwrap())
        };
        // A step that changes the loss by about 0.1.
        let step = 0.05 / squares;
        let (up, down) = (loss(step), loss(-2.0 * step));
        let slope = (up - down) / (2.0 * step);
        assert!(
            (slope / squares - 1.0).abs() < 0.02,
            "{name}: slope {slope}, by the gradient {squares}"
        );
    }
}

/// "Adapters on layers that the fast path bypasses": each has a gradient, on dense and packed bases.
#[test]
fn every_adapter_has_a_gradient() {
    let batch = batch(&examples(3));
    let packed = [
        "q_qwen2_b4_g32",
        "q_phi3_b4_g64",
        "q_qwen3_moe_mxfp4",
        "q_gemma3_text_b4_g32",
    ];
    for name in MODELS.into_iter().chain(packed) {
        let mut model = model(name);
        let key = random::Key::new(1).unwrap();
        let layers = attach(model.as_mut(), &LoraConfig::default(), &key, |_| true).unwrap();
        let grads = grads(model.as_mut(), &batch);
        for layer in layers {
            // A has no gradient while B is zero.
            let grad = &grads[&format!("{layer}.lora_b")];
            let largest = grad.abs().unwrap().max(.., false).unwrap();
            assert!(largest.item::<f32>().unwrap() > 1e-5, "{name}: {layer}");
        }
    }
}

/// "A strided view was read in the wrong order", and saved in that order.
#[test]
fn views_are_read_and_saved_in_their_order() {
    let array = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    let view = array.t().unwrap().slice_axis(0, 1, 3).unwrap();
    let expected = [2.0, 5.0, 3.0, 6.0];
    assert_eq!(view.to_vec::<f32>().unwrap(), expected);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("view.safetensors");
    mlx_core::safetensors::save(&path, [("view", &view)], &Default::default()).unwrap();
    let read = Safetensors::open(&path).unwrap().array("view").unwrap();
    assert_eq!(read.to_vec::<f32>().unwrap(), expected);
}

/// "`--seed` did not seed LoRA's start". With a rate of 0, the saved A is the initial one. Only adapters are saved.
#[test]
fn the_seed_decides_where_adapters_begin() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("data.jsonl"), "{\"tokens\":[1,2,3,4]}\n").unwrap();
    let start = |seed: &str, out: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_mlx-train"))
            .current_dir(dir.path())
            .args("lora --data data.jsonl --steps 1 --learning-rate 0 --num-layers 1".split(' '))
            .args([Path::new("--model"), &testdata("qwen3")])
            .args(["--seed", seed, "--out", out])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let file = dir.path().join(out).join("adapters.safetensors");
        let file = Safetensors::open(file).unwrap();
        for name in file.names() {
            assert!(
                name.starts_with("model.layers.1."),
                "only the last layer: {name}"
            );
            assert!(
                name.ends_with(".lora_a") || name.ends_with(".lora_b"),
                "{name}"
            );
        }
        let a = file.array("model.layers.1.mlp.up_proj.lora_a").unwrap();
        a.to_vec::<f32>().unwrap()
    };
    let first = start("1", "a");
    assert!(first.iter().any(|&x| x != 0.0));
    assert_eq!(first, start("1", "b"));
    assert_ne!(first, start("2", "c"));
}

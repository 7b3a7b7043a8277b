//! Ten steps of AdamW on tiny models, full and LoRA, against PyTorch; three of one with experts.

mod case;
mod sixteen_bits;

use case::{Case, case, examples, testdata};
use mlx_core::{Array, DType, Safetensors, random};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::lora::{LoraConfig, attach};
use mlx_nn::trainable::trainable;
use mlx_train::loss::sum_loss;
use mlx_train::recompute::sum_loss_and_grads;
use mlx_train::{Batch, Example, Gradients, Optimizer, Schedule, clip, value_and_grad};
use serde_json::Value;

fn mean_loss_and_grads(
    model: &mut dyn Model,
    batch: &Batch,
    chunk: Option<i32>,
) -> (f64, Gradients) {
    let (values, grads) = value_and_grad(model, |model| {
        Ok(vec![
            sum_loss(model, batch, chunk)?.divide(batch.learnt as f32)?,
        ])
    })
    .unwrap();
    mlx_core::eval(values.iter().chain(grads.values())).unwrap();
    (f64::from(values[0].item::<f32>().unwrap()), grads)
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

fn follow(model: &str, kind: &str, steps: usize) {
    let Case {
        facts,
        arrays,
        mut model,
    } = case(model, kind);
    let model = model.as_mut();
    let examples = examples(&facts);
    let batch = Batch::new(examples.iter().map(|example| [example])).unwrap();
    let method = serde_json::from_value(facts["adamw"].clone()).unwrap();
    let schedule = Schedule::constant(facts["rate"].as_f64().unwrap());
    let mut optimizer = Optimizer::new(method, schedule).unwrap();
    let (losses, norms) = (numbers(&facts["losses"]), numbers(&facts["norms"]));
    assert_eq!(losses.len(), 10);
    for (step, (expected, norm)) in losses.iter().zip(norms).take(steps).enumerate() {
        let (loss, mut grads) = mean_loss_and_grads(model, &batch, None);
        let off = (loss - expected).abs() / expected;
        assert!(off < 1e-4, "step {step}: loss {loss}, expected {expected}");
        if step == 0 {
            check_gradients(&arrays, &facts, &grads);
            let (_, chunked) = mean_loss_and_grads(model, &batch, Some(25));
            check_gradients(&arrays, &facts, &chunked);
        }
        let max = facts["clip"].as_f64().unwrap() as f32;
        let found = clip::clip(&mut grads, max).unwrap().item::<f32>().unwrap();
        let off = (f64::from(found) - norm).abs() / norm;
        assert!(off < 1e-3, "step {step}: norm {found}, expected {norm}");
        optimizer.apply_lazily(model, &grads).unwrap();
        let params = trainable(model).unwrap();
        let params = params.iter().map(|(_, array)| array);
        mlx_core::eval(params.chain(optimizer.pending())).unwrap();
    }
}

/// Checks that the gradients are those of the reference, name by name, each within 1e-5 of the
/// largest element of all.
fn check_gradients(arrays: &Safetensors, facts: &Value, grads: &Gradients) {
    let names = arrays.names().filter_map(|name| name.strip_prefix("grad."));
    let mut expected: Vec<&str> = names.collect();
    expected.sort_unstable();
    assert_eq!(expected, grads.keys().collect::<Vec<_>>());
    let samples = facts["samples"].as_u64().unwrap() as usize;
    let mut largest = 1.0f32;
    for (name, grad) in grads {
        let every = (grad.size() / samples).max(1);
        let found = grad.to_vec::<f32>().unwrap();
        let found: Vec<f32> = found.into_iter().step_by(every).collect();
        let expected = arrays.array(&format!("grad.{name}")).unwrap();
        let expected = expected.to_vec::<f32>().unwrap();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(expected) {
            largest = largest.max(expected.abs());
            let off = (found - expected).abs();
            assert!(
                off <= 1e-5 * largest,
                "{name}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn full_training_follows_torch() {
    for model in ["llama_tied", "qwen3", "gemma3_text"] {
        follow(model, "full", 10);
    }
    follow("qwen3_5_text", "full", 1); // Weight decay acts differently on norms that are stored less 1.
}

/// Routers learn through the weights of the experts that they chose, and experts learn from their
/// own rows. The comparison has only three steps: after them a rounding error decides between two
/// experts for one token.
#[test]
fn experts_and_routers_follow_torch() {
    follow("qwen3_moe", "full", 3);
}

#[test]
fn lora_training_follows_peft() {
    for model in ["llama_tied", "qwen3", "gemma3_text", "nanochat"] {
        follow(model, "lora", 10);
    }
    follow("qwen3", "dora", 10);
    follow("minimax", "lora", 1);
    follow("kimi_linear", "lora", 1);
}

fn bits(array: &Array) -> Vec<u32> {
    let array = array.astype(DType::F32).unwrap();
    let numbers = array.to_vec::<f32>().unwrap();
    numbers.into_iter().map(f32::to_bits).collect()
}

/// The gradients of parts, each with its own number of tokens, add up to those of the whole.
#[test]
fn accumulation_equals_the_large_batch() {
    for (model, kind) in [("llama_tied", "full"), ("gemma3_text", "full")] {
        let Case {
            facts, mut model, ..
        } = case(model, kind);
        let model = model.as_mut();
        let examples = examples(&facts);
        let sums = |model: &mut dyn Model, rows: &[Example]| {
            let batch = Batch::new(rows.iter().map(|row| [row])).unwrap();
            let (_, grads) =
                value_and_grad(model, |model| Ok(vec![sum_loss(model, &batch, None)?])).unwrap();
            grads
        };
        let whole = sums(model, &examples);
        let mut parts = Gradients::new();
        for part in examples.chunks(3) {
            mlx_train::grad::accumulate(&mut parts, sums(model, part)).unwrap();
        }
        for (name, whole) in &whole {
            let part = parts[name].to_vec::<f32>().unwrap();
            let whole = whole.to_vec::<f32>().unwrap();
            let largest = whole.iter().fold(1.0f32, |max, x| max.max(x.abs()));
            for (part, whole) in part.iter().zip(&whole) {
                assert!((part - whole).abs() <= 1e-5 * largest, "{name}");
            }
        }
    }
}

/// Documents that are packed into one row have the same gradients as in separate rows.
#[test]
fn packed_equals_unpacked() {
    for name in ["llama_tied", "qwen3", "gemma3_text"] {
        let Case {
            facts, mut model, ..
        } = case(name, "full");
        let model = model.as_mut();
        let examples = examples(&facts);
        let losses = |model: &mut dyn Model, batch: &Batch| {
            let (sums, grads) =
                value_and_grad(model, |model| Ok(vec![sum_loss(model, batch, None)?])).unwrap();
            (sums[0].item::<f32>().unwrap(), grads)
        };
        let apart = Batch::new(examples.iter().map(|row| [row])).unwrap();
        let packed = Batch::new(examples.chunks(3)).unwrap();
        assert_eq!((packed.documents.len(), packed.learnt), (2, apart.learnt));
        let (apart_sum, apart_grads) = losses(model, &apart);
        let (packed_sum, packed_grads) = losses(model, &packed);
        let off = (apart_sum - packed_sum).abs() / apart_sum;
        assert!(off < 1e-5, "{name}: {apart_sum} and {packed_sum}");
        for (parameter, apart) in &apart_grads {
            let packed = packed_grads[parameter].to_vec::<f32>().unwrap();
            let apart = apart.to_vec::<f32>().unwrap();
            let largest = apart.iter().fold(1.0f32, |max, x| max.max(x.abs()));
            for (packed, apart) in packed.iter().zip(&apart) {
                let off = (packed - apart).abs();
                assert!(off <= 2e-5 * largest, "{name}: {parameter}: off by {off}");
            }
        }
    }
}

/// Gradients flow through packed matrices as through their unpacked forms.
#[test]
fn a_quantised_base_has_the_gradients_of_its_dequantised_twin() {
    for name in [
        "q_llama_b4_g64",
        "q_qwen3_b5_g32",
        "q_llama_mxfp4",
        "q_gemma3_text_b4_g32",
        "q_qwen3_moe_b4_g32",
        "q_qwen3_moe_mxfp4",
    ] {
        let grads = |dense: bool| {
            let options = LoadOptions {
                dtype: Some(DType::F32),
                ..LoadOptions::default()
            };
            let path = testdata(&format!("models/{name}"));
            let mut model = load(&path, options).unwrap().model;
            if dense {
                mlx_nn::quantize::dequantize(model.as_mut(), None).unwrap();
            }
            let config = LoraConfig {
                rank: 2,
                ..LoraConfig::default()
            };
            let key = random::Key::new(2).unwrap();
            attach(model.as_mut(), &config, &key, |_| true).unwrap();
            let rows: Vec<Example> = [9, 21]
                .map(|length| Example::new((0..length).map(|at| at * 11 % 60).collect(), 2))
                .to_vec();
            let batch = Batch::new(rows.iter().map(|row| [row])).unwrap();
            mean_loss_and_grads(model.as_mut(), &batch, None)
        };
        let ((loss, packed), (expected, dense)) = (grads(false), grads(true));
        assert!(
            (loss - expected).abs() < 1e-5 * expected,
            "{name}: {loss} {expected}"
        );
        let mut moved = 0;
        for (parameter, dense) in &dense {
            let packed = packed[parameter].to_vec::<f32>().unwrap();
            let dense = dense.to_vec::<f32>().unwrap();
            let largest = dense.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            moved += usize::from(largest > 0.0);
            for (packed, dense) in packed.iter().zip(&dense) {
                let off = (packed - dense).abs();
                assert!(
                    off <= 1e-3 * largest.max(0.1),
                    "{name}: {parameter}: off by {off}"
                );
            }
        }
        // B is zero, so only A's gradient is zero; every B has moved.
        assert_eq!(moved * 2, dense.len(), "{name}");
    }
}

/// Computed layer by layer, with the head a few positions or a part of the vocabulary at a time, the gradients are the
/// same.
#[test]
fn recomputed_equals_remembered() {
    for (name, kind) in [
        ("llama_tied", "full"),
        ("qwen3", "full"),
        ("gemma3_text", "full"),
        ("gemma3_text", "lora"),
        ("qwen3", "lora"),
    ] {
        let Case {
            facts, mut model, ..
        } = case(name, kind);
        let model = model.as_mut();
        let mut examples = examples(&facts);
        // Longer than the number of positions that the head computes at a time.
        examples.push(Example::new((0..300).map(|at| at * 7 % 60).collect(), 0));
        let batch = Batch::new(examples.chunks(2)).unwrap();
        let (sums, whole) = value_and_grad(&mut *model, |model| {
            Ok(vec![sum_loss(model, &batch, None)?])
        })
        .unwrap();
        let expected = sums[0].item::<f32>().unwrap();
        let chunk = Some(25);
        let (chunked, chunked_grads) = value_and_grad(&mut *model, |model| {
            Ok(vec![sum_loss(model, &batch, chunk)?])
        })
        .unwrap();
        let others = [
            sum_loss_and_grads(model, &batch, None, None).unwrap(),
            sum_loss_and_grads(model, &batch, None, chunk).unwrap(),
            (chunked, chunked_grads),
        ];
        for (way, (sums, parts)) in others.into_iter().enumerate() {
            // Parts of the vocabulary are summed in another order, which affects all layers below.
            let tolerance = if way == 0 { 1e-6 } else { 3e-6 };
            let sum = sums[0].item::<f32>().unwrap();
            assert!(
                (sum - expected).abs() < 1e-6 * expected,
                "{name}, {way}: {sum} {expected}"
            );
            assert!(whole.keys().eq(parts.keys()), "{name} {kind}");
            for (parameter, whole) in &whole {
                let part = parts[parameter].to_vec::<f32>().unwrap();
                let whole = whole.to_vec::<f32>().unwrap();
                let largest = whole.iter().fold(1.0f32, |max, x| max.max(x.abs()));
                for (part, whole) in part.iter().zip(&whole) {
                    let off = (part - whole).abs();
                    assert!(
                        off <= tolerance * largest,
                        "{name} {kind}, {way}: {parameter}: off by {off} of {largest}"
                    );
                }
            }
        }
    }
}

/// A loss that fails or panics leaves the parameters unchanged.
#[test]
fn a_failing_loss_restores_the_parameters() {
    let mut case = case("qwen3", "full");
    let model = case.model.as_mut();
    let values = |model: &dyn Model| -> Vec<Vec<u32>> {
        let params = trainable(model).unwrap();
        params.iter().map(|(_, array)| bits(array)).collect()
    };
    let before = values(model);
    let failed = value_and_grad(model, |_| {
        Err::<Array, _>(mlx_core::Error::new(
            mlx_core::ErrorKind::Invalid,
            "no loss",
        ))
    });
    assert!(failed.unwrap_err().to_string().contains("no loss"));
    assert!(before == values(model));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = value_and_grad::<_, Array>(&mut *model, |_| panic!("the loss panics"));
    }));
    assert!(panicked.is_err());
    assert!(before == values(model));
}

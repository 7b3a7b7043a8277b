//! LoRA on 16-bit weights, as checkpoints are published. The reference was computed in F32, so
//! losses differ by the rounding of 16 bits.

use mlx_core::DType;
use mlx_nn::trainable::trainable;
use mlx_train::recompute::sum_loss_and_grads;
use mlx_train::{Batch, Gradients, Optimizer, Schedule, clip};

use super::case::{Case, case_in, examples};
use super::{mean_loss_and_grads, numbers};

/// The relative error that a loss may have. F16 has eight times the precision of BF16.
const TOLERANCES: [(DType, f64); 2] = [(DType::BF16, 0.02), (DType::F16, 0.005)];

#[test]
fn losses_in_sixteen_bits_follow_peft() {
    for model in ["llama_tied", "qwen3", "gemma3_text"] {
        for (dtype, tolerance) in TOLERANCES {
            for recomputed in [false, true] {
                follow(model, dtype, tolerance, recomputed);
            }
        }
    }
}

/// Trains for the reference's ten steps; with `recomputed` layer by layer.
fn follow(model: &str, dtype: DType, tolerance: f64, recomputed: bool) {
    let Case {
        facts,
        model: mut loaded,
        ..
    } = case_in(model, "lora", dtype);
    let examples = examples(&facts);
    let batch = Batch::new(examples.iter().map(|example| [example])).unwrap();
    let method = serde_json::from_value(facts["adamw"].clone()).unwrap();
    let schedule = Schedule::constant(facts["rate"].as_f64().unwrap());
    let mut optimizer = Optimizer::new(method, schedule).unwrap();
    for (step, expected) in numbers(&facts["losses"]).into_iter().enumerate() {
        let (loss, mut grads): (f64, Gradients) = match recomputed {
            false => mean_loss_and_grads(loaded.as_mut(), &batch, None),
            true => {
                let (sums, mut grads) =
                    sum_loss_and_grads(loaded.as_mut(), &batch, None, None).unwrap();
                for grad in grads.values_mut() {
                    *grad = grad.divide(batch.learnt as f32).unwrap();
                }
                let sum = sums[0].item::<f32>().unwrap();
                (f64::from(sum) / batch.learnt as f64, grads)
            }
        };
        let off = (loss - expected).abs() / expected;
        assert!(
            off < tolerance,
            "{model} in {dtype}, recomputed {recomputed}, step {step}: loss {loss}, expected {expected}"
        );
        clip::clip(&mut grads, facts["clip"].as_f64().unwrap() as f32).unwrap();
        optimizer.apply_lazily(loaded.as_mut(), &grads).unwrap();
        let params = trainable(loaded.as_ref()).unwrap();
        let params = params.iter().map(|(_, array)| array);
        mlx_core::eval(params.chain(optimizer.pending())).unwrap();
    }
}

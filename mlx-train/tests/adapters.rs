//! Adapters on every kind of layer have the gradients that follow from those of their matrices, for every way of
//! computing the loss.

#[path = "../../mlx-models/tests/shared/checkpoints.rs"]
mod checkpoints;

use checkpoints::checkpoint;
use mlx_core::{Array, DType, random};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::lora::{Layout, LoraConfig, attach, fuse};
use mlx_nn::trainable::{set_trainable, trainable};
use mlx_nn::{Param, VisitMut};
use mlx_train::loss::sum_loss;
use mlx_train::recompute::sum_loss_and_grads;
use mlx_train::{Batch, Example, Gradients, value_and_grad};

const SCALE: f32 = 0.5;

/// A model with adapters on all its layers; B is not zero.
fn adapted(name: &str) -> Box<dyn Model> {
    struct Draw(random::Key);
    impl VisitMut for Draw {
        fn param(&mut self, path: &mlx_nn::Path, param: &mut Param) -> mlx_core::Result<()> {
            if path.as_str().ends_with(".lora_b") {
                let [now, later] = self.0.split()?;
                self.0 = later;
                let value = random::normal_with(&now, param.shape(), DType::F32, 0.0, 0.1)?;
                param.set(value);
            }
            Ok(())
        }
    }
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let mut model = load(checkpoint(name), options).unwrap().model;
    let config = LoraConfig {
        rank: 2,
        scale: SCALE,
        ..LoraConfig::default()
    };
    let key = random::Key::new(4).unwrap();
    attach(model.as_mut(), &config, &key, |_| true).unwrap();
    let mut draw = Draw(key);
    model
        .visit_mut(&mut mlx_nn::Path::default(), &mut draw)
        .unwrap();
    model
}

fn batch() -> Batch {
    let rows = [9u32, 21].map(|n| Example::new((0..n).map(|at| at * 11 % 60).collect(), 2));
    Batch::new(rows.iter().map(|row| [row])).unwrap()
}

fn grads(model: &mut dyn Model, chunk: Option<i32>) -> (f32, Gradients) {
    let batch = batch();
    let (sums, grads) =
        value_and_grad(model, |model| Ok(vec![sum_loss(model, &batch, chunk)?])).unwrap();
    (sums[0].item::<f32>().unwrap(), grads)
}

fn largest(array: &Array) -> f32 {
    let largest = array.abs().unwrap().max(.., false).unwrap();
    largest.item::<f32>().unwrap()
}

fn assert_close(what: &str, found: &Array, expected: &Array, tolerance: f32) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let (off, most) = (
        largest(&found.subtract(expected).unwrap()),
        largest(expected),
    );
    assert!(most > 1e-6, "{what}: there is a gradient to compare");
    assert!(
        off <= tolerance * most.max(1.0),
        "{what}: off by {off} of {most}"
    );
}

/// With W' = W + scale B A, by the chain rule from the gradient of W' in the fused model. That gradient is compared
/// with PyTorch elsewhere.
#[test]
fn gradients_of_adapters_are_those_of_their_matrices() {
    for name in [
        "qwen3_moe",
        "q_qwen3_moe_b4_g32",
        "gemma3_text",
        "q_gemma3_text_b4_g32",
        "q_qwen3_5_mixed",
    ] {
        let mut model = adapted(name);
        let values = trainable(model.as_ref()).unwrap();
        let (loss, found) = grads(model.as_mut(), None);
        fuse(model.as_mut(), true).unwrap();
        set_trainable(model.as_mut(), |path| {
            found.contains_key(&path.replace(".weight", ".lora_a"))
        })
        .unwrap();
        let (fused_loss, fused) = grads(model.as_mut(), None);
        assert!((loss - fused_loss).abs() < 1e-5 * loss, "{name}");
        assert_eq!(found.len(), 2 * fused.len(), "{name}");
        let mut layouts = Vec::new();
        for pair in values.chunks(2) {
            let [(of_a, a), (of_b, b)] = pair else {
                unreachable!("A and B follow each other");
            };
            let layer = of_a.strip_suffix(".lora_a").unwrap();
            let dw = &fused[&format!("{layer}.weight")];
            let layout = match layer {
                "model.embed_tokens" => Layout::Embedding,
                _ if layer.contains("switch_mlp") => Layout::Experts,
                _ => Layout::Linear,
            };
            let turned = |array: &Array| array.swapaxes(-1, -2).unwrap();
            let (da, db) = match layout {
                Layout::Linear => (turned(dw).matmul(&turned(b)), turned(a).matmul(&turned(dw))),
                Layout::Embedding => (dw.matmul(&turned(b)), turned(a).matmul(dw)),
                Layout::Experts => (turned(b).matmul(dw), dw.matmul(&turned(a))),
            };
            for (name_of, expected) in [(of_a, da), (of_b, db)] {
                let expected = expected.unwrap().multiply(SCALE).unwrap();
                let what = format!("{name}: {name_of}");
                assert_close(&what, &found[name_of], &expected, 1e-4);
            }
            layouts.push(layout);
        }
        assert!(layouts.contains(&Layout::Embedding), "{name}");
        assert_eq!(
            layouts.contains(&Layout::Experts),
            name.contains("moe"),
            "{name}"
        );
    }
}

/// The loss with the vocabulary in parts, and layer by layer; also with a head that shares the
/// embedding's adapter.
#[test]
fn every_way_to_the_loss_has_the_same_gradients() {
    for name in [
        "qwen3_moe",
        "gemma3_text",
        "gemma4_text",
        "q_gemma3_text_b4_g32",
        "q_qwen3_5_mixed",
        "deepseek_v41",
        "deepseek_v41_ngrams",
        "glm_moe_dsa",
        "hy_v4",
    ] {
        let mut model = adapted(name);
        let (loss, whole) = grads(model.as_mut(), None);
        let (chunked_loss, chunked) = grads(model.as_mut(), Some(25));
        let batch = batch();
        let mut others = vec![("chunked", chunked_loss, chunked)];
        for chunk in [None, Some(25)] {
            let (sums, grads) = sum_loss_and_grads(model.as_mut(), &batch, None, chunk).unwrap();
            others.push(("recomputed", sums[0].item::<f32>().unwrap(), grads));
        }
        for (way, sum, parts) in others {
            assert!((sum - loss).abs() < 1e-5 * loss, "{name}, {way}");
            assert!(whole.keys().eq(parts.keys()), "{name}, {way}");
            for (parameter, whole) in &whole {
                // What an indexer chooses has no derivative.
                if parameter.contains(".indexer.") {
                    continue;
                }
                let what = format!("{name}, {way}: {parameter}");
                assert_close(&what, &parts[parameter], whole, 1e-5);
            }
        }
    }
}

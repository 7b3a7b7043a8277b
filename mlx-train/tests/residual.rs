//! Gradients through the residual stream, whose additions are fused with the next norm, equal those
//! of plain operations, for every order of norms, and also if the stream is cut between layers.

use std::path::Path;

use mlx_core::DType;
use mlx_core::fast::plainly;
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::trainable::set_trainable;
use mlx_train::loss::sum_loss;
use mlx_train::recompute::sum_loss_and_grads;
use mlx_train::{Batch, Example, Gradients, value_and_grad};

/// Norms before, after, and on both sides of attention and MLP; attention and MLP in parallel; one
/// mixer per layer; layers that read sums.
const ORDERS: [&str; 6] = [
    "llama_llama3",
    "olmo2",
    "gemma3_text",
    "cohere",
    "nemotron_h",
    "gemma4_text",
];

fn model(name: &str) -> Box<dyn Model> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let mut model = load(models.join(name), options).unwrap().model;
    set_trainable(model.as_mut(), |path| path.ends_with("weight")).unwrap();
    model
}

fn grads(model: &mut dyn Model, batch: &Batch) -> (f32, Gradients) {
    let (sums, grads) =
        value_and_grad(model, |model| Ok(vec![sum_loss(model, batch, None)?])).unwrap();
    mlx_core::eval(sums.iter().chain(grads.values())).unwrap();
    (sums[0].item::<f32>().unwrap(), grads)
}

#[test]
fn gradients_through_pending_sums_are_those_of_plain_operations() {
    let rows = [9u32, 14].map(|n| Example::new((0..n).map(|at| at * 11 % 60).collect(), 2));
    let batch = Batch::new(rows.iter().map(|row| [row])).unwrap();
    for name in ORDERS {
        let mut model = model(name);
        let (wanted_loss, wanted) = plainly(|| Ok(grads(model.as_mut(), &batch))).unwrap();
        let (loss, whole) = grads(model.as_mut(), &batch);
        let (sums, cut) = sum_loss_and_grads(model.as_mut(), &batch, None, None).unwrap();
        assert!(wanted.keys().any(|name| name.contains("norm")), "{name}");
        for (way, sum, found) in [
            ("whole", loss, whole),
            ("cut", sums[0].item::<f32>().unwrap(), cut),
        ] {
            let off = (sum - wanted_loss).abs();
            assert!(off < 1e-5 * wanted_loss, "{name}, {way}: off by {off}");
            assert!(wanted.keys().eq(found.keys()), "{name}, {way}");
            for (parameter, wanted) in &wanted {
                let largest = |a: &mlx_core::Array| {
                    let largest = a.abs().unwrap().max(.., false).unwrap();
                    largest.item::<f32>().unwrap()
                };
                let off = largest(&found[parameter].subtract(wanted).unwrap());
                let most = largest(wanted).max(1.0);
                assert!(
                    off <= 1e-4 * most,
                    "{name}, {way}: {parameter} is off by {off} of {most}"
                );
            }
        }
    }
}

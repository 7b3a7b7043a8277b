//! Layers that are computed again in the backward pass have the same outputs and gradients as
//! layers that are not.

use std::cell::Cell;
use std::rc::Rc;

use mlx_core::ops::create::ones;
use mlx_core::{Array, DType, Result, random, transforms};
use mlx_nn::recompute::recomputed;
use mlx_nn::{
    BatchNorm, Dropout, Gradients, Linear, MultiHeadAttention, Transformer, TransformerConfig,
    value_and_grad,
};

fn distance(a: &Array, b: &Array) -> f32 {
    let off = a.subtract(b).unwrap().abs().unwrap();
    off.max(.., false).unwrap().item::<f32>().unwrap()
}

/// The loss of a transformer and its gradients by parameters, and by a mask that is added.
fn run(checkpoint: bool, boolean: bool) -> Result<(Array, Gradients, Array)> {
    random::seed(3);
    let config = TransformerConfig {
        mlp_dims: 12,
        dropout: 0.2,
        checkpoint,
        ..TransformerConfig::new(8, 2)
    };
    let mut model = Transformer::new(2, 2, &config)?;
    let draw = |shape: &[i32]| random::normal(None, shape, DType::F32);
    let (source, target, added) = (draw(&[2, 4, 8])?, draw(&[2, 3, 8])?, draw(&[3, 4])?);
    let mut causal = MultiHeadAttention::causal_mask(3, DType::F32)?;
    if boolean {
        causal = causal.equal(0.0)?;
    }
    let loss = |model: &Transformer, added: &Array| {
        random::seed(4);
        let y = model.forward(&source, &target, None, Some(&causal), Some(added))?;
        y.multiply(y.cos()?)?.mean(.., false)
    };
    let (value, grads) = value_and_grad(&mut model, |model| loss(model, &added))?;
    let by_mask = transforms::grad_with(
        |added| Ok(vec![loss(&model, &added[0])?]),
        std::slice::from_ref(&added),
        &[0],
    )?;
    Ok((value, grads, by_mask[0].clone()))
}

#[test]
fn gradients_are_those_of_a_layer_that_is_computed_once() {
    for boolean in [false, true] {
        let (value, grads, by_mask) = run(false, boolean).unwrap();
        let (again, same, by_same) = run(true, boolean).unwrap();
        assert!(distance(&value, &again) < 1e-6);
        assert!(
            by_mask
                .abs()
                .unwrap()
                .max(.., false)
                .unwrap()
                .item::<f32>()
                .unwrap()
                > 1e-4
        );
        assert!(distance(&by_mask, &by_same) < 1e-6);
        assert_eq!(grads.len(), same.len());
        for (name, grad) in &grads {
            assert!(distance(grad, &same[name]) < 1e-6, "{name}");
        }
    }
}

#[test]
fn a_dropout_drops_the_same_numbers_both_times() {
    random::seed(5);
    let dropout = Dropout::new(0.5).unwrap();
    let x = ones(&[100], DType::F32).unwrap();
    let (outputs, grads) = transforms::value_and_grad_with(
        |x| {
            let y = recomputed(&dropout, &[&x[0]], |dropout, x| dropout.forward(&x[0]))?;
            Ok(vec![y.sum(.., false)?, y])
        },
        std::slice::from_ref(&x),
        &[0],
    )
    .unwrap();
    let kept = outputs[1].to_vec::<f32>().unwrap();
    assert!(kept.contains(&0.0) && kept.contains(&2.0));
    assert_eq!(grads[0].to_vec::<f32>().unwrap(), kept);
    // Another call drops other numbers.
    let forward = |dropout: &Dropout, x: &[Array]| dropout.forward(&x[0]);
    let other = recomputed(&dropout, &[&x], forward).unwrap();
    assert_ne!(other.to_vec::<f32>().unwrap(), kept);
}

#[test]
fn the_layer_is_computed_twice() {
    let mut layer = Linear::new(2, 3, true).unwrap();
    let x = ones(&[1, 2], DType::F32).unwrap();
    let passes = Rc::new(Cell::new(0));
    value_and_grad(&mut layer, |layer| {
        let passes = Rc::clone(&passes);
        let y = recomputed(layer, &[&x], move |layer, x| {
            passes.set(passes.get() + 1);
            layer.forward(&x[0])
        })?;
        y.sum(.., false)
    })
    .unwrap();
    assert_eq!(passes.get(), 2);
}

#[test]
fn a_layer_that_changes_a_state_is_refused() {
    let mut norm = BatchNorm::new(2).unwrap();
    let x = ones(&[3, 2], DType::F32).unwrap();
    let error = value_and_grad(&mut norm, |norm| {
        recomputed(norm, &[&x], |norm, x| norm.forward(&x[0]))?.sum(.., false)
    });
    let error = error.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("states changed in the pass"), "{error}");
}

//! Calls of three lists that were written before the documentation was read, by somebody who knows MLX's Python, candle
//! and mlx-rs: those that compile, word for word. Of the 34 of the first list 28 compiled at once, and of the 15 of the
//! second list 11. Of the 80 of the third list 50 compiled at once, and 53 do today.
//!
//! The others are refused, for these reasons:
//!
//! - What has a default in Python is a method (`MaxPool2d::new(2).stride(2)`, `RmsNorm::new(4)?.eps(1e-5)`):
//!   `MaxPool2d::new(2, 2)`, `RmsNorm::new(4, 1e-5)`, `AdamW::new(1e-3, 0.01)`. The argument of `Linear` without a default
//!   here is whether it has a bias: `Linear::new(4, 8)`.
//! - The plain name takes what Python's call needs, and `NAME_with` the other arguments: `log_softmax(&a, -1)`,
//!   `leaky_relu(&a, 0.1)`, `loss::smooth_l1(&a, &b, 1.0)`, `loss::l1(&a, &b, Reduction::Sum)`, `loss::kl_div(&a, &b, -1)`.
//! - A rope is made of a config, because models need all of it: `Rope::new(4)`.
//! - Python's name is `glorot_uniform`, which gives an initialiser: `init::xavier_uniform(&[4, 8])`.
//! - The numbers are one argument, as in Python, `.betas((0.9, 0.999))`: `Adam::new(1e-3).betas(0.9, 0.999)`.
//! - What is frozen is named, `mlp.freeze("*")`: `mlp.freeze()`. The mode is named, `mlp.train(true)`: `mlp.train()`.
//! - `update` sets arrays, and checks their shapes, so they are no public fields (`l.weight()`): `l.weight`.
//! - A layer without memory is an error, so constructors give a `Result`: `Conv2d::new(1, 8, 3).stride(2)`.
//! - Layers are added, so that they may have several types: `Sequential::new(vec![Box::new(l)])`.
//! - Both crates have this name, and an import by name chooses: `value_and_grad(&mut model, f)` after
//!   `use mlx_core::*; use mlx_nn::*;`, where it is `model.value_and_grad(f)`.
//! - Gradients are results, which no module keeps: `mlp.zero_grad()`.

#![allow(unused_qualifications, reason = "the calls stand word for word")]

use mlx_core::DType::BF16;
use mlx_core::{Array, Result};
use mlx_nn::*;

#[derive(Module)]
struct Mlp {
    l1: Linear,
    l2: Linear,
}

impl Mlp {
    fn forward(&self, x: &Array) -> Result<Array> {
        self.l2.forward(&self.l1.forward(x)?)
    }
}

/// `[2, 4]` each, in `[0, 1]`.
fn pair() -> Result<[Array; 2]> {
    Ok([
        Array::from_slice(&[0.5f32, 0.25, 0.75, 0.5, 0.5, 0.5, 0.5, 0.1], (2, 4))?,
        Array::from_slice(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0], (2, 4))?,
    ])
}

fn mlp() -> Result<Mlp> {
    let (l1, l2) = (Linear::new(4, 8, true)?, Linear::new(8, 2, true)?);
    Ok(Mlp { l1, l2 })
}

#[test]
fn layers() -> Result<()> {
    let [a, _] = pair()?;
    let t = Array::from_slice(&[0.5f32; 40], (2, 5, 4))?;
    let y = Linear::new(4, 8, true)?.forward(&t)?;
    assert_eq!(y.shape(), [2, 5, 8]);
    assert_eq!(LayerNorm::new(4)?.forward(&t)?.shape(), [2, 5, 4]);
    Embedding::new(100, 16)?;
    RmsNorm::new(4)?;
    Dropout::new(0.1)?;
    Conv1d::new(4, 8, 3)?;
    BatchNorm::new(4)?;
    GroupNorm::new(2, 4)?;
    Gru::new(4, 8)?;
    MultiHeadAttention::new(4, 2)?;
    TransformerEncoder::new(2, 16, 2)?;
    Linear::new(4, 8, false)?;
    let _ = Conv2d::new(3, 8, (3, 3))?.stride(2);
    let _ = AvgPool2d::new(2);
    assert_eq!(Dropout::new(0.5)?.forward(&a)?.shape(), [2, 4]);
    Activation::Gelu.forward(&a)?.eval()
}

#[test]
fn functions_and_losses() -> Result<()> {
    let [a, b] = pair()?;
    let logits = a.clone();
    let labels = Array::from(vec![1, 0]);
    for y in [gelu(&a)?, silu(&a)?, relu(&a)?, softmax(&a, -1)?] {
        assert_eq!(y.shape(), [2, 4]);
    }
    for loss in [
        loss::mse(&a, &b)?,
        loss::cross_entropy(&logits, &labels)?,
        loss::binary_cross_entropy(&a, &b)?,
        loss::l1(&a, &b)?.mean_all()?,
    ] {
        assert!(loss.mean_all()?.item::<f32>()? > 0.0);
    }
    let _ = init::normal(0.0, 0.02);
    Ok(())
}

#[test]
fn modules_and_optimisers() -> Result<()> {
    let [a, _] = pair()?;
    let mut mlp = mlp()?;
    let _ = Sgd::new(0.1);
    let _ = Sgd::new(0.1).momentum(0.9);
    let _ = cosine_decay(1e-3, 1000);
    let mut opt = AdamW::new(1e-3);
    let (_, grads) = value_and_grad(&mut mlp, |m| m.forward(&a)?.sum_all())?;
    clip_grad_norm(&grads, 1.0)?;
    opt.update(&mut mlp, &grads)?;
    assert_eq!(mlp.num_parameters(), 4 * 8 + 8 + 8 * 2 + 2);
    assert_eq!(mlp.trainable_parameters().len(), 4);
    let folder = tempfile::tempdir().expect("a folder");
    let before = std::env::current_dir().expect("a current folder");
    std::env::set_current_dir(&folder).expect("the new folder");
    mlp.save("mlp.safetensors")?;
    let expected = mlp.forward(&a)?.to_vec::<f32>()?;
    mlp.apply(|array| array.multiply(0.0))?;
    mlp.load("mlp.safetensors")?;
    std::env::set_current_dir(before).expect("the old folder");
    assert_eq!(mlp.forward(&a)?.to_vec::<f32>()?, expected);
    mlp.unfreeze()?;
    mlp.train(false)?;
    mlp.eval()?;
    mlp.set_dtype(BF16)?;
    assert_eq!(mlp.forward(&a.astype(BF16)?)?.dtype(), BF16);
    Ok(())
}

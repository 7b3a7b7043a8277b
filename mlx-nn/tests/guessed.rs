//! Calls in the style of MLX's Python and of candle, which users of these try first.

#![allow(unused_qualifications, reason = "the calls stand word for word")]

use mlx_core::ops::create::ones;
use mlx_core::{Array, DType, Result};
use mlx_nn::*;

#[test]
fn guessed_calls_compile_and_run() -> Result<()> {
    let a = ones(&[2, 4], DType::F32)?;
    let image = ones(&[1, 5, 5, 1], DType::F32)?;
    let sequence = ones(&[1, 3, 4], DType::F32)?;

    let norm = LayerNorm::new(4)?;
    assert_eq!(norm.forward(&a)?.shape(), [2, 4]);
    let conv = Conv2d::new(1, 8, 3)?;
    assert_eq!(conv.forward(&image)?.shape(), [1, 3, 3, 8]);
    let lstm = Lstm::new(4, 8)?;
    assert_eq!(lstm.forward(&sequence)?.0.shape(), [1, 3, 8]);
    let mut l = Linear::new(4, 2, true)?;
    assert_eq!(l.parameters().len(), 2);
    let net = Sequential::new()
        .add(norm)
        .add(Activation::Relu)
        .add(Linear::new(4, 2, false)?);
    assert_eq!(net.forward(&a)?.shape(), [2, 2]);

    let mut opt = AdamW::new(1e-3);
    let (loss, grads) = value_and_grad(&mut l, |l| l.forward(&a)?.square()?.mean(.., false))?;
    let before: Array = l.parameters()["weight"].clone();
    opt.update(&mut l, &grads)?;
    assert!(loss.item::<f32>()? > 0.0);
    assert_ne!(
        before.to_vec::<f32>()?,
        l.parameters()["weight"].to_vec::<f32>()?
    );

    Rnn::new(4, 8)?;
    Gru::new(4, 8)?;
    Conv1d::new(1, 8, 3)?;
    BatchNorm::new(4)?;
    GroupNorm::new(2, 4)?;
    Dropout::new(0.1)?;
    MaxPool2d::new(2);
    AvgPool2d::new((2, 2));
    MultiHeadAttention::new(8, 2)?;
    TransformerEncoder::new(2, 8, 2)?;
    Embedding::new(10, 4)?;
    let _ = Sgd::new(0.1).momentum(0.9);
    Adam::new(Schedule::cosine(1e-3, 0.0, 100));
    loss::mse(&a, &a)?;
    loss::cross_entropy(&a, &Array::from_slice(&[0i32, 1], &[2])?)?;
    Ok(())
}

//! What training computes besides matrix products: the loss, and derivatives.

use criterion::Criterion;
use mlx_core::fast::{self, Attention, Mask};
use mlx_core::transforms::vjp_with;
use mlx_core::{Array, DType, Result, eval, ones_like};

use crate::normal;
use crate::timed::{Amount, time};

/// Tokens of a step.
const TOKENS: i32 = 512;

pub fn training(c: &mut Criterion) {
    let of = |size| format!("f32 of {TOKENS} rows of {size}");
    let (width, inner, vocabulary) = (1024, 3072, 151_936);
    let numbers = |size| f64::from(TOKENS) * f64::from(size);

    let id = format!("derivative of rms_norm {}", of(width));
    let shapes: [&[i32]; 2] = [&[width], &[TOKENS, width]];
    derivative(c, &id, &shapes, 10.0 * numbers(width), |inputs| {
        fast::rms_norm(&inputs[1], Some(&inputs[0]), 1e-6)
    });
    let id = format!("derivative of swiglu {}", of(inner));
    let shapes: [&[i32]; 2] = [&[TOKENS, inner], &[TOKENS, inner]];
    derivative(c, &id, &shapes, 10.0 * numbers(inner), |inputs| {
        fast::swiglu(&inputs[0], &inputs[1])
    });
    let id = format!("derivative of geglu {}", of(inner));
    derivative(c, &id, &shapes, 15.0 * numbers(inner), |inputs| {
        fast::geglu(&inputs[0], &inputs[1])
    });

    for tokens in [128, TOKENS, 2048] {
        attention(c, tokens);
    }

    // The largest logit, and the sum over the rest: a difference, a power and a sum each.
    let id = format!("cross_entropy {}", of(vocabulary));
    time(c, &id, || {
        let logits = normal(&[TOKENS, vocabulary], DType::F32)?;
        let targets = targets()?;
        let amount = Amount::elementwise(&[&logits], 4.0);
        Ok((amount, move || fast::cross_entropy(&logits, &targets)))
    });
    let id = format!("derivative of cross_entropy {}", of(vocabulary));
    let operations = 6.0 * numbers(vocabulary);
    derivative(c, &id, &[&[TOKENS, vocabulary]], operations, |inputs| {
        fast::cross_entropy(&inputs[0], &targets()?)
    });
}

fn attention(c: &mut Criterion, tokens: i32) {
    let (heads, kv_heads, size) = (16, 8, 128);
    let id = format!("derivative of attention f32 qwen3: {tokens} new of {tokens}");
    let (q, kv) = ([1, heads, tokens, size], [1, kv_heads, tokens, size]);
    // The scores again, and four products of their size; half of the square is unmasked.
    let seen = f64::from(tokens) * f64::from(tokens + 1) / 2.0;
    let operations = 10.0 * f64::from(heads * size) * seen;
    derivative(c, &id, &[&q, &kv, &kv], operations, |inputs| {
        let options = Attention {
            scale: (size as f32).sqrt().recip(),
            mask: Mask::Causal,
            sinks: None,
            soft_cap: None,
        };
        fast::attention(&inputs[0], &inputs[1], &inputs[2], &options)
    });
}

fn targets() -> Result<Array> {
    let targets: Vec<u32> = (0..TOKENS as u32).map(|i| i * 7919 % 150_000).collect();
    Array::from_slice(&targets, &[TOKENS])
}

/// The derivatives of `f` by inputs of these shapes. Inputs and the cotangent are read once, derivatives are written
/// once.
fn derivative(
    c: &mut Criterion,
    id: &str,
    shapes: &[&[i32]],
    operations: f64,
    f: impl Fn(&[Array]) -> Result<Array>,
) {
    time(c, id, || {
        let inputs: Vec<Array> = shapes
            .iter()
            .map(|shape| normal(shape, DType::F32))
            .collect::<Result<_>>()?;
        let cotangent = ones_like(&f(&inputs)?)?;
        eval([&cotangent])?;
        let bytes: usize = inputs.iter().map(|input| 2 * input.nbytes()).sum();
        let amount = Amount {
            operations,
            bytes: (bytes + cotangent.nbytes()) as f64,
        };
        let cotangent = [cotangent];
        Ok((amount, move || {
            let (_, derivatives) = vjp_with(|x| Ok(vec![f(x)?]), &inputs, &cotangent)?;
            Ok(derivatives[0].clone())
        }))
    });
}

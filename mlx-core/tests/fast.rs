//! Fused operations compared with the same operations made of plain ones.

use mlx_core::fast::{self, Mask, Rope, plainly};
use mlx_core::random::{self, Key};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, ErrorKind, Result};
use proptest::prelude::*;

fn normal(seed: u64, shape: &[i32], dtype: DType) -> Array {
    let key = Key::new(seed).unwrap();
    random::normal(&key, shape, DType::F32)
        .unwrap()
        .astype(dtype)
        .unwrap()
}

fn floats(array: &Array) -> Vec<f32> {
    array.astype(DType::F32).unwrap().to_vec::<f32>().unwrap()
}

/// Fails unless both are of one shape and dtype and differ by at most `tolerance`, relative to the
/// larger of the value and one.
fn assert_close(found: &Array, expected: &Array, tolerance: f32) {
    assert_eq!(found.shape(), expected.shape());
    assert_eq!(found.dtype(), expected.dtype());
    for (index, (a, b)) in floats(found).iter().zip(floats(expected)).enumerate() {
        let scale = b.abs().max(1.0);
        assert!(
            (a - b).abs() <= tolerance * scale,
            "element {index}: {a} and {b}"
        );
    }
}

fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 4e-2,
        DType::F16 => 5e-3,
        _ => 2e-5,
    }
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)]
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// [`fast::layer_norm`] by plain operations.
fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Result<Array> {
    let wide = x.astype(DType::F32)?;
    let centred = wide.subtract(&wide.mean(-1, true)?)?;
    let inverse = centred.square()?.mean(-1, true)?.add(eps)?.rsqrt()?;
    let mut normal = centred.multiply(&inverse)?.astype(x.dtype())?;
    if let Some(weight) = weight {
        normal = normal.multiply(weight)?;
    }
    if let Some(bias) = bias {
        normal = normal.add(bias)?;
    }
    Ok(normal)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn norms(
        seed in 0u64..1000,
        rows in prop::collection::vec(1i32..5, 0..3),
        features in 1i32..40,
        dtype in dtypes(),
        weighted: bool,
        biased: bool,
        eps in prop_oneof![Just(1e-5f32), Just(1e-2)],
    ) {
        let shape: Vec<i32> = rows.into_iter().chain([features]).collect();
        let x = normal(seed, &shape, dtype);
        let weight = weighted.then(|| normal(seed + 1, &[features], dtype));
        let bias = (weighted && biased).then(|| normal(seed + 2, &[features], dtype));
        assert_close(
            &fast::rms_norm(&x, weight.as_ref(), eps).unwrap(),
            &plainly(|| fast::rms_norm(&x, weight.as_ref(), eps)).unwrap(),
            tolerance(dtype),
        );
        assert_close(
            &fast::layer_norm(&x, weight.as_ref(), bias.as_ref(), eps).unwrap(),
            &layer_norm(&x, weight.as_ref(), bias.as_ref(), eps).unwrap(),
            tolerance(dtype),
        );
    }

    #[test]
    fn ropes(
        seed in 0u64..1000,
        rows in 1i32..4,
        heads in 1i32..4,
        tokens in 1i32..6,
        half in 1i32..5,
        rest in 0i32..5,
        traditional: bool,
        with_freqs: bool,
        three_dims: bool,
        scale in prop_oneof![Just(1.0f32), Just(0.25)],
        offsets in prop::collection::vec(0i32..100, 3),
        per_row: bool,
        whole in prop_oneof![Just(DType::I32), Just(DType::U32), Just(DType::I64)],
        dtype in dtypes(),
    ) {
        let features = 2 * half + rest;
        let shape = [rows, heads, tokens, features];
        let flat = [rows, tokens, features];
        let x = normal(seed, if three_dims { &flat } else { &shape }, dtype);
        let freqs = with_freqs.then(|| {
            normal(seed + 1, &[half], DType::F32).abs().unwrap().add(0.5).unwrap()
        });
        let count = if per_row { rows as usize } else { 1 };
        let offsets = Array::from_slice(&offsets[..count], &[count as i32]).unwrap().astype(whole).unwrap();
        let rope = Rope {
            dims: 2 * half,
            traditional,
            base: (!with_freqs).then_some(10_000.0),
            scale,
            freqs: freqs.as_ref(),
        };
        assert_close(
            &fast::rope_with(&x, &rope, &offsets).unwrap(),
            &plainly(|| fast::rope_with(&x, &rope, &offsets)).unwrap(),
            tolerance(dtype),
        );
    }

    #[test]
    fn attention(
        seed in 0u64..1000,
        rows in 1i32..3,
        kv_heads in 1i32..3,
        groups in 1i32..4,
        queries in 1i32..6,
        earlier in 0i32..6,
        features in 1i32..9,
        value_features in 1i32..9,
        kind in 0..4,
        whole_mask: bool,
        sunk: bool,
        dtype in dtypes(),
    ) {
        let heads = kv_heads * groups;
        let stored = queries + earlier;
        let q = normal(seed, &[rows, heads, queries, features], dtype);
        let k = normal(seed + 1, &[rows, kv_heads, stored, features], dtype);
        let v = normal(seed + 2, &[rows, kv_heads, stored, value_features], dtype);
        let mask_shape = if whole_mask { [rows, heads, queries, stored] } else { [rows, 1, queries, stored] };
        let noise = normal(seed + 3, &mask_shape, dtype);
        // Every query has at least the first token.
        let first = mlx_core::arange(0.0, f64::from(stored), 1.0, DType::I32).unwrap().equal(0).unwrap();
        let seen = noise.greater(0.0).unwrap().logical_or(&first).unwrap();
        let mask = match kind {
            0 => Mask::None,
            1 => Mask::Causal,
            2 => Mask::Array(seen),
            _ => Mask::Array(noise),
        };
        let sinks = sunk.then(|| normal(seed + 4, &[heads], dtype));
        let scale = (features as f32).powf(-0.5);
        assert_close(
            &fast::scaled_dot_product_attention(&q, &k, &v, scale, mask.clone(), sinks.as_ref()).unwrap(),
            &plainly(|| fast::scaled_dot_product_attention(&q, &k, &v, scale, mask, sinks.as_ref())).unwrap(),
            tolerance(dtype),
        );
    }

    #[test]
    fn cross_entropies(
        seed in 0u64..1000,
        rows in prop::collection::vec(1i32..5, 0..3),
        classes in 1i32..30,
        dtype in dtypes(),
    ) {
        let shape: Vec<i32> = rows.iter().copied().chain([classes]).collect();
        let logits = normal(seed, &shape, dtype);
        let key = Key::new(seed + 1).unwrap();
        let targets = random::uniform(&key, 0.0, classes as f32, &rows, DType::F32).unwrap();
        let targets = targets.astype(DType::I32).unwrap().clip(0, classes - 1).unwrap();
        assert_close(
            &fast::cross_entropy(&logits, &targets).unwrap().astype(DType::F32).unwrap(),
            &plainly(|| fast::cross_entropy(&logits, &targets)).unwrap(),
            tolerance(dtype),
        );
    }
}

#[test]
fn causal_is_aligned_to_the_last_query() -> Result<()> {
    // One head, values 1, 2, 3 and equal scores: the result is the mean of the unmasked values.
    let q = Array::from_slice(&[0.0f32; 2], &[1, 1, 2, 1])?;
    let k = Array::from_slice(&[0.0f32; 3], &[1, 1, 3, 1])?;
    let v = Array::from_slice(&[1.0f32, 2.0, 3.0], &[1, 1, 3, 1])?;
    let out = fast::scaled_dot_product_attention(&q, &k, &v, 1.0, Mask::Causal, None)?;
    assert_eq!(out.to_vec::<f32>()?, [1.5, 2.0]);
    Ok(())
}

#[test]
fn rope_turns_by_position() -> Result<()> {
    // One pair, for which the base has no effect: position p rotates (1, 0) to (cos p, sin p).
    let x = Array::from_slice(&[1.0f32, 0.0, 1.0, 0.0], &[2, 1, 1, 2])?;
    let rope = Rope {
        dims: 2,
        traditional: false,
        base: Some(10_000.0),
        scale: 1.0,
        freqs: None,
    };
    let offsets = Array::from_slice(&[0i32, 2], &[2])?;
    let out = fast::rope_with(&x, &rope, &offsets)?.to_vec::<f32>()?;
    let expected = [1.0, 0.0, 2f32.cos(), 2f32.sin()];
    assert!(
        out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6),
        "{out:?}"
    );
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let x = normal(0, &[2, 2, 3, 4], DType::F32);
    let kind = |result: Result<Array>| result.err().map(|error| error.kind());
    let short = normal(1, &[3], DType::F32);
    assert!(kind(fast::rms_norm(&x, Some(&short), 1e-5)).is_some());
    assert!(kind(fast::layer_norm(&x, None, Some(&short), 1e-5)).is_some());

    let values = normal(2, &[2, 2, 2, 4], DType::F32);
    let attend = |v: &Array| fast::scaled_dot_product_attention(&x, &x, v, 1.0, Mask::None, None);
    assert_eq!(kind(attend(&values)), Some(ErrorKind::Shape));
    let no_heads = mlx_core::zeros(&[2, 0, 3, 4], DType::F32)?;
    let headless =
        fast::scaled_dot_product_attention(&x, &no_heads, &no_heads, 1.0, Mask::None, None);
    assert_eq!(kind(headless), Some(ErrorKind::Shape));

    let offset = Array::scalar(0i32)?;
    let rope = Rope {
        dims: 4,
        traditional: false,
        base: None,
        scale: 1.0,
        freqs: None,
    };
    assert!(kind(fast::rope_with(&x, &rope, &offset)).is_some());
    let odd = Rope {
        dims: 3,
        base: Some(1e4),
        ..rope
    };
    assert!(kind(fast::rope_with(&x, &odd, &offset)).is_some());
    let three = Array::from_slice(&[0i32; 3], &[3])?;
    let fits = Rope {
        dims: 4,
        base: Some(1e4),
        ..rope
    };
    assert!(kind(fast::rope_with(&x, &fits, &three)).is_some());

    let targets = Array::from_slice(&[0i32; 2], &[2])?;
    assert_eq!(
        kind(fast::cross_entropy(&x, &targets)),
        Some(ErrorKind::Shape)
    );
    let floats = normal(3, &[2, 2, 3], DType::F32);
    assert_eq!(
        kind(fast::cross_entropy(&x, &floats)),
        Some(ErrorKind::DType)
    );
    Ok(())
}

/// The gradients of `fused` and `plain` with respect to all of `args`, of a weighted sum.
fn assert_same_gradients(
    args: &[Array],
    fused: impl Fn(&[Array]) -> Result<Array>,
    plain: impl Fn(&[Array]) -> Result<Array>,
) -> Result<()> {
    let argnums: Vec<usize> = (0..args.len()).collect();
    let weighted = |y: Array| {
        let weights = normal(99, y.shape(), DType::F32);
        Ok(vec![y.multiply(&weights)?.sum(.., false)?])
    };
    let found = grad_with(|x| weighted(fused(x)?), args, &argnums)?;
    let expected = grad_with(|x| weighted(plain(x)?), args, &argnums)?;
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(found, expected, 1e-4);
    }
    Ok(())
}

#[test]
fn gradients_are_those_of_the_plain_operations() -> Result<()> {
    let x = normal(1, &[2, 4, 3, 8], DType::F32);
    let (weight, bias) = (normal(2, &[8], DType::F32), normal(3, &[8], DType::F32));
    assert_same_gradients(
        &[x.clone(), weight.clone()],
        |a| fast::rms_norm(&a[0], Some(&a[1]), 1e-5),
        |a| plainly(|| fast::rms_norm(&a[0], Some(&a[1]), 1e-5)),
    )?;
    assert_same_gradients(
        &[x.clone(), weight, bias],
        |a| fast::layer_norm(&a[0], Some(&a[1]), Some(&a[2]), 1e-5),
        |a| layer_norm(&a[0], Some(&a[1]), Some(&a[2]), 1e-5),
    )?;
    let offsets = Array::from_slice(&[5i32, 0], &[2])?;
    for traditional in [false, true] {
        let rope = Rope {
            dims: 6,
            traditional,
            base: Some(100.0),
            scale: 1.0,
            freqs: None,
        };
        let x = std::slice::from_ref(&x);
        let fused = |a: &[Array]| fast::rope_with(&a[0], &rope, &offsets);
        assert_same_gradients(x, fused, |a| {
            plainly(|| fast::rope_with(&a[0], &rope, &offsets))
        })?;
    }
    let (k, v) = (
        normal(4, &[2, 2, 5, 8], DType::F32),
        normal(5, &[2, 2, 5, 8], DType::F32),
    );
    let sinks = normal(6, &[4], DType::F32);
    assert_same_gradients(
        &[x, k, v, sinks],
        |a| fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.3, Mask::Causal, Some(&a[3])),
        |a| {
            plainly(|| {
                fast::scaled_dot_product_attention(
                    &a[0],
                    &a[1],
                    &a[2],
                    0.3,
                    Mask::Causal,
                    Some(&a[3]),
                )
            })
        },
    )?;
    let targets = Array::from_slice(&[1i32, 0, 4], &[3])?;
    assert_same_gradients(
        &[normal(7, &[3, 5], DType::F32)],
        |a| fast::cross_entropy(&a[0], &targets),
        |a| plainly(|| fast::cross_entropy(&a[0], &targets)),
    )
}

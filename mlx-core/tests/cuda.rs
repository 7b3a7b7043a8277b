//! The kernels for NVIDIA GPUs against the plain form in F32, and each row alone against the same row in a batch, to the bit. Without such
//! a GPU there is nothing to run.

use mlx_core::fast::{
    self, Attention, Buffers, Draw, Form, Gate, KeySlots, Mask, Matrix, Op, Positions, Projection,
    Slots, plainly,
};
use mlx_core::ops::quantize::{QuantMode, Scheme, dequantize, quantize};
use mlx_core::random::{Key, normal};
use mlx_core::{Array, DType, Device, Result};

/// Makes the GPU the default device. Whether there is one, and it runs kernels of ours.
fn on_gpu() -> Result<bool> {
    if !Device::GPU.is_available()? {
        eprintln!("skipped: no GPU");
        return Ok(false);
    }
    Device::GPU.set_default()?;
    let ours = fast::form(Op::Linear)? == Form::Cuda;
    if !ours {
        eprintln!("skipped: no kernels for this GPU");
    }
    Ok(ours)
}

fn noise(seed: u64, shape: &[i32], dtype: DType) -> Result<Array> {
    normal(&Key::new(seed)?, shape, DType::F32, 0.0f32, 1.0f32)?.astype(dtype)
}

fn f32s(a: &Array) -> Result<Vec<f32>> {
    a.astype(DType::F32)?.to_vec::<f32>()
}

/// Fails where a number of `found` is further from that of `wanted` than `tolerance` times it and the root of the mean square of all.
fn close(what: &str, found: &Array, wanted: &Array, tolerance: f32) -> Result<()> {
    assert_eq!(found.shape(), wanted.shape(), "{what}");
    let (found, wanted) = (f32s(found)?, f32s(wanted)?);
    let size = (wanted.iter().map(|x| x * x).sum::<f32>() / wanted.len() as f32).sqrt();
    for (i, (a, b)) in found.iter().zip(&wanted).enumerate() {
        let near = (a - b).abs() <= tolerance * (size + b.abs()).max(1e-6);
        assert!(
            near,
            "{what}: number {i} is {a}, not {b}, where numbers are about {size}"
        );
    }
    Ok(())
}

fn same(what: &str, a: &Array, b: &Array) -> Result<()> {
    let (a, b) = (f32s(a)?, f32s(b)?);
    let different = a
        .iter()
        .zip(&b)
        .filter(|(a, b)| a.to_bits() != b.to_bits())
        .count();
    assert_eq!((a.len(), different), (b.len(), 0), "{what}");
    Ok(())
}

const HALVES: [(DType, f32); 2] = [(DType::BF16, 0.03), (DType::F16, 0.006)];

fn schemes() -> Vec<Scheme> {
    let mut all = Vec::new();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            all.push(Scheme {
                mode: QuantMode::Affine,
                bits,
                group_size,
            });
        }
    }
    for (mode, bits, group_size) in [
        (QuantMode::Mxfp4, 4, 32),
        (QuantMode::Mxfp8, 8, 32),
        (QuantMode::Nvfp4, 4, 16),
    ] {
        all.push(Scheme {
            mode,
            bits,
            group_size,
        });
    }
    all
}

/// A matrix, and its elements in F32.
struct Weights {
    parts: (Array, Option<(Array, Option<Array>, Scheme)>),
    wide: Array,
}

impl Weights {
    fn new(seed: u64, n: i32, k: i32, dtype: DType, scheme: Option<Scheme>) -> Result<Self> {
        let w = noise(seed, &[n, k], dtype)?;
        let Some(scheme) = scheme else {
            let wide = w.astype(DType::F32)?;
            return Ok(Self {
                parts: (w, None),
                wide,
            });
        };
        let q = quantize(&w, scheme)?;
        let narrow = dequantize(&q.packed, &q.scales, q.biases.as_ref(), scheme, Some(dtype))?;
        let wide = narrow.astype(DType::F32)?;
        Ok(Self {
            parts: (q.packed, Some((q.scales, q.biases, scheme))),
            wide,
        })
    }
    fn matrix(&self) -> Matrix<'_> {
        match &self.parts {
            (weight, None) => Matrix::Dense(weight),
            (packed, Some((scales, biases, scheme))) => Matrix::Quantized {
                packed,
                scales,
                biases: biases.as_ref(),
                scheme: *scheme,
            },
        }
    }
    fn times(&self, x: &Array) -> Result<Array> {
        plainly(|| fast::linear(&x.astype(DType::F32)?, &self.wide))
    }
}

#[test]
fn products_of_every_coding() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for scheme in schemes().into_iter().map(Some).chain([None]) {
            for (m, n, k) in [
                (1, 48, 128),
                (3, 40, 384),
                (9, 64, 1152),
                (17, 33, 2176),
                (70, 16, 256),
            ] {
                let x = noise(1, &[m, k], dtype)?;
                let (a, b) = (
                    Weights::new(2, n, k, dtype, scheme)?,
                    Weights::new(3, n + 8, k, dtype, scheme)?,
                );
                let what = format!("{dtype} {scheme:?} {m} {n} {k}");
                let both = fast::linear_many(&x, &[a.matrix(), b.matrix()])?;
                close(&what, &both[0], &a.times(&x)?, tolerance)?;
                close(&what, &both[1], &b.times(&x)?, tolerance)?;
                let c = Weights::new(4, n, k, dtype, scheme)?;
                for gate in [Gate::Silu, Gate::GeluTanh] {
                    let y = fast::gated_linear(gate, &x, &a.matrix(), &c.matrix())?;
                    let wanted = plainly(|| fast::gated(gate, &a.times(&x)?, &c.times(&x)?))?;
                    close(&format!("{what} {gate:?}"), &y, &wanted, 2.0 * tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_row_is_the_same_in_every_batch() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let four = Scheme {
        mode: QuantMode::Affine,
        bits: 4,
        group_size: 64,
    };
    for scheme in [None, Some(four)] {
        for (n, k) in [(1152, 6912), (16640, 1152)] {
            let w = Weights::new(2, n, k, DType::BF16, scheme)?;
            let x = noise(1, &[200, k], DType::BF16)?;
            let all = fast::linear_many(&x, &[w.matrix(), w.matrix()])?.remove(0);
            for m in [1, 2, 7, 8, 15, 16, 31, 64, 100] {
                let some =
                    fast::linear_many(&x.slice_axis(0, 3, 3 + m)?, &[w.matrix(), w.matrix()])?
                        .remove(1);
                same(
                    &format!("{scheme:?} {n} {k} {m}"),
                    &some,
                    &all.slice_axis(0, 3, 3 + m)?,
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn norms_and_gates() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        let (x, y, w, v) = (
            noise(1, &[5, 1152], dtype)?,
            noise(2, &[5, 1152], dtype)?,
            noise(3, &[1152], dtype)?,
            noise(4, &[1152], dtype)?,
        );
        let pairs = [
            (
                fast::rms_norm(&x, Some(&w), 1e-6)?,
                plainly(|| fast::rms_norm(&x, Some(&w), 1e-6))?,
            ),
            (
                fast::rms_norm(&x, None, 1e-6)?,
                plainly(|| fast::rms_norm(&x, None, 1e-6))?,
            ),
            (
                fast::norm_add(&x, &w, &y, 1e-6)?,
                plainly(|| fast::norm_add(&x, &w, &y, 1e-6))?,
            ),
            (fast::add(&x, &y)?, plainly(|| fast::add(&x, &y))?),
            (fast::swiglu(&x, &y)?, plainly(|| fast::swiglu(&x, &y))?),
            (fast::geglu(&x, &y)?, plainly(|| fast::geglu(&x, &y))?),
            (
                fast::soft_cap(&x, 0.7)?,
                plainly(|| fast::soft_cap(&x, 0.7))?,
            ),
            (fast::logsumexp(&x)?, plainly(|| fast::logsumexp(&x))?),
            (fast::argmax(&x)?, plainly(|| fast::argmax(&x))?),
        ];
        for (i, (found, wanted)) in pairs.iter().enumerate() {
            close(&format!("{dtype} {i}"), found, wanted, tolerance)?;
        }
        let of = |_: ()| fast::add_norm(&x, &y, Some(&w), &v, 1e-6);
        let (found, wanted) = (of(())?, plainly(|| of(()))?);
        close("sum", &found.0, &wanted.0, tolerance)?;
        close("normed", &found.1, &wanted.1, tolerance)?;
    }
    Ok(())
}

#[test]
fn rows_of_an_embedding() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let ids = Array::from_slice(&[5u32, 0, 63, 5], &[2, 2])?;
    for (dtype, _) in HALVES {
        for scheme in schemes().into_iter().map(Some).chain([None]) {
            let w = Weights::new(2, 64, 384, dtype, scheme)?;
            let found = match &w.parts {
                (weight, None) => fast::rows(weight, &ids)?,
                (packed, Some((scales, biases, scheme))) => {
                    fast::quantized_rows(packed, scales, biases.as_ref(), &ids, *scheme, dtype)?
                }
            };
            same(
                &format!("{dtype} {scheme:?}"),
                &found,
                &w.wide.take(&ids, 0)?,
            )?;
        }
    }
    Ok(())
}

#[test]
fn heads_go_into_their_slots() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let periods: Vec<f32> = (0..32).map(|i| 10000f32.powf(i as f32 / 32.0)).collect();
    let freqs = Array::from_slice(&periods, &[32])?;
    let offsets = Array::from_slice(&[3i32, 9], &[2])?;
    for (dtype, tolerance) in HALVES {
        for dims in [64, 32] {
            let freqs = freqs.slice_axis(0, 0, dims / 2)?;
            let x = noise(1, &[2, 4, 3 * 64], dtype)?;
            let w = noise(2, &[64], dtype)?;
            for norm in [None, Some((&w, 1e-6))] {
                let of = Projection {
                    x: &x,
                    head_dim: 64,
                    norm,
                    dims,
                    freqs: &freqs,
                    offsets: &offsets,
                };
                let (found, wanted) = (fast::heads(&of)?, plainly(|| fast::heads(&of))?);
                close(&format!("{dtype} {dims}"), &found, &wanted, tolerance)?;
                let values = noise(3, &[2, 4, 3 * 64], dtype)?
                    .reshape(&[2, 4, 3, 64])?
                    .swap_axes(1, 2)?;
                for ring in [false, true] {
                    let slots = Slots { ring, scheme: None };
                    let store = || fast::store_heads(Buffers::New(16), &of, &values, slots);
                    let (found, wanted) = (store()?, plainly(store)?);
                    close("keys", &found.0, &wanted.0, tolerance)?;
                    same("values", &found.1, &wanted.1)?;
                    let keys = fast::heads(&of)?;
                    let again = fast::store(
                        Buffers::Shared(&found.0, &found.1),
                        &keys,
                        &values,
                        &offsets,
                        slots,
                    )?;
                    same("keys again", &again.0, &found.0)?;
                    same("values again", &again.1, &found.1)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn attention_over_a_cache() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for (d, heads, kv_heads) in [(64, 4, 2), (128, 16, 8), (256, 4, 1), (80, 6, 6)] {
            for (tokens, slots) in [(1, 40), (1, 700), (3, 300), (40, 200)] {
                let rows = 3;
                let q = noise(1, &[rows, heads, tokens, d], dtype)?;
                let k = noise(2, &[rows, kv_heads, slots, d], dtype)?;
                let v = noise(3, &[rows, kv_heads, slots, d], dtype)?;
                let sinks = noise(4, &[heads], dtype)?;
                let offsets = [slots - tokens, 0, (slots - tokens) / 2];
                let at = Array::from_slice(&offsets, &[rows])?;
                for (window, layout) in [
                    (None, KeySlots::Straight),
                    (Some(24), KeySlots::Straight),
                    (Some(slots - tokens), KeySlots::Ring),
                    (Some(slots - tokens), KeySlots::Behind),
                ] {
                    for (soft_cap, sinks) in [(None, None), (Some(5.0), Some(&sinks))] {
                        let options = |at: &Array| Attention {
                            scale: (d as f32).powf(-0.5),
                            soft_cap,
                            mask: Mask::Positions(Positions::new(at, window, layout)),
                            sinks,
                        };
                        let what = format!(
                            "{dtype} {d} {heads}/{kv_heads} {tokens} of {slots}, {window:?} {layout:?} {soft_cap:?}"
                        );
                        let found = fast::attention(&q, &k, &v, &options(&at))?;
                        let wide = |a: &Array| a.astype(DType::F32);
                        let wanted = plainly(|| {
                            fast::attention(&wide(&q)?, &wide(&k)?, &wide(&v)?, &options(&at))
                        })?;
                        close(&what, &found, &wanted, tolerance)?;
                        // Rows alone, and queries alone.
                        for row in 0..rows {
                            let one = |a: &Array| a.slice_axis(0, row, row + 1);
                            let alone = fast::attention(
                                &one(&q)?,
                                &one(&k)?,
                                &one(&v)?,
                                &options(&one(&at)?),
                            )?;
                            same(&format!("{what}: row {row}"), &alone, &one(&found)?)?;
                        }
                        if layout == KeySlots::Straight && tokens > 1 {
                            let last = q.slice_axis(2, tokens - 1, tokens)?;
                            let later = at.add(tokens - 1)?;
                            let alone = fast::attention(&last, &k, &v, &options(&later))?;
                            same(
                                &format!("{what}: last"),
                                &alone,
                                &found.slice_axis(2, tokens - 1, tokens)?,
                            )?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn draws_are_those_of_the_plain_form() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let base = Draw {
        temperature: 0.8,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        key: [1, 2],
    };
    let rows = [
        base,
        Draw {
            temperature: 0.0,
            ..base
        },
        Draw {
            top_p: 0.7,
            key: [3, 9],
            ..base
        },
        Draw {
            top_k: 5,
            key: [4, 4],
            ..base
        },
        Draw {
            min_p: 0.1,
            key: [8, 4],
            ..base
        },
        Draw {
            top_p: 0.9,
            top_k: 40,
            min_p: 0.01,
            key: [8, 8],
            ..base
        },
    ];
    let mut different = 0;
    for v in [1000, 32001] {
        for seed in 0..20 {
            let x = noise(seed, &[rows.len() as i32, v], DType::F32)?.multiply(3.0f32)?;
            let found = fast::draw(&x, &rows)?.to_vec::<u32>()?;
            let wanted = plainly(|| fast::draw(&x, &rows))?.to_vec::<u32>()?;
            different += found.iter().zip(&wanted).filter(|(a, b)| a != b).count();
            assert_eq!(found[1], wanted[1]);
        }
    }
    // Logarithms of two back ends differ in the last bit.
    assert!(different <= 2, "{different} of 240 draws differ");
    let mut strange = vec![0.0f32; 100];
    strange[7] = f32::NAN;
    let x = Array::from_slice(&strange, &[1, 100])?;
    assert_eq!(fast::draw(&x, &[base])?.to_vec::<u32>()?, [fast::NO_TOKEN]);
    Ok(())
}

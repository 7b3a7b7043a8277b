//! The kernels for NVIDIA GPUs against the plain form in F32, and each row alone against the same row in a batch, to the bit. Without such
//! a GPU there is nothing to run.

mod caches;
mod experts;
mod faults;
mod gradients;
mod joined;
mod layers;
mod masks;
mod outcomes;
mod paged;
mod products;
mod prompts;
mod ragged;
mod recurrent;
mod relaunch;
mod replays;
mod reports;
mod states;
mod unpaged;

use mlx_core::fast::{self, Attention, Form, Matrix, Op, plainly};
use mlx_core::ops::quantize::{QuantMode, Scheme, dequantize_with, quantize_with};
use mlx_core::random::{Key, normal};
use mlx_core::{Array, DType, Device, Result, Stream};

/// Makes the GPU the default device. Returns whether there is a GPU that runs this crate's kernels.
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
    normal(&Key::new(seed)?, shape, DType::F32)?.astype(dtype)
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
        // The last term is the smallest number of F16, in which tiny results are rounded.
        let near = (a - b).abs() <= tolerance * (size + b.abs()).max(1e-6) + 6e-8;
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

/// Attention, after a comparison with the plain form in F32 as in [`close`].
fn attention(
    what: &str,
    [q, k, v]: [&Array; 3],
    options: &Attention<'_>,
    tolerance: f32,
) -> Result<Array> {
    let found = fast::attention(q, k, v, options)?;
    let wide = |a: &Array| a.astype(DType::F32);
    let wanted = plainly(|| fast::attention(&wide(q)?, &wide(k)?, &wide(v)?, options))?;
    close(what, &found, &wanted, tolerance)?;
    Ok(found)
}

const HALVES: [(DType, f32); 2] = [(DType::BF16, 0.03), (DType::F16, 0.006)];

/// Affine, 4 bits in groups of 64.
const FOUR: Scheme = Scheme {
    mode: QuantMode::Affine,
    bits: 4,
    group_size: 64,
};

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

/// An array with the same numbers in F32 that no GPU has computed.
fn host(a: &Array) -> Result<Array> {
    Array::from_slice(&f32s(a)?, a.shape())
}

/// What `f` computes on the CPU. Other tests run at the same time, so the default device stays as it is.
fn on_cpu<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    Stream::new(Device::CPU)?.scope(f)
}

/// The periods of `n` rotated pairs, F32 `[n]`.
fn periods(n: i32) -> Result<Array> {
    let periods = (0..n).map(|i| 10000f32.powf(i as f32 / n as f32));
    Array::from_slice(&periods.collect::<Vec<_>>(), &[n])
}

/// The parts of a matrix, or of a stack of matrices.
type Parts = (Array, Option<(Array, Option<Array>, Scheme)>);

fn parts_of(w: Array, scheme: Option<Scheme>) -> Result<Parts> {
    let Some(scheme) = scheme else {
        return Ok((w, None));
    };
    let q = quantize_with(&w, scheme)?;
    Ok((q.packed, Some((q.scales, q.biases, scheme))))
}

fn matrix_of(parts: &Parts) -> Matrix<'_> {
    match parts {
        (weight, None) => Matrix::Dense(weight),
        (packed, Some((scales, biases, scheme))) => Matrix::Quantized {
            packed,
            scales,
            biases: biases.as_ref(),
            scheme: *scheme,
        },
    }
}

/// A matrix, and its elements in F32.
struct Weights {
    parts: Parts,
    wide: Array,
}

impl Weights {
    fn new(seed: u64, n: i32, k: i32, dtype: DType, scheme: Option<Scheme>) -> Result<Self> {
        let w = noise(seed, &[n, k], dtype)?;
        let parts = parts_of(w, scheme)?;
        let wide = match &parts {
            (weight, None) => weight.astype(DType::F32)?,
            (packed, Some((scales, biases, scheme))) => {
                let wide = |scales: &Array, biases: Option<&Array>, dtype| {
                    dequantize_with(packed, scales, biases, *scheme, Some(dtype))
                };
                let wide = match (scheme.bits, scheme.group_size, biases) {
                    // MLX's CPU, which takes 2 bits in groups of 128, computes in the type of the scales and rounds
                    // twice.
                    (2, 128, Some(biases)) => wide(
                        &scales.astype(DType::F32)?,
                        Some(&biases.astype(DType::F32)?),
                        DType::F32,
                    )?,
                    _ => wide(scales, biases.as_ref(), dtype)?,
                };
                wide.astype(dtype)?.astype(DType::F32)?
            }
        };
        Ok(Self { parts, wide })
    }
    fn matrix(&self) -> Matrix<'_> {
        matrix_of(&self.parts)
    }
    fn times(&self, x: &Array) -> Result<Array> {
        plainly(|| fast::linear(&x.astype(DType::F32)?, &self.wide))
    }
}

/// One matrix for each expert.
struct Matrices {
    shape: [i32; 3],
    dtype: DType,
    parts: Parts,
}

impl Matrices {
    fn new(seed: u64, shape: [i32; 3], dtype: DType, scheme: Option<Scheme>) -> Result<Self> {
        let parts = parts_of(noise(seed, &shape, dtype)?, scheme)?;
        Ok(Self {
            shape,
            dtype,
            parts,
        })
    }
    fn matrix(&self) -> Matrix<'_> {
        matrix_of(&self.parts)
    }
    /// The parts of one expert's matrix.
    fn one(&self, expert: i32) -> Result<Parts> {
        let of = |a: &Array| a.slice_axis(0, expert, expert + 1)?.squeeze(0);
        let (weight, packing) = &self.parts;
        let packing = match packing {
            Some((scales, biases, scheme)) => {
                Some((of(scales)?, biases.as_ref().map(of).transpose()?, *scheme))
            }
            None => None,
        };
        Ok((of(weight)?, packing))
    }
    /// The products of `x [.., 1, k]` with the matrices of the experts that `indices` name.
    fn chosen(&self, x: &Array, indices: &Array) -> Result<Array> {
        match &self.parts {
            (weight, None) => fast::experts_linear(x, weight, indices),
            (packed, Some((scales, biases, scheme))) => {
                fast::quantized_experts_linear(x, packed, scales, biases.as_ref(), indices, *scheme)
            }
        }
    }
}

//! The kernels for NVIDIA GPUs against the plain form in F32, and each row alone against the same row in a batch, to the bit. Without such
//! a GPU there is nothing to run.

mod layers;
mod products;

use mlx_core::fast::{self, Form, Matrix, Op, plainly};
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

//! Blocks that are MLX's affine quantisation in another order.

use half::f16;
use rayon::prelude::*;

use super::TensorType;
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::ops::quantize::{QuantMode, Quantized, Scheme};
use crate::settings::readers;

/// Blocks, with the words, scales and biases that they become.
type Parts<'p> = (((&'p [u8], &'p mut [u32]), &'p mut [f16]), &'p mut [f16]);

/// Elements of a block, and of a group.
const GROUP: usize = 32;

/// The blocks that a thread converts at a time.
const PART: usize = 1 << 12;

/// How a block of 32 elements is stored.
struct Coding {
    bits: usize,
    /// The bias, in multiples of the scale. `None` if the block has a bias of its own, an F16 behind its scale.
    bias: Option<f32>,
}

/// The matrix `[…, n, k]` of the blocks, in MLX's layout: the first element of a word in its lowest bits.
pub(super) fn repacked(
    kind: TensorType,
    shape: &[i32],
    blocks: &[u8],
) -> Result<(Quantized, Scheme)> {
    let coding = match kind {
        TensorType::Q4_0 => Coding {
            bits: 4,
            bias: Some(-8.0),
        },
        TensorType::Q4_1 => Coding {
            bits: 4,
            bias: None,
        },
        // The codes are signed; MLX's are not.
        TensorType::Q8_0 => Coding {
            bits: 8,
            bias: Some(-128.0),
        },
        _ => {
            let message = format!(
                "type {kind} is not supported; supported: F32, F16, BF16, F64, I8, I16, I32, I64, \
                 Q4_0, Q4_1, Q8_0"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    };
    let words = GROUP * coding.bits / 32;
    let count = blocks.len() / kind.block_bytes();
    let part = |per_block: usize| {
        let mut shape = shape.to_vec();
        // A tensor without axes has one element, which is no block: `read` refuses it.
        if let Some(last) = shape.last_mut() {
            *last = *last / GROUP as i32 * per_block as i32;
        }
        shape
    };
    let mut packed: Vec<u32> = Vec::new();
    let (mut scales, mut biases): (Vec<f16>, Vec<f16>) = (Vec::new(), Vec::new());
    memory::reserve(&mut packed, count * words)?;
    memory::reserve(&mut scales, count)?;
    memory::reserve(&mut biases, count)?;
    packed.resize(count * words, 0);
    scales.resize(count, f16::ZERO);
    biases.resize(count, f16::ZERO);
    let parts = (blocks.par_chunks(PART * kind.block_bytes()))
        .zip(packed.par_chunks_mut(PART * words))
        .zip(scales.par_chunks_mut(PART))
        .zip(biases.par_chunks_mut(PART));
    let repack = |(((blocks, packed), scales), biases): Parts<'_>| {
        let blocks = blocks.chunks_exact(kind.block_bytes());
        let outputs = packed
            .chunks_exact_mut(words)
            .zip(scales.iter_mut().zip(biases));
        for (block, (words, (scale, bias))) in blocks.zip(outputs) {
            (*scale, *bias) = coding.repack(block, words);
        }
    };
    readers()?.install(|| parts.for_each(repack));
    let quantized = Quantized {
        packed: Array::from_slice(&packed, &part(words))?,
        scales: Array::from_slice(&scales, &part(1))?,
        biases: Some(Array::from_slice(&biases, &part(1))?),
    };
    let scheme = Scheme {
        mode: QuantMode::Affine,
        bits: coding.bits as i32,
        group_size: GROUP as i32,
    };
    Ok((quantized, scheme))
}

impl Coding {
    /// Fills the words of a block, and returns its scale and bias.
    fn repack(&self, block: &[u8], words: &mut [u32]) -> (f16, f16) {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]);
        let scale = half(0);
        let (bias, codes) = match self.bias {
            // A power of two, so that the product is exact, or infinite as in MLX.
            Some(factor) => (f16::from_f32(factor * scale.to_f32()), &block[2..]),
            None => (half(2), &block[4..]),
        };
        if self.bits == 8 {
            for (word, codes) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*codes) ^ 0x8080_8080;
            }
        } else {
            // Byte i holds elements i and i + 16.
            let code = |i: usize| {
                let byte = codes[i % 16];
                u32::from(if i < 16 { byte & 15 } else { byte >> 4 })
            };
            for (w, word) in words.iter_mut().enumerate() {
                *word = (0..8).fold(0, |sum, i| sum | code(8 * w + i) << (4 * i));
            }
        }
        (scale, bias)
    }
}

//! The blocks of all types that can be decoded: repacked into one of MLX's schemes where that keeps every value, else
//! expanded.

use half::f16;
use rayon::prelude::*;

use super::TensorType;
use super::types::Exact;
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::ops::quantize::{QuantMode, Quantized, Scheme};
use crate::settings::readers;

/// Blocks, with the words, scales and biases that they become.
type Parts<'p> = (((&'p [u8], &'p mut [u32]), &'p mut [f32]), &'p mut [f32]);

/// The most elements of a block.
const MOST: usize = 256;

/// The elements that a thread converts at a time.
const PART: usize = 1 << 17;

/// The values of IQ4_NL's and IQ4_XS's codes.
const VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The numbers that Q3_K's codes are moved by. Its values are multiples of the block's scale, from -124 to 128.
const Q3_ZERO: i32 = 124;

/// A decoded block: code c of group g is `scales[g] * c + biases[g]`.
struct Block {
    codes: [u8; MOST],
    /// At most one for 32 elements.
    scales: [f32; MOST / 32],
    biases: [f32; MOST / 32],
}

/// The matrix `[…, n, k]` of the blocks in the scheme of their type. Affine scales and biases are F32.
pub(super) fn repacked(kind: TensorType, shape: &[i32], blocks: &[u8]) -> Result<Quantized> {
    let Some(scheme) = kind.scheme() else {
        let known = known(|kind| kind.scheme().is_some());
        let message =
            format!("no scheme of MLX has the values of type {kind}; those of {known} are packed");
        return Err(Error::new(ErrorKind::Unsupported, message));
    };
    let (bits, group) = (scheme.bits as usize, scheme.group_size as usize);
    let elements = blocks.len() / kind.block_bytes() * kind.block();
    let words = zeros::<u32>(elements * bits / 32)?;
    let part = |size: usize| {
        let mut shape = shape.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = (*last as usize * size / MOST) as i32;
        }
        shape
    };
    // In 256 elements, since a row may have fewer than a word's.
    let (packed_shape, group_shape) = (part(MOST * bits / 32), part(MOST / group));
    if scheme.mode == QuantMode::Mxfp4 {
        let (mut words, mut scales) = (words, zeros::<u8>(elements / group)?);
        let parts = (blocks.par_chunks(PART / group * kind.block_bytes()))
            .zip(words.par_chunks_mut(PART * bits / 32))
            .zip(scales.par_chunks_mut(PART / group));
        let repack = |((blocks, words), scales): ((&[u8], &mut [u32]), &mut [u8])| {
            let blocks = blocks.chunks_exact(kind.block_bytes());
            let words = words.chunks_exact_mut(group * bits / 32);
            for ((block, words), scale) in blocks.zip(words).zip(scales) {
                *scale = block[0];
                let mut codes = [0; MOST];
                halves(&block[1..], &mut codes[..group]);
                pack(&codes[..group], bits, words);
            }
        };
        readers()?.install(|| parts.for_each(repack));
        return Ok(Quantized {
            packed: Array::from_slice(&words, &packed_shape)?,
            scales: Array::from_slice(&scales, &group_shape)?,
            biases: None,
        });
    }
    let (mut words, mut scales, mut biases) = (
        words,
        zeros::<f32>(elements / group)?,
        zeros::<f32>(elements / group)?,
    );
    let parts = (blocks.par_chunks(PART / kind.block() * kind.block_bytes()))
        .zip(words.par_chunks_mut(PART * bits / 32))
        .zip(scales.par_chunks_mut(PART / group))
        .zip(biases.par_chunks_mut(PART / group));
    let repack = |(((blocks, words), scales), biases): Parts<'_>| {
        let groups = kind.block() / group;
        let blocks = blocks.chunks_exact(kind.block_bytes());
        let outputs = words
            .chunks_exact_mut(kind.block() * bits / 32)
            .zip(scales.chunks_exact_mut(groups))
            .zip(biases.chunks_exact_mut(groups));
        for (block, ((words, scales), biases)) in blocks.zip(outputs) {
            let block = Block::of(kind, block);
            pack(&block.codes[..kind.block()], bits, words);
            scales.copy_from_slice(&block.scales[..groups]);
            biases.copy_from_slice(&block.biases[..groups]);
        }
    };
    readers()?.install(|| parts.for_each(repack));
    Ok(Quantized {
        packed: Array::from_slice(&words, &packed_shape)?,
        scales: Array::from_slice(&scales, &group_shape)?,
        biases: Some(Array::from_slice(&biases, &group_shape)?),
    })
}

/// The values of the blocks in F32, those that the package gguf gives.
pub(super) fn expanded(kind: TensorType, shape: &[i32], blocks: &[u8]) -> Result<Array> {
    if !kind.is_decoded() {
        let known = known(TensorType::is_decoded);
        let message = format!("type {kind} is not supported; supported: {known}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mut values = zeros::<f32>(blocks.len() / kind.block_bytes() * kind.block())?;
    let parts = (blocks.par_chunks(PART / kind.block() * kind.block_bytes()))
        .zip(values.par_chunks_mut(PART));
    let expand = |(blocks, values): (&[u8], &mut [f32])| {
        let blocks = blocks.chunks_exact(kind.block_bytes());
        let values = values.chunks_exact_mut(kind.block());
        for (block, values) in blocks.zip(values) {
            expand(kind, block, values);
        }
    };
    readers()?.install(|| parts.for_each(expand));
    Array::from_slice(&values, shape)
}

/// The names of the types for which `fits` is true.
fn known(fits: impl Fn(TensorType) -> bool) -> String {
    let known = TensorType::ALL
        .iter()
        .copied()
        .filter(|&kind| kind.dtype().is_some() || fits(kind));
    let names: Vec<&str> = known.map(TensorType::name).collect();
    names.join(", ")
}

fn zeros<T: Copy + Default>(len: usize) -> Result<Vec<T>> {
    let mut list: Vec<T> = Vec::new();
    memory::reserve(&mut list, len)?;
    list.resize(len, T::default());
    Ok(list)
}

/// Codes of `bits` bits, the first in the lowest bits of a word, without gaps between words.
fn pack(codes: &[u8], bits: usize, words: &mut [u32]) {
    let (mut held, mut count) = (0u64, 0);
    let mut codes = codes.iter();
    for word in words {
        while count < 32 {
            held |= u64::from(codes.next().copied().unwrap_or(0)) << count;
            count += bits;
        }
        *word = held as u32;
        held >>= 32;
        count -= 32;
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Codes of 4 bits: byte i of n holds codes i and i + n.
fn halves(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Codes of 2 bits: byte i of 32 holds codes i, i + 32, i + 64 and i + 96.
fn quarters(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
        for (i, code) in codes.iter_mut().enumerate() {
            *code = bytes[i % 32] >> (2 * (i / 32)) & 3;
        }
    }
}

/// The scale and the minimum of group `g` of 8 in Q4_K and Q5_K, in units of the block's.
fn scale_min(packed: &[u8], g: usize) -> (u8, u8) {
    match g {
        0..4 => (packed[g] & 63, packed[g + 4] & 63),
        _ => (
            packed[g + 4] & 15 | packed[g - 4] >> 6 << 4,
            packed[g + 4] >> 4 | packed[g] >> 6 << 4,
        ),
    }
}

/// The scale of group `g` of 16 in Q3_K, in units of the block's.
fn q3_scale(packed: &[u8], g: usize) -> i32 {
    let low = packed[g % 8] >> (4 * (g / 8)) & 15;
    let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
    i32::from(low | high << 4) - 32
}

impl Block {
    /// Decodes a block of a type whose values are affine in its codes.
    fn of(kind: TensorType, block: &[u8]) -> Self {
        let mut this = Self {
            codes: [0; MOST],
            scales: [0.0; MOST / 32],
            biases: [0.0; MOST / 32],
        };
        let codes = &mut this.codes[..kind.block()];
        let d = half(block, 0);
        match kind {
            TensorType::Q4_0 => {
                halves(&block[2..], codes);
                this.one(d, -8.0 * d);
            }
            TensorType::Q4_1 => {
                halves(&block[4..], codes);
                this.one(d, half(block, 2));
            }
            TensorType::Q5_0 => {
                halves(&block[6..], codes);
                fifth_bits(&block[2..6], codes);
                this.one(d, -16.0 * d);
            }
            TensorType::Q5_1 => {
                halves(&block[8..], codes);
                fifth_bits(&block[4..8], codes);
                this.one(d, half(block, 2));
            }
            TensorType::Q8_0 => {
                for (code, byte) in codes.iter_mut().zip(&block[2..]) {
                    // The file's codes are signed.
                    *code = byte ^ 0x80;
                }
                this.one(d, -128.0 * d);
            }
            TensorType::IQ4_NL => {
                halves(&block[2..], codes);
                look_up(codes);
                this.one(d, -128.0 * d);
            }
            TensorType::IQ4_XS => {
                let high = u16::from_le_bytes([block[2], block[3]]);
                for g in 0..8 {
                    halves(
                        &block[8 + 16 * g..24 + 16 * g],
                        &mut codes[32 * g..32 * g + 32],
                    );
                    let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
                    let scale = i32::from(low) + (i32::from(high >> (2 * g) & 3) << 4) - 32;
                    let scale = d * scale as f32;
                    (this.scales[g], this.biases[g]) = (scale, -128.0 * scale);
                }
                look_up(codes);
            }
            TensorType::Q4_K | TensorType::Q5_K => {
                let minimum = half(block, 2);
                let bytes = &block[block.len() - 128..];
                for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
                    halves(bytes, codes);
                }
                if kind == TensorType::Q5_K {
                    for (i, code) in codes.iter_mut().enumerate() {
                        *code |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
                    }
                }
                for g in 0..8 {
                    let (scale, min) = scale_min(&block[4..16], g);
                    this.scales[g] = d * f32::from(scale);
                    this.biases[g] = -(minimum * f32::from(min));
                }
            }
            TensorType::Q3_K => {
                quarters(&block[32..96], codes);
                for (i, code) in codes.iter_mut().enumerate() {
                    let is_set = block[i % 32] >> (i / 32) & 1;
                    let value = i32::from(*code) - 4 * i32::from(is_set ^ 1);
                    // From 0 to 252.
                    *code = (q3_scale(&block[96..108], i / 16) * value + Q3_ZERO) as u8;
                }
                let d = half(block, 108);
                this.scales[..2].fill(d);
                this.biases[..2].fill(-(Q3_ZERO as f32) * d);
            }
            _ => unreachable!("{kind} is in no scheme"),
        }
        this
    }

    /// Sets scale and bias of a block that is one group.
    fn one(&mut self, scale: f32, bias: f32) {
        (self.scales[0], self.biases[0]) = (scale, bias);
    }
}

/// Adds bit i of the bytes to code i, as its fifth bit.
fn fifth_bits(bytes: &[u8], codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= (bytes[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// Replaces the codes of IQ4_NL by their values, moved by 128.
fn look_up(codes: &mut [u8]) {
    for code in codes {
        *code = VALUES[usize::from(*code & 15)] as u8 ^ 0x80;
    }
}

/// The values of a block, with the roundings of the package gguf.
fn expand(kind: TensorType, block: &[u8], values: &mut [f32]) {
    match kind {
        TensorType::Q2_K => {
            let mut codes = [0; MOST];
            quarters(&block[16..80], &mut codes);
            let (d, minimum) = (half(block, 80), half(block, 82));
            for (i, (value, code)) in values.iter_mut().zip(codes).enumerate() {
                let scales = block[i / 16];
                *value =
                    d * f32::from(scales & 15) * f32::from(code) - minimum * f32::from(scales >> 4);
            }
        }
        TensorType::Q6_K => {
            let d = half(block, 208);
            for (i, value) in values.iter_mut().enumerate() {
                let (part, at) = (i / 128, i % 128);
                let low = block[64 * part + at % 64] >> (4 * (at / 64)) & 15;
                let high = block[128 + 32 * part + at % 32] >> (2 * (at / 32)) & 3;
                let code = i32::from(low | high << 4) - 32;
                let scale = d * f32::from(block[192 + i / 16] as i8);
                *value = scale * code as f32;
            }
        }
        TensorType::MXFP4 => {
            const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
            let mut codes = [0; 32];
            halves(&block[1..], &mut codes);
            // Half of the scale, because the values are doubled.
            let half = f32::from_bits(match block[0] {
                exponent @ 0..2 => 0x20_0000 << exponent,
                exponent => u32::from(exponent - 1) << 23,
            });
            for (value, code) in values.iter_mut().zip(codes) {
                *value = half * f32::from(VALUES[usize::from(code)]);
            }
        }
        _ => {
            let decoded = Block::of(kind, block);
            let group = match kind.exact() {
                Some(Exact { group, .. }) => group,
                None => unreachable!("{kind} is not decoded"),
            };
            for (i, (value, code)) in values.iter_mut().zip(decoded.codes).enumerate() {
                let g = i / group;
                *value = decoded.scales[g] * f32::from(code) + decoded.biases[g];
            }
        }
    }
}

impl TensorType {
    /// The scheme of MLX that holds the values of this type exactly: affine with 4, 5 or 8 bits, or mxfp4. `None` for
    /// plain elements, and for blocks that have no such scheme (Q2_K and Q6_K have a scale for 16 elements, MLX's
    /// groups have 32 or more).
    ///
    /// ```
    /// use mlx_core::{QuantMode, Scheme, gguf::TensorType};
    ///
    /// assert_eq!(TensorType::Q4_K.scheme(), Some(Scheme::new(32, 4, QuantMode::Affine).unwrap()));
    /// assert_eq!(TensorType::Q6_K.scheme(), None);
    /// ```
    pub fn scheme(self) -> Option<Scheme> {
        let Exact { mode, bits, group } = self.exact()?;
        Some(Scheme {
            mode,
            bits: bits as i32,
            group_size: group as i32,
        })
    }

    /// Whether [`Gguf::expanded`](super::Gguf::expanded) reads this type.
    pub fn is_decoded(self) -> bool {
        self.dtype().is_some() || self.exact().is_some() || matches!(self, Self::Q2_K | Self::Q6_K)
    }
}

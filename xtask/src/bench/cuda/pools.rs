//! Random values of tensors. Times do not depend on the values of weights, so a matrix repeats one
//! pool of values. The length of the pool is a prime, so no two rows of a matrix are equal.

use std::io::{Result, Write};

/// The number of values of a pool, a prime.
const POOL: usize = 1_000_003;

/// The values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// The same value everywhere, in 16 bits.
    Bf16(f32),
    /// The same value everywhere, in 32 bits.
    F32(f32),
    /// Weights in 16 bits, in rows of this length.
    Weights(u64),
    /// Eight codes of 4 bits.
    Codes,
    /// Blocks of Q4_0 in rows of this many weights: a scale and 32 codes each.
    Blocks(u64),
}

impl Values {
    /// Bytes of a value.
    pub fn unit(self) -> usize {
        match self {
            Self::Bf16(_) | Self::Weights(_) => 2,
            Self::F32(_) | Self::Codes => 4,
            Self::Blocks(_) => 18,
        }
    }

    fn pool(self) -> Vec<u8> {
        match self {
            // Equal values are written in blocks of 4,096.
            Self::Bf16(value) => bf16_bits(value).to_le_bytes().repeat(4096),
            Self::F32(value) => value.to_le_bytes().repeat(4096),
            Self::Weights(columns) => {
                // Uniform, with half of the deviation that keeps the size of activations.
                let most = 0.5 * (3.0 / columns as f32).sqrt();
                let weights = random().take(POOL).flat_map(|bits| {
                    let unit = (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
                    bf16_bits(unit * most).to_le_bytes()
                });
                weights.collect()
            }
            Self::Codes | Self::Blocks(_) => {
                let bytes = random().flat_map(u64::to_le_bytes);
                let mut pool: Vec<u8> = bytes.take(self.unit() * POOL).collect();
                if let Self::Blocks(columns) = self {
                    let head = f16_bits(scale(columns)).to_le_bytes();
                    for block in pool.chunks_mut(self.unit()) {
                        block[..2].copy_from_slice(&head);
                    }
                }
                pool
            }
        }
    }
}

/// The pools of a file, each made once.
#[derive(Default)]
pub struct Pools(Vec<(Values, Vec<u8>)>);

impl Pools {
    /// Writes this many values.
    pub fn write(&mut self, values: Values, count: u64, out: &mut impl Write) -> Result<()> {
        let known = self.0.iter().position(|(known, _)| *known == values);
        let place = known.unwrap_or_else(|| {
            self.0.push((values, values.pool()));
            self.0.len() - 1
        });
        let pool = &self.0[place].1;
        let mut left = count as usize * values.unit();
        while left > 0 {
            let part = left.min(pool.len());
            out.write_all(&pool[..part])?;
            left -= part;
        }
        Ok(())
    }
}

/// The step between two 4-bit codes. With it the size of activations stays about the same.
pub fn scale(columns: u64) -> f32 {
    0.1 / (columns as f32).sqrt()
}

/// Random numbers from SplitMix64, the same in each run.
fn random() -> impl Iterator<Item = u64> {
    let mut state = 7u64;
    std::iter::from_fn(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    })
}

/// The upper half of an f32.
fn bf16_bits(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// A normal number as an f16, truncated.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = ((bits >> 23) & 0xff) - (127 - 15);
    (((bits >> 16) & 0x8000) | (exponent << 10) | ((bits >> 13) & 0x3ff)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_float_is_the_long_one_cut_off() {
        assert_eq!(f16_bits(1.0), 0x3c00);
        assert_eq!(f16_bits(-0.5), 0xb800);
        assert_eq!(f16_bits(0.001), 0x1418);
    }

    #[test]
    fn a_tensor_repeats_its_pool() {
        let (mut pools, mut out) = (Pools::default(), Vec::new());
        pools.write(Values::Bf16(-0.5), 5000, &mut out).unwrap();
        assert_eq!(out, [0x00, 0xbf].repeat(5000));
        out.clear();
        pools.write(Values::Blocks(1024), 3, &mut out).unwrap();
        pools.write(Values::Blocks(1024), 3, &mut out).unwrap();
        assert_eq!(out.len(), 2 * 3 * 18);
        assert_eq!(out[..54], out[54..]);
        // 0.1 / 32 = 1.6 * 2^-9.
        assert!(out.chunks(18).all(|block| block[..2] == [0x66, 0x1a]));
        assert_eq!(pools.0.len(), 2);
    }
}

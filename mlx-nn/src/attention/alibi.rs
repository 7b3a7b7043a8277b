//! ALiBi (Press et al., arXiv:2108.12409): scores fall linearly with the distance of a key, with a slope for each head.
//! There is no other position embedding.

use std::ops::Range;

use mlx_core::{Array, DType, Result};

/// The bias of scores by the positions of keys. Softmax does not change when a number is added to all scores of a
/// query, so the bias of a key does not depend on the query's position.
#[derive(Clone, Debug)]
pub struct Alibi {
    /// BF16 `[H, 1, 1]`
    slopes: Array,
    factor: f32,
}

impl Alibi {
    /// The slopes of this number of query heads. The bias is multiplied by `factor`.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(heads: i32, factor: f32) -> Result<Self> {
        let slopes = Array::from_slice(&slopes(heads), &[heads, 1, 1])?;
        Ok(Self {
            slopes: slopes.astype(DType::BF16)?,
            factor,
        })
    }

    /// Leaves the slopes of these heads.
    pub(crate) fn keep(&mut self, heads: Range<i32>) -> Result<()> {
        self.slopes = self
            .slopes
            .slice_axis(0, heads.start, heads.end)?
            .contiguous()?;
        Ok(())
    }

    /// The bias of keys at `positions [S]`: F32 `[H, 1, S]`. As in transformers, positions, slopes
    /// and their products are rounded to BF16.
    pub(crate) fn bias(&self, positions: &Array) -> Result<Array> {
        let bias = self.slopes.multiply(positions.astype(DType::BF16)?)?;
        bias.astype(DType::F32)?.multiply(self.factor)
    }
}

/// `2^(-8 n / heads)` for powers of two. Other numbers of heads use the slopes of the next lower power of two, and then
/// every second slope of the next higher one.
pub(crate) fn slopes(heads: i32) -> Vec<f32> {
    let of = |power: i32, n: i32| 2f64.powf(-8.0 * f64::from(n) / f64::from(power)) as f32;
    let lower = 1 << heads.max(1).ilog2();
    let first = (1..=lower).map(|n| of(lower, n));
    let rest = (0..heads - lower).map(|n| of(2 * lower, 2 * n + 1));
    first.chain(rest).take(heads.max(0) as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_any_number_of_heads() {
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        let six = slopes(6);
        assert_eq!(six[..4], slopes(4)[..]);
        assert_eq!(six[4..], [0.5, 0.125]);
        assert_eq!(slopes(71).len(), 71);
    }
}

//! [`Growing`]: dynamic NTK scaling.

use mlx_core::ops::{concat, stack};
use mlx_core::{Array, DType, Result};

use crate::step::Turned;

/// A rope whose base grows with the length of a text beyond `original`, as in transformers. All
/// tokens of a prompt have the base of the prompt's length, and each later token has the base of
/// the length up to that token. Keys in the cache keep the base that they were rotated with.
#[derive(Clone, Debug)]
pub(crate) struct Growing {
    base: f64,
    factor: f64,
    original: usize,
    dims: i32,
    interleaved: bool,
}

impl Growing {
    pub(super) fn new(
        base: f64,
        factor: f64,
        original: usize,
        dims: i32,
        interleaved: bool,
    ) -> Self {
        Self {
            base,
            factor,
            original,
            dims,
            interleaved,
        }
    }

    /// The length beyond which the base grows.
    pub(crate) fn original(&self) -> usize {
        self.original
    }

    /// The number of pairs of features that rotate.
    pub(crate) fn pairs(&self) -> usize {
        self.dims as usize / 2
    }

    /// A key that distinguishes this rope from others with the same sizes.
    pub(crate) fn key(&self) -> [u64; 4] {
        let [base, factor] = [self.base, self.factor].map(f64::to_bits);
        [base, factor, self.original as u64, self.dims as u64]
    }

    /// The frequency of each pair, in radians per position, in a text of this length.
    pub(crate) fn frequencies(&self, length: usize) -> Vec<f64> {
        let dims = f64::from(self.dims);
        let times = length.max(self.original) as f64 / self.original as f64;
        let growth = self.factor * times - (self.factor - 1.0);
        let base = self.base * growth.powf(dims / (dims - 2.0));
        let pairs = 0..self.pairs();
        pairs.map(|i| base.powf(-2.0 * i as f64 / dims)).collect()
    }

    /// Rotates `[1, H, T, D]`; angles are F32. Tokens whose base has not grown are taken from
    /// `short`, so that other tokens of the step do not change them.
    pub(super) fn rotate(
        &self,
        x: &Array,
        turned: &Turned,
        short: impl FnOnce() -> Result<Array>,
    ) -> Result<Array> {
        let long = self.rotate_all(x, turned)?;
        match &turned.grown {
            Some(grown) => grown.select(&long, &short()?),
            None => Ok(long),
        }
    }

    fn rotate_all(&self, x: &Array, turned: &Turned) -> Result<Array> {
        let Turned { cosines, sines, .. } = turned;
        let [b, h, l, d] = x.dims()?;
        let (dims, half) = (self.dims, self.dims / 2);
        let turning = x.slice_axis(-1, 0, dims)?.astype(DType::F32)?;
        let [first, second] = match self.interleaved {
            true => {
                let pairs = turning.reshape(&[b, h, l, half, 2])?;
                let one = |at: i32| pairs.slice_axis(-1, at, at + 1)?.squeeze(-1);
                [one(0)?, one(1)?]
            }
            false => [
                turning.slice_axis(-1, 0, half)?,
                turning.slice_axis(-1, half, dims)?,
            ],
        };
        let turned = [
            first.multiply(cosines)?.subtract(second.multiply(sines)?)?,
            second.multiply(cosines)?.add(first.multiply(sines)?)?,
        ];
        let turned = match self.interleaved {
            true => stack(&turned, -1)?.reshape(&[b, h, l, dims])?,
            false => concat(&turned, -1)?,
        };
        let turned = turned.astype(x.dtype())?;
        match dims == d {
            true => Ok(turned),
            false => concat(&[turned, x.slice_axis(-1, dims, d)?], -1),
        }
    }
}

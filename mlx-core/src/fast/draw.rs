//! The next token of every row of a batch, drawn from its logits.

use super::{Form, Op, form};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;

mod plain;

pub use plain::gumbel;

/// The result of [`draw`] for a row without a valid token: its largest logit is not finite, or one
/// of its logits is NaN. In greedy rows the kernels skip NaN, as [`argmax`](super::argmax) does.
pub const NO_TOKEN: u32 = u32::MAX;

/// How a row's token is drawn: from the tokens that all three filters keep, with the probabilities of their logits
/// divided by the temperature. The filters see the logits before that division. Among equal tokens the lowest id wins.
///
/// ```
/// use mlx_core::{Array, fast::{self, Draw}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let logits = Array::from_slice(&[0.0f32, 9.0, 1.0], &[1, 3])?;
/// let greedy = Draw { temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0, key: [0, 0] };
/// assert_eq!(fast::draw(&logits, &[greedy])?.ids.to_vec::<u32>()?, [1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The divisor of logits; 0 takes the largest logit, as [`argmax`](super::argmax) does, and ignores the filters.
    pub temperature: f32,
    /// In descending order, keeps a token if the tokens before it have less than this probability
    /// together, and also tokens equal to the last that is kept (Holtzman et al. 2019, "The Curious
    /// Case of Neural Text Degeneration"); 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens whose probability is at least this fraction of the likeliest token's (arXiv:2407.01082); 0 keeps
    /// all.
    pub min_p: f32,
    /// Keeps this many of the likeliest tokens, of equal ones the lowest ids; 0 keeps all.
    pub top_k: usize,
    /// The key of the noise: the same key and logits give the same token.
    pub key: [u32; 2],
}

impl Draw {
    /// The factor of logits; 0 for greedy rows.
    pub(super) fn scale(&self) -> f32 {
        match self.temperature {
            0.0 => 0.0,
            temperature => 1.0 / temperature,
        }
    }
    /// How many tokens of `v` top-k keeps, if not all.
    pub(super) fn count(&self, v: i32) -> Option<i32> {
        let count = i32::try_from(self.top_k).ok()?;
        (0 < count && count < v).then_some(count)
    }
    pub(super) fn nucleus(&self) -> Option<f32> {
        (self.top_p < 1.0).then_some(self.top_p)
    }
    /// How far below the largest logit a token may be.
    pub(super) fn reach(&self) -> Option<f32> {
        (self.min_p > 0.0).then(|| self.min_p.ln())
    }
}

/// A token for each row, in two arrays U32 `[B]` that differ only where a row has no valid token.
///
/// ```
/// use mlx_core::{Array, fast::{self, Draw}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let logits = Array::from_slice(&[f32::NAN, f32::NAN], &[1, 2])?;
/// let how = Draw { temperature: 1.0, top_p: 1.0, min_p: 0.0, top_k: 0, key: [1, 2] };
/// let drawn = fast::draw(&logits, &[how])?;
/// assert_eq!(drawn.checked.to_vec::<u32>()?, [fast::NO_TOKEN]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The tokens, with 0 for a row without a valid one. They are valid input of the next step,
    /// before the host has read them.
    pub ids: Array,
    /// The tokens, with [`NO_TOKEN`] for a row without a valid one.
    pub checked: Array,
}

/// The settings of a draw's rows, and the arrays that its kernel reads.
///
/// ```
/// use mlx_core::{DType, fast::{Draw, Draws}, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let how = Draw { temperature: 1.0, top_p: 0.9, min_p: 0.0, top_k: 0, key: [1, 2] };
/// let draws = Draws::new(vec![how; 2], 10)?;
/// assert_eq!(draws.draw(&zeros(&[2, 10], DType::F32)?)?.ids.shape(), [2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Draws {
    rows: Vec<Draw>,
    tokens: i32,
    keys: Array,
    numbers: Array,
    counts: Array,
}

impl Draws {
    /// The settings of rows that are drawn from this number of `tokens`.
    ///
    /// # Errors
    /// A number is out of its range.
    pub fn new(rows: Vec<Draw>, tokens: i32) -> Result<Self> {
        let is_usual = |row: &Draw| {
            let finite = row.scale().is_finite() && row.temperature >= 0.0;
            finite && row.top_p > 0.0 && row.top_p <= 1.0 && (0.0..=1.0).contains(&row.min_p)
        };
        if let Some(row) = rows.iter().find(|row| !is_usual(row)) {
            let message = format!(
                "a draw needs a temperature that is not negative, top_p in (0, 1] and min_p in [0, 1], found {row:?}"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let b = rows.len() as i32;
        let keys: Vec<u32> = rows.iter().flat_map(|row| row.key).collect();
        let numbers = |row: &Draw| {
            let reach = row.reach().unwrap_or(f32::NEG_INFINITY);
            [row.scale(), row.nucleus().unwrap_or(1.0), reach]
        };
        let numbers: Vec<f32> = rows.iter().flat_map(numbers).collect();
        let count = |row: &Draw| row.count(tokens).unwrap_or(tokens);
        let counts: Vec<i32> = rows.iter().map(count).collect();
        Ok(Self {
            keys: Array::from_slice(&keys, &[b, 2])?,
            numbers: Array::from_slice(&numbers, &[b, 3])?,
            counts: Array::from_slice(&counts, &[b])?,
            rows,
            tokens,
        })
    }

    /// The arrays that differ between two draws from equally many tokens for equally many rows:
    /// keys U32 `[B, 2]`, numbers F32 `[B, 3]` and counts I32 `[B]`.
    pub fn arrays(&self) -> [&Array; 3] {
        [&self.keys, &self.numbers, &self.counts]
    }

    /// The number of tokens that rows are drawn from.
    pub fn tokens(&self) -> i32 {
        self.tokens
    }

    /// Draws a token for each row of `logits`, as [`draw`] does with these settings.
    ///
    /// ```
    /// use mlx_core::{Array, fast::{self, Draw}};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let logits = Array::from_slice(&[0.0f32, 2.0, 1.0], &[1, 3])?;
    /// let how = Draw { temperature: 1.0, top_p: 1.0, min_p: 0.0, top_k: 2, key: [1, 2] };
    /// let drawn = fast::draw(&logits, &[how])?.ids.to_vec::<u32>()?;
    /// assert!(drawn[0] > 0); // one of the best two
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `logits` is not `[B, tokens]` of floating point.
    pub fn draw(&self, logits: &Array) -> Result<Drawn> {
        let [b, v] = logits.dims()?;
        let is_fit = b as usize == self.rows.len() && v == self.tokens;
        if !is_fit || v < 1 || !logits.dtype().is_float() {
            let message = format!(
                "a draw needs logits [B, V] of floating point and settings for each row, found {} {:?} and settings for {}",
                logits.dtype(),
                logits.shape(),
                self.rows.len()
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let wide = [DType::F32, DType::F16, DType::BF16].contains(&logits.dtype());
        if !wide || form(Op::Sample)? == Form::Plain {
            let checked = plain::draw(logits, &self.rows)?;
            let ids = checked.equal(NO_TOKEN)?.select(0u32, &checked)?;
            return Ok(Drawn { ids, checked });
        }
        let [keys, numbers, counts] = self.arrays();
        let (ids, checked) = op!(pair mlxrs_fast_draw(logits, keys, numbers, counts))?;
        Ok(Drawn { ids, checked })
    }
}

/// Draws a token for each row of `logits`, `[B, V]` of floating point.
///
/// The draw is the largest of logit plus Gumbel noise ([`gumbel`]), which depends on the row's key and the token alone,
/// not on other rows of the batch. On the CPU it is one operation, which computes noise only for tokens that can win.
///
/// # Errors
/// There is not one [`Draw`] for each row, a number in one is out of its range, or `logits` has another shape or dtype.
pub fn draw(logits: &Array, rows: &[Draw]) -> Result<Drawn> {
    let [_, v] = logits.dims()?;
    Draws::new(rows.to_vec(), v)?.draw(logits)
}

//! Recurrences of plain operations over ragged rows: each row is laid out in a line of its own.

use mlx_core::fast::{RaggedRows, SlotsAfter, StatePool, StateSlots};
use mlx_core::ops::{create::zeros, depends};
use mlx_core::{Array, DType, Result, inplace};

/// The inputs of a recurrence, with a line of L tokens for each row.
pub(crate) struct Lines<const N: usize> {
    /// `[B, L, ..]`
    pub tokens: [Array; N],
    /// Bool `[B, L, 1]`: which places have tokens; `None` if all have.
    pub real: Option<Array>,
    /// F32, the states before the tokens: `[B, ..]`
    pub state: Array,
    /// Whether the states after each token are wanted, `[B, L, ..]`, and not only those after the
    /// last.
    pub each: bool,
}

impl<const N: usize> Lines<N> {
    /// `x [B, L, C]` with zeros in the places that have no tokens.
    pub(crate) fn masked(&self, x: &Array) -> Result<Array> {
        match &self.real {
            Some(real) => real.select(x, 0.0f32),
            None => Ok(x.clone()),
        }
    }
}

/// A recurrence over rows on one axis of tokens: the outputs, `[1, T, C]`, and the states of all
/// rows, if they have states. `tokens` are `[1, T, ..]`, and a state has the shape `state` and is
/// F32. `scan` computes the outputs `[B, L, C]` and the states after the last token of each line,
/// or after [each](Lines::each). Tokens that a line does not have must not change its state.
pub(crate) fn by_line<const N: usize>(
    tokens: [&Array; N],
    rows: &RaggedRows<'_>,
    states: Option<StateSlots<'_>>,
    state: [i32; 3],
    scan: impl Fn(&Lines<N>) -> Result<(Array, Array)>,
) -> Result<(Array, Option<Array>)> {
    let (b, longest) = (rows.starts.dim(0)? - 1, rows.longest.max(1));
    let count = tokens[0].dim(1)?;
    let places = Places::new(rows, (b, longest, count))?;
    let [heads, m, n] = state;
    let before = match &states {
        None => zeros(&[b, heads, m, n], DType::F32)?,
        Some(StateSlots { pool, from, .. }) => {
            let found = array_of(pool).take(&from.maximum(0)?, 0)?;
            let goes_on = from.greater_equal(0)?.reshape(&[b, 1, 1, 1])?;
            goes_on.select(&found, 0.0f32)?
        }
    };
    let mut lines = Vec::with_capacity(N);
    for array in tokens {
        lines.push(match &places {
            Some(places) => array.squeeze(0)?.take(&places.at, 0)?,
            None => array.reshape(&[&[b, longest][..], &array.shape()[2..]].concat())?,
        });
    }
    let lines = Lines {
        tokens: lines.try_into().expect("one for each array"),
        real: places.as_ref().map(|places| places.real.clone()),
        state: before,
        each: states
            .as_ref()
            .is_some_and(|states| matches!(states.to, SlotsAfter::Tokens(_))),
    };
    let (y, mut after) = scan(&lines)?;
    let y = lines.masked(&y)?.reshape(&[b * longest, -1])?;
    let by_token = |x: &Array| match &places {
        Some(places) => x.take(&places.back, 0),
        None => Ok(x.clone()),
    };
    if lines.each {
        after = by_token(&after.reshape(&[b * longest, heads, m, n])?)?;
    }
    let y = by_token(&y)?.expand_dims(0)?;
    match stored(states, &after)? {
        // What computes `y` computes the states too, as operations with kernels do.
        Some(end) => Ok((depends(&[y], &[&end])?.remove(0), Some(end))),
        None => Ok((y, None)),
    }
}

/// Where the tokens of rows are.
struct Places {
    /// I32 `[B, L]`: the token at each place of a line.
    at: Array,
    /// Bool `[B, L, 1]`: whether the line has the token.
    real: Array,
    /// I32 `[T]`: the place of each token among those of all lines.
    back: Array,
}

impl Places {
    /// `None` if all `b` rows have `longest` of the `count` tokens.
    fn new(rows: &RaggedRows<'_>, (b, longest, count): (i32, i32, i32)) -> Result<Option<Self>> {
        if b * longest == count {
            return Ok(None);
        }
        let first = rows.starts.slice_axis(0, 0, b)?;
        let next = rows.starts.slice_axis(0, 1, b + 1)?;
        let numbers = |n: i32| Array::arange(0.0, f64::from(n), 1.0, DType::I32);
        let at = first.expand_dims(1)?.add(numbers(longest)?)?;
        let widths = next.subtract(&first)?.expand_dims(1)?;
        // The row of each token is the number of rows that end before it.
        let places = numbers(count)?;
        let ended = next.expand_dims(0)?.less_equal(places.expand_dims(1)?)?;
        let row = ended.astype(DType::I32)?.sum(1, false)?.minimum(b - 1)?;
        let own = places.subtract(first.take(&row, 0)?)?;
        Ok(Some(Self {
            at: at.minimum(count - 1)?,
            real: numbers(longest)?.less(&widths)?.expand_dims(-1)?,
            back: row.multiply(longest)?.add(own.minimum(longest - 1)?)?,
        }))
    }
}

/// The pool with the states `after` each row, or after each token.
fn stored(states: Option<StateSlots<'_>>, after: &Array) -> Result<Option<Array>> {
    let Some(StateSlots { pool, to, .. }) = states else {
        return Ok(None);
    };
    let slots = array_of(&pool).dim(0)?;
    let end = match to {
        // Row b has slot b.
        SlotsAfter::Rows(to) if to.dim(0)? == slots => {
            let is_written = to.greater_equal(0)?.reshape(&[-1, 1, 1, 1])?;
            is_written.select(after, array_of(&pool))?
        }
        SlotsAfter::Rows(to) | SlotsAfter::Tokens(to) => {
            // For each slot, which of the states it gets.
            let numbers = Array::arange(0.0, f64::from(slots), 1.0, DType::I32)?;
            let gets = to.expand_dims(0)?.equal(numbers.expand_dims(1)?)?;
            let gets = gets.astype(DType::I32)?; // [slots, n]
            let is_written = gets.max(1, false)?.reshape(&[-1, 1, 1, 1])?.greater(0)?;
            let own = after.take(&gets.argmax(1, false)?, 0)?;
            is_written.select(&own, array_of(&pool))?
        }
    };
    match pool {
        StatePool::Shared(_) => Ok(Some(end)),
        StatePool::Own(pool) => {
            let shape = pool.shape().to_vec();
            // All readers of the pool come before `end`.
            inplace::slice_update_in_place(pool, &end, &[0; 4], &shape).map(Some)
        }
    }
}

fn array_of<'a>(pool: &'a StatePool<'a>) -> &'a Array {
    match pool {
        StatePool::Shared(pool) => pool,
        StatePool::Own(pool) => pool,
    }
}

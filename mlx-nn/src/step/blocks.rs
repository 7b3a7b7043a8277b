//! The part of [`Step`] for layers that keep one vector for each block of positions, and attend to these vectors and to
//! the last positions.

use std::ops::Range;

use mlx_core::fast::{self, Attention, Mask};
use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, Result};

use super::Step;
use super::paged::{self, StepPages};
use crate::attend::{Attend, Keys};
use crate::cache::pages::PAGE;

/// Queries of a row that are attended together. More would also be multiplied with keys that none of them sees.
const QUERIES: usize = 256;

/// The inputs of the blocks that a step completes.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// `[C, reach, width]`: the inputs of a block and of the positions before it. Before the first position there is
    /// anything.
    pub inputs: Array,
    /// The number of each block in its row.
    pub numbers: Vec<i32>,
}

/// What layers with compressed blocks leave for the layers after them. `None` if no row has a whole block.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedBlocks {
    /// The vectors of all whole blocks, `[B, P, D]`, and which of them each query may see, Bool `[1, T, P]`.
    pub vectors: Option<(Array, Array)>,
    /// The indexers' keys of these blocks, F32 `[B, P, D]`.
    pub keys: Option<Array>,
    /// The blocks among which later indexers choose, Bool `[1, T, P]`; `None`: among all.
    pub candidates: Option<Array>,
    /// The blocks that the last indexer has chosen, Bool `[1, T, P]`.
    pub chosen: Option<Array>,
}

/// A place of the step that completes a block.
struct Close {
    row: usize,
    place: usize,
    number: usize,
}

/// The places that complete blocks of `size` positions, row after row.
fn closes(step: &Step<'_>, size: usize) -> Vec<Close> {
    step.lasts_until(0);
    let rows = step.cache.lens.iter().zip(step.axis.each()).enumerate();
    let closes = rows.flat_map(|(row, (&len, places))| {
        let first = places.start;
        places.filter_map(move |place| {
            let count = len + place - first + 1;
            let number = (count / size).checked_sub(1)?;
            count
                .is_multiple_of(size)
                .then_some(Close { row, place, number })
        })
    });
    closes.collect()
}

/// The inputs of the blocks of `size` positions that the step completes, each with the inputs before it, `reach` in
/// all. Part `part` of layer `layer` is the window of the last `reach - 1` inputs. `None` if no block is complete.
pub(crate) fn completed(
    step: &mut Step<'_>,
    layer: usize,
    part: usize,
    inputs: &Array,
    (size, reach): (usize, usize),
) -> Result<Option<Blocks>> {
    let (found, before) = step.window_before(layer, part, inputs)?;
    let [rows, len, width] = before.dims()?;
    let closes = closes(step, size);
    let starts: Vec<usize> = step.axis.each().map(|places| places.start).collect();
    let places = closes.iter().flat_map(|close| {
        let (row, first) = (close.row as i32, starts[close.row] as i32);
        let own = close.place as i32 - first;
        (own + 1 - reach as i32..=own).map(move |at| match at < 0 {
            true => row * len + len + at,
            false => rows * len + first + at,
        })
    });
    let places: Vec<i32> = places.collect();
    step.hand_over_inputs(layer, part, &found, inputs, None)?;
    if closes.is_empty() {
        return Ok(None);
    }
    let all = [
        before.reshape(&[rows * len, width])?,
        inputs.reshape(&[-1, width])?,
    ];
    let places = Array::from_slice(&places, &[closes.len() as i32, reach as i32])?;
    Ok(Some(Blocks {
        inputs: concat(&all, 0)?.take(&places, 0)?,
        numbers: closes.iter().map(|close| close.number as i32).collect(),
    }))
}

/// The inputs of the step's tokens, each of which is a block.
pub(crate) fn singles(step: &Step<'_>, inputs: &Array) -> Result<Blocks> {
    let closes = closes(step, 1);
    let places: Vec<i32> = closes.iter().map(|close| close.place as i32).collect();
    let places = Array::from_slice(&places, &[places.len() as i32, 1])?;
    Ok(Blocks {
        inputs: inputs.squeeze(0)?.take(&places, 0)?,
        numbers: closes.iter().map(|close| close.number as i32).collect(),
    })
}

/// Keeps the vectors `[C, D]` of the blocks of `size` positions that the step completes, in the order of
/// [`completed`], at the last position of each. `nothing` is `[1, D]`, of their dtype. Returns the vectors of all whole
/// blocks, `[B, P, D]`, and which of them each query may see, Bool `[1, T, P]`; `None` if no row has a whole block.
pub(crate) fn keep(
    step: &mut Step<'_>,
    layer: usize,
    vectors: Option<&Array>,
    nothing: &Array,
    size: usize,
) -> Result<Option<(Array, Array)>> {
    let closes = closes(step, size);
    let is_traced = vectors.is_some_and(Array::is_traced);
    if is_traced && step.stores() {
        step.refuse_held(layer)?;
    }
    let own = match vectors {
        Some(vectors) => concat(&[nothing, vectors], 0)?,
        None => nothing.clone(),
    };
    let dim = nothing.dim(-1)?;
    let pool = match step.stores() {
        true => Some(write(step, layer, &own, &closes, dim)?),
        false => None,
    };
    let rows = step.cache.lens.iter().zip(step.axis.each());
    let counts: Vec<usize> = rows
        .map(|(len, places)| (len + places.len()) / size)
        .collect();
    let most = counts.iter().copied().max().unwrap_or(0);
    if most == 0 {
        return Ok(None);
    }
    let (b, p) = (counts.len() as i32, most as i32);
    let all = match pool.filter(|_| !is_traced) {
        Some((pool, tables)) => {
            let last = |block: usize| (block + 1) * size - 1;
            let columns: Vec<i32> = (0..most).map(|at| (last(at) / PAGE) as i32).collect();
            let slots: Vec<i32> = (0..most).map(|at| (last(at) % PAGE) as i32).collect();
            let pages = tables.take(&Array::from_slice(&columns, &[p])?, 1)?;
            let places = pages.astype(mlx_core::DType::I32)?.multiply(PAGE as i32)?;
            let places = places.add(Array::from_slice(&slots, &[p])?)?;
            let kept = pool.reshape(&[-1, dim])?.take(&places, 0)?;
            let exists = counts
                .iter()
                .flat_map(|&count| (0..most).map(move |at| at < count));
            let exists: Vec<bool> = exists.collect();
            Array::from_slice(&exists, &[b, p, 1])?.select(&kept, &nothing.multiply(0.0)?)?
        }
        None => {
            let mut places = vec![0i32; counts.len() * most];
            for (at, close) in closes.iter().enumerate() {
                places[close.row * most + close.number] = at as i32 + 1;
            }
            own.take(&Array::from_slice(&places, &[b, p])?, 0)?
        }
    };
    let seen = positions(step).flat_map(|position| {
        let whole = (position + 1) / size;
        (0..most).map(move |block| block < whole)
    });
    let seen: Vec<bool> = seen.collect();
    let seen = Array::from_slice(&seen, &[1, step.tokens() as i32, p])?;
    Ok(Some((all, seen)))
}

/// Writes `own`, nothing and then the vectors of `closes`, to the pages of their positions. Returns the layer's pool
/// and the tables of its pages.
fn write(
    step: &mut Step<'_>,
    layer: usize,
    own: &Array,
    closes: &[Close],
    dim: i32,
) -> Result<(Array, Array)> {
    let mut places = vec![0i32; step.tokens()];
    for (at, close) in closes.iter().enumerate() {
        places[close.place] = at as i32 + 1;
    }
    let tokens = places.len() as i32;
    let vectors = own.take(&Array::from_slice(&places, &[tokens])?, 0)?;
    let keys = Keys::from(&vectors.reshape(&[1, 1, tokens, dim])?);
    step.check_step(layer, &keys)?;
    let StepPages { paged, .. } = paged::of_layer(step, layer)?;
    let (arrays, _) = step.write(layer, None, &keys, None, &paged)?;
    Ok((arrays[0].clone(), paged.tables))
}

/// The position of each token in its row.
fn positions<'s>(step: &'s Step<'_>) -> impl Iterator<Item = usize> + 's {
    let rows = step.cache.lens.iter().zip(step.axis.each());
    rows.flat_map(|(&len, places)| (0..places.len()).map(move |at| len + at))
}

/// The attention of queries `[1, H, T, D]` over the vectors of the last positions, which are keys and values, and
/// over those of blocks: `[1, H, T, D]`. `k [1, T, D]` are the vectors of the step's positions. Part `part` of layer
/// `layer` is the window of those before; a query sees all in the window and its own. `blocks` are the vectors
/// `[B, P, D]`, and which of them queries see, Bool `[1, T, P]`.
pub(crate) fn attend(
    step: &mut Step<'_>,
    (layer, part): (usize, usize),
    q: &Array,
    k: &Array,
    blocks: Option<&(Array, Array)>,
    options: &Attend<'_>,
) -> Result<Array> {
    let (found, before) = step.window_before(layer, part, k)?;
    step.hand_over_inputs(layer, part, &found, k, None)?;
    let rows: Vec<Range<usize>> = step.axis.each().collect();
    let lens = step.cache.lens.clone();
    let near = Near {
        before: &before,
        k,
        blocks,
        options,
    };
    let mut parts = Vec::new();
    let mut row = 0;
    while row < rows.len() {
        let singles = rows[row..].iter().take_while(|row| row.len() <= 1).count();
        if singles == 0 {
            let (places, held) = (rows[row].clone(), lens[row]);
            for begin in places.clone().step_by(QUERIES) {
                let end = places.end.min(begin + QUERIES);
                parts.push(near.of_row(q, row, (held, places.start), begin..end)?);
            }
        } else {
            let run: Vec<usize> = (row..row + singles)
                .filter(|&row| !rows[row].is_empty())
                .collect();
            if let (Some(&first), Some(&last)) = (run.first(), run.last()) {
                let places = rows[first].start..rows[last].end;
                parts.push(near.of_singles(q, &run, &lens, places)?);
            }
        }
        row += singles.max(1);
    }
    match &parts[..] {
        [part] => Ok(part.clone()),
        parts => concat(parts, 2),
    }
}

/// What the queries of a layer see.
struct Near<'a> {
    /// `[B, len, D]`
    before: &'a Array,
    /// `[1, T, D]`
    k: &'a Array,
    blocks: Option<&'a (Array, Array)>,
    options: &'a Attend<'a>,
}

impl Near<'_> {
    /// Rows of one token each, which are at `places`: `[1, H, n, D]`.
    fn of_singles(
        &self,
        q: &Array,
        rows: &[usize],
        lens: &[usize],
        places: Range<usize>,
    ) -> Result<Array> {
        let (n, [_, len, _]) = (rows.len() as i32, self.before.dims()?);
        let (begin, end) = (places.start as i32, places.end as i32);
        let numbers: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let numbers = Array::from_slice(&numbers, &[n])?;
        let own = self.k.slice_axis(1, begin, end)?.swapaxes(0, 1)?;
        let mut keys = vec![self.before.take(&numbers, 0)?, own];
        let seen = rows.iter().flat_map(|&row| {
            let held = lens[row];
            (0..=len as usize).map(move |at| held + at >= len as usize)
        });
        let mut masks = vec![Array::from_slice(
            &seen.collect::<Vec<bool>>(),
            &[n, 1, 1, len + 1],
        )?];
        if let Some((vectors, seen)) = self.blocks {
            keys.push(vectors.take(&numbers, 0)?);
            let seen = seen.slice_axis(1, begin, end)?;
            masks.push(seen.reshape(&[n, 1, 1, -1])?);
        }
        let q = q.slice_axis(2, begin, end)?.transpose_axes(&[2, 1, 0, 3])?;
        let y = self.attend(&q, &keys, &masks)?;
        y.transpose_axes(&[2, 1, 0, 3])
    }

    /// The tokens `places` of a row that held `held` positions before its first token, which is at place `first`:
    /// `[1, H, n, D]`.
    fn of_row(
        &self,
        q: &Array,
        row: usize,
        (held, first): (usize, usize),
        places: Range<usize>,
    ) -> Result<Array> {
        let [_, len, _] = self.before.dims()?;
        let (begin, end) = (places.start as i32, places.end as i32);
        let (n, row) = (end - begin, row as i32);
        let own = self.before.slice_axis(0, row, row + 1)?;
        let all = concat(&[own, self.k.slice_axis(1, first as i32, end)?], 1)?;
        let offset = begin - first as i32;
        let mut keys = vec![all.slice_axis(1, offset, offset + len + n)?];
        let seen = (0..n).flat_map(|query| {
            (0..len + n).map(move |key| {
                let is_near = (query..=query + len).contains(&key);
                is_near && held as i64 + i64::from(offset + key) >= i64::from(len)
            })
        });
        let mut masks = vec![Array::from_slice(
            &seen.collect::<Vec<bool>>(),
            &[1, 1, n, len + n],
        )?];
        if let Some((vectors, seen)) = self.blocks {
            keys.push(vectors.slice_axis(0, row, row + 1)?);
            masks.push(seen.slice_axis(1, begin, end)?.expand_dims(1)?);
        }
        self.attend(&q.slice_axis(2, begin, end)?, &keys, &masks)
    }

    /// Queries `[n, H, L, D]` over keys `[n, S, D]` and masks `[n, 1, L, S]` that follow each other.
    fn attend(&self, q: &Array, keys: &[Array], masks: &[Array]) -> Result<Array> {
        let keys = concat(keys, 1)?.expand_dims(1)?;
        let options = Attention {
            scale: self.options.scale,
            soft_cap: self.options.softcap,
            mask: Mask::Array(concat(masks, -1)?),
            sinks: self.options.sinks,
        };
        fast::attention(q, &keys, &keys, &options)
    }
}

/// `[1, dim]` of zeros, in the dtype of `like`.
pub(crate) fn nothing_like(like: &Array, dim: i32) -> Result<Array> {
    zeros(&[1, dim], like.dtype())
}

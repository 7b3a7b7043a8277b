//! The part of [`Step`] for layers that keep one vector for each block of positions, and attend to these vectors and to
//! the last positions.
//!
//! In decode steps every token is treated as the last one of a block, so that steps have the same graph whether they complete
//! blocks or not. What is computed for the other tokens is never read.

use std::ops::Range;

use mlx_core::fast::{self, Attention, Mask};
use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, Result};

use super::Step;
use super::last::{Vectors, numbers, of_rows};
use crate::attend::Attend;
use crate::cache::pages::PAGE;

/// Queries of a row that are attended together. More would also be multiplied with keys that none of them sees.
const QUERIES: usize = 256;

/// The most queries of a row that are attended together with those of other rows.
const FEW_QUERIES: usize = 16;

/// The inputs of blocks.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// `[C, reach, width]`: the inputs of a block and of the positions before it. Before the first position there is
    /// anything.
    pub inputs: Array,
    /// I32 `[C]`: the number of each block in its row.
    pub numbers: Array,
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

/// The tokens with which blocks end.
struct Ends {
    /// The row of each, and its place; `None`: those of all tokens.
    of: Option<Vec<(usize, usize)>>,
    /// I32 `[C]`
    positions: Array,
}

impl Ends {
    /// The last tokens of blocks of `size` positions, row after row. In steps of a fixed shape all tokens.
    fn of(step: &Step<'_>, size: usize) -> Result<Self> {
        if size == 1 || (step.stores() && step.axis.is_fixed()) {
            return Ok(Self {
                of: None,
                positions: step.positions().squeeze(0)?,
            });
        }
        step.lasts_until(0);
        let rows = step.cache.lens.iter().zip(step.axis.each()).enumerate();
        let ends = rows.flat_map(|(row, (&len, places))| {
            let first = places.start;
            let ends = places.map(move |place| (row, place, len + place - first));
            ends.filter(move |(_, _, position)| (position + 1).is_multiple_of(size))
        });
        let ends: Vec<(usize, usize, usize)> = ends.collect();
        let positions: Vec<i32> = ends.iter().map(|&(_, _, at)| at as i32).collect();
        Ok(Self {
            positions: Array::from_slice(&positions, &[positions.len() as i32])?,
            of: Some(
                ends.into_iter()
                    .map(|(row, place, _)| (row, place))
                    .collect(),
            ),
        })
    }

    /// The numbers of their blocks of `size` positions: I32 `[C]`.
    fn numbers(&self, size: usize) -> Result<Array> {
        self.positions.floor_divide(size as i32)
    }
}

/// The inputs of the blocks of `size` positions that the step completes, each with the inputs before it, `reach` in
/// all. Layer `layer` keeps the last `reach` inputs. `None` if no block is complete.
pub(crate) fn completed(
    step: &mut Step<'_>,
    layer: usize,
    inputs: &Array,
    (size, reach): (usize, usize),
) -> Result<Option<Blocks>> {
    let ends = Ends::of(step, size)?;
    let numbers = ends.numbers(size)?;
    let Some(places) = &ends.of else {
        let inputs = step.last_vectors(layer, inputs, reach as i32)?;
        let inputs = inputs.squeeze(0)?;
        return Ok(Some(Blocks { inputs, numbers }));
    };
    let all = Vectors::keep(step, layer, inputs)?;
    if places.is_empty() {
        return Ok(None);
    }
    let rows: Vec<usize> = places.iter().map(|&(row, _)| row).collect();
    let before = self::numbers(1 - reach as i32, reach as i32)?;
    let at = ends.positions.expand_dims(-1)?.add(before)?.maximum(0)?;
    Ok(Some(Blocks {
        inputs: all.at(step, &rows, &at)?,
        numbers,
    }))
}

/// The inputs of the step's tokens, each of which is a block.
pub(crate) fn singles(step: &Step<'_>, inputs: &Array) -> Result<Blocks> {
    Ok(Blocks {
        inputs: inputs.squeeze(0)?.expand_dims(1)?,
        numbers: step.positions().squeeze(0)?,
    })
}

/// Keeps the vectors `[C, D]` of blocks of `size` positions, in the order of [`completed`], at the last position of each.
/// `nothing` is `[1, D]`, of their dtype. Returns the vectors of all whole blocks, `[B, P, D]`, and which of them each
/// query may see, Bool `[1, T, P]`; `None` if no row has a whole block.
pub(crate) fn keep(
    step: &mut Step<'_>,
    layer: usize,
    vectors: Option<&Array>,
    nothing: &Array,
    size: usize,
) -> Result<Option<(Array, Array)>> {
    let ends = Ends::of(step, size)?;
    let is_traced = vectors.is_some_and(Array::is_traced);
    if is_traced && step.stores() {
        step.refuse_held(layer)?;
    }
    let kept = match step.stores() {
        true => Some(Vectors::keep(
            step,
            layer,
            &at_tokens(step, vectors, nothing, &ends)?,
        )?),
        false => None,
    };
    let kept = kept.filter(|_| !is_traced);
    let rows = step.cache.lens.iter().zip(step.axis.each());
    let most = match &kept {
        // The width of the table of pages rarely changes, so that steps have the same graph.
        Some(Vectors::Pages { tables, .. }) if step.axis.is_fixed() => {
            tables.dim(1)? as usize * PAGE / size
        }
        _ => rows
            .map(|(len, places)| (len + places.len()) / size)
            .max()
            .unwrap_or(0),
    };
    if most == 0 {
        return Ok(None);
    }
    let (b, p, width) = (step.axis.rows() as i32, most as i32, size as i32);
    let at = numbers(0, p)?;
    let all = match kept {
        Some(kept) => {
            let last = at.add(1)?.multiply(width)?.subtract(1)?.expand_dims(0)?;
            let rows: Vec<usize> = (0..step.axis.rows()).collect();
            let kept = kept.at(step, &rows, &last.broadcast_to(&[b, p])?)?;
            let starts = &step.axis.starts;
            let brought = starts
                .slice_axis(0, 1, b + 1)?
                .subtract(starts.slice_axis(0, 0, b)?)?;
            let whole = step.offsets().add(brought)?.floor_divide(width)?;
            let exists = at.less(&whole.expand_dims(-1)?)?.expand_dims(-1)?;
            exists.select(&kept, &nothing.multiply(0.0)?)?
        }
        None => {
            let own = with_nothing(vectors, nothing)?;
            let places = own_blocks(step, &ends, (size, most));
            own.take(&Array::from_slice(&places, &[b, p])?, 0)?
        }
    };
    let whole = step.positions().add(1)?.floor_divide(width)?;
    let seen = at.less(&whole.expand_dims(-1)?)?;
    Ok(Some((all, seen)))
}

/// Of rows that hold nothing before the step, the place of each of `most` blocks of `size` positions among the vectors of
/// `ends`, from 1 on; 0 for blocks that are not whole.
fn own_blocks(step: &Step<'_>, ends: &Ends, (size, most): (usize, usize)) -> Vec<i32> {
    let mut found = vec![0; step.axis.rows() * most];
    let mut count = 0;
    for (row, places) in step.axis.each().enumerate() {
        for number in 0..places.len() / size {
            count += 1;
            found[row * most + number] = match ends.of {
                None => (places.start + (number + 1) * size) as i32,
                Some(_) => count,
            };
        }
    }
    found
}

/// `nothing`, `[1, D]`, and then the vectors `[C, D]`.
fn with_nothing(vectors: Option<&Array>, nothing: &Array) -> Result<Array> {
    match vectors {
        Some(vectors) => concat(&[nothing, vectors], 0),
        None => Ok(nothing.clone()),
    }
}

/// The vectors of `ends` at their tokens, and nothing at the other tokens: `[1, T, D]`.
fn at_tokens(
    step: &Step<'_>,
    vectors: Option<&Array>,
    nothing: &Array,
    ends: &Ends,
) -> Result<Array> {
    if let (None, Some(vectors)) = (&ends.of, vectors) {
        return vectors.expand_dims(0);
    }
    let mut places = vec![0i32; step.tokens()];
    for (at, &(_, place)) in ends.of.iter().flatten().enumerate() {
        places[place] = at as i32 + 1;
    }
    let places = Array::from_slice(&places, &[1, places.len() as i32])?;
    with_nothing(vectors, nothing)?.take(&places, 0)
}

/// The attention of queries `[1, H, T, D]` over the vectors of the last `window` positions, their own last, which are keys
/// and values, and over those of blocks: `[1, H, T, D]`. `k [1, T, D]` are the vectors of the step's positions, which layer
/// `layer` keeps. `blocks` are the vectors `[B, P, D]`, and which of them queries see, Bool `[1, T, P]`.
pub(crate) fn attend(
    step: &mut Step<'_>,
    (layer, window): (usize, i32),
    q: &Array,
    k: &Array,
    blocks: Option<&(Array, Array)>,
    options: &Attend<'_>,
) -> Result<Array> {
    let near = Near {
        vectors: Vectors::keep(step, layer, k)?,
        window,
        blocks,
        options,
    };
    let rows: Vec<Range<usize>> = step.axis.each().collect();
    let mut parts = Vec::new();
    let mut row = 0;
    while row < rows.len() {
        let (first, n) = (rows[row].start, rows[row].len());
        // Rows of a few tokens are attended together with those after them.
        let fits = |places: &&Range<usize>| places.is_empty() || places.len() == n;
        let run = match n <= FEW_QUERIES {
            true => rows[row..].iter().take_while(fits).count(),
            false => 1,
        };
        let own: Vec<usize> = (row..row + run)
            .filter(|&row| !rows[row].is_empty())
            .collect();
        row += run;
        for begin in (0..n).step_by(QUERIES) {
            let places = match own.len() {
                1 => first + begin..first + n.min(begin + QUERIES),
                count => first..first + count * n,
            };
            parts.push(near.of_rows(q, &own, places, step)?);
        }
    }
    match &parts[..] {
        [part] => Ok(part.clone()),
        parts => concat(parts, 2),
    }
}

/// What the queries of a layer see.
struct Near<'a> {
    vectors: Vectors,
    window: i32,
    blocks: Option<&'a (Array, Array)>,
    options: &'a Attend<'a>,
}

impl Near<'_> {
    /// The tokens `places`, of which each of the rows `rows` has equally many, n, at successive positions:
    /// `[1, H, N n, D]`.
    fn of_rows(
        &self,
        q: &Array,
        rows: &[usize],
        places: Range<usize>,
        step: &Step<'_>,
    ) -> Result<Array> {
        let (count, all) = (rows.len() as i32, places.len() as i32);
        let (begin, end, n) = (places.start as i32, places.end as i32, all / count);
        let own = step
            .positions()
            .slice_axis(1, begin, end)?
            .reshape(&[count, n])?;
        let before = numbers(1 - self.window, self.window - 1 + n)?;
        let at = own.slice_axis(1, 0, 1)?.add(before)?;
        let mut keys = vec![self.vectors.at(step, rows, &at.maximum(0)?)?];
        let (own, at) = (own.expand_dims(-1)?, at.expand_dims(1)?);
        let seen = at
            .less_equal(&own)?
            .logical_and(&at.greater(&own.subtract(self.window)?)?)?;
        let seen = seen.logical_and(&at.greater_equal(0)?)?;
        let mut masks = vec![seen.expand_dims(1)?];
        if let Some((vectors, seen)) = self.blocks {
            keys.push(of_rows(vectors, rows)?);
            masks.push(
                seen.slice_axis(1, begin, end)?
                    .reshape(&[count, 1, n, -1])?,
            );
        }
        let [_, heads, _, dim] = q.dims()?;
        let q = q
            .slice_axis(2, begin, end)?
            .reshape(&[heads, count, n, dim])?;
        let y = self.attend(&q.swapaxes(0, 1)?, &keys, &masks)?;
        y.swapaxes(0, 1)?.reshape(&[1, heads, all, -1])
    }

    /// Queries `[N, H, n, D]` over keys `[N, S, D]` and masks `[N, 1, n, S]` that follow each other.
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

//! Attention of a flat step: over pages, or over the tokens of the step.

use mlx_core::fast::{self, FlatAttention, PagedStore, Pages, Pools, Projection, RaggedRows};
use mlx_core::{Array, DType, Result, Scheme, ops::create};

use super::{Attend, Keys};

/// The rows of a step, and the pages of their positions.
#[derive(Clone, Debug)]
pub(crate) struct Paged {
    /// I32 `[B, P]`: position p of row b is in page `tables[b, p / PAGE mod P]`.
    pub(crate) tables: Array,
    /// I32 `[B + 1]`: the first token of each row on the axis of all tokens.
    pub(crate) starts: Array,
    /// I32 `[B]`: the number of positions that each row held before the step.
    pub(crate) lens: Array,
    /// The most tokens that a row brings.
    pub(crate) most: i32,
}

/// What a query sees of the positions up to its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen<'a> {
    /// The last positions only.
    pub(crate) window: Option<usize>,
    /// The positions of its chunk only.
    pub(crate) chunk: Option<usize>,
    /// The selected positions only: Bool `[1 or H, T, S]`.
    pub(crate) selection: Option<&'a Array>,
    /// Latents only: the first features of keys are the values.
    pub(crate) value_dim: Option<i32>,
}

impl Paged {
    fn pages(&self) -> Pages<'_> {
        Pages {
            starts: &self.starts,
            lens: &self.lens,
            tables: &self.tables,
            most: Some(self.most),
        }
    }

    /// All positions of the rows, `[B, K, P PAGE, D]`, from an array of pages.
    pub(crate) fn gathered(&self, pages: &Array) -> Result<Array> {
        let [_, heads, page, d] = pages.dims()?;
        let [b, columns] = self.tables.dims()?;
        let all = pages.take(&self.tables, 0)?.swapaxes(1, 2)?;
        all.reshape(&[b, heads, columns * page, d])
    }
}

/// Writes keys `[1, K, T, D]` and, unless values are a part of them, values to their pages. Returns the pools, and the
/// heads of the queries if they are given as a projection.
pub(crate) fn store_in_pages(
    pools: &[Array],
    queries: Option<&Projection<'_>>,
    keys: &Keys<'_>,
    values: Option<&Array>,
    at: &Paged,
    scheme: Option<Scheme>,
) -> Result<(Vec<Array>, Option<Array>)> {
    let ([k, v], Some(values)) = (pools, values) else {
        let pool = keep_in_pages(&pools[0], &keys.heads()?, at)?;
        return Ok((vec![pool], None));
    };
    let (pages, how) = (at.pages(), PagedStore { scheme });
    let own = Pools::Own(k.clone(), v.clone());
    let ((k, v), heads) = match (queries, keys) {
        (Some(queries), Keys::Projection(keys)) => {
            let (heads, k, v) =
                fast::paged_heads_and_store(queries, own, keys, values, &pages, how)?;
            ((k, v), Some(heads))
        }
        (_, Keys::Projection(keys)) => (
            fast::paged_store_heads(own, keys, values, &pages, how)?,
            None,
        ),
        (_, Keys::Heads(keys)) => (fast::paged_store(own, keys, values, &pages, how)?, None),
    };
    Ok((vec![k, v], heads))
}

/// Writes vectors `[1, K, T, D]` to their pages of a pool `[pages, K, PAGE, D]` as they are. Returns the pool.
pub(crate) fn keep_in_pages(pool: &Array, vectors: &Array, at: &Paged) -> Result<Array> {
    fast::paged_keep(pool, vectors, &at.pages(), true)
}

/// The attention of queries `[1, H, T, D]` over pages: `[1, H, T, Dv]`.
pub(crate) fn attend_to_pages(
    q: &Array,
    pools: &[Array],
    at: &Paged,
    seen: &Seen<'_>,
    scheme: Option<Scheme>,
    options: &Attend<'_>,
) -> Result<Array> {
    let columns = at.tables.dim(1)? * pools[0].dim(2)?;
    let mask = mask(q, columns, seen, options)?;
    let options = seen.options(mask.as_ref(), options);
    match (pools, seen.value_dim) {
        ([latents], Some(value_dim)) => {
            fast::paged_latents(q, latents, value_dim, &at.pages(), &options)
        }
        _ => fast::paged_attention(q, &pools[0], &pools[1], scheme, &at.pages(), &options),
    }
}

/// The attention of queries `[1, H, T, D]` over the keys and values of the same tokens, for rows that
/// begin with the step: `[1, H, T, Dv]`. `rows` are `starts`, I32 `[B + 1]`, and the most tokens of
/// a row.
pub(crate) fn attend_to_tokens(
    q: &Array,
    arrays: &[Array],
    (starts, longest): (&Array, usize),
    seen: &Seen<'_>,
    options: &Attend<'_>,
) -> Result<Array> {
    let mask = mask(q, longest as i32, seen, options)?;
    let options = seen.options(mask.as_ref(), options);
    // The numbers of a quantised cache are F32.
    let wide = arrays[0].dtype() != q.dtype();
    let queries = if wide {
        q.astype(DType::F32)?
    } else {
        q.clone()
    };
    let rows = RaggedRows {
        starts,
        longest: i32::try_from(longest).unwrap_or(i32::MAX),
    };
    let y = match (arrays, seen.value_dim) {
        ([latents], Some(value_dim)) => {
            fast::ragged_latents(&queries, latents, value_dim, &rows, &options)?
        }
        _ => fast::ragged_attention(&queries, &arrays[0], &arrays[1], &rows, &options)?,
    };
    if wide { y.astype(q.dtype()) } else { Ok(y) }
}

/// What is added to the scores of the first `columns` positions, or hides them: a selection,
/// `[1, T, S]`, or the bias of ALiBi, `[H, 1, S]`.
fn mask(q: &Array, columns: i32, seen: &Seen<'_>, options: &Attend<'_>) -> Result<Option<Array>> {
    match (seen.selection, options.alibi) {
        (Some(selection), _) => Ok(Some(selection.clone())),
        (None, Some(alibi)) => {
            let positions = create::arange(0.0, f64::from(columns), 1.0, DType::F32)?;
            let bias = alibi.bias(&positions)?;
            bias.astype(q.dtype()).map(Some)
        }
        (None, None) => Ok(None),
    }
}

impl Seen<'_> {
    fn options<'a>(&self, mask: Option<&'a Array>, options: &Attend<'a>) -> FlatAttention<'a> {
        let size = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        FlatAttention {
            scale: options.scale,
            soft_cap: options.softcap,
            seen: fast::Seen {
                window: self.window.map(size),
                chunk: self.chunk.map(size),
                ahead: 0,
                mask,
                slopes: None,
            },
            sinks: options.sinks,
        }
    }
}

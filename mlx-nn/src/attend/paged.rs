//! Attention over pages.

use mlx_core::fast::{self, KeySlots, Mask, Positions};
use mlx_core::{Array, DType, Result, Scheme, inplace, ops::create};

use super::{Attend, Fresh, attend};

/// The rows of a step, and the pages of their positions.
#[derive(Clone, Debug)]
pub(crate) struct Paged {
    /// I32 `[B, P]`: position p of row b is in page `tables[b, p / PAGE mod P]`.
    pub(crate) tables: Array,
    /// I32 `[B + 1]`: the first token of each row on the axis of all tokens.
    pub(crate) starts: Array,
    /// I32 `[B]`: the number of positions that each row held before the step.
    pub(crate) lens: Array,
    /// Tokens of a row.
    pub(crate) width: i32,
}

/// What a query sees of the positions up to its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen<'a> {
    /// The last positions only.
    pub(crate) window: Option<usize>,
    /// The positions of its chunk only.
    pub(crate) chunk: Option<usize>,
    /// The selected positions only: Bool `[B, 1, L, S]`.
    pub(crate) selection: Option<&'a Array>,
    /// Latents only: the first features of keys are the values.
    pub(crate) value_dim: Option<i32>,
}

impl Paged {
    /// All positions of the rows, `[B, K, P PAGE, D]`, from an array of pages.
    pub(crate) fn gathered(&self, pages: &Array) -> Result<Array> {
        let [_, heads, page, d] = pages.dims()?;
        let [b, columns] = self.tables.dims()?;
        let all = pages.take(&self.tables, 0)?.swapaxes(1, 2)?;
        all.reshape(&[b, heads, columns * page, d])
    }

    fn token_positions(&self) -> Result<Array> {
        let tokens = create::arange(0.0, f64::from(self.width), 1.0, DType::I32)?;
        self.lens.expand_dims(-1)?.add(&tokens)
    }
}

/// Writes keys and values `[1, K, T, D]` to their pages.
pub(crate) fn store_in_pages(
    pools: &[Array],
    k: &Fresh<'_>,
    v: Option<&Array>,
    at: &Paged,
    scheme: Option<Scheme>,
) -> Result<Vec<Array>> {
    let keys = k.keys.heads()?;
    let page = pools[0].dim(2)?;
    let [b, columns] = at.tables.dims()?;
    let positions = at.token_positions()?; // [B, L]
    let number = positions.floor_divide(page)?;
    let number = number.remainder(columns)?;
    let pages = at.tables.take_along_axis(&number, 1)?.flatten()?;
    let slots = positions.remainder(page)?.flatten()?;
    let t = b * at.width;
    let news = [Some(&keys), v];
    pools
        .iter()
        .zip(news.into_iter().flatten())
        .map(|(pool, new)| {
            let new = match scheme {
                Some(scheme) => fast::pack(new, scheme)?,
                None => new.clone(),
            };
            let [_, heads, _, d] = new.dims()?;
            let updates = new.squeeze(0)?.swapaxes(0, 1)?.reshape(&[t, 1, heads, 1, d])?;
            inplace::scatter_in_place(pool.clone(), &[&pages, &slots], &updates, &[0, 2])
        })
        .collect()
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
    let [_, heads, t, d] = q.dims()?;
    let (b, l) = (t / at.width, at.width);
    let q = q.swapaxes(1, 2)?.reshape(&[b, l, heads, d])?.swapaxes(1, 2)?;
    let k = at.gathered(&pools[0])?;
    let v = match (pools.get(1), seen.value_dim) {
        (Some(values), _) => at.gathered(values)?,
        (None, Some(value_dim)) => k.slice_axis(-1, 0, value_dim)?,
        (None, None) => k.clone(),
    };
    let slots = k.dim(2)?;
    let window = seen.window.map(|window| window as i32);
    let positions = Positions::new(&at.lens, window, KeySlots::Straight);
    let mut mask = Mask::Positions(positions);
    if let Some(chunk) = seen.chunk {
        let visible = mask.visible(l, slots)?;
        let own = at.token_positions()?.floor_divide(chunk as i32)?;
        let own = own.reshape(&[b, 1, l, 1])?;
        let keys = create::arange(0.0, f64::from(slots), 1.0, DType::I32)?;
        let keys = keys.floor_divide(chunk as i32)?;
        mask = Mask::Array(visible.logical_and(&own.equal(&keys)?)?);
    }
    if let Some(selection) = seen.selection {
        let short = slots - selection.dim(3)?;
        let selection = selection.pad(&[(3, 0, short)], false)?;
        mask = Mask::Array(mask.visible(l, slots)?.logical_and(&selection)?);
    }
    if let Some(alibi) = options.alibi {
        let visible = mask.visible(l, slots)?;
        let keys = create::arange(0.0, f64::from(slots), 1.0, DType::F32)?;
        let keys = keys.reshape(&[1, 1, 1, slots])?;
        mask = Mask::Array(alibi.mask(&keys, &visible, q.dtype())?);
    }
    let y = attend(&q, &k, &v, scheme, mask, options)?;
    let dv = y.dim(3)?;
    y.swapaxes(1, 2)?.reshape(&[1, t, heads, dv])?.swapaxes(1, 2)
}

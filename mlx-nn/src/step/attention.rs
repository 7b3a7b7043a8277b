//! The part of [`Step`] that layers with keys and values use: attention over the keys that their
//! queries see.

use mlx_core::fast::{self, KeySlots, Mask, Positions};
use mlx_core::ops::create;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::Step;
use super::paged::StepPages;
use crate::attend::{Attend, Keys, Paged, Seen, attend, attend_to_pages};
use crate::attention::Alibi;
use crate::cache::state::refusal;
use crate::mask::{mask, visible};

/// Attention of layers of each kind.
impl Step<'_> {
    /// Writes keys and values `[B, K, L, D]` to the cache of layer `layer`, and computes the attention of the
    /// queries `[B, H, L, D]` over the positions that they see: `[B, H, L, Dv]`.
    ///
    /// # Errors
    /// The shapes do not fit each other or the cache, or the layer is recurrent.
    pub fn attend<'k>(
        &mut self,
        layer: usize,
        q: impl Into<Keys<'k>>,
        k: impl Into<Keys<'k>>,
        v: &Array,
        options: &Attend<'_>,
    ) -> Result<Array> {
        self.attend_to(
            layer,
            &q.into(),
            &k.into(),
            Some(v),
            Seen::default(),
            options,
        )
    }

    /// [`attend`](Self::attend) for a layer whose tokens see only the tokens of their own chunk: position p belongs to
    /// chunk `p / chunk` (Llama 4). The layer keeps a window of `chunk` positions, or all.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend).
    pub fn attend_chunked<'k>(
        &mut self,
        layer: usize,
        chunk: usize,
        q: impl Into<Keys<'k>>,
        k: impl Into<Keys<'k>>,
        v: &Array,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let seen = Seen {
            chunk: Some(chunk),
            ..Seen::default()
        };
        self.attend_to(layer, &q.into(), &k.into(), Some(v), seen, options)
    }

    /// [`attend`](Self::attend) for a layer whose keys and values later layers read too.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend).
    pub fn attend_and_share<'k>(
        &mut self,
        layer: usize,
        q: impl Into<Keys<'k>>,
        k: impl Into<Keys<'k>>,
        v: &Array,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let (q, k) = (q.into(), k.into());
        let y = self.attend_to(layer, &q, &k, Some(v), Seen::default(), options)?;
        let arrays = match self.stores() {
            true => self.cache.pool.borrow().arrays_of(layer).to_vec(),
            false => self.kept(&k, Some(v))?,
        };
        self.shared.insert(layer, arrays);
        Ok(y)
    }

    /// The attention of queries `[B, H, L, D]` over the keys and values that layer `layer` shared in this step with
    /// [`attend_and_share`](Self::attend_and_share): `[B, H, L, Dv]`. Nothing is written.
    ///
    /// # Errors
    /// That layer has not shared any in this step, or the shapes do not fit.
    pub fn attend_to_shared(
        &mut self,
        layer: usize,
        q: &Array,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let Some(arrays) = self.shared.get(&layer).cloned() else {
            return Err(refusal(format!(
                "layer {layer} has shared no keys and values in this step"
            )));
        };
        self.attend_over(layer, q, &arrays, Seen::default(), options)
    }

    /// [`attend`](Self::attend) for a layer that keeps one vector for each position
    /// ([`LayerKind::Latent`](crate::LayerKind)): `latents` `[B, 1, L, D]` are the keys of all queries, and their first
    /// `value_dim` features are the values. If there is a selection, queries see only its positions.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend), or the cache is quantised.
    pub fn attend_latents(
        &mut self,
        layer: usize,
        q: &Array,
        latents: &Array,
        value_dim: i32,
        selection: Option<&Array>,
        options: &Attend<'_>,
    ) -> Result<Array> {
        if self.cache.options.quantized.is_some() {
            return Err(refusal(format!("layer {layer}: latents are not quantised")));
        }
        let seen = Seen {
            selection,
            value_dim: Some(value_dim),
            ..Seen::default()
        };
        let (q, k) = (Keys::from(q), Keys::from(latents));
        self.attend_to(layer, &q, &k, None, seen, options)
    }

    /// Writes one vector for each position, `[B, 1, L, D]`, to the cache of a layer that keeps such vectors. Returns
    /// all vectors of the rows, `[B, 1, S, D]`, and which of them the step's queries may see, Bool `[B or 1, 1, L, S]`.
    ///
    /// # Errors
    /// The shapes do not fit, or the layer has another kind of state.
    pub fn keep(&mut self, layer: usize, vectors: &Array) -> Result<(Array, Array)> {
        self.check_step(layer, &Keys::from(vectors))?;
        let width = self.width as i32;
        if !self.stores() {
            let window = self.window_of(layer)?;
            let visible = self.dense_mask(window, None)?.visible(width, width)?;
            return Ok((vectors.clone(), visible));
        }
        let StepPages { paged, window } = self.pages_of(layer)?;
        let flat = self.flat(vectors)?;
        let (arrays, _) = self.write(layer, None, &Keys::from(&flat), None, &paged)?;
        let all = paged.gathered(&arrays[0])?;
        self.lasts_until(0);
        let end = self.longest() as i32;
        let all = all.slice_axis(2, 0, end)?;
        let window = window.map(|window| i32::try_from(window).unwrap_or(i32::MAX));
        let positions = Positions::new(&self.offsets, window, KeySlots::Straight);
        let visible = Mask::Positions(positions).visible(width, end)?;
        Ok((all, visible))
    }

    /// The selection of the last layer that has chosen positions: Bool `[B, 1, L, S]`; `None` if queries see all
    /// positions that they may see.
    pub fn selection(&self) -> Option<&Array> {
        self.selection.as_ref()
    }

    /// Sets the [`selection`](Self::selection) for this layer and the layers after it.
    pub fn set_selection(&mut self, selection: Option<Array>) {
        self.selection = selection;
    }

    /// [`attend`](Self::attend), where queries see only the selection, if there is one.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend).
    pub fn attend_selected(
        &mut self,
        layer: usize,
        q: &Array,
        k: &Array,
        v: &Array,
        selection: Option<&Array>,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let seen = Seen {
            selection,
            ..Seen::default()
        };
        self.attend_to(layer, &q.into(), &k.into(), Some(v), seen, options)
    }
}

/// Writing and reading.
impl Step<'_> {
    /// Writes keys and, unless values are a part of them, values, and computes the attention of the
    /// queries.
    fn attend_to(
        &mut self,
        layer: usize,
        q: &Keys<'_>,
        k: &Keys<'_>,
        v: Option<&Array>,
        seen: Seen<'_>,
        options: &Attend<'_>,
    ) -> Result<Array> {
        self.check_step(layer, k)?;
        if !self.stores() {
            let arrays = self.kept(k, v)?;
            return self.attend_over(layer, &q.heads()?, &arrays, seen, options);
        }
        let StepPages { paged, window } = self.pages_of(layer)?;
        let v = v.map(|v| self.flat(v)).transpose()?;
        // One operation makes the heads of queries and keys from projections, and stores the keys.
        let columns = |keys: &Keys<'_>| match keys {
            Keys::Projection(projection) => self.flat_columns(projection.x).map(Some),
            Keys::Heads(_) => Ok(None),
        };
        let (q_columns, k_columns) = (columns(q)?, columns(k)?);
        let at = &paged;
        let queries = on_one_axis(q, q_columns.as_ref(), at);
        let keys = match on_one_axis(k, k_columns.as_ref(), at) {
            Some(keys) => Keys::Projection(keys),
            None => Keys::Heads(self.flat(&k.heads()?)?),
        };
        let (arrays, heads) = self.write(layer, queries.as_ref(), &keys, v.as_ref(), at)?;
        let heads = match (heads, &queries) {
            (Some(heads), _) => heads,
            (None, Some(queries)) => fast::heads(queries)?,
            (None, None) => self.flat(&q.heads()?)?,
        };
        let (seen, scheme) = (Seen { window, ..seen }, self.cache.options.quantized);
        let y = attend_to_pages(&heads, &arrays, at, &seen, scheme, options)?;
        self.by_row(&y)
    }

    /// Writes keys and values `[1, K, T, D]` to pages. Returns the layer's arrays, and the heads of
    /// the queries if they were given.
    fn write(
        &self,
        layer: usize,
        queries: Option<&fast::Projection<'_>>,
        k: &Keys<'_>,
        v: Option<&Array>,
        at: &Paged,
    ) -> Result<(Vec<Array>, Option<Array>)> {
        let mut pool = self.cache.pool.borrow_mut();
        if pool.moves(layer) {
            self.lasts_until(0);
        }
        pool.write(layer, queries, k, v, at)
    }

    /// The attention of queries `[B, H, L, D]` over the arrays of a layer.
    fn attend_over(
        &mut self,
        layer: usize,
        q: &Array,
        arrays: &[Array],
        seen: Seen<'_>,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let scheme = self.cache.options.quantized;
        if self.stores() {
            let StepPages { paged, window } = self.pages_of(layer)?;
            let seen = Seen { window, ..seen };
            let y = attend_to_pages(&self.flat(q)?, arrays, &paged, &seen, scheme, options)?;
            return self.by_row(&y);
        }
        let window = self.window_of(layer)?;
        let mask = match (seen.selection, options.alibi) {
            (Some(selection), _) => Mask::Array(selection.clone()),
            (None, Some(alibi)) => self.biased_mask(window, alibi, q.dtype())?,
            (None, None) => self.dense_mask(window, seen.chunk)?,
        };
        let values;
        let v = match (arrays, seen.value_dim) {
            ([keys], Some(value_dim)) => {
                values = keys.slice_axis(-1, 0, value_dim)?;
                &values
            }
            _ => &arrays[1],
        };
        attend(q, &arrays[0], v, scheme, mask, options)
    }

    /// New keys and, unless values are a part of them, values in the cache's format.
    fn kept(&self, k: &Keys<'_>, v: Option<&Array>) -> Result<Vec<Array>> {
        let scheme = self.cache.options.quantized;
        let kept = |new: &Array| match scheme {
            Some(scheme) => fast::pack(new, scheme),
            None => Ok(new.clone()),
        };
        let keys = kept(&k.heads()?)?;
        match v {
            Some(v) => Ok(vec![keys, kept(v)?]),
            None => Ok(vec![keys]),
        }
    }

    /// Refuses keys of another step, and layers without keys.
    fn check_step(&self, layer: usize, keys: &Keys<'_>) -> Result<()> {
        self.cache.pool.borrow().group_of(layer)?;
        let [b, _, l, _] = keys.shape()?;
        if b as usize != self.widths.len() || l as usize != self.width {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "layer {layer}: keys {:?} in a step of {:?} tokens a row",
                    keys.shape()?,
                    self.widths
                ),
            ));
        }
        Ok(())
    }

    fn window_of(&self, layer: usize) -> Result<Option<usize>> {
        let pool = self.cache.pool.borrow();
        Ok(pool.groups()[pool.group_of(layer)?].window)
    }

    /// `[B, K, L, D] -> [1, K, B L, D]`: the tokens of all rows on one axis.
    fn flat(&self, heads: &Array) -> Result<Array> {
        let [b, k, l, d] = heads.dims()?;
        match (b, l) {
            (1, _) => Ok(heads.clone()),
            (_, 1) => heads.swapaxes(0, 2),
            _ => heads
                .swapaxes(1, 2)?
                .reshape(&[1, b * l, k, d])?
                .swapaxes(1, 2),
        }
    }

    /// `[B, L, W] -> [1, B L, W]`
    fn flat_columns(&self, x: &Array) -> Result<Array> {
        match x.dims()? {
            [1, _, _] => Ok(x.clone()),
            [b, l, w] => x.reshape(&[1, b * l, w]),
        }
    }

    /// `[1, K, B L, D] -> [B, K, L, D]`
    fn by_row(&self, flat: &Array) -> Result<Array> {
        let [_, k, _, d] = flat.dims()?;
        let (b, l) = (self.widths.len() as i32, self.width as i32);
        match (b, l) {
            (1, _) => Ok(flat.clone()),
            (_, 1) => flat.swapaxes(0, 2),
            _ => flat.swapaxes(1, 2)?.reshape(&[b, l, k, d])?.swapaxes(1, 2),
        }
    }
}

/// A projection whose columns `x`, `[1, T, W]`, are those of all rows.
fn on_one_axis<'a>(
    keys: &'a Keys<'_>,
    x: Option<&'a Array>,
    at: &'a Paged,
) -> Option<fast::Projection<'a>> {
    match (keys, x) {
        (Keys::Projection(projection), Some(x)) => Some(fast::Projection {
            x,
            offsets: &at.positions,
            ..*projection
        }),
        _ => None,
    }
}

/// Masks of steps that store nothing. All their rows begin at position 0.
impl Step<'_> {
    /// The mask for a window and chunks, made once for each step.
    fn dense_mask(&mut self, window: Option<usize>, chunk: Option<usize>) -> Result<Mask> {
        let chunk = chunk.filter(|&chunk| self.width > chunk);
        let key = (window, chunk);
        if let Some(mask) = self.masks.get(&key) {
            return Ok(mask.clone());
        }
        let made = match chunk {
            Some(chunk) => self.chunk_mask(chunk, window)?,
            None if self.documents.is_some() => self.packed_mask(window)?,
            None if window.is_some_and(|window| window < self.width) => {
                let window = window.map(|window| i32::try_from(window).unwrap_or(i32::MAX));
                Mask::Positions(Positions::new(&self.offsets, window, KeySlots::Straight))
            }
            None if self.width == 1 => Mask::None,
            None => Mask::Causal,
        };
        self.masks.insert(key, made.clone());
        Ok(made)
    }

    /// The mask with the bias of ALiBi, in the dtype of the queries.
    fn biased_mask(&mut self, window: Option<usize>, alibi: &Alibi, dtype: DType) -> Result<Mask> {
        if let Some(mask) = &self.biased {
            return Ok(mask.clone());
        }
        let width = self.width as i32;
        let visible = self.dense_mask(window, None)?.visible(width, width)?;
        let positions = self.key_positions()?;
        let mask = Mask::Array(alibi.mask(&positions, &visible, dtype)?);
        self.biased = Some(mask.clone());
        Ok(mask)
    }

    /// The mask of a step that begins at position 0: causal and within the window, and only within a document.
    fn packed_mask(&self, window: Option<usize>) -> Result<Mask> {
        let documents = self.documents.as_deref().unwrap_or_default();
        let width = self.width;
        // Padding belongs to no document. It sees all tokens before it, so that its softmax has terms.
        let of = |row: usize, token: usize| documents[row].get(token);
        let array = mask(documents.len(), width, width, |row, query, key| {
            visible(query as i64, key as i64, window)
                && (of(row, query) == of(row, key) || of(row, query).is_none())
        })?;
        Ok(Mask::Array(array))
    }

    /// The mask of chunks.
    fn chunk_mask(&self, chunk: usize, window: Option<usize>) -> Result<Mask> {
        // Each document of a row has its own chunks.
        let first = |row: usize, token: usize| match &self.documents {
            Some(documents) => {
                let own = documents[row].get(token);
                documents[row].iter().position(|of| Some(of) == own)
            }
            None => Some(0),
        };
        let rows = self.widths.len();
        let array = mask(rows, self.width, self.width, |row, query, key| {
            let (q, k) = (query as i64, key as i64);
            // Padding belongs to no document. It sees all tokens before it, so that its softmax has terms.
            let Some(first) = first(row, query) else {
                return visible(q, k, window);
            };
            let of = |position: i64| (position - first as i64).div_euclid(chunk as i64);
            k >= first as i64 && visible(q, k, window) && of(q) == of(k)
        })?;
        Ok(Mask::Array(array))
    }

    /// The position of each key in its document: `[B or 1, 1, 1, L]`.
    fn key_positions(&self) -> Result<Array> {
        let slots = self.width;
        let Some(documents) = &self.documents else {
            let positions = create::arange(0.0, slots as f64, 1.0, DType::F32)?;
            return positions.reshape(&[1, 1, 1, slots as i32]);
        };
        let mut positions = Vec::with_capacity(documents.len() * slots);
        for row in documents {
            let begin = |slot: usize| {
                let own = row.get(slot)?;
                row.iter().position(|of| of == own)
            };
            positions.extend((0..slots).map(|slot| (slot - begin(slot).unwrap_or(0)) as f32));
        }
        Array::from_slice(&positions, &[documents.len() as i32, 1, 1, slots as i32])
    }
}

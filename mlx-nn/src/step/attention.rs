//! The part of [`Step`] that layers with keys and values use: where tokens are written, and which
//! keys their queries see.

use mlx_core::fast::{KeySlots, Mask, Positions};
use mlx_core::ops::{concat, create};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::Step;
use crate::attend::{Attend, Fresh, Keys, attend};
use crate::attention::Alibi;
use crate::cache::kv::{Extent, KvCache, Places, Slots};
use crate::cache::state::{LayerState, refusal};
use crate::mask::{mask, position, visible};

/// The layout of the keys of an attention. Together with the window it determines the mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum KeyLayout {
    /// Slot j holds position j.
    Straight { slots: usize },
    /// Slot j of `cap` holds the last position congruent to j, including the positions of this step.
    Wrapped { cap: usize },
    /// The `cap` positions before this step in order, then this step's tokens.
    Chunk { cap: usize },
}

/// Index arrays for a step that is wider than the slack of a ring. A step makes them once for each
/// size of ring.
#[derive(Clone)]
pub(super) struct Turn {
    /// For each slot of the ring after the step, the number of the step's token that it holds:
    /// I32 `[B, 1, cap, 1]`.
    from: Array,
    /// Whether the slot holds one of the step's tokens: Bool, same shape.
    is_new: Array,
    /// The slots of the ring before the step, oldest position first: I32, same shape.
    in_order: Array,
}

type Attended = (Vec<Array>, Option<usize>, KeyLayout);

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
        let (q, k) = (q.into(), k.into());
        let dtype = q.dtype();
        let fresh = Fresh::new(q, k);
        let (arrays, mask) = match options.alibi {
            None => self.written(layer, &fresh, Some(v))?,
            Some(alibi) => self.written_biased(layer, &fresh, v, alibi, dtype)?,
        };
        let scheme = self.cache.options.quantized;
        attend(
            &fresh.queries()?,
            &arrays[0],
            &arrays[1],
            scheme,
            mask,
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
        let fresh = Fresh::new(q.into(), k.into());
        let (arrays, window, layout) = self.stored(layer, &fresh, Some(v))?;
        let mask = match self.end() <= chunk {
            // All rows are in one chunk, in which a token sees the tokens before it.
            true => {
                self.lasts_until(chunk);
                self.mask(window, layout)?
            }
            false => self.chunk_mask(chunk, window, layout)?,
        };
        let scheme = self.cache.options.quantized;
        attend(
            &fresh.queries()?,
            &arrays[0],
            &arrays[1],
            scheme,
            mask,
            options,
        )
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
        let fresh = Fresh::new(q.into(), k.into());
        let (arrays, mask) = self.written(layer, &fresh, Some(v))?;
        self.shared.insert(layer, (arrays.clone(), mask.clone()));
        let scheme = self.cache.options.quantized;
        attend(
            &fresh.queries()?,
            &arrays[0],
            &arrays[1],
            scheme,
            mask,
            options,
        )
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
        let Some((arrays, mask)) = self.shared.get(&layer) else {
            return Err(refusal(format!(
                "layer {layer} has shared no keys and values in this step"
            )));
        };
        let scheme = self.cache.options.quantized;
        attend(q, &arrays[0], &arrays[1], scheme, mask.clone(), options)
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
        let (arrays, mask) = self.written(layer, &Keys::from(latents).into(), None)?;
        let mask = selection.map_or(mask, |seen| Mask::Array(seen.clone()));
        let keys = &arrays[0];
        let values = keys.slice_axis(-1, 0, value_dim)?;
        attend(q, keys, &values, None, mask, options)
    }

    /// Writes one vector for each position, `[B, 1, L, D]`, to the cache of a layer that keeps such vectors. Returns
    /// all vectors of the rows, `[B, 1, S, D]`, and which of them the step's queries may see, Bool `[B or 1, 1, L, S]`.
    ///
    /// # Errors
    /// The shapes do not fit, or the layer has another kind of state.
    pub fn keep(&mut self, layer: usize, vectors: &Array) -> Result<(Array, Array)> {
        let (arrays, mask) = self.written(layer, &Keys::from(vectors).into(), None)?;
        let kept = arrays.into_iter().next().expect("a layer keeps an array");
        let visible = mask.visible(self.width as i32, kept.dim(2)?)?;
        Ok((kept, visible))
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
        let (arrays, mask) = self.written(layer, &Keys::from(k).into(), Some(v))?;
        let mask = selection.map_or(mask, |seen| Mask::Array(seen.clone()));
        let scheme = self.cache.options.quantized;
        attend(q, &arrays[0], &arrays[1], scheme, mask, options)
    }
}

/// Writing keys and values.
impl Step<'_> {
    /// Writes keys and values to the cache of a layer. Returns the keys and values that the step's queries attend to,
    /// and the mask.
    fn written(
        &mut self,
        layer: usize,
        k: &Fresh<'_>,
        v: Option<&Array>,
    ) -> Result<(Vec<Array>, Mask)> {
        let (arrays, window, layout) = self.stored(layer, k, v)?;
        Ok((arrays, self.mask(window, layout)?))
    }

    /// Writes keys and values to the cache of a layer with ALiBi. Returns the keys and values that the step's queries
    /// attend to, and the mask with the bias, in the dtype of the queries.
    fn written_biased(
        &mut self,
        layer: usize,
        k: &Fresh<'_>,
        v: &Array,
        alibi: &Alibi,
        dtype: DType,
    ) -> Result<(Vec<Array>, Mask)> {
        let (arrays, window, layout) = self.stored(layer, k, Some(v))?;
        let KeyLayout::Straight { slots } = layout else {
            return Err(refusal(format!(
                "layer {layer} has ALiBi and must keep all positions"
            )));
        };
        if let Some((held, mask)) = &self.biased
            && *held == slots
        {
            return Ok((arrays, mask.clone()));
        }
        let visible = self.mask(window, layout)?;
        let visible = visible.visible(self.width as i32, slots as i32)?;
        let positions = self.key_positions(slots)?;
        let mask = Mask::Array(alibi.mask(&positions, &visible, dtype)?);
        self.biased = Some((slots, mask.clone()));
        Ok((arrays, mask))
    }

    /// Writes keys and values to the cache of a layer. Returns the keys and values that the step's queries attend to,
    /// and their layout.
    fn stored(&mut self, layer: usize, k: &Fresh<'_>, v: Option<&Array>) -> Result<Attended> {
        let [b, _, l, _] = k.keys.shape()?;
        if b as usize != self.widths.len() || l as usize != self.width {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "layer {layer}: keys {:?} in a step of {:?} tokens a row",
                    k.keys.shape()?,
                    self.widths
                ),
            ));
        }
        match self.kv(layer)?.extent {
            Extent::Grows { by } => self.straight(layer, k, v, by, None),
            Extent::Ring { window, slack, by } => self.ring(layer, k, v, window, slack, by),
        }
    }

    /// The keys and values of a layer.
    fn kv(&mut self, layer: usize) -> Result<&mut KvCache> {
        let state = self.cache.layers.get_mut(layer);
        state
            .and_then(LayerState::kv)
            .ok_or_else(|| refusal(format!("layer {layer} keeps no keys and values")))
    }

    /// Attends in a layer whose slot j holds position j. `ring` has the window and the capacity, if there is one.
    fn straight(
        &mut self,
        layer: usize,
        k: &Fresh<'_>,
        v: Option<&Array>,
        by: usize,
        ring: Option<(usize, usize)>,
    ) -> Result<Attended> {
        let window = ring.map(|(window, _)| window);
        if !self.cache.options.store {
            let arrays = self.kv(layer)?.kept_both(&k.keys, v)?;
            return Ok((arrays, window, KeyLayout::Straight { slots: self.width }));
        }
        let end = self.end();
        let slots = self.slots(usize::MAX, v.is_some())?;
        let held = self.kv(layer)?.capacity();
        let wanted = if end <= held {
            held
        } else {
            end.div_ceil(by) * by
        };
        let capacity = ring.map_or(wanted, |(_, cap)| wanted.min(cap));
        // A row that is longer than the buffer makes the buffer grow.
        self.lasts_until(capacity);
        let arrays = self.write(layer, k, v, &slots, capacity)?;
        if self.by_position {
            // The kernel reads no slot after a row's last position.
            let slots = arrays[0].dim(2)? as usize;
            return Ok((arrays, window, KeyLayout::Straight { slots }));
        }
        self.lasts_until(0);
        let arrays = arrays.iter().map(|buffer| first(buffer, end));
        let arrays = arrays.collect::<Result<_>>()?;
        Ok((arrays, window, KeyLayout::Straight { slots: end }))
    }

    /// Writes to a layer that keeps the last `window` positions.
    fn ring(
        &mut self,
        layer: usize,
        k: &Fresh<'_>,
        v: Option<&Array>,
        window: usize,
        slack: usize,
        by: usize,
    ) -> Result<Attended> {
        let cap = window + slack;
        let is_narrow = self.width <= slack + 1;
        // Once the buffer has all slots of the ring, narrow steps have one graph, whatever the lengths of rows.
        let is_whole = self.by_position && is_narrow && self.kv(layer)?.capacity() == cap;
        if !self.cache.options.store || (self.end() <= cap && !is_whole) {
            return self.straight(layer, k, v, by, Some((window, cap)));
        }
        let window = Some(window);
        if is_narrow {
            let slots = self.slots(cap, v.is_some())?;
            let arrays = self.write(layer, k, v, &slots, cap)?;
            return Ok((arrays, window, KeyLayout::Wrapped { cap }));
        }
        self.lasts_until(0);
        // The step is wider than the slack: its last tokens may overwrite positions that its first tokens see. So the
        // queries attend to the old ring and the new tokens, side by side.
        let cache = self.kv(layer)?;
        let new = cache.kept_both(&k.keys, v)?;
        let old = cache.read(cap)?;
        let turn = self.turn(cap)?;
        let staged = |new: &Array, old: Option<&Array>| -> Result<Array> {
            let [b, heads, _, d] = new.dims()?;
            let shape = [b, heads, cap as i32, d];
            let taken = new.take_along_axis(&turn.from.broadcast_to(&shape)?, 2)?;
            let old = match old {
                Some(old) => old.clone(),
                None => create::zeros(&shape, new.dtype())?,
            };
            turn.is_new.select(&taken, &old)
        };
        let of = |at: usize| old.as_ref().and_then(|old| old.get(at));
        let ring = new.iter().enumerate().map(|(at, new)| staged(new, of(at)));
        let ring = ring.collect::<Result<_>>()?;
        self.kv(layer)?.stage(ring);
        match old {
            Some(old) if self.cache.lens.iter().any(|&len| len > 0) => {
                // The keys are in the order of positions, so that sums have the same bits as in one
                // wide step, and the chunks of a prompt do not change its result.
                let beside = |old: &Array, new: &Array| {
                    let order = turn.in_order.broadcast_to(old.shape())?;
                    concat(&[&old.take_along_axis(&order, 2)?, new], 2)
                };
                let arrays = old.iter().zip(&new).map(|(old, new)| beside(old, new));
                let arrays = arrays.collect::<Result<_>>()?;
                Ok((arrays, window, KeyLayout::Chunk { cap }))
            }
            _ => Ok((new, window, KeyLayout::Straight { slots: self.width })),
        }
    }

    fn turn(&mut self, cap: usize) -> Result<Turn> {
        if let Some(turn) = self.turns.get(&cap) {
            return Ok(turn.clone());
        }
        let n = self.widths.len() * cap;
        let (mut from, mut is_new) = (Vec::with_capacity(n), Vec::with_capacity(n));
        let mut in_order = Vec::with_capacity(n);
        for (&len, &width) in self.cache.lens.iter().zip(&self.widths) {
            for slot in 0..cap {
                let token = position(slot, len + width, cap) - len as i64;
                is_new.push(token >= 0);
                from.push(token.max(0) as i32);
                in_order.push(((len + slot) % cap) as i32);
            }
        }
        let shape = [self.widths.len() as i32, 1, cap as i32, 1];
        let turn = Turn {
            from: Array::from_slice(&from, &shape)?,
            is_new: Array::from_slice(&is_new, &shape)?,
            in_order: Array::from_slice(&in_order, &shape)?,
        };
        self.turns.insert(cap, turn.clone());
        Ok(turn)
    }

    /// Writes keys and values into the buffers of a layer, which get at least `capacity` slots.
    fn write(
        &mut self,
        layer: usize,
        k: &Fresh<'_>,
        v: Option<&Array>,
        slots: &Slots,
        capacity: usize,
    ) -> Result<Vec<Array>> {
        let kv = self.kv(layer)?;
        let in_place = kv.is_own() && kv.capacity() >= capacity;
        let arrays = kv.write(k, v, slots, capacity)?;
        if !in_place {
            self.lasts_until(0);
        }
        Ok(arrays)
    }

    /// The slots of this step's tokens in buffers of `cap` slots, in which positions wrap around.
    /// `apart`: whether keys and values have separate buffers; then kernels compute the slots.
    fn slots(&mut self, cap: usize, apart: bool) -> Result<Slots> {
        if self.by_position && apart {
            return Ok(Slots::Positions {
                offsets: self.offsets.clone(),
                ring: cap != usize::MAX,
            });
        }
        if let Some(places) = self.places.get(&cap) {
            return Ok(Slots::Each(places.clone()));
        }
        let places = self.host_places(cap)?;
        self.places.insert(cap, places.clone());
        Ok(Slots::Each(places))
    }

    /// The slots of this step's tokens in buffers of `cap` slots, in which positions wrap around.
    /// The host computes them.
    fn host_places(&self, cap: usize) -> Result<Places> {
        self.lasts_until(0);
        if let Some(len) = self.common_len()
            && len % cap + self.width <= cap
        {
            return Ok(Places::Range(len % cap));
        }
        let (mut rows, mut slots) = (Vec::new(), Vec::new());
        for (row, &len) in self.cache.lens.iter().enumerate() {
            rows.extend(std::iter::repeat_n(row as i32, self.width));
            slots.extend((len..len + self.width).map(|position| (position % cap) as i32));
        }
        let shape = [self.widths.len() as i32, self.width as i32];
        Ok(Places::Scattered {
            rows: Array::from_slice(&rows, &shape)?,
            slots: Array::from_slice(&slots, &shape)?,
        })
    }
}

/// Masks: the keys that a query sees.
impl Step<'_> {
    /// The mask for a window and layout, made once for each step.
    fn mask(&mut self, window: Option<usize>, layout: KeyLayout) -> Result<Mask> {
        if let Some(mask) = self.masks.get(&(window, layout)) {
            return Ok(mask.clone());
        }
        let made = self.make_mask(window, layout)?;
        self.masks.insert((window, layout), made.clone());
        Ok(made)
    }

    fn make_mask(&self, window: Option<usize>, layout: KeyLayout) -> Result<Mask> {
        let (l, common) = (self.width, self.common_len());
        if self.documents.is_some() {
            return self.packed_mask(window);
        }
        if let (KeyLayout::Straight { slots }, Some(len)) = (layout, common)
            // In decode, kernels read positions, so that steps of all lengths have one graph.
            && !(self.by_position && l == 1)
            && slots == len + l
            && window.is_none_or(|window| slots <= window)
        {
            return Ok(if l == 1 { Mask::None } else { Mask::Causal });
        }
        let slots = match layout {
            KeyLayout::Straight { .. } => KeySlots::Straight,
            KeyLayout::Wrapped { .. } => KeySlots::Ring,
            KeyLayout::Chunk { .. } => KeySlots::Latest,
        };
        let window = window.map(|window| i32::try_from(window).unwrap_or(i32::MAX));
        Ok(Mask::Positions(Positions::new(
            &self.offsets,
            window,
            slots,
        )))
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

    /// The mask of chunks, made once for each step.
    fn chunk_mask(
        &mut self,
        chunk: usize,
        window: Option<usize>,
        layout: KeyLayout,
    ) -> Result<Mask> {
        self.lasts_until(0);
        let key = (chunk, window, layout);
        if let Some(mask) = self.chunks.get(&key) {
            return Ok(mask.clone());
        }
        let lens = &self.cache.lens;
        let slots = match layout {
            KeyLayout::Straight { slots } => slots,
            KeyLayout::Wrapped { cap } => cap,
            KeyLayout::Chunk { cap } => cap + self.width,
        };
        let held = |row: usize, slot: usize| match layout {
            KeyLayout::Straight { .. } => slot as i64,
            KeyLayout::Wrapped { cap } => position(slot, lens[row] + self.width, cap),
            KeyLayout::Chunk { cap } => lens[row] as i64 + slot as i64 - cap as i64,
        };
        // Each document of a row has its own chunks.
        let first = |row: usize, token: usize| match &self.documents {
            Some(documents) => {
                let own = documents[row].get(token);
                documents[row].iter().position(|of| Some(of) == own)
            }
            None => Some(0),
        };
        let array = mask(lens.len(), self.width, slots, |row, query, slot| {
            let (q, k) = ((lens[row] + query) as i64, held(row, slot));
            // Padding belongs to no document. It sees all tokens before it, so that its softmax has terms.
            let Some(first) = first(row, query) else {
                return visible(q, k, window);
            };
            let of = |position: i64| (position - first as i64).div_euclid(chunk as i64);
            k >= first as i64 && visible(q, k, window) && of(q) == of(k)
        })?;
        let mask = Mask::Array(array);
        self.chunks.insert(key, mask.clone());
        Ok(mask)
    }

    /// The position of the key in each slot, in its document where rows hold several: `[B or 1, 1, 1, S]`.
    fn key_positions(&self, slots: usize) -> Result<Array> {
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

fn first(buffer: &Array, slots: usize) -> Result<Array> {
    buffer.slice_axis(2, 0, slots as i32)
}

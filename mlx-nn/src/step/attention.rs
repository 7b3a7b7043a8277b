//! The part of [`Step`] that layers with keys and values use: attention over the keys that their
//! queries see.

use mlx_core::fast;
use mlx_core::ops::create;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::Step;
use super::last::{self, Vectors};
use super::paged::{self, StepPages};
use crate::attend::{Attend, Keys, Paged, Seen, attend_to_pages, attend_to_tokens};
use crate::cache::pages::PAGE;
use crate::cache::state::refusal;

/// The vectors that a layer keeps for each position, and what the queries of a step may see.
#[derive(Clone, Debug)]
pub struct KeptVectors {
    /// The vectors of each row, `[B, S, D]`, where S is at least the length of the longest row. Rows have any vectors
    /// behind their own.
    pub vectors: Array,
    /// Which of its row's positions each query may see: Bool `[1, T, S]`.
    pub visible: Array,
}

/// Attention of layers of each kind.
impl Step<'_> {
    /// Writes keys and values `[1, K, T, D]` to the cache of layer `layer`, and computes the attention of the
    /// queries `[1, H, T, D]` over the positions that they see: `[1, H, T, Dv]`.
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
        let is_traced = q.is_traced() || k.is_traced() || v.is_traced();
        let arrays = match self.stores() && !is_traced {
            true => self.cache.pool.borrow().arrays_of(layer).to_vec(),
            false => self.kept(&k, Some(v))?,
        };
        self.shared.insert(layer, arrays);
        Ok(y)
    }

    /// The attention of queries `[1, H, T, D]` over the keys and values that layer `layer` shared in this step with
    /// [`attend_and_share`](Self::attend_and_share): `[1, H, T, Dv]`. Nothing is written.
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
    /// ([`LayerKind::Latent`](crate::LayerKind)): `latents` `[1, 1, T, D]` are the keys of all queries, and their first
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

    /// [`attend`](Self::attend), where queries see only the selection, if there is one.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend).
    pub fn attend_selected<'k>(
        &mut self,
        layer: usize,
        q: impl Into<Keys<'k>>,
        k: impl Into<Keys<'k>>,
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

/// What the drafters of a model read and write beside its layers.
impl Step<'_> {
    /// Runs `run`, in which [`attend_to_shared`](Self::attend_to_shared) of the states `held` reads what the cache holds
    /// of them. Each query sees the positions before its own. Nothing is written to these states, so the step need not
    /// cover them.
    ///
    /// # Errors
    /// The errors of `run`, a state is recurrent, or the cache stores nothing.
    pub fn before_tokens<T>(
        &mut self,
        held: &[usize],
        run: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if !self.stores() {
            return Err(refusal("a cache that stores nothing holds no keys to read"));
        }
        let pages = std::mem::take(&mut self.pages);
        let shared = std::mem::take(&mut self.shared);
        let mut prepare = || -> Result<()> {
            let before = self.axis.lens.subtract(1)?.maximum(0)?;
            for &state in held {
                let group = self.cache.pool.borrow().group_of(state)?;
                let mut own = paged::of_layer(self, state)?;
                own.paged.lens = before.clone();
                self.pages.insert(group, own);
                let arrays = self.cache.pool.borrow().arrays_of(state).to_vec();
                self.shared.insert(state, arrays);
            }
            Ok(())
        };
        let result = prepare().and_then(|()| run(self));
        (self.pages, self.shared) = (pages, shared);
        result
    }

    /// Writes keys and values `[1, K, T, D]` to the cache of layer `layer`, without attention.
    ///
    /// # Errors
    /// The shapes do not fit the cache, or the layer is recurrent.
    pub fn store<'k>(&mut self, layer: usize, k: impl Into<Keys<'k>>, v: &Array) -> Result<()> {
        let k = k.into();
        self.check_step(layer, &k)?;
        if self.stores() {
            let StepPages { paged, .. } = paged::of_layer(self, layer)?;
            self.write(layer, None, &k, Some(v), &paged)?;
        }
        Ok(())
    }

    /// [`attend`](Self::attend) for a block of tokens of each row: every token of the block sees all of them, and the
    /// row's positions before the block; with `reach` only those that are at most this many positions before its own.
    /// The layer keeps all positions.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend), or the cache stores nothing.
    pub fn attend_block<'k>(
        &mut self,
        layer: usize,
        reach: Option<i32>,
        q: &Array,
        k: impl Into<Keys<'k>>,
        v: &Array,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let k = k.into();
        self.check_step(layer, &k)?;
        if !self.stores() {
            return Err(refusal("a block attends only in a cache that stores keys"));
        }
        let StepPages { paged, .. } = paged::of_layer(self, layer)?;
        let (arrays, _) = self.write(layer, None, &k, Some(v), &paged)?;
        // Each token is a row of its own, at the position of the block's last token.
        let (mut rows, mut ends) = (Vec::new(), Vec::new());
        for (row, places) in self.axis.each().enumerate() {
            rows.extend(places.clone().map(|_| row as i32));
            ends.extend(places.clone().map(|_| places.len() as i32 - 1));
        }
        let tokens = rows.len() as i32;
        let rows = Array::from_slice(&rows, &[tokens])?;
        let starts: Vec<i32> = (0..=tokens).collect();
        let block = Paged {
            tables: paged.tables.take(&rows, 0)?,
            starts: Array::from_slice(&starts, &[tokens + 1])?,
            lens: paged
                .lens
                .take(&rows, 0)?
                .add(Array::from_slice(&ends, &[tokens])?)?,
            most: 1,
        };
        let selection = match reach {
            None => None,
            Some(reach) => {
                let columns = block.tables.dim(1)? * arrays[0].dim(2)?;
                let all: Vec<i32> = (0..columns).collect();
                let first = self.axis.positions.subtract(reach)?.expand_dims(-1)?;
                let all = Array::from_slice(&all, &[1, 1, columns])?;
                Some(all.greater_equal(&first)?)
            }
        };
        let seen = Seen {
            selection: selection.as_ref(),
            ..Seen::default()
        };
        let scheme = self.cache.options.quantized;
        attend_to_pages(q, &arrays, &block, &seen, scheme, options)
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
        let StepPages { paged, window } = paged::of_layer(self, layer)?;
        if q.is_traced() || k.is_traced() || v.is_some_and(Array::is_traced) {
            return self.attend_traced(layer, [q, k], v, seen, options);
        }
        // One operation makes the heads of queries and keys from projections, and stores the keys.
        let queries = match q {
            Keys::Projection(projection) => Some(projection),
            Keys::Heads(_) => None,
        };
        let (arrays, heads) = self.write(layer, queries, k, v, &paged)?;
        let heads = match heads {
            Some(heads) => heads,
            None => q.heads()?,
        };
        let (seen, scheme) = (Seen { window, ..seen }, self.cache.options.quantized);
        attend_to_pages(&heads, &arrays, &paged, &seen, scheme, options)
    }

    /// [`attend_to`](Self::attend_to) in a function that is differentiated or compiled, for rows that
    /// begin: gradients pass through the step's own keys and values, and not through pages.
    fn attend_traced(
        &mut self,
        layer: usize,
        [q, k]: [&Keys<'_>; 2],
        v: Option<&Array>,
        seen: Seen<'_>,
        options: &Attend<'_>,
    ) -> Result<Array> {
        self.refuse_held(layer)?;
        let StepPages { paged, window } = paged::of_layer(self, layer)?;
        let keys = Keys::Heads(k.heads()?);
        self.write(layer, None, &keys, v, &paged)?;
        let arrays = self.kept(&keys, v)?;
        let seen = Seen { window, ..seen };
        let rows = (&self.axis.starts, self.axis.longest());
        attend_to_tokens(&q.heads()?, &arrays, rows, &seen, options)
    }

    /// Refuses positions that the cache holds, in a function that is differentiated.
    pub(super) fn refuse_held(&self, layer: usize) -> Result<()> {
        match self.cache.lens.iter().any(|&len| len > 0) {
            true => Err(refusal(format!(
                "layer {layer}: gradients do not pass through positions that a cache holds; \
                 differentiate a step of an empty cache, or of one that stores nothing"
            ))),
            false => Ok(()),
        }
    }

    /// Writes keys and values `[1, K, T, D]` to pages. Returns the layer's arrays, and the heads of
    /// the queries if they were given.
    pub(super) fn write(
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

    /// The attention of queries `[1, H, T, D]` over the arrays of a layer.
    fn attend_over(
        &mut self,
        layer: usize,
        q: &Array,
        arrays: &[Array],
        seen: Seen<'_>,
        options: &Attend<'_>,
    ) -> Result<Array> {
        if self.stores() && !q.is_traced() {
            let StepPages { paged, window } = paged::of_layer(self, layer)?;
            let seen = Seen { window, ..seen };
            let scheme = self.cache.options.quantized;
            return attend_to_pages(q, arrays, &paged, &seen, scheme, options);
        }
        let window = self.window_of(layer)?;
        let seen = Seen { window, ..seen };
        let rows = (&self.axis.starts, self.axis.longest());
        attend_to_tokens(q, arrays, rows, &seen, options)
    }

    /// New keys and, unless values are a part of them, values of a step that stores nothing. If the
    /// cache is quantised, they are the F32 numbers that it would hold.
    fn kept(&self, k: &Keys<'_>, v: Option<&Array>) -> Result<Vec<Array>> {
        let scheme = self.cache.options.quantized;
        let kept = |new: &Array| match scheme {
            Some(scheme) => fast::unpack(&fast::pack(new, scheme)?, scheme, new.dtype()),
            None => Ok(new.clone()),
        };
        let keys = kept(&k.heads()?)?;
        match v {
            Some(v) => Ok(vec![keys, kept(v)?]),
            None => Ok(vec![keys]),
        }
    }

    /// The number of positions of a mask over the keys of layer `layer`. It is at least that of the longest row.
    pub(crate) fn columns(&mut self, layer: usize) -> Result<i32> {
        match self.stores() {
            true => Ok(paged::of_layer(self, layer)?.paged.tables.dim(1)? * PAGE as i32),
            false => Ok(self.axis.longest() as i32),
        }
    }

    /// Refuses keys of another step, and layers without keys.
    pub(super) fn check_step(&self, layer: usize, keys: &Keys<'_>) -> Result<()> {
        self.cache.pool.borrow().group_of(layer)?;
        let [one, _, tokens, _] = keys.shape()?;
        if one != 1 || tokens as usize != self.tokens() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "layer {layer}: keys {:?} in a step of {:?} tokens a row",
                    keys.shape()?,
                    self.axis.widths
                ),
            ));
        }
        Ok(())
    }

    pub(super) fn window_of(&self, layer: usize) -> Result<Option<usize>> {
        let pool = self.cache.pool.borrow();
        Ok(pool.groups()[pool.group_of(layer)?].window)
    }
}

/// Layers whose queries see only positions that were chosen.
impl Step<'_> {
    /// Writes one vector for each position, `[1, 1, T, D]`, to the cache of a layer that keeps such
    /// vectors.
    ///
    /// # Errors
    /// The shapes do not fit, or the layer has another kind of state.
    pub fn keep(&mut self, layer: usize, vectors: &Array) -> Result<KeptVectors> {
        let keys = Keys::from(vectors);
        self.check_step(layer, &keys)?;
        let rows = self.cache.lens.iter().zip(self.axis.each());
        let longest = rows.map(|(len, places)| len + places.len()).max();
        let longest = longest.unwrap_or(0);
        let (all, window) = if self.stores() {
            let StepPages { paged, window } = paged::of_layer(self, layer)?;
            let (arrays, _) = self.write(layer, None, &keys, None, &paged)?;
            let all = paged.gathered(&arrays[0])?.squeeze(1)?;
            // The graph of a decode step has the width of the table of pages, which rarely changes.
            match self.lasts.get() {
                0 => (all.slice_axis(1, 0, longest as i32)?, window),
                _ => (all, window),
            }
        } else {
            (self.by_row(vectors, longest)?, self.window_of(layer)?)
        };
        let at = create::arange(0.0, f64::from(all.dim(1)?), 1.0, DType::I32)?;
        let own = self.positions().expand_dims(-1)?;
        let visible = at.less_equal(&own)?;
        let visible = match window {
            Some(window) => visible.logical_and(&at.greater(&own.subtract(window as i32)?)?)?,
            None => visible,
        };
        Ok(KeptVectors {
            vectors: all,
            visible,
        })
    }

    /// Keeps one vector for each token, `[1, T, D]`, in layer `layer` of the kind
    /// [`LayerKind::LatentWindow`](crate::LayerKind), and returns the vectors of the last `count` positions of each
    /// token, its own last: `[1, T, count, D]`. Before the first position of a row there are any vectors of the row.
    ///
    /// # Errors
    /// The shapes do not fit, or the layer has another kind of state.
    pub fn last_vectors(&mut self, layer: usize, vectors: &Array, count: i32) -> Result<Array> {
        let (tokens, dim) = (self.tokens() as i32, vectors.dim(-1)?);
        let all = Vectors::keep(self, layer, vectors)?;
        let before = last::numbers(1 - count, count)?;
        let at = self.positions().squeeze(0)?.expand_dims(-1)?.add(before)?;
        let at = at.maximum(0)?;
        let rows = self.axis.each().enumerate();
        let rows: Vec<usize> = match self.axis.is_fixed() {
            true => {
                let rows = rows.filter(|(_, places)| !places.is_empty());
                rows.map(|(row, _)| row).collect()
            }
            false => rows
                .flat_map(|(row, places)| places.map(move |_| row))
                .collect(),
        };
        let at = at.reshape(&[rows.len() as i32, -1])?;
        let found = all.at(self, &rows, &at)?;
        found.reshape(&[1, tokens, count, dim])
    }

    /// The vectors `[1, 1, T, D]` of rows that hold nothing else: `[B, longest, D]`.
    fn by_row(&self, vectors: &Array, longest: usize) -> Result<Array> {
        let last = self.tokens() - 1;
        let rows = self.axis.each();
        let places = rows.flat_map(|places| {
            (places.start..places.start + longest).map(|place| place.min(last) as i32)
        });
        let places: Vec<i32> = places.collect();
        let shape = [self.axis.rows() as i32, longest as i32];
        let [_, _, _, d] = vectors.dims()?;
        let all = vectors.reshape(&[-1, d])?;
        all.take(&Array::from_slice(&places, &shape)?, 0)
    }

    /// The selection of the last layer that has chosen positions: Bool `[1, T, S]`; `None` if
    /// queries see all positions that they may see.
    pub fn selection(&self) -> Option<&Array> {
        self.selection.as_ref()
    }

    /// Sets the [`selection`](Self::selection) for this layer and the layers after it.
    pub fn set_selection(&mut self, selection: Option<Array>) {
        self.selection = selection;
    }
}

//! [`Step`]: one forward pass over the rows of a cache.
//!
//! A step computes write slots, rope offsets and masks from the rows' lengths once, and all layers share them.
//! Layers with keys and values call [`Step::attend`]; recurrent layers call [`Step::window`], [`Step::state`] and
//! [`Step::set_state`]. [`Step::commit`] says how many tokens each row keeps.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;

use mlx_core::fast::{self, Form, KeySlots, Mask, Op, Positions};
use mlx_core::{Array, Error, ErrorKind, Result};

use crate::attend::attend;
use crate::cache::ModelCache;
use crate::cache::kv::{Extent, KvCache, Places, Slots};
use crate::cache::state::{LayerState, refusal};

pub(crate) use self::growing::Turned;
pub use self::read::last_features;
pub use self::recurrent::{Rerun, StateAfter};
pub use self::repeat::Again;
use crate::attend::Fresh;
pub use crate::attend::{Attend, Keys};

mod behind;
mod biased;
mod chunked;
mod end;
mod growing;
mod latent;
mod packed;
mod places;
mod read;
mod recurrent;
pub(crate) mod repeat;
mod ring;
mod select;
mod shared;

/// The layout of the keys of an attention. Together with the window it determines the mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Layout {
    /// Slot j holds position j.
    Straight { slots: usize },
    /// Slot j of `cap` holds the last position congruent to j, including the positions of this step.
    Wrapped { cap: usize },
    /// The `cap` positions before this step in order, then this step's tokens.
    Chunk { cap: usize },
}

/// One forward pass: per-row widths, offsets and masks, and the states of the layers.
///
/// Dropping a step without [`commit`](Self::commit) leaves every row at its length before the step.
pub struct Step<'c> {
    cache: &'c mut ModelCache,
    /// The layer states that the step reads and writes.
    states: Range<usize>,
    /// The cache's own lengths, if the step has others.
    own_lens: Option<Vec<usize>>,
    widths: Vec<usize>,
    width: usize,
    offsets: Array,
    reach: Vec<usize>,
    masks: HashMap<(Option<usize>, Layout), Mask>,
    turns: HashMap<usize, ring::Turn>,
    /// Masks of chunked attention, by the size of a chunk.
    chunks: HashMap<(usize, Option<usize>, Layout), Mask>,
    /// The mask of layers with ALiBi, by the slots of their keys.
    biased: Option<(usize, Mask)>,
    /// Cosines and sines of ropes that depend on the length of a text.
    turned: RefCell<Vec<(growing::Key, Turned)>>,
    places: HashMap<usize, Places>,
    /// The positions that queries see in layers with a selection: Bool `[B, 1, L, S]`.
    selection: Option<Array>,
    /// Keys and values that later layers of this step read.
    shared: HashMap<usize, (Vec<Array>, Mask)>,
    /// Whether kernels derive slots and masks from positions, so that no index or mask array is made.
    by_position: bool,
    /// The document of each token of each row, if rows hold several documents.
    documents: Option<Vec<Vec<usize>>>,
    /// Which tokens are not padding, if a layer has asked.
    real: Option<Array>,
    /// The widths as an array, if a layer has asked.
    real_widths: Option<Array>,
    /// Whether only the features of each row's last token are read after the step.
    reads_last: bool,
    /// Whether the layer that runs computes only features that are read, once its tokens are mixed.
    narrows: bool,
    /// Whether the computation of layers starts before the whole graph is built.
    starts_early: bool,
    /// Up to which length of the longest row, its new token included, steps of the same widths have the same lazy graph; see
    /// [`repeat`]. 0: this step has a graph of its own.
    lasts: Cell<usize>,
    committed: bool,
}

impl<'c> Step<'c> {
    /// A step over the layer states `states`, in which row b has `lens[b]` positions, if lengths are given.
    pub(crate) fn new(
        cache: &'c mut ModelCache,
        states: Range<usize>,
        lens: Option<&[usize]>,
        widths: &[usize],
    ) -> Result<Self> {
        let width = widths.iter().copied().max().unwrap_or(0);
        if widths.len() != cache.rows() || width == 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "a step needs a width for each of {} rows and one token, given {widths:?}",
                    cache.rows()
                ),
            ));
        }
        if !cache.options.store && cache.lens.iter().any(|&len| len > 0) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a cache that stores nothing allows one step",
            ));
        }
        if lens.is_some_and(|lens| lens.len() != widths.len()) || states.end > cache.layers.len() {
            return Err(refusal(format!(
                "a step over states {states:?} of {}, with lengths {lens:?} of {} rows",
                cache.layers.len(),
                widths.len()
            )));
        }
        cache.last = None;
        let repeats = width == 1 && lens.is_none() && cache.options.store;
        let held = lens.unwrap_or(&cache.lens).to_vec();
        for (row, &own) in widths.iter().enumerate().filter(|_| lens.is_none()) {
            // A narrow step also writes padding into a ring; a wide one writes only the real tokens.
            let wrote = if width <= cache.options.slack + 1 {
                width
            } else {
                own
            };
            cache.written[row] = cache.written[row].max(cache.lens[row] + wrote);
        }
        let offsets: Vec<i32> = held.iter().map(|&len| len as i32).collect();
        let offsets = Array::from_slice(&offsets, &[offsets.len() as i32])?;
        let by_position = match fast::form(Op::Attention)? {
            Form::Plain => false,
            Form::Cpu => true,
            // GPUs have no kernel for packed keys.
            Form::Cuda => cache.options.quantized.is_none(),
        };
        let reach = (0..widths.len())
            .map(|row| cache.expected[row].max(held[row] + widths[row]))
            .collect();
        Ok(Self {
            states,
            own_lens: lens.map(|_| std::mem::replace(&mut cache.lens, held)),
            offsets,
            widths: widths.to_vec(),
            width,
            reach,
            masks: HashMap::new(),
            turns: HashMap::new(),
            chunks: HashMap::new(),
            biased: None,
            turned: RefCell::default(),
            places: HashMap::new(),
            selection: None,
            shared: HashMap::new(),
            by_position,
            documents: None,
            real: None,
            real_widths: None,
            reads_last: false,
            narrows: false,
            starts_early: false,
            lasts: Cell::new(if repeats { usize::MAX } else { 0 }),
            committed: false,
            cache,
        })
    }

    /// Whether the step reads and writes the state of layer `layer`.
    pub fn covers(&self, layer: usize) -> bool {
        self.states.contains(&layer)
    }

    /// The position of each row's first token: I32 `[B]`.
    pub fn offsets(&self) -> &Array {
        &self.offsets
    }

    /// The number of tokens each row brings.
    pub fn widths(&self) -> &[usize] {
        &self.widths
    }

    /// The width of the tokens' array: the widest row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Which rows will hold more than `most` positions; see [`ModelCache::expect`].
    pub fn beyond(&self, most: usize) -> Vec<bool> {
        let beyond: Vec<bool> = self.reach.iter().map(|&reach| reach > most).collect();
        match (beyond.contains(&true), beyond.contains(&false)) {
            (false, _) => self.lasts_until(most),
            (true, true) => self.lasts_until(0),
            // Rows only grow.
            (true, false) => {}
        }
        beyond
    }

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

    /// Whether later steps read what this one writes.
    pub fn stores(&self) -> bool {
        self.cache.options.store
    }

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

    /// The length that all rows share, if they do.
    fn common_len(&self) -> Option<usize> {
        let (first, rest) = self.cache.lens.split_first()?;
        rest.iter().all(|len| len == first).then_some(*first)
    }

    fn end(&self) -> usize {
        self.cache.lens.iter().max().copied().unwrap_or(0) + self.width
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
            return Ok((arrays, window, Layout::Straight { slots: self.width }));
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
        // Behind its last slot, the buffer grows.
        self.lasts_until(capacity);
        let arrays = self.write(layer, k, v, &slots, capacity)?;
        if self.by_position {
            // The kernel reads no slot behind a row's last position.
            let slots = arrays[0].dim(2)? as usize;
            return Ok((arrays, window, Layout::Straight { slots }));
        }
        self.lasts_until(0);
        let arrays = arrays.iter().map(|buffer| first(buffer, end));
        let arrays = arrays.collect::<Result<_>>()?;
        Ok((arrays, window, Layout::Straight { slots: end }))
    }

    /// The slots of this step's tokens in buffers of `cap` slots, in which positions wrap around. If keys and values
    /// are `apart`, kernels compute the slots.
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

    /// The mask for a window and layout, made once for each step.
    fn mask(&mut self, window: Option<usize>, layout: Layout) -> Result<Mask> {
        if let Some(mask) = self.masks.get(&(window, layout)) {
            return Ok(mask.clone());
        }
        let made = self.make_mask(window, layout)?;
        self.masks.insert((window, layout), made.clone());
        Ok(made)
    }

    fn make_mask(&self, window: Option<usize>, layout: Layout) -> Result<Mask> {
        let (l, common) = (self.width, self.common_len());
        if self.documents.is_some() {
            return self.packed_mask(window);
        }
        if let (Layout::Straight { slots }, Some(len)) = (layout, common)
            // In decode, kernels read positions, so that steps of all lengths have one graph.
            && !(self.by_position && l == 1)
            && slots == len + l
            && window.is_none_or(|window| slots <= window)
        {
            return Ok(if l == 1 { Mask::None } else { Mask::Causal });
        }
        let slots = match layout {
            Layout::Straight { .. } => KeySlots::Straight,
            Layout::Wrapped { .. } => KeySlots::Ring,
            Layout::Chunk { .. } => KeySlots::Behind,
        };
        let window = window.map(|window| i32::try_from(window).unwrap_or(i32::MAX));
        Ok(Mask::Positions(Positions::new(
            &self.offsets,
            window,
            slots,
        )))
    }
}

type Attended = (Vec<Array>, Option<usize>, Layout);

fn first(buffer: &Array, slots: usize) -> Result<Array> {
    buffer.slice_axis(2, 0, slots as i32)
}

//! [`Step`]: one forward pass over the rows of a cache.
//!
//! **A step is flat**: the tokens of all rows are one axis, row after row, without padding between
//! them. Layers see `[1, T, E]`. A step computes positions and tables of pages from the rows'
//! lengths once, and all layers share them. Layers with keys and values call [`Step::attend`];
//! recurrent layers call [`Step::convolve`], [`Step::gated_delta`] and [`Step::scan`], or
//! [`Step::window`], [`Step::state`] and [`Step::set_state`]. [`Step::commit`] sets how many tokens
//! each row keeps.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;

use mlx_core::fast::{self, Form, Op};
use mlx_core::{Array, Error, ErrorKind, Result, async_eval};

pub use self::attention::KeptVectors;
use self::axis::{Axis, AxisReads, features_at};
use self::paged::StepPages;
use self::recurrent::{Keeps, TokenSlots};
pub use self::recurrent::{StateAfter, Taps};
use self::repeated::Last;
pub use self::repeated::{RepeatedStep, StepGraph};
pub use crate::attend::{Attend, Keys};
use crate::cache::state::{Kept, LayerState, refusal};
use crate::cache::{ModelCache, in_layer};
use crate::residual::Residual;
use crate::rope::Growing;

mod attention;
pub(crate) mod axis;
pub(crate) mod blocks;
mod last;
mod paged;
pub(crate) mod recurrent;
pub(crate) mod repeated;

/// One forward pass: the rows of its tokens, their positions, and the states of the layers.
///
/// Dropping a step without [`commit`](Self::commit) leaves every row at its length before the step.
pub struct Step<'c> {
    cache: &'c mut ModelCache,
    /// The layer states that the step reads and writes.
    states: Range<usize>,
    /// The lengths of the cache's rows, if the step has other lengths.
    own_lens: Option<Vec<usize>>,
    axis: Axis,
    reach: Vec<usize>,
    /// Where tokens are written and read, by the group of layers.
    pages: HashMap<usize, StepPages>,
    /// Cosines and sines of ropes that depend on the length of a text.
    turned: RefCell<Vec<(Key, Turned)>>,
    /// The positions that queries see in layers with a selection: Bool `[1, T, S]`.
    selection: Option<Array>,
    /// The compressed blocks that layers share.
    pub(crate) shared_blocks: blocks::SharedBlocks,
    /// The keys and values of a step that stores nothing, if later layers read them.
    shared: HashMap<usize, Vec<Array>>,
    /// The places of the tokens whose features are read after the step, if not all are.
    reads: Option<Vec<usize>>,
    /// Whether the current layer computes only the features that are read, after its tokens are
    /// mixed.
    narrows: bool,
    /// Whether the computation of layers starts before the whole graph is built.
    starts_early: bool,
    /// What is known about the tokens that rows will keep.
    keeps: Keeps,
    /// Whether the step has set recurrent states that are new arrays.
    replaces_states: bool,
    /// Which arrays of the axis layers have read.
    has_read: Cell<AxisReads>,
    /// The length of the longest row, including its new token, up to which steps of the same widths
    /// have the same lazy graph; see [`repeated`]. 0: no later step has the graph of this step.
    lasts: Cell<usize>,
    /// Whether only steps of the same rows have the same lazy graph.
    needs_rows: Cell<bool>,
    committed: bool,
}

/// The key of a rope: the bits of its numbers.
type Key = [u64; 4];

/// The rotation of a step's tokens.
#[derive(Clone)]
pub(crate) struct Turned {
    /// `[1, 1, T, dims / 2]`
    pub cosines: Array,
    /// `[1, 1, T, dims / 2]`
    pub sines: Array,
    /// Bool `[1, 1, T, 1]`: the tokens whose base has grown; `None` if all have.
    pub grown: Option<Array>,
}

impl<'c> Step<'c> {
    /// A step over the layer states `states`, in which row b has `lens[b]` positions. `None`: the
    /// rows have the lengths of the cache. `least`: the least number of places of a row.
    pub(crate) fn new(
        cache: &'c mut ModelCache,
        states: Range<usize>,
        lens: Option<&[usize]>,
        widths: &[usize],
        least: usize,
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
        // A step of other layers with lengths of their own changes nothing that the last step has read.
        let is_beside =
            |last: &Last| states.end <= last.states.start || last.states.end <= states.start;
        let keeps_last = lens.is_some() && cache.last.as_ref().is_some_and(is_beside);
        if !keeps_last {
            cache.last = None;
        }
        let repeats = (width == 1 || least > 1) && cache.options.store;
        let repeats = repeats && fast::form(Op::Attention)? != Form::Plain;
        let held = lens.unwrap_or(&cache.lens).to_vec();
        let axis = Axis::new(&held, widths, least, cache.axis.as_ref(), &mut cache.starts)?;
        if !keeps_last {
            cache.axis = Some(axis.clone());
        }
        let reach = (0..widths.len())
            .map(|row| cache.expected[row].max(held[row] + widths[row]))
            .collect();
        let mut step = Self {
            states,
            own_lens: lens.map(|_| std::mem::replace(&mut cache.lens, held)),
            axis,
            reach,
            pages: HashMap::new(),
            turned: RefCell::default(),
            selection: None,
            shared_blocks: blocks::SharedBlocks::default(),
            shared: HashMap::new(),
            reads: None,
            narrows: false,
            starts_early: false,
            keeps: Keeps::Unknown,
            replaces_states: false,
            has_read: Cell::default(),
            lasts: Cell::new(if repeats { usize::MAX } else { 0 }),
            needs_rows: Cell::new(false),
            committed: false,
            cache,
        };
        paged::prepare(&mut step)?;
        Ok(step)
    }
}

/// The rows of the step.
impl Step<'_> {
    /// Whether the step reads and writes the state of layer `layer`.
    pub fn covers(&self, layer: usize) -> bool {
        self.states.contains(&layer)
    }

    /// Whether later steps read what this one writes.
    pub fn stores(&self) -> bool {
        self.cache.options.store
    }

    /// The places of the tokens whose features are read, if not all are.
    pub(crate) fn reads(&self) -> Option<&[usize]> {
        self.reads.as_deref()
    }

    /// The number of tokens that each row brings.
    pub fn widths(&self) -> &[usize] {
        &self.axis.widths
    }

    /// The number of places on the axis of tokens.
    pub fn tokens(&self) -> usize {
        self.axis.len()
    }

    /// The places of the tokens of each row on the axis of tokens. In a step of a
    /// [fixed shape](ModelCache::begin_slots) a row may have places behind its tokens.
    pub fn places(&self) -> impl Iterator<Item = Range<usize>> {
        self.axis.each()
    }

    /// Declares that every row keeps all of its tokens. Recurrent states are then written in place,
    /// where nothing else reads them: if features of the step are computed, it has to be
    /// [committed](Self::commit).
    pub fn keep_all(&mut self) {
        self.keeps = Keeps::All;
    }

    /// Declares that the step will be [committed](Self::commit) if features of it are computed, whatever
    /// its rows keep. The states after each token are then stored in slots of their own, and nothing is
    /// computed again for rows that keep a part. To be called before the layers run. Returns false, and
    /// changes nothing, if a layer cannot store them. The slots take the memory of the states of all rows
    /// for each token of the longest row but one: [`ModelCache::spare_state_bytes`].
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn keep_any(&mut self) -> Result<bool> {
        let (rows, places) = (self.axis.rows(), self.axis.longest());
        if !self.stores() {
            return Ok(false);
        }
        let layers = self.cache.layers[self.states.clone()].iter_mut();
        for state in layers.filter_map(LayerState::recurrent) {
            if !state.widen(rows, places)? {
                return Ok(false);
            }
        }
        let layers = self.cache.layers[self.states.clone()].iter_mut();
        let mut states = layers.filter_map(LayerState::recurrent);
        let Some(own) = states.next().and_then(|state| state.slots().cloned()) else {
            return Ok(true);
        };
        if !states.all(|state| state.slots() == Some(&own)) {
            return Ok(false);
        }
        self.keeps = Keeps::Any(TokenSlots::new(&self.axis, own)?);
        Ok(true)
    }

    /// Whether the step writes all that it stores in place: pages, and the states of recurrent layers
    /// after [`keep_all`](Self::keep_all). [`Replay`](mlx_core::Replay) computes no other arrays beside
    /// those that it is given. To be called after the layers have run.
    pub fn is_in_place(&self) -> bool {
        !self.replaces_states
    }

    /// The number of positions that each row held before the step: I32 `[B]`.
    pub fn offsets(&self) -> &Array {
        self.note_read(|reads| reads.lens = true);
        &self.axis.lens
    }

    /// The number of positions that each row held before the step.
    pub fn lens(&self) -> &[usize] {
        self.lasts_until(0);
        &self.cache.lens
    }

    /// Whether a row with tokens held no position before the step.
    pub fn begins(&self) -> bool {
        if self.own_lens.is_none() {
            self.lasts_until(0);
        }
        self.has_beginning()
    }

    fn has_beginning(&self) -> bool {
        let mut rows = self.cache.lens.iter().zip(&self.axis.widths);
        rows.any(|(&len, &width)| len == 0 && width > 0)
    }

    /// The position of each token in its row: I32 `[1, T]`.
    pub fn positions(&self) -> &Array {
        self.note_read(|reads| reads.positions = true);
        &self.axis.positions
    }

    fn note_read(&self, set: impl FnOnce(&mut AxisReads)) {
        let mut reads = self.has_read.get();
        set(&mut reads);
        self.has_read.set(reads);
    }

    /// The arrays of this step that differ from those of the [step before](RepeatedStep)
    /// with the same graph, as far as layers have read them: the offsets of rows, the positions of
    /// tokens, the slots of recurrent states, and tables of pages.
    pub fn inputs(&self) -> Vec<Array> {
        let mut inputs = self.axis.inputs(self.has_read.get());
        if let Keeps::Any(slots) = &self.keeps {
            inputs.extend(slots.inputs());
        }
        let tables = paged::tables(self);
        let tables = tables
            .iter()
            .map(|(group, _)| self.pages[group].paged.tables.clone());
        inputs.extend(tables);
        inputs
    }

    /// What later steps of the same shape need to have the lazy graph of this one, whose layers have
    /// run. `None`: none will have it, or the step covers recurrent states.
    pub fn graph(&self) -> Option<StepGraph> {
        StepGraph::of(self)
    }

    /// The [`inputs`](Self::inputs) that this step would have after its layers, which have not run, if it
    /// would have this graph; `None` otherwise. The computation of the other step can then be launched
    /// again in place of this one, which is committed or dropped as if its layers had run.
    ///
    /// # Errors
    /// No memory for the arrays.
    pub fn inputs_of(&self, graph: &StepGraph) -> Result<Option<Vec<Array>>> {
        graph.inputs(self)
    }

    /// Which rows will hold more than `most` positions; see [`ModelCache::expect`].
    pub fn beyond(&self, most: usize) -> Vec<bool> {
        let beyond: Vec<bool> = self.reach.iter().map(|&reach| reach > most).collect();
        match (beyond.contains(&true), beyond.contains(&false)) {
            (false, _) => self.lasts_until(most),
            (true, true) => self.lasts_until(0),
            // All rows are longer, and rows only grow, so later steps of these rows have the same answer.
            (true, false) => self.needs_rows.set(true),
        }
        beyond
    }

    /// Whether any row will hold more than `most` positions; see [`ModelCache::expect`].
    pub fn any_beyond(&self, most: usize) -> bool {
        let any = self.reach.iter().any(|&reach| reach > most);
        match any {
            // Rows only grow, so later steps of these rows have the same answer.
            true => self.needs_rows.set(true),
            false => self.lasts_until(most),
        }
        any
    }

    /// Runs a layer in which every row is one position shorter than in the other layers. Keys and
    /// values of position p need the token at p + 1, so the next step writes the last position. A
    /// row that begins has the same length in all layers.
    ///
    /// # Errors
    /// The errors of `run`.
    pub fn at_previous_position<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let lens: Vec<usize> = self
            .lens()
            .iter()
            .map(|len| len.saturating_sub(1))
            .collect();
        let axis = self.axis.again(&lens, &self.axis.widths)?;
        let lens = std::mem::replace(&mut self.cache.lens, lens);
        let axis = std::mem::replace(&mut self.axis, axis);
        let pages = std::mem::take(&mut self.pages);
        let result = paged::prepare(self).and_then(|()| run(self));
        (self.cache.lens, self.axis, self.pages) = (lens, axis, pages);
        result
    }

    /// The rotation of the step's tokens, computed once for all layers with this rope; `None` if no
    /// base has grown.
    pub(crate) fn turned(&self, rope: &Growing) -> Result<Option<Turned>> {
        if !self.beyond(rope.original()).contains(&true) {
            return Ok(None);
        }
        self.lasts_until(0);
        let key = rope.key();
        let held = self.turned.borrow();
        if let Some((_, made)) = held.iter().find(|(of, _)| *of == key) {
            return Ok(Some(made.clone()));
        }
        drop(held);
        let (mut cosines, mut sines, mut grown) = (Vec::new(), Vec::new(), Vec::new());
        for (row, (&begin, places)) in self.cache.lens.iter().zip(self.axis.each()).enumerate() {
            let mut frequencies = (0, Vec::new());
            for position in begin..begin + places.len() {
                let length = self.length_at(row, position);
                grown.push(length > rope.original());
                if frequencies.0 != length {
                    frequencies = (length, rope.frequencies(length));
                }
                for frequency in &frequencies.1 {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    cosines.push(cosine as f32);
                    sines.push(sine as f32);
                }
            }
        }
        let tokens = grown.len() as i32;
        let shape = [1, 1, tokens, rope.pairs() as i32];
        let made = Turned {
            cosines: Array::from_slice(&cosines, &shape)?,
            sines: Array::from_slice(&sines, &shape)?,
            grown: match grown.contains(&false) {
                true => Some(Array::from_slice(&grown, &[1, 1, tokens, 1])?),
                false => None,
            },
        };
        self.turned.borrow_mut().push((key, made.clone()));
        Ok(Some(made))
    }

    /// The rotation of `places` positions of each row, one every `stride`, with the frequencies of the row's last token:
    /// `[B, 1, places, dims / 2]`.
    pub(crate) fn turned_rows(
        &self,
        rope: &Growing,
        places: usize,
        stride: usize,
    ) -> Result<Turned> {
        self.lasts_until(0);
        let (mut cosines, mut sines, mut grown) = (Vec::new(), Vec::new(), Vec::new());
        for (row, (&begin, own)) in self.cache.lens.iter().zip(self.axis.each()).enumerate() {
            let length = self.length_at(row, (begin + own.len()).saturating_sub(1));
            grown.push(length > rope.original());
            let frequencies = rope.frequencies(length);
            for position in (0..places).map(|place| place * stride) {
                for frequency in &frequencies {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    cosines.push(cosine as f32);
                    sines.push(sine as f32);
                }
            }
        }
        let rows = grown.len() as i32;
        let shape = [rows, 1, places as i32, rope.pairs() as i32];
        Ok(Turned {
            cosines: Array::from_slice(&cosines, &shape)?,
            sines: Array::from_slice(&sines, &shape)?,
            grown: Some(Array::from_slice(&grown, &[rows, 1, 1, 1])?),
        })
    }

    /// The length of the text at the time when a position is computed: the whole prompt for its tokens, and one more
    /// for each token after it. In a row without an expected length each step counts as a prompt.
    fn length_at(&self, row: usize, position: usize) -> usize {
        match self.cache.expected[row] {
            0 => self.reach[row].max(position + 1),
            expected => expected.max(position + 1),
        }
    }

    /// A Bool for each token, `[1, 1, T, 1]`, from one for each row.
    ///
    /// # Errors
    /// No memory for a handle.
    pub(crate) fn by_token(&self, rows: &[bool]) -> Result<Array> {
        let each = self.axis.each().zip(rows);
        let each: Vec<bool> = each
            .flat_map(|(places, &row)| places.map(move |_| row))
            .collect();
        Array::from_slice(&each, &[1, 1, each.len() as i32, 1])
    }

    /// Limits the steps that can [repeat](RepeatedStep) this one to those after which no row is longer than `most`.
    pub(super) fn lasts_until(&self, most: usize) {
        self.lasts.set(self.lasts.get().min(most));
    }
}

/// The features that a step computes, and the time of the computation. Positions whose features are
/// not read after the step need only keys, values and states.
impl Step<'_> {
    /// Declares that only the features of each row's last token are read after the step. A model
    /// then returns `[1, R, E]` for R rows with tokens.
    pub fn read_last(&mut self) {
        let last = self
            .axis
            .each()
            .map(|places| usize::from(!places.is_empty()));
        let last: Vec<usize> = last.collect();
        self.read_ends(&last);
    }

    /// Declares that only the features of the last `ends[b]` tokens of row b are read after the
    /// step, of all of its tokens if it has fewer. A model then returns `[1, T', E]` for these T'
    /// tokens, row after row.
    pub fn read_ends(&mut self, ends: &[usize]) {
        let rows = self.axis.each().zip(ends);
        let read: Vec<usize> = rows
            .flat_map(|(places, &end)| places.end - end.min(places.len())..places.end)
            .collect();
        self.reads = (read.len() < self.tokens()).then_some(read);
    }

    /// Starts the computation of layers while the graph of later layers is built. For many tokens
    /// on a GPU, which would otherwise be idle until the whole graph is built. Nothing of the step
    /// may be differentiated or compiled.
    pub fn start_early(&mut self) {
        self.starts_early = true;
    }

    /// After [`start_early`](Self::start_early), starts the computation of `x`, the residual stream
    /// after a layer, for every fourth layer. `left`: the number of layers after it. The features
    /// after the last layer stay lazy, because they may not be read.
    ///
    /// # Errors
    /// The errors of [`async_eval`].
    pub fn start(&self, x: &Residual, left: usize) -> Result<()> {
        match self.starts_early && left > 0 && left.is_multiple_of(4) {
            true => async_eval(x.arrays()),
            false => Ok(()),
        }
    }

    /// Runs the last layer. Returns those of its features that are read: `[1, T, S]`, or `[1, T', S]` after
    /// [`read_last`](Self::read_last) or [`read_ends`](Self::read_ends).
    ///
    /// # Errors
    /// The errors of `run`, or the features have another shape.
    pub fn last_layer(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<Residual>,
    ) -> Result<Residual> {
        self.narrows = self.reads.is_some();
        let result = run(self);
        self.narrows = false;
        result?.map(|features| self.read(features))
    }

    /// The features `[1, T, ..]` that the rest of a layer has to compute. A layer calls it when its
    /// tokens are mixed. In the [last layer](Self::last_layer) they are the features that are read,
    /// and in other layers all.
    ///
    /// # Errors
    /// The features have another shape.
    pub fn narrow<const N: usize>(&self, features: [&Array; N]) -> Result<[Array; N]> {
        let mut narrowed = features.map(Array::clone);
        if self.narrows {
            for features in &mut narrowed {
                *features = self.read(features)?;
            }
        }
        Ok(narrowed)
    }

    /// The part of the features `[1, T, ..]` that is read: all, or `[1, T', ..]` after
    /// [`read_last`](Self::read_last) or [`read_ends`](Self::read_ends). Features `[1, T', ..]` are
    /// returned unchanged.
    ///
    /// # Errors
    /// The features have another shape.
    pub fn read(&self, features: &Array) -> Result<Array> {
        match &self.reads {
            Some(places) if features.dim(1)? == self.tokens() as i32 => {
                features_at(features, places)
            }
            _ => Ok(features.clone()),
        }
    }
}

/// The end of a step: its rows keep some of their tokens, or it is dropped.
impl Step<'_> {
    /// Ends the step: row b keeps its first `keep[b]` tokens.
    ///
    /// # Errors
    /// A row would keep more tokens than it brought, or only a part of a step that is wider than
    /// the slack of a ring or recurrent layer, or a recurrent layer has not set its state. The rows
    /// are then as before the step.
    pub fn commit(mut self, keep: &[usize]) -> Result<()> {
        let widths = &self.axis.widths;
        if keep.len() != widths.len() || keep.iter().zip(widths).any(|(keep, width)| keep > width) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("rows of {widths:?} tokens cannot keep {keep:?}"),
            ));
        }
        let slots = match &self.keeps {
            Keeps::Any(of) => Some(of.after(keep)),
            Keeps::All | Keeps::Unknown => None,
        };
        let kept = Kept {
            keep,
            axis: &self.axis,
            slack: self.cache.options.slack,
            slots: slots.as_ref(),
        };
        if self.cache.options.store {
            for index in self.states.clone() {
                if let LayerState::Recurrent(state) = &mut self.cache.layers[index] {
                    let prepared = state.prepare(&kept);
                    prepared.map_err(|error| in_layer(index, &error))?;
                }
            }
        }
        self.committed = true;
        let is_whole = kept.is_whole();
        // What rows keep of a padded step changes no graph.
        let has_graph = is_whole || self.axis.fixed_places() > 1;
        let last = match has_graph && self.own_lens.is_none() {
            true => Some(Last {
                places: self.axis.fixed_places(),
                by_token: matches!(self.keeps, Keeps::Any(_)),
                states: self.states.clone(),
                until: self.lasts.get(),
                needs_rows: self.needs_rows.get(),
                reads: self.has_read.get(),
                moved: 0,
                tables: paged::tables(&self),
            }),
            false => None,
        };
        self.end_recurrent(true);
        if self.own_lens.is_none() {
            let moved = self.cache.moved(self.states.clone());
            self.cache.last = last.map(|last| Last { moved, ..last });
        }
        for (len, keep) in self.cache.lens.iter_mut().zip(keep) {
            *len += keep;
        }
        paged::pass_windows(&mut self);
        Ok(())
    }

    /// [`commit`](Self::commit) of every token.
    ///
    /// # Errors
    /// A recurrent layer has not set its state. The rows are then as before the step.
    pub fn commit_all(self) -> Result<()> {
        let keep = self.axis.widths.clone();
        self.commit(&keep)
    }
}

impl Step<'_> {
    fn end_recurrent(&mut self, commit: bool) {
        let layers = self.cache.layers[self.states.clone()].iter_mut();
        for state in layers.filter_map(LayerState::recurrent) {
            state.end_step(commit);
        }
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.end_recurrent(false);
        }
        if let Some(lens) = self.own_lens.take() {
            self.cache.lens = lens;
        }
        // Pages of tokens that are not kept.
        let rows = self.cache.pages.iter_mut().zip(&self.cache.lens);
        for (pages, &len) in rows {
            pages.iter_mut().for_each(|pages| pages.truncate(len));
        }
    }
}

/// The features of the last token of each row that has tokens: `[1, T, ..] -> [1, R, ..]`, where row
/// b has `widths[b]` of the T tokens.
///
/// # Errors
/// The array has fewer than two axes, or fewer tokens.
pub fn last_features(features: &Array, widths: &[usize]) -> Result<Array> {
    let mut end = 0;
    let rows = widths.iter().filter(|&&width| width > 0);
    let last = rows.map(|width| {
        end += width;
        end - 1
    });
    features_at(features, &last.collect::<Vec<usize>>())
}

//! A state of a fixed size for each row: convolution windows and recurrence matrices of one layer.
//!
//! A step reads the state at its start and sets the state after its tokens. The arrays are replaced
//! when the step commits, so that a step that is dropped has changed nothing. A step of which all
//! tokens are kept ([`Step::keep_all`](crate::Step::keep_all)) writes the arrays in place, unless
//! other caches share them. A row of length 0 has the zero state, whatever the arrays hold at its
//! index.
//!
//! The arrays can have more slots than there are rows. A step then stores the state after each of its
//! tokens, and the number of tokens that a row keeps only sets which slot is its own
//! ([`Step::keep_any`](crate::Step::keep_any)).
//!
//! A lazy array that reads the arrays has to be queued before they are written in place: a
//! [`Store`] knows its readers.
//!
//! A recurrence cannot be computed backwards. A row can be shortened to the lengths that were
//! [recorded](super::ModelCache::record) and to 0.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use mlx_core::{Array, DType, Error, ErrorKind, Result, async_eval, fast, inplace, ops::concat};

use super::kind::{RecurrentShape, StatePart};
use super::state::{Kept, refusal};
use crate::step::recurrent::Rerun;

/// The arrays that a layer set in a step for one part of its state.
#[derive(Clone)]
pub(crate) enum Handed {
    /// The window before the step, `[B, len, width]`, the step's inputs, `[1, T, width]`, and the
    /// window after all of them, if it is computed.
    Inputs {
        before: Array,
        inputs: Array,
        end: Option<Array>,
    },
    /// The state before the step, `[B, …]`, and the state after each of its tokens, `[T, …]`.
    Each { before: Array, states: Array },
    /// The state before the step, and the state after each row's last token: `[B, …]`.
    End { before: Array, state: Array },
    /// The state after each row's last token, and a function that computes the state after fewer tokens.
    Rerun { end: Array, rerun: Rc<Rerun> },
    /// The stored state, which the step writes in place.
    InPlace(Array),
    /// The same, where each token of a row has a slot.
    Slots(Array),
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inputs { .. } => "Inputs",
            Self::Each { .. } => "Each",
            Self::End { .. } => "End",
            Self::Rerun { .. } => "Rerun",
            Self::InPlace(_) => "InPlace",
            Self::Slots(_) => "Slots",
        })
    }
}

/// The arrays of all rows of one layer.
#[derive(Debug)]
pub(crate) struct Store {
    /// One array for each part, `[slots, …]`.
    arrays: Vec<Array>,
    /// The slot of each row, if there are more slots than rows; `None`: row b has slot b.
    slots: Option<Rc<[usize]>>,
    /// Lazy arrays that read them.
    readers: RefCell<Vec<Array>>,
    /// Whether something else may read them that is not among `readers`.
    is_lent: Cell<bool>,
}

impl Store {
    fn new(arrays: Vec<Array>) -> Rc<Self> {
        Self::with(arrays, None)
    }

    fn with(arrays: Vec<Array>, slots: Option<Rc<[usize]>>) -> Rc<Self> {
        Rc::new(Self {
            arrays,
            slots,
            readers: RefCell::default(),
            is_lent: Cell::new(false),
        })
    }

    fn slot(&self, row: usize) -> usize {
        self.slots.as_ref().map_or(row, |slots| slots[row])
    }

    /// The arrays of all rows, `[B, …]`.
    fn by_row(&self) -> Result<Vec<Array>> {
        let Some(slots) = &self.slots else {
            return Ok(self.arrays.clone());
        };
        let slots: Vec<i32> = slots.iter().map(|&slot| slot as i32).collect();
        let slots = Array::from_slice(&slots, &[slots.len() as i32])?;
        let arrays = self.arrays.iter().map(|array| array.take(&slots, 0));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        self.note_readers(&arrays);
        Ok(arrays)
    }

    /// Notes arrays that were made of these and may not be computed yet.
    fn note_readers(&self, readers: &[Array]) {
        let mut held = self.readers.borrow_mut();
        held.retain(is_pending);
        held.extend(readers.iter().filter(|array| is_pending(array)).cloned());
    }
}

/// The arrays of all rows after a step, and the slots of the rows.
type Next = (Vec<Array>, Option<Rc<[usize]>>);

/// Whether an array waits for its computation.
fn is_pending(array: &Array) -> bool {
    !array.is_computed() && !array.is_lost()
}

/// The recurrent state of one layer.
#[derive(Clone, Debug)]
pub(crate) struct RecurrentCache {
    shape: RecurrentShape,
    /// None before the first step.
    store: Option<Rc<Store>>,
    /// How often the arrays were replaced by others.
    moved: u64,
    /// For each part, the arrays that were set in the current step.
    handed: Vec<Option<Handed>>,
    /// The arrays after the step, which are stored on commit, and the slots of rows in them.
    next: Option<Next>,
    /// The states of each row at recorded lengths, `[1, …]` for each part.
    recorded: Vec<BTreeMap<usize, Rc<[Array]>>>,
}

impl RecurrentCache {
    pub(crate) fn new(shape: RecurrentShape, rows: usize) -> Self {
        Self {
            shape,
            store: None,
            moved: 0,
            handed: vec![None; shape.parts().count()],
            next: None,
            recorded: vec![BTreeMap::new(); rows],
        }
    }

    /// A copy of the layer with other rows.
    fn with(&self, store: Option<Rc<Store>>, recorded: Vec<BTreeMap<usize, Rc<[Array]>>>) -> Self {
        Self {
            store,
            moved: self.moved + 1,
            recorded,
            ..Self::new(self.shape, 0)
        }
    }

    /// Replaces the arrays of all rows.
    fn replace(&mut self, store: Rc<Store>) {
        self.store = Some(store);
        self.moved += 1;
    }

    /// A number that differs after the arrays were replaced by others.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether the arrays may be written in place, after [`readers`](Self::readers) are queued.
    pub(crate) fn is_own(&self) -> bool {
        let own = |store: &Rc<Store>| Rc::strong_count(store) == 1 && !store.is_lent.get();
        self.store.as_ref().is_some_and(own)
    }

    /// The lazy arrays that read the state. They have to be queued before the state is written in
    /// place.
    pub(crate) fn take_readers(&self) -> Vec<Array> {
        let readers = self.store.iter().map(|store| store.readers.take());
        readers.flatten().filter(is_pending).collect()
    }

    /// [`RecurrentShape::can_rerun`]
    pub(crate) fn can_rerun(&self) -> bool {
        self.shape.can_rerun()
    }

    /// Part number `part`.
    pub(crate) fn part(&self, part: usize) -> Result<StatePart> {
        let parts = self.handed.len();
        let found = self.shape.parts().nth(part).copied();
        found.ok_or_else(|| refusal(format!("there is no state array {part} of {parts}")))
    }

    /// The stored state of part number `part`, `[B, …]`. The caller may keep lazy arrays that read it.
    pub(crate) fn lend(&mut self, part: usize) -> Result<Option<&Array>> {
        self.narrow()?;
        Ok(self.store.as_ref().map(|store| {
            store.is_lent.set(true);
            &store.arrays[part]
        }))
    }

    /// Frees the slots that no row has.
    pub(crate) fn narrow(&mut self) -> Result<()> {
        if let Some(store) = self.store.clone().filter(|store| store.slots.is_some()) {
            self.replace(Store::new(store.by_row()?));
        }
        Ok(())
    }

    /// Gives each of `rows` rows at least `places` slots of its own: row b has the slots b, b + rows, and
    /// so on. The arrays can then be written in place. Returns false before the first step, and for layers
    /// that cannot store the state after each token.
    pub(crate) fn widen(&mut self, rows: usize, places: usize) -> Result<bool> {
        let Some(store) = self.store.clone().filter(|_| self.shape.has_slots()) else {
            return Ok(false);
        };
        let has_room = store.arrays[0].shape()[0] as usize >= rows * places;
        if has_room
            && store.slots.is_some()
            && !store.is_lent.get()
            && Rc::strong_count(&store) == 2
        {
            return Ok(true);
        }
        let own = store.by_row()?;
        let parts = self.shape.parts().zip(&own);
        let wide = parts.map(|(part, own)| {
            let spare = zero_state(part, rows * (places - 1), own.dtype())?;
            concat(&[own, &spare], 0)
        });
        let wide = wide.collect::<Result<Vec<_>>>()?;
        // Queued before the step, whose graph then stays the same.
        async_eval(&wide)?;
        self.replace(Store::with(wide, Some((0..rows).collect())));
        Ok(true)
    }

    /// Sets the slot of each row, after a step that has written them.
    pub(crate) fn set_slots(&mut self, slots: &Rc<[usize]>) {
        if let Some(store) = self.store.take() {
            self.store = Some(Store::with(store.arrays.clone(), Some(slots.clone())));
        }
    }

    /// The slot of each row, if there are more slots than rows.
    pub(crate) fn slots(&self) -> Option<&Rc<[usize]>> {
        self.store.as_ref()?.slots.as_ref()
    }

    /// Bytes of the slots that no row has.
    pub(crate) fn spare_bytes(&self) -> usize {
        let Some((store, rows)) = self
            .store
            .as_ref()
            .zip(self.slots().map(|slots| slots.len()))
        else {
            return 0;
        };
        let spare = |array: &Array| {
            let slots = array.shape()[0] as usize;
            array.nbytes() / slots.max(1) * (slots - rows)
        };
        store.arrays.iter().map(spare).sum()
    }

    /// The stored state of part number `part`, `[B, …]`, to be written in place, if it
    /// [may](Self::is_own) be.
    pub(crate) fn own(&self, part: usize) -> Result<Option<Array>> {
        if !self.is_own() {
            return Ok(None);
        }
        let readers = self.take_readers();
        if !readers.is_empty() {
            async_eval(&readers)?;
        }
        Ok(self.store.as_ref().map(|store| store.arrays[part].clone()))
    }

    /// Stores the arrays that the current step sets for part number `part`.
    pub(crate) fn hand_over(&mut self, part: usize, handed: Handed) {
        self.handed[part] = Some(handed);
    }

    /// The lengths that row `row` can be shortened to, apart from 0.
    pub(crate) fn lengths(&self, row: usize) -> impl Iterator<Item = usize> {
        self.recorded[row].keys().copied()
    }

    /// The arrays of row `row` at a recorded length.
    pub(crate) fn recorded(&self, row: usize, len: usize) -> Option<&[Array]> {
        self.recorded[row].get(&len).map(|arrays| &**arrays)
    }

    /// The arrays of row `row`, of `held` positions, at length `len`: a copy of the present ones, or those that
    /// were recorded.
    pub(crate) fn at(&self, row: usize, held: usize, len: usize) -> Result<Option<Rc<[Array]>>> {
        match &self.store {
            Some(store) if len == held => Self::row(store, row, true).map(Some),
            _ => Ok(self.recorded[row].get(&len).cloned()),
        }
    }

    /// Records the arrays of row `row` at length `len`, which are of such a layer.
    pub(crate) fn keep(&mut self, row: usize, len: usize, arrays: Rc<[Array]>) {
        self.recorded[row].insert(len, arrays);
    }

    /// Drops the recorded lengths of all rows.
    pub(crate) fn clear_recorded(&mut self) {
        self.recorded.iter_mut().for_each(BTreeMap::clear);
    }

    /// Sets the arrays of row `row` at length `len`, from a file or another cache.
    pub(crate) fn restore(&mut self, row: usize, len: usize, arrays: Vec<Array>) -> Result<()> {
        self.check(&arrays)?;
        self.recorded[row].insert(len, arrays.into());
        Ok(())
    }

    /// The arrays of row `row` of a store, copied or as views.
    fn row(store: &Store, row: usize, copies: bool) -> Result<Rc<[Array]>> {
        let row = store.slot(row) as i32;
        let part = |array: &Array| match copies {
            true => array.take(&Array::from_slice(&[row], &[1])?, 0),
            false => array.slice_axis(0, row, row + 1),
        };
        let parts: Rc<[Array]> = store.arrays.iter().map(part).collect::<Result<_>>()?;
        store.note_readers(&parts);
        Ok(parts)
    }

    /// The arrays of row `row`, `[1, …]`, as views. None before the first step.
    pub(crate) fn views(&self, row: usize) -> Result<Vec<Array>> {
        match &self.store {
            Some(store) => Ok(Self::row(store, row, false)?.to_vec()),
            None => Ok(Vec::new()),
        }
    }

    /// Writes `new`, `[1, …]` for each part, over row `row` of `rows`.
    fn write_row(&mut self, row: usize, rows: usize, new: &[Array]) -> Result<()> {
        let is_own = self.is_own();
        let mut written = Vec::with_capacity(new.len());
        for ((at, part), new) in self.shape.parts().enumerate().zip(new) {
            let held = match is_own {
                true => self.own(at)?,
                false => None,
            };
            let slot = self.store.as_ref().map_or(row, |store| store.slot(row)) as i32;
            let (mut starts, mut stops) = (vec![0; new.ndim()], part.shape(rows));
            (starts[0], stops[0]) = (slot, slot + 1);
            written.push(match (held, &self.store) {
                (Some(array), _) => inplace::slice_update_in_place(array, new, &starts, &stops)?,
                (None, Some(store)) => store.arrays[at].slice_update(new, &starts, &stops)?,
                (None, None) => {
                    zero_state(part, rows, new.dtype())?.slice_update(new, &starts, &stops)?
                }
            });
        }
        let slots = self.store.as_ref().and_then(|store| store.slots.clone());
        let store = Store::with(written, slots);
        if is_own {
            self.store = Some(store);
            return Ok(());
        }
        // An update of all rows is the new array itself.
        store.is_lent.set(rows == 1);
        if let Some(before) = &self.store {
            before.note_readers(&store.arrays);
        }
        self.replace(store);
        Ok(())
    }

    /// Refuses arrays that are not the arrays of one row.
    fn check(&self, arrays: &[Array]) -> Result<()> {
        if arrays.len() != self.handed.len() {
            let (n, wanted) = (arrays.len(), self.handed.len());
            return Err(refusal(format!(
                "a state of {n} arrays where {wanted} belong"
            )));
        }
        for (part, array) in self.shape.parts().zip(arrays) {
            let fits = match part {
                StatePart::Window { .. } => true,
                StatePart::Carry { dtype, .. } => array.dtype() == *dtype,
            };
            if !fits || array.shape() != part.shape(1) {
                return Err(refusal(format!(
                    "{} is {} {:?}, expected shape {:?}",
                    part.name(),
                    array.dtype(),
                    array.shape(),
                    part.shape(1)
                )));
            }
        }
        Ok(())
    }

    /// A part of the state after the step commits.
    fn after(part: &StatePart, handed: Option<&Handed>, kept: &Kept<'_>) -> Result<Array> {
        match handed {
            None => Err(Error::new(
                ErrorKind::Invalid,
                format!("the step has not handed over its {}", part.name()),
            )),
            Some(Handed::Inputs { end: Some(end), .. }) if kept.is_at_end() => Ok(end.clone()),
            Some(Handed::Inputs { before, inputs, .. }) => last_inputs(before, inputs, kept),
            Some(Handed::Each { before, states }) => {
                let after = states.take(&token_before(kept)?, 0)?;
                keep_some(before, after, kept)
            }
            Some(Handed::Rerun { end, rerun }) => {
                if kept.is_at_end() {
                    return Ok(end.clone());
                }
                rerun(kept.axis, kept.keep)
            }
            Some(Handed::Slots(end)) => Ok(end.clone()),
            Some(Handed::InPlace(end)) => match kept.is_at_end() {
                true => Ok(end.clone()),
                false => Err(kept.not_whole()),
            },
            Some(Handed::End { before, state }) => {
                let is_part = |(&keep, &width): (&usize, &usize)| keep != 0 && keep != width;
                if kept.axis.is_padded() || kept.keep.iter().zip(&kept.axis.widths).any(is_part) {
                    return Err(kept.too_wide());
                }
                keep_some(before, state.clone(), kept)
            }
        }
    }
}

/// The last inputs of each row after it has kept its tokens, `[B, len, width]`, of the window before
/// them, `[B, len, width]`, and the step's inputs, `[1, T, width]`.
fn last_inputs(before: &Array, inputs: &Array, kept: &Kept<'_>) -> Result<Array> {
    let [rows, len, width] = before.dims()?;
    // A copy, because a view would keep the inputs of a whole prompt alive.
    let each = kept.axis.each().zip(kept.keep).enumerate();
    let places: Vec<i32> = each
        .flat_map(|(row, (places, &keep))| {
            let (row, first, keep) = (row as i32, places.start as i32, keep as i32);
            (keep - len..keep).map(move |at| match at < 0 {
                true => row * len + len + at,
                false => rows * len + first + at,
            })
        })
        .collect();
    let places = Array::from_slice(&places, &[rows, len])?;
    let all = [
        before.reshape(&[rows * len, width])?,
        inputs.reshape(&[-1, width])?,
    ];
    concat(&all, 0)?.take(&places, 0)
}

/// For each row, the place of its last kept token; any place if a row keeps none.
fn token_before(kept: &Kept<'_>) -> Result<Array> {
    let rows = kept.axis.each().zip(kept.keep);
    let places: Vec<i32> = rows
        .map(|(places, &keep)| (places.start + keep).saturating_sub(1) as i32)
        .collect();
    Array::from_slice(&places, &[places.len() as i32])
}

/// `after` for rows that keep some of their tokens, `before` for the others.
fn keep_some(before: &Array, after: Array, kept: &Kept<'_>) -> Result<Array> {
    if kept.keep.iter().all(|&keep| keep > 0) {
        return Ok(after);
    }
    let some: Vec<bool> = kept.keep.iter().map(|&keep| keep > 0).collect();
    by_row(&some, before.ndim())?.select(&after, before)
}

/// A Bool for each row, in a shape that broadcasts over arrays of `ndim` dimensions.
pub(crate) fn by_row(rows: &[bool], ndim: usize) -> Result<Array> {
    let mut shape = vec![1; ndim];
    shape[0] = rows.len() as i32;
    Array::from_slice(rows, &shape)
}

/// The zero state of `rows` rows.
pub(crate) fn zero_state(part: &StatePart, rows: usize, dtype: DType) -> Result<Array> {
    fast::blank(&part.shape(rows), dtype)
}

/// Rows and steps. Rows are numbered from 0; the [`ModelCache`](super::ModelCache) holds their
/// lengths.
impl RecurrentCache {
    /// Builds the state after a step of which the rows keep the tokens in `kept`. The state takes
    /// effect with [`end_step`](Self::end_step).
    pub(crate) fn prepare(&mut self, kept: &Kept<'_>) -> Result<()> {
        let parts = self.shape.parts().zip(&self.handed);
        let after = parts.map(|(part, handed)| Self::after(part, handed.as_ref(), kept));
        let after = after.collect::<Result<_>>()?;
        let has = |of: fn(&Handed) -> bool| self.handed.iter().flatten().any(of);
        let slots = if has(|handed| matches!(handed, Handed::Slots(_))) {
            kept.slots
        } else if has(|handed| matches!(handed, Handed::InPlace(_))) {
            self.slots()
        } else {
            None
        };
        self.next = Some((after, slots.cloned()));
        Ok(())
    }

    /// Ends the step: adopts the prepared state, or drops it.
    pub(crate) fn end_step(&mut self, commit: bool) {
        let is_written =
            |handed: &Option<Handed>| matches!(handed, Some(Handed::InPlace(_) | Handed::Slots(_)));
        let is_in_place = self.handed.iter().all(is_written);
        self.handed.fill(None);
        if let Some((next, slots)) = self.next.take()
            && commit
        {
            let store = Store::with(next, slots);
            match is_in_place {
                true => self.store = Some(store),
                false => self.replace(store),
            }
        }
    }

    /// Whether row `row` can be shortened to `len` positions, fewer than it holds.
    pub(crate) fn can_rewind(&self, row: usize, len: usize) -> bool {
        len == 0 || self.recorded[row].contains_key(&len)
    }

    /// Shortens row `row` to `len` positions, which [`can_rewind`](Self::can_rewind) has allowed.
    pub(crate) fn truncate(&mut self, row: usize, len: usize) -> Result<()> {
        self.recorded[row].split_off(&(len + 1));
        let Some(at_len) = self.recorded[row].get(&len) else {
            return Ok(());
        };
        if self.store.is_none() {
            return Err(refusal("a recorded state belongs to no row"));
        }
        let (at_len, rows) = (at_len.clone(), self.recorded.len());
        self.write_row(row, rows, &at_len)
    }

    /// Records the present length of row `row`, so that the row can be shortened to it later.
    pub(crate) fn record(&mut self, row: usize, len: usize) -> Result<()> {
        if let Some(store) = &self.store
            && len > 0
            && !self.recorded[row].contains_key(&len)
        {
            let copy = Self::row(store, row, true)?;
            self.recorded[row].insert(len, copy);
        }
        Ok(())
    }

    /// Clears row `row`.
    pub(crate) fn clear(&mut self, row: usize) {
        self.recorded[row].clear();
    }

    /// The rows `rows`, in that order. `indices` holds the same numbers.
    pub(crate) fn select(&self, rows: &[usize], indices: &Array) -> Result<Self> {
        let store = match &self.store {
            Some(store) => {
                let by_row = store.by_row()?;
                let arrays = by_row.iter().map(|array| array.take(indices, 0));
                let arrays = arrays.collect::<Result<Vec<_>>>()?;
                store.note_readers(&arrays);
                Some(Store::new(arrays))
            }
            None => None,
        };
        let recorded = rows.iter().map(|&row| self.recorded[row].clone());
        Ok(self.with(store, recorded.collect()))
    }

    /// These rows, then those of `other`. `counts` are the numbers of both.
    pub(crate) fn join(&self, other: &Self, counts: [usize; 2]) -> Result<Self> {
        let store = match (&self.store, &other.store) {
            (None, None) => None,
            (first, second) => {
                let by_row = |store: &Option<Rc<Store>>| {
                    let arrays = store.as_ref().map(|store| store.by_row());
                    arrays.transpose()
                };
                let of_both = [by_row(first)?, by_row(second)?];
                let joined = |(at, part): (usize, &StatePart)| {
                    let like = first.as_ref().or(second.as_ref()).expect("one is there");
                    let dtype = like.arrays[at].dtype();
                    let rows = |of: usize| match &of_both[of] {
                        Some(arrays) => Ok(arrays[at].clone()),
                        None => zero_state(part, counts[of], dtype),
                    };
                    concat(&[rows(0)?, rows(1)?], 0)
                };
                let parts = self.shape.parts().enumerate().map(joined);
                let parts = parts.collect::<Result<Vec<_>>>()?;
                for store in [first, second].into_iter().flatten() {
                    store.note_readers(&parts);
                }
                Some(Store::new(parts))
            }
        };
        let recorded = self.recorded.iter().chain(&other.recorded).cloned();
        Ok(self.with(store, recorded.collect()))
    }

    /// Writes row `from` of `other` over row `row` of `rows`.
    pub(crate) fn put(
        &mut self,
        (row, rows): (usize, usize),
        other: &Self,
        from: usize,
    ) -> Result<()> {
        self.recorded[row] = other.recorded[from].clone();
        let Some(new) = &other.store else {
            return Ok(());
        };
        // An update of the only row would be the view itself.
        let new = Self::row(new, from, rows == 1)?;
        self.write_row(row, rows, &new)?;
        if let (Some(read), Some(store)) = (&other.store, &self.store) {
            read.note_readers(&store.arrays);
        }
        Ok(())
    }

    /// A copy of the state at the first `len` of the `held` positions of row `row`.
    pub(crate) fn prefix(&self, row: usize, held: usize, len: usize) -> Result<Self> {
        let store = self.at(row, held, len)?.map(|arrays| {
            let store = Store::new(arrays.to_vec());
            // The row may share them as those of a recorded length.
            store.is_lent.set(true);
            store
        });
        let mut recorded = self.recorded[row].clone();
        recorded.split_off(&(len + 1));
        Ok(self.with(store, vec![recorded]))
    }

    /// Sets the [arrays](Self::arrays) of one row, from a file or another cache. The error names the array that does
    /// not fit.
    pub(crate) fn fill(&mut self, arrays: Vec<Array>) -> Result<()> {
        self.check(&arrays)?;
        let store = Store::new(arrays);
        // They may belong to the caller.
        store.is_lent.set(true);
        self.replace(store);
        Ok(())
    }

    /// Replaces the only array of a state of `rows` rows.
    pub(crate) fn set(&mut self, rows: usize, state: Array) -> Result<()> {
        let wanted: Vec<Vec<i32>> = self.shape.parts().map(|part| part.shape(rows)).collect();
        if wanted != [state.shape()] {
            return Err(refusal(format!(
                "a state of {:?} where {wanted:?} belong",
                state.shape()
            )));
        }
        let store = Store::new(vec![state]);
        // It may belong to the caller.
        store.is_lent.set(true);
        self.replace(store);
        Ok(())
    }

    /// The arrays that hold the rows, none before the first step.
    pub(crate) fn arrays(&self) -> Vec<&Array> {
        let store = self.store.as_ref().map(|store| &store.arrays);
        let next = self.next.as_ref().map(|(arrays, _)| arrays);
        next.or(store).into_iter().flatten().collect()
    }

    /// The arrays that hold the rows at [recorded](Self::record) lengths.
    pub(crate) fn recorded_arrays(&self) -> Vec<&Array> {
        let rows = self.recorded.iter().flat_map(BTreeMap::values);
        rows.flat_map(|arrays| arrays.iter()).collect()
    }
}

//! The head for multi-token prediction reads the positions of steps later than the layers: several positions in one pass.
//! A pass is due before the head drafts, before rows join or move, and when many positions are unread.
//!
//! A pass over few positions takes as long as a pass over one, because the weights are read once. So the pass that reads
//! the unread positions also computes the first draft, and rows without drafts pay for one pass in many steps.

use mlx_core::ops::concat;
use mlx_core::{Array, async_eval, eval};
use mlx_nn::last_features;

use super::Rows;
use crate::error::Result;

/// The number of unread positions of all rows at which a pass is due although no row drafts.
const MOST: usize = 64;

/// The positions that the head has not read.
#[derive(Default)]
pub(super) struct Late {
    parts: Vec<Part>,
}

/// The tokens of a step `[B, L]`, their features `[B, L, E]`, and how many of them each row kept.
struct Part {
    tokens: Array,
    features: Array,
    keep: Vec<usize>,
}

impl Late {
    /// Drops the positions of the row in a slot.
    pub(super) fn forget(&mut self, slot: usize) {
        self.parts.iter_mut().for_each(|part| part.keep[slot] = 0);
    }

    /// The number of positions of the row that has the most, and of all rows.
    fn counts(&self) -> (usize, usize) {
        let rows = self.parts.first().map_or(0, |part| part.keep.len());
        let of = |row: usize| self.parts.iter().map(|part| part.keep[row]).sum::<usize>();
        let counts = (0..rows).map(of);
        (counts.clone().max().unwrap_or(0), counts.sum())
    }
}

impl Rows<'_> {
    /// Stores the `tokens` of a step, `[B, L]`, and their features before and after the final norm. Row b keeps its first
    /// `keep[b]` tokens.
    pub(super) fn follow_late(
        &mut self,
        tokens: Array,
        [x, hidden]: &[Array; 2],
        keep: Vec<usize>,
    ) -> Result<()> {
        let model = self.model.model();
        let Some(head) = model.draft_head() else {
            return Ok(());
        };
        let features = head.input([x, hidden])?;
        self.late.parts.push(Part {
            tokens,
            features,
            keep,
        });
        if self.late.counts().1 >= MOST {
            self.catch_up()?;
            async_eval(self.cache.row_arrays())?;
        }
        Ok(())
    }

    /// Builds the pass over all unread positions. Nothing is evaluated.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        match self.late.counts() {
            (0, _) => self.late = Late::default(),
            _ => drop(self.read_late(None)?),
        }
        Ok(())
    }

    /// Runs [`catch_up`](Self::catch_up) if a row has more than `most` unread positions, and waits for it.
    pub(crate) fn shorten_late(&mut self, most: usize) -> Result<()> {
        if self.late.counts().0 > most {
            self.catch_up()?;
            eval(self.cache.row_arrays())?;
        }
        Ok(())
    }

    /// The head's features `[B, E]` at the last tokens `[B]` of the rows with a width of 1. No layer has read these tokens.
    pub(crate) fn head_behind(&mut self, last: &Array, widths: &[usize]) -> Result<Array> {
        let (features, widths) = self.read_late(Some((last, widths)))?;
        Ok(last_features(&features, &widths)?.squeeze(1)?)
    }

    /// The head's features `[B, E]` at draft number `number` of the rows with a width of 1. `before` are its features at
    /// the position before it, `[B, E]`.
    pub(crate) fn head_behind_draft(
        &mut self,
        draft: &Array,
        before: &Array,
        number: usize,
        widths: &[usize],
    ) -> Result<Array> {
        let head = self.model.model().drafting()?;
        let lens = self.cache.lens().iter().map(|len| len + number);
        let lens: Vec<usize> = lens.collect();
        let mut step = self.cache.begin_at(head.states(), &lens, widths)?;
        let (draft, before) = (draft.expand_dims(-1)?, before.expand_dims(1)?);
        Ok(head.draft(&draft, &before, &mut step)?.squeeze(1)?)
    }

    /// Runs the head over the unread positions, followed by the `last` tokens of the rows with a width of 1. The keys and
    /// values of `last` are not kept: the next pass reads these tokens again. Returns the head's features `[B, L, E]`, and
    /// the number of tokens of each row.
    fn read_late(&mut self, last: Option<(&Array, &[usize])>) -> Result<(Array, Vec<usize>)> {
        let parts = &self.late.parts;
        let mut tokens: Vec<Array> = parts.iter().map(|part| part.tokens.clone()).collect();
        let features: Vec<Array> = parts.iter().map(|part| part.features.clone()).collect();
        let mut places = vec![Vec::new(); self.slots.len()];
        let mut columns = 0;
        for part in parts {
            for (places, &keep) in places.iter_mut().zip(&part.keep) {
                places.extend(columns..columns + keep);
            }
            columns += part.tokens.dim(1)? as usize;
        }
        let keep: Vec<usize> = places.iter().map(Vec::len).collect();
        if let Some((last, widths)) = last {
            for (places, &width) in places.iter_mut().zip(widths) {
                places.extend(columns..columns + width);
            }
            columns += 1;
            tokens.push(last.expand_dims(-1)?);
        }
        let widths: Vec<usize> = places.iter().map(Vec::len).collect();
        let mut tokens = concat(&tokens, 1)?;
        let mut features = match features.is_empty() {
            true => None,
            false => Some(concat(&features, 1)?),
        };
        if widths.iter().any(|&width| width < columns) {
            tokens = gathered(&tokens, &places)?;
            features = features
                .map(|features| gathered(&features, &places))
                .transpose()?;
        }
        let head = self.model.model().drafting()?;
        let lens = self.cache.lens().iter().zip(&keep);
        let lens: Vec<usize> = lens.map(|(len, keep)| len - keep).collect();
        let mut step = self.cache.begin_at(head.states(), &lens, &widths)?;
        let read = head.follow(&tokens, features.as_ref(), &mut step)?;
        step.commit(&keep)?;
        self.late = Late::default();
        Ok((read, widths))
    }
}

/// The columns `places[b]` of row b of an array `[B, C, ..]`: `[B, L, ..]`. Shorter rows are padded with any column. A
/// place after the last column also means any column.
fn gathered(array: &Array, places: &[Vec<usize>]) -> Result<Array> {
    let columns = array.dim(1)? as usize;
    let width = places.iter().map(Vec::len).max().unwrap_or(0);
    let mut flat = Vec::with_capacity(places.len() * width);
    for (row, places) in places.iter().enumerate() {
        let place = |at: usize| places.get(at).map_or(0, |&place| place.min(columns - 1));
        flat.extend((0..width).map(|at| (row * columns + place(at)) as i32));
    }
    let flat = Array::from_slice(&flat, &[places.len() as i32, width as i32])?;
    Ok(array.flatten(0, 1)?.take(&flat, 0)?)
}

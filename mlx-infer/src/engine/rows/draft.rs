//! Drafts that are computed token by token without a read by the host between them, and the input
//! of the head for multi-token prediction.
//!
//! The head for multi-token prediction reads the positions of steps later than the layers: several positions in one pass.
//! A pass is due before the head drafts, before rows join or move, and when many positions are unread.
//!
//! A pass over few positions takes as long as a pass over one, because the weights are read once. So the pass that reads
//! the unread positions also computes the first draft, and rows without drafts pay for one pass in many steps.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use mlx_core::ops::{concat, create::full};
use mlx_core::{Array, async_eval, eval};
use mlx_models::{Drafting, Model};
#[cfg(test)]
use mlx_nn::ModelCache;
use mlx_nn::lora::{TokenAdapters, with_adapters};

use super::round::{DraftRound, RoundInput, RowInput};
use super::{Input, Rows, replay_of, unused};
use crate::engine::scheduler::Id;
use crate::engine::speculate::drafters::Drafts;
use crate::engine::state::Requests;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::sampling::{Row, sample};

/// Drafts use only this number of first tokens of a vocabulary that has more than twice as many. Tokenizers give their
/// frequent tokens small ids, and the product with the output head is most of the cost of a draft (Zhao et al. 2025,
/// "FR-Spec", arXiv:2502.14856).
const VOCABULARY: i32 = 32_768;

/// The number of unread positions of all rows at which a pass is due although no row drafts.
const MOST: usize = 64;

/// The positions that the head has not read.
#[derive(Default)]
pub(super) struct HeadInput {
    parts: Vec<Part>,
}

/// The tokens of a step, `[1, T]`, their features, `[1, T, E]`, the place of each row's first token,
/// and how many of its tokens each row kept.
struct Part {
    tokens: Array,
    features: Array,
    firsts: Vec<usize>,
    keep: Vec<usize>,
}

impl HeadInput {
    /// Drops the positions of the row in a slot.
    pub(super) fn clear(&mut self, slot: usize) {
        self.parts.iter_mut().for_each(|part| part.keep[slot] = 0);
    }

    /// The number of positions of a row.
    fn of(&self, row: usize) -> usize {
        self.parts.iter().map(|part| part.keep[row]).sum()
    }

    /// The largest number of positions of one row, and the number of all rows.
    fn counts(&self) -> (usize, usize) {
        let rows = self.parts.first().map_or(0, |part| part.keep.len());
        let counts = (0..rows).map(|row| self.of(row));
        (counts.clone().max().unwrap_or(0), counts.sum())
    }
}

/// How many of a row's positions that all layers have read a drafting head writes again: the last one,
/// whose keys need the token after it.
pub(crate) fn rewritten(model: &LoadedModel) -> usize {
    usize::from(model.model().draft_head().is_some())
}

impl<'m> Rows<'m> {
    /// How many first positions of the row in a slot no layer will write again.
    pub(crate) fn settled(&self, slot: usize) -> usize {
        let behind = self.head_input.of(slot) + rewritten(self.model);
        self.cache.lens()[slot].saturating_sub(behind)
    }

    pub(crate) fn model(&self) -> &'m LoadedModel {
        self.model
    }

    /// The request of each slot that is in use.
    pub(crate) fn owners(&self) -> &[Option<Id>] {
        &self.slots
    }

    /// The batch's cache.
    #[cfg(test)]
    pub(crate) fn cache(&mut self) -> &mut ModelCache {
        &mut self.cache
    }

    /// Draws up to the given number of tokens for each of the rows `wanted`, one after the other. `next` computes the
    /// features `[slots, E]` for the output head of `by`. Its arguments are each slot's last token and the draft tokens
    /// after it, U32 `[slots]` each, and a width for each slot: 1, or 0 if the slot draws no token.
    ///
    /// A token is drawn with the noise of its position, as the sampler will draw it, so that both are most often equal.
    /// Penalties count only the tokens before the draft, and a grammar masks only the first token. Both make rejections
    /// more likely, and never change the result.
    pub(crate) fn draw(
        &mut self,
        requests: &Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
        by: &LoadedModel,
        drafts: &mut Drafts,
        mut next: impl FnMut(&mut Self, &[Array], &[usize]) -> Result<Array>,
    ) -> Result<()> {
        let lines = self.drawings(requests, wanted);
        let mosts = lines.iter().flatten().map(|&(_, _, most)| most);
        let Some(most) = mosts.max() else {
            return Ok(());
        };
        let last = lines
            .iter()
            .map(|line| line.map_or(0, |(_, token, _)| token));
        let last: Vec<u32> = last.collect();
        let mut tokens = vec![Array::from_slice(&last, &[last.len() as i32])?];
        // The first pass of a head reads different numbers of positions; the rest has a fixed shape.
        let is_replayed = self.pads && std::ptr::eq(by, self.model);
        for number in 0..most {
            let draws = |line: &Drawing| line.is_some_and(|(_, _, most)| number < most);
            let widths = lines.iter().map(|line| usize::from(draws(line)));
            let widths: Vec<usize> = widths.collect();
            let features = next(self, &tokens, &widths)?;
            if is_replayed && number == 0 {
                async_eval([&features])?;
            }
            let settings = draft_settings(&lines, requests, number);
            let adapters = self.slot_adapters();
            let adapters = match adapters.iter().any(Option::is_some) {
                true => Some(TokenAdapters::of(&adapters)?),
                false => None,
            };
            // A draft model has no adapters, and its layers need none.
            let vocab = self.model.vocab() as i32;
            let logits = with_adapters(adapters.as_ref(), || {
                logits(by.model(), vocab, &features, &settings)
            })?;
            tokens.push(sample(&logits, &settings, None)?.ids().clone());
        }
        let columns = tokens[1..].iter().map(|tokens| tokens.expand_dims(-1));
        let columns = columns.collect::<mlx_core::Result<Vec<_>>>()?;
        let drawn = concat(&columns, 1)?;
        match is_replayed {
            true => replay_of(&mut self.draws, (self.slots.len(), most))?
                .async_eval([&drawn], [&drawn; 0])?,
            false => async_eval([&drawn])?,
        }
        let lens = lines.into_iter().flatten();
        drafts.draw(drawn, lens.map(|(id, _, most)| (id, most)).collect());
        Ok(())
    }

    /// [`draw`](Self::draw) by a head that reads pairs, where its passes are one computation that repeats. Returns whether
    /// the drafts were queued. They are not, and nothing has changed, where steps have no fixed shape, and where the head
    /// has not read the positions of several steps.
    pub(crate) fn draw_round(
        &mut self,
        requests: &Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
        drafts: &mut Drafts,
    ) -> Result<bool> {
        let lines = self.drawings(requests, wanted);
        let most = lines.iter().flatten().map(|&(_, _, most)| most).max();
        let (Some(most), [part]) = (most, &self.head_input.parts[..]) else {
            return Ok(false);
        };
        if !self.pads || !self.model.model().drafting()?.reads_pairs() {
            return Ok(false);
        }
        let row = |(slot, line): (usize, &Drawing)| {
            let (len, keep) = (self.cache.lens()[slot], part.keep[slot]);
            let drafts = line.map_or(0, |(_, _, most)| most);
            let text = match self.slots[slot] {
                Some(id) => requests[&id].sequence.history().ids(),
                None => &[],
            };
            RowInput {
                len,
                tokens: &text[len - keep..len + usize::from(drafts > 0)],
                first: part.firsts[slot],
                drafts,
            }
        };
        let rows: Vec<RowInput<'_>> = lines.iter().enumerate().map(row).collect();
        let places = part.tokens.size() / rows.len() + 1;
        if !rows.iter().all(|row| row.fits(places)) {
            return Ok(false);
        }
        let settings = (0..most).map(|number| draft_settings(&lines, requests, number));
        let input = RoundInput {
            model: self.model,
            features: part.features.clone(),
            rows,
            places,
            settings: settings.collect(),
            adapters: self.slot_adapters(),
        };
        let round = match self.rounds.entry((self.slots.len(), places, most)) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(new) => new.insert(DraftRound::new()?),
        };
        let Some(drawn) = round.draw(&mut self.cache, &input)? else {
            return Ok(false);
        };
        self.head_input = HeadInput::default();
        let lens = lines.into_iter().flatten();
        drafts.draw(drawn, lens.map(|(id, _, most)| (id, most)).collect());
        Ok(true)
    }

    /// The [`drawing`](Self::drawing) of each slot.
    fn drawings(&self, requests: &Requests<'_>, wanted: &BTreeMap<Id, usize>) -> Vec<Drawing> {
        let slots = 0..self.slots.len();
        slots
            .map(|slot| self.drawing(slot, requests, wanted))
            .collect()
    }

    fn drawing(
        &self,
        slot: usize,
        requests: &Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
    ) -> Drawing {
        let id = self.slots[slot]?;
        let most = *wanted.get(&id)?;
        match self.input(slot, requests, None) {
            Input::Known {
                token,
                is_last: true,
            } if most > 0 => Some((id, token, most)),
            _ => None,
        }
    }

    /// Stores the `tokens` of a step, `[1, T]`, and the [features](Self::head_features) of them. Row b
    /// keeps `keep[b]` tokens from the place `firsts[b]` on.
    pub(super) fn add_head_input(
        &mut self,
        tokens: Array,
        features: Option<Array>,
        firsts: Vec<usize>,
        keep: Vec<usize>,
    ) -> Result<()> {
        let Some(features) = features else {
            return Ok(());
        };
        self.head_input.parts.push(Part {
            tokens,
            features,
            firsts,
            keep,
        });
        // The next step with drafts reads a single part in its own computation.
        if self.head_input.parts.len() > 1 && self.head_input.counts().1 >= MOST {
            self.read_head_input()?;
            async_eval(self.cache.row_arrays())?;
        }
        Ok(())
    }

    /// Builds the head's pass over all unread positions. Nothing is evaluated.
    pub(crate) fn read_head_input(&mut self) -> Result<()> {
        match self.head_input.counts() {
            (0, _) => self.head_input = HeadInput::default(),
            _ => drop(self.run_head(None)?),
        }
        Ok(())
    }

    /// If a row has more than `most` unread positions, runs
    /// [`read_head_input`](Self::read_head_input) and waits for it.
    pub(crate) fn bound_head_input(&mut self, most: usize) -> Result<()> {
        if self.head_input.counts().0 > most {
            self.read_head_input()?;
            eval(self.cache.row_arrays())?;
        }
        Ok(())
    }

    /// The head's features `[B, E]` at the last tokens `[B]` of the rows with a width of 1. No layer has read these tokens.
    pub(crate) fn head_behind(&mut self, last: &Array, widths: &[usize]) -> Result<Array> {
        let (features, widths) = self.run_head(Some((last, widths)))?;
        let mut end = 0;
        let last = widths.iter().map(|width| {
            end += width;
            end.saturating_sub(1) as i32
        });
        let last: Vec<i32> = last.collect();
        let last = Array::from_slice(&last, &[last.len() as i32])?;
        Ok(features.squeeze(0)?.take(&last, 0)?)
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
        let ahead = match head.manner() {
            Drafting::Held => 0,
            Drafting::Chain | Drafting::Block(_) => number,
        };
        let lens = self.cache.lens().iter().map(|len| len + ahead);
        let lens: Vec<usize> = lens.collect();
        let adapters = self.slot_adapters();
        let mut step = (self.cache).begin_slots(head.states(), Some(&lens), widths)?;
        let adapters = TokenAdapters::of_step(&step, &adapters)?;
        let (draft, before) = (draft.expand_dims(0)?, before.expand_dims(0)?);
        let drafted = with_adapters(adapters.as_ref(), || head.draft(&draft, &before, &mut step))?;
        Ok(drafted.squeeze(0)?)
    }

    /// The features `[B, K, E]` of a head that drafts in blocks of `block` places: those after the first place, for the rows
    /// with a width of 1. `last` are the last tokens `[B]`. The head has read all positions before them.
    pub(crate) fn head_block(
        &mut self,
        last: &Array,
        block: usize,
        widths: &[usize],
    ) -> Result<Array> {
        let head = self.model.model().drafting()?;
        let widths: Vec<usize> = widths.iter().map(|width| width * block).collect();
        let adapters = self.slot_adapters();
        let mut step = (self.cache).begin_slots(head.states(), None, &widths)?;
        let adapters = TokenAdapters::of_step(&step, &adapters)?;
        let last = last.expand_dims(0)?;
        let features = with_adapters(adapters.as_ref(), || head.block(&last, &mut step))?;
        // A row without a block has one place, whose features mean nothing.
        let places = step.places().flat_map(|places| {
            (1..block).map(move |at| (places.start + at).min(places.end - 1) as i32)
        });
        let places: Vec<i32> = places.collect();
        let shape = [widths.len() as i32, block as i32 - 1];
        Ok(features
            .squeeze(0)?
            .take(&Array::from_slice(&places, &shape)?, 0)?)
    }

    /// Runs the head over the unread positions, followed by the `last` tokens of the rows with a
    /// width of 1. The keys and values of `last` are dropped, and the next pass reads these tokens
    /// again. Returns the head's features, `[1, T, E]`, and the number of tokens of each row.
    fn run_head(&mut self, last: Option<(&Array, &[usize])>) -> Result<(Array, Vec<usize>)> {
        let parts = &self.head_input.parts;
        let mut tokens: Vec<Array> = parts.iter().map(|part| part.tokens.clone()).collect();
        let features: Vec<Array> = parts.iter().map(|part| part.features.clone()).collect();
        let mut places = vec![Vec::new(); self.slots.len()];
        let mut begin = 0;
        for part in parts {
            let rows = part.firsts.iter().zip(&part.keep);
            for (places, (&first, &keep)) in places.iter_mut().zip(rows) {
                places.extend(begin + first..begin + first + keep);
            }
            begin += part.tokens.size();
        }
        let known = begin;
        let keep: Vec<usize> = places.iter().map(Vec::len).collect();
        if let Some((last, widths)) = last {
            for (slot, (places, &width)) in places.iter_mut().zip(widths).enumerate() {
                places.extend(begin + slot..begin + slot + width);
            }
            tokens.push(last.expand_dims(0)?);
        }
        let widths: Vec<usize> = places.iter().map(Vec::len).collect();
        let places = places.concat();
        let order = |most: usize| {
            let places = places.iter().map(|&place| place.min(most) as i32);
            let places: Vec<i32> = places.collect();
            Array::from_slice(&places, &[places.len() as i32])
        };
        let tokens = concat(&tokens, 1)?.take(&order(usize::MAX)?, 1)?;
        let features = match features.is_empty() {
            true => None,
            // The features of the last tokens are not known. These tokens are not kept.
            false => Some(concat(&features, 1)?.take(&order(known - 1)?, 1)?),
        };
        let head = self.model.model().drafting()?;
        let lens = self.cache.lens().iter().zip(&keep);
        let lens: Vec<usize> = lens.map(|(len, keep)| len - keep).collect();
        let adapters = self.slot_adapters();
        let mut step = self.cache.begin_at(head.states(), &lens, &widths)?;
        let adapters = TokenAdapters::of_step(&step, &adapters)?;
        let read = with_adapters(adapters.as_ref(), || {
            head.follow(&tokens, features.as_ref(), &mut step)
        })?;
        step.commit(&keep)?;
        self.head_input = HeadInput::default();
        Ok((read, widths))
    }
}

/// For a slot that drafts: its request, its last token, and the number of tokens that it drafts.
type Drawing = Option<(Id, u32, usize)>;

/// The sampler's settings of draft `number` of each slot.
fn draft_settings<'r>(
    lines: &[Drawing],
    requests: &'r Requests<'_>,
    number: usize,
) -> Vec<Row<'r>> {
    let row = |line: &Drawing| match line.filter(|&(_, _, most)| number < most) {
        Some((id, ..)) => {
            let row = requests[&id].sequence.row();
            Row {
                ahead: number,
                logprobs: None,
                mask: row.mask.filter(|_| number == 0),
                ..row
            }
        }
        None => unused(),
    };
    lines.iter().map(row).collect()
}

/// Logits of `by` for drafts. They cover only a part of a large vocabulary, unless the settings of a row name tokens,
/// and at most the `vocab` tokens of the model that verifies.
pub(super) fn logits(
    by: &dyn Model,
    vocab: i32,
    features: &Array,
    rows: &[Row<'_>],
) -> Result<Array> {
    let names_tokens = |row: &Row<'_>| !row.params.keeps_logits() || row.mask.is_some();
    let names_tokens = rows.iter().any(names_tokens);
    let is_part = by.geometry().vocab > 2 * VOCABULARY && !names_tokens;
    let first = is_part.then_some(VOCABULARY);
    let logits = match (by.draft_head(), first) {
        (Some(head), _) => head.logits(features, first)?,
        (None, Some(first)) => by.head().first(first, features)?,
        (None, None) => by.logits(features)?,
    };
    let [b, own] = logits.dims()?;
    if own > vocab {
        return Ok(logits.slice_axis(1, 0, vocab)?);
    }
    if own < vocab && names_tokens {
        let absent = full(&[b, vocab - own], f32::NEG_INFINITY, logits.dtype())?;
        return Ok(concat(&[logits, absent], 1)?);
    }
    Ok(logits)
}

//! Drafts of a second, smaller model with the same vocabulary.
//!
//! Its cache has a row for each slot of the batch. A row has the states of its request's text, as
//! far as the draft model has read it, and of the tokens of the last draft. The next round shortens
//! the row to the accepted tokens, and reads the tokens after them. A model whose states cannot be
//! shortened reads all tokens of a draft again for each further one, and keeps the states of none
//! of them.

use std::collections::BTreeMap;

use mlx_core::ops::concat;
use mlx_core::{Array, async_eval, eval};
use mlx_nn::{LayerKind, ModelCache};

use super::{Drafter, Drafts};
use crate::engine::rows::Rows;
use crate::engine::scheduler::Id;
use crate::engine::state::Requests;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::model::forward;
use crate::request::speculative::MOST;

/// The most tokens, padding included, of a pass that reads the texts of several rows. Longer texts are read one at a
/// time.
const PASS: usize = 2048;
/// The number of unread tokens that a row may have when it drafts. The draft's first pass reads them.
const LACKS: usize = MOST + 1;

/// The draft model and its cache.
pub(crate) struct DraftModel<'m> {
    model: &'m LoadedModel,
    cache: ModelCache,
    /// The request of each row of the cache. A row that has not drafted is empty.
    slots: Vec<Option<Id>>,
    /// Caches of one row each, of long texts that are being read.
    begun: BTreeMap<Id, ModelCache>,
    /// Whether rows can be shortened to any length.
    rewinds: bool,
    /// The last drafts, U32 `[slots, K]`, and the length of each row's text before them.
    drawn: Option<(Array, Vec<usize>)>,
}

impl<'m> DraftModel<'m> {
    /// No rows yet, in the pool of `cache`, which has none.
    pub(crate) fn new(model: &'m LoadedModel, cache: ModelCache) -> Self {
        let rewinds = |kind: &LayerKind| matches!(kind, LayerKind::Full | LayerKind::Latent);
        Self {
            rewinds: model.model().states().iter().all(rewinds),
            cache,
            slots: Vec::new(),
            begun: BTreeMap::new(),
            drawn: None,
            model,
        }
    }

    fn slot(&self, id: Id) -> Option<usize> {
        self.slots.iter().position(|&slot| slot == Some(id))
    }

    /// Shortens the rows to the accepted part of the last drafts.
    fn rewind(&mut self, requests: &Requests<'_>) -> Result<()> {
        let Some((drawn, lens)) = self.drawn.take() else {
            return Ok(());
        };
        // The step that verified these drafts has read them.
        let columns = drawn.dim(1)? as usize;
        let drawn = drawn.to_vec::<u32>()?;
        for (slot, drafted) in drawn.chunks(columns).enumerate() {
            let held = self.cache.lens()[slot];
            let Some(request) = self.slots[slot].and_then(|id| requests.get(&id)) else {
                continue;
            };
            let text = request.sequence.history().ids();
            if held < lens[slot] {
                continue;
            }
            let chosen = text[lens[slot]..].iter().zip(drafted);
            let right = chosen.take_while(|(chosen, drafted)| chosen == drafted);
            let len = (lens[slot] + right.count()).min(text.len() - 1);
            if len < held {
                self.cache.truncate(slot, len)?;
            }
        }
        Ok(())
    }

    /// Moves the rows so that each slot of the batch has the row of its request.
    fn align(&mut self, slots: &[Option<Id>]) -> Result<()> {
        let from: Vec<Option<usize>> = slots
            .iter()
            .map(|id| id.and_then(|id| self.slot(id)))
            .collect();
        let stays = |(slot, from): (usize, &Option<usize>)| from.is_none_or(|from| from == slot);
        let is_same = slots.len() == self.slots.len() && from.iter().enumerate().all(stays);
        if from.iter().all(Option::is_none) {
            self.cache = self.cache.beside(slots.len());
        } else if !is_same {
            let rows: Vec<usize> = from.iter().map(|from| from.unwrap_or(0)).collect();
            self.cache.select(&rows)?;
        }
        for (slot, from) in from.iter().enumerate() {
            if from.is_none() {
                self.cache.clear(slot);
            }
        }
        self.slots = slots.to_vec();
        self.begun.retain(|id, _| slots.contains(&Some(*id)));
        Ok(())
    }

    /// The number of tokens of its text that a row has not read.
    fn lacks(&self, id: Id, text: &[u32]) -> usize {
        let held = match (self.begun.get(&id), self.slot(id)) {
            (Some(cache), _) => cache.lens()[0],
            (None, Some(slot)) => self.cache.lens()[slot],
            (None, None) => 0,
        };
        text.len() - held
    }

    /// Reads a part of a long text into a separate cache.
    fn read_part(&mut self, id: Id, text: &[u32], chunk: usize) -> Result<()> {
        let mut cache = match (self.begun.remove(&id), self.slot(id)) {
            (Some(cache), _) => cache,
            (None, Some(slot)) if self.cache.lens()[slot] > 0 => {
                let mut cache = self.cache.clone();
                cache.select(&[slot])?;
                self.cache.clear(slot);
                cache
            }
            (None, _) => self.cache.beside(1),
        };
        let len = cache.lens()[0];
        let end = (text.len() - 1).min(len + chunk);
        let part = self.known(&text[len..end]);
        forward::prefill(self.model.model(), &mut cache, &part)?;
        self.begun.insert(id, cache);
        Ok(())
    }

    /// Reads the unread tokens of these rows in one pass.
    fn read_missing(&mut self, requests: &Requests<'_>, ids: &[Id]) -> Result<()> {
        let mut parts = vec![Vec::new(); self.slots.len()];
        for &id in ids {
            if let Some(slot) = self.slot(id) {
                let text = requests[&id].sequence.history().ids();
                parts[slot] = self.known(&text[self.cache.lens()[slot]..text.len() - 1]);
            }
        }
        let rows: Vec<&[u32]> = parts.iter().map(Vec::as_slice).collect();
        forward::hidden(self.model.model(), &mut self.cache, &rows)?;
        Ok(eval(self.cache.arrays())?)
    }

    /// The tokens for the draft model: an id beyond its vocabulary is replaced by 0.
    fn known(&self, tokens: &[u32]) -> Vec<u32> {
        let vocab = self.model.vocab() as u32;
        let known = |&id: &u32| if id < vocab { id } else { 0 };
        tokens.iter().map(known).collect()
    }
}

impl Drafter for DraftModel<'_> {
    fn follow(&mut self, rows: &Rows<'_>, requests: &Requests<'_>) -> Result<()> {
        self.rewind(requests)?;
        self.align(rows.owners())
    }

    fn reset(&mut self) {
        *self = Self::new(self.model, self.cache.beside(0));
        self.cache.release();
    }

    fn recover(&mut self) {
        self.cache.recover();
    }

    fn cache(&self) -> Option<&ModelCache> {
        Some(&self.cache)
    }

    fn prepare(
        &mut self,
        rows: &mut Rows<'_>,
        requests: &Requests<'_>,
        wanted: &mut BTreeMap<Id, usize>,
    ) -> Result<()> {
        self.follow(rows, requests)?;
        let text = |id: Id| requests[&id].sequence.history().ids();
        // Positions beyond the draft model's context length cannot be drafted.
        let most = self.model.info().max_positions.unwrap_or(usize::MAX);
        wanted.retain(|&id, drafts| text(id).len() + *drafts <= most);
        let at_once = (PASS / self.slots.len().max(1)).max(LACKS);
        let mut is_read = false;
        let mut behind = Vec::new();
        for id in wanted.keys().copied().collect::<Vec<_>>() {
            if let (0, Some(slot)) = (self.lacks(id, text(id)), self.slot(id)) {
                // No token was added since the last draft, and the row cannot be shortened to
                // before that draft.
                self.cache.clear(slot);
            }
            if self.lacks(id, text(id)) > at_once {
                if !is_read {
                    let chunk = requests[&id].sequence.prefill_chunk();
                    self.read_part(id, text(id), chunk)?;
                    is_read = true;
                }
                wanted.remove(&id);
                continue;
            }
            if let (Some(cache), Some(slot)) = (self.begun.remove(&id), self.slot(id)) {
                self.cache.put(slot, &cache, 0)?;
            }
            if self.lacks(id, text(id)) > LACKS {
                behind.push(id);
            }
        }
        match &behind[..] {
            [] => Ok(()),
            behind => self.read_missing(requests, behind),
        }
    }

    fn draft(
        &mut self,
        rows: &mut Rows<'_>,
        requests: &mut Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
        drafts: &mut Drafts,
    ) -> Result<()> {
        let texts: Vec<&[u32]> = self
            .slots
            .iter()
            .map(|id| match id.and_then(|id| requests.get(&id)) {
                Some(request) => request.sequence.history().ids(),
                None => &[],
            })
            .collect();
        let lens: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        let parts: Vec<Vec<u32>> = (texts.iter().zip(self.cache.lens()))
            .map(|(text, &held)| self.known(text.get(held..).unwrap_or_default()))
            .collect();
        let (model, cache, rewinds) = (self.model, &mut self.cache, self.rewinds);
        rows.draw(requests, wanted, model, drafts, |_, tokens, widths| {
            if tokens.len() == 1 {
                let part = |(part, &width): (&'_ Vec<u32>, &usize)| match width {
                    0 => Vec::new(),
                    _ => part.clone(),
                };
                let parts: Vec<Vec<u32>> = parts.iter().zip(widths).map(part).collect();
                let parts: Vec<&[u32]> = parts.iter().map(Vec::as_slice).collect();
                return forward::last_hidden(model.model(), cache, &parts);
            }
            let drafted = match rewinds {
                true => &tokens[tokens.len() - 1..],
                false => &tokens[1..],
            };
            let (drafted, slots) = (concat(drafted, 0)?, widths.len());
            let len = drafted.dim(0)? as usize / slots;
            let widths: Vec<usize> = widths.iter().map(|&n| n * len).collect();
            let all = 0..cache.kinds().len();
            let mut step = cache.begin_slots(all, None, &widths)?;
            // `drafted` has the first token of each slot, and then the second ones.
            let rows = step.places().enumerate();
            let order = rows.flat_map(|(slot, places)| {
                (0..places.len()).map(move |at| (at * slots + slot) as i32)
            });
            let order: Vec<i32> = order.collect();
            let order = Array::from_slice(&order, &[1, order.len() as i32])?;
            step.read_last();
            let hidden = model.model().hidden(&drafted.take(&order, 0)?, &mut step)?;
            if rewinds {
                step.commit_all()?;
            }
            Ok(hidden.squeeze(0)?)
        })?;
        async_eval(self.cache.row_arrays())?;
        if self.rewinds {
            self.drawn = drafts.tokens().map(|drawn| (drawn.clone(), lens));
        }
        Ok(())
    }
}

//! The rows that decode together: one cache with a slot for each row, and the step in progress.
//!
//! A step is queued before the tokens of the previous step are read: it takes them as a lazy array. The host waits for
//! one list of ids in each step, and the device always has work.

mod draft;
mod round;
mod verify;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem::take;
use std::sync::LazyLock;

use mlx_core::{Array, Replay, async_eval, eval};
use mlx_nn::lora::{RowAdapter, TokenAdapters, with_adapters};
use mlx_nn::{ModelCache, PageUse};

use self::draft::HeadInput;
pub(crate) use self::draft::rewritten;
#[cfg(test)]
pub(crate) use self::round::AGREED;
use self::round::DraftRound;
use self::verify::VerifyStep;
pub(crate) use self::verify::{PromptChunks, Verified};

use super::state::Requests;
use crate::engine::scheduler::Id;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::request::sampling::{Choice, SamplingParams};
use crate::sampling::{History, Row, Sampled, sample};

/// The rows that decode together.
pub(crate) struct Rows<'m> {
    model: &'m LoadedModel,
    cache: ModelCache,
    slots: Vec<Option<Id>>,
    /// The adapters of rows that have one.
    adapters: BTreeMap<Id, RowAdapter>,
    /// Queues steps. It is dropped when the pool gets other arrays.
    replay: Option<Replay>,
    /// Queue verify steps, by the number of slots and the places of each. They are dropped with `replay`.
    verifies: BTreeMap<(usize, usize), VerifyStep>,
    /// Queue the drafts of the model's head, by the number of slots and their tokens. They are dropped with `replay`.
    draws: BTreeMap<(usize, usize), Replay>,
    /// The same for heads that read pairs, with the positions of the step before, by the number of slots, the places of
    /// each and the drafts.
    rounds: BTreeMap<(usize, usize, usize), DraftRound>,
    /// Bytes of the recurrent states of a row.
    state_bytes: usize,
    /// Whether verify steps have a fixed shape, which costs places without tokens.
    pads: bool,
    /// The last step, if it was queued with `replay`, so that the next step may repeat it.
    repeatable: Option<Repeatable>,
    /// The adapters of the tokens of the last step of one token a row, and of its slots.
    token_adapters: Option<(Vec<Option<RowAdapter>>, TokenAdapters)>,
    /// The step whose tokens have not been read.
    queued: Option<Queued>,
    /// The step after `queued`, if its tokens are chosen only after those of `queued` are read.
    undecided: Option<Undecided>,
    /// What the drafting head has not read yet.
    head_input: HeadInput,
}

/// A step that the next step may repeat.
struct Repeatable {
    sampled: Sampled,
    /// The adapter of each slot.
    adapters: Vec<Option<RowAdapter>>,
}

/// A step that is queued and not read.
pub(crate) struct Queued {
    sampled: Sampled,
    /// For each slot, the request that gets its token, if one does.
    owners: Vec<Option<Id>>,
    /// The logits `[1, V]` of rows with a processor.
    on_host: Vec<(Id, Array)>,
}

/// A step whose logits are being computed and whose tokens are not chosen.
struct Undecided {
    logits: Array,
    inputs: Vec<Input>,
    owners: Vec<Option<Id>>,
    on_host: Vec<(Id, Array)>,
}

/// The result of queueing a step.
#[derive(Default)]
pub(crate) struct Stepped {
    /// The previous step, whose tokens are read next.
    pub(crate) previous: Option<Queued>,
    /// The requests that took a token. Empty if no row had one to take.
    pub(crate) ids: Vec<Id>,
}

/// The input of a row to a step.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    /// Nothing: the slot is empty, or its row is at its end.
    Nothing,
    /// A token that was read. Its successor is known too, or is chosen now.
    Known { token: u32, is_last: bool },
    /// The token that the previous step chooses.
    Unread,
}

impl<'m> Rows<'m> {
    /// No rows yet, in the pool of `cache`, which has none.
    pub(crate) fn new(model: &'m LoadedModel, cache: ModelCache) -> Self {
        Self {
            cache,
            slots: Vec::new(),
            adapters: BTreeMap::new(),
            replay: None,
            verifies: BTreeMap::new(),
            state_bytes: model.state_costs().iter().map(|cost| cost.row_bytes).sum(),
            draws: BTreeMap::new(),
            rounds: BTreeMap::new(),
            pads: false,
            repeatable: None,
            token_adapters: None,
            queued: None,
            undecided: None,
            head_input: HeadInput::default(),
            model,
        }
    }

    /// Whether a step is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.queued.is_some()
    }

    /// Takes the step in progress, to read it.
    pub(crate) fn take_queued(&mut self) -> Option<Queued> {
        self.queued.take()
    }

    /// Rows of the cache, in use or not.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether at the next position of the row in a slot the model would embed all its positions
    /// differently.
    pub(crate) fn is_at_switch(&self, slot: usize) -> bool {
        let switch = self.model.model().switches_after();
        switch.is_some_and(|switch| self.cache.lens()[slot] == switch)
    }

    /// Frees the row in a slot.
    pub(crate) fn free(&mut self, slot: usize) {
        if let Some(id) = self.slots[slot].take() {
            self.adapters.remove(&id);
        }
        self.cache.clear(slot);
        self.head_input.clear(slot);
    }

    /// Sets the adapter of a row that joins.
    pub(crate) fn set_adapter(&mut self, id: Id, adapter: RowAdapter) {
        self.adapters.insert(id, adapter);
    }

    /// The adapter of the row in each slot.
    fn slot_adapters(&self) -> Vec<Option<RowAdapter>> {
        let slots = self.slots.iter();
        slots
            .map(|id| self.adapters.get(id.as_ref()?).copied())
            .collect()
    }

    /// Frees all rows.
    pub(crate) fn reset(&mut self) {
        *self = self.emptied();
    }

    /// A batch without rows, in the same pool.
    fn emptied(&mut self) -> Self {
        self.forget_steps();
        Self {
            pads: self.pads,
            replay: self.replay.take(),
            verifies: take(&mut self.verifies),
            draws: take(&mut self.draws),
            rounds: take(&mut self.rounds),
            ..Self::new(self.model, self.cache.beside(0))
        }
    }

    /// The same batch, whose verify steps have a fixed shape.
    pub(crate) fn padding(mut self) -> Self {
        self.pads = true;
        self
    }

    /// Bytes of slots for the recurrent states after single tokens.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.cache.spare_state_bytes()
    }

    /// Frees these slots.
    pub(crate) fn narrow(&mut self) -> Result<()> {
        self.drop_steps();
        self.cache.narrow_states()?;
        Ok(async_eval(self.cache.row_arrays())?)
    }

    /// Before the batch gets another number of slots: the next step repeats none before. Captured steps are kept for
    /// the time when there are as many slots again, but not very many.
    fn forget_steps(&mut self) {
        const MANY: usize = 24;
        self.repeatable = None;
        self.rounds.values_mut().for_each(DraftRound::forget);
        if self.verifies.len() + self.draws.len() + self.rounds.len() > MANY {
            self.drop_drafting_steps();
        }
        // Recurrent states are in other arrays then, which graphs would keep in memory. How NCCL works with many graphs was
        // not measured.
        if self.state_bytes > 0 || self.model.options().ranks.size() > 1 {
            self.drop_drafting_steps();
            self.replay = None;
        }
    }

    fn drop_drafting_steps(&mut self) {
        self.verifies.clear();
        self.draws.clear();
        self.rounds.clear();
    }

    /// Drops all captured steps, which hold the arrays of the pool, before it gets others.
    fn drop_steps(&mut self) {
        self.forget_steps();
        self.drop_drafting_steps();
        self.replay = None;
    }

    /// A cache whose rows can join the batch without a copy.
    pub(crate) fn new_cache(&self, rows: usize) -> ModelCache {
        self.cache.beside(rows)
    }

    /// The cache of all rows, of which the drafting head may not have read the last positions.
    pub(crate) fn held(&self) -> &ModelCache {
        &self.cache
    }

    /// The pages of the pool in use, for each group of layers.
    pub(crate) fn page_use(&self) -> Vec<PageUse> {
        self.cache.page_use()
    }

    /// Drops the memory of the pool after a failed evaluation.
    pub(crate) fn recover(&mut self) {
        self.drop_steps();
        self.cache.recover();
    }

    /// Frees the memory of the pool if no row and no stored prefix is in it.
    pub(crate) fn release(&mut self) {
        if self.cache.release() {
            self.drop_steps();
        }
    }

    /// The number of slots with a row.
    pub(crate) fn used(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// The slots without a row.
    fn empty(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, id)| id.is_none().then_some(slot))
    }

    /// Removes slots without a row until there are at most `slots`, and frees memory that no row needs.
    pub(crate) fn compact(&mut self, slots: usize) -> Result<()> {
        let mut kept: Vec<usize> = (0..self.slots.len())
            .filter(|&slot| self.slots[slot].is_some())
            .collect();
        if kept.is_empty() {
            self.reset();
            return Ok(());
        }
        self.forget_steps();
        self.read_head_input()?;
        if slots < self.slots.len() {
            let spare = slots.saturating_sub(kept.len());
            kept.extend(self.empty().take(spare));
            self.cache.select(&kept)?;
            self.slots = kept.iter().map(|&slot| self.slots[slot]).collect();
        }
        Ok(eval(self.cache.arrays())?)
    }

    /// Waits until the cache is computed.
    pub(crate) fn finish(&self) -> Result<()> {
        Ok(eval(self.cache.arrays())?)
    }

    /// Adds rows of `new` to the batch, in empty slots first. If there are too few, the batch gets
    /// `slots` slots. No step may be in progress.
    /// under way.
    pub(crate) fn join(
        &mut self,
        new: ModelCache,
        rows: &[(usize, Id)],
        slots: usize,
    ) -> Result<()> {
        self.read_head_input()?;
        let empty: Vec<usize> = self.empty().collect();
        let (first, rest) = rows.split_at(empty.len().min(rows.len()));
        if !rest.is_empty() {
            self.forget_steps();
        }
        for (&slot, &(row, id)) in empty.iter().zip(first) {
            self.cache.put(slot, &new, row)?;
            self.slots[slot] = Some(id);
        }
        if !rest.is_empty() {
            self.append(new, rest, slots)?;
        }
        // Evaluated separately from the step, whose graph then stays the same.
        Ok(async_eval(self.cache.row_arrays())?)
    }

    /// Adds rows of `new` after the slots, and then empty slots until there are `slots`.
    fn append(&mut self, mut new: ModelCache, rows: &[(usize, Id)], slots: usize) -> Result<()> {
        let (rows, ids): (Vec<usize>, Vec<Id>) = rows.iter().copied().unzip();
        if !rows.iter().copied().eq(0..new.rows()) {
            new.select(&rows)?;
        }
        let spare = slots.saturating_sub(self.slots.len() + rows.len());
        if spare > 0 {
            new.join(&self.cache.beside(spare))?;
        }
        if self.slots.is_empty() {
            self.cache = new;
        } else {
            self.cache.join(&new)?;
        }
        self.slots.extend(ids.into_iter().map(Some));
        self.slots.extend(std::iter::repeat_n(None, spare));
        Ok(())
    }

    /// Takes the cache of a batch whose only row is that of `id`. The batch is empty afterwards.
    pub(crate) fn take(&mut self, id: Id) -> Option<ModelCache> {
        if self.slots[..] != [Some(id)] || self.read_head_input().is_err() {
            return None;
        }
        let new = self.emptied();
        Some(std::mem::replace(self, new).cache)
    }

    /// Queues a step after the one in progress.
    pub(crate) fn step(&mut self, requests: &Requests<'_>) -> Result<Stepped> {
        let previous = self.queued.take();
        let ids = self.next(requests, previous.as_ref())?;
        Ok(Stepped { previous, ids })
    }

    /// Queues the step that follows `previous`. Returns the requests that took a token.
    fn next(&mut self, requests: &Requests<'_>, previous: Option<&Queued>) -> Result<Vec<Id>> {
        let inputs: Vec<Input> = (0..self.slots.len())
            .map(|slot| self.input(slot, requests, previous))
            .collect();
        let widths: Vec<usize> = inputs
            .iter()
            .map(|&input| usize::from(input != Input::Nothing))
            .collect();
        if widths.iter().all(|&width| width == 0) {
            return Ok(Vec::new());
        }
        let taken = |slots: &[Option<Id>]| {
            let taken = inputs.iter().zip(slots);
            let taken = taken.filter(|(input, _)| **input != Input::Nothing);
            taken.filter_map(|(_, &id)| id).collect()
        };
        if self.repeat(requests, previous, &inputs, &widths)? {
            return Ok(taken(&self.slots));
        }
        self.repeatable = None;
        let unread = previous.filter(|_| inputs.contains(&Input::Unread));
        let tokens = tokens(&inputs, unread)?;
        let axis = tokens.expand_dims(0)?;
        let model = self.model.model();
        let adapters = self.slot_adapters();
        let mut step = (self.cache).begin_slots(model.decoder_states(), None, &widths)?;
        step.keep_all();
        // The same arrays as in the step before, so that both have the same graph.
        let held = self.token_adapters.take();
        let token_adapters = match held.filter(|(slots, _)| *slots == adapters) {
            Some((_, held)) => Some(held),
            None => TokenAdapters::of_step(&step, &adapters)?,
        };
        let scope = token_adapters.as_ref();
        let features = with_adapters(scope, || model.run(&axis, &mut step))?;
        let mut small = vec![tokens.clone()];
        small.extend(step.inputs());
        let is_in_place = step.is_in_place();
        step.commit_all()?;
        let logits = with_adapters(scope, || self.model.logits(&features[1]))?;
        let logits = logits.squeeze(0)?;
        self.token_adapters = token_adapters.map(|tokens| (adapters.clone(), tokens));
        let head_features = self.model.head_features(&features)?;

        let mut owners = owners(&inputs, &self.slots);
        let mut on_host = Vec::new();
        for (slot, owners) in owners.iter_mut().enumerate() {
            if let Some(id) = owners.take_if(|id| requests[id].processor.is_some()) {
                on_host.push((id, row_of(&logits, slot)?));
            }
        }
        let ids = taken(&self.slots);
        let needs_last = |id: &Id| requests[id].sequence.needs_last();
        let needs_tokens = owners.iter().flatten().any(needs_last);
        let step = Undecided {
            logits,
            inputs,
            owners,
            on_host,
        };
        if needs_tokens {
            async_eval(step.on_host.iter().map(|(_, logits)| logits))?;
            async_eval([&step.logits])?;
            self.undecided = Some(step);
        } else {
            let last = unread.map(|_| &tokens);
            // A replay computes no states that are new arrays.
            let is_replayed = is_in_place && step.on_host.is_empty();
            let replay = match is_replayed {
                true => Some((self.replay()?, &small[..], head_features.as_ref())),
                false => None,
            };
            let queued = step.choose(requests, last, replay)?;
            self.repeatable = is_replayed.then(|| Repeatable {
                sampled: queued.sampled.clone(),
                adapters,
            });
            self.queued = Some(queued);
        }
        let firsts = (0..self.slots.len()).collect();
        self.add_head_input(axis, head_features, firsts, widths)?;
        Ok(ids)
    }

    /// The replay that queues steps that may be repeated.
    fn replay(&mut self) -> Result<&mut Replay> {
        if self.replay.is_none() {
            self.replay = Some(Replay::new()?);
        }
        Ok(self.replay.as_mut().expect("it was made"))
    }

    fn input(&self, slot: usize, requests: &Requests, previous: Option<&Queued>) -> Input {
        let Some(id) = self.slots[slot] else {
            return Input::Nothing;
        };
        let len = self.cache.lens()[slot];
        if self.model.model().switches_after() == Some(len) || requests[&id].is_paused() {
            return Input::Nothing;
        }
        let sequence = &requests[&id].sequence;
        let ids = sequence.history().ids();
        if let Some(&token) = ids.get(len) {
            let is_last = ids.len() == len + 1;
            return Input::Known { token, is_last };
        }
        let is_unread = previous.is_some_and(|queued| queued.owners.get(slot) == Some(&Some(id)));
        match is_unread && sequence.remaining() > 1 {
            true => Input::Unread,
            false => Input::Nothing,
        }
    }

    /// Waits for the tokens of a step, and returns those of rows that are still in the batch. A
    /// token is `None` if its logits are not finite.
    pub(crate) fn read(&self, queued: &Queued) -> Result<Vec<(Id, Option<Choice>)>> {
        let choices = queued.sampled.read_any()?;
        let found = choices.into_iter().zip(&queued.owners).enumerate();
        Ok(found
            .filter_map(|(slot, (choice, &id))| {
                let id = id?;
                (self.slots.get(slot) == Some(&Some(id))).then_some((id, choice))
            })
            .collect())
    }

    /// The logits of a step's rows with a processor that are still in the batch.
    pub(crate) fn on_host(&self, queued: Queued) -> Vec<(Id, Array)> {
        let mut rows = queued.on_host;
        rows.retain(|&(id, _)| self.slots.contains(&Some(id)));
        rows
    }

    /// The cache of all rows, after the drafting head has read all positions.
    ///
    /// # Errors
    /// That computation fails.
    pub(crate) fn whole_cache(&mut self) -> Result<&ModelCache> {
        self.read_head_input()?;
        Ok(&self.cache)
    }

    /// Queues the step that follows `previous` as a repetition of the last step. This requires that
    /// the sampler's settings differ only in numbers. Returns whether the step was queued; if not,
    /// nothing has changed.
    fn repeat(
        &mut self,
        requests: &Requests<'_>,
        previous: Option<&Queued>,
        inputs: &[Input],
        widths: &[usize],
    ) -> Result<bool> {
        let adapters = self.slot_adapters();
        let (Some(last), Some(replay)) = (&self.repeatable, &mut self.replay) else {
            return Ok(false);
        };
        if !replay.repeats() || last.adapters != adapters {
            return Ok(false);
        }
        let owners = owners(inputs, &self.slots);
        let needs_host =
            |id: &Id| requests[id].processor.is_some() || requests[id].sequence.needs_last();
        if owners.iter().flatten().any(needs_host) {
            return Ok(false);
        }
        let shortened = shortened(inputs, &owners, requests);
        let rows = settings(inputs, &owners, requests, Some(&shortened));
        let unread = previous.filter(|_| inputs.contains(&Input::Unread));
        let tokens = tokens(inputs, unread)?;
        let Some(step) = self.cache.begin_repeated(widths)? else {
            return Ok(false);
        };
        let mut small = vec![tokens.clone()];
        small.extend_from_slice(step.inputs());
        let written = step.written();
        let repeated = (last.sampled).start_repeated(&rows, true, replay, &small, &written)?;
        let Some((sampled, head_features)) = repeated else {
            return Ok(false);
        };
        step.commit();
        self.repeatable = Some(Repeatable {
            sampled: sampled.clone(),
            adapters,
        });
        self.queued = Some(Queued {
            sampled,
            owners,
            on_host: Vec::new(),
        });
        let firsts = (0..self.slots.len()).collect();
        let axis = tokens.expand_dims(0)?;
        self.add_head_input(axis, head_features, firsts, widths.to_vec())?;
        Ok(true)
    }

    /// The requests whose next tokens are chosen by [`choose`](Self::choose). They belong to a step
    /// with a grammar among its rows, whose masks depend on the tokens of the previous step.
    pub(crate) fn undecided(&self) -> Vec<Id> {
        let Some(step) = &self.undecided else {
            return Vec::new();
        };
        let owners = step.owners.iter().zip(&self.slots);
        let stays = owners.filter(|(owner, slot)| owner == slot);
        stays.filter_map(|(&owner, _)| owner).collect()
    }

    /// Chooses the tokens of such a step, after the tokens of the previous step were read.
    pub(crate) fn choose(&mut self, requests: &Requests<'_>) -> Result<()> {
        let Some(mut step) = self.undecided.take() else {
            return Ok(());
        };
        // Requests may have ended with the tokens that were read.
        for (owner, slot) in step.owners.iter_mut().zip(&self.slots) {
            *owner = owner.filter(|id| *slot == Some(*id));
        }
        self.queued = Some(step.choose(requests, None, None)?);
        Ok(())
    }
}

impl Undecided {
    /// Queues the choice of the tokens. `last` has the last token of each row, if some were not
    /// read. `replay` is given for a step that may be repeated, together with the small arrays that
    /// it has made and its result for the drafting head.
    fn choose(
        self,
        requests: &Requests<'_>,
        last: Option<&Array>,
        replay: Option<(&mut Replay, &[Array], Option<&Array>)>,
    ) -> Result<Queued> {
        let sampled = choose(&self.logits, &self.owners, &self.inputs, requests, last)?;
        match replay {
            Some((replay, inputs, beside)) => sampled.start_with(replay, inputs, beside)?,
            None => sampled.start()?,
        }
        async_eval(self.on_host.iter().map(|(_, logits)| logits))?;
        Ok(Queued {
            sampled,
            owners: self.owners,
            on_host: self.on_host,
        })
    }
}

/// The replay of a size, made at its first use.
fn replay_of<K: Ord>(all: &mut BTreeMap<K, Replay>, size: K) -> Result<&mut Replay> {
    Ok(match all.entry(size) {
        Entry::Occupied(held) => held.into_mut(),
        Entry::Vacant(new) => new.insert(Replay::new()?),
    })
}

/// For each slot, the request that gets the token that is chosen behind its input, if one does.
fn owners(inputs: &[Input], slots: &[Option<Id>]) -> Vec<Option<Id>> {
    let owner = |(input, &id): (&Input, &Option<Id>)| match input {
        Input::Nothing | Input::Known { is_last: false, .. } => None,
        Input::Known { .. } | Input::Unread => id,
    };
    inputs.iter().zip(slots).map(owner).collect()
}

/// The histories, without their last tokens, of rows whose last token is known.
fn shortened(
    inputs: &[Input],
    owners: &[Option<Id>],
    requests: &Requests<'_>,
) -> Vec<Option<History>> {
    let shortened = |(input, &id): (&Input, &Option<Id>)| match (input, id) {
        (Input::Known { .. }, Some(id)) => Some(requests[&id].sequence.history().without_last()),
        _ => None,
    };
    inputs.iter().zip(owners).map(shortened).collect()
}

/// The sampler's settings of each slot. The last token of a row is pending if it is not read, or if
/// there is a [shortened](shortened()) history for it.
fn settings<'r>(
    inputs: &[Input],
    owners: &[Option<Id>],
    requests: &'r Requests<'_>,
    shortened: Option<&'r [Option<History>]>,
) -> Vec<Row<'r>> {
    let rows = inputs.iter().zip(owners).enumerate();
    let row = |(slot, (input, id)): (usize, (&Input, &Option<Id>))| {
        let Some(id) = id else {
            return unused();
        };
        let sequence = &requests[id].sequence;
        let row = match (input, shortened) {
            (Input::Unread, Some(_)) => sequence.row_behind_unread(),
            _ => sequence.row(),
        };
        let own = shortened.and_then(|shortened| shortened[slot].as_ref());
        Row {
            history: own.unwrap_or(row.history),
            ..row
        }
    };
    rows.map(row).collect()
}

/// Chooses a token for every row. `last` has the last token of each row, if some were not read.
fn choose(
    logits: &Array,
    owners: &[Option<Id>],
    inputs: &[Input],
    requests: &Requests,
    last: Option<&Array>,
) -> Result<Sampled> {
    // If the last token of some row is not read, the histories of all rows end before their last token.
    let shortened = last.map(|_| shortened(inputs, owners, requests));
    let rows = settings(inputs, owners, requests, shortened.as_deref());
    sample(logits, &rows, last)
}

/// The tokens of a step: U32 `[B]`.
fn tokens(inputs: &[Input], unread: Option<&Queued>) -> Result<Array> {
    let known: Vec<u32> = inputs
        .iter()
        .map(|&input| match input {
            Input::Known { token, .. } => token,
            Input::Nothing | Input::Unread => 0,
        })
        .collect();
    let b = inputs.len() as i32;
    let Some(unread) = unread else {
        return Ok(Array::from_slice(&known, &[b])?);
    };
    // Rows without an input get any valid token.
    if !inputs
        .iter()
        .any(|input| matches!(input, Input::Known { .. }))
    {
        return Ok(unread.sampled.ids().clone());
    }
    let is_unread: Vec<bool> = inputs.iter().map(|&input| input == Input::Unread).collect();
    let is_unread = Array::from_slice(&is_unread, &[b])?;
    let tokens = is_unread.select(unread.sampled.ids(), &Array::from_slice(&known, &[b])?)?;
    // Evaluated separately from the step, whose graph then stays the same.
    async_eval([&tokens])?;
    Ok(tokens)
}

/// The sampler's settings of a slot whose token is not used.
fn unused() -> Row<'static> {
    static GREEDY: LazyLock<SamplingParams> = LazyLock::new(SamplingParams::default);
    static NOTHING: LazyLock<History> = LazyLock::new(|| History::new(Vec::new()));
    Row {
        params: &GREEDY,
        seed: 0,
        history: &NOTHING,
        ahead: 0,
        logprobs: None,
        mask: None,
    }
}

/// Row `row` of `[B, V]`: `[1, V]`.
pub(super) fn row_of(logits: &Array, row: usize) -> Result<Array> {
    let row = row as i32;
    Ok(logits.slice_axis(0, row, row + 1)?)
}

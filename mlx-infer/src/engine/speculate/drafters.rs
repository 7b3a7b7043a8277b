//! Drafters: they propose tokens for the rows of a batch.

mod draft_model;
mod head;

use std::collections::BTreeMap;

use mlx_core::Array;
use mlx_nn::ModelCache;

use self::draft_model::DraftModel;
use self::head::Head;

use crate::engine::rows::Rows;
use crate::engine::scheduler::Id;
use crate::engine::state::Requests;
use crate::error::Result;
use crate::model::LoadedModel;

/// Proposes tokens for rows of the batch.
pub(crate) trait Drafter {
    /// Updates the drafter after rows have joined, left or moved. It drops its state of rows that
    /// are gone.
    ///
    /// # Errors
    /// A computation fails.
    fn follow(&mut self, _rows: &Rows<'_>, _tasks: &Requests<'_>) -> Result<()> {
        Ok(())
    }

    /// Drops all state of the drafter. Memory of its own that is not reserved is freed.
    fn reset(&mut self) {}

    /// Drops what a failed evaluation has left in memory of its own.
    fn recover(&mut self) {}

    /// Its cache, if it has one beside that of the batch.
    fn cache(&self) -> Option<&ModelCache> {
        None
    }

    /// Does the work that must come before a draft, such as computing the prompt in a draft model. Removes the rows
    /// from `wanted` that cannot draft yet.
    ///
    /// # Errors
    /// A computation fails.
    fn prepare(
        &mut self,
        _rows: &mut Rows<'_>,
        _tasks: &Requests<'_>,
        _wanted: &mut BTreeMap<Id, usize>,
    ) -> Result<()> {
        Ok(())
    }

    /// Adds a draft for each of the rows `wanted`, of at most its number of tokens. No step may be
    /// in progress. The batch's cache is unchanged.
    ///
    /// # Errors
    /// A computation fails.
    fn draft(
        &mut self,
        rows: &mut Rows<'_>,
        requests: &mut Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
        drafts: &mut Drafts,
    ) -> Result<()>;
}

/// The drafter that computes drafts for rows of `model`, if there is one: a draft model, or the model's head. The rows of
/// a draft model take pages that are reserved, if there are some.
pub(crate) fn of(
    model: &LoadedModel,
    reserved: Option<ModelCache>,
) -> Option<Box<dyn Drafter + '_>> {
    match model.draft_model() {
        Some(draft) => {
            let cache = reserved.unwrap_or_else(|| draft.new_cache(0));
            Some(Box::new(DraftModel::new(draft, cache)))
        }
        None if model.model().draft_head().is_some() => Some(Box::new(Head)),
        None => None,
    }
}

/// The drafts of a step.
#[derive(Default)]
pub(crate) struct Drafts {
    /// Drafts whose tokens the host knows.
    known: BTreeMap<Id, Vec<u32>>,
    /// Drafts that are computed but not read: their tokens, U32 `[slots, K]`, and the number of tokens of each row.
    drawn: Option<(Array, BTreeMap<Id, usize>)>,
}

impl Drafts {
    /// A draft that the host knows.
    pub(crate) fn add(&mut self, id: Id, tokens: Vec<u32>) {
        if !tokens.is_empty() {
            self.known.insert(id, tokens);
        }
    }

    /// Adds computed drafts: `tokens` is U32 `[slots, K]`.
    pub(crate) fn draw(&mut self, tokens: Array, lens: BTreeMap<Id, usize>) {
        self.drawn = Some((tokens, lens));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.drawn.is_none()
    }

    /// The draft of a row, if the host knows it.
    pub(crate) fn known(&self, id: Id) -> Option<&[u32]> {
        self.known.get(&id).map(Vec::as_slice)
    }

    /// Shortens a known draft.
    pub(crate) fn shorten(&mut self, id: Id, len: usize) {
        if let Some(tokens) = self.known.get_mut(&id) {
            tokens.truncate(len);
        }
        self.known.retain(|_, tokens| !tokens.is_empty());
    }

    /// The computed drafts, U32 `[slots, K]`.
    pub(crate) fn tokens(&self) -> Option<&Array> {
        self.drawn.as_ref().map(|(tokens, _)| tokens)
    }

    /// The number of tokens of a row's computed draft.
    pub(crate) fn drawn(&self, id: Id) -> usize {
        let lens = self.drawn.iter().map(|(_, lens)| lens.get(&id));
        lens.flatten().next().copied().unwrap_or(0)
    }

    /// The number of tokens of a row's draft.
    pub(crate) fn len(&self, id: Id) -> usize {
        self.known(id).map_or(self.drawn(id), <[u32]>::len)
    }
}

/// Drafts from the rows' own texts.
pub(crate) struct Lookup;

impl Drafter for Lookup {
    fn draft(
        &mut self,
        _rows: &mut Rows<'_>,
        requests: &mut Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
        drafts: &mut Drafts,
    ) -> Result<()> {
        for (&id, &most) in wanted {
            if let Some(request) = requests.get_mut(&id) {
                drafts.add(id, request.sequence.look_up(most));
            }
        }
        Ok(())
    }
}

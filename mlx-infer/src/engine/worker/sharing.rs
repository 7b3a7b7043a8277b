//! The pages that requests share: they count once.

use std::collections::BTreeMap;

use mlx_nn::{ModelCache, PAGE, WholePages};

use super::super::prefixes::Prefixes;
use super::super::rows::{Rows, rewritten};
use super::super::state::{RequestState, Requests};
use super::prefill::prefix_kind;
use crate::engine::scheduler::{Id, Scheduler, Status};
use crate::model::LoadedModel;

/// For each admitted request, how many of its pages in each group of layers an older one holds too,
/// and the pages of all. A request that follows another one will have all whole pages of its prompt.
pub(super) fn shared_pages(
    scheduler: &Scheduler,
    rows: &Rows<'_>,
    requests: &Requests<'_>,
) -> (BTreeMap<Id, Vec<usize>>, WholePages) {
    let by_age = scheduler.by_age(requests).into_iter();
    let (mut ids, mut held, mut shared) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (id, request) in by_age.filter_map(|id| Some((id, requests.get(&id)?))) {
        let slot = request.progress.slot;
        let slot = slot.map(|slot| (rows.held(), slot, rows.settled(slot)));
        let partial = request.partial.as_ref().map(|cache| {
            let settled = cache.lens()[0].saturating_sub(rewritten(rows.model()));
            (cache, 0, settled)
        });
        if let Some(row) = slot.or(partial) {
            ids.push(id);
            held.push(row);
        } else if request.progress.is_behind(requests) {
            let prompt = request.progress.prompt();
            let whole = prompt.saturating_sub(rewritten(rows.model())) / PAGE;
            shared.insert(id, rows.held().whole_pages(whole));
        }
    }
    let (of_rows, whole) = ModelCache::shared_pages(held);
    shared.extend(ids.into_iter().zip(of_rows));
    (shared, whole)
}

/// How many pages, in each group of layers, the row of a request that waits will share with rows, which
/// have the pages `rows`. A row that is about to write to a page leaves it for a copy.
pub(super) fn in_rows(
    prefixes: &Prefixes,
    model: &LoadedModel,
    rows: &WholePages,
    request: &RequestState<'_>,
) -> Vec<usize> {
    // A row that comes back has its own pages, which may be others.
    if prefixes.is_off() || request.progress.status() == Status::Preempted {
        return Vec::new();
    }
    let kind = prefix_kind(model, request.prompt().len(), &request.sequence);
    prefixes.in_rows(request.prompt(), kind, rewritten(model), rows)
}

//! Drafts by the model's own head for multi-token prediction.

use std::collections::BTreeMap;

use mlx_core::Array;

use super::{Drafter, Drafts};
use crate::engine::rows::Rows;
use crate::engine::scheduler::Id;
use crate::engine::state::Requests;
use crate::error::Result;
use crate::request::speculative::MOST;

/// The model's head. Its states are in the batch's cache.
pub(crate) struct Head;

impl Drafter for Head {
    /// The first pass of a draft reads the positions of the step before it. If the head is further behind, it catches up
    /// here, outside the measured time of the step.
    fn prepare(
        &mut self,
        rows: &mut Rows<'_>,
        _tasks: &Requests<'_>,
        _wanted: &mut BTreeMap<Id, usize>,
    ) -> Result<()> {
        rows.bound_head_input(MOST + 1)
    }

    fn draft(
        &mut self,
        rows: &mut Rows<'_>,
        requests: &mut Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
        drafts: &mut Drafts,
    ) -> Result<()> {
        let mut before: Option<Array> = None;
        let model = rows.model();
        rows.draw(requests, wanted, model, drafts, |rows, tokens, widths| {
            let number = tokens.len() - 1;
            let next = match before.take() {
                None => rows.head_behind(&tokens[number], widths)?,
                Some(before) => rows.head_behind_draft(&tokens[number], &before, number, widths)?,
            };
            before = Some(next.clone());
            Ok(next)
        })
    }
}

//! Drafts by a head: the model's own for multi-token prediction, or a drafter of another folder that reads the model.

use std::collections::BTreeMap;

use mlx_core::Array;
use mlx_models::Drafting;

use super::{Drafter, Drafts};
use crate::engine::rows::Rows;
use crate::engine::scheduler::Id;
use crate::engine::state::Requests;
use crate::error::Result;
use crate::request::speculative::MOST;

/// The head. Its states are in the batch's cache.
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
        let head = model.model().drafting()?;
        if let Drafting::Block(block) = head.manner() {
            return draft_block(rows, requests, wanted, drafts, block);
        }
        if rows.draw_round(requests, wanted, drafts)? {
            return Ok(());
        }
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

/// Drafts of a head that makes all drafts in one pass, of at most `block` - 1 tokens.
fn draft_block(
    rows: &mut Rows<'_>,
    requests: &mut Requests<'_>,
    wanted: &BTreeMap<Id, usize>,
    drafts: &mut Drafts,
    block: usize,
) -> Result<()> {
    let most = |(&id, &drafts): (&Id, &usize)| (id, drafts.min(block - 1));
    let wanted: BTreeMap<Id, usize> = wanted.iter().map(most).collect();
    rows.read_head_input()?;
    let mut features: Option<Array> = None;
    let model = rows.model();
    rows.draw(requests, &wanted, model, drafts, |rows, tokens, widths| {
        let number = tokens.len() - 1;
        let block = match features.take() {
            None => rows.head_block(&tokens[0], block, widths)?,
            Some(features) => features,
        };
        let next = block
            .slice_axis(1, number as i32, number as i32 + 1)?
            .squeeze(1)?;
        features = Some(block);
        Ok(next)
    })
}

//! Drafts that are computed token by token without a host read between them.

use std::collections::BTreeMap;

use mlx_core::ops::{concat, create::full};
use mlx_core::{Array, async_eval};
use mlx_models::Model;
#[cfg(test)]
use mlx_nn::ModelCache;

use super::{Input, Rows, unused};
use crate::engine::scheduler::Id;
use crate::engine::speculate::drafters::Drafts;
use crate::engine::task::Tasks;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::sampling::{Row, sample};

/// Drafts use only this number of first tokens of a vocabulary that has more than twice as many. Tokenizers give their
/// frequent tokens small ids, and the product with the output head is most of the cost of a draft (Zhao et al. 2025,
/// "FR-Spec", arXiv:2502.14856).
const VOCABULARY: i32 = 32_768;

impl<'m> Rows<'m> {
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
        tasks: &Tasks<'_>,
        wanted: &BTreeMap<Id, usize>,
        by: &LoadedModel,
        drafts: &mut Drafts,
        mut next: impl FnMut(&mut Self, &[Array], &[usize]) -> Result<Array>,
    ) -> Result<()> {
        let lines: Vec<Option<(Id, u32, usize)>> = (0..self.slots.len())
            .map(|slot| self.drawing(slot, tasks, wanted))
            .collect();
        let mosts = lines.iter().flatten().map(|&(_, _, most)| most);
        let Some(most) = mosts.max() else {
            return Ok(());
        };
        let last = lines
            .iter()
            .map(|line| line.map_or(0, |(_, token, _)| token));
        let last: Vec<u32> = last.collect();
        let mut tokens = vec![Array::from_slice(&last, &[last.len() as i32])?];
        for number in 0..most {
            let draws = |line: &Option<(Id, u32, usize)>| {
                line.filter(|&(_, _, most)| number < most)
                    .map(|(id, ..)| id)
            };
            let ids: Vec<Option<Id>> = lines.iter().map(draws).collect();
            let widths: Vec<usize> = ids.iter().map(|id| usize::from(id.is_some())).collect();
            let features = next(self, &tokens, &widths)?;
            let row = |id: &Option<Id>| match id {
                Some(id) => {
                    let row = tasks[id].sequence.row();
                    Row {
                        ahead: number,
                        logprobs: None,
                        mask: row.mask.filter(|_| number == 0),
                        ..row
                    }
                }
                None => unused(),
            };
            let settings: Vec<Row<'_>> = ids.iter().map(row).collect();
            let logits = logits(by.model(), self.model.vocab() as i32, &features, &settings)?;
            tokens.push(sample(&logits, &settings, None)?.ids().clone());
        }
        let columns = tokens[1..].iter().map(|tokens| tokens.expand_dims(-1));
        let columns = columns.collect::<mlx_core::Result<Vec<_>>>()?;
        let drawn = concat(&columns, 1)?;
        async_eval([&drawn])?;
        let lens = lines.into_iter().flatten();
        drafts.draw(drawn, lens.map(|(id, _, most)| (id, most)).collect());
        Ok(())
    }

    /// The request of a slot that drafts, its last token, and how many tokens it drafts.
    fn drawing(
        &self,
        slot: usize,
        tasks: &Tasks<'_>,
        wanted: &BTreeMap<Id, usize>,
    ) -> Option<(Id, u32, usize)> {
        let id = self.slots[slot]?;
        let most = *wanted.get(&id)?;
        match self.input(slot, tasks, None) {
            Input::Known {
                token,
                is_last: true,
            } if most > 0 => Some((id, token, most)),
            _ => None,
        }
    }
}

/// Logits of `by` for drafts. They cover only a part of a large vocabulary, unless the settings of a row name tokens,
/// and at most the `vocab` tokens of the model that verifies.
fn logits(by: &dyn Model, vocab: i32, features: &Array, rows: &[Row<'_>]) -> Result<Array> {
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

//! Drafts by the model's own head for multi-token prediction.

use std::collections::BTreeMap;

use mlx_core::ops::concat;

use super::{Drafter, Drafts};
use crate::engine::rows::Rows;
use crate::engine::task::Tasks;
use crate::error::Result;
use crate::scheduler::Id;

/// The model's head. Its states are in the batch's cache and follow every step.
pub(crate) struct Head;

impl Drafter for Head {
    fn draft(
        &mut self,
        rows: &mut Rows<'_>,
        tasks: &mut Tasks<'_>,
        wanted: &BTreeMap<Id, usize>,
        drafts: &mut Drafts,
    ) -> Result<()> {
        let mut features = Vec::new();
        let model = rows.model();
        rows.draw(tasks, wanted, model, drafts, |rows, tokens, widths| {
            // Each draft token runs the head, which is one layer, over all draft tokens before it. No state is kept.
            let columns = tokens.iter().map(|tokens| tokens.expand_dims(-1));
            let columns = columns.collect::<mlx_core::Result<Vec<_>>>()?;
            let mut step = rows.cache().begin(widths)?;
            let next = model
                .model()
                .draft(&concat(&columns, 1)?, &features, &mut step)?;
            drop(step);
            features.push(next.clone());
            Ok(next)
        })
    }
}

//! Drafts of the model's own head for multi-token prediction.

use std::collections::BTreeMap;

use super::{Drafts, Input, Rows};
use crate::engine::task::Tasks;
use crate::error::Result;
use crate::forward;
use crate::sampler::{History, Row, SamplingParams, sample};
use crate::scheduler::Id;

/// What one slot drafts.
struct Line {
    id: Id,
    /// The token that is read next, and the drafts behind it.
    tokens: Vec<u32>,
    history: History,
    /// How many drafts are asked for.
    most: usize,
}

impl Line {
    /// Whether draft number `number` is asked for, and all before it were made.
    fn wants(&self, number: usize) -> bool {
        number < self.most && self.tokens.len() == number + 1
    }
}

impl Rows<'_> {
    /// Drafts up to so many tokens of these rows. Each is drawn with the noise of its position, as the sampler will draw: so it is
    /// most often the same. No step may be under way; the cache is as before.
    pub(crate) fn draft(
        &mut self,
        tasks: &Tasks<'_>,
        wanted: &BTreeMap<Id, usize>,
    ) -> Result<Drafts> {
        let mut lines: Vec<Option<Line>> = (0..self.slots.len())
            .map(|slot| self.drafting(slot, tasks, wanted))
            .collect();
        let model = self.model.model();
        let mut features = Vec::new();
        for number in 0..wanted.values().copied().max().unwrap_or(0) {
            let wants = |line: &Option<Line>| line.as_ref().is_some_and(|line| line.wants(number));
            let widths: Vec<usize> = lines
                .iter()
                .map(|line| if wants(line) { number + 1 } else { 0 })
                .collect();
            if widths.iter().all(|&width| width == 0) {
                break;
            }
            let rows: Vec<&[u32]> = lines
                .iter()
                .zip(&widths)
                .map(|(line, &width)| line.as_ref().map_or(&[][..], |line| &line.tokens[..width]))
                .collect();
            let mut step = self.cache.begin(&widths)?;
            let next = model.draft(&forward::padded(&rows)?, &features, &mut step)?;
            drop(step);
            let logits = self.model.logits(&next)?;
            features.push(next);
            let chosen = sample(&logits, &settings(&lines, &widths, tasks), None)?.read_any()?;
            for (line, choice) in lines.iter_mut().zip(chosen) {
                if let (Some(line), Some(choice)) = (line, choice)
                    && line.wants(number)
                {
                    line.tokens.push(choice.id);
                    line.history.push(choice.id);
                }
            }
        }
        let drafts = lines.into_iter().flatten();
        let drafts = drafts.map(|mut line| (line.id, line.tokens.split_off(1)));
        Ok(drafts.filter(|(_, draft)| !draft.is_empty()).collect())
    }

    fn drafting(
        &self,
        slot: usize,
        tasks: &Tasks<'_>,
        wanted: &BTreeMap<Id, usize>,
    ) -> Option<Line> {
        let id = self.slots[slot]?;
        let most = *wanted.get(&id)?;
        match self.input(slot, tasks, None) {
            Input::Known {
                token,
                is_last: true,
            } => Some(Line {
                id,
                tokens: vec![token],
                history: tasks[&id].sequence.history().clone(),
                most,
            }),
            _ => None,
        }
    }
}

/// What the sampler needs to know of each slot; of those that do not draft anything.
fn settings<'a>(lines: &'a [Option<Line>], widths: &[usize], tasks: &'a Tasks<'_>) -> Vec<Row<'a>> {
    static GREEDY: std::sync::LazyLock<SamplingParams> =
        std::sync::LazyLock::new(SamplingParams::default);
    static NOTHING: std::sync::LazyLock<History> =
        std::sync::LazyLock::new(|| History::new(Vec::new()));
    let row = |(line, &width): (&'a Option<Line>, &usize)| match line {
        Some(line) if width > 0 => Row {
            history: &line.history,
            logprobs: None,
            ..tasks[&line.id].sequence.row()
        },
        _ => Row {
            params: &GREEDY,
            seed: 0,
            history: &NOTHING,
            logprobs: None,
            mask: None,
        },
    };
    lines.iter().zip(widths).map(row).collect()
}

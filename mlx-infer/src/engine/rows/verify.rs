//! A step in which rows bring drafts, and keep what the sampler chooses anyway.

use std::collections::BTreeMap;

use mlx_core::Array;

use super::{Input, Rows, row_of};
use crate::engine::task::Tasks;
use crate::error::Result;
use crate::forward;
use crate::sampler::{Choice, History, Row, sample};
use crate::scheduler::Id;

/// The drafts of a step: at least one token for each request that is in it.
pub(crate) type Drafts = BTreeMap<Id, Vec<u32>>;

/// What a step gave one row.
pub(crate) struct Verified {
    pub(crate) id: Id,
    /// Positions by which its cache grew.
    pub(crate) computed: usize,
    /// Its tokens, in order. `None`: logits that are not finite; nothing comes after it. Empty where a known token was replayed.
    pub(crate) choices: Vec<Option<Choice>>,
    /// The logits `[1, V]` of a row with a processor, which chooses from them.
    pub(crate) on_host: Option<Array>,
}

/// What one slot brings to the step.
struct Line {
    id: Id,
    /// A token that was read, and the draft behind it.
    tokens: Vec<u32>,
    /// The text behind which each token is chosen, one for each of `tokens`. Empty where the next token is known.
    histories: Vec<History>,
}

impl Rows<'_> {
    /// Draft tokens that the row can bring: as many as its layers leave room for, before the position at which the model embeds all of them
    /// anew.
    pub(crate) fn room(&self, id: Id) -> usize {
        let Some(slot) = self.slot(id) else { return 0 };
        let most = self.model.draft_room();
        match self.model.model().switches_after() {
            None => most,
            Some(switch) => most.min(switch.saturating_sub(self.cache.lens()[slot] + 1)),
        }
    }

    /// Takes a step with `drafts` and waits for it. No step may be under way.
    pub(crate) fn verify(&mut self, tasks: &Tasks<'_>, drafts: &Drafts) -> Result<Vec<Verified>> {
        let lines: Vec<Option<Line>> = (0..self.slots.len())
            .map(|slot| self.line(slot, tasks, drafts))
            .collect();
        let tokens = |line: &Option<Line>| line.as_ref().map_or(0, |line| line.tokens.len());
        let widths: Vec<usize> = lines.iter().map(tokens).collect();
        if widths.iter().all(|&width| width == 0) {
            return Ok(Vec::new());
        }
        let rows: Vec<&[u32]> = lines
            .iter()
            .map(|line| line.as_ref().map_or(&[][..], |line| &line.tokens))
            .collect();
        let mut step = self.cache.begin(&widths)?;
        let hidden = self
            .model
            .model()
            .hidden(&forward::padded(&rows)?, &mut step)?;

        let (places, settings): (Vec<i32>, Vec<Row<'_>>) = places(&lines, tasks, hidden.dim(1)?);
        let [b, l, e] = hidden.dims()?;
        let places = Array::from_slice(&places, &[places.len() as i32])?;
        let hidden = hidden.reshape(&[b * l, e])?.take(&places, 0)?;
        let logits = self.model.logits(&hidden)?;
        let mut chosen = sample(&logits, &settings, None)?
            .read_any()?
            .into_iter()
            .enumerate();

        let (mut verified, mut keep) = (Vec::new(), Vec::new());
        for line in &lines {
            let Some(line) = line else {
                keep.push(0);
                continue;
            };
            let mut row = Verified {
                id: line.id,
                computed: 1,
                choices: Vec::new(),
                on_host: None,
            };
            let mut is_right = true;
            for (at, (number, choice)) in chosen.by_ref().take(line.histories.len()).enumerate() {
                if tasks[&line.id].processor.is_some() {
                    row.on_host = Some(row_of(&logits, number)?);
                } else if is_right {
                    let next = line.tokens.get(at + 1);
                    is_right = choice
                        .as_ref()
                        .is_some_and(|choice| Some(&choice.id) == next);
                    row.computed += usize::from(is_right);
                    row.choices.push(choice);
                }
            }
            keep.push(row.computed);
            verified.push(row);
        }
        step.commit(&keep)?;
        Ok(verified)
    }

    fn line(&self, slot: usize, tasks: &Tasks<'_>, drafts: &Drafts) -> Option<Line> {
        let (Some(id), Input::Known { token, is_last }) =
            (self.slots[slot], self.input(slot, tasks, None))
        else {
            return None;
        };
        let mut line = Line {
            id,
            tokens: vec![token],
            histories: Vec::new(),
        };
        if is_last {
            let mut history = tasks[&id].sequence.history().clone();
            for &token in drafts.get(&id).into_iter().flatten() {
                line.tokens.push(token);
                line.histories.push(history.clone());
                history.push(token);
            }
            line.histories.push(history);
        }
        Some(line)
    }
}

/// The places in `[B * L]`, and what the sampler needs to know, of all tokens behind which one is chosen.
fn places<'a>(
    lines: &'a [Option<Line>],
    tasks: &'a Tasks<'_>,
    width: i32,
) -> (Vec<i32>, Vec<Row<'a>>) {
    let lines = lines.iter().enumerate();
    let lines = lines.filter_map(|(slot, line)| Some((slot as i32, line.as_ref()?)));
    let each = lines.flat_map(|(slot, line)| {
        let row = tasks[&line.id].sequence.row();
        let histories = line.histories.iter().enumerate();
        histories.map(move |(at, history)| {
            let row = Row { history, ..row };
            (slot * width + at as i32, row)
        })
    });
    each.unzip()
}

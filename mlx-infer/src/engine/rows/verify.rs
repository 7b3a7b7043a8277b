//! Steps whose tokens the host knows: with drafts, of which a row keeps the part that equals the sampler's own
//! choices, and beside chunks of prompts.

use std::collections::btree_map::Entry;

use mlx_core::{Array, Replay, async_eval};
use mlx_nn::lora::{RowAdapter, TokenAdapters, with_adapters};
use mlx_nn::{ModelCache, RepeatedStep};

use super::{Input, Rows, row_of, unused};
use crate::engine::processor;
use crate::engine::scheduler::Id;
use crate::engine::sequence::Sequence;
use crate::engine::speculate::drafters::Drafts;
use crate::engine::state::Requests;
use crate::error::Result;
use crate::grammar::Budget;
use crate::model::LoadedModel;
use crate::model::forward::flat;
use crate::request::sampling::Choice;
use crate::sampling::{History, Row, Sampled, sample};

/// The result of a step for one row.
pub(crate) struct Verified {
    pub(crate) id: Id,
    /// Tokens of its draft.
    pub(crate) drafted: usize,
    /// Positions by which its cache grew.
    pub(crate) computed: usize,
    /// Its tokens, in order. The last entry may be `None` (the logits are not finite) or an error (the row's processor
    /// failed). Empty if a known token was replayed.
    pub(crate) choices: Vec<Result<Option<Choice>>>,
}

/// The result of a step beside prompts. Nothing is evaluated.
pub(crate) struct Beside {
    /// The requests that took a token.
    pub(crate) ids: Vec<Id>,
    /// Those of them whose next tokens are chosen.
    pub(crate) chosen: Vec<Id>,
    /// The logits of these requests, and then of the prompts that are complete: `[N, V]`.
    pub(crate) logits: Option<Array>,
    /// The cache of the prompts.
    pub(crate) prompts: ModelCache,
}

/// The input of one slot to the step.
struct Line {
    id: Id,
    /// A token that was read, and the part of the draft that the host knows.
    tokens: Vec<u32>,
    /// The tokens of the draft.
    drafted: usize,
    /// Whether tokens are chosen. They are not if the next token is known.
    is_last: bool,
    /// The texts after which tokens are chosen, as far as the host knows them. The last text ends before the unread
    /// part of the draft.
    histories: Vec<History>,
    /// The states of the reasoning budget after these texts, if the row has one.
    budgets: Vec<Budget>,
}

impl Line {
    fn width(&self) -> usize {
        1 + self.drafted
    }

    /// Tokens that are chosen.
    fn chosen(&self) -> usize {
        if self.is_last { self.width() } else { 0 }
    }

    /// Whether its tokens are chosen from the logits alone.
    fn is_plain(&self, requests: &Requests<'_>) -> bool {
        let request = &requests[&self.id];
        let sequence = &request.sequence;
        request.processor.is_none() && !sequence.reads_drafts() && !sequence.is_guided()
    }

    /// Adds the texts after which tokens are chosen, and the budgets after them.
    fn foresee(&mut self, requests: &Requests<'_>) {
        if !self.is_last || !self.histories.is_empty() {
            return;
        }
        let sequence = &requests[&self.id].sequence;
        let mut history = sequence.history().clone();
        for &token in &self.tokens[1..] {
            self.histories.push(history.clone());
            history.push(token);
        }
        self.histories.push(history);
        self.budgets.extend(sequence.budget().cloned());
        for &token in &self.tokens[1..] {
            if let Some(mut budget) = self.budgets.last().cloned() {
                budget.advance(token);
                self.budgets.push(budget);
            }
        }
    }
}

/// Chunks of prompts that are computed beside a step of the rows.
pub(crate) struct PromptChunks<'c> {
    /// Their cache, with a row for each.
    pub(crate) cache: ModelCache,
    pub(crate) tokens: &'c [&'c [u32]],
    /// Whether the chunk completes its prompt.
    pub(crate) is_last: &'c [bool],
    pub(crate) adapters: &'c [Option<RowAdapter>],
}

/// Computes the masks after each draft token, for rows with a grammar.
pub(crate) type Foresee<'f> = &'f mut dyn FnMut(&mut Requests<'_>, &[(Id, &[u32])]);

impl Rows<'_> {
    /// The number of draft tokens that the row in a slot can bring: limited by the room of its layers, and by the position at
    /// which the model's rope changes.
    pub(crate) fn room(&self, slot: usize) -> usize {
        let (most, len) = (self.model.draft_room(), self.cache.lens()[slot]);
        match self.model.model().switches_after() {
            Some(switch) if len < switch => most.min(switch - len - 1),
            _ => most,
        }
    }

    /// Runs a step with `drafts` and waits for it. No other step may be in progress.
    ///
    /// The computation of the drafts, the step and the choice of its tokens are one graph, and the host waits once. If
    /// a row has a grammar, a processor or penalties, the host reads the drafts first, while the step is computed.
    ///
    /// Slots for the recurrent states after each token may take `spare_room` bytes.
    pub(crate) fn verify(
        &mut self,
        requests: &mut Requests<'_>,
        drafts: &Drafts,
        spare_room: usize,
        foresee: Foresee<'_>,
    ) -> Result<Vec<Verified>> {
        let mut lines: Vec<Option<Line>> = (0..self.slots.len())
            .map(|slot| self.line(slot, requests, drafts))
            .collect();
        let widths: Vec<usize> = lines
            .iter()
            .map(|line| line.as_ref().map_or(0, Line::width))
            .collect();
        if widths.iter().all(|&width| width == 0) {
            return Ok(Vec::new());
        }
        let chosen = lines
            .iter()
            .map(|line| line.as_ref().map_or(0, Line::chosen));
        let chosen: Vec<usize> = chosen.collect();
        let chooses = chosen.iter().any(|&tokens| tokens > 0);
        // Tokens are chosen at all places of a step of a fixed shape.
        let places = widths
            .iter()
            .copied()
            .max()
            .filter(|_| self.pads && chooses);
        let tokens = tokens(&lines, drafts.tokens(), places)?;
        let model = self.model.model();
        self.repeatable = None;
        let adapters = self.slot_adapters();
        let states = model.decoder_states();
        if let Some(places) = places {
            // Evaluated separately from the step, whose graph then stays the same.
            async_eval([&tokens])?;
            if lines.iter().flatten().all(|line| line.is_plain(requests)) {
                lines
                    .iter_mut()
                    .flatten()
                    .for_each(|line| line.foresee(requests));
                let settings = all_settings(&lines, requests, Some(places));
                let held = self.verifies.get_mut(&(self.slots.len(), places));
                let held = held.filter(|held| held.adapters == adapters);
                let repeated =
                    held.map(|held| held.repeat(&mut self.cache, &widths, &tokens, &settings));
                if let Some((step, sampled, head_features)) = repeated.transpose()?.flatten() {
                    let choices = sampled.read_any()?;
                    if let Some(drawn) = drafts.tokens() {
                        read(&mut lines, drawn)?;
                    }
                    let accept = Accept {
                        model: self.model,
                        logits: None,
                        places: Some(places),
                    };
                    let (verified, keep) = accept.rows(&lines, requests, choices)?;
                    step.commit_part(&keep)?;
                    let firsts = (0..lines.len()).map(|slot| slot * places).collect();
                    self.add_head_input(tokens, head_features, firsts, keep)?;
                    return Ok(verified);
                }
            }
        }
        let mut step = match places {
            Some(places) => self.cache.begin_padded(states, &widths, places)?,
            None => self.cache.begin_part(states, &widths)?,
        };
        let spare = places.map_or(0, |places| self.slots.len() * (places - 1));
        if self.state_bytes > 0 && spare > 0 && spare * self.state_bytes <= spare_room {
            step.keep_any()?;
        }
        let firsts = step.places().map(|places| places.start).collect();
        let slot_adapters = adapters;
        let adapters = &slot_adapters;
        if chooses && places.is_none() {
            step.read_ends(&chosen);
        }
        let adapters = TokenAdapters::of_step(&step, adapters)?;
        let features = with_adapters(adapters.as_ref(), || model.run(&tokens, &mut step))?;
        let hidden = match chooses {
            true => step.read(&features[1])?,
            false => features[1].slice_axis(1, 0, 0)?,
        };
        let hidden = hidden.squeeze(0)?;
        let logits = with_adapters(adapters.as_ref(), || self.model.logits(&hidden))?;
        let head_features = self.model.head_features(&features)?;

        let needs_drafts = |line: &Line| {
            let request = &requests[&line.id];
            let is_drawn = line.tokens.len() < line.width();
            is_drawn && (request.sequence.reads_drafts() || request.processor.is_some())
        };
        if let Some(drawn) = drafts.tokens()
            && lines.iter().flatten().any(needs_drafts)
        {
            async_eval([&logits])?;
            read(&mut lines, drawn)?;
        }
        let guided: Vec<(Id, &[u32])> = (lines.iter().flatten())
            .filter(|line| line.is_last && requests[&line.id].sequence.is_guided())
            .map(|line| (line.id, &line.tokens[1..]))
            .collect();
        if !guided.is_empty() {
            foresee(requests, &guided);
        }
        lines
            .iter_mut()
            .flatten()
            .for_each(|line| line.foresee(requests));
        let choices = match chooses {
            true => {
                let settings = all_settings(&lines, requests, places);
                let sampled = sample(&logits, &settings, None)?;
                let reads_logits = |line: &Line| requests[&line.id].processor.is_some();
                let reads_logits = lines.iter().flatten().any(reads_logits);
                match places.filter(|_| step.is_in_place() && !reads_logits) {
                    Some(places) => {
                        let held = match self.verifies.entry((self.slots.len(), places)) {
                            Entry::Occupied(held) => held.into_mut(),
                            Entry::Vacant(new) => new.insert(VerifyStep::new()?),
                        };
                        let mut small = step.inputs();
                        small.push(tokens.clone());
                        sampled.start_with(&mut held.replay, &small, head_features.as_ref())?;
                        held.sampled = Some(sampled.clone());
                        held.adapters = slot_adapters;
                    }
                    None => sampled.start()?,
                }
                sampled.read_any()?
            }
            // All rows replay tokens that are known.
            false => Vec::new(),
        };
        if let Some(drawn) = drafts.tokens() {
            // The draft is computed together with the choices, so this does not wait.
            read(&mut lines, drawn)?;
        }

        let accept = Accept {
            model: self.model,
            logits: Some(&logits),
            places,
        };
        let (verified, keep) = accept.rows(&lines, requests, choices)?;
        step.commit(&keep)?;
        self.add_head_input(tokens, head_features, firsts, keep)?;
        // For rows that keep a part of their tokens, the recurrent states are computed while the
        // host continues.
        async_eval(self.cache.row_arrays())?;
        Ok(verified)
    }

    fn line(&self, slot: usize, requests: &Requests<'_>, drafts: &Drafts) -> Option<Line> {
        let (Some(id), Input::Known { token, is_last }) =
            (self.slots[slot], self.input(slot, requests, None))
        else {
            return None;
        };
        let known = drafts.known(id).filter(|_| is_last).unwrap_or_default();
        Some(Line {
            id,
            tokens: [&[token], known].concat(),
            drafted: if is_last { drafts.len(id) } else { 0 },
            is_last,
            histories: Vec::new(),
            budgets: Vec::new(),
        })
    }

    /// The arrays that hold the rows.
    pub(crate) fn row_arrays(&self) -> Vec<Array> {
        self.cache.row_arrays()
    }

    /// Builds a step of the rows and of chunks of prompts. No other step may be in progress.
    pub(crate) fn step_beside(
        &mut self,
        requests: &Requests<'_>,
        chunks: PromptChunks<'_>,
    ) -> Result<Beside> {
        let PromptChunks {
            cache: prompts,
            tokens: chunks,
            is_last,
            adapters,
        } = chunks;
        let adapters = [&self.slot_adapters()[..], adapters].concat();
        let (mut ids, mut chosen) = (Vec::new(), Vec::new());
        let (mut widths, mut ends) = (Vec::new(), Vec::new());
        let mut tokens = Vec::new();
        for (slot, owner) in self.slots.iter().enumerate() {
            let input = self.input(slot, requests, None);
            let (Some(id), Input::Known { token, is_last }) = (*owner, input) else {
                widths.push(0);
                ends.push(0);
                continue;
            };
            ids.push(id);
            chosen.extend(is_last.then_some(id));
            tokens.push(token);
            widths.push(1);
            ends.push(usize::from(is_last));
        }
        widths.extend(chunks.iter().map(|chunk| chunk.len()));
        ends.extend(is_last.iter().map(|&is_last| usize::from(is_last)));
        let tokens = flat(&[&[&tokens[..]], chunks].concat())?;
        // Pages are shared as long as `prompts` exists, and would be copied.
        let own = self.slots.len();
        let empty = self.cache.beside(0);
        let mut all = std::mem::replace(&mut self.cache, empty);
        all.join(&prompts)?;
        drop(prompts);
        let model = self.model.model();
        let mut step = all.begin(&widths)?;
        let reads = ends.contains(&1);
        if reads {
            step.read_ends(&ends);
        }
        let adapters = TokenAdapters::of_step(&step, &adapters)?;
        let adapters = adapters.as_ref();
        let hidden = with_adapters(adapters, || model.hidden(&tokens, &mut step))?;
        step.commit_all()?;
        let hidden = hidden.squeeze(0)?;
        let logits = match reads {
            true => Some(with_adapters(adapters, || self.model.logits(&hidden))?),
            false => None,
        };
        let mut prompts = all.clone();
        prompts.select(&(own..own + chunks.len()).collect::<Vec<usize>>())?;
        all.select(&(0..own).collect::<Vec<usize>>())?;
        self.cache = all;
        Ok(Beside {
            ids,
            chosen,
            logits,
            prompts,
        })
    }
}

/// A captured step with drafts.
pub(super) struct VerifyStep {
    replay: Replay,
    /// The tokens of the last step.
    sampled: Option<Sampled>,
    /// The adapter of each slot.
    adapters: Vec<Option<RowAdapter>>,
}

impl VerifyStep {
    fn new() -> Result<Self> {
        Ok(Self {
            replay: Replay::new()?,
            sampled: None,
            adapters: Vec::new(),
        })
    }

    /// Launches the step again with other tokens, if its graph would be the same: the step, its tokens and
    /// the features that the drafting head reads.
    fn repeat<'c>(
        &mut self,
        cache: &'c mut ModelCache,
        widths: &[usize],
        tokens: &Array,
        settings: &[Row<'_>],
    ) -> Result<Option<(RepeatedStep<'c>, Sampled, Option<Array>)>> {
        let Some(last) = self.sampled.as_ref().filter(|_| self.replay.repeats()) else {
            return Ok(None);
        };
        let places = tokens.size() / widths.len();
        let Some(step) = cache.begin_repeated_padded(widths, places)? else {
            return Ok(None);
        };
        let mut small = step.inputs().to_vec();
        small.push(tokens.clone());
        let (replay, written) = (&mut self.replay, step.written());
        let repeated = last.start_repeated(settings, false, replay, &small, &written)?;
        let Some((sampled, head_features)) = repeated else {
            return Ok(None);
        };
        self.sampled = Some(sampled.clone());
        Ok(Some((step, sampled, head_features)))
    }
}

/// Compares the tokens that were chosen with the drafts.
struct Accept<'m, 'a> {
    model: &'m LoadedModel,
    /// The logits of all places, for rows with a processor.
    logits: Option<&'a Array>,
    /// The places of each slot; `None`: as many as tokens are chosen.
    places: Option<usize>,
}

impl Accept<'_, '_> {
    /// The results of the rows, and how many tokens each slot keeps.
    fn rows(
        &self,
        lines: &[Option<Line>],
        requests: &mut Requests<'_>,
        choices: Vec<Option<Choice>>,
    ) -> Result<(Vec<Verified>, Vec<usize>)> {
        let mut chosen = choices.into_iter().enumerate();
        let (mut verified, mut keep) = (Vec::new(), Vec::new());
        for line in lines {
            let Some(line) = line else {
                chosen
                    .by_ref()
                    .take(self.places.unwrap_or(0))
                    .for_each(drop);
                keep.push(0);
                continue;
            };
            let mut row = Verified {
                id: line.id,
                drafted: line.drafted,
                computed: 1,
                choices: Vec::new(),
            };
            // A token that was chosen without its mask is dropped.
            let choosable = requests[&line.id].sequence.choosable();
            let mut is_right = true;
            let choices = chosen.by_ref().take(self.places.unwrap_or(line.chosen()));
            for (at, (number, choice)) in choices.enumerate() {
                if !is_right || at >= line.chosen() {
                    continue;
                }
                let request = requests.get_mut(&line.id).expect("it has a row");
                let choice = match (&mut request.processor, self.logits) {
                    (Some(processor), Some(logits)) => {
                        let row = setting(line, &request.sequence, at);
                        let logits = row_of(logits, number)?;
                        processor::choose(self.model, processor, &logits, row).map(Some)
                    }
                    _ => Ok(choice),
                };
                let next = line.tokens.get(at + 1);
                let id = choice.as_ref().ok().and_then(Option::as_ref);
                is_right = at + 1 < choosable && id.is_some_and(|choice| Some(&choice.id) == next);
                row.computed += usize::from(is_right);
                row.choices.push(choice);
            }
            keep.push(row.computed);
            verified.push(row);
        }
        Ok((verified, keep))
    }
}

/// The sampler's input for each place. If each slot has a number of `places`, those behind its own
/// choose any token.
fn all_settings<'a>(
    lines: &'a [Option<Line>],
    requests: &'a Requests<'_>,
    places: Option<usize>,
) -> Vec<Row<'a>> {
    let of_line = |line: &'a Option<Line>| {
        let own = line.iter().flat_map(|line| settings(line, requests));
        let own: Vec<Row<'_>> = own.collect();
        let behind = places.map_or(0, |places| places - own.len());
        own.into_iter().chain(std::iter::repeat_n(unused(), behind))
    };
    lines.iter().flat_map(of_line).collect()
}

/// The tokens of the step, U32 `[1, T]`, of which `drawn` `[slots, K]` are not read. If a number of
/// `places` is given, each slot has as many tokens.
fn tokens(lines: &[Option<Line>], drawn: Option<&Array>, places: Option<usize>) -> Result<Array> {
    let (mut known, mut is_drawn, mut from) = (Vec::new(), Vec::new(), Vec::new());
    let most = drawn.map_or(Ok(0), |drawn| drawn.dim(1))?;
    for (slot, line) in lines.iter().enumerate() {
        let width = line.as_ref().map_or(0, Line::width);
        for at in 0..places.unwrap_or(width) {
            let token = match line.as_ref().filter(|_| at < width) {
                Some(line) => line.tokens.get(at).copied(),
                None => Some(0),
            };
            known.push(token.unwrap_or(0));
            is_drawn.push(token.is_none());
            // The first token of a line was read before.
            from.push(match token {
                Some(_) => 0,
                None => slot as i32 * most + at as i32 - 1,
            });
        }
    }
    let shape = [1, known.len() as i32];
    let known = Array::from_slice(&known, &shape)?;
    let Some(drawn) = drawn else {
        return Ok(known);
    };
    let drawn = drawn
        .flatten()?
        .take(&Array::from_slice(&from, &shape)?, 0)?;
    Ok(Array::from_slice(&is_drawn, &shape)?.select(&drawn, &known)?)
}

/// Adds the computed tokens to those of the lines.
fn read(lines: &mut [Option<Line>], drawn: &Array) -> Result<()> {
    let columns = drawn.dim(1)? as usize;
    let drawn = drawn.to_vec::<u32>()?;
    for (line, drawn) in lines.iter_mut().zip(drawn.chunks(columns)) {
        if let Some(line) = line
            && line.tokens.len() < line.width()
        {
            line.tokens.extend_from_slice(&drawn[..line.drafted]);
        }
    }
    Ok(())
}

/// The sampler's input for each token that is chosen.
fn settings<'a>(line: &'a Line, requests: &'a Requests<'_>) -> impl Iterator<Item = Row<'a>> {
    let sequence = &requests[&line.id].sequence;
    (0..line.chosen()).map(|at| setting(line, sequence, at))
}

fn setting<'a>(line: &'a Line, sequence: &'a Sequence, at: usize) -> Row<'a> {
    let known = at.min(line.histories.len() - 1);
    // There is none after drafts that the host does not know.
    let demand = line.budgets.get(at).and_then(Budget::demand);
    Row {
        history: &line.histories[known],
        ahead: at - known,
        // A token that is chosen without a mask is dropped: a draft may be wrong, or its mask
        // unknown.
        mask: sequence.constraint_behind(at, demand),
        ..sequence.row()
    }
}

//! The drafts of a head that reads pairs, as one computation that repeats: a pass over the positions of the step before,
//! with the same number of places for each row, and the passes of the drafts behind it.
//!
//! How many tokens rows have kept changes only small arrays: which features are read, and where rows begin.

use std::ops::Range;

#[cfg(test)]
use mlx_core::Graph;
use mlx_core::ops::concat;
use mlx_core::{Array, Replay, async_eval};
use mlx_nn::lora::{RowAdapter, TokenAdapters, with_adapters};
use mlx_nn::{ModelCache, Step, StepGraph};

use super::draft::logits;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::sampling::{Row, Sampled, sample};

/// Queues the rounds of one number of places and of drafts.
pub(super) struct DraftRound {
    replay: Replay,
    /// The last round that was built.
    built: Option<Built>,
    /// Its graph.
    #[cfg(test)]
    graph: Option<Graph>,
}

/// What the last round that was built had in common with those that can be launched in its place.
struct Built {
    /// The pass over the positions, and those of the drafts behind it.
    steps: Vec<StepGraph>,
    /// The choice of each draft.
    sampled: Vec<Sampled>,
    /// The adapter of each slot.
    adapters: Vec<Option<RowAdapter>>,
}

/// What a round reads.
pub(super) struct RoundInput<'r> {
    pub(super) model: &'r LoadedModel,
    /// The head's input of the step before: `[1, T, ..]`.
    pub(super) features: Array,
    pub(super) rows: Vec<RowInput<'r>>,
    /// The places of each row.
    pub(super) places: usize,
    /// The sampler's settings of each slot, for each draft.
    pub(super) settings: Vec<Vec<Row<'r>>>,
    /// The adapter of each slot.
    pub(super) adapters: Vec<Option<RowAdapter>>,
}

/// The part of one slot.
pub(super) struct RowInput<'r> {
    /// The positions of its row, all of which the layers have read.
    pub(super) len: usize,
    /// The tokens that the head has not read, and, if the row drafts, the last token of its text.
    pub(super) tokens: &'r [u32],
    /// The place of the first of them among the features.
    pub(super) first: usize,
    /// The number of drafts.
    pub(super) drafts: usize,
}

impl RowInput<'_> {
    /// Positions that the head has not read, and whose states it keeps.
    fn kept(&self) -> usize {
        self.tokens.len() - usize::from(self.drafts > 0)
    }

    /// Whether the round can read the row: its tokens fit in the places, and each has a position before it.
    pub(super) fn fits(&self, places: usize) -> bool {
        self.tokens.is_empty() || (self.tokens.len() <= places && self.kept() < self.len)
    }
}

impl RoundInput<'_> {
    /// The arrays that differ between rounds beside those of the steps and draws. `window` has the features of the last
    /// position that the head has read, `[B, 1, E]`.
    fn arrays(&self, window: Array) -> Result<RoundArrays> {
        let slots = self.rows.len();
        let (mut tokens, mut before) = (Vec::new(), Vec::new());
        let (mut last, mut ends) = (Vec::new(), Vec::new());
        for (slot, row) in self.rows.iter().enumerate() {
            // Among the features of all windows, followed by those of the step.
            let at = |kept: usize| match kept {
                0 => slot as i32,
                kept => (slots + row.first + kept - 1) as i32,
            };
            for place in 0..self.places {
                tokens.push(row.tokens.get(place).copied().unwrap_or(0));
                before.push(at(place.min(row.kept())));
            }
            last.push(at(row.kept()));
            ends.push((slot * self.places + row.tokens.len().saturating_sub(1)) as i32);
        }
        let numbers = |all: &[i32]| Array::from_slice(all, &[all.len() as i32]);
        Ok(RoundArrays {
            tokens: Array::from_slice(&tokens, &[1, tokens.len() as i32])?,
            before: numbers(&before)?,
            last: numbers(&last)?,
            ends: numbers(&ends)?,
            features: self.features.clone(),
            window,
        })
    }

    /// The head's states with keys and values.
    fn pages(&self) -> Result<Range<usize>> {
        let states = self.model.model().drafting()?.states();
        Ok(states.start..states.end - 1)
    }

    /// Opens the pass of draft `number`; the first one also reads the positions.
    fn step<'c>(&self, cache: &'c mut ModelCache, number: usize) -> Result<Step<'c>> {
        let pages = self.pages()?;
        let rows = self.rows.iter();
        if number == 0 {
            let lens = rows.clone().map(|row| match row.tokens {
                [] => 0,
                _ => row.len - row.kept() - 1,
            });
            let widths = rows.map(|row| row.tokens.len());
            let (lens, widths): (Vec<usize>, Vec<usize>) = (lens.collect(), widths.collect());
            return Ok(cache.begin_padded_at(pages, &lens, &widths, self.places)?);
        }
        let lens = (rows.clone()).map(|row| (row.len + number).saturating_sub(1));
        let widths = rows.map(|row| usize::from(number < row.drafts));
        let (lens, widths): (Vec<usize>, Vec<usize>) = (lens.collect(), widths.collect());
        Ok(cache.begin_slots(pages, Some(&lens), &widths)?)
    }

    /// Ends this pass. Keys and values of drafts are not kept.
    fn end(&self, step: Step<'_>, number: usize) -> Result<()> {
        if number == 0 {
            let kept: Vec<usize> = self.rows.iter().map(RowInput::kept).collect();
            step.commit(&kept)?;
        }
        Ok(())
    }
}

/// See [`RoundInput::arrays`].
struct RoundArrays {
    /// The tokens of all places: U32 `[1, P]`.
    tokens: Array,
    /// Which features come before each of them: I32 `[P]`.
    before: Array,
    /// Which features are those of each row's last position: I32 `[B]`.
    last: Array,
    /// The place of each row's last token: I32 `[B]`.
    ends: Array,
    features: Array,
    window: Array,
}

impl RoundArrays {
    fn all(&self) -> Vec<Array> {
        let small = [&self.tokens, &self.before, &self.last, &self.ends];
        let all = small.into_iter().chain([&self.features, &self.window]);
        all.cloned().collect()
    }
}

/// A round that is built.
struct Round {
    built: Built,
    /// The drafts, U32 `[B, K]`, and the window after the positions.
    results: [Array; 2],
    /// The arrays that differ between rounds.
    inputs: Vec<Array>,
}

impl DraftRound {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            replay: Replay::new()?,
            built: None,
            #[cfg(test)]
            graph: None,
        })
    }

    /// Before a batch with other arrays of its own: the next round is built.
    pub(super) fn forget(&mut self) {
        self.built = None;
        #[cfg(test)]
        (self.graph = None);
    }

    /// Queues a round. Returns its drafts, U32 `[B, K]`; `None` before the first step of the head.
    pub(super) fn draw(
        &mut self,
        cache: &mut ModelCache,
        input: &RoundInput<'_>,
    ) -> Result<Option<Array>> {
        let state = input.model.model().drafting()?.states().end - 1;
        let Some(window) = cache.state(state)? else {
            return Ok(None);
        };
        // Evaluated separately from the round, whose graph then stays the same.
        async_eval([&window])?;
        let arrays = input.arrays(window)?;
        let [drawn, window] = match self.repeat(cache, input, &arrays)? {
            Some(results) => results,
            None => self.build(cache, input, &arrays)?,
        };
        cache.set_state(state, window)?;
        Ok(Some(drawn))
    }

    /// Launches the last round again with these arrays, if the graph would be the same.
    fn repeat(
        &mut self,
        cache: &mut ModelCache,
        input: &RoundInput<'_>,
        arrays: &RoundArrays,
    ) -> Result<Option<[Array; 2]>> {
        let Some(built) = self.built.as_ref().filter(|_| self.replay.repeats()) else {
            return Ok(None);
        };
        let Some(inputs) = built.inputs(cache, input, arrays)? else {
            return Ok(None);
        };
        let written = cache.page_arrays(input.pages()?);
        let results = self.replay.relaunch(inputs, written)?;
        Ok(results.and_then(|results| results.try_into().ok()))
    }

    fn build(
        &mut self,
        cache: &mut ModelCache,
        input: &RoundInput<'_>,
        arrays: &RoundArrays,
    ) -> Result<[Array; 2]> {
        #[cfg(test)]
        let claimed = match &self.built {
            Some(built) => built.inputs(cache, input, arrays)?,
            None => None,
        };
        let round = build(cache, input, arrays)?;
        #[cfg(test)]
        self.compare(claimed, &round)?;
        self.replay.async_eval(&round.results, &round.inputs)?;
        self.built = Some(round.built).filter(|built| built.steps.len() == input.settings.len());
        Ok(round.results)
    }
}

impl Built {
    /// The [inputs](Round::inputs) of a round with the same graph; `None` if its graph would differ.
    fn inputs(
        &self,
        cache: &mut ModelCache,
        input: &RoundInput<'_>,
        arrays: &RoundArrays,
    ) -> Result<Option<Vec<Array>>> {
        if self.adapters != input.adapters {
            return Ok(None);
        }
        let mut inputs = arrays.all();
        let drafts = self.steps.iter().zip(&self.sampled).zip(&input.settings);
        for (number, ((graph, sampled), settings)) in drafts.enumerate() {
            let step = input.step(cache, number)?;
            let own = step.inputs_of(graph)?;
            input.end(step, number)?;
            let (Some(own), Some(draws)) = (own, sampled.redrawn(settings, false)?) else {
                return Ok(None);
            };
            inputs.extend(own);
            inputs.extend(draws.arrays().map(Array::clone));
        }
        Ok(Some(inputs))
    }
}

/// Builds a round.
fn build(cache: &mut ModelCache, input: &RoundInput<'_>, arrays: &RoundArrays) -> Result<Round> {
    let model = input.model;
    let head = model.model().drafting()?;
    let has_adapters = input.adapters.iter().any(Option::is_some);
    let of_rows = match has_adapters {
        true => Some(TokenAdapters::of(&input.adapters)?),
        false => None,
    };
    let mut inputs = arrays.all();
    let (mut steps, mut sampled) = (Vec::new(), Vec::new());
    let own = head.features(&arrays.features)?.squeeze(0)?;
    let all = concat(&[&arrays.window.squeeze(1)?, &own], 0)?;
    // An array of the same strides as the window before.
    let window = all.take(&arrays.last, 0)?.reshape(arrays.window.shape())?;
    let mut before = all.take(&arrays.before, 0)?.expand_dims(0)?;
    let mut next = arrays.tokens.clone();
    let mut columns = Vec::new();
    for (number, settings) in input.settings.iter().enumerate() {
        let mut step = input.step(cache, number)?;
        let adapters = TokenAdapters::of_step(&step, &input.adapters)?;
        let read = with_adapters(adapters.as_ref(), || {
            head.predict(&next, &before, &mut step)
        })?;
        inputs.extend(step.inputs());
        steps.extend(step.graph());
        input.end(step, number)?;
        let read = read.squeeze(0)?;
        let features = match number {
            0 => read.take(&arrays.ends, 0)?,
            _ => read,
        };
        let logits = with_adapters(of_rows.as_ref(), || {
            logits(model.model(), model.vocab() as i32, &features, settings)
        })?;
        let chosen = sample(&logits, settings, None)?;
        inputs.extend(chosen.draw_arrays());
        next = chosen.ids().expand_dims(0)?;
        before = features.expand_dims(0)?;
        columns.push(chosen.ids().expand_dims(-1)?);
        sampled.push(chosen);
    }
    Ok(Round {
        built: Built {
            steps,
            sampled,
            adapters: input.adapters.clone(),
        },
        results: [concat(&columns, 1)?, window],
        inputs,
    })
}

#[cfg(test)]
thread_local! {
    /// Rounds that claimed to have the graph of the one before, and had it.
    pub(crate) static AGREED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
impl DraftRound {
    /// Compares what a round that could be launched again would have been given with what was built.
    fn compare(&mut self, claimed: Option<Vec<Array>>, round: &Round) -> Result<()> {
        let graph = Graph::of(&round.results)?;
        if let (Some(claimed), Some(before)) = (claimed, &self.graph) {
            assert!(graph.is_same(before)?);
            assert_eq!(claimed.len(), round.inputs.len());
            for (claimed, built) in claimed.iter().zip(&round.inputs) {
                assert_eq!(
                    (claimed.shape(), claimed.dtype()),
                    (built.shape(), built.dtype())
                );
                if claimed.dtype().is_float() {
                    continue;
                }
                let [claimed, built] =
                    [claimed, built].map(|array| array.astype(mlx_core::DType::I64));
                assert_eq!(claimed?.to_vec::<i64>()?, built?.to_vec::<i64>()?);
            }
            assert_eq!(graph.other_inputs(before, &round.inputs)?, 0);
            // The graph reads each of them once.
            for (at, input) in round.inputs.iter().enumerate() {
                let others = round.inputs.iter().enumerate();
                let others = others.filter(|(other, _)| *other != at);
                let count = graph.other_inputs(before, others.map(|(_, input)| input))?;
                assert!(count == 1 || input.size() == 1, "input {at}: {count}");
            }
            AGREED.with(|agreed| agreed.set(agreed.get() + 1));
        }
        self.graph = Some(graph);
        Ok(())
    }
}

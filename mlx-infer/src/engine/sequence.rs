//! A request's tokens and text: sampling settings, stop conditions, detokenisation, metrics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mlx_nn::lora::RowAdapter;

use crate::engine::speculate::Speculation;
use crate::error::{Error, Result};
use crate::grammar::{Budget, Demand, Guide, Mask};
use crate::model::adapters::HeldAdapter;
use crate::model::checked::{Checked, CheckedGrammar};
use crate::model::frontend::Frontend;
use crate::request::cancel::CancelToken;
use crate::request::generation::{Event, FinishReason, GenerateOptions};
use crate::request::metrics::{Counts, Watch};
use crate::request::sampling::Choice;
use crate::request::speculative::MOST;
use crate::sampling;
use crate::sampling::{History, Row, TokenConstraint};
use crate::text::stream::TextStream;

/// The tokens of a request, and its stop conditions.
pub(crate) struct Sequence {
    history: History,
    text: TextStream,
    options: GenerateOptions,
    seed: u64,
    stop_ids: Vec<u32>,
    /// The tokens that do not end the request. They are allowed until its minimum number of tokens
    /// is generated.
    going_on: Option<Mask>,
    /// The maximum number of tokens to generate.
    limit: usize,
    watch: Watch,
    /// The number of tokens of the prompt that were not computed.
    cached: usize,
    /// The number of steps that gave it tokens.
    steps: usize,
    speculation: Option<Speculation>,
    /// The state of its grammar, if it has one.
    guide: Option<Box<Guide>>,
    /// The state of its reasoning budget, if it has one.
    budget: Option<Box<Budget>>,
    is_background: bool,
    /// Its adapter, if it has one.
    adapter: Option<HeldAdapter>,
}

impl Sequence {
    /// The state of a request before its first token. `model` has checked it, and its loading took `load`.
    ///
    /// # Errors
    /// The memory in use cannot be read.
    pub(crate) fn new(
        model: &Frontend,
        load: Duration,
        checked: Checked,
        requested: Instant,
    ) -> Result<Self> {
        let Checked {
            ids,
            options,
            grammar,
            budget,
            is_background,
            held,
            ..
        } = checked;
        let positions = model.info().max_positions;
        let room = positions.map_or(usize::MAX, |max| max - ids.len());
        let stop_ids = options.ending(model.eos_ids());
        let constrained = options.grammar.as_ref().zip(grammar);
        let guide = constrained.map(|(constraint, CheckedGrammar { text, front })| {
            let ignore_eos = options.ignore_eos;
            let front = front.as_deref();
            Box::new(Guide::new(text, constraint, front, &stop_ids, ignore_eos))
        });
        let budget = options.reasoning_budget.as_ref().zip(budget);
        let budget = budget.map(|(budget, marks)| Box::new(Budget::new(marks, budget)));
        let has_least = options.min_tokens > 0 && !stop_ids.is_empty();
        Ok(Self {
            going_on: has_least.then(|| sampling::without(model.info().vocab as usize, &stop_ids)),
            guide,
            budget,
            text: TextStream::new(
                model.tokenizer_if_any(),
                &options.stop,
                &options.kept_special,
            )?,
            seed: options.sampling.seed.unwrap_or_else(random_seed),
            stop_ids,
            limit: options.max_tokens.min(room),
            watch: Watch::start(load, requested)?,
            cached: 0,
            steps: 0,
            speculation: Speculation::new(options.speculative),
            history: History::new(ids),
            options,
            is_background,
            adapter: held,
        })
    }

    /// All tokens that were read, the prompt's first.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Its adapter.
    pub(crate) fn adapter(&self) -> Option<&HeldAdapter> {
        self.adapter.as_ref()
    }

    /// Its adapter as the layers know it.
    pub(crate) fn row_adapter(&self) -> Option<RowAdapter> {
        self.adapter().map(HeldAdapter::row)
    }

    /// Whether it yields to requests that are not in the background.
    pub(crate) fn is_background(&self) -> bool {
        self.is_background
    }

    pub(crate) fn cancel(&self) -> &CancelToken {
        &self.options.cancel
    }

    /// Tokens of the prompt that are computed at a time.
    pub(crate) fn prefill_chunk(&self) -> usize {
        self.options.prefill_chunk
    }

    /// The tokens that end it.
    pub(crate) fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// How many more tokens may be generated.
    pub(crate) fn remaining(&self) -> usize {
        self.limit - self.history.generated().len()
    }

    /// Records that the computation of the prompt starts.
    pub(crate) fn begin(&mut self) {
        self.watch.begin();
    }

    /// Sets how many tokens of the prompt are not computed. A prompt that is computed again later keeps the number of
    /// the first time.
    pub(crate) fn set_cached(&mut self, tokens: usize) {
        if self.history.generated().is_empty() {
            self.cached = tokens;
        }
    }

    /// Its speculation, if it speculates.
    pub(crate) fn speculation(&self) -> Option<&Speculation> {
        self.speculation.as_ref()
    }

    /// The same for changes.
    pub(crate) fn speculation_mut(&mut self) -> Option<&mut Speculation> {
        self.speculation.as_mut()
    }

    /// At most `most` tokens that followed an earlier occurrence of the end of its text.
    pub(crate) fn look_up(&mut self, most: usize) -> Vec<u32> {
        let (ids, row) = (self.history.ids(), &mut self.speculation);
        let found = catch_unwind(AssertUnwindSafe(|| Some(row.as_mut()?.look_up(ids, most))));
        match found {
            Ok(found) => found.unwrap_or_default(),
            // It continues without drafts.
            Err(_) => {
                self.speculation = None;
                Vec::new()
            }
        }
    }

    /// Counts a step that gives it tokens.
    pub(crate) fn stepped(&mut self) {
        self.steps += 1;
    }

    /// The sampler's input for the token after one that was chosen and not read.
    pub(crate) fn row_behind_unread(&self) -> Row<'_> {
        let budget = self.budget.as_ref();
        let demand = budget.and_then(|budget| budget.behind_unread());
        Row {
            mask: self.constraint_behind(0, demand),
            ..self.row()
        }
    }

    /// The sampler's input.
    pub(crate) fn row(&self) -> Row<'_> {
        Row {
            params: &self.options.sampling,
            seed: self.seed,
            history: &self.history,
            ahead: 0,
            logprobs: self.options.logprobs,
            mask: self.constraint(),
        }
    }

    /// Whether the host has to know a draft before the tokens after it can be chosen.
    pub(crate) fn reads_drafts(&self) -> bool {
        let is_near = |budget: &Budget| budget.is_near(MOST);
        self.is_guided()
            || self.options.sampling.reads_history()
            || self.budget.as_deref().is_some_and(is_near)
    }

    /// The constraint on the next token.
    fn constraint(&self) -> Option<TokenConstraint<'_>> {
        let budget = self.budget.as_ref();
        self.constraint_behind(0, budget.and_then(|budget| budget.demand()))
    }

    /// The state of its reasoning budget.
    pub(crate) fn budget(&self) -> Option<&Budget> {
        self.budget.as_deref()
    }

    /// The constraint on the token after this many drafts, if it is known. `demand` is that of the
    /// reasoning budget.
    pub(crate) fn constraint_behind<'a>(
        &'a self,
        drafts: usize,
        demand: Option<Demand<'a>>,
    ) -> Option<TokenConstraint<'a>> {
        let guide = self.guide.as_ref();
        let grammar = guide.and_then(|guide| guide.masks().nth(drafts).flatten());
        let least = self.going_on.as_ref();
        let least = least.map(|mask| (self.options.min_tokens, mask));
        let is_free = grammar.is_none() && least.is_none() && demand.is_none();
        (!is_free).then_some(TokenConstraint {
            grammar,
            least,
            demand,
        })
    }

    /// How many tokens can be chosen before the host has to compute masks again.
    pub(crate) fn choosable(&self) -> usize {
        let guide = self.guide.as_ref();
        guide.map_or(usize::MAX, |guide| guide.masks().count())
    }

    /// Whether more than one token can be chosen in a step.
    pub(crate) fn takes_drafts(&self) -> bool {
        self.guide.as_ref().is_none_or(|guide| guide.takes_drafts())
    }

    /// Whether a stop string may end it with the last token that was read.
    fn may_stop(&self) -> bool {
        self.history.generated().len() > self.options.min_tokens
    }

    /// Whether it ends because it repeats itself.
    fn repeats(&self) -> bool {
        let detection = self.options.repetition_detection.as_ref();
        let ends = detection.is_some_and(|detection| detection.ends(self.history.generated()));
        ends && self.may_stop()
    }

    /// Whether it has a grammar.
    pub(crate) fn is_guided(&self) -> bool {
        self.guide.is_some()
    }

    /// Whether each of its tokens is read before the next one is chosen: it has a grammar, or its
    /// repetitions are penalised.
    pub(crate) fn needs_last(&self) -> bool {
        self.is_guided() || self.options.sampling.penalises_repetitions()
    }

    /// The state of its grammar, for computing the mask of the next token before that token is chosen.
    pub(crate) fn guide_mut(&mut self) -> Option<&mut Guide> {
        self.guide.as_deref_mut()
    }

    /// The error for a request whose bias forbids every token that its constraint allows.
    pub(crate) fn blocked(&self) -> Option<Error> {
        let bias = &self.options.sampling.logit_bias;
        let is_forbidden = |id| bias.get(&id) == Some(&f32::NEG_INFINITY);
        let is_blocked =
            (self.constraint()?).allows_only(self.history.generated().len(), is_forbidden);
        let name = self
            .guide
            .as_ref()
            .map_or(self.constraint_name(), |guide| guide.name());
        let message = format!("{name}: logit_bias forbids every token with which it could go on");
        is_blocked.then(|| Error::argument(message))
    }

    /// The option that constrains the next token, beside a grammar.
    fn constraint_name(&self) -> &'static str {
        let budget = self.budget.as_ref();
        match budget.and_then(|budget| budget.demand()) {
            Some(_) => "reasoning_budget",
            None => "min_tokens",
        }
    }

    /// Adds a token that was read. Returns a reason if it is the last.
    pub(crate) fn accept(&mut self, choice: Choice) -> Result<(Event, Option<FinishReason>)> {
        if let Some(guide) = &mut self.guide {
            guide.check()?;
        }
        self.watch.token();
        if let Some(budget) = &mut self.budget {
            budget.advance(choice.id);
        }
        self.history.push(choice.id);
        let mut text = String::new();
        let ends = if self.stop_ids.contains(&choice.id) {
            Some(FinishReason::Stop)
        } else {
            let guide = self.guide.as_mut();
            let is_complete = guide.map_or(Ok(false), |guide| guide.accept(choice.id))?;
            let may_stop = self.may_stop();
            text = self.text.push(choice.id, may_stop)?;
            if is_complete || self.text.is_stopped() {
                Some(FinishReason::Stop)
            } else {
                let is_full = self.remaining() == 0;
                let full = is_full.then_some(FinishReason::Length);
                full.or(self.repeats().then_some(FinishReason::Repetition))
            }
        };
        Ok((Event::Token { choice, text }, ends))
    }

    /// The last event.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Result<Event> {
        let may_stop = self.may_stop();
        let (text, stopped) = self.text.finish(may_stop)?;
        let drafts = |of: fn(&Speculation) -> [u32; MOST]| {
            self.speculation.as_ref().map(of).unwrap_or_default()
        };
        let metrics = self.watch.metrics(Counts {
            prompt: self.history.prompt_len(),
            cached: self.cached,
            decoded: self.history.generated().len(),
            steps: self.steps,
            drafted: drafts(|row| row.drafted),
            accepted: drafts(|row| row.kept),
        })?;
        Ok(Event::Finish {
            reason: if stopped { FinishReason::Stop } else { reason },
            text,
            metrics,
        })
    }
}

/// A seed that differs from call to call.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Instant::now())
}

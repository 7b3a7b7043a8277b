//! A request's tokens and text: sampling settings, stop conditions, detokenisation, metrics.

use std::time::{Duration, Instant};

use super::request::{Event, FinishReason, GenerateOptions};
use super::text::TextStream;
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::frontend::Frontend;
use crate::grammar::{Constraint, Guide};
use crate::metrics::{Counts, Watch};
use crate::model::LoadedModel;
use crate::sampler::{Choice, History, Row};
use crate::speculate::Drafter;

/// The tokens of a request, and when it ends.
pub(crate) struct Sequence {
    history: History,
    text: TextStream,
    options: GenerateOptions,
    seed: u64,
    stop_ids: Vec<u32>,
    /// How many tokens to generate at most.
    limit: usize,
    watch: Watch,
    /// Tokens of the prompt that were not computed.
    cached: usize,
    drafter: Option<Drafter>,
    /// The state of its grammar, if it has one.
    guide: Option<Box<Guide>>,
}

impl Sequence {
    /// A request to continue these ids with a model of this process.
    ///
    /// # Errors
    /// An option is out of range, or the ids have no place in the model's vocabulary or positions.
    pub(crate) fn new(
        model: &LoadedModel,
        ids: Vec<u32>,
        options: &GenerateOptions,
        requested: Instant,
    ) -> Result<Self> {
        let sequence = Self::of(model.frontend(), model.load_time(), ids, options, requested)?;
        model.check_draft(options.speculative)?;
        Ok(sequence)
    }

    /// The same with any model that has this text side, and that took `load` to load.
    ///
    /// # Errors
    /// As [`new`](Self::new), or the model's back end lacks an option.
    pub(crate) fn of(
        model: &Frontend,
        load: Duration,
        ids: Vec<u32>,
        options: &GenerateOptions,
        requested: Instant,
    ) -> Result<Self> {
        model.check(&ids, options)?;
        let room = model
            .info()
            .max_positions
            .map_or(usize::MAX, |max| max - ids.len());
        let eos: &[u32] = if options.ignore_eos {
            &[]
        } else {
            model.eos_ids()
        };
        let stop_ids = [eos, &options.stop_ids].concat();
        let guide = |constraint: &Constraint| -> Result<Box<Guide>> {
            let compiled = model.compiled(constraint)?;
            let ignore_eos = options.ignore_eos;
            Ok(Box::new(Guide::new(
                compiled, constraint, &stop_ids, ignore_eos,
            )))
        };
        Ok(Self {
            guide: options.grammar.as_ref().map(guide).transpose()?,
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
            drafter: Drafter::new(options.speculative),
            history: History::new(ids),
            options: options.clone(),
        })
    }

    /// All tokens that were read, the prompt's first.
    pub(crate) fn history(&self) -> &History {
        &self.history
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

    /// How many tokens may still be generated.
    pub(crate) fn remaining(&self) -> usize {
        self.limit - self.history.generated().len()
    }

    /// The computation of the prompt begins.
    pub(crate) fn begin(&mut self) {
        self.watch.begin();
    }

    /// Sets how many tokens of the prompt were not computed.
    pub(crate) fn set_cached(&mut self, tokens: usize) {
        self.cached = tokens;
    }

    /// Its drafts, if it speculates.
    pub(crate) fn drafter(&self) -> Option<&Drafter> {
        self.drafter.as_ref()
    }

    /// The same, to draft or to learn.
    pub(crate) fn drafter_mut(&mut self) -> Option<&mut Drafter> {
        self.drafter.as_mut()
    }

    /// At most `room` tokens that may come next; where there are none, how many the model's `head` should draft.
    pub(crate) fn draft(&mut self, room: usize, head: bool) -> (Vec<u32>, usize) {
        // One token comes without a draft.
        let room = room.min(self.remaining().saturating_sub(1));
        let Some(drafter) = &mut self.drafter else {
            return (Vec::new(), 0);
        };
        let draft = drafter.draft(self.history.ids(), room, head);
        let most = match head && draft.is_empty() {
            true => room.min(drafter.head_most()),
            false => 0,
        };
        (draft, most)
    }

    /// The sampler's input.
    pub(crate) fn row(&self) -> Row<'_> {
        Row {
            params: &self.options.sampling,
            seed: self.seed,
            history: &self.history,
            logprobs: self.options.logprobs,
            mask: self.guide.as_ref().and_then(|guide| guide.mask()),
        }
    }

    /// Whether it has a grammar. Each of its tokens is then read before the next one is chosen.
    pub(crate) fn is_guided(&self) -> bool {
        self.guide.is_some()
    }

    /// The state of its grammar, which computes the mask of the next token before that token is chosen.
    pub(crate) fn guide_mut(&mut self) -> Option<&mut Guide> {
        self.guide.as_deref_mut()
    }

    /// The error of a request whose grammar allows only tokens that its bias forbids.
    pub(crate) fn blocked(&self) -> Option<Error> {
        let bias = &self.options.sampling.logit_bias;
        let is_forbidden = |id| bias.get(&id) == Some(&f32::NEG_INFINITY);
        self.guide.as_ref()?.blocked(is_forbidden)
    }

    /// Takes a token that was read; a reason if it is the last.
    pub(crate) fn accept(&mut self, choice: Choice) -> Result<(Event, Option<FinishReason>)> {
        if let Some(guide) = &mut self.guide {
            guide.check()?;
        }
        self.watch.token();
        self.history.push(choice.id);
        let mut text = String::new();
        let ends = if self.stop_ids.contains(&choice.id) {
            Some(FinishReason::Stop)
        } else {
            let guide = self.guide.as_mut();
            let is_complete = guide.map_or(Ok(false), |guide| guide.accept(choice.id))?;
            text = self.text.push(choice.id)?;
            if is_complete || self.text.is_stopped() {
                Some(FinishReason::Stop)
            } else {
                (self.remaining() == 0).then_some(FinishReason::Length)
            }
        };
        Ok((Event::Token { choice, text }, ends))
    }

    /// The last event.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Result<Event> {
        let (text, stopped) = self.text.finish()?;
        let metrics = self.watch.metrics(Counts {
            prompt: self.history.prompt_len(),
            cached: self.cached,
            decoded: self.history.generated().len(),
            drafted: self.drafter.as_ref().map_or(0, |drafter| drafter.drafted),
            accepted: self.drafter.as_ref().map_or(0, |drafter| drafter.kept),
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

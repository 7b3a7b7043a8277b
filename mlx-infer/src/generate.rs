//! One sequence: prefill in chunks, then a token a step.
//!
//! The next step is queued before the last one's token is read: it takes the token as a lazy array. The
//! host waits for one id a step, while the device already has work.

mod decoder;
mod request;
mod text;

use std::ops::ControlFlow;
use std::time::Instant;

pub(crate) use self::decoder::{Decoder, check_ids, check_positions};
pub use self::request::{Event, FinishReason, GenerateOptions, Generated, Prompt};

use self::decoder::Progress;
use self::text::TextStream;
use crate::error::Result;
use crate::metrics::Watch;
use crate::model::LoadedModel;
use crate::sampler::{Choice, History, Row, Sampled, sample};

/// Tokens after which MLX gives back the buffers that grown caches left behind.
const CLEAR_EVERY: usize = 256;

/// A running generation: an iterator over its events, of which the last is [`Event::Finish`].
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{Event, GenerateOptions, LoadedModel};
/// let model = LoadedModel::load_default()?;
/// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
/// for event in model.generate("The red fox", &options)? {
///     match event? {
///         Event::Token { text, .. } => print!("{text}"),
///         Event::Finish { reason, text, .. } => println!("{text} ({})", reason.as_str()),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Generation<'m> {
    decoder: Decoder<'m>,
    history: History,
    text: TextStream,
    has_text: bool,
    options: GenerateOptions,
    seed: u64,
    stop_ids: Vec<u32>,
    /// How many tokens to generate at most.
    limit: usize,
    switches_after: Option<usize>,
    watch: Watch,
    /// The token that is being computed.
    queued: Option<Sampled>,
    state: State,
    model: &'m LoadedModel,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    New,
    Running,
    /// Nothing but the last event is left.
    Ending(FinishReason),
    Done,
}

impl<'m> Generation<'m> {
    /// A generation after these ids.
    pub(crate) fn new(
        model: &'m LoadedModel,
        ids: Vec<u32>,
        options: &GenerateOptions,
        requested: Instant,
    ) -> Result<Self> {
        options.check()?;
        check_ids(&ids, model.vocab())?;
        let bias: Vec<u32> = options.sampling.logit_bias.keys().copied().collect();
        check_ids(&bias, model.vocab())?;
        check_positions(
            ids.len() + 1,
            model.info().max_positions,
            " (the prompt and one more)",
        )?;
        let room = model
            .info()
            .max_positions
            .map_or(usize::MAX, |max| max - ids.len());
        let eos: &[u32] = if options.ignore_eos {
            &[]
        } else {
            model.eos_ids()
        };
        Ok(Self {
            decoder: Decoder::new(model.model(), model.cache_options(), options.prefill_chunk),
            text: TextStream::new(model.tokenizer_if_any(), &options.stop)?,
            has_text: model.tokenizer_if_any().is_some(),
            seed: options.sampling.seed.unwrap_or_else(random_seed),
            stop_ids: [eos, &options.stop_ids].concat(),
            limit: options.max_tokens.min(room),
            switches_after: model.model().switches_after(),
            watch: Watch::start(requested)?,
            history: History::new(ids),
            options: options.clone(),
            queued: None,
            state: State::New,
            model,
        })
    }

    /// Runs to the end, telling `on_event` of every event; it ends the generation by breaking.
    ///
    /// # Errors
    /// The computation fails.
    pub fn run(mut self, mut on_event: impl FnMut(&Event) -> ControlFlow<()>) -> Result<Generated> {
        let (mut text, mut tokens) = (String::new(), Vec::new());
        let has_text = self.has_text;
        loop {
            let event = match self.advance() {
                Ok(Some(event)) => event,
                Ok(None) => unreachable!("a generation ends with an event or an error"),
                Err(error) => return Err(error),
            };
            text.push_str(event.text());
            let goes_on = on_event(&event).is_continue();
            match event {
                Event::Token { choice, .. } => tokens.push(choice),
                Event::Finish {
                    reason, metrics, ..
                } => {
                    let text = has_text.then_some(text);
                    return Ok(Generated {
                        text,
                        tokens,
                        reason,
                        metrics,
                    });
                }
            }
            if !goes_on {
                self.queued = None;
                self.state = State::Ending(FinishReason::Cancelled);
            }
        }
    }

    fn advance(&mut self) -> Result<Option<Event>> {
        let step = match self.state {
            State::Done => return Ok(None),
            State::Ending(reason) => self.finish(reason),
            State::New | State::Running => self.token(),
        };
        if step.is_err() {
            (self.state, self.queued) = (State::Done, None);
        }
        step.map(Some)
    }

    /// The next token.
    fn token(&mut self) -> Result<Event> {
        let cancel = self.options.cancel.clone();
        if cancel.is_cancelled() {
            return self.finish(FinishReason::Cancelled);
        }
        let current = match self.queued.take() {
            Some(queued) => queued,
            None => match self.compute_prompt()? {
                Some(first) => first,
                None => return self.finish(FinishReason::Cancelled),
            },
        };
        self.state = State::Running;
        if self.history.generated().len() + 1 < self.limit && !self.switches_next() {
            let logits = self.decoder.step(current.ids())?;
            self.queued = Some(self.choose(&logits, Some(&current))?);
        }
        let choice = one(current.read()?)?;
        if self.history.generated().len() % CLEAR_EVERY == CLEAR_EVERY - 1 {
            mlx_core::memory::clear_cache()?;
        }
        self.watch.token();
        self.accept(choice)
    }

    /// Computes all tokens so far, from an empty cache. `None` if cancelled.
    fn compute_prompt(&mut self) -> Result<Option<Sampled>> {
        let cancel = &self.options.cancel;
        let logits = self
            .decoder
            .prefill(self.history.ids(), || match cancel.is_cancelled() {
                true => Progress::Cancelled,
                false => Progress::Continue,
            })?;
        logits.map(|logits| self.choose(&logits, None)).transpose()
    }

    /// Whether the next position changes how the model embeds all of them (LongRoPE), so that they are
    /// computed anew, as transformers does.
    fn switches_next(&self) -> bool {
        self.switches_after == Some(self.decoder.len())
    }

    fn choose(&self, logits: &mlx_core::Array, pending: Option<&Sampled>) -> Result<Sampled> {
        let row = Row {
            params: &self.options.sampling,
            seed: self.seed,
            history: &self.history,
            logprobs: self.options.logprobs,
        };
        let sampled = sample(logits, &[row], pending.map(Sampled::ids))?;
        sampled.start()?;
        Ok(sampled)
    }

    /// Takes a token that was read.
    fn accept(&mut self, choice: Choice) -> Result<Event> {
        self.history.push(choice.id);
        let mut text = String::new();
        let ends = if self.stop_ids.contains(&choice.id) {
            Some(FinishReason::Stop)
        } else {
            text = self.text.push(choice.id)?;
            if self.text.is_stopped() {
                Some(FinishReason::Stop)
            } else {
                (self.history.generated().len() >= self.limit).then_some(FinishReason::Length)
            }
        };
        if let Some(reason) = ends {
            // What was queued behind a token that ends the text is nobody's.
            (self.state, self.queued) = (State::Ending(reason), None);
        }
        Ok(Event::Token { choice, text })
    }

    fn finish(&mut self, reason: FinishReason) -> Result<Event> {
        let (text, stopped) = self.text.finish()?;
        let reason = if stopped { FinishReason::Stop } else { reason };
        let metrics = self
            .watch
            .metrics(self.history.prompt_len(), self.history.generated().len())?;
        self.state = State::Done;
        self.model.set_metrics(metrics);
        Ok(Event::Finish {
            reason,
            text,
            metrics,
        })
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

/// The choice of a batch of one.
fn one(choices: Vec<Result<Choice>>) -> Result<Choice> {
    choices.into_iter().next().expect("one row was sampled")
}

/// A seed that differs from call to call.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Instant::now())
}

//! One sequence: prefill in chunks, then a token a step.
//!
//! The next step is queued before the last one's token is read: it takes the token as a lazy array. The
//! host waits for one id a step, while the device already has work.

mod decoder;
mod request;
mod sequence;
mod text;

use std::ops::ControlFlow;
use std::time::Instant;

use mlx_core::Array;
use mlx_nn::ModelCache;

pub(crate) use self::decoder::{Decoder, Progress, check_ids, check_positions};
pub use self::request::{Event, FinishReason, GenerateOptions, Generated, Prompt};

pub(crate) use self::sequence::{Sequence, random_seed};

use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::processor::{self, Processor, ProcessorError};
use crate::prompt_cache::PromptCache;
use crate::sampler::{Choice, Sampled, sample};

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
    sequence: Sequence,
    has_text: bool,
    switches_after: Option<usize>,
    /// The token that is being computed.
    queued: Option<Queued>,
    state: State,
    start: Option<ModelCache>,
    processor: Option<Processor>,
    model: &'m LoadedModel,
}

/// A token on its way, or the logits `[1, V]` from which the host chooses it.
enum Queued {
    Chosen(Sampled),
    Logits(Array),
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
        Ok(Self {
            sequence: Sequence::new(model, ids, options, requested)?,
            decoder: Decoder::new(model.model(), model.cache_options(), options.prefill_chunk),
            has_text: model.tokenizer_if_any().is_some(),
            switches_after: model.model().switches_after(),
            queued: None,
            state: State::New,
            start: None,
            processor: None,
            model,
        })
    }

    /// Does not compute again what `cache` holds of the prompt. What it cannot serve (another beginning; a
    /// window that has moved on) is computed.
    ///
    /// # Errors
    /// It is of another model.
    pub fn with_prompt_cache(mut self, cache: &PromptCache) -> Result<Self> {
        cache.check(self.model)?;
        self.start = cache.start(self.model, self.sequence.history().ids())?;
        Ok(self)
    }

    /// Lets the caller change the logits before each token is chosen, as
    /// [`Request::with_processor`](crate::Request::with_processor) does.
    #[must_use]
    pub fn with_processor(
        mut self,
        processor: impl FnMut(&[u32], &mut [f32]) -> std::result::Result<(), ProcessorError>
        + Send
        + 'static,
    ) -> Self {
        self.processor = Some(Box::new(processor));
        self
    }

    /// Runs to the end, telling `on_event` of every event; it ends the generation by breaking.
    ///
    /// # Errors
    /// The computation fails, or the generation has ended before.
    pub fn run(
        &mut self,
        mut on_event: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Generated> {
        if self.state == State::Done {
            return Err(Error::argument("the generation has ended before"));
        }
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

    /// What was computed of the prompt and of what came after it, so that the next turn of a conversation
    /// need not compute it again. Nothing before the first event.
    ///
    /// # Errors
    /// There is no memory for a copy.
    pub fn into_prompt_cache(self) -> Result<Option<PromptCache>> {
        if self.decoder.len() == 0 {
            return Ok(None);
        }
        let ids = self.sequence.history().ids();
        PromptCache::copy(self.model, ids, self.decoder.cache()).map(Some)
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
        if self.sequence.cancel().is_cancelled() {
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
        let goes_on = self.sequence.remaining() > 1 && !self.switches_next();
        let mut after = None;
        let choice = match (current, &mut self.processor) {
            (Queued::Logits(logits), Some(processor)) => {
                let choice = processor::choose(processor, &logits, self.sequence.row())?;
                after = goes_on.then_some(choice.id);
                choice
            }
            (Queued::Chosen(current), _) => {
                if goes_on {
                    let logits = self.decoder.step(current.ids())?;
                    self.queued = Some(self.choose(logits, Some(&current))?);
                }
                one(current.read()?)?
            }
            (Queued::Logits(_), None) => unreachable!("only a processor leaves logits"),
        };
        let (event, ends) = self.sequence.accept(choice)?;
        if let Some(reason) = ends {
            // What was queued behind a token that ends the text is nobody's.
            (self.state, self.queued) = (State::Ending(reason), None);
        } else if let Some(id) = after {
            let logits = self.decoder.step(&Array::from_slice(&[id], &[1])?)?;
            self.queued = Some(Queued::Logits(logits));
        }
        let n = self.sequence.history().generated().len();
        if n.is_multiple_of(CLEAR_EVERY) {
            mlx_core::memory::clear_cache()?;
        }
        Ok(event)
    }

    /// Computes all tokens so far, from an empty cache or the one that was given. `None` if cancelled.
    fn compute_prompt(&mut self) -> Result<Option<Queued>> {
        let start = self.start.take();
        if let Some(start) = &start {
            self.sequence.set_cached(start.lens()[0]);
        }
        let cancel = self.sequence.cancel();
        let ids = self.sequence.history().ids();
        let logits = self
            .decoder
            .prefill(ids, start, || match cancel.is_cancelled() {
                true => Progress::Cancelled,
                false => Progress::Continue,
            })?;
        logits.map(|logits| self.choose(logits, None)).transpose()
    }

    /// Whether the next position changes how the model embeds all of them (LongRoPE), so that they are
    /// computed anew, as transformers does.
    fn switches_next(&self) -> bool {
        self.switches_after == Some(self.decoder.len())
    }

    fn choose(&self, logits: Array, pending: Option<&Sampled>) -> Result<Queued> {
        if self.processor.is_some() {
            return Ok(Queued::Logits(logits));
        }
        let sampled = sample(&logits, &[self.sequence.row()], pending.map(Sampled::ids))?;
        sampled.start()?;
        Ok(Queued::Chosen(sampled))
    }

    fn finish(&mut self, reason: FinishReason) -> Result<Event> {
        let event = self.sequence.finish(reason)?;
        self.state = State::Done;
        if let Event::Finish { metrics, .. } = &event {
            self.model.set_metrics(*metrics);
        }
        Ok(event)
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

//! A single generation: the decode loop with one row.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Instant;

use crate::engine::Worker;
use crate::engine::prompt_cache::PromptCache;
use crate::engine::ranks::{agreed, settle};
use crate::engine::scheduler::Id;
use crate::engine::sequence::{Sequence, random_seed};
use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::{Event, GenerateOptions, Generated, Prompt};
use crate::request::processor::ProcessorError;
use crate::request::result::BatchResult;

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
    model: &'m LoadedModel,
    worker: Worker<'m, 'm>,
    id: Id,
    /// Events that the worker has sent and the caller has not yet taken.
    events: Rc<RefCell<VecDeque<Result<Event>>>>,
    cancel: CancelToken,
    is_done: bool,
}

impl<'m> Generation<'m> {
    /// A generation that continues this prompt.
    pub(crate) fn new(
        model: &'m LoadedModel,
        prompt: Prompt,
        options: &GenerateOptions,
        requested: Instant,
    ) -> Result<Self> {
        let mut request = Request::new(prompt, options.clone());
        let ranks = model.options().ranks;
        if ranks.size() > 1 {
            let seed = options.sampling.seed.unwrap_or_else(random_seed);
            request.options.sampling.seed = Some(agreed(ranks, seed)?);
        }
        let mut checked = model.frontend().checked(request)?;
        checked.ids = agreed(ranks, checked.ids)?;
        let sequence = Sequence::new(model.frontend(), model.load_time(), checked, requested)?;
        let events: Rc<RefCell<VecDeque<_>>> = Rc::default();
        let cancel = CancelToken::new();
        let sink = {
            let events = Rc::clone(&events);
            move |event| {
                RefCell::borrow_mut(&events).push_back(event);
                ControlFlow::Continue(())
            }
        };
        let mut worker = Worker::of_one(model);
        let id = worker.enqueue(sequence, cancel.clone(), None, Box::new(sink));
        Ok(Self {
            model,
            worker,
            id,
            events,
            cancel,
            is_done: false,
        })
    }

    /// Starts with the tokens of the prompt whose states are in `cache`. Where these cannot be used
    /// (the prompt starts differently; a window no longer has the tokens), the prompt is computed.
    ///
    /// # Errors
    /// The cache belongs to another model.
    pub fn with_prompt_cache(mut self, cache: &PromptCache) -> Result<Self> {
        cache.check(self.model)?;
        if let Some(request) = self.worker.task_mut(self.id) {
            request.given = cache.start(self.model, request.sequence.history().ids())?;
        }
        Ok(self)
    }

    /// Lets the caller change the logits before each token is chosen, like
    /// [`Request::with_processor`](crate::Request::with_processor).
    #[must_use]
    pub fn with_processor(
        mut self,
        processor: impl FnMut(&[u32], &mut [f32]) -> std::result::Result<(), ProcessorError>
        + Send
        + 'static,
    ) -> Self {
        if let Some(request) = self.worker.task_mut(self.id) {
            request.processor = Some(Box::new(processor));
        }
        self
    }

    /// Runs to the end and calls `on_event` with every event. `Break` cancels the generation.
    ///
    /// # Errors
    /// The computation fails, or the generation has ended before.
    pub fn run(
        &mut self,
        mut on_event: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Generated> {
        if self.is_done {
            return Err(Error::argument("the generation has ended before"));
        }
        let mut result = BatchResult::new(self.model.tokenizer_if_any().is_some());
        let cancel = self.cancel.clone();
        for event in self.by_ref() {
            if let Ok(event) = &event
                && on_event(event).is_break()
            {
                cancel.cancel();
            }
            result.take(event);
        }
        result.into_generated()
    }

    /// Runs to the end and returns the generated text.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{GenerateOptions, LoadedModel};
    /// let model = LoadedModel::load_default()?;
    /// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
    /// let text = model.generate("The red fox", &options)?.text()?;
    /// assert!(!text.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The computation fails, or the model has no tokenizer.
    pub fn text(mut self) -> Result<String> {
        self.model.tokenizer()?;
        let generated = self.run(|_| ControlFlow::Continue(()))?;
        Ok(generated.text.unwrap_or_default())
    }

    /// The layer states of the prompt and the generated tokens, from which the next turn of a conversation can start.
    /// `None` before the first event.
    ///
    /// # Errors
    /// There is no memory for a copy.
    pub fn into_prompt_cache(self) -> Result<Option<PromptCache>> {
        let computed = self.worker.into_cache(self.id);
        computed
            .map(|(ids, cache)| PromptCache::copy(self.model, &ids, &cache))
            .transpose()
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        loop {
            if let Some(event) = self.events.borrow_mut().pop_front() {
                self.is_done = !matches!(event, Ok(Event::Token { .. }));
                if matches!(event, Ok(Event::Finish { .. })) {
                    settle(self.model.options().ranks);
                }
                return Some(event);
            }
            self.worker.advance();
        }
    }
}

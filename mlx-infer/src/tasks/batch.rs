//! Several prompts at a time on the caller's thread.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::engine::Decode;
use crate::model::frontend::Frontend;
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::result::BatchResult;

/// A batch that requests join at any time, computed on the caller's thread.
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{GenerateOptions, Limits, LoadedModel, Request};
/// let model = LoadedModel::load_default()?;
/// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
/// let mut batch = model.batch(&Limits::default())?;
/// for (key, prompt) in ["The red fox", "The old man"].into_iter().enumerate() {
///     batch.submit(key, Request::new(prompt, options.clone()));
///     for (key, result) in batch.advance() {
///         println!("{key}: {:?}", result.text);
///     }
/// }
/// while !batch.is_idle() {
///     for (key, result) in batch.advance() {
///         println!("{key}: {:?}", result.text);
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Batch<'m> {
    worker: Box<dyn Decode<'static> + 'm>,
    frontend: Arc<Frontend>,
    done: Rc<RefCell<Vec<(usize, BatchResult)>>>,
}

impl<'m> Batch<'m> {
    pub(crate) fn new(worker: impl Decode<'static> + 'm, frontend: Arc<Frontend>) -> Self {
        Self {
            worker: Box::new(worker),
            frontend,
            done: Rc::default(),
        }
    }

    /// Adds a request. Its result is returned together with `key`.
    pub fn submit(&mut self, key: usize, request: Request) {
        let requested = Instant::now();
        let mut result = BatchResult::new(self.frontend.tokenizer_if_any().is_some());
        let done = self.done.clone();
        let mut sink = move |event| {
            if result.take(event) {
                done.borrow_mut().push((key, std::mem::take(&mut result)));
            }
            ControlFlow::Continue(())
        };
        match self.frontend.checked_without_adapter(request) {
            Ok(checked) => {
                let dropped = CancelToken::new();
                (self.worker).submit(checked, requested, dropped, None, Box::new(sink));
            }
            Err(error) => {
                let _ = sink(Err(error));
            }
        }
    }

    /// Whether every request has ended and its result was taken.
    pub fn is_idle(&self) -> bool {
        self.worker.is_idle() && self.done.borrow().is_empty()
    }

    /// Computes a part of the work, unless results are ready. Returns the results of requests that have ended since the
    /// last call.
    pub fn advance(&mut self) -> Vec<(usize, BatchResult)> {
        if self.done.borrow().is_empty() {
            self.worker.advance();
        }
        self.done.take()
    }
}

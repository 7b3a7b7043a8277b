//! Passes chosen tokens to their requests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_core::Array;

use super::Worker;
use crate::engine::processor;
use crate::engine::scheduler::Id;
use crate::error::{Error, ErrorKind, Result};
use crate::request::sampling::Choice;

impl Worker<'_, '_> {
    /// Counts a step that gives a request tokens.
    pub(super) fn stepped(&mut self, id: Id) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.sequence.stepped();
        }
    }

    /// Chooses the next token of a request from its `logits` `[1, V]`, with its processor.
    pub(super) fn choose_on_host(&mut self, id: Id, logits: &Array) {
        self.prepare_masks(&[id]);
        if let Some(task) = self.tasks.get_mut(&id)
            && let Some(processor) = &mut task.processor
        {
            let choice = processor::choose(self.model, processor, logits, task.sequence.row());
            self.accept(id, choice);
        }
    }

    /// Gives a token to a request. `None` means that its logits are not finite.
    pub(super) fn accept_any(&mut self, id: Id, choice: Option<Choice>) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let choice = choice.ok_or_else(|| {
            let blocked = task.sequence.blocked();
            blocked.unwrap_or_else(|| self.model.not_finite(task.sequence.history().ids()))
        });
        self.accept(id, choice);
    }

    /// Gives a token to a request.
    pub(super) fn accept(&mut self, id: Id, choice: Result<Choice>) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let accepted = choice.and_then(|choice| {
            let accept = || task.sequence.accept(choice);
            // The tokens of the other rows of the step have to be passed on.
            catch_unwind(AssertUnwindSafe(accept)).unwrap_or_else(|_| {
                let message = "the engine has panicked while it read a token of this request";
                Err(Error::new(ErrorKind::Compute, message))
            })
        });
        match accepted {
            Ok((event, ends)) => {
                task.tell(Ok(event));
                if let Some(reason) = ends {
                    self.finish(id, reason);
                }
            }
            Err(error) => self.fail(id, error),
        }
    }
}

//! A limit on the reasoning of a generation.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The most tokens of reasoning of a generation, and the texts by which reasoning is recognised.
///
/// After that many tokens of reasoning the only token that can be chosen is the next one of the
/// mark that ends the reasoning. The tokens after the mark are those of a generation whose prompt
/// ends with this reasoning and the mark. If reasoning begins again, what is left of the budget
/// counts. [`Frontend::reasoning_budget`](crate::Frontend::reasoning_budget) makes the budget with
/// the marks of a model's family.
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{GenerateOptions, LoadedModel, ReasoningBudget};
/// # use std::ops::ControlFlow;
/// let model = LoadedModel::load_default()?;
/// let options = GenerateOptions {
///     reasoning_budget: Some(ReasoningBudget::new(3, "<think>", "</think>").begun()),
///     max_tokens: 20,
///     ..Default::default()
/// };
/// let generated = model.generate("The red fox", &options)?.run(|_| ControlFlow::Continue(()))?;
/// assert!(generated.text.unwrap().contains("</think>"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningBudget {
    /// The most tokens of reasoning. With 0 the mark follows as soon as reasoning has begun.
    pub tokens: usize,
    /// The mark that opens reasoning.
    pub open: String,
    /// The mark that ends it.
    pub close: String,
    /// Whether the generation begins within reasoning, because the prompt has opened it.
    pub is_begun: bool,
    /// Whether the mark opens reasoning anywhere. Otherwise it does at the beginning of the
    /// generation only.
    pub is_anywhere: bool,
    /// The heads of messages, if reasoning is a message of its own.
    pub heads: Option<MessageHeads>,
}

/// The heads of messages, for a family that writes reasoning as messages of its own. When the
/// budget is used up, no message of reasoning begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageHeads {
    /// The text that is forced after the closing mark: the beginning of the next message's head.
    pub next: String,
    /// The mark before the kind of a message.
    pub mark: String,
    /// The kind of reasoning.
    pub kind: String,
}

impl ReasoningBudget {
    /// A budget for reasoning that the generation itself opens at its beginning, if it does.
    pub fn new(tokens: usize, open: impl Into<String>, close: impl Into<String>) -> Self {
        Self {
            tokens,
            open: open.into(),
            close: close.into(),
            is_begun: false,
            is_anywhere: false,
            heads: None,
        }
    }

    /// The same for a generation that begins within reasoning.
    #[must_use]
    pub fn begun(self) -> Self {
        Self {
            is_begun: true,
            ..self
        }
    }

    /// Checks the marks.
    ///
    /// # Errors
    /// A mark is empty.
    pub(crate) fn check(&self) -> Result<()> {
        match self.open.is_empty() || self.close.is_empty() {
            true => Err(Error::argument(
                "reasoning_budget: a mark of reasoning is empty; expected at least one character",
            )),
            false => Ok(()),
        }
    }

    /// The text that is forced when the budget is used up.
    pub(crate) fn forced(&self) -> String {
        let next = self.heads.as_ref().map_or("", |heads| &heads.next);
        format!("{}{next}", self.close)
    }
}

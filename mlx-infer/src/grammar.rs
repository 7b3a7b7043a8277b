//! Structured output: what a generation must match.
//!
//! `compile.rs` makes an automaton of a grammar and keeps it for the next request; `vocabulary.rs` says which bytes a token adds to the text;
//! a `Guide` (`guide.rs`) follows one request and gives the mask of tokens that may come next.

mod compile;
mod front;
mod guide;
mod source;
#[cfg(test)]
mod tests;
mod vocabulary;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::compile::{Compiled, Grammars};
pub(crate) use self::guide::{Guide, Mask};

use crate::error::{Error, Result};

/// What a generated text must match.
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{GenerateOptions, Grammar, LoadedModel};
/// # use std::ops::ControlFlow;
/// let model = LoadedModel::load_default()?;
/// let options = GenerateOptions {
///     grammar: Some(Grammar::Choice(vec!["red".to_owned(), "blue".to_owned()]).into()),
///     ..Default::default()
/// };
/// let generated = model.generate("The fox is", &options)?.run(|_| ControlFlow::Continue(()))?;
/// assert!(["red", "blue"].contains(&generated.text.unwrap().as_str()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// JSON that a schema describes (draft 2020-12), with at most 32 blanks in a row between its parts. The key `x-guidance` of the schema is
    /// without effect.
    JsonSchema(Value),
    /// A regular expression (the syntax of Rust's `regex` crate, without look-around and lazy quantifiers) for the whole text.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A context-free grammar in llguidance's variant of Lark; its rule `start` is the whole text.
    Lark(String),
}

impl Grammar {
    /// Its name in requests and messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "json_schema",
            Self::Regex(_) => "regex",
            Self::Choice(_) => "choice",
            Self::Lark(_) => "grammar",
        }
    }
}

/// A grammar, and how it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    /// What the text must match.
    pub grammar: Grammar,
    /// Whether keywords of a JSON schema that are not supported are refused. Otherwise they are without effect, and
    /// [`Frontend::ignored_keywords`](crate::Frontend::ignored_keywords) lists them.
    #[serde(default = "strictly")]
    pub strict: bool,
    /// The text begins behind this mark, such as `</think>`. What is generated before the mark is free, and may also end the generation. The
    /// token that ends the mark ends with it. Without a mark the text begins with the first token.
    #[serde(default)]
    pub after: Option<String>,
    /// Begins what stands before the mark of [`after`](Self::after), such as `<think>`. A generation that begins otherwise is the text from its
    /// first token. Without this mark every generation begins before that of `after`.
    #[serde(default)]
    pub opener: Option<String>,
    /// A grammar in Lark of what stands before the text, in place of the marks. The text begins as soon as this grammar matches.
    #[serde(default)]
    pub front: Option<String>,
}

fn strictly() -> bool {
    true
}

impl From<Grammar> for Constraint {
    /// Strict, from the first token on.
    fn from(grammar: Grammar) -> Self {
        Self {
            grammar,
            strict: true,
            after: None,
            opener: None,
            front: None,
        }
    }
}

impl Constraint {
    /// # Errors
    /// A mark is empty, or one is without its other.
    pub(crate) fn check(&self) -> Result<()> {
        for (name, mark) in [
            ("grammar_after", &self.after),
            ("grammar_opener", &self.opener),
        ] {
            if mark.as_deref() == Some("") {
                let message = format!("{name} is empty; expected at least one character");
                return Err(Error::argument(message));
            }
        }
        if self.opener.is_some() && self.after.is_none() {
            return Err(Error::argument("grammar_opener needs grammar_after"));
        }
        if self.front.is_some() && self.after.is_some() {
            let message = "a grammar's text has a mark or a grammar in front of it, not both";
            return Err(Error::argument(message));
        }
        Ok(())
    }
}

//! Grammars as requests give them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// A grammar that a generated text must match.
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
    /// JSON that a schema describes (draft 2020-12). Between its parts there may be one blank, or a
    /// line break followed by up to 20 blanks. An object with `properties` and without
    /// `additionalProperties` has no other properties. Numbers beyond 2^53 - 1 are refused, because
    /// they would be rounded. The key `x-guidance` of the schema has no effect.
    JsonSchema(Value),
    /// A regular expression (the syntax of Rust's `regex` crate, without look-around and lazy quantifiers) for the whole text.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A context-free grammar: llguidance's variant of Lark, whose rule `start` is the whole text,
    /// or llama.cpp's GBNF, whose rule `root` is. It is GBNF if a line begins with a name and
    /// `::=`. Recursive rules of GBNF are read as Lark reads rules: each text between their
    /// references is as long as it can be.
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

/// A grammar, and the part of a generation that it constrains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    /// The grammar.
    pub grammar: Grammar,
    /// Whether unsupported keywords of a JSON schema are refused. Otherwise they have no effect, and
    /// [`Frontend::ignored_keywords`](crate::Frontend::ignored_keywords) lists them.
    #[serde(default = "strictly")]
    pub strict: bool,
    /// The constrained text starts after this mark, such as `</think>`. The text before the mark is free, but the tokens
    /// that end the request cannot occur in it, because the constrained text has to follow. The token that ends the mark
    /// ends with it. Without a mark the constrained text starts with the first token.
    #[serde(default)]
    pub after: Option<String>,
    /// The mark that opens the free text before [`after`](Self::after), such as `<think>`. A generation that does not
    /// start with it is constrained from its first token. Without an opening mark every generation starts with free
    /// text.
    #[serde(default)]
    pub opener: Option<String>,
    /// A grammar in Lark for the text before the constrained text, in place of the marks. The constrained text starts
    /// as soon as this grammar matches.
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
    /// Checks the marks.
    ///
    /// # Errors
    /// A mark is empty, or an opening mark is given without a closing one.
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
            let message = "a grammar's text has a mark or a grammar before it, not both";
            return Err(Error::argument(message));
        }
        Ok(())
    }
}

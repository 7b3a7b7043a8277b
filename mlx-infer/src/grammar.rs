//! Structured output: grammars that a generated text must match.
//!
//! `compile.rs` compiles a grammar to an automaton and keeps it for later requests. `vocabulary.rs` gives the bytes
//! that a token adds to the text. A `Guide` (`guide.rs`) follows one request and computes the mask of tokens that may
//! come next.

use std::sync::Arc;

#[cfg(not(feature = "grammar"))]
mod absent;
mod budget;
#[cfg(feature = "grammar")]
mod compile;
#[cfg(feature = "grammar")]
mod front;
#[cfg(feature = "grammar")]
mod gbnf;
#[cfg(feature = "grammar")]
mod guide;
#[cfg(feature = "grammar")]
mod lark;
#[cfg(feature = "grammar")]
mod schema;
#[cfg(feature = "grammar")]
mod source;
#[cfg(all(test, feature = "grammar"))]
mod tests;
#[cfg(feature = "grammar")]
mod vocabulary;

#[cfg(not(feature = "grammar"))]
pub(crate) use self::absent::{Compiled, Grammars, Guide};
#[cfg(feature = "grammar")]
pub(crate) use self::compile::{Compiled, Grammars};
#[cfg(feature = "grammar")]
pub(crate) use self::guide::Guide;

pub(crate) use self::budget::{Budget, BudgetMarks, Demand, When};

/// Bit `i % 32` of word `i / 32` allows token `i`.
pub(crate) type Mask = Arc<[u32]>;

//! Structured output: grammars that a generated text must match.
//!
//! `compile.rs` compiles a grammar to an automaton and keeps it for later requests. `vocabulary.rs` gives the bytes
//! that a token adds to the text. A `Guide` (`guide.rs`) follows one request and computes the mask of tokens that may
//! come next.

mod compile;
mod front;
mod gbnf;
mod guide;
mod lark;
mod schema;
mod source;
#[cfg(test)]
mod tests;
mod vocabulary;

pub(crate) use self::compile::{Compiled, Grammars};
pub(crate) use self::guide::{Guide, Mask};

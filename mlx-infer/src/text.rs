//! Text in and out of a model: files, tokenizer, detokenizer, stop strings, chat templates.
//!
//! Everything here works on strings and token ids. It uses nothing of the engine or of the models, and
//! `cargo xtask tidy` checks that.

pub(crate) mod stream;

pub mod chat;
pub(crate) mod detokenize;
pub(crate) mod files;
#[cfg(feature = "serve")]
pub(crate) mod infill;
mod jinja;
pub(crate) mod spelling;
pub(crate) mod stop;
pub(crate) mod tokenizer;

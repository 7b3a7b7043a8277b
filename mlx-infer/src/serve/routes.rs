//! The routes: a file reads the bodies of one, and writes its answers.

pub(crate) mod anthropic;
pub(crate) mod classify;
pub(crate) mod health;
pub(crate) mod openai;
pub(crate) mod page;
pub(crate) mod systemone;
pub(crate) mod tokenize;

//! Routes of OpenAI's API.

pub(crate) mod chat;
pub(crate) mod chunks;
pub(crate) mod completions;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod responses;

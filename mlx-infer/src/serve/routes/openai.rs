//! Routes of OpenAI's API.

pub(crate) mod batches;
pub(crate) mod chat;
pub(crate) mod chunks;
pub(crate) mod completions;
pub(crate) mod files;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod responses;

//! Routes of Anthropic's API.

pub(crate) mod messages;

//! Calls that run to their end: generations, batches, classifications, scores.

pub(crate) mod batch;
pub(crate) mod classify;
pub(crate) mod generate;
pub(crate) mod score;
#[cfg(test)]
mod tests;

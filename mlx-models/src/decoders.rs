//! Orders of operations: what a layer computes, and in which order. Families choose one and set its [plan](crate::config::plan).
//!
//! | order | module |
//! |---|---|
//! | a norm before attention and before MLP | [`pre_norm`] |
//! | a norm after attention and after MLP | [`post_norm`] |
//! | norms before and after both | [`pre_and_post_norm`] |
//! | attention and MLP read the same input | [`parallel_residual`] |
//! | one norm and one mixer a layer | [`single_mixer`] |
//!
//! [`causal_lm`] has the parts around the layers. A family with another order has a layer of its own.

mod build;
pub mod causal_lm;
pub(crate) mod engram;
pub(crate) mod ngrams;
pub mod parallel_residual;
pub(crate) mod per_layer_inputs;
pub mod post_norm;
pub mod pre_and_post_norm;
pub mod pre_norm;
pub mod single_mixer;
pub(crate) mod streams;
pub(crate) mod token_bytes;

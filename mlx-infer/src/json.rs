//! JSON as Python writes it, for every file of a checkpoint.

pub(crate) use mlx_models::config::parse;

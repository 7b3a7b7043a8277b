//! Heads for multi-token prediction: modules that draft the tokens after the next.

pub(crate) mod head_folder;
pub(crate) mod mtp;
pub(crate) mod nextn;

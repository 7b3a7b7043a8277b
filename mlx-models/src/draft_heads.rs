//! Heads for multi-token prediction, and drafters of other folders: modules that draft the tokens after the next.

pub(crate) mod dflash;
pub(crate) mod drafted;
pub(crate) mod eagle3;
pub(crate) mod head_folder;
pub(crate) mod mtp;
pub(crate) mod nextn;

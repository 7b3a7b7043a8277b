//! The files of a checkpoint: how they are found, and how their tensors are named and stored.

pub(crate) mod gguf;
pub(crate) mod names;
pub(crate) mod stored;
pub(crate) mod ternary;
pub(crate) mod tied_head;
pub(crate) mod weights;

pub use names::Names;
pub use weights::Weights;

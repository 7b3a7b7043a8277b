//! The model that is part of the binary.

use crate::files::Files;

const NAME: &str = "the built-in model";

/// Name and content of each file of the built-in checkpoint.
const FILES: &[(&str, &[u8])] = &[];

/// The files of the built-in model.
pub fn files() -> Files {
    Files::embedded(NAME, FILES)
}

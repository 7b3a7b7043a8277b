//! The model that is part of the binary.

use crate::text::files::Files;

/// Its name in messages.
const NAME: &str = "the built-in model";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../assets/default-model/", $name)))),*]
    };
}

/// Name and content of each file of the checkpoint (see `xtask/default-model/README.md`).
const FILES: &[(&str, &[u8])] = files![
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// The files of the built-in model. Needs the feature `default-model`.
pub fn files() -> Files {
    Files::embedded(NAME, FILES)
}

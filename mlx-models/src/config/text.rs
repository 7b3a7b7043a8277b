//! The config of the text model inside that of a multimodal one.

use serde_json::{Map, Value};

/// The key of the text model's config.
const TEXT: &str = "text_config";
/// Its name in published files of Nemotron Nano Omni.
const PUBLISHED: &str = "llm_config";

/// Gives the text model's config the name that transformers writes.
pub(crate) fn rename_text(config: &mut Map<String, Value>) {
    if !config.contains_key(TEXT)
        && let Some(text) = config.shift_remove(PUBLISHED)
    {
        config.insert(TEXT.to_owned(), text);
    }
}

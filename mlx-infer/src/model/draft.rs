//! Whether a draft model fits a model, and how long drafts may be.

use mlx_models::{DraftKind, Model};
use mlx_nn::LayerKind;

use super::{LoadOptions, LoadedModel};
use crate::error::{Error, Result};
use crate::request::speculative::{MOST, Speculative};
use crate::text::files::Files;
use crate::text::tokenizer::Tokenizer;

/// The room that a model's layer states have for drafts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftRoom {
    /// The longest draft that a row may bring to a step.
    longest: usize,
    /// The longest draft for which the model was loaded, and the reason for that limit.
    max_draft: usize,
    why: &'static str,
}

impl DraftRoom {
    pub(super) fn new(model: &dyn Model, options: &LoadOptions) -> Self {
        let layers = model.states();
        let keeps_all = |kind: &LayerKind| match kind {
            LayerKind::Full | LayerKind::Latent => true,
            LayerKind::Window(_) | LayerKind::LatentWindow { .. } => false,
            LayerKind::Recurrent(shape) => shape.can_rerun(),
        };
        let is_window = |kind: &LayerKind| {
            matches!(kind, LayerKind::Window(_) | LayerKind::LatentWindow { .. })
        };
        let has_windows = layers.iter().any(is_window);
        Self {
            longest: match options.context_len {
                None if layers.iter().all(keeps_all) => MOST,
                _ => options.max_draft,
            },
            max_draft: options.max_draft,
            why: match options.context_len {
                Some(_) => "a context_len",
                None if has_windows => "sliding windows",
                None => "recurrent layers",
            },
        }
    }

    pub(crate) fn longest(self) -> usize {
        self.longest
    }

    /// Checks that drafts fit the room.
    ///
    /// # Errors
    /// They are longer.
    pub(super) fn check(self, speculative: Speculative) -> Result<()> {
        match speculative {
            Speculative::Tokens(tokens) if tokens > self.longest => Err(Error::argument(format!(
                "speculative: drafts of {tokens} tokens need a model that was loaded with max_draft of at least {tokens}, \
                 as it has {}; given {}",
                self.why, self.max_draft
            ))),
            _ => Ok(()),
        }
    }
}

/// The kind of drafter in a folder; `None` for a model, which drafts by itself.
///
/// # Errors
/// config.json is malformed, or describes a drafter of a kind that is not supported.
pub(crate) fn kind(files: &Files) -> Result<Option<DraftKind>> {
    match files.json("config.json")? {
        Some(config) => {
            Ok(DraftKind::of(&config).map_err(|error| error.context(files.describe()))?)
        }
        None => Ok(None),
    }
}

/// Checks that both models have the same tokens. The error names the difference.
pub(super) fn check_vocabulary(
    model: &LoadedModel,
    draft: &LoadedModel,
) -> std::result::Result<(), String> {
    let (sizes, tokenizers) = (
        [model.vocab(), draft.vocab()],
        [model.tokenizer_if_any(), draft.tokenizer_if_any()],
    );
    match tokenizers {
        [Some(own), Some(other)] => {
            let differs = |id: &u32| differs(own, other, *id);
            let shared = sizes[0].min(sizes[1]) as u32;
            let Some(first) = (0..shared).find(differs) else {
                return Ok(());
            };
            let all = (first..shared).filter(differs).count();
            let [own, other] = [own, other].map(|of| of.id_to_token(first).unwrap_or_default());
            Err(format!(
                "its vocabulary is not the model's: token {first} is {other:?} there and {own:?} in the model, and {} more differ",
                all - 1
            ))
        }
        [None, None] if sizes[0] == sizes[1] => Ok(()),
        [None, None] => Err(format!(
            "its vocabulary has {} tokens and the model's {}, and there are no tokenizers to compare them by",
            sizes[1], sizes[0]
        )),
        [Some(_), None] => Err(
            "it has no supported tokenizer, so its vocabulary cannot be compared with the model's"
                .to_owned(),
        ),
        [None, Some(_)] => Err(
            "the model has no supported tokenizer, so the vocabularies cannot be compared"
                .to_owned(),
        ),
    }
}

/// Whether an id is a token in both vocabularies, and a different one. Either may have ids without
/// a token.
fn differs(a: &Tokenizer, b: &Tokenizer, id: u32) -> bool {
    matches!((a.id_to_token(id), b.id_to_token(id)), (Some(a), Some(b)) if a != b)
}

//! A second, smaller model whose tokens are drafts for the rows of the first.

use std::rc::Rc;

use mlx_models::Registry;
use mlx_nn::{LayerKind, StateCost};

use super::read::Parts;
use super::{LoadOptions, LoadedModel};
use crate::error::{Error, ErrorKind, Result};
use crate::request::speculative::{MOST, Speculative};
use crate::text::files::Files;
use crate::text::tokenizer::Tokenizer;

impl LoadedModel {
    /// Loads a draft model: a smaller one with the same vocabulary, which guesses tokens for requests with
    /// [`speculative`](crate::GenerateOptions::speculative). It goes before a head for multi-token prediction. Models of
    /// [`with_adapter`](Self::with_adapter) share it.
    ///
    /// Vocabularies may be padded to other sizes. The draft model computes in the dtype of [`LoadOptions::dtype`], and keeps its keys and values
    /// as computed.
    ///
    /// # Errors
    /// As [`load`](Self::load), or a token has another id in the draft model's tokenizer.
    pub fn load_draft_model(&mut self, files: Files) -> Result<()> {
        let options = LoadOptions {
            dtype: self.options.dtype,
            max_draft: MOST,
            ..LoadOptions::default()
        };
        let name = files.describe();
        let registry = Registry::default();
        let parts = Parts::without_head(&registry, files);
        let draft = Self::read(&parts, options, &mut |_, _| ())?;
        check_vocabulary(self, &draft).map_err(|message| {
            let message = format!("draft model {name}: {message}");
            Error::new(ErrorKind::Unsupported, message)
        })?;
        self.draft = Some(Rc::new(draft));
        self.left.take();
        Ok(())
    }

    /// The draft model, if there is one.
    pub fn draft_model(&self) -> Option<&LoadedModel> {
        self.draft.as_deref()
    }

    /// The cost of all states that a row may have: those of the layers, and those of the draft model.
    pub(crate) fn row_costs(&self) -> Vec<StateCost> {
        let draft = self.draft_model().map(LoadedModel::state_costs);
        let mut costs = self.state_costs();
        costs.extend(draft.into_iter().flatten());
        costs
    }

    /// The longest draft that a row may bring to a step.
    pub(crate) fn draft_room(&self) -> usize {
        let keeps_all = |kind: &LayerKind| match kind {
            LayerKind::Full | LayerKind::Latent => true,
            LayerKind::Window(_) => false,
            LayerKind::Recurrent(shape) => shape.replays(),
        };
        match self.options().context_len {
            None if self.model().states().iter().all(keeps_all) => MOST,
            _ => self.options().max_draft,
        }
    }

    /// # Errors
    /// Drafts are longer than the model was loaded for.
    pub(crate) fn check_draft(&self, speculative: Speculative) -> Result<()> {
        match speculative {
            Speculative::Tokens(tokens) if tokens > self.draft_room() => {
                let layers = self.model().states();
                let why = if self.options().context_len.is_some() {
                    "a context_len"
                } else if layers
                    .iter()
                    .any(|kind| matches!(kind, LayerKind::Window(_)))
                {
                    "sliding windows"
                } else {
                    "recurrent layers"
                };
                Err(Error::argument(format!(
                    "speculative: drafts of {tokens} tokens need a model that was loaded with max_draft of at least {tokens}, \
                     as it has {why}; given {}",
                    self.options().max_draft
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Whether both models have the same tokens. The error says what differs.
fn check_vocabulary(model: &LoadedModel, draft: &LoadedModel) -> std::result::Result<(), String> {
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

/// Whether an id is one token in one vocabulary, and another in the other. Either may have ids without a token.
fn differs(a: &Tokenizer, b: &Tokenizer, id: u32) -> bool {
    matches!((a.id_to_token(id), b.id_to_token(id)), (Some(a), Some(b)) if a != b)
}

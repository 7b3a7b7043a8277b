//! Work on texts as plain data: what the first rank of a model tells the others, so that all compute the same pieces.

use std::ops::ControlFlow;

use mlx_nn::shard::Ranks;
use serde::{Deserialize, Serialize};

use super::classify::{ClassifyOptions, ClassifyResult, Encoded, LabelledIds, Run};
use super::embed::{EmbedOptions, EmbedRun, EncodedTexts, RerankOptions, TextEmbedding, TextIds};
use super::score::{ScoreOptions, Scoring};
use super::shared::{OnTexts, SharedRuns};
use crate::engine::Begin;
use crate::engine::ranks::{agreed, gathered};
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::request::cancel::CancelToken;
use crate::request::generation::Prompt;
use crate::request::sampling::SamplingParams;

/// Texts and options, without what only the first rank does with the results.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum TextWork {
    Embed {
        texts: PlainTexts,
        dimensions: Option<usize>,
        batch_tokens: usize,
    },
    /// The relevance of pairs.
    Relate {
        texts: PlainTexts,
        batch_tokens: usize,
    },
    Classify {
        /// A text with an error is not computed.
        texts: Vec<Option<LabelledIds>>,
        labels: Vec<String>,
        sampling: Box<SamplingParams>,
        batch_tokens: usize,
    },
    Score {
        prompt: Prompt,
        top: usize,
        top_each: usize,
        chunk: usize,
    },
}

/// The texts without those that have an error, which are not computed, and the number of the prompt's tokens.
#[derive(Serialize, Deserialize)]
pub(crate) struct PlainTexts {
    texts: Vec<Option<TextIds>>,
    prompt: usize,
}

impl From<&EncodedTexts> for PlainTexts {
    fn from(encoded: &EncodedTexts) -> Self {
        let texts = encoded.texts.iter();
        Self {
            texts: texts.map(|text| text.as_ref().ok().cloned()).collect(),
            prompt: encoded.prompt,
        }
    }
}

impl From<PlainTexts> for EncodedTexts {
    fn from(plain: PlainTexts) -> Self {
        Self {
            texts: plain.texts.into_iter().map(computed).collect(),
            prompt: plain.prompt,
        }
    }
}

/// A text, or an error for one that is not computed. Nothing reads the error.
fn computed<T>(text: Option<T>) -> Result<T> {
    text.ok_or_else(|| Error::argument("the first rank does not compute this text"))
}

impl TextWork {
    /// Embeddings with these options.
    pub(crate) fn embed(encoded: &EncodedTexts, options: &EmbedOptions) -> Self {
        Self::Embed {
            texts: encoded.into(),
            dimensions: options.dimensions,
            batch_tokens: options.batch_tokens,
        }
    }

    /// The relevance of pairs with these options.
    pub(crate) fn relate(encoded: &EncodedTexts, options: &RerankOptions) -> Self {
        Self::Relate {
            texts: encoded.into(),
            batch_tokens: options.batch_tokens,
        }
    }

    /// A classification with these options.
    pub(crate) fn classify(encoded: &[Encoded], options: &ClassifyOptions) -> Self {
        let texts = encoded.iter();
        Self::Classify {
            texts: texts.map(|text| text.as_ref().ok().cloned()).collect(),
            labels: options.labels.clone(),
            sampling: Box::new(options.sampling.clone()),
            batch_tokens: options.batch_tokens,
        }
    }

    /// The score of a text.
    pub(crate) fn score(prompt: &Prompt, options: &ScoreOptions) -> Self {
        Self::Score {
            prompt: prompt.clone(),
            top: options.top,
            top_each: options.top_each,
            chunk: options.chunk,
        }
    }

    /// The text that [`read`](Self::read) reads.
    pub(crate) fn told(&self) -> String {
        serde_json::to_string(self).expect("plain data can be written")
    }
}

impl TextWork {
    /// Makes a job of what another rank has [told](Self::told). Its results are dropped.
    ///
    /// # Errors
    /// The text is malformed.
    pub(crate) fn read(text: &str) -> Result<Begin<LoadedModel>> {
        Ok(Self::parsed(text)?.begin(CancelToken::new()))
    }

    fn parsed(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| {
            let message = "this rank cannot read the work of the first one";
            Error::new(ErrorKind::Format, message).with_source(error)
        })
    }

    /// The same job as on the first rank. Its results are dropped.
    fn begin(self, cancel: CancelToken) -> Begin<LoadedModel> {
        match self {
            Self::Embed {
                texts,
                dimensions,
                batch_tokens,
            } => {
                let options = EmbedOptions {
                    dimensions,
                    batch_tokens,
                    cancel,
                    ..EmbedOptions::default()
                };
                embedding(texts.into(), options, Box::new(drop))
            }
            Self::Relate {
                texts,
                batch_tokens,
            } => {
                let options = RerankOptions {
                    batch_tokens,
                    cancel,
                    ..RerankOptions::default()
                };
                relating(texts.into(), options, Box::new(drop))
            }
            Self::Classify {
                texts,
                labels,
                sampling,
                batch_tokens,
            } => {
                let options = ClassifyOptions {
                    labels,
                    sampling: *sampling,
                    batch_tokens,
                    cancel,
                    ..ClassifyOptions::default()
                };
                let texts = texts.into_iter().map(computed).collect();
                classifying(texts, options, Box::new(drop))
            }
            Self::Score {
                prompt,
                top,
                top_each,
                chunk,
            } => {
                let options = ScoreOptions {
                    top,
                    top_each,
                    chunk,
                    cancel,
                };
                Begin::Alone(Box::new(move |model| {
                    let mut scoring = Scoring::begin(model, prompt, &options);
                    Box::new(move |model| match &mut scoring {
                        Ok(scoring) => flow(matches!(scoring.advance(model), Ok(None))),
                        Err(_) => ControlFlow::Break(()),
                    })
                }))
            }
        }
    }
}

/// A job that embeds texts, in passes that it shares with others.
pub(crate) fn embedding(
    texts: EncodedTexts,
    options: EmbedOptions,
    on_end: OnTexts<TextEmbedding>,
) -> Begin<LoadedModel> {
    Begin::Texts(Box::new(move |model| {
        let n = texts.texts.len();
        let run = EmbedRun::embed(model, texts, &options);
        Box::new(SharedRuns::new(run, n, on_end))
    }))
}

/// A job that scores pairs, in passes that it shares with others.
pub(crate) fn relating(
    texts: EncodedTexts,
    options: RerankOptions,
    on_end: OnTexts<TextEmbedding>,
) -> Begin<LoadedModel> {
    Begin::Texts(Box::new(move |model| {
        let n = texts.texts.len();
        let run = EmbedRun::score(model, texts, &options);
        Box::new(SharedRuns::new(run, n, on_end))
    }))
}

/// A job that classifies texts, in passes that it shares with others.
pub(crate) fn classifying(
    texts: Vec<Encoded>,
    options: ClassifyOptions,
    on_end: OnTexts<ClassifyResult>,
) -> Begin<LoadedModel> {
    Begin::Texts(Box::new(move |model| {
        let n = texts.len();
        let run = Ok(Run::begin(model, texts, &options));
        Box::new(SharedRuns::new(run, n, on_end))
    }))
}

/// Work of a call on several ranks, which all compute together.
pub(crate) struct Together {
    ranks: Ranks,
    /// The caller's token, which the first rank alone reads.
    asked: CancelToken,
    /// The token that the work reads, cancelled in the same piece on all ranks.
    pub(crate) cancel: CancelToken,
}

impl Together {
    /// Tells the others of `work`, if several ranks share the model. `asked` cancels it.
    ///
    /// # Errors
    /// Another rank has died.
    pub(crate) fn begin(
        model: &LoadedModel,
        work: impl FnOnce() -> TextWork,
        asked: &CancelToken,
    ) -> Result<Self> {
        let ranks = model.options().ranks;
        if ranks.size() > 1 {
            agreed(ranks, Some(work().told()))?;
        }
        Ok(Self {
            ranks,
            asked: asked.clone(),
            cancel: match ranks.size() {
                1 => asked.clone(),
                _ => CancelToken::new(),
            },
        })
    }

    /// Computes pieces until one breaks.
    ///
    /// # Errors
    /// Another rank has died.
    pub(crate) fn run(&self, mut piece: impl FnMut() -> ControlFlow<()>) -> Result<()> {
        loop {
            if agreed(self.ranks, self.asked.is_cancelled())? {
                self.cancel.cancel();
            }
            if piece().is_break() {
                return Ok(());
            }
        }
    }
}

/// Computes what the first rank tells, until it [ends](end).
///
/// # Errors
/// Another rank has died.
pub(super) fn follow(model: &LoadedModel) -> Result<()> {
    let ranks = model.options().ranks;
    while let Some(told) = agreed(ranks, None::<String>)? {
        let work = TextWork::parsed(&told)?;
        let together = Together {
            ranks,
            asked: CancelToken::new(),
            cancel: CancelToken::new(),
        };
        let mut pieces = work.begin(together.cancel.clone()).alone(model);
        together.run(|| pieces(model))?;
    }
    gathered(ranks, "").map(drop)
}

/// Ends the other ranks' [`follow`], and returns when they have computed what they were told.
///
/// # Errors
/// Another rank has died.
pub(super) fn end(model: &LoadedModel) -> Result<()> {
    let ranks = model.options().ranks;
    agreed(ranks, None::<String>)?;
    gathered(ranks, "").map(drop)
}

/// Whether there are more pieces.
pub(crate) fn flow(goes_on: bool) -> ControlFlow<()> {
    match goes_on {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}

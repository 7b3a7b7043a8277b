//! Pairs of texts: their ids for a cross-encoder, and for a decoder that answers yes or no.

use rayon::prelude::*;

use super::input::{EncodedTexts, TextIds, longest_text};
use crate::error::{Error, Result};
use crate::model::frontend::{Frontend, check_ids};
use crate::request::cancel::CancelToken;
use crate::text::tokenizer::Tokenizer;
use crate::work_sizes::WorkSizes;
use mlx_models::ModelTask;

/// What Qwen3-Reranker (arXiv:2506.05176) was trained with.
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
                      Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
                      <|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// Options of the relevance of pairs.
#[derive(Clone, Debug)]
pub struct RerankOptions {
    /// What a document should do for the query, for a decoder such as Qwen3-Reranker; by default
    /// the sentence that it was trained with. A cross-encoder takes none.
    pub instruction: Option<String>,
    /// Return the logit itself, and not a number from 0 to 1. Some cross-encoders always return it.
    pub logits: bool,
    /// Most tokens of a forward pass; 4,096 on a CPU, 16,384 on a GPU.
    pub batch_tokens: usize,
    /// Cancels the call; pairs that were not computed give an error.
    pub cancel: CancelToken,
}

impl Default for RerankOptions {
    fn default() -> Self {
        Self {
            instruction: None,
            logits: false,
            batch_tokens: WorkSizes::of_device().texts,
            cancel: CancelToken::new(),
        }
    }
}

/// How the logits of a model become the relevance of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerLogits {
    /// The only logit of a cross-encoder.
    Head,
    /// The logit of yes, less that of no if there is one.
    Tokens(u32, Option<u32>),
}

/// The ids of pairs of a query and a document, computed on all cores. A pair that is too long
/// is cut.
///
/// # Errors
/// The model does not score pairs, an option is out of range, or there is no tokenizer.
pub(crate) fn encode_pairs(
    frontend: &Frontend,
    pairs: Vec<(String, String)>,
    options: &RerankOptions,
) -> Result<EncodedTexts> {
    if options.batch_tokens == 0 {
        return Err(Error::argument("batch_tokens must be at least 1, given 0"));
    }
    let (tokenizer, most) = (frontend.tokenizer()?, longest_text(frontend)?);
    let vocab = frontend.info().vocab as usize;
    let answers = answers(frontend)?;
    if answers == AnswerLogits::Head && options.instruction.is_some() {
        return Err(Error::argument(
            "instruction is for decoders that rerank; this model is a cross-encoder",
        ));
    }
    let lower_case = frontend.sentence()?.lower_case;
    let instruction = options.instruction.as_deref().unwrap_or(INSTRUCTION);
    let of_decoder = Decoder::of(tokenizer, instruction, most)?;
    let encode = |(query, document): (String, String)| -> Result<TextIds> {
        let [query, document] = match lower_case {
            true => [query.to_lowercase(), document.to_lowercase()],
            false => [query, document],
        };
        let (ids, types) = match answers {
            AnswerLogits::Head => tokenizer.encode_cut(&query, Some(&document), most)?,
            AnswerLogits::Tokens(..) => of_decoder.encode(tokenizer, &query, &document)?,
        };
        check_ids(&ids, vocab)?;
        Ok((ids, types))
    };
    Ok(EncodedTexts {
        texts: pairs.into_par_iter().map(encode).collect(),
        prompt: 0,
    })
}

/// How the model's logits become the relevance of a pair.
///
/// # Errors
/// The model does not score pairs.
pub(super) fn answers(frontend: &Frontend) -> Result<AnswerLogits> {
    let model_type = &frontend.info().model_type;
    match frontend.info().task {
        ModelTask::Classify(1) => Ok(AnswerLogits::Head),
        ModelTask::Classify(classes) => Err(Error::unsupported(format!(
            "the head of this {model_type} model has {classes} classes; the relevance of a pair needs one"
        ))),
        ModelTask::Embed => Err(Error::unsupported(format!(
            "this {model_type} model embeds texts and has no head that scores pairs; use embeddings"
        ))),
        ModelTask::Headless => Err(Error::unsupported(
            "this checkpoint has no output head (lm_head.weight), so it scores no pairs; use embeddings",
        )),
        ModelTask::Generate => {
            if let Some((yes, no)) = frontend.sentence()?.answers {
                return Ok(AnswerLogits::Tokens(yes, no));
            }
            let tokenizer = frontend.tokenizer()?;
            let id = |token: &str| tokenizer.token_to_id(token);
            match (id("yes"), id("no"), id("<|im_start|>")) {
                (Some(yes), Some(no), Some(_)) => Ok(AnswerLogits::Tokens(yes, Some(no))),
                _ => Err(Error::unsupported(format!(
                    "this {model_type} model does not score pairs: its vocabulary lacks yes, no or <|im_start|>, \
                     the tokens of Qwen3-Reranker"
                ))),
            }
        }
    }
}

/// The ids around a query and a document in a decoder's prompt.
struct Decoder {
    instruction: String,
    before: Vec<u32>,
    after: Vec<u32>,
    /// The most tokens of the query and the document.
    most: usize,
}

impl Decoder {
    fn of(tokenizer: &Tokenizer, instruction: &str, most: usize) -> Result<Self> {
        let ids = |text: &str| tokenizer.encode(text, false);
        let (before, after) = (ids(BEFORE)?, ids(AFTER)?);
        Ok(Self {
            instruction: instruction.to_owned(),
            most: most.saturating_sub(before.len() + after.len()),
            before,
            after,
        })
    }

    fn encode(&self, tokenizer: &Tokenizer, query: &str, document: &str) -> Result<TextIds> {
        let Self { instruction, .. } = self;
        let text = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
        let mut middle = tokenizer.encode(&text, false)?;
        middle.truncate(self.most);
        let ids = [&self.before[..], &middle, &self.after].concat();
        let types = vec![0; ids.len()];
        Ok((ids, types))
    }
}

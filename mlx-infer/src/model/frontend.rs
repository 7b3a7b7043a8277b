//! The front end of a model: information, tokenizer, chat template, end tokens.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use mlx_models::{ModelInfo, ModelTask};

use super::draft::DraftRoom;
use super::{generation_config, next_serial};
use crate::error::{Error, ErrorKind, Result};
use crate::grammar::{BudgetMarks, Compiled, Grammars};
use crate::request::generation::{GenerateOptions, Prompt};
use crate::request::grammar::{Constraint, Grammar};
use crate::request::json_options::RequestOptions;
use crate::request::reasoning::{MessageHeads, ReasoningBudget};
use crate::text::chat::reply::{ReasoningMarks, ReplyFormat};
use crate::text::chat::{ChatTemplate, Message, RenderOptions};
use crate::text::files::Files;
use crate::text::sentence::SentenceSettings;
use crate::text::tokenizer::{self, Tokenizer};

/// Information about a model, its tokenizer and its chat template, without its weights. It checks
/// and tokenises requests.
///
/// The model itself stays on one thread. This part can be shared by all: a server gets it from
/// [`Engine::frontend`](crate::Engine::frontend), refuses a bad request with a typed error, and submits what was
/// [checked](Self::checked).
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{Engine, EngineOptions, GenerateOptions, LoadedModel, Request};
/// let engine = Engine::start(LoadedModel::load_default, EngineOptions::default())?;
/// let frontend = engine.frontend().clone();
/// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
/// let checked = frontend.checked(Request::new("The red fox", options))?;
/// let result = engine.submit_checked(checked)?.wait();
/// assert!(result.error.is_none());
/// # Ok(())
/// # }
/// ```
pub struct Frontend {
    info: ModelInfo,
    files: Files,
    tokenizer: Option<Tokenizer>,
    template: OnceLock<ChatTemplate>,
    eos_ids: Vec<u32>,
    grammars: Grammars,
    /// The marks of reasoning that were used last.
    budget_marks: Mutex<Option<(ReasoningBudget, Arc<BudgetMarks>)>>,
    /// Refuses options that the model's back end does not support; `None` for the native one, which supports all.
    lacks: Option<Lacks>,
    /// The room for drafts; `None` where the back end computes none.
    drafts: Option<DraftRoom>,
    /// The settings of sentence-transformers, once they were asked for.
    sentence: OnceLock<SentenceSettings>,
    /// Distinguishes the front ends of a process.
    serial: u64,
}

/// Refuses what a back end does not support.
#[derive(Clone, Copy)]
pub(crate) struct Lacks {
    /// The back end's name.
    pub(crate) name: &'static str,
    pub(crate) check: fn(&GenerateOptions) -> Result<()>,
}

/// The tokenizer of a checkpoint, if it has one, and the tokens that end a text.
pub(crate) fn read_tokenizer(files: &Files) -> Result<(Option<Tokenizer>, Vec<u32>)> {
    match Tokenizer::load(files) {
        Ok(tokenizer) => {
            let eos_ids = tokenizer.eos_ids().to_vec();
            Ok((Some(tokenizer), eos_ids))
        }
        // Without a tokenizer, ids can still be generated. A text is refused with the error.
        Err(error) if !tokenizer::is_readable(files, &error)? => {
            Ok((None, tokenizer::eos_ids(files)?))
        }
        Err(error) => Err(error),
    }
}

impl Frontend {
    pub(crate) fn new(
        info: ModelInfo,
        files: Files,
        tokenizer: Option<Tokenizer>,
        eos_ids: Vec<u32>,
    ) -> Self {
        Self {
            info,
            files,
            tokenizer,
            template: OnceLock::new(),
            eos_ids,
            grammars: Grammars::default(),
            budget_marks: Mutex::default(),
            lacks: None,
            drafts: None,
            sentence: OnceLock::new(),
            serial: next_serial(),
        }
    }

    /// The same with a chat template that is not in the files.
    pub(crate) fn with_template(self, template: ChatTemplate) -> Self {
        Self {
            template: template.into(),
            ..self
        }
    }

    /// This front end for a model of another back end.
    pub(crate) fn lacking(self, lacks: Lacks) -> Self {
        Self {
            lacks: Some(lacks),
            ..self
        }
    }

    /// This front end for a model with this room for drafts.
    pub(super) fn drafting(self, room: DraftRoom) -> Self {
        Self {
            drafts: Some(room),
            ..self
        }
    }

    /// Replaces what depends on the model's layers and their states, after the model got a drafter.
    pub(super) fn replace(&mut self, info: ModelInfo, room: DraftRoom) {
        self.info = info;
        self.drafts = Some(room);
        self.serial = next_serial();
    }

    /// Whether the model's files are in GGUF.
    #[cfg(feature = "serve")]
    pub(crate) fn is_gguf(&self) -> bool {
        self.files.architecture().is_some()
    }

    /// The bytes of `config.json`; `None` for a model without files.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn config(&self) -> Result<Option<Vec<u8>>> {
        let config = self.files.read("config.json")?;
        Ok(config.map(|bytes| bytes.into_owned()))
    }

    pub(super) fn lacks(&self) -> Option<Lacks> {
        self.lacks
    }

    pub(super) fn draft_room(&self) -> Option<DraftRoom> {
        self.drafts
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Checks that the model is in this process.
    ///
    /// # Errors
    /// It is not, so it can neither classify nor score.
    pub(crate) fn check_native(&self) -> Result<()> {
        match self.lacks {
            None => Ok(()),
            Some(Lacks { name, .. }) => Err(Error::unsupported(format!(
                "the {name} back end neither classifies, scores nor embeds texts; the native one does"
            ))),
        }
    }

    /// Checks that the model generates text.
    ///
    /// # Errors
    /// It is an encoder, or has no output head.
    pub(crate) fn check_generates(&self) -> Result<()> {
        match self.info.task {
            ModelTask::Generate => Ok(()),
            ModelTask::Headless => Err(Error::unsupported(
                "this checkpoint has no output head (lm_head.weight), so it makes no text; it embeds texts \
                 (mlx-infer embed, /v1/embeddings)",
            )),
            ModelTask::Embed | ModelTask::Classify(_) => Err(Error::unsupported(format!(
                "this {} model is an encoder: it embeds texts (mlx-infer embed, /v1/embeddings) and generates none",
                self.info.model_type
            ))),
        }
    }

    /// The settings of sentence-transformers beside the checkpoint.
    ///
    /// # Errors
    /// A file is malformed, or a value is not supported.
    pub(crate) fn sentence(&self) -> Result<&SentenceSettings> {
        if let Some(settings) = self.sentence.get() {
            return Ok(settings);
        }
        let settings = SentenceSettings::read(&self.files)?;
        Ok(self.sentence.get_or_init(|| settings))
    }

    /// The folder of the checkpoint, if it is one.
    pub(crate) fn folder(&self) -> Option<&std::path::Path> {
        match &self.files {
            Files::Directory(path) => Some(path),
            _ => None,
        }
    }

    /// Information about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// The checkpoint has none that is supported.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        match &self.tokenizer {
            Some(tokenizer) => Ok(tokenizer),
            // The error names the missing file, and the files that exist instead.
            None => Err(match Tokenizer::load(&self.files) {
                Err(error) => error,
                Ok(_) => Error::new(
                    ErrorKind::Missing,
                    "tokenizer.json came after the model was loaded",
                ),
            }),
        }
    }

    pub(crate) fn tokenizer_if_any(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The chat template: the checkpoint's own, or the built-in one of its family.
    ///
    /// # Errors
    /// There is no tokenizer or no template, or it is malformed; or the model is an encoder without
    /// one.
    pub fn chat_template(&self) -> Result<&ChatTemplate> {
        if let Some(template) = self.template.get() {
            return Ok(template);
        }
        let template = match ChatTemplate::load(&self.files, self.tokenizer()?) {
            Ok(template) => template,
            Err(error) => {
                self.check_generates()?;
                return Err(error);
            }
        };
        Ok(self.template.get_or_init(|| template))
    }

    /// The options from the checkpoint's `generation_config.json` for requests that do not set
    /// them: `temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty`, which looks at the
    /// whole text as in transformers, and `suppress_tokens`, which becomes a `logit_bias`. If
    /// `do_sample` is false, the temperature is 0, whatever temperature the file gives, also as in
    /// transformers. Others that would change a text in transformers are named in the log.
    ///
    /// # Errors
    /// The file is malformed, or one of these has a value of another type.
    pub fn generation_defaults(&self) -> Result<RequestOptions> {
        generation_config::defaults(&self.files, self.info.vocab as usize)
    }

    /// The tokens that end a text.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The ids of a prompt. A text is encoded with the tokens that the tokenizer puts around texts.
    ///
    /// # Errors
    /// The prompt is empty, or a text without a tokenizer.
    pub fn prompt_ids(&self, prompt: Prompt) -> Result<Vec<u32>> {
        not_empty(match prompt {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(text) => self.tokenizer()?.encode(&text, true)?,
        })
    }

    /// The ids of a conversation, followed by the start of the answer.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub fn chat_ids(&self, messages: &[Message], render: &RenderOptions) -> Result<Vec<u32>> {
        let render = RenderOptions {
            add_generation_prompt: true,
            ..render.clone()
        };
        let text = self.chat_template()?.render(messages, &render)?;
        // The template has written the special tokens itself.
        not_empty(self.tokenizer()?.encode(&text, false)?)
    }

    /// A budget of `tokens` tokens for the reasoning in a reply to `prompt`, the text that the
    /// template rendered; `None` if the model has no marks of reasoning.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::LoadedModel;
    /// use mlx_infer::chat::reply::ReplyFormat;
    /// let model = LoadedModel::load_default()?;
    /// let format = ReplyFormat::detect(model.chat_template()?, model.tokenizer()?);
    /// // The built-in model does not reason.
    /// assert!(model.frontend().reasoning_budget(&format, "", 100).is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn reasoning_budget(
        &self,
        format: &ReplyFormat,
        prompt: &str,
        tokens: usize,
    ) -> Option<ReasoningBudget> {
        let ReasoningMarks {
            open,
            close,
            is_begun,
            is_anywhere,
            heads,
        } = format.reasoning(prompt)?;
        Some(ReasoningBudget {
            is_begun,
            is_anywhere,
            heads: heads.map(|heads| {
                let [next, mark, kind] = heads.map(str::to_owned);
                MessageHeads { next, mark, kind }
            }),
            ..ReasoningBudget::new(tokens, open, close)
        })
    }

    /// Builds the parts that all grammars of this model share, unless they were built. Without this
    /// call the first request with a grammar builds them, on the thread that checks the request:
    /// 2.5 seconds for 200,000 tokens. Needs the feature `grammar`.
    ///
    /// # Errors
    /// There is no tokenizer, or it does not suit.
    #[cfg(feature = "grammar")]
    pub fn prepare_grammars(&self) -> Result<()> {
        let (vocab, eos_ids) = (self.info.vocab as usize, self.eos_ids());
        self.grammars.prepare(self.tokenizer()?, vocab, eos_ids)
    }

    /// The keywords of a JSON schema that have no effect, because they are not supported and the
    /// constraint is not strict. Needs the feature `grammar`.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    #[cfg(feature = "grammar")]
    pub fn ignored_keywords(&self, constraint: &Constraint) -> Result<Vec<String>> {
        constraint.check()?;
        Ok(self.compiled(constraint)?.ignored().to_vec())
    }

    /// The compiled grammar of the text before the grammar's text, if that text has one.
    pub(crate) fn compiled_front(&self, constraint: &Constraint) -> Result<Option<Arc<Compiled>>> {
        let front = constraint.front.clone().map(Grammar::Lark);
        front.map(|front| self.compiled(&front.into())).transpose()
    }

    /// The marks of a reasoning budget in the tokens of this model.
    ///
    /// # Errors
    /// There is no tokenizer, or the bytes of its tokens depend on the tokens beside them.
    pub(crate) fn marks_of(&self, budget: &ReasoningBudget) -> Result<Arc<BudgetMarks>> {
        // The marks do not depend on the number of tokens.
        let key = ReasoningBudget {
            tokens: 0,
            is_begun: false,
            ..budget.clone()
        };
        let lock = || {
            let marks = self.budget_marks.lock();
            marks.unwrap_or_else(PoisonError::into_inner)
        };
        if let Some((_, marks)) = lock().as_ref().filter(|(known, _)| *known == key) {
            return Ok(marks.clone());
        }
        let Some(tokenizer) = &self.tokenizer else {
            let message = "reasoning_budget needs a tokenizer, and this checkpoint has none";
            return Err(Error::argument(message));
        };
        let marks = BudgetMarks::new(budget, tokenizer, self.info.vocab as usize)?;
        let marks = Arc::new(marks);
        *lock() = Some((key, marks.clone()));
        Ok(marks)
    }

    /// The compiled form of a grammar. It is stored for later requests with the same grammar.
    pub(crate) fn compiled(&self, constraint: &Constraint) -> Result<Arc<Compiled>> {
        let Some(tokenizer) = &self.tokenizer else {
            let message = format!(
                "{} needs a tokenizer, and this checkpoint has none",
                constraint.grammar.name()
            );
            return Err(Error::argument(message));
        };
        let (vocab, eos_ids) = (self.info.vocab as usize, self.eos_ids());
        self.grammars.get(constraint, tokenizer, vocab, eos_ids)
    }
}

impl fmt::Debug for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frontend")
            .field("info", &self.info)
            .field("has_tokenizer", &self.tokenizer.is_some())
            .finish_non_exhaustive()
    }
}

fn not_empty(ids: Vec<u32>) -> Result<Vec<u32>> {
    match ids.is_empty() {
        true => Err(Error::argument(
            "the prompt is empty; expected at least one token",
        )),
        false => Ok(ids),
    }
}

/// Checks ids against the vocabulary; the embedding does not check them.
pub(crate) fn check_ids(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().position(|&id| id as usize >= vocab) {
        Some(at) => Err(Error::argument(format!(
            "token id {} at index {at} is outside the model's vocabulary of {vocab}",
            ids[at]
        ))),
        None => Ok(()),
    }
}

/// Checks that `needed` tokens have positions in the model.
pub(crate) fn check_positions(
    needed: usize,
    max_positions: Option<usize>,
    room_for: &str,
) -> Result<()> {
    match max_positions {
        Some(max) if needed > max => Err(Error::new(
            ErrorKind::Argument,
            format!(
                "{needed} tokens{room_for} exceed the model's {max} positions (max_position_embeddings)"
            ),
        )),
        _ => Ok(()),
    }
}

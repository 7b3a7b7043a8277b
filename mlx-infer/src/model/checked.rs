//! The check of requests. Its result is the only form in which an engine takes requests.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::adapters::HeldAdapter;
use super::draft::DraftRoom;
use super::frontend::{Frontend, Lacks, check_ids, check_positions};
use crate::error::{Error, ErrorKind, Result};
use crate::grammar::{BudgetMarks, Compiled};
use crate::request::Request;
use crate::request::generation::GenerateOptions;
use crate::request::processor::Processor;

/// A request that a model's front end has checked: token ids, options within their ranges, and the compiled grammar.
/// [`Frontend::checked`] makes it, on any thread, and [`Engine::submit_checked`](crate::Engine::submit_checked) takes it.
pub struct Checked {
    pub(crate) ids: Vec<u32>,
    pub(crate) options: GenerateOptions,
    pub(crate) grammar: Option<CheckedGrammar>,
    /// The marks of its reasoning budget, if it has one.
    pub(crate) budget: Option<Arc<BudgetMarks>>,
    pub(crate) processor: Option<Processor>,
    pub(crate) adapter: Option<String>,
    pub(crate) adapter_scale: f32,
    /// The adapter of this name, once an engine has it.
    pub(crate) held: Option<HeldAdapter>,
    /// Whether it yields to all requests that are not in the background.
    pub(crate) is_background: bool,
    /// The serial number of the front end.
    frontend: u64,
}

/// The compiled form of a request's grammar.
#[derive(Clone)]
pub(crate) struct CheckedGrammar {
    /// The grammar itself.
    pub(crate) text: Arc<Compiled>,
    /// The grammar of the text before the grammar's text, if there is one.
    pub(crate) front: Option<Arc<Compiled>>,
}

/// The reason why a request is refused.
pub(crate) struct Refusal {
    #[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "servers read it"))]
    pub(crate) part: RefusedPart,
    pub(crate) error: Error,
}

/// The part of a request at fault, with what a server needs for a message of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedPart {
    /// The prompt of `tokens` tokens and one more exceed the model's `positions`.
    Length {
        tokens: usize,
        positions: usize,
    },
    /// The prompt has this id, which is outside the vocabulary.
    Prompt(u32),
    /// The same for the ids of `logit_bias`.
    LogitBias(u32),
    Grammar,
    /// One of the other options, or the processor.
    Options,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

impl Checked {
    /// The ids of the prompt.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The options.
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// The keywords of a JSON schema that have no effect, those of [`Frontend::ignored_keywords`].
    pub fn ignored_keywords(&self) -> &[String] {
        let grammar = self.grammar.as_ref();
        grammar.map_or(&[], |grammar| grammar.text.ignored())
    }
}

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checked")
            .field("ids", &self.ids)
            .field("options", &self.options)
            .field("processor", &self.processor.as_ref().map(|_| ".."))
            .field("adapter", &self.adapter)
            .finish_non_exhaustive()
    }
}

impl Frontend {
    /// Tokenises and checks a request, and compiles its grammar. An engine of this model then takes
    /// it without further checks, except whether it has the request's adapter: only the engine
    /// knows its adapters.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{Engine, EngineOptions, GenerateOptions, LoadedModel, Request};
    /// let engine = Engine::start(LoadedModel::load_default, EngineOptions::default())?;
    /// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
    /// let checked = engine.frontend().checked(Request::new("The red fox", options))?;
    /// println!("{} tokens", checked.ids().len());
    /// let result = engine.submit_checked(checked)?.wait();
    /// assert!(result.error.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`prompt_ids`](Self::prompt_ids) and [`check`](Self::check), or the model's back end does not support
    /// processors.
    pub fn checked(&self, request: Request) -> Result<Checked> {
        let Request {
            prompt,
            options,
            processor,
            adapter,
            adapter_scale,
        } = request;
        // Code of the tokenizer and grammar crates runs here and may panic.
        let check = AssertUnwindSafe(|| {
            self.check_processor(processor.as_ref())?;
            let ids = self.prompt_ids(prompt)?;
            Ok(self.accept(ids, options)?)
        });
        let checked = catch_unwind(check).unwrap_or_else(|_| {
            let message = "the check of the request has panicked";
            Err(Error::new(ErrorKind::Compute, message))
        })?;
        Ok(Checked {
            processor,
            adapter,
            adapter_scale,
            ..checked
        })
    }

    /// Like [`checked`](Self::checked), for callers that have no adapters.
    ///
    /// # Errors
    /// As [`checked`](Self::checked), or the request has an adapter.
    pub(crate) fn checked_without_adapter(&self, request: Request) -> Result<Checked> {
        match (&request.adapter, self.lacks()) {
            (None, _) => self.checked(request),
            (Some(_), Some(Lacks { name, .. })) => Err(unsupported("adapter", name)),
            (Some(name), None) => Err(Error::argument(format!(
                "adapter {name:?}: only an engine has adapters by name"
            ))),
        }
    }

    /// Checks ids with their options, and names the part at fault.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn accept(
        &self,
        ids: Vec<u32>,
        options: GenerateOptions,
    ) -> std::result::Result<Checked, Refusal> {
        Ok(Checked {
            grammar: self.refusal(&ids, &options)?,
            budget: self.budget_marks(&options).map_err(|error| Refusal {
                part: RefusedPart::Options,
                error,
            })?,
            ids,
            options,
            processor: None,
            adapter: None,
            adapter_scale: 1.0,
            held: None,
            is_background: false,
            frontend: self.serial(),
        })
    }

    /// A copy of `checked` with another seed and processor.
    ///
    /// # Errors
    /// The model's back end does not support processors.
    #[cfg(feature = "serve")]
    pub(crate) fn choice(
        &self,
        checked: &Checked,
        seed: u64,
        processor: Option<Processor>,
    ) -> Result<Checked> {
        self.check_processor(processor.as_ref())?;
        let mut options = checked.options.clone();
        options.sampling.seed = Some(seed);
        Ok(Checked {
            ids: checked.ids.clone(),
            options,
            grammar: checked.grammar.clone(),
            budget: checked.budget.clone(),
            processor,
            adapter: checked.adapter.clone(),
            adapter_scale: checked.adapter_scale,
            held: checked.held.clone(),
            is_background: checked.is_background,
            frontend: checked.frontend,
        })
    }

    /// Checks that this front end has checked the request.
    ///
    /// # Errors
    /// The request was checked by the front end of another model.
    pub(crate) fn check_origin(&self, checked: &Checked) -> Result<()> {
        match checked.frontend == self.serial() {
            true => Ok(()),
            false => Err(Error::argument(
                "the request was checked by the front end of another model",
            )),
        }
    }

    /// Checks a request without a processor as [`checked`](Self::checked) does.
    ///
    /// # Errors
    /// An option is out of range or not supported by the model's back end, a stop string or grammar has no tokenizer, a
    /// grammar is malformed or not supported, drafts are longer than the model was loaded for, or the ids have no place
    /// in the model's vocabulary or positions.
    pub fn check(&self, ids: &[u32], options: &GenerateOptions) -> Result<()> {
        Ok(self.refusal(ids, options).map(drop)?)
    }

    /// Checks that the back end supports a request's processor.
    ///
    /// # Errors
    /// There is a processor, and the model's back end does not support it.
    fn check_processor(&self, processor: Option<&Processor>) -> Result<()> {
        match (processor, self.lacks()) {
            (Some(_), Some(Lacks { name, .. })) => Err(unsupported("processor", name)),
            _ => Ok(()),
        }
    }

    /// Checks a prompt and its options, and returns the compiled grammar.
    fn refusal(
        &self,
        ids: &[u32],
        options: &GenerateOptions,
    ) -> std::result::Result<Option<CheckedGrammar>, Refusal> {
        let refuse = |part: RefusedPart| move |error| Refusal { part, error };
        self.check_generates()
            .map_err(refuse(RefusedPart::Options))?;
        let positions = self.info().max_positions;
        let too_long = RefusedPart::Length {
            tokens: ids.len(),
            positions: positions.unwrap_or(usize::MAX),
        };
        check_positions(ids.len() + 1, positions, " (the prompt and one more)")
            .map_err(refuse(too_long))?;
        let vocab = self.info().vocab as usize;
        let bias: Vec<u32> = options.sampling.logit_bias.keys().copied().collect();
        for (ids, part) in [
            (ids, RefusedPart::Prompt as fn(u32) -> RefusedPart),
            (&bias, RefusedPart::LogitBias),
        ] {
            let largest = ids.iter().copied().max().unwrap_or_default();
            check_ids(ids, vocab).map_err(refuse(part(largest)))?;
        }
        self.check_options(options)
            .map_err(refuse(RefusedPart::Options))?;
        self.compile(options).map_err(refuse(RefusedPart::Grammar))
    }

    /// Checks the options other than the grammar.
    ///
    /// # Errors
    /// One of them is at fault.
    fn check_options(&self, options: &GenerateOptions) -> Result<()> {
        options.check()?;
        if let Some(lacks) = self.lacks() {
            (lacks.check)(options)?;
        }
        if self.tokenizer_if_any().is_none() && !options.stop.is_empty() {
            let message =
                "stop strings need a tokenizer, and this checkpoint has none; stop at token ids";
            return Err(Error::argument(message));
        }
        let room = self.draft_room();
        room.map_or(Ok(()), |room| DraftRoom::check(room, options.speculative))
    }

    /// The marks of the options' reasoning budget.
    fn budget_marks(&self, options: &GenerateOptions) -> Result<Option<Arc<BudgetMarks>>> {
        let budget = options.reasoning_budget.as_ref();
        budget.map(|budget| self.marks_of(budget)).transpose()
    }

    /// The compiled form of the options' grammar.
    fn compile(&self, options: &GenerateOptions) -> Result<Option<CheckedGrammar>> {
        let compiled = options.grammar.as_ref().map(|constraint| {
            Ok(CheckedGrammar {
                front: self.compiled_front(constraint)?,
                text: self.compiled(constraint)?,
            })
        });
        compiled.transpose()
    }
}

/// The error for a part of a request that a back end does not have.
fn unsupported(part: &str, back_end: &str) -> Error {
    Error::unsupported(format!(
        "{part} of a request is not supported by the {back_end} back end; the native one has it"
    ))
}

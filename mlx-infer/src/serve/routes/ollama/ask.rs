//! Reads what the requests of both routes have in common: the model, the options, the form of the
//! answer, reasoning.

use std::time::{Duration, Instant};

use axum::extract::{FromRequest, Request};
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::request::generation::GenerateOptions;
use crate::request::grammar::Constraint;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, Fields};
use crate::serve::http::room::Long;
use crate::serve::http::trace::Trace;
use crate::serve::keep_alive::KeepAlive;
use crate::serve::routes::ollama::writer::{AnswerForm, LineWriter};
use crate::serve::routes::openai::logprobs;
use crate::serve::state::{Asked, Loaded, Shared};
use crate::serve::turn::edits::Edits;
use crate::serve::turn::{self, AskedBudget, Turn, grammar, params};
use crate::text::chat::Message;
use crate::text::chat::reply::ToolChoice;

/// Options that say how Ollama computes, and change no answer here. `num_ctx` is one of them: a
/// conversation may take the model's whole context.
const HARMLESS: &[&str] = &[
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "mirostat_eta",
    "mirostat_tau",
    "num_batch",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

/// The number of last tokens under the penalty of repetitions, if a request gives none.
const REPEAT_LAST_N: usize = 64;

/// A request of Ollama's API, before its model is in memory. Names of models may end in `:latest`.
pub(super) struct OllamaAsk {
    pub(super) app: Shared,
    trace: Trace,
    pub(super) asked: Asked,
    keep_alive: Option<KeepAlive>,
    pub(super) fields: Fields,
}

impl FromRequest<Shared> for OllamaAsk {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        let trace = request.extensions().get::<Trace>().cloned();
        let trace = trace.ok_or_else(ApiError::internal)?;
        let mut fields = Fields::from_request(request, app).await?;
        let model: Option<String> = fields.any(&["model", "name"])?;
        let model = model.as_deref().map(|name| app.without_tag(name));
        Ok(Self {
            app: app.clone(),
            trace,
            asked: app.asked(model)?,
            keep_alive: KeepAlive::take(&mut fields)?,
            fields,
        })
    }
}

impl OllamaAsk {
    /// The request once its model is in memory, and how long it waited for that.
    ///
    /// # Errors
    /// The model cannot be loaded, or the server takes no requests.
    pub(super) async fn with_model(self) -> Result<(Ask, Duration), ApiError> {
        let begun = Instant::now();
        let ask = Ask::of(
            &self.app,
            self.trace,
            &self.asked,
            self.keep_alive,
            self.fields,
        );
        Ok((ask.await?, begun.elapsed()))
    }

    /// The answer to a request without a text: the model is loaded, or with a `keep_alive` of 0
    /// unloaded as soon as it has no other requests.
    ///
    /// # Errors
    /// The model cannot be loaded, or it cannot be unloaded.
    pub(super) async fn without_text(self, form: AnswerForm) -> Result<Response, ApiError> {
        let is_zero = |kept| matches!(kept, KeepAlive::For(time) if time.is_zero());
        let writer = LineWriter::new(form, &self.asked.name, &self.trace);
        if !self.keep_alive.is_some_and(is_zero) {
            let (ask, _) = self.with_model().await?;
            return Ok(writer.without_text("load", ask.fields.end(&["stream", "options"])?));
        }
        self.app.pool.let_go(self.asked.index)?;
        Ok(writer.without_text("unload", self.fields.end(&["stream", "options"])?))
    }
}

/// The keys that the routes for conversations and for texts have in common.
pub(super) struct Common {
    pub(super) options: GenerateOptions,
    /// The most tokens of the answer; `None` for the rest of the context.
    pub(super) max_tokens: Option<usize>,
    /// Variables of the template.
    pub(super) kwargs: Map<String, Value>,
    pub(super) budget: Option<AskedBudget>,
    pub(super) is_stream: bool,
}

impl Common {
    /// The turn of a conversation with these options. `place` is the key that errors name.
    pub(super) fn turn(
        self,
        place: &'static str,
        messages: Vec<Message>,
        (tools, tool_choice): (Vec<Value>, ToolChoice),
        long: Long,
    ) -> Turn {
        Turn {
            place,
            ids: None,
            messages,
            tools,
            tool_choice,
            skipped: Vec::new(),
            is_parallel: true,
            continues: false,
            add_generation_prompt: true,
            kwargs: self.kwargs,
            options: self.options,
            form: "format",
            max_tokens: self.max_tokens,
            budget: self.budget,
            n: 1,
            edits: Edits::default(),
            long,
        }
    }

    /// Takes the keys.
    ///
    /// # Errors
    /// A value has another type or is out of range, or a key is not supported.
    pub(super) fn take(fields: &mut Fields, loaded: &Loaded) -> Result<Self, ApiError> {
        refuse(fields, "template", "the model's own template is used")?;
        refuse(fields, "images", "the model reads texts only")?;
        let is_stream = fields.take("stream")?.unwrap_or(true);
        let (mut options, max_tokens) = options(fields, loaded)?;
        if let Some(format) = format(fields)? {
            if options.grammar.is_some() {
                let message = "format and an option both say what the answer must match";
                return Err(ApiError::bad("format", message));
            }
            options.grammar = Some(format);
        }
        options.logprobs = logprobs::of_chat(fields)?;
        let mut kwargs = Map::new();
        let budget = think(fields, loaded, &mut kwargs)?;
        Ok(Self {
            options,
            max_tokens,
            kwargs,
            budget,
            is_stream,
        })
    }
}

/// Refuses a key whose value is not empty.
pub(super) fn refuse(fields: &mut Fields, name: &str, why: &str) -> Result<(), ApiError> {
    match fields.take::<Value>(name)? {
        Some(value) if is_given(&value) => Err(ApiError::bad(
            name,
            format!("{name} is not supported: {why}"),
        )),
        _ => Ok(()),
    }
}

/// Whether a value is there and not empty.
pub(super) fn is_given(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_on) => *is_on,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(_) | Value::Number(_) => true,
    }
}

/// Takes `options`, and the most tokens of the answer from them.
fn options(
    fields: &mut Fields,
    loaded: &Loaded,
) -> Result<(GenerateOptions, Option<usize>), ApiError> {
    let given: Option<Map<String, Value>> = fields.take("options")?;
    let mut inner = fields.inner(given.unwrap_or_default());
    let max_tokens = match inner.take::<i64>("num_predict")? {
        // Ollama's words for the rest of the context.
        None | Some(-2..=0) => None,
        Some(n) => Some(usize::try_from(n).map_err(|_| {
            let message = format!("num_predict must be at least 1, or -1 for no limit, given {n}");
            ApiError::bad("num_predict", message)
        })?),
    };
    if inner.take::<usize>("num_ctx")? == Some(0) {
        let message = "num_ctx must be at least 1, given 0";
        return Err(ApiError::bad("num_ctx", message));
    }
    let has_penalty = inner.has("repeat_penalty");
    let has_length = inner.has("repeat_last_n");
    let mut options = params::options(&mut inner, loaded)?;
    if has_penalty && !has_length {
        options.sampling.repeat_context = REPEAT_LAST_N;
    }
    fields.absorb("options", inner, HARMLESS)?;
    Ok((options, max_tokens))
}

/// Takes the `options` of a request that generates nothing. Those that would change an answer are
/// named as without effect.
///
/// # Errors
/// They are no object, or one is not supported on any route.
pub(super) fn take_unused_options(fields: &mut Fields) -> Result<(), ApiError> {
    let given: Option<Map<String, Value>> = fields.take("options")?;
    let mut inner = fields.inner(given.unwrap_or_default());
    inner.take::<usize>("num_ctx")?;
    fields.absorb("options", inner, HARMLESS)
}

/// Takes `format`: `"json"`, or a JSON schema.
fn format(fields: &mut Fields) -> Result<Option<Constraint>, ApiError> {
    let format = match fields.take::<Value>("format")? {
        None => return Ok(None),
        Some(Value::String(word)) if word.is_empty() => return Ok(None),
        Some(Value::String(word)) if word == "json" => json!({"type": "json_object"}),
        Some(schema @ Value::Object(_)) => json!({"type": "json_object", "schema": schema}),
        Some(other) => {
            let message = format!("format must be \"json\" or a JSON schema, given {other}");
            return Err(ApiError::bad("format", message));
        }
    };
    grammar::of_format(fields, &format, "format")
}

/// Takes `think`: whether the model reasons, or with which effort.
fn think(
    fields: &mut Fields,
    loaded: &Loaded,
    kwargs: &mut Map<String, Value>,
) -> Result<Option<AskedBudget>, ApiError> {
    const NAME: &str = "think";
    let Some(think) = fields.take::<Value>(NAME)? else {
        return Ok(None);
    };
    // A model without a template only continues texts.
    let can_think = || {
        let format = loaded.reply_format();
        format.is_ok_and(|format| format.has_reasoning())
    };
    match &think {
        Value::Bool(false) => {
            turn::effort(kwargs, "none");
            // A model without marks of reasoning does not reason.
            return Ok(can_think().then(|| AskedBudget::none(NAME)));
        }
        Value::Bool(true) => {
            kwargs.insert("enable_thinking".to_owned(), true.into());
        }
        Value::String(word) if ["low", "medium", "high"].contains(&word.as_str()) => {
            turn::effort(kwargs, word);
        }
        other => {
            let message = format!("think must be true, false, low, medium or high, given {other}");
            return Err(ApiError::bad(NAME, message));
        }
    }
    match can_think() {
        true => Ok(None),
        false => Err(ApiError::bad(
            NAME,
            "think: the model has no marks of reasoning, so it cannot think",
        )),
    }
}

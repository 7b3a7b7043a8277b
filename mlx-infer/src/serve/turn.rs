//! A conversation to answer: the common part of the routes for chats, whose JSON differs.

pub(crate) mod choices;
pub(crate) mod edits;
pub(crate) mod grammar;
pub(crate) mod params;

mod custom;
mod reasoning;
mod replies;
mod tools;

use axum::http::HeaderMap;
use serde_json::{Map, Value, json};

pub(super) use self::custom::{InputReader, as_function};
pub(super) use self::reasoning::{
    AskedBudget, budget, budget_of_thinking, effort, take_effort, take_reasoning,
};
pub(super) use self::replies::{Call, Delta, End, Replies, Whole, call_id};
pub(super) use self::tools::{check_choice, tool_choice, tools, tools_from};

use self::replies::Reply;
use super::state::{Loaded, Served, Shared};
use crate::error::{Error, ErrorKind};
use crate::request::generation::GenerateOptions;
use crate::request::grammar::Grammar;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::name_ignored;
use crate::serve::http::room::{Long, heavy};
use crate::serve::http::trace::Trace;
use crate::serve::turn::choices::{AskedRows, Choices};
use crate::serve::turn::edits::Edits;
use crate::text::chat::reply::{ReplyFront, ToolChoice};
use crate::text::chat::{self, Message, RenderOptions};

/// A conversation, and how to answer it.
pub(super) struct Turn {
    /// The parameter from which the messages come.
    pub(super) place: &'static str,
    /// The ids of the whole prompt, in place of messages.
    pub(super) ids: Option<Vec<u32>>,
    pub(super) messages: Vec<Message>,
    /// In OpenAI's form.
    pub(super) tools: Vec<Value>,
    /// The positions of tools that are not offered, because only their API's own servers run them.
    pub(super) skipped: Vec<String>,
    pub(super) tool_choice: ToolChoice,
    /// Whether an answer may call several tools.
    pub(super) is_parallel: bool,
    /// Whether the answer continues the last message, which is the model's own.
    pub(super) continues: bool,
    pub(super) add_generation_prompt: bool,
    /// Variables of the template.
    pub(super) kwargs: Map<String, Value>,
    pub(super) options: GenerateOptions,
    /// The parameter from which the grammar of the options comes.
    pub(super) form: &'static str,
    pub(super) max_tokens: Option<usize>,
    /// The budget of its reasoning, if the request gives one.
    pub(super) budget: Option<AskedBudget>,
    pub(super) n: usize,
    pub(super) edits: Edits,
    /// Whether its prompt may take long to tokenise, and the permits for that.
    pub(super) long: Long,
}

/// The answers of a turn's rows while they are generated.
pub(super) struct Answers {
    pub(super) choices: Choices,
    pub(super) replies: Replies,
    /// The tokens of the prompt.
    pub(super) prompt: Vec<u32>,
}

/// Marks the end of the message that is continued. Transformers' `continue_final_message` finds the end in the same way.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl Turn {
    /// The ids of the prompt and its text.
    fn prompt(&self, loaded: &Loaded) -> Result<(Vec<u32>, String), ApiError> {
        let frontend = loaded.frontend();
        if let Some(ids) = &self.ids {
            let mut ids = ids.clone();
            self.edits
                .truncate(frontend, &mut ids, self.max_tokens.unwrap_or(1));
            if ids.is_empty() {
                let message = format!("{} is empty", self.place);
                return Err(ApiError::bad(self.place, message));
            }
            let vocab = frontend.info().vocab.unsigned_abs();
            // Unknown ids have no text. They are refused later, by their number.
            let known: Vec<u32> = ids.iter().copied().filter(|&id| id < vocab).collect();
            let text = frontend.tokenizer()?.decode(&known, false)?;
            return Ok((ids, text));
        }
        let mut messages = prepared(loaded, self.messages.clone())?;
        let offers_tools = !self.tools.is_empty() && self.tool_choice != ToolChoice::None;
        let render = RenderOptions {
            tools: offers_tools.then(|| custom::shown(&self.tools)),
            add_generation_prompt: self.add_generation_prompt && !self.continues,
            kwargs: self.kwargs.clone(),
            ..Default::default()
        };
        let written = |messages: &[Message]| written(loaded, messages, &render);
        let text = match self.continues {
            false => written(&messages)?,
            true => {
                let last = messages.pop();
                let said = last
                    .as_ref()
                    .and_then(Message::text)
                    .unwrap_or("")
                    .to_owned();
                let Some(last) = last.filter(|last| last.role() == Some("assistant")) else {
                    let message =
                        "continue_final_message needs a last message of the assistant, with a text";
                    return Err(ApiError::bad("messages", message));
                };
                messages.push(last.with("content", format!("{said}{TAG}")));
                let text = written(&messages)?;
                let Some(at) = text.rfind(TAG.trim_end()) else {
                    let message = "the model's chat template does not show the last message as it is, so it cannot be continued";
                    return Err(ApiError::bad("continue_final_message", message));
                };
                match text[at..].starts_with(TAG) {
                    true => text[..at].to_owned(),
                    // The template has trimmed the message.
                    false => text[..at].trim_end().to_owned(),
                }
            }
        };
        if !self.edits.truncates() {
            params::check_length(frontend, "messages", &text)?;
        }
        let mut ids = frontend.tokenizer()?.encode(&text, false)?;
        let answer = self.max_tokens.unwrap_or(1);
        self.edits.truncate(frontend, &mut ids, answer);
        if ids.is_empty() {
            return Err(ApiError::bad("messages", "messages is empty"));
        }
        Ok((ids, text))
    }

    /// The number of tokens of the prompt.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub(super) fn count(&self, loaded: &Loaded) -> Result<usize, ApiError> {
        let prompt = heavy(self.long.clone(), || self.prompt(loaded));
        Ok(prompt.map_err(|error| self.placed(error))?.0.len())
    }

    /// Adds the name of the messages' parameter to an error of the messages.
    fn placed(&self, error: ApiError) -> ApiError {
        match error.param.as_deref() {
            Some("messages") => error.with_param(self.place),
            _ => error,
        }
    }

    /// Submits the turn. Keywords of a schema that have no effect are named in `headers`.
    ///
    /// # Errors
    /// The template refuses the conversation, an option is out of range, or the queue is full.
    pub(super) fn start(
        mut self,
        app: &Shared,
        loaded: &Loaded,
        served: &Served,
        trace: &Trace,
        headers: &mut HeaderMap,
    ) -> Result<Answers, ApiError> {
        let frontend = loaded.frontend();
        let format = loaded.reply_format()?;
        let budget = self.take_budget(app, format)?;
        // Grammars take milliseconds to compile.
        let is_long = self.options.grammar.is_some() || !self.tools.is_empty();
        let long = std::mem::take(&mut self.long).or(is_long);
        let (checked, text, filter) = heavy(long, || {
            let prompt = self.prompt(loaded);
            let (ids, text) = prompt.map_err(|error| self.placed(error))?;
            self.options.max_tokens =
                loaded.max_tokens(self.max_tokens, ids.len(), app.settings.max_output);
            let tokenizer = frontend.tokenizer()?;
            self.options.kept_special = format.kept_special().to_vec();
            let calls = format.grammar(tokenizer, &self.tools, &self.tool_choice, self.is_parallel);
            let calls = calls.map_err(|error| {
                let param = match error.kind() {
                    ErrorKind::Argument => "tools",
                    _ => "tool_choice",
                };
                ApiError::from(error).with_param(param)
            })?;
            // A form of the whole answer replaces the grammar of calls that are optional.
            let is_open = self.tool_choice == ToolChoice::Auto && self.options.grammar.is_some();
            let front = match format.front(tokenizer, &text) {
                // The grammar of calls includes the text before the answer.
                ReplyFront::Form(_) if calls.is_some() && !is_open => ReplyFront::Nothing,
                front => front,
            };
            let mut form = self.form;
            if let Some(grammar) = calls.filter(|_| !is_open) {
                self.options.grammar = Some(Grammar::Lark(grammar).into());
                form = "tools";
            }
            let may_think = self.kwargs.get("enable_thinking") != Some(&Value::Bool(false));
            if let Some(constraint) = &mut self.options.grammar {
                match front {
                    ReplyFront::Reasoning { open, close } if open.is_none() || may_think => {
                        constraint.after = Some(close.to_owned());
                        constraint.opener = open.map(str::to_owned);
                    }
                    ReplyFront::Form(form) => constraint.front = Some(form),
                    ReplyFront::Reasoning { .. } | ReplyFront::Nothing => {}
                }
            }
            self.options.reasoning_budget =
                budget.and_then(|tokens| frontend.reasoning_budget(format, &text, tokens));
            let options = std::mem::take(&mut self.options);
            let checked = params::check(frontend, self.place, form, ids, options)?;
            let filter = self.edits.filter(frontend, checked.options())?;
            Ok::<_, ApiError>((checked, text, filter))
        })?;
        name_ignored(headers, checked.ignored_keywords());
        name_ignored(headers, &self.skipped);
        let tools: &[Value] = match self.tool_choice {
            ToolChoice::None => &[],
            _ => &self.tools,
        };
        let prompt = checked.ids().to_vec();
        let rows = AskedRows {
            prompts: std::slice::from_ref(&checked),
            n: self.n,
            filter: filter.as_ref(),
        };
        let choices = Choices::start(app, loaded, served, trace, rows)?;
        let options = checked.options();
        let replies = Replies {
            rows: (0..choices.len())
                .map(|_| Reply::new(format, &text, tools))
                .collect(),
            is_parallel: self.is_parallel,
            must_call: matches!(
                self.tool_choice,
                ToolChoice::Required | ToolChoice::Named(_)
            ),
            kept_special: [
                format.kept_special(),
                &frontend.tokenizer()?.special_in(&options.stop),
            ]
            .concat(),
            stop_ids: options.ending(frontend.eos_ids()),
            stop: options.stop.clone(),
            min_tokens: options.min_tokens,
            tokenizer: frontend.tokenizer()?.clone(),
            trace: trace.clone(),
        };
        Ok(Answers {
            replies,
            choices,
            prompt,
        })
    }
}

/// Roles that each template or its caller handles: `developer` is read as `system`, and results of
/// tools become texts if the template does not handle them.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A conversation in the form that templates read.
///
/// # Errors
/// A message is malformed, or has a role that is not known and that the model's template does not name.
pub(super) fn prepared(loaded: &Loaded, messages: Vec<Message>) -> Result<Vec<Message>, ApiError> {
    let template = loaded.frontend().chat_template()?;
    let is_named = |role: &str| {
        let quoted = [format!("'{role}'"), format!("\"{role}\"")];
        let mut sources = template.names().filter_map(|name| template.source(name));
        sources.any(|source| quoted.iter().any(|quoted| source.contains(quoted)))
    };
    for (at, message) in messages.iter().enumerate() {
        let role = message.role().unwrap_or_default();
        if !ROLES.contains(&role) && (role.is_empty() || !is_named(role)) {
            let message = format!(
                "messages[{at}]: the role {role:?} is not known, and the model's chat template does not name it; known: {}",
                ROLES.join(", ")
            );
            return Err(ApiError::bad("messages", message));
        }
    }
    let prepared = chat::prepare(messages, loaded.reply_format()?);
    prepared.map_err(in_messages)
}

/// Tools with OpenAI's optional fields, which some templates read without checking that they exist.
/// `None` if no tool lacks one.
fn completed(tools: &[Value]) -> Option<Vec<Value>> {
    let mut completed = tools.to_vec();
    for tool in &mut completed {
        let Some(function) = tool
            .get_mut("function")
            .filter(|function| function.is_object())
        else {
            continue;
        };
        if function["description"].is_null() {
            function["description"] = "".into();
        }
        if function["parameters"].is_null() {
            function["parameters"] = json!({"type": "object", "properties": {}});
        }
        if let Value::Object(parameters) = &mut function["parameters"]
            && parameters.get("properties").is_none_or(Value::is_null)
        {
            parameters.insert("properties".to_owned(), json!({}));
        }
    }
    (completed != tools).then_some(completed)
}

/// The prompt text of a conversation that was prepared.
///
/// # Errors
/// The template refuses the conversation.
pub(super) fn written(
    loaded: &Loaded,
    messages: &[Message],
    render: &RenderOptions,
) -> Result<String, ApiError> {
    let template = loaded.frontend().chat_template()?;
    let format = loaded.reply_format()?;
    let text = chat::prompt_text(template, format, messages, render);
    let text = match (text, render.tools.as_deref().and_then(completed)) {
        (Err(error), Some(tools)) => {
            let render = RenderOptions {
                tools: Some(tools),
                ..render.clone()
            };
            // The first error is that of the request as given.
            chat::prompt_text(template, format, messages, &render).map_err(|_| error)
        }
        (text, _) => text,
    };
    text.map_err(in_messages)
}

fn in_messages(error: Error) -> ApiError {
    ApiError::from(error).with_param("messages")
}

impl Answers {
    /// The next part of a row's answer; `None` when all rows have ended.
    ///
    /// # Errors
    /// A row failed.
    pub(super) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        let step = self.choices.next().await?;
        Some(step.map(|step| self.replies.read(step, &mut self.choices)))
    }
}

impl Loaded {
    /// The maximum number of tokens of an answer to a prompt: that of the request, or else the rest
    /// of the context up to the server's limit.
    pub(super) fn max_tokens(&self, given: Option<usize>, prompt: usize, limit: usize) -> usize {
        let positions = self.frontend().info().max_positions;
        let room = positions.map_or(usize::MAX, |max| max.saturating_sub(prompt));
        given.unwrap_or(limit).min(room).max(1)
    }
}

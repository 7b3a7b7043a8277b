//! A conversation to answer: what the routes for chats have in common behind their different JSON.

mod replies;

use axum::http::HeaderMap;
use serde_json::{Map, Value};

pub(super) use self::replies::{Call, Delta, End, Replies, Whole, call_id};

use self::replies::Reply;
use super::choices::Choices;
use super::error::ApiError;
use super::fields::{Fields, name_ignored};
use super::params;
use super::state::{Loaded, Served, Shared, heavy};
use super::trace::Trace;
use crate::error::Error;
use crate::generate::GenerateOptions;
use crate::grammar::Grammar;
use crate::text::chat::reply::{ReplyFront, ToolChoice};
use crate::text::chat::{self, Message, RenderOptions};

/// A conversation, and how to answer it.
pub(super) struct Turn {
    pub(super) messages: Vec<Message>,
    /// In OpenAI's form.
    pub(super) tools: Vec<Value>,
    /// Places of tools that are not offered, because only their API's own servers run them.
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
    pub(super) max_tokens: Option<usize>,
    pub(super) n: usize,
}

/// The answers of a turn's rows as they come.
pub(super) struct Answers {
    pub(super) choices: Choices,
    pub(super) replies: Replies,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
}

/// Marks the end of the message that is continued. Transformers' `continue_final_message` finds the end in the same way.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl Turn {
    /// The ids of the prompt and its text.
    fn prompt(&self, loaded: &Loaded) -> Result<(Vec<u32>, String), ApiError> {
        let frontend = loaded.frontend();
        let mut messages = prepared(loaded, self.messages.clone())?;
        let offers_tools = !self.tools.is_empty() && self.tool_choice != ToolChoice::None;
        let render = RenderOptions {
            tools: offers_tools.then(|| self.tools.clone()),
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
        let ids = frontend.tokenizer()?.encode(&text, false)?;
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
        heavy(|| Ok(self.prompt(loaded)?.0.len()))
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
        let (ids, text, ignored) = heavy(|| {
            let (ids, text) = self.prompt(loaded)?;
            self.options.max_tokens =
                loaded.max_tokens(self.max_tokens, ids.len(), app.settings.max_output);
            self.options.kept_special = format.kept_special().to_vec();
            let tokenizer = frontend.tokenizer()?;
            let calls = format.grammar(tokenizer, &self.tools, &self.tool_choice, self.is_parallel);
            let calls = calls.map_err(|error| ApiError::from(error).with_param("tool_choice"))?;
            // A form of the whole answer replaces the grammar of calls that are optional.
            let is_open = self.tool_choice == ToolChoice::Auto && self.options.grammar.is_some();
            let front = match format.front(tokenizer, &text) {
                // The grammar of calls includes what stands in front.
                ReplyFront::Form(_) if calls.is_some() && !is_open => ReplyFront::Nothing,
                front => front,
            };
            if let Some(grammar) = calls.filter(|_| !is_open) {
                self.options.grammar = Some(Grammar::Lark(grammar).into());
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
            let ignored = params::check(frontend, "messages", &ids, &self.options)?;
            Ok::<_, ApiError>((ids, text, ignored))
        })?;
        name_ignored(headers, &ignored);
        name_ignored(headers, &self.skipped);
        let tools: &[Value] = match self.tool_choice {
            ToolChoice::None => &[],
            _ => &self.tools,
        };
        let prompt = ids.len();
        let choices = Choices::start(app, loaded, served, trace, &[ids], self.n, &self.options)?;
        let replies = Replies {
            rows: (0..choices.len())
                .map(|_| Reply::new(format, &text, tools))
                .collect(),
            is_parallel: self.is_parallel,
            stop: self.options.stop.clone(),
            min_tokens: self.options.min_tokens,
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

/// A conversation in the form that templates read.
///
/// # Errors
/// A message is malformed.
pub(super) fn prepared(loaded: &Loaded, messages: Vec<Message>) -> Result<Vec<Message>, ApiError> {
    let prepared = chat::prepare(messages, loaded.reply_format()?);
    prepared.map_err(in_messages)
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
    let text = chat::prompt_text(template, loaded.reply_format()?, messages, render);
    text.map_err(in_messages)
}

fn in_messages(error: Error) -> ApiError {
    ApiError::from(error).with_param("messages")
}

impl Answers {
    /// What a row has added next; `None` when all have ended.
    ///
    /// # Errors
    /// A row failed.
    pub(super) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        let step = self.choices.next().await?;
        Some(step.map(|step| self.replies.read(step, &mut self.choices)))
    }
}

/// Takes `tools`, in the form of chat completions.
///
/// # Errors
/// A tool is no function.
pub(super) fn tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    for (at, tool) in tools.iter().enumerate() {
        let name = tool.pointer("/function/name").and_then(Value::as_str);
        if tool["type"] != "function" || name.is_none_or(str::is_empty) {
            let message = format!("tools[{at}] is not a function with a name");
            return Err(ApiError::bad("tools", message));
        }
    }
    Ok(tools)
}

/// Takes `tools` that are not in the form of chat completions. `convert` brings a tool into that form, or gives `None` for one that is skipped.
/// Returns the tools and the places of those that were skipped.
///
/// # Errors
/// Those of `convert`.
pub(super) fn tools_from(
    fields: &mut Fields,
    convert: impl Fn(&Value) -> Result<Option<Value>, &'static str>,
) -> Result<(Vec<Value>, Vec<String>), ApiError> {
    let given: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let (mut offered, mut skipped) = (Vec::new(), Vec::new());
    for (at, tool) in given.iter().enumerate() {
        let place = format!("tools[{at}]");
        match convert(tool) {
            Ok(Some(tool)) => offered.push(tool),
            Ok(None) => skipped.push(place),
            Err(what) => return Err(ApiError::bad("tools", format!("{place} {what}"))),
        }
    }
    Ok((offered, skipped))
}

/// Takes `tool_choice` of OpenAI's routes. The name of a function stands under `function` in chat completions, beside `type` in responses.
///
/// # Errors
/// It is not known, or contradicts `tools`.
pub(super) fn tool_choice(fields: &mut Fields, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    let bad = |message: String| Err(ApiError::bad("tool_choice", message));
    let choice = match fields.take::<Value>("tool_choice")? {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" | "any" => ToolChoice::Required,
            word => {
                return bad(format!(
                    "tool_choice must be auto, none, required or a function, given {word:?}"
                ));
            }
        },
        Some(object) => {
            let name = object.pointer("/function/name").or(object.get("name"));
            match name.and_then(Value::as_str) {
                Some(name) => ToolChoice::Named(name.to_owned()),
                None => return bad("tool_choice names no function".to_owned()),
            }
        }
    };
    check_choice(choice, tools)
}

/// Checks a choice against the tools, which are in the form of chat completions.
///
/// # Errors
/// It asks for a tool that is not there.
pub(super) fn check_choice(choice: ToolChoice, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    let message = match &choice {
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool["function"]["name"] == **name) => {
            format!("tool_choice asks for {name:?}, which is not among tools")
        }
        ToolChoice::Required if tools.is_empty() => {
            "tool_choice is required, and there are no tools".to_owned()
        }
        _ => return Ok(choice),
    };
    Err(ApiError::bad("tool_choice", message))
}

impl Loaded {
    /// The most tokens of an answer to a prompt: what the request says, or the rest of the context up to the server's limit.
    pub(super) fn max_tokens(&self, given: Option<usize>, prompt: usize, limit: usize) -> usize {
        let positions = self.frontend().info().max_positions;
        let room = positions.map_or(usize::MAX, |max| max.saturating_sub(prompt));
        given.unwrap_or(limit).min(room).max(1)
    }
}

/// Puts `reasoning_effort` among the template's variables. `none` also switches reasoning off where the template has a switch.
pub(super) fn effort(kwargs: &mut Map<String, Value>, effort: &str) {
    kwargs
        .entry("reasoning_effort")
        .or_insert_with(|| effort.into());
    if effort == "none" {
        kwargs
            .entry("enable_thinking")
            .or_insert_with(|| false.into());
    }
}

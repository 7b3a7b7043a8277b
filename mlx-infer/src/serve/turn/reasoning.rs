//! Reads how much a request lets the model reason: its effort, and its budget of tokens.

use serde_json::{Map, Value};

use super::Turn;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::state::Shared;
use crate::text::chat::reply::ReplyFormat;

/// The names of the budget: llama.cpp's, and vLLM's. The objects `reasoning` and `thinking` have
/// others.
const NAMES: [&str; 4] = [
    "reasoning_budget",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "thinking_token_budget",
];
const OF_REASONING: &str = "reasoning.max_tokens";
const OF_THINKING: &str = "thinking.budget_tokens";

/// The parameter of a name.
fn param(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// A budget of reasoning that a request gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct AskedBudget {
    /// The most tokens; `None` for no limit, whatever the server's default is.
    tokens: Option<usize>,
    /// The parameter from which it comes.
    name: &'static str,
}

impl AskedBudget {
    /// No reasoning. `name` is the parameter that asks for it.
    pub(in super::super) fn none(name: &'static str) -> Self {
        let tokens = Some(0);
        Self { tokens, name }
    }

    fn read(value: &Value, name: &'static str) -> Result<Option<Self>, ApiError> {
        let tokens = match (value, value.as_i64()) {
            (Value::Null, _) => return Ok(None),
            (_, Some(-1)) => None,
            (_, Some(n @ 0..)) => Some(usize::try_from(n).unwrap_or(usize::MAX)),
            _ => {
                let message =
                    format!("{name} must be at least 0, or -1 for no limit, given {value}");
                return Err(ApiError::bad(param(name), message));
            }
        };
        Ok(Some(Self { tokens, name }))
    }
}

/// Takes the budget of the reasoning. `object` is the value of `reasoning`.
///
/// # Errors
/// A number is out of range.
pub(in super::super) fn budget(
    fields: &mut Fields,
    object: &Map<String, Value>,
) -> Result<Option<AskedBudget>, ApiError> {
    let given = object.get("max_tokens").unwrap_or(&Value::Null);
    let mut found = AskedBudget::read(given, OF_REASONING)?;
    for name in NAMES {
        let given: Value = fields.take(name)?.unwrap_or_default();
        found = AskedBudget::read(&given, name)?.or(found);
    }
    Ok(found)
}

/// The budget in the value of `thinking` of messages.
///
/// # Errors
/// The number is out of range.
pub(in super::super) fn budget_of_thinking(
    thinking: &Map<String, Value>,
) -> Result<Option<AskedBudget>, ApiError> {
    let given = thinking.get("budget_tokens").unwrap_or(&Value::Null);
    AskedBudget::read(given, OF_THINKING)
}

/// Takes the object `reasoning`, and adds its effort to the template's variables. `enabled: false` is
/// the effort `none`.
///
/// # Errors
/// It is no object, or the effort is not a text.
pub(in super::super) fn take_reasoning(
    fields: &mut Fields,
    kwargs: &mut Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    let reasoning: Option<Map<String, Value>> = fields.take("reasoning")?;
    let reasoning = reasoning.unwrap_or_default();
    // No answer has a summary of its reasoning: it has the reasoning.
    let known = [
        "effort",
        "enabled",
        "generate_summary",
        "max_tokens",
        "summary",
    ];
    fields.name_others("reasoning", &reasoning, &known)?;
    take_effort(kwargs, "reasoning", reasoning.get("effort"))?;
    match reasoning.get("enabled") {
        None | Some(Value::Null | Value::Bool(true)) => {}
        Some(Value::Bool(false)) => effort(kwargs, "none"),
        Some(other) => {
            let message = format!("reasoning: enabled must be true or false, given {other}");
            return Err(ApiError::bad("reasoning", message));
        }
    }
    Ok(reasoning)
}

/// Adds the `effort` of an object, which is the value of a parameter, to the template's variables.
///
/// # Errors
/// It is not a text.
pub(in super::super) fn take_effort(
    kwargs: &mut Map<String, Value>,
    name: &str,
    given: Option<&Value>,
) -> Result<(), ApiError> {
    match given {
        None | Some(Value::Null) => {}
        Some(Value::String(word)) => effort(kwargs, word),
        Some(_) => {
            return Err(ApiError::bad(
                name,
                format!("{name}: effort must be a text"),
            ));
        }
    }
    Ok(())
}

/// Adds `reasoning_effort` to the template's variables. `none` also turns reasoning off if the
/// template has a switch for it.
pub(in super::super) fn effort(kwargs: &mut Map<String, Value>, effort: &str) {
    kwargs
        .entry("reasoning_effort")
        .or_insert_with(|| effort.into());
    if effort == "none" {
        kwargs
            .entry("enable_thinking")
            .or_insert_with(|| false.into());
    }
}

impl Turn {
    /// The most tokens of reasoning. The template gets them as `thinking_budget`, and 0 also turns
    /// reasoning off if the template has a switch for it.
    ///
    /// # Errors
    /// The model has no marks of reasoning, and the request gives a limit.
    pub(super) fn take_budget(
        &mut self,
        app: &Shared,
        format: &ReplyFormat,
    ) -> Result<Option<usize>, ApiError> {
        let given = match (self.budget, app.settings.reasoning_budget) {
            (Some(given), _) => given.tokens,
            (None, default) => default,
        };
        let Some(tokens) = given else { return Ok(None) };
        if let Some(AskedBudget { name, .. }) = self.budget
            && !format.has_reasoning()
        {
            let message = format!(
                "{name}: the model has no marks of reasoning, so its reasoning cannot be limited"
            );
            return Err(ApiError::bad(param(name), message));
        }
        let mut set = |name: &str, value: Value| {
            self.kwargs.entry(name).or_insert(value);
        };
        set("thinking_budget", tokens.into());
        if tokens == 0 {
            set("enable_thinking", false.into());
        }
        Ok(Some(tokens))
    }
}

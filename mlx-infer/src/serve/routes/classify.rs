//! `POST /v1/classify`: the label that follows each text best.

use axum::Json;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result as Outcome};
use crate::request::generation::Prompt;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Ask;
use crate::serve::http::room::heavy;
use crate::serve::http::trace::Trace;
use crate::serve::state::{Loaded, Served, Shared, now};
use crate::serve::turn::params;
use crate::serve::turn::params::OneOrMany;
use crate::tasks::classify::{ClassifyOptions, ClassifyResult, Encoded};
use crate::tasks::work::{TextWork, classifying};
use crate::text::chat::{self, Message, RenderOptions};

/// The mark in a template that the text replaces.
const PLACE: &str = "{}";
/// Most texts of a request.
const MAX_TEXTS: usize = 4096;

/// Texts or conversations, one or many.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, a list of texts, or conversations"
)]
enum Input {
    Texts(OneOrMany),
    Conversations(Vec<Vec<Map<String, Value>>>),
    Conversation(Vec<Map<String, Value>>),
}

pub(crate) async fn classify(ask: Ask) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let input: Input = fields.require("input")?;
    let labels: Vec<String> = fields.require("labels")?;
    let template: Option<String> = fields.take("template")?;
    let long = fields.long();
    let headers = fields.end(&[])?;
    if labels.is_empty() {
        return Err(ApiError::bad("labels", "labels is empty"));
    }
    if template.as_ref().is_some_and(|text| !text.contains(PLACE)) {
        let message = format!("template must have {PLACE} where the text goes");
        return Err(ApiError::bad("template", message));
    }
    let prompts = heavy(long.clone(), || prompts(loaded, input, template.as_deref()))?;
    let n = prompts.len();
    if n == 0 {
        return Err(ApiError::bad("input", "input is empty"));
    }
    if n > MAX_TEXTS {
        let message = format!("input has {n} texts, at most {MAX_TEXTS}");
        return Err(ApiError::bad("input", message));
    }
    let tokens: usize = prompts.iter().flatten().map(Vec::len).sum();
    let options = ClassifyOptions {
        labels,
        // The template has written the special tokens.
        add_special: false,
        ..Default::default()
    };
    let prompts = prompts.into_iter().map(|ids| ids.map(Prompt::Tokens));
    let encoded = heavy(long, || {
        loaded.frontend().encode(prompts.collect(), &options)
    })
    .map_err(|error| ApiError::from(error).with_param("labels"))?;
    let labels = options.labels.clone();
    let results = computed(&app, &served, encoded, options).await?;
    let results = results.into_iter().enumerate();
    let mut data: Vec<Value> = results
        .map(|(index, result)| entry(index, result, &trace))
        .collect();
    for one in &mut data {
        if let Some(best) = one["label"].as_u64() {
            one["label"] = labels[best as usize].clone().into();
            one["labels"] = labels.clone().into();
            one["num_classes"] = labels.len().into();
        }
    }
    let answer = json!({
        "id": crate::serve::http::trace::new_id("classify-"),
        "object": "list",
        "created": now(),
        "model": served.name,
        "data": data,
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
    });
    Ok((headers, Json(answer)))
}

/// The result of each text. The engine computes one batch of texts between two steps of the rows, with
/// texts of other requests that wait.
///
/// # Errors
/// The engine has ended.
pub(crate) async fn computed(
    app: &Shared,
    served: &Served,
    encoded: Vec<Encoded>,
    options: ClassifyOptions,
) -> Result<Vec<Outcome<ClassifyResult>>, ApiError> {
    let work = app.for_ranks(|| TextWork::classify(&encoded, &options));
    let begin = |on_end| classifying(encoded, options, on_end);
    let found: Outcome<Vec<_>> = app.on_engine(served, work, begin).await?;
    Ok(found?)
}

/// The ids of each text; an error for one that cannot be encoded.
fn prompts(
    loaded: &Loaded,
    input: Input,
    template: Option<&str>,
) -> Result<Vec<Outcome<Vec<u32>>>, ApiError> {
    let frontend = loaded.frontend();
    let of_text = |text: String| {
        let text = match template {
            Some(template) => template.replace(PLACE, &text),
            None => text,
        };
        if let Err(refused) = params::check_length(frontend, "input", &text) {
            return Err(Error::argument(refused.message));
        }
        frontend.prompt_ids(Prompt::Text(text))
    };
    frontend.tokenizer()?;
    let conversations = match input {
        Input::Texts(texts) => return Ok(texts.list().into_iter().map(of_text).collect()),
        Input::Conversations(all) => all,
        Input::Conversation(one) => vec![one],
    };
    if template.is_some() {
        let message = "template is for texts; conversations use the model's chat template";
        return Err(ApiError::bad("template", message));
    }
    let format = loaded.reply_format()?;
    let of_messages = |messages: Vec<Map<String, Value>>| {
        let messages: Vec<Value> = messages.into_iter().map(Value::Object).collect();
        let messages = chat::prepare(Message::list_from_json(messages.into())?, format)?;
        frontend.chat_ids(&messages, &RenderOptions::default())
    };
    Ok(conversations.into_iter().map(of_messages).collect())
}

/// The entry of a text in the answer. `label` is the index of the best label.
fn entry(index: usize, result: Outcome<ClassifyResult>, trace: &Trace) -> Value {
    match result {
        Ok(result) => match result.labels {
            Some(scores) => json!({
                "index": index,
                "label": scores.best,
                "probs": scores.probabilities,
                "num_classes": null,
                "labels": null,
                "logprobs": scores.logprobs,
            }),
            None => json!({"index": index, "error": {"message": "there is no label"}}),
        },
        Err(error) => {
            let error = ApiError::from(error);
            json!({"index": index, "error": error.openai(&trace.id)["error"]})
        }
    }
}

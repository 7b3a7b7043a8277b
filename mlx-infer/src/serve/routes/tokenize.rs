//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`, with vLLM's and llama.cpp's keys.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Map, Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Ask;
use crate::serve::http::room::heavy;
use crate::serve::routes::openai::logprobs::token_text;
use crate::serve::state::Shared;
use crate::serve::turn::params;
use crate::serve::turn::{prepared, written};
use crate::text::chat::{Message, RenderOptions};

/// The ids of a text (`prompt` or `content`) or of a conversation (`messages`).
pub(crate) async fn tokenize(ask: Ask) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        served, mut fields, ..
    } = ask;
    let loaded = &*served.model;
    let frontend = loaded.frontend();
    // vLLM's `prompt` is encoded with the special tokens that the tokenizer puts around texts,
    // llama.cpp's `content` without them.
    let prompt: Option<String> = fields.take("prompt")?;
    let content: Option<String> = fields.take("content")?;
    let is_prompt = prompt.is_some();
    let text = prompt.or(content);
    let messages: Option<Value> = fields.take("messages")?;
    let add_special: Option<bool> = fields.any(&["add_special_tokens", "add_special"])?;
    let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
    let with_texts = fields.take("return_token_strs")?.unwrap_or(false);
    let tokenizer = frontend.tokenizer()?;
    let long = fields.long();
    let ids = match (text, messages) {
        (Some(text), None) => heavy(long, || {
            tokenizer.encode(&text, add_special.unwrap_or(is_prompt))
        })?,
        (None, Some(messages)) => {
            let render = RenderOptions {
                add_generation_prompt: fields.take("add_generation_prompt")?.unwrap_or(true),
                tools: fields.take("tools")?,
                kwargs: params::kwargs(&mut fields)?,
                ..Default::default()
            };
            let messages = Message::list_from_json(messages)
                .map_err(|error| ApiError::from(error).with_param("messages"))?;
            heavy(long, || -> Result<_, ApiError> {
                let text = written(loaded, &prepared(loaded, messages)?, &render)?;
                Ok(tokenizer.encode(&text, add_special.unwrap_or(false))?)
            })?
        }
        _ => {
            let message = "expected one of prompt, content and messages";
            return Err(ApiError::bad("prompt", message));
        }
    };
    let headers = fields.end(&[])?;
    let mut answer = json!({
        "count": ids.len(),
        "max_model_len": frontend.info().max_positions,
    });
    answer["tokens"] = match with_pieces {
        false => json!(ids),
        true => ids
            .iter()
            .map(|&id| {
                let (text, bytes) = token_text(tokenizer, id);
                let is_text = str::from_utf8(&bytes).is_ok();
                json!({"id": id, "piece": if is_text { json!(text) } else { json!(bytes) }})
            })
            .collect(),
    };
    if with_texts {
        answer["token_strs"] = ids
            .iter()
            .map(|&id| tokenizer.id_to_token(id))
            .collect::<Vec<_>>()
            .into();
    }
    Ok((headers, Json(answer)))
}

/// The text of ids.
pub(crate) async fn detokenize(ask: Ask) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        served, mut fields, ..
    } = ask;
    let ids: Vec<u32> = fields.require("tokens")?;
    let long = fields.long();
    let headers = fields.end(&[])?;
    let tokenizer = served.model.frontend().tokenizer()?;
    let vocab = tokenizer.vocab_size();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
        let message = format!("tokens: {id} is outside the vocabulary of {vocab}");
        return Err(ApiError::bad("tokens", message));
    }
    let text = heavy(long, || tokenizer.decode(&ids, false))?;
    Ok((headers, Json(json!({"prompt": text, "content": text}))))
}

/// The facts about a tokenizer that evaluation tools ask for.
pub(crate) async fn info(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    let served = app.first().await?;
    let frontend = served.model.frontend();
    let tokenizer = frontend.tokenizer()?;
    let mut info: Map<String, Value> = tokenizer
        .special_tokens()
        .iter()
        .map(|(name, text)| (name.clone(), text.clone().into()))
        .collect();
    info.insert(
        "tokenizer_class".to_owned(),
        "PreTrainedTokenizerFast".into(),
    );
    info.insert("vocab_size".to_owned(), tokenizer.vocab_size().into());
    info.insert(
        "model_max_length".to_owned(),
        frontend.info().max_positions.into(),
    );
    info.insert("eos_token_ids".to_owned(), frontend.eos_ids().into());
    let template = frontend.chat_template().ok();
    info.insert(
        "chat_template".to_owned(),
        template
            .and_then(|template| template.source("default"))
            .into(),
    );
    Ok(Json(info.into()))
}

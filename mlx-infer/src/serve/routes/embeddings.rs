//! `POST /v1/embeddings`: a vector for each text, in OpenAI's form.

use axum::Json;
use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result as Outcome};
use crate::request::generation::Prompt;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Ask;
use crate::serve::http::room::{Long, heavy};
use crate::serve::state::{Served, Shared};
use crate::tasks::embed::{EmbedOptions, EmbedPrompt, TextEmbedding, encode_texts};
use crate::tasks::work::{TextWork, embedding};

/// Most texts of a request.
pub(super) const MAX_TEXTS: usize = 4096;

/// Texts or their ids, one or many.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, a list of texts, a list of token ids, or a list of such lists"
)]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

impl Input {
    fn prompts(self) -> Vec<Prompt> {
        match self {
            Self::Text(text) => vec![Prompt::Text(text)],
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::Ids(ids) => vec![Prompt::Tokens(ids)],
            Self::ManyIds(many) => many.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

/// The answer. Numbers are written as the shortest that are the same in F32.
#[derive(Serialize)]
pub(crate) struct EmbeddingList {
    object: &'static str,
    data: Vec<EmbeddingEntry>,
    model: String,
    usage: Value,
}

#[derive(Serialize)]
struct EmbeddingEntry {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    /// Little-endian F32 in base64.
    Base64(String),
}

pub(crate) async fn embeddings(ask: Ask) -> Result<(HeaderMap, Json<EmbeddingList>), ApiError> {
    let Ask {
        app,
        served,
        mut fields,
        ..
    } = ask;
    let input: Input = fields.require("input")?;
    let format: Option<String> = fields.take("encoding_format")?;
    let is_base64 = match format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message =
                format!("encoding_format {other:?} is not supported; known: float, base64");
            return Err(ApiError::bad("encoding_format", message));
        }
    };
    let options = EmbedOptions {
        dimensions: fields.take("dimensions")?,
        prompt: match fields.take("prompt_name")? {
            Some(name) => EmbedPrompt::Named(name),
            None => EmbedPrompt::Default,
        },
        normalize: fields.take("normalize")?,
        ..Default::default()
    };
    let long = fields.long();
    let headers = fields.end(&[])?;
    let prompts = input.prompts();
    check_number("input", prompts.len())?;
    let (found, tokens) = vectors(&app, &served, "input", prompts, (long, options)).await?;
    let entry = |(index, values): (usize, Vec<f32>)| EmbeddingEntry {
        object: "embedding",
        index,
        embedding: match is_base64 {
            true => {
                let bytes = values.iter().flat_map(|value| value.to_le_bytes());
                Vector::Base64(STANDARD.encode(bytes.collect::<Vec<u8>>()))
            }
            false => Vector::Numbers(values),
        },
    };
    let answer = EmbeddingList {
        object: "list",
        data: found.into_iter().enumerate().map(entry).collect(),
        model: served.name,
        usage: json!({"prompt_tokens": tokens, "total_tokens": tokens}),
    };
    Ok((headers, Json(answer)))
}

/// The vectors of the texts in the parameter `param`, and the number of their tokens.
///
/// # Errors
/// An option is refused, or a text, which the message names by its index.
pub(super) async fn vectors(
    app: &Shared,
    served: &Served,
    param: &str,
    prompts: Vec<Prompt>,
    (long, options): (Long, EmbedOptions),
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let frontend = served.model.frontend();
    frontend.check_native()?;
    let prompts = prompts.into_iter().map(Ok).collect();
    // A fault of a text is the text's own result.
    let faulty = match (&options.prompt, options.dimensions) {
        (EmbedPrompt::Named(_), None | Some(1..)) => "prompt_name",
        _ => "dimensions",
    };
    let named = |error: Error| match error.kind() {
        ErrorKind::Argument => ApiError::from(error).with_param(faulty),
        _ => error.into(),
    };
    let encoded = heavy(long, || encode_texts(frontend, prompts, &options)).map_err(named)?;
    let tokens = encoded.tokens();
    let work = app.for_ranks(|| TextWork::embed(&encoded, &options));
    let begin = |on_end| embedding(encoded, options, on_end);
    let found: Outcome<Vec<_>> = app.on_engine(served, work, begin).await?;
    let found = found.map_err(|error| match error.kind() {
        ErrorKind::Argument => ApiError::from(error).with_param("dimensions"),
        _ => error.into(),
    })?;
    let found = found.into_iter().enumerate();
    let values = found.map(|(index, result)| Ok(of_text(param, index, result)?.values));
    Ok((values.collect::<Result<_, ApiError>>()?, tokens))
}

/// Refuses a request without texts, or with too many.
pub(super) fn check_number(param: &str, n: usize) -> Result<(), ApiError> {
    match n {
        0 => Err(ApiError::bad(param, format!("{param} is empty"))),
        n if n > MAX_TEXTS => {
            let message = format!("{param} has {n} texts, at most {MAX_TEXTS}");
            Err(ApiError::bad(param, message))
        }
        _ => Ok(()),
    }
}

/// The result of a text, or an error that names the text.
pub(super) fn of_text(
    param: &str,
    index: usize,
    result: Outcome<TextEmbedding>,
) -> Result<TextEmbedding, ApiError> {
    result.map_err(|error| {
        let refused = ApiError::from(error);
        match refused.status.is_client_error() {
            true => ApiError::bad(param, format!("{param} {index}: {}", refused.message)),
            false => refused,
        }
    })
}

//! `POST /v1/rerank`: documents in the order of their relevance for a query, in the form of Jina's
//! and Cohere's APIs. `POST /v1/score`: the relevance of pairs of texts.

use axum::Json;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result as Outcome};
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, Fields};
use crate::serve::http::room::{Long, heavy};
use crate::serve::http::trace::new_id;
use crate::serve::routes::embeddings::{check_number, of_text};
use crate::serve::state::{Served, Shared, now};
use crate::serve::turn::params::OneOrMany;
use crate::tasks::embed::{RerankOptions, encode_pairs};
use crate::tasks::work::{TextWork, relating};

/// A document: its text, or an object with it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or an object with text")]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

pub(crate) async fn rerank(ask: Ask) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        app,
        served,
        mut fields,
        ..
    } = ask;
    let query: String = fields.require("query")?;
    let documents: Vec<Document> = fields.require("documents")?;
    let top: Option<usize> = fields.any(&["top_n", "top_k"])?;
    let returns: bool = fields.take("return_documents")?.unwrap_or(true);
    let options = options(&mut fields)?;
    let long = fields.long();
    let headers = fields.end(&[])?;
    let documents: Vec<String> = documents.into_iter().map(Document::text).collect();
    check_number("documents", documents.len())?;
    if top == Some(0) {
        return Err(ApiError::bad("top_n", "top_n must be at least 1, given 0"));
    }
    let pair = |document: &String| (query.clone(), document.clone());
    let pairs = documents.iter().map(pair).collect();
    let (scores, tokens) = scored(&app, &served, "documents", pairs, (long, options)).await?;
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(top.unwrap_or(usize::MAX));
    let result = |index: usize| {
        let mut result = json!({"index": index, "relevance_score": scores[index]});
        if returns {
            result["document"] = json!({"text": documents[index]});
        }
        result
    };
    let results: Vec<Value> = order.into_iter().map(result).collect();
    let answer = json!({
        "id": new_id("rerank-"),
        "object": "list",
        "model": served.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    });
    Ok((headers, Json(answer)))
}

pub(crate) async fn score(ask: Ask) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        app,
        served,
        mut fields,
        ..
    } = ask;
    let first: OneOrMany = required(&mut fields, ["text_1", "queries"])?;
    let second: OneOrMany = required(&mut fields, ["text_2", "documents"])?;
    let options = options(&mut fields)?;
    let long = fields.long();
    let headers = fields.end(&[])?;
    let (first, second) = (first.list(), second.list());
    check_number("text_1", first.len())?;
    check_number("text_2", second.len())?;
    let pairs = match (first.len(), second.len()) {
        (1, _) => second
            .into_iter()
            .map(|text| (first[0].clone(), text))
            .collect(),
        (n, m) if n == m => first.into_iter().zip(second).collect(),
        (n, m) => {
            let message = format!(
                "text_1 has {n} texts and text_2 {m}; expected 1 and any number, or as many"
            );
            return Err(ApiError::bad("text_1", message));
        }
    };
    let (scores, tokens) = scored(&app, &served, "text_2", pairs, (long, options)).await?;
    let entry =
        |(index, score): (usize, &f32)| json!({"index": index, "object": "score", "score": score});
    let data: Vec<Value> = scores.iter().enumerate().map(entry).collect();
    let answer = json!({
        "id": new_id("score-"),
        "object": "list",
        "created": now(),
        "model": served.name,
        "data": data,
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
    });
    Ok((headers, Json(answer)))
}

/// The options that both routes share.
fn options(fields: &mut Fields) -> Result<RerankOptions, ApiError> {
    Ok(RerankOptions {
        instruction: fields.take("instruction")?,
        ..Default::default()
    })
}

/// Takes a key that must be there under one of two names.
fn required(fields: &mut Fields, names: [&str; 2]) -> Result<OneOrMany, ApiError> {
    let found = fields.any(&names)?;
    found.ok_or_else(|| ApiError::bad(names[0], format!("{} is missing", names[0])))
}

/// The relevance of each pair, and the number of their tokens.
async fn scored(
    app: &Shared,
    served: &Served,
    param: &str,
    pairs: Vec<(String, String)>,
    (long, options): (Long, RerankOptions),
) -> Result<(Vec<f32>, usize), ApiError> {
    let frontend = served.model.frontend();
    frontend.check_native()?;
    // A fault of a pair is the pair's own result.
    let named = |error: Error| match error.kind() {
        ErrorKind::Argument => ApiError::from(error).with_param("instruction"),
        _ => error.into(),
    };
    let encoded = heavy(long, || encode_pairs(frontend, pairs, &options)).map_err(named)?;
    let tokens = encoded.tokens();
    let work = app.for_ranks(|| TextWork::relate(&encoded, &options));
    let begin = |on_end| relating(encoded, options, on_end);
    let found: Outcome<Vec<_>> = app.on_engine(served, work, begin).await?;
    let found = found?;
    let found = found.into_iter().enumerate();
    let score = found.map(|(index, result)| Ok(of_text(param, index, result)?.values[0]));
    Ok((score.collect::<Result<_, ApiError>>()?, tokens))
}

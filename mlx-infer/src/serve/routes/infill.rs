//! `POST /infill`: llama.cpp's route for editors, which fills a gap in a text.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::request::generation::FinishReason;
use crate::request::metrics::Metrics;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, name_ignored};
use crate::serve::http::room::heavy;
use crate::serve::http::sse;
use crate::serve::http::trace::Trace;
use crate::serve::routes::openai::chat::timings;
use crate::serve::turn::choices::{AskedRows, Choices, RowStep};
use crate::serve::turn::edits::Edits;
use crate::serve::turn::{grammar, params};
use crate::text::infill::Gap;

/// Keys of this route that have no effect here: prefixes are stored anyway, and rows have no fixed
/// slots.
const HARMLESS: &[&str] = &["cache_prompt", "id_slot", "samplers", "timings_per_token"];

/// A part of another file.
#[derive(Deserialize)]
struct Extra {
    filename: Option<String>,
    text: String,
}

pub(crate) async fn infill(ask: Ask) -> Result<Response, ApiError> {
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let (infill, ends) = loaded.infill("input_prefix")?;
    let before: String = fields.take("input_prefix")?.unwrap_or_default();
    let after: String = fields.take("input_suffix")?.unwrap_or_default();
    // The text of the gap so far.
    let begun: String = fields.take("prompt")?.unwrap_or_default();
    let extra: Vec<Extra> = fields.take("input_extra")?.unwrap_or_default();
    let files: Vec<_> = (extra.into_iter())
        .map(|extra| (extra.filename, extra.text))
        .collect();
    let form = grammar::key(&fields);
    let mut options = params::options(&mut fields, loaded)?;
    options.stop_ids.extend(ends);
    let names = ["n_predict", "max_tokens"];
    let given = params::max_tokens_or_no_limit(&mut fields, &names, 0)?.flatten();
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let edits = Edits::take(&mut fields)?;
    let long = fields.long().or(options.grammar.is_some());
    let mut headers = fields.end(HARMLESS)?;
    let frontend = loaded.frontend();
    let (checked, is_cut, filter) = heavy(long, || -> Result<_, ApiError> {
        let tokenizer = frontend.tokenizer()?;
        let answer = given.unwrap_or(1).max(1);
        let room = frontend.info().max_positions;
        let room = room.map_or(usize::MAX, |max| max.saturating_sub(answer));
        let before = before + &begun;
        let gap = Gap {
            before: &before,
            after: &after,
            files: &files,
        };
        let (ids, is_cut) = infill.prompt(tokenizer, gap, room)?;
        options.max_tokens = loaded.max_tokens(given, ids.len(), app.settings.max_output);
        let checked = params::check(frontend, "input_prefix", form, ids, options)?;
        let filter = edits.filter(frontend, checked.options())?;
        Ok((checked, is_cut, filter))
    })?;
    name_ignored(&mut headers, checked.ignored_keywords());
    let prompt = checked.ids().len();
    let rows = AskedRows {
        prompts: std::slice::from_ref(&checked),
        n: 1,
        filter: filter.as_ref(),
    };
    let mut choices = Choices::start(&app, loaded, &served, &trace, rows)?;
    let mut writer = InfillWriter {
        model: served.name.clone(),
        prompt,
        is_cut,
        is_silent: given == Some(0),
        text: String::new(),
        tokens: 0,
        ends: checked.options().ending(frontend.eos_ids()),
        last: None,
        end: None,
        trace,
    };
    if is_stream {
        let trace = writer.trace.clone();
        return Ok(sse::response(choices, writer, trace, headers));
    }
    while let Some(step) = choices.next().await {
        writer.take(step?);
    }
    let text = std::mem::take(&mut writer.text);
    Ok((headers, Json(writer.last(&text))).into_response())
}

/// Writes an answer in llama.cpp's form.
struct InfillWriter {
    model: String,
    /// The number of tokens of the prompt.
    prompt: usize,
    is_cut: bool,
    /// Whether the request asks for no token: it only stores its prompt for the next request. The
    /// engine computes a token nevertheless, which is left out.
    is_silent: bool,
    /// The text since the last event.
    text: String,
    tokens: usize,
    /// The tokens that end an answer, and the last token.
    ends: Vec<u32>,
    last: Option<u32>,
    end: Option<(FinishReason, Metrics)>,
    trace: Trace,
}

impl InfillWriter {
    fn take(&mut self, step: RowStep) {
        if !self.is_silent {
            self.text.push_str(&step.text());
            self.tokens += step.tokens.len();
            self.last = step
                .tokens
                .last()
                .map(|(choice, _)| choice.id)
                .or(self.last);
        }
        self.end = step.end.or(self.end.take());
    }

    fn last(&self, text: &str) -> Value {
        let stop = match self.end.as_ref().map(|(reason, _)| *reason) {
            Some(FinishReason::Length | FinishReason::Repetition) => "limit",
            Some(FinishReason::Stop) if self.last.is_some_and(|id| self.ends.contains(&id)) => {
                "eos"
            }
            Some(FinishReason::Stop) => "word",
            _ => "none",
        };
        let times = self.end.as_ref().map(|(_, metrics)| timings(metrics));
        let cached = self
            .end
            .as_ref()
            .map_or(0, |(_, metrics)| metrics.cached_tokens);
        json!({
            "index": 0, "content": text, "stop": true, "model": self.model, "id_slot": -1,
            "tokens_predicted": self.tokens, "tokens_evaluated": self.prompt, "tokens_cached": cached,
            "truncated": self.is_cut, "stop_type": stop, "stopping_word": "", "timings": times,
        })
    }
}

impl sse::EventWriter for InfillWriter {
    fn begin(&mut self) -> String {
        // A comment sends the headers before the prompt is computed.
        ": \n\n".to_owned()
    }

    fn step(&mut self, step: RowStep, _: &mut Choices) -> String {
        self.take(step);
        if self.text.is_empty() {
            return String::new();
        }
        let text = std::mem::take(&mut self.text);
        sse::data(&json!({
            "index": 0, "content": text, "stop": false, "id_slot": -1,
            "tokens_predicted": self.tokens, "tokens_evaluated": self.prompt,
        }))
    }

    fn end(&mut self) -> String {
        sse::data(&self.last(""))
    }

    fn fail(&mut self, error: &ApiError) -> String {
        sse::data(&error.openai(&self.trace.id))
    }
}

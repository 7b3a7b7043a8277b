//! `POST /api/generate`: the answer to a text, its bare continuation, or the text of a gap.

use axum::response::Response;

use crate::model::frontend::Frontend;
use crate::request::generation::Prompt;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, name_ignored};
use crate::serve::http::room::heavy;
use crate::serve::routes::ollama::ask::{Common, OllamaAsk, refuse};
use crate::serve::routes::ollama::writer::{AnswerForm, LineWriter};
use crate::serve::turn::choices::{AskedRows, Choices};
use crate::serve::turn::params;
use crate::text::chat::Message;
use crate::text::chat::reply::ToolChoice;
use crate::text::infill::{Gap, Infill};

pub(super) async fn generate(mut ask: OllamaAsk) -> Result<Response, ApiError> {
    let prompt: String = ask.fields.take("prompt")?.unwrap_or_default();
    let suffix: Option<String> = ask.fields.take("suffix")?;
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    if prompt.is_empty() && suffix.is_none() {
        return ask.without_text(AnswerForm::Generate).await;
    }
    let (ask, loading) = ask.with_model().await?;
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let system: Option<String> = fields.take("system")?;
    let system = system.filter(|system| !system.is_empty());
    let is_raw = fields.take("raw")?.unwrap_or(false);
    let why = "send the whole conversation to /api/chat";
    refuse(&mut fields, "context", why)?;
    let mut common = Common::take(&mut fields, loaded)?;
    let long = fields.long();
    let mut headers = fields.end(&[])?;
    let writer = LineWriter::new(AnswerForm::Generate, &served.name, &trace).after(loading);
    if system.is_some() && (is_raw || suffix.is_some()) {
        let message = "system needs the model's template, which raw and suffix leave out";
        return Err(ApiError::bad("system", message));
    }
    let is_stream = common.is_stream;
    let writer = writer.with_logprobs(loaded, &common.options)?;
    if !is_raw && suffix.is_none() {
        let system = system.map(|text| Message::new("system", text));
        let messages = system.into_iter().chain([Message::new("user", prompt)]);
        let none = (Vec::new(), ToolChoice::None);
        let turn = common.turn("prompt", messages.collect(), none, long);
        let answers = turn.start(&app, loaded, &served, &trace, &mut headers)?;
        let writer = writer.of_replies(answers.replies);
        return writer.respond(answers.choices, is_stream, headers).await;
    }
    let frontend = loaded.frontend();
    let infill = match &suffix {
        None => None,
        Some(suffix) => {
            let (infill, ends) = loaded.infill("suffix")?;
            common.options.stop_ids.extend(ends);
            Some((infill, suffix.as_str()))
        }
    };
    let long = long.or(common.options.grammar.is_some());
    let checked = heavy(long, || -> Result<_, ApiError> {
        let ids = prompt_ids(frontend, prompt, infill)?;
        let mut options = common.options;
        options.max_tokens =
            loaded.max_tokens(common.max_tokens, ids.len(), app.settings.max_output);
        params::check(frontend, "prompt", "format", ids, options)
    })?;
    name_ignored(&mut headers, checked.ignored_keywords());
    let rows = AskedRows {
        prompts: std::slice::from_ref(&checked),
        n: 1,
        filter: None,
    };
    let choices = Choices::start(&app, loaded, &served, &trace, rows)?;
    let ends = checked.options().ending(frontend.eos_ids());
    writer
        .of_text(ends)
        .respond(choices, is_stream, headers)
        .await
}

/// The ids of a text to continue, or of a gap behind it.
fn prompt_ids(
    frontend: &Frontend,
    prompt: String,
    infill: Option<(&Infill, &str)>,
) -> Result<Vec<u32>, ApiError> {
    params::check_length(frontend, "prompt", &prompt)?;
    let Some((infill, after)) = infill else {
        let ids = frontend.prompt_ids(Prompt::Text(prompt));
        return ids.map_err(|error| ApiError::from(error).with_param("prompt"));
    };
    let gap = Gap {
        before: &prompt,
        after,
        files: &[],
    };
    Ok(infill.prompt(frontend.tokenizer()?, gap, usize::MAX)?.0)
}

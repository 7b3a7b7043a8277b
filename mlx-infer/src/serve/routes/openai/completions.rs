//! `POST /v1/completions`: continuations of texts or ids, with the log probabilities of the prompt if asked for.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Error;
use crate::model::LoadedModel;
use crate::model::checked::Checked;
use crate::request::generation::{FinishReason, Prompt};
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, name_ignored};
use crate::serve::http::room::heavy;
use crate::serve::http::sse;
use crate::serve::http::trace::new_id;
use crate::serve::routes::openai::chunks::{Chunks, StreamUsage, finish_word};
use crate::serve::routes::openai::logprobs::{self, Lists, check_top};
use crate::serve::state::{Served, Shared, now};
use crate::serve::turn::choices::{AskedRows, Choices, MAX_ROWS, RowStep};
use crate::serve::turn::edits::Edits;
use crate::serve::turn::{grammar, params};
use crate::tasks::score::{Score, ScoreOptions, Scoring};
use crate::tasks::work::TextWork;
use crate::text::infill::Gap;
use crate::text::tokenizer::Tokenizer;

/// Tokens of an answer if its request gives no number, as in OpenAI's API.
const MAX_TOKENS: usize = 16;

/// A prompt, or several.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, a list of texts, a list of ids, or a list of lists of ids"
)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    Lists(Vec<Vec<u32>>),
}

impl Prompts {
    fn list(self) -> Vec<Prompt> {
        match self {
            Self::Text(text) => vec![text.into()],
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::Ids(ids) => vec![ids.into()],
            Self::Lists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

pub(crate) async fn completions(ask: Ask) -> Result<Response, ApiError> {
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let prompts = fields.require::<Prompts>("prompt")?.list();
    let n = params::choices(&mut fields)?;
    let tried = params::best_of(&mut fields, n)?;
    let form = grammar::key(&fields);
    let mut options = params::options(&mut fields, loaded)?;
    let names = ["max_tokens", "max_completion_tokens", "n_predict"];
    let max_tokens = params::max_tokens_or_no_limit(&mut fields, &names, 0)?;
    // `None` for no limit.
    let max_tokens = max_tokens.unwrap_or(Some(MAX_TOKENS));
    let given: Option<usize> = fields.take("logprobs")?;
    options.logprobs = given.map(|top| check_top("logprobs", top)).transpose()?;
    let is_echo = fields.take("echo")?.unwrap_or(false);
    let suffix: Option<String> = fields.take("suffix")?;
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    let infill = match &suffix {
        None => None,
        Some(_) if is_echo => {
            let message = "suffix and echo exclude each other";
            return Err(ApiError::bad("suffix", message));
        }
        Some(suffix) => {
            let (infill, ends) = loaded.infill("suffix")?;
            options.stop_ids.extend(ends);
            Some((infill, suffix.as_str()))
        }
    };
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let usage = StreamUsage::take(&mut fields, is_stream)?;
    let of_prompt = logprobs::of_prompt(&mut fields, is_stream)?;
    let gives_ids = fields.take("return_token_ids")?.unwrap_or(false);
    let edits = Edits::take(&mut fields)?;
    let long = fields.long().or(options.grammar.is_some());
    let mut headers = fields.end(&[])?;
    if max_tokens == Some(0) && !is_echo {
        let message = "max_tokens must be at least 1, given 0; with echo it may be 0";
        return Err(ApiError::bad("max_tokens", message));
    }
    if prompts.is_empty() {
        let message = "prompt is an empty list, expected a text, a list of ids, or a list of these";
        return Err(ApiError::bad("prompt", message));
    }
    if prompts.len() * tried > MAX_ROWS {
        let rows = prompts.len() * tried;
        let message = format!("prompt and n make {rows} answers, expected 1 to {MAX_ROWS}");
        return Err(ApiError::bad("prompt", message));
    }
    if tried > n && is_stream {
        let message = "best_of above n cannot be streamed: the best are known at the end";
        return Err(ApiError::bad("best_of", message));
    }
    options.max_tokens = max_tokens.unwrap_or(app.settings.max_output).max(1);
    let top = options.logprobs;
    if tried > n {
        // The best answers are those of the highest log probability.
        options.logprobs = top.or(Some(0));
    }
    let frontend = loaded.frontend();
    let tokenizer = frontend.tokenizer_if_any();
    let (all, texts, filter) = heavy(long, || -> Result<_, ApiError> {
        let filter = edits.filter(frontend, &options)?;
        let (mut all, mut texts) = (Vec::new(), Vec::new());
        for prompt in prompts {
            let text = match &prompt {
                Prompt::Text(text) if is_echo => Some(text.clone()),
                _ => None,
            };
            let in_prompt = |error| ApiError::from(error).with_param("prompt");
            if let Prompt::Text(text) = &prompt
                && !edits.truncates()
            {
                params::check_length(frontend, "prompt", text)?;
            }
            let mut ids = match (&prompt, infill) {
                (_, None) => frontend.prompt_ids(prompt).map_err(in_prompt)?,
                (Prompt::Text(before), Some((infill, after))) => {
                    let gap = Gap {
                        before,
                        after,
                        files: &[],
                    };
                    infill.prompt(frontend.tokenizer()?, gap, usize::MAX)?.0
                }
                (Prompt::Tokens(_), Some(_)) => {
                    let message = "suffix needs a prompt that is a text";
                    return Err(ApiError::bad("suffix", message));
                }
            };
            // The echoed text is that of the tokens that are left after truncation.
            let text = match edits.truncate(frontend, &mut ids, max_tokens.unwrap_or(1).max(1)) {
                true => None,
                false => text,
            };
            let mut options = options.clone();
            if max_tokens.is_none() {
                options.max_tokens = loaded.max_tokens(None, ids.len(), app.settings.max_output);
            }
            let checked = params::check(frontend, "prompt", form, ids, options)?;
            texts.push(match (text, tokenizer) {
                (Some(text), _) => text,
                (None, Some(tokenizer)) if is_echo => {
                    tokenizer.decode(checked.ids(), true).map_err(in_prompt)?
                }
                _ => String::new(),
            });
            all.push(checked);
        }
        Ok((all, texts, filter))
    })?;
    // All answers have the same schema, so its ignored keywords are named once.
    name_ignored(
        &mut headers,
        all.last().map_or(&[], Checked::ignored_keywords),
    );
    let echoed = top.filter(|_| is_echo);
    let scores = match echoed.max(of_prompt) {
        Some(top) => {
            let prompts = all.iter().map(|checked| checked.ids().to_vec().into());
            let prompts = prompts.collect();
            score(&app, &served, prompts, top).await?
        }
        None => Vec::new(),
    };
    let scored = |at: usize| scores.get(at).filter(|_| echoed.is_some());
    let rows = all.len() * tried;
    let lists = tokenizer.filter(|_| top.is_some());
    let head = json!({
        "id": new_id("cmpl-"), "object": "text_completion", "created": now(), "model": served.name,
    });
    let mut writer = CompletionsWriter {
        chunks: Chunks::new(head, usage, trace.clone()),
        rows: (0..rows)
            .map(|at| {
                let prompt = at / tried;
                let score = scored(prompt).zip(echoed);
                let mut row = Row::new(&texts[prompt], score, lists);
                if gives_ids {
                    row.prompt_ids = Some(all[prompt].ids().to_vec());
                    row.ids = Some(Vec::new());
                }
                let score = scores.get(prompt).zip(of_prompt);
                row.prompt_logprobs = score.zip(tokenizer).map(|((score, top), tokenizer)| {
                    logprobs::list_of_prompt(tokenizer, score, top)
                });
                row
            })
            .collect(),
        tried,
        n,
    };
    if max_tokens == Some(0) {
        trace.prompt(all.iter().map(|checked| checked.ids().len()).sum());
        let finish = Some(FinishReason::Length);
        writer.rows.iter_mut().for_each(|row| row.finish = finish);
        if is_stream {
            let events = sse::EventWriter::begin(&mut writer) + &sse::EventWriter::end(&mut writer);
            return Ok(sse::finished(events, headers));
        }
        return Ok((headers, Json(writer.whole())).into_response());
    }
    let rows = AskedRows {
        prompts: &all,
        n: tried,
        filter: filter.as_ref(),
    };
    let mut choices = Choices::start(&app, loaded, &served, &trace, rows)?;
    if is_stream {
        return Ok(sse::response(choices, writer, trace, headers));
    }
    while let Some(step) = choices.next().await {
        writer.take(step?);
    }
    Ok((headers, Json(writer.whole())).into_response())
}

/// The log probabilities of each prompt. One chunk is computed between two steps of the rows.
pub(super) async fn score(
    app: &Shared,
    served: &Served,
    prompts: Vec<Prompt>,
    top: usize,
) -> Result<Vec<Score>, ApiError> {
    let mut scores = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let options = ScoreOptions {
            top: 0,
            // The score needs at least one likeliest token, to tell whether a token is the
            // likeliest.
            top_each: top.max(1),
            ..Default::default()
        };
        let work = app.for_ranks(|| TextWork::score(&prompt, &options));
        let score = app.in_pieces(served, work, move |model| {
            let mut scoring = Scoring::begin(model, prompt, &options);
            move |model: &LoadedModel| match &mut scoring {
                Ok(scoring) => scoring.advance(model).transpose(),
                Err(error) => Some(Err(Error::new(error.kind(), error.to_string()))),
            }
        });
        scores.push(score.await??);
    }
    Ok(scores)
}

/// The state of a row's answer.
struct Row {
    /// Text of the answer that was not written yet.
    text: String,
    lists: Option<Lists>,
    finish: Option<FinishReason>,
    /// The sum of the known log probabilities of its tokens, and the number of tokens.
    logprob: (f64, usize),
    /// The ids of the prompt, and those of the answer that were not written yet, if they were asked
    /// for.
    prompt_ids: Option<Vec<u32>>,
    ids: Option<Vec<u32>>,
    prompt_logprobs: Option<Value>,
}

impl Row {
    /// `score` is that of the echoed prompt, with the number of alternatives.
    fn new(prompt: &str, score: Option<(&Score, usize)>, tokenizer: Option<&Tokenizer>) -> Self {
        let mut lists = tokenizer.map(Lists::new);
        if let (Some(lists), Some((score, most))) = (&mut lists, score) {
            for (at, (&id, &logprob)) in score.tokens.iter().zip(&score.logprobs).enumerate() {
                // At least one, to tell whether a token is the likeliest.
                let top = score.top.get(at).map_or(&[][..], Vec::as_slice);
                lists.push(id, logprob, &top[..most.max(1).min(top.len())]);
            }
        }
        Self {
            text: prompt.to_owned(),
            lists,
            finish: None,
            logprob: (0.0, 0),
            prompt_ids: None,
            ids: None,
            prompt_logprobs: None,
        }
    }

    /// The average log probability of its tokens.
    fn mean(&self) -> f64 {
        let (sum, n) = self.logprob;
        sum / n.max(1) as f64
    }

    /// The text and tokens that were not written yet.
    fn choice(&mut self, index: usize) -> WrittenChoice {
        WrittenChoice {
            index,
            text: std::mem::take(&mut self.text),
            logprobs: self.lists.as_mut().map(Lists::take),
            finish_reason: finish_word(self.finish),
            prompt_token_ids: self.prompt_ids.take(),
            token_ids: self.ids.as_mut().map(std::mem::take),
            prompt_logprobs: self.prompt_logprobs.take(),
        }
    }
}

/// A choice of an answer or of a chunk.
#[derive(Serialize)]
struct WrittenChoice {
    index: usize,
    text: String,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Value>,
}

/// Writes answers, whole or as a stream.
struct CompletionsWriter {
    chunks: Chunks,
    rows: Vec<Row>,
    /// The number of answers that are generated to each prompt, and the number that are returned.
    tried: usize,
    n: usize,
}

impl CompletionsWriter {
    fn take(&mut self, step: RowStep) -> usize {
        let row = &mut self.rows[step.row];
        row.text.push_str(&step.text());
        for (token, _) in &step.tokens {
            row.logprob.0 += f64::from(token.logprob.unwrap_or(0.0));
            row.logprob.1 += 1;
            if let Some(ids) = &mut row.ids {
                ids.push(token.id);
            }
        }
        if let Some(lists) = &mut row.lists {
            // The token that ends the text is listed too: lm-eval takes the last listed token for it, and
            // drops that token.
            for (token, _) in &step.tokens {
                lists.push(token.id, token.logprob, &token.top);
            }
        }
        if let Some((reason, _)) = step.end {
            row.finish = Some(reason);
        }
        step.row
    }

    fn whole(mut self) -> Value {
        let mut given: Vec<&mut Row> = Vec::with_capacity(self.rows.len());
        for rows in self.rows.chunks_mut(self.tried) {
            let mut rows: Vec<&mut Row> = rows.iter_mut().collect();
            if self.tried > self.n {
                rows.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
                rows.truncate(self.n);
            }
            given.extend(rows);
        }
        let choices = given.into_iter().enumerate();
        self.chunks.whole(
            choices
                .map(|(index, row)| json!(row.choice(index)))
                .collect(),
        )
    }

    fn chunk(&mut self, row: usize) -> String {
        let choice = self.rows[row].choice(row);
        self.chunks.event(&choice, &[])
    }
}

impl sse::EventWriter for CompletionsWriter {
    /// The prompts, if they are echoed.
    fn begin(&mut self) -> String {
        let rows = 0..self.rows.len();
        let echoed = rows.filter(|&row| !self.rows[row].text.is_empty());
        let echoed: Vec<usize> = echoed.collect();
        let begin = echoed.into_iter().map(|row| self.chunk(row)).collect();
        // A comment sends the headers before the prompt is computed.
        if String::is_empty(&begin) {
            ": \n\n".to_owned()
        } else {
            begin
        }
    }

    fn step(&mut self, step: RowStep, _: &mut Choices) -> String {
        let (is_end, has_tokens) = (step.end.is_some(), !step.tokens.is_empty());
        let row = self.take(step);
        let state = &self.rows[row];
        let has_lists = (state.lists.is_some() || state.ids.is_some()) && has_tokens;
        match is_end || !state.text.is_empty() || has_lists {
            true => self.chunk(row),
            false => String::new(),
        }
    }

    fn end(&mut self) -> String {
        self.chunks.end()
    }

    fn fail(&mut self, error: &ApiError) -> String {
        self.chunks.fail(error)
    }
}

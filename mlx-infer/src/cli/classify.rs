//! `mlx-infer classify`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use mlx_infer::input::{Arrival, Line, LineStream, Lines};
use mlx_infer::{
    CancelToken, ClassifyOptions, Error, ErrorKind, LoadedModel, Message, Prompt, RenderOptions,
};
use serde_json::{Map, Value, json};

use super::lines::{LineProgress, MAX_BYTES, MAX_LINES, WAIT, failed};
use super::{Failure, Result, args, interrupt, ranks};

/// How long to wait for more lines after the first line of a window.
const GATHER: Duration = Duration::from_millis(50);
/// The mark in a template that the text replaces.
const PLACE: &str = "{}";

#[derive(Args)]
pub(super) struct ClassifyArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    /// Labels to choose from, such as good,bad; each is used unchanged, with a space in front of it too
    /// [default: print the next token]
    #[arg(
        long,
        value_name = "A,B,…",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    labels: Vec<String>,
    /// Text that contains each line in place of {}
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    template: Option<String>,
    /// Send each line as a user's message, with the model's chat template
    #[arg(long)]
    chat: bool,
    /// Lines are JSON objects with the text under this key
    #[arg(long, value_name = "KEY")]
    field: Option<String>,
    /// File with the lines; - is stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// Maximum number of tokens that are computed together, padding included
    #[arg(long, value_name = "N", default_value_t = ClassifyOptions::default().batch_tokens)]
    batch_tokens: usize,
    /// Print the logits of all tokens
    #[arg(long)]
    logits: bool,
}

impl ClassifyArgs {
    pub(super) fn run(self) -> Result {
        if ranks::follow(|| self.load.load())? {
            return Ok(());
        }
        let options = ClassifyOptions {
            labels: self.labels.clone(),
            batch_tokens: self.batch_tokens,
            logits: self.logits,
            add_special: !self.chat,
            cancel: interrupt::cancels()?,
            ..Default::default()
        };
        if self.template.as_ref().is_some_and(|t| !t.contains(PLACE)) {
            let message = format!("template must have {PLACE} where the text goes");
            return Err(Failure::Usage(message));
        }
        let lines = Lines::open(&self.input)?;
        let model = self.load.load()?;
        let _leading = ranks::Leading(&model);
        // Reports a fault of the options before the first line is read.
        model.classify(Vec::new(), &options)?;
        if self.chat {
            model.chat_template()?;
        }
        let _running = interrupt::running();
        let mut progress = LineProgress::new(|| lines.total());
        let mut lines = lines.stream()?;
        let (mut not_finite, mut end) = (None, None);
        while end.is_none() && !options.cancel.is_cancelled() {
            let (window, is_end) = gather(&mut lines, &options.cancel);
            end = is_end;
            let mut documents = Vec::new();
            let (mut prompts, mut places) = (Vec::new(), Vec::new());
            for (number, line) in window {
                match line.and_then(|line| self.prompt(&model, &line)) {
                    Ok(prompt) => {
                        prompts.push(prompt);
                        places.push((documents.len(), number));
                        documents.push(Value::Null);
                    }
                    Err(error) => documents.push(failed(number, error)),
                }
            }
            model.classify_with(prompts, &options, |index, result| {
                let (place, number) = places[index];
                documents[place] = match result {
                    Ok(result) => self.document(&model, number, result),
                    Err(error) => {
                        let document = failed(number, &error);
                        if error.kind() == ErrorKind::NotFinite {
                            not_finite.get_or_insert(error);
                        }
                        document
                    }
                };
            })?;
            for document in &documents {
                progress.print(document)?;
            }
        }
        progress.finish("lines", "");
        let cancelled = || Error::new(ErrorKind::Cancelled, "cancelled");
        let is_cancelled = options.cancel.is_cancelled();
        let fault = end.and_then(mlx_infer::Result::err);
        let error = is_cancelled.then(cancelled).or(fault).or(not_finite);
        error.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The prompt of a line.
    fn prompt(&self, model: &LoadedModel, line: &str) -> std::result::Result<Prompt, String> {
        let text = match &self.field {
            None => line.to_owned(),
            Some(field) => {
                let json: Value =
                    serde_json::from_str(line).map_err(|e| format!("not valid json: {e}"))?;
                match json.get(field) {
                    Some(Value::String(text)) => text.clone(),
                    Some(_) => return Err(format!("{field:?} is not a string")),
                    None => return Err(format!("there is no {field:?}")),
                }
            }
        };
        if text.trim().is_empty() {
            return Err("the text is empty".to_owned());
        }
        let text = match &self.template {
            Some(template) => template.replace(PLACE, &text),
            None => text,
        };
        if !self.chat {
            return Ok(Prompt::Text(text));
        }
        let render = RenderOptions {
            add_generation_prompt: true,
            ..Default::default()
        };
        let template = model.chat_template().map_err(|error| error.to_string())?;
        let rendered = template.render(&[Message::new("user", text)], &render);
        Ok(Prompt::Text(rendered.map_err(|error| error.to_string())?))
    }

    fn document(
        &self,
        model: &LoadedModel,
        line: usize,
        result: mlx_infer::ClassifyResult,
    ) -> Value {
        let mut document = Map::new();
        document.insert("line".to_owned(), json!(line));
        if let Some(scores) = result.labels {
            let probabilities: Map<String, Value> = self
                .labels
                .iter()
                .cloned()
                .zip(scores.probabilities.into_iter().map(Value::from))
                .collect();
            document.insert("label".to_owned(), json!(self.labels[scores.best]));
            document.insert("probabilities".to_owned(), probabilities.into());
            document.insert("logprobs".to_owned(), json!(scores.logprobs));
        } else {
            let text = model
                .tokenizer()
                .ok()
                .and_then(|tokenizer| tokenizer.decode(&[result.token], false).ok());
            document.insert("id".to_owned(), json!(result.token));
            document.insert("token".to_owned(), json!(text));
        }
        if let Some(logits) = result.logits {
            document.insert("logits".to_owned(), json!(logits));
        }
        document.into()
    }
}

/// Reads the lines that are classified together, so that sorting by length has an effect. From a file these are all
/// lines up to the limits; from a pipe, the lines that arrive within a short time. The second value is the result of
/// reading, if the input has ended.
fn gather(
    lines: &mut LineStream,
    cancel: &CancelToken,
) -> (Vec<Line>, Option<mlx_infer::Result<()>>) {
    let (mut window, mut bytes, mut until) = (Vec::new(), 0, None);
    while window.len() < MAX_LINES && bytes < MAX_BYTES && !cancel.is_cancelled() {
        let wait = match until {
            None => WAIT,
            Some(until) => Instant::saturating_duration_since(&until, Instant::now()),
        };
        match lines.next(wait) {
            Ok(Arrival::Line(line)) => {
                bytes += line.1.as_ref().map_or(0, String::len);
                window.push(line);
                until.get_or_insert_with(|| Instant::now() + GATHER);
            }
            Ok(Arrival::Later) if window.is_empty() => {}
            Ok(Arrival::Later) => break,
            Ok(Arrival::End) => return (window, Some(Ok(()))),
            Err(error) => return (window, Some(Err(error))),
        }
    }
    (window, None)
}

//! `mlx-infer batch`.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use mlx_infer::input::Lines;
use mlx_infer::{
    BatchResult, Error, ErrorKind, GenerateOptions, Limits, LoadedModel, Message, Prompt, Request,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::lines::{Progress, failed};
use super::{Result, args, interrupt};

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Batch {
    #[command(flatten)]
    load: args::Load,
    /// File with the requests; - is stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// Most requests that are computed at a time
    #[arg(long, value_name = "N", default_value_t = Limits::default().rows)]
    rows: usize,
    /// Most tokens of short prompts that are computed at a time, padding included
    #[arg(long, value_name = "N", default_value_t = Limits::default().prefill_tokens)]
    prefill_tokens: usize,
    /// Most bytes of the requests' caches
    #[arg(long, value_name = "BYTES")]
    cache_bytes: Option<usize>,
    /// Most bytes of computed beginnings that are kept for requests that begin the same; 0 keeps none
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().prefix_bytes)]
    prefix_bytes: usize,
    #[command(flatten)]
    generation: args::Generation,
}

const AFTER_HELP: &str = "\
Each line of the input is a JSON object with one of prompt (a text), tokens (ids) and messages (a
conversation for the chat template), and where it differs from the flags: max_tokens, temperature,
top_p, top_k, min_p, repeat_penalty, repeat_context, presence_penalty, frequency_penalty, logit_bias,
seed, stop, stop_ids, ignore_eos. An id is given back. Results are in the order of the lines.";

/// A line of the input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Option<Value>,
    prompt: Option<String>,
    tokens: Option<Vec<u32>>,
    messages: Option<Value>,
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_context: Option<usize>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<u32, f32>>,
    seed: Option<u64>,
    stop: Option<Vec<String>>,
    stop_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
}

impl Line {
    fn read(text: &str) -> std::result::Result<Self, String> {
        // serde would take a list of values too.
        if !text.trim_start().starts_with('{') {
            return Err("not a request: expected a JSON object".to_owned());
        }
        serde_json::from_str(text).map_err(|error| format!("not a request: {error}"))
    }

    fn request(
        self,
        model: &LoadedModel,
        defaults: &GenerateOptions,
    ) -> mlx_infer::Result<Request> {
        let prompt = match (self.prompt, self.tokens, self.messages) {
            (Some(text), None, None) => Prompt::Text(text),
            (None, Some(ids), None) => Prompt::Tokens(ids),
            (None, None, Some(messages)) => {
                let messages = Message::list_from_json(messages)?;
                Prompt::Tokens(model.chat_ids(&messages, &Default::default())?)
            }
            _ => {
                let message = "expected one of prompt, tokens and messages";
                return Err(Error::new(ErrorKind::Format, message));
            }
        };
        let mut options = defaults.clone();
        let sampling = &mut options.sampling;
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.top_k, self.top_k);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repeat_penalty, self.repeat_penalty);
        set(&mut sampling.repeat_context, self.repeat_context);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.logit_bias, self.logit_bias);
        sampling.seed = self.seed.or(sampling.seed);
        set(&mut options.max_tokens, self.max_tokens);
        set(&mut options.stop, self.stop);
        set(&mut options.stop_ids, self.stop_ids);
        set(&mut options.ignore_eos, self.ignore_eos);
        Ok(Request::new(prompt, options))
    }
}

fn set<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

/// A line on its way: its number, its id, and what came of it.
struct Place {
    line: usize,
    id: Option<Value>,
    document: Option<Value>,
}

impl Place {
    fn set(&mut self, mut document: Value) {
        if let (Some(id), Some(object)) = (&self.id, document.as_object_mut()) {
            object.insert("id".to_owned(), id.clone());
        }
        self.document = Some(document);
    }

    fn take(&mut self, result: BatchResult) {
        let line = self.line;
        self.set(match result.into_generated() {
            Ok(generated) => {
                let mut document = json!({"line": line});
                if let (Some(object), Value::Object(more)) =
                    (document.as_object_mut(), generated.to_json())
                {
                    object.extend(more);
                }
                document
            }
            Err(error) => failed(line, error),
        });
    }
}

impl Batch {
    pub(super) fn run(self) -> Result {
        let mut defaults = self.generation.options()?;
        defaults.cancel = interrupt::cancels()?;
        let limits = Limits {
            rows: self.rows,
            prefill_tokens: self.prefill_tokens,
            cache_bytes: self.cache_bytes,
            prefix_bytes: self.prefix_bytes,
        };
        limits
            .check()
            .map_err(|error| super::Failure::Usage(error.to_string()))?;
        let mut lines = Lines::open(&self.input)?;
        let model = self.load.load()?;
        let (mut requests, mut indices, mut places) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((number, line)) = lines.next()? {
            let mut place = Place {
                line: number,
                id: None,
                document: None,
            };
            let parsed = line.and_then(|line| Line::read(&line));
            let request = parsed.and_then(|mut line| {
                place.id = line.id.take();
                line.request(&model, &defaults).map_err(|e| e.to_string())
            });
            match request {
                Ok(request) => {
                    indices.push(places.len());
                    requests.push(request);
                }
                Err(error) => place.set(failed(number, error)),
            }
            places.push(place);
        }

        let _running = interrupt::running();
        let mut progress = Progress::new(|| Some(places.len()));
        let (mut written, mut tokens, mut fault) = (0, 0, Ok(()));
        let mut write = |places: &mut [Place]| -> Result {
            while let Some(document) = places.get_mut(written).and_then(|p| p.document.take()) {
                progress.print(&document)?;
                written += 1;
            }
            Ok(())
        };
        write(&mut places)?;
        model.batch_generate_with(requests, &limits, |index, result| {
            tokens += result.tokens.len();
            places[indices[index]].take(result);
            fault = write(&mut places);
            match fault {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        fault?;
        let seconds = progress.seconds();
        let rate = tokens as f64 / seconds.max(1e-9);
        progress.finish(
            "requests",
            &format!(", {tokens} tokens, {rate:.1} tokens/s"),
        );
        match defaults.cancel.is_cancelled() {
            true => Err(Error::new(ErrorKind::Cancelled, "cancelled").into()),
            false => Ok(()),
        }
    }
}

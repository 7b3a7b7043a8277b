//! `mlx-infer batch`.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mlx_infer::input::{self, Arrival, Lines};
use mlx_infer::{
    BatchResult, Error, ErrorKind, Frontend, GenerateOptions, Limits, Message, Prompt, Request,
    RequestOptions,
};
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::lines::{LineProgress, MAX_BYTES, MAX_LINES, WAIT, failed};
use super::output::ignored_keywords;
use super::{Result, args, backend, drafters, interrupt};

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct BatchArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    #[command(flatten)]
    drafters: drafters::Drafters,
    #[command(flatten)]
    backend: backend::BackendArgs,
    /// File with the requests, of any length; only a few are read ahead; - is stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// Maximum number of requests that are computed together
    #[arg(long, value_name = "N", default_value_t = Limits::default().rows)]
    rows: usize,
    /// Most tokens of a step: one of each row that decodes, then chunks of prompts in order of arrival
    /// [default: on a CPU 4, and 2.5 for each row that decodes; on CUDA 8,192 for prompts, in passes of their own; on other GPUs 2,048]
    #[arg(long, value_name = "N")]
    step_tokens: Option<usize>,
    /// Maximum size of the requests' caches in bytes [default: on an NVIDIA GPU what weights, prefixes and work leave, else no limit]
    #[arg(long, value_name = "BYTES")]
    cache_bytes: Option<usize>,
    /// Maximum size of stored prefixes in bytes, which requests with the same beginning reuse; 0 stores none
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().prefix_bytes)]
    prefix_bytes: usize,
    #[command(flatten)]
    prefix_dir: args::PrefixDirArgs,
    #[cfg(feature = "serve")]
    #[command(flatten)]
    file: super::batch_file::BatchFileArgs,
    #[command(flatten)]
    generation: args::GenerationArgs,
}

const AFTER_HELP: &str = "\
Each line of the input is a JSON object with one of prompt (a text), tokens (ids) and messages (a
conversation for the chat template), and where it differs from the flags: max_tokens, temperature,
top_p, top_k, min_p, top_n_sigma, xtc_probability, xtc_threshold, repeat_penalty, repeat_context,
presence_penalty, frequency_penalty, dry_multiplier, dry_base, dry_allowed_length, dry_last_n,
dry_breakers (ids), logit_bias, seed, stop, stop_ids, ignore_eos, min_tokens, repetition_detection,
json_schema, regex, choice, grammar (in Lark or GBNF), grammar_after, grammar_opener. An id is given back. Results are in the order of the lines.

A file in the form of OpenAI's batches (custom_id, method, url, body) is answered into --output, in the
form of such batches. Lines with an answer there are not computed again, so a run that was stopped goes
on. What a line does not say comes from the flags.";

/// The keys of a line besides the options.
const KEYS: [&str; 4] = ["id", "prompt", "tokens", "messages"];

/// The request option that lines do not support.
const LOGPROBS: &str = "logprobs";

/// A line of the input.
struct Line {
    id: Option<Value>,
    prompt: Option<String>,
    tokens: Option<Vec<u32>>,
    messages: Option<Value>,
    options: RequestOptions,
}

impl Line {
    fn read(text: &str) -> std::result::Result<Self, String> {
        // serde would also read a JSON list as the fields in order.
        if !text.trim_start().starts_with('{') {
            return Err("not a request: expected a JSON object".to_owned());
        }
        Self::parse(text).map_err(|error| format!("not a request: {error}"))
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let Object(mut object) = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let options = RequestOptions::take_from(&mut object).map_err(|error| error.to_string())?;
        let line = Self {
            id: object.shift_remove("id").filter(|id| !id.is_null()),
            prompt: field(&mut object, "prompt")?,
            tokens: field(&mut object, "tokens")?,
            messages: object
                .shift_remove("messages")
                .filter(|list| !list.is_null()),
            options,
        };
        // The results of lines have no log probabilities.
        let unknown =
            (object.keys().map(String::as_str).next()).or(line.options.logprobs.map(|_| LOGPROBS));
        let Some(key) = unknown else { return Ok(line) };
        let options = RequestOptions::NAMES
            .iter()
            .filter(|&&name| name != LOGPROBS);
        let known = KEYS.iter().chain(options).map(|key| format!("`{key}`"));
        let known: Vec<String> = known.collect();
        Err(format!(
            "unknown field `{key}`, expected one of {}",
            known.join(", ")
        ))
    }

    fn request(
        self,
        frontend: &Frontend,
        defaults: &GenerateOptions,
    ) -> mlx_infer::Result<Request> {
        let prompt = match (self.prompt, self.tokens, self.messages) {
            (Some(text), None, None) => Prompt::Text(text),
            (None, Some(ids), None) => Prompt::Tokens(ids),
            (None, None, Some(messages)) => {
                let messages = Message::list_from_json(messages)?;
                Prompt::Tokens(frontend.chat_ids(&messages, &Default::default())?)
            }
            _ => {
                let message = "expected one of prompt, tokens and messages";
                return Err(Error::new(ErrorKind::Format, message));
            }
        };
        Ok(Request::new(prompt, self.options.over(defaults)))
    }
}

fn field<T: DeserializeOwned>(
    object: &mut Map<String, Value>,
    key: &str,
) -> std::result::Result<Option<T>, String> {
    let value = object.shift_remove(key).unwrap_or_default();
    Option::deserialize(value).map_err(|error| format!("{key}: {error}"))
}

/// A JSON object; a key that is given twice is an error.
struct Object(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(json: D) -> std::result::Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Object;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<M: MapAccess<'de>>(
                self,
                mut entries: M,
            ) -> std::result::Result<Object, M::Error> {
                let mut object = Map::new();
                while let Some((key, value)) = entries.next_entry::<String, Value>()? {
                    if object.contains_key(&key) {
                        return Err(M::Error::custom(format!("duplicate field `{key}`")));
                    }
                    object.insert(key, value);
                }
                Ok(Object(object))
            }
        }
        json.deserialize_map(Keys)
    }
}

/// A line in progress: its number, its id, and its document once it has ended.
struct Place {
    line: usize,
    id: Option<Value>,
    /// The number of bytes of its text.
    bytes: usize,
    /// The keywords of its JSON schema that have no effect.
    ignored: Vec<String>,
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
        let (line, ignored) = (self.line, std::mem::take(&mut self.ignored));
        self.set(match result.into_generated() {
            Ok(generated) => {
                let mut document = json!({"line": line});
                if let (Some(object), Value::Object(more)) =
                    (document.as_object_mut(), generated.to_json())
                {
                    object.extend(more);
                }
                if !ignored.is_empty() {
                    document["ignored_keywords"] = ignored.into();
                }
                document
            }
            Err(error) => failed(line, error),
        });
    }
}

/// The lines that were read and whose documents are not yet written, in order.
struct Flight {
    places: VecDeque<Place>,
    bytes: usize,
    progress: LineProgress,
    tokens: usize,
    not_finite: Option<Error>,
}

impl Flight {
    fn has_room(&self) -> bool {
        self.places.len() < MAX_LINES && self.bytes < MAX_BYTES
    }

    fn add(&mut self, place: Place) -> Result {
        self.bytes += place.bytes;
        self.places.push_back(place);
        self.write()
    }

    fn take(&mut self, line: usize, result: BatchResult) -> Result {
        self.tokens += result.tokens.len();
        if let Some(error) = &result.error
            && error.kind() == ErrorKind::NotFinite
        {
            let copy = || Error::new(error.kind(), error.to_string());
            self.not_finite.get_or_insert_with(copy);
        }
        // The entries belong to consecutive lines. Documents of earlier lines are written.
        let first = self.places.front().map_or(line, |place| place.line);
        if let Some(place) = self.places.get_mut(line - first) {
            place.take(result);
        }
        self.write()
    }

    /// Writes the documents at the front, up to the first line that has not ended.
    fn write(&mut self) -> Result {
        while let Some(place) = self.places.front_mut()
            && let Some(document) = place.document.take()
        {
            self.bytes -= place.bytes;
            self.places.pop_front();
            self.progress.print(&document)?;
        }
        Ok(())
    }
}

impl BatchArgs {
    pub(super) fn run(self) -> Result {
        let mut defaults = self.generation.options()?;
        defaults.cancel = interrupt::cancels()?;
        let limits = Limits {
            rows: self.rows,
            step_tokens: self.step_tokens,
            cache_bytes: self.cache_bytes,
            models_bytes: None,
            prefix_bytes: self.prefix_bytes,
            prefix_host_bytes: self.prefix_dir.prefix_host_bytes,
            prefix_dir: self.prefix_dir.limits(),
        };
        limits
            .check()
            .map_err(|error| super::Failure::Usage(error.to_string()))?;
        self.backend.check(&defaults)?;
        #[cfg(feature = "serve")]
        if let Some(batch) = self.file.of(&self.input)? {
            let loading = super::batch_file::BatchLoading {
                load: self.load,
                backend: self.backend,
                drafters: self.drafters,
            };
            let given = self.generation.given()?;
            return super::batch_file::run(
                self.file.names(),
                batch,
                loading,
                limits,
                given,
                &defaults,
            );
        }
        let lines = Lines::open(&self.input)?;
        let model =
            self.load
                .load_for_requests(&self.backend, &self.drafters, defaults.speculative)?;
        let _running = interrupt::running();
        let mut flight = Flight {
            places: VecDeque::new(),
            bytes: 0,
            progress: LineProgress::new(|| lines.total()),
            tokens: 0,
            not_finite: None,
        };
        let mut batch = model.batch(&limits)?;
        let (mut input, mut fault) = (Some(lines.stream()?), None);
        loop {
            while let Some(lines) = &mut input
                && flight.has_room()
            {
                // Lines that arrived before an interrupt are cancelled like those that have started.
                let is_cancelled = defaults.cancel.is_cancelled();
                let wait = match batch.is_idle() || is_cancelled {
                    true => WAIT,
                    false => Duration::ZERO,
                };
                match lines.next(wait) {
                    Ok(Arrival::Later) if is_cancelled => input = None,
                    Ok(Arrival::Line(line)) => {
                        let (place, request) = start(line, model.frontend(), &defaults);
                        if let Some(request) = request {
                            batch.submit(place.line, request);
                        }
                        flight.add(place)?;
                    }
                    Ok(Arrival::Later) if batch.is_idle() => {}
                    Ok(Arrival::Later) => break,
                    Ok(Arrival::End) => input = None,
                    Err(error) => (input, fault) = (None, Some(error)),
                }
            }
            if defaults.cancel.is_cancelled() {
                input = None;
            }
            if batch.is_idle() {
                break;
            }
            for (line, result) in batch.advance() {
                flight.take(line, result)?;
            }
        }
        let (progress, tokens) = (flight.progress, flight.tokens);
        let rate = tokens as f64 / progress.seconds().max(1e-9);
        progress.finish(
            "requests",
            &format!(", {tokens} tokens, {rate:.1} tokens/s"),
        );
        let cancelled = || Error::new(ErrorKind::Cancelled, "cancelled");
        let is_cancelled = defaults.cancel.is_cancelled();
        let error = is_cancelled.then(cancelled).or(fault).or(flight.not_finite);
        error.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// The entry of a line, and its request. A line that is not a valid request has none; its entry has an error document.
fn start(
    (number, line): input::Line,
    frontend: &Frontend,
    defaults: &GenerateOptions,
) -> (Place, Option<Request>) {
    let mut place = Place {
        line: number,
        id: None,
        bytes: line.as_ref().map_or(0, String::len),
        ignored: Vec::new(),
        document: None,
    };
    let parsed = line.and_then(|line| Line::read(&line));
    let request = parsed.and_then(|mut line| {
        place.id = line.id.take();
        line.request(frontend, defaults).map_err(|e| e.to_string())
    });
    match request {
        Ok(request) => {
            place.ignored = ignored_keywords(frontend, &request.options);
            (place, Some(request))
        }
        Err(error) => {
            place.set(failed(number, error));
            (place, None)
        }
    }
}

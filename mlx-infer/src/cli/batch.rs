//! `mlx-infer batch`.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use mlx_infer::input::Lines;
use mlx_infer::{
    BatchResult, Error, ErrorKind, GenerateOptions, Limits, LoadedModel, Message, Prompt, Request,
    RequestOptions,
};
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

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

/// Keys of a line beside the options.
const KEYS: [&str; 4] = ["id", "prompt", "tokens", "messages"];

/// The option that lines do not have.
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
        // serde would take a list of values too.
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
        // Results of lines have no log probabilities.
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

/// A JSON object whose keys differ.
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
        let mut not_finite = None;
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
            if let Some(error) = &result.error
                && error.kind() == ErrorKind::NotFinite
            {
                not_finite.get_or_insert_with(|| Error::new(error.kind(), error.to_string()));
            }
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
        match (defaults.cancel.is_cancelled(), not_finite) {
            (true, _) => Err(Error::new(ErrorKind::Cancelled, "cancelled").into()),
            (false, Some(error)) => Err(error.into()),
            (false, None) => Ok(()),
        }
    }
}

//! A checkpoint's chat template and how it is rendered.

use std::collections::BTreeMap;
use std::io::{Error as IoError, Write};

use jiff::Zoned;
use jiff::civil::DateTime;
use minijinja::{Environment, Value};
use serde_json::{Map, Value as Json};

use super::environment::{MAX_OUTPUT_BYTES, RAISED};
use super::load::DEFAULT;
use super::{Message, environment, fallback, load, methods, source};
use crate::error::{Error, ErrorKind, Result};
use crate::text::files::Files;
use crate::text::tokenizer::Tokenizer;

/// The largest published templates have about 20 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Steps of the template engine: some for the template itself, and some for every value it is given.
const BASE_FUEL: u64 = 500_000;
const FUEL_PER_VALUE: u64 = 1_000;
/// Room for what the engine does recursively at its own limits. Only pages that are used cost memory.
const STACK_BYTES: usize = 256 << 20;

/// A checkpoint's chat template, or its several named ones.
pub struct ChatTemplate {
    /// Name and source.
    sources: BTreeMap<String, String>,
    /// Whether the templates have names that a caller may choose by.
    is_named: bool,
    built_in: bool,
    /// `bos_token` and the like.
    special_tokens: Vec<(String, String)>,
    /// What to call the checkpoint in messages.
    place: String,
}

/// What a rendering depends on besides the messages.
///
/// ```
/// let options = mlx_infer::RenderOptions {
///     add_generation_prompt: true,
///     ..Default::default()
/// };
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// The tools on offer, each a JSON schema of a function; `None` is not the same as none on offer.
    pub tools: Option<Vec<Json>>,
    /// Documents to ground the answer on: objects with `title` and `text`.
    pub documents: Option<Vec<Json>>,
    /// Whether to end with what begins the model's answer.
    pub add_generation_prompt: bool,
    /// Which of several named templates; `None` is `tool_use` when there are tools, else `default`.
    pub template: Option<String>,
    /// Whatever else the template reads, such as `enable_thinking`; goes before the special tokens.
    pub kwargs: Map<String, Json>,
    /// What `strftime_now` calls now; `None` is the local time.
    pub now: Option<DateTime>,
}

impl ChatTemplate {
    /// The checkpoint's templates: `chat_template.jinja` and `additional_chat_templates/*.jinja`, else
    /// `chat_template` of tokenizer_config.json, else that of `chat_template.json`, else the built-in one
    /// of its family (Gemma 3, Llama 3, ChatML for Qwen), where the vocabulary has the family's marks.
    ///
    /// # Errors
    /// When the files are malformed, when a template has a syntax error, and when there is none.
    pub fn load(files: &Files, tokenizer: &Tokenizer) -> Result<Self> {
        let mut is_named = false;
        let mut built_in = false;
        let mut sources = load::from_jinja_files(files)?;
        if sources.is_empty() {
            let found = load::from_json(files, "tokenizer_config.json")?;
            let found = if found.is_some() {
                found
            } else {
                load::from_json(files, "chat_template.json")?
            };
            if let Some((found, named)) = found {
                sources = found;
                is_named = named;
            }
        } else {
            is_named = sources.len() > 1 || !sources.contains_key(DEFAULT);
        }
        if sources.is_empty() {
            built_in = true;
            let model = files.json("config.json")?.unwrap_or_default();
            let source = fallback::template_for(&model, tokenizer, files)?;
            sources.insert(DEFAULT.to_owned(), source.to_owned());
        }
        let mut special_tokens = tokenizer.special_tokens().to_vec();
        if built_in && !special_tokens.iter().any(|(name, _)| name == "bos_token") {
            special_tokens.push(("bos_token".to_owned(), String::new()));
        }
        Self::checked(
            sources,
            is_named,
            built_in,
            special_tokens,
            files.describe(),
        )
    }

    /// A template from its source, with the special tokens of a tokenizer.
    ///
    /// # Errors
    /// When the source has a syntax error or is too long.
    pub fn from_source(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let sources = BTreeMap::from([(DEFAULT.to_owned(), source.to_owned())]);
        Self::checked(
            sources,
            false,
            false,
            tokenizer.special_tokens().to_vec(),
            "chat template".to_owned(),
        )
    }

    fn checked(
        sources: BTreeMap<String, String>,
        is_named: bool,
        built_in: bool,
        special_tokens: Vec<(String, String)>,
        place: String,
    ) -> Result<Self> {
        let template = Self {
            sources,
            is_named,
            built_in,
            special_tokens,
            place,
        };
        for (name, source) in &template.sources {
            if source.len() > MAX_SOURCE_BYTES {
                return Err(Error::template(format!(
                    "{}: template {name:?} has {} bytes; expected at most {MAX_SOURCE_BYTES}",
                    template.place,
                    source.len()
                )));
            }
            on_large_stack(|| template.compile(name, 0, None).map(|_| ()))?;
        }
        Ok(template)
    }

    /// The names of the templates; a single one is called `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str)
    }

    /// Whether the template is a built-in one, because the checkpoint has none.
    pub fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// The source of the template of that name.
    pub fn source(&self, name: &str) -> Option<&str> {
        self.sources.get(name).map(String::as_str)
    }

    /// The prompt text of a conversation.
    ///
    /// # Errors
    /// When there is no message or no such template, when the template refuses the conversation
    /// (`raise_exception`), and when it fails or does not come to an end.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::argument(
                "a chat template needs at least one message, given none",
            ));
        }
        let name = self.choose(options)?;
        let mut context = Map::new();
        for (name, token) in &self.special_tokens {
            context.insert(name.clone(), Json::from(token.as_str()));
        }
        for (key, value) in &options.kwargs {
            if ["messages", "tools", "documents", "add_generation_prompt"].contains(&key.as_str()) {
                return Err(Error::argument(format!(
                    "{key} is not an extra variable; it has an option of its own"
                )));
            }
            context.insert(key.clone(), value.clone());
        }
        let messages = messages
            .iter()
            .map(|message| Json::Object(message.for_template()))
            .collect();
        context.insert("messages".to_owned(), Json::Array(messages));
        context.insert(
            "tools".to_owned(),
            options.tools.clone().map_or(Json::Null, Json::Array),
        );
        context.insert(
            "documents".to_owned(),
            options.documents.clone().map_or(Json::Null, Json::Array),
        );
        context.insert(
            "add_generation_prompt".to_owned(),
            Json::Bool(options.add_generation_prompt),
        );
        let context = Json::Object(context);
        let fuel = BASE_FUEL + FUEL_PER_VALUE * count_values(&context);
        on_large_stack(|| {
            let env = self.compile(name, fuel, options.now)?;
            let template = env
                .get_template(name)
                .map_err(|error| self.failed(name, &error))?;
            let mut out = Limited(Vec::new());
            template
                .render_captured_to(value_of(&context), &mut out)
                .map_err(|error| self.failed(name, &error))?;
            String::from_utf8(out.0)
                .map_err(|error| Error::template(format!("{}: {error}", self.place)))
        })
    }

    fn choose(&self, options: &RenderOptions) -> Result<&str> {
        let wanted = match &options.template {
            Some(name) => name.as_str(),
            None if self.is_named
                && options.tools.is_some()
                && self.sources.contains_key("tool_use") =>
            {
                "tool_use"
            }
            None => DEFAULT,
        };
        match self.sources.get_key_value(wanted) {
            Some((name, _)) => Ok(name),
            None => {
                let known: Vec<&str> = self.names().collect();
                Err(Error::argument(format!(
                    "{}: no chat template is called {wanted:?}; known: {}",
                    self.place,
                    known.join(", ")
                )))
            }
        }
    }

    /// An environment with the template of that name, which borrows nothing from `self`.
    fn compile(
        &self,
        name: &str,
        fuel: u64,
        now: Option<DateTime>,
    ) -> Result<Environment<'static>> {
        let mut env = environment::new();
        env.set_fuel(Some(fuel));
        env.add_function("strftime_now", move |format: String| strftime(now, &format));
        let source = source::prepare(self.sources.get(name).map_or("", String::as_str));
        env.add_template_owned(name.to_owned(), source)
            .map_err(|error| self.failed(name, &error))?;
        Ok(env)
    }

    fn failed(&self, name: &str, error: &minijinja::Error) -> Error {
        let detail = error.detail().map_or_else(
            || error.kind().to_string(),
            |detail| format!("{}: {detail}", error.kind()),
        );
        if let Some((_, message)) = detail.split_once(RAISED) {
            return Error::template(format!(
                "the chat template refuses the conversation: {message}"
            ));
        }
        let line = error
            .line()
            .map(|line| format!(" line {line}"))
            .unwrap_or_default();
        Error::template(format!(
            "{}: chat template {name:?}{line}: {detail}",
            self.place
        ))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.names().collect();
        f.debug_struct("ChatTemplate")
            .field("names", &names)
            .field("built_in", &self.built_in)
            .finish_non_exhaustive()
    }
}

fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), _, _) => Value::from(value),
            (None, Some(value), _) => Value::from(value),
            (None, None, value) => Value::from(value.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(value_of).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(
            map.iter()
                .map(|(key, value)| (key.as_str(), value_of(value))),
        ),
    }
}

fn count_values(json: &Json) -> u64 {
    match json {
        Json::Array(items) => 1 + items.iter().map(count_values).sum::<u64>(),
        Json::Object(map) => 1 + map.values().map(count_values).sum::<u64>(),
        _ => 1,
    }
}

fn strftime(now: Option<DateTime>, format: &str) -> std::result::Result<String, minijinja::Error> {
    methods::bounded_format(format)?;
    let now = now.unwrap_or_else(|| Zoned::now().datetime());
    jiff::fmt::strtime::format(format, now)
        .map_err(|error| methods::failed(format!("strftime_now({format:?}): {error}")))
}

/// Templates are input: what the engine does recursively must not meet the end of a small stack.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".to_owned())
            .stack_size(STACK_BYTES);
        let handle = thread.spawn_scoped(scope, work).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}")).with_source(error)
        })?;
        handle.join().unwrap_or_else(|_| {
            Err(Error::template(
                "the template engine failed on this chat template",
            ))
        })
    })
}

/// Collects output up to a bound.
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(IoError::other(format!(
                "the text has more than {MAX_OUTPUT_BYTES} bytes"
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

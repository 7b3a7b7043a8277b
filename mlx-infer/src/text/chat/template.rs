//! A checkpoint's chat template and how it is rendered.

use std::collections::BTreeMap;

#[cfg(feature = "clock")]
use jiff::civil::DateTime;
use serde_json::{Map, Value as Json};

use super::load::DEFAULT;
use super::{Message, fallback, load};
use crate::error::{Error, Result};
use crate::text::files::Files;
use crate::text::jinja::{Fail, Now, Template};
use crate::text::tokenizer::Tokenizer;

/// The largest published templates have about 20 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// How much of a template's own text an error message shows.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// A checkpoint's chat template, or its several named ones.
pub struct ChatTemplate {
    /// Source and parsed template of each name.
    templates: BTreeMap<String, (String, Template)>,
    /// Whether the templates have names by which a caller may choose.
    is_named: bool,
    built_in: bool,
    /// The texts of `bos_token` and the other special tokens.
    special_tokens: Vec<(String, String)>,
    /// The name of the checkpoint in messages.
    place: String,
}

/// Options of a rendering.
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
    /// The tools on offer, each a JSON schema of a function. `None` differs from an empty list.
    pub tools: Option<Vec<Json>>,
    /// Documents to ground the answer on: objects with `title` and `text`.
    pub documents: Option<Vec<Json>>,
    /// Whether to end with the start of the model's answer.
    pub add_generation_prompt: bool,
    /// The name of a template; `None` is `tool_use` when there are tools, else `default`.
    pub template: Option<String>,
    /// Other variables of the template, such as `enable_thinking`. They override special tokens of the same name.
    pub kwargs: Map<String, Json>,
    /// The time that `strftime_now` uses; `None` is the local time. Needs the feature `clock`.
    #[cfg(feature = "clock")]
    pub now: Option<DateTime>,
}

impl RenderOptions {
    #[cfg(feature = "clock")]
    fn time(&self) -> Option<Now> {
        self.now
    }

    #[cfg(not(feature = "clock"))]
    fn time(&self) -> Option<Now> {
        None
    }
}

/// Variables of templates that have options of their own.
pub(crate) const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

impl ChatTemplate {
    /// The checkpoint's templates: `chat_template.jinja` and `additional_chat_templates/*.jinja`, else
    /// `chat_template` of tokenizer_config.json, else that of `chat_template.json`, else the built-in one
    /// of its family (Gemma 3, Llama 3, ChatML for Qwen), where the vocabulary has the family's marks.
    ///
    /// # Errors
    /// When the files are malformed, when a template has a syntax error, and when there is none.
    pub fn load(files: &Files, tokenizer: &Tokenizer) -> Result<Self> {
        let mut built_in = false;
        let (mut sources, is_named) = load::own(files)?;
        if sources.is_empty() {
            built_in = true;
            let model = match files.architecture() {
                Some(architecture) => serde_json::json!({"model_type": architecture}),
                None => files.json("config.json")?.unwrap_or_default(),
            };
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
        let mut template = Self {
            templates: BTreeMap::new(),
            is_named,
            built_in,
            special_tokens,
            place,
        };
        for (name, source) in sources {
            if source.len() > MAX_SOURCE_BYTES {
                return Err(Error::template(format!(
                    "{}: chat template {name:?} has {} bytes; expected at most {MAX_SOURCE_BYTES}",
                    template.place,
                    source.len()
                )));
            }
            let parsed = Template::parse(&source).map_err(|fail| template.failed(&name, fail))?;
            template.templates.insert(name, (source, parsed));
        }
        Ok(template)
    }

    /// The names of the templates; a single one is called `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }

    /// Whether the template is a built-in one, because the checkpoint has none.
    pub fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// The source of the template of that name.
    pub fn source(&self, name: &str) -> Option<&str> {
        self.templates.get(name).map(|(source, _)| source.as_str())
    }

    /// The prompt text of a conversation.
    ///
    /// # Errors
    /// There is no message or no such template, the template refuses the conversation (`raise_exception`), or it fails
    /// or does not end.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::argument(
                "a chat template needs at least one message, given none",
            ));
        }
        let (name, template) = self.choose(options)?;
        let mut context = Map::new();
        for (name, token) in &self.special_tokens {
            context.insert(name.clone(), Json::from(token.as_str()));
        }
        for (key, value) in &options.kwargs {
            if RESERVED.contains(&key.as_str()) {
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
        template
            .render(&context, options.time())
            .map_err(|fail| self.failed(name, fail))
    }

    fn choose(&self, options: &RenderOptions) -> Result<(&str, &Template)> {
        let wanted = match &options.template {
            Some(name) => name.as_str(),
            None if self.is_named
                && options.tools.is_some()
                && self.templates.contains_key("tool_use") =>
            {
                "tool_use"
            }
            None => DEFAULT,
        };
        match self.templates.get_key_value(wanted) {
            Some((name, (_, template))) => Ok((name, template)),
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

    fn failed(&self, name: &str, fail: Fail) -> Error {
        let (place, name) = (&self.place, printable(name));
        Error::template(match fail {
            Fail::Raised(message) => format!(
                "the chat template refuses the conversation: {}",
                printable(&message)
            ),
            Fail::Limit(what) => format!("{place}: chat template {name:?}: {what}"),
            Fail::Error(what, line) => {
                let line = line.map_or_else(String::new, |line| format!(" line {line}"));
                format!(
                    "{place}: chat template {name:?}{line}: {}",
                    printable(&what)
                )
            }
        })
    }
}

/// A text that is safe for a terminal, on one line: white space as spaces, no other control characters, shortened if it
/// is long.
fn printable(text: &str) -> String {
    let spaced = text
        .chars()
        .map(|c| if matches!(c, '\n' | '\t') { ' ' } else { c });
    spaced
        .filter(|c| !c.is_control())
        .take(MAX_MESSAGE_CHARS)
        .collect()
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

//! Compiled grammars of a model.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use super::Mask;
use super::guide::{NO_TOKEN, mask_of};
use super::schema::SUBSCHEMAS;
use super::source::source;
use super::vocabulary::Vocabulary;
use crate::error::{Error, ErrorKind, Result};
use crate::grammar::{gbnf, lark};
use crate::request::grammar::{Constraint, Grammar};
use crate::text::tokenizer::Tokenizer;

/// The number of compiled grammars that are stored for later requests.
const KEPT: usize = 32;

/// The deepest nesting of a JSON schema. JSON texts are read up to 128 levels.
const LEVELS: usize = 256;

/// The most rules and terminals of a Lark grammar. Nested terminals take time that grows with the square of their
/// number; this limit is 10 seconds.
const RULES: usize = 1000;

/// The size of the stack for a compilation, which recurses from part to part. A part was measured
/// to take up to 16 KiB.
fn stack(parts: usize) -> usize {
    (16 << 20) + parts * (32 << 10)
}

/// The most alternatives with which a text may continue at one place, such as optional properties of an object, each of
/// which counts four times.
const MAX_ITEMS: usize = 10_000;

/// An error that can be returned more than once.
type Fault = (ErrorKind, String);

/// A compiled grammar.
pub(crate) struct Compiled {
    pub(super) vocabulary: Arc<Vocabulary>,
    /// The state before the first token.
    pub(super) start: Matcher,
    /// The tokens that it allows first.
    pub(super) first: Mask,
    /// Keywords of a JSON schema that have no effect.
    ignored: Vec<String>,
}

impl Compiled {
    /// The keywords of a JSON schema that have no effect.
    pub(crate) fn ignored(&self) -> &[String] {
        &self.ignored
    }
}

/// The grammars of one model: the parts that all grammars share, and the grammars that were compiled last.
#[derive(Default)]
pub(crate) struct Grammars {
    factory: OnceLock<std::result::Result<Factory, Fault>>,
    kept: Mutex<VecDeque<Kept>>,
}

struct Factory {
    parsers: ParserFactory,
    vocabulary: Arc<Vocabulary>,
}

struct Kept {
    grammar: Grammar,
    strict: bool,
    compiled: std::result::Result<Arc<Compiled>, Fault>,
}

impl Grammars {
    /// Builds the parts that all grammars share, if no other thread has built them. It takes seconds for a large
    /// vocabulary.
    ///
    /// # Errors
    /// The tokenizer is not suitable.
    pub(crate) fn prepare(&self, tokenizer: &Tokenizer, vocab: usize, eos: &[u32]) -> Result<()> {
        self.factory(tokenizer, vocab, eos).map(drop)
    }

    fn factory(&self, tokenizer: &Tokenizer, vocab: usize, eos: &[u32]) -> Result<&Factory> {
        let build = || {
            let new = AssertUnwindSafe(|| Factory::new(tokenizer, vocab, eos));
            let panicked = |_| {
                let message = "grammars do not work with this tokenizer: their compiler panicked";
                Err(Error::unsupported(message))
            };
            let built = catch_unwind(new).unwrap_or_else(panicked);
            built.map_err(|e| (e.kind(), e.to_string()))
        };
        self.factory.get_or_init(build).as_ref().map_err(error)
    }

    /// The compiled form of a grammar.
    ///
    /// # Errors
    /// The grammar is malformed, not supported, or cannot be spelled with the model's tokens.
    pub(crate) fn get(
        &self,
        constraint: &Constraint,
        tokenizer: &Tokenizer,
        vocab: usize,
        eos: &[u32],
    ) -> Result<Arc<Compiled>> {
        let Constraint {
            grammar, strict, ..
        } = constraint;
        // The following steps recurse over the schema, on the caller's stack.
        if let Grammar::JsonSchema(schema) = grammar
            && is_deep(schema)
        {
            let message = format!(
                "{}: it is nested deeper than {LEVELS} levels",
                grammar.name()
            );
            return Err(Error::argument(message));
        }
        let is_it = |kept: &Kept| kept.strict == *strict && kept.grammar == *grammar;
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut kept = lock();
            if let Some(at) = kept.iter().position(is_it)
                && let Some(found) = kept.remove(at)
            {
                let compiled = found.compiled.clone();
                kept.push_back(found);
                return compiled.map_err(|fault| error(&fault));
            }
        }
        let factory = self.factory(tokenizer, vocab, eos)?;
        let compiled = factory.compile(grammar, *strict).map(Arc::new);
        let compiled = compiled.map_err(|what| {
            let message = format!("{}: {what}", grammar.name());
            (ErrorKind::Argument, message)
        });
        let mut kept = lock();
        if !kept.iter().any(is_it) {
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(Kept {
                grammar: grammar.clone(),
                strict: *strict,
                compiled: compiled.clone(),
            });
        }
        compiled.map_err(|fault| error(&fault))
    }
}

/// Whether a value has more than [`LEVELS`] levels.
fn is_deep(value: &Value) -> bool {
    let mut level = vec![value];
    for _ in 0..LEVELS {
        let inner = level.into_iter().flat_map(|value| match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(entries) => entries.values().collect(),
            _ => Vec::new(),
        });
        level = inner.collect();
        if level.is_empty() {
            return false;
        }
    }
    true
}

fn error((kind, message): &Fault) -> Error {
    Error::new(*kind, message.clone())
}

impl Factory {
    fn new(tokenizer: &Tokenizer, vocab: usize, eos: &[u32]) -> Result<Self> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, vocab, eos)?);
        let mut parsers = ParserFactory::new_simple(vocabulary.env()).map_err(|error| {
            Error::unsupported(format!("grammars do not work with this tokenizer: {error}"))
        })?;
        let limits = parsers.quiet().limits_mut();
        limits.verbose_errors = false;
        limits.max_items_in_row = MAX_ITEMS;
        Ok(Self {
            parsers,
            vocabulary,
        })
    }

    fn compile(&self, grammar: &Grammar, strict: bool) -> std::result::Result<Compiled, String> {
        let parts = parts(grammar);
        for (count, most, name) in parts {
            if count > most {
                return Err(format!(
                    "it has {count} {name}, and at most {most} are supported"
                ));
            }
        }
        let count: usize = parts.iter().map(|(count, ..)| count).sum();
        let build = || {
            let (top, mut ignored) = source(grammar, strict)?;
            let parser = (self.parsers.create_parser(top)).map_err(|e| error_text(grammar, &e))?;
            let mut start = Matcher::new(Ok(parser));
            let warnings = start.grammar_warnings();
            ignored.extend(warnings.iter().flat_map(|warning| keywords(warning)));
            let first = mask_of(&mut start, self.vocabulary.words())?;
            let allowed = match self.vocabulary.not_first() {
                None => first,
                Some(not_first) => {
                    let both = first.iter().zip(not_first.iter());
                    both.map(|(first, not)| first & !not).collect()
                }
            };
            if allowed.iter().all(|&word| word == 0) {
                return Err(NO_TOKEN.to_owned());
            }
            Ok(Compiled {
                vocabulary: self.vocabulary.clone(),
                start,
                first: allowed,
                ignored,
            })
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(stack(count))
                .spawn_scoped(scope, build);
            match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|_| Err("its compilation panicked".to_owned())),
                Err(error) => Err(format!("cannot start a thread to compile it: {error}")),
            }
        })
    }
}

/// The start of llguidance's message for keywords that it does not support.
const UNIMPLEMENTED: &str = "Unimplemented keys: ";

/// The start of llguidance's message for `oneOf` if several schemas may match.
const ONE_OF: &str = "oneOf constraints are not supported";

/// llguidance's error text, in one line.
fn error_text(grammar: &Grammar, error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    if let Some(what) = text.strip_prefix("panic: ") {
        let what = what.lines().next().unwrap_or_default();
        return format!("its compilation failed ({what})");
    }
    if let Some(names) = text.strip_prefix(UNIMPLEMENTED) {
        let names = quoted(names).join(", ");
        return format!("not supported: {names} (without strict they are without effect)");
    }
    if text.starts_with(ONE_OF) {
        return "not supported: oneOf of schemas that may match the same value (without strict it is taken as anyOf)".to_owned();
    }
    // The fault of a regular expression has a separate line, after a drawing of its position.
    let of_regex = text.lines().find_map(|line| line.strip_prefix("error: "));
    let first = text.lines().next().unwrap_or_default();
    let text = match grammar {
        Grammar::JsonSchema(_) => {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            lines.join(" ")
        }
        Grammar::Regex(_) => {
            let behind = first
                .split_once("(in regex): ")
                .map_or(first, |(_, said)| said);
            of_regex.unwrap_or(behind).to_owned()
        }
        Grammar::Lark(_) | Grammar::Choice(_) => match of_regex {
            Some(said) => format!("{}: {said}", first.trim_end_matches(": regex parse error:")),
            None => first.to_owned(),
        },
    };
    let mut chars = text.trim().trim_end_matches('.').chars();
    let first = chars.next().map(|c| c.to_lowercase().to_string());
    first.unwrap_or_default() + &chars.take(400).collect::<String>()
}

/// Upper bounds of the numbers of a grammar's parts, the numbers that are supported, and the names of the parts.
fn parts(grammar: &Grammar) -> [(usize, usize, &'static str); 2] {
    fn objects(value: &Value) -> usize {
        match value {
            Value::Object(entries) => 1 + entries.values().map(objects).sum::<usize>(),
            Value::Array(items) => items.iter().map(objects).sum(),
            _ => 0,
        }
    }
    let (mut rules, mut subschemas) = (0, 0);
    match grammar {
        Grammar::JsonSchema(schema) => subschemas = objects(schema),
        Grammar::Lark(text) if gbnf::is_gbnf(text) => rules = gbnf::rules(text),
        Grammar::Lark(text) => {
            let mut end = 0;
            for (span, schema) in lark::schemas(text) {
                rules += colons(&text[end..span.start]);
                subschemas += objects(&schema);
                end = span.end;
            }
            rules += colons(&text[end..]);
        }
        Grammar::Regex(_) | Grammar::Choice(_) => {}
    }
    [
        (rules, RULES, "rules and terminals"),
        (subschemas, SUBSCHEMAS, "subschemas"),
    ]
}

fn colons(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b':').count()
}

/// The texts in quotes of a list such as `["a", "b"]`.
fn quoted(list: &str) -> Vec<&str> {
    let list = list.split_once(']').map_or(list, |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

/// The keywords in a warning, or the whole warning.
fn keywords(warning: &str) -> Vec<String> {
    match warning.strip_prefix(UNIMPLEMENTED) {
        Some(names) => quoted(names).into_iter().map(str::to_owned).collect(),
        None if warning.starts_with("oneOf ") => vec!["oneOf (as anyOf)".to_owned()],
        None if warning.starts_with("min/maxProperties") => {
            vec!["minProperties, maxProperties".to_owned()]
        }
        None => match warning.strip_prefix("Unknown format: ") {
            Some(format) => vec![format!("format {format}")],
            None => vec![warning.to_owned()],
        },
    }
}

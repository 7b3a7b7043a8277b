//! minijinja set up as transformers sets up jinja2.

use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};

use super::{filters, methods, python};

/// Macros within macros; deeper is recursion without end.
const MAX_RECURSION: usize = 200;

/// The most text that one rendering may write.
pub(super) const MAX_OUTPUT_BYTES: usize = 64 << 20;

/// An environment without templates, for one rendering.
pub(super) fn new() -> Environment<'static> {
    let mut env = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
    {
        env.set_syntax(syntax);
    }
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(MAX_RECURSION);
    let written = AtomicUsize::new(0);
    env.set_formatter(move |out, state, value| print(&written, out, state, value));
    env.set_unknown_method_callback(methods::call);
    env.add_function("raise_exception", raise_exception);
    env.add_function("dict", dict);
    env.remove_global("debug");
    filters::install(&mut env);
    env
}

/// Writes what `{{ value }}` stands for. What is written is counted, also what is captured into a variable.
fn print(
    written: &AtomicUsize,
    out: &mut Output,
    state: &mut State,
    value: &Value,
) -> Result<(), Error> {
    let text = python::str_of(value)?;
    let escaped = !matches!(state.auto_escape(), AutoEscape::None) && !value.is_safe();
    let text = if escaped { python::escape(&text) } else { text };
    if written.fetch_add(text.len(), Ordering::Relaxed) + text.len() > MAX_OUTPUT_BYTES {
        return Err(methods::failed(format!(
            "the template writes more than {MAX_OUTPUT_BYTES} bytes"
        )));
    }
    out.write_str(&text).map_err(Error::from)
}

/// The text that marks an error as the template's own refusal.
pub(super) const RAISED: &str = "raise_exception: ";

fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{RAISED}{}", python::str_of(message)?),
    ))
}

/// `dict(mapping or pairs, **more)`.
fn dict(from: Option<Value>, more: Kwargs) -> Result<Value, Error> {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    let mut set = |key: Value, value: Value| match pairs.iter_mut().find(|(found, _)| *found == key)
    {
        Some((_, slot)) => *slot = value,
        None => pairs.push((key, value)),
    };
    match from {
        Some(map) if map.kind() == ValueKind::Map => {
            for key in map.try_iter()? {
                let value = map.get_item(&key)?;
                set(key, value);
            }
        }
        Some(list) => {
            for pair in list.try_iter()? {
                let pair: Vec<Value> = pair.try_iter()?.collect();
                let [key, value] = pair.as_slice() else {
                    return Err(methods::failed("dict: expected pairs"));
                };
                set(key.clone(), value.clone());
            }
        }
        None => {}
    }
    for key in more.args() {
        set(Value::from(key), more.get(key)?);
    }
    Ok(Value::from_pairs(pairs))
}

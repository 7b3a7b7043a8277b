//! `str.format`: replacement fields and format specifications.

use super::attributes::{attribute, item};
use super::budget::{self, Builder};
use super::calls::Args;
use super::spec::formatted;
use super::value::Value;
use super::{Fail, Result, show};

pub(super) fn format(text: &str, args: &Args) -> Result<String> {
    let named = |name: &str| {
        args.named
            .iter()
            .find(|(found, _)| &**found == name)
            .map(|(_, value)| value.clone())
    };
    let mut fields = Fields {
        positional: &args.positional,
        named: &named,
        next: Some(0),
    };
    let mut out = Builder::default();
    fields.write(text, &mut out, 0)?;
    Ok(out.finish())
}

pub(super) fn format_map(text: &str, map: &Value) -> Result<String> {
    let Value::Dict(dict) = map else {
        return Err(Fail::error("format_map: expected a dict"));
    };
    let named = |name: &str| dict.get_text(name).cloned();
    let mut fields = Fields {
        positional: &[],
        named: &named,
        next: Some(0),
    };
    let mut out = Builder::default();
    fields.write(text, &mut out, 0)?;
    Ok(out.finish())
}

struct Fields<'a> {
    positional: &'a [Value],
    named: &'a dyn Fn(&str) -> Option<Value>,
    /// The number of the next field without a number; none after a field with a number.
    next: Option<usize>,
}

impl Fields<'_> {
    fn write(&mut self, text: &str, out: &mut Builder, depth: u32) -> Result<()> {
        if depth > 2 {
            return Err(Fail::error("format: replacement fields nest too deep"));
        }
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            budget::copy(at)?;
            out.push(&rest[..at])?;
            let mark = &rest[at..];
            if mark.starts_with("{{") || mark.starts_with("}}") {
                out.push(&mark[..1])?;
                rest = &mark[2..];
            } else if mark.starts_with('}') {
                return Err(Fail::error("format: single '}' in the format string"));
            } else {
                let end = field_end(mark)?;
                self.field(&mark[1..end], out, depth)?;
                rest = &mark[end + 1..];
            }
        }
        out.push(rest)
    }

    fn field(&mut self, field: &str, out: &mut Builder, depth: u32) -> Result<()> {
        budget::scan(field.len())?;
        let at = field_part(field);
        let (name, rest) = field.split_at(at);
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => match rest.char_indices().nth(1) {
                Some((at, ':')) => (rest.chars().next(), &rest[at + 1..]),
                Some(_) => return Err(Fail::error("format: expected ':' after the conversion")),
                None => (rest.chars().next(), ""),
            },
            None => (None, rest.strip_prefix(':').unwrap_or(rest)),
        };
        let mut value = self.value(name)?;
        value = match conversion {
            None => value,
            Some('s') => Value::Str(show::str_of(&value)?),
            Some('r' | 'a') => {
                let mut shown = Builder::default();
                show::repr(&value, &mut shown, 0)?;
                Value::text(&shown.finish())?
            }
            Some(other) => {
                return Err(Fail::error(format!("format: unknown conversion {other:?}")));
            }
        };
        let mut inner = Builder::default();
        self.write(spec, &mut inner, depth + 1)?;
        formatted(&value, &inner.finish(), out)
    }

    fn value(&mut self, name: &str) -> Result<Value> {
        let at = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(at);
        let place = if first.is_empty() {
            let place = self
                .next
                .ok_or_else(|| Fail::error("format: numbered and unnumbered fields"))?;
            self.next = Some(place + 1);
            Some(place)
        } else {
            let place = first.parse().ok();
            if place.is_some() {
                if self.next.is_some_and(|next| next > 0) {
                    return Err(Fail::error("format: numbered and unnumbered fields"));
                }
                self.next = None;
            }
            place
        };
        let found = match place {
            Some(place) => self.positional.get(place).cloned(),
            None => (self.named)(first),
        };
        let mut value =
            found.ok_or_else(|| Fail::error(format!("format: no argument for {{{name}}}")))?;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = attribute(&value, &after[..end])?;
                rest = &after[end..];
            } else if let Some((key, after)) =
                rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
            {
                let key = match key.parse() {
                    Ok(number) => Value::Int(number),
                    Err(_) => Value::text(key)?,
                };
                value = item(&value, &key)?;
                rest = after;
            } else {
                return Err(Fail::error(format!("format: malformed field {name:?}")));
            }
        }
        Ok(value)
    }
}

/// The start of the conversion or the specification of a field.
fn field_part(field: &str) -> usize {
    let mut in_key = false;
    let at = field.find(|c| {
        match c {
            '[' => in_key = true,
            ']' => in_key = false,
            _ => {}
        }
        !in_key && (c == '!' || c == ':')
    });
    at.unwrap_or(field.len())
}

fn field_end(text: &str) -> Result<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Ok(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    Err(Fail::error("format: a field is not closed"))
}

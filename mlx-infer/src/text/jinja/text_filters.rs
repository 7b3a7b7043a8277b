//! Filters that make text.

use super::budget::{self, Builder};
use super::calls::Args;
use super::compare::index;
use super::value::{Str, Value};
use super::{Fail, Result, cuts, percent, show, strings};

pub(super) fn call(name: &str, value: &Value, args: &Args) -> Result<Value> {
    match name {
        "string" => {
            args.none(name)?;
            return show::str_of(value).map(Value::Str);
        }
        "indent" => return indent(strings::string(name, Some(value))?, args),
        "truncate" => return truncate(value, args),
        _ => {}
    }
    let text = show::str_of(value)?;
    let done = |made: String| Str::with(made.into(), text.is_safe()).map(Value::Str);
    match name {
        "capitalize" | "lower" | "upper" => {
            args.none(name)?;
            done(strings::cased(&text, name)?)
        }
        "title" => {
            args.none(name)?;
            done(title(&text)?)
        }
        "trim" => {
            let [chars] = args.bind(name, ["chars"], 0)?;
            let chars = chars.filter(|chars| !matches!(chars, Value::None));
            let chars = chars
                .as_ref()
                .map(|chars| strings::string(name, Some(chars)))
                .transpose()?;
            budget::scan(text.len())?;
            done(cuts::strip(&text, chars.map(|chars| &**chars), "strip")?)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            let count = match count {
                None | Some(Value::None) => -1,
                Some(count) => index(&count)?,
            };
            let replaced =
                strings::replace(&text, &show::str_of(&old)?, &show::str_of(&new)?, count)?;
            Value::text(&replaced)
        }
        "format" => {
            if !args.positional.is_empty() && !args.named.is_empty() {
                return Err(Fail::error(
                    "format: positional and named arguments at once",
                ));
            }
            if args.named.is_empty() {
                return percent::format(&text, &Value::tuple(args.positional.clone())?);
            }
            let pair = |(name, value): &(std::sync::Arc<str>, Value)| {
                Ok((Value::text(name)?, value.clone()))
            };
            let pairs: Vec<_> = args.named.iter().map(pair).collect::<Result<_>>()?;
            percent::format(&text, &Value::Dict(super::dict::Dict::new(pairs)?))
        }
        _ => {
            args.none(name)?;
            budget::scan(text.len())?;
            let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
            Ok(Value::Int(
                words.filter(|word| !word.is_empty()).count() as i128
            ))
        }
    }
}

/// A capital after white space, `-` and opening brackets.
fn title(text: &str) -> Result<String> {
    budget::scan(text.len())?;
    let breaks = |c: char| show::is_space(c) || "-({[<".contains(c);
    let mut out = String::with_capacity(text.len());
    let mut first = true;
    for c in text.chars() {
        if breaks(c) {
            out.push(c);
            first = true;
        } else if first {
            out.extend(c.to_uppercase());
            first = false;
        } else {
            out.extend(c.to_lowercase());
        }
    }
    Ok(out)
}

/// `indent(width=4, first=false, blank=false)`; the width may be the text to indent with.
fn indent(text: &Str, args: &Args) -> Result<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"], 0)?;
    let pad = match width {
        None => "    ".to_owned(),
        Some(Value::Str(pad)) => pad.to_string(),
        Some(width) => " ".repeat(strings::width(&width)?),
    };
    let is_true = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank) = (is_true(first), is_true(blank));
    budget::scan(text.len())?;
    let mut out = Builder::default();
    // jinja2 adds a line end before it splits, so that the last line counts.
    let with_end = format!("{}\n", &**text);
    for (at, line) in cuts::lines(&with_end, false).into_iter().enumerate() {
        if at > 0 {
            out.push("\n")?;
        }
        let padded = if at == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if padded {
            out.push(&pad)?;
        }
        out.push(line)?;
    }
    Str::with(out.finish().into(), text.is_safe()).map(Value::Str)
}

/// `truncate(length=255, killwords=false, end='...', leeway=5)`.
fn truncate(value: &Value, args: &Args) -> Result<Value> {
    let [length, kill, end, leeway] =
        args.bind("truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let count = match value {
        Value::Str(text) => {
            budget::scan(text.len())?;
            text.chars().count()
        }
        other => other.len().ok_or_else(|| {
            Fail::error(format!(
                "truncate: a value of type {} has no length",
                other.type_name()
            ))
        })?,
    };
    let length = length.as_ref().map_or(Ok(255), index)?;
    let end = end.map_or_else(|| Str::new("..."), |end| show::str_of(&end))?;
    let leeway = match leeway {
        None | Some(Value::None) => 5,
        Some(leeway) => index(&leeway)?,
    };
    let end_length = end.chars().count() as i128;
    if length < end_length || leeway < 0 {
        return Err(Fail::error(format!(
            "truncate: expected length >= {end_length} and leeway >= 0, got {length} and {leeway}"
        )));
    }
    if count as i128 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let text = strings::string("truncate", Some(value))?;
    let kept: String = text
        .chars()
        .take(usize::try_from(length - end_length).unwrap_or(0))
        .collect();
    let kept = match kept.rsplit_once(' ') {
        Some((before, _)) if !kill.is_some_and(|kill| kill.is_true()) => before,
        _ => kept.as_str(),
    };
    Value::text(&format!("{kept}{}", &*end))
}

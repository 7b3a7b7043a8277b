//! Filters that make text.

use super::budget::{self, Builder};
use super::calls::Args;
use super::compare::{Number, index};
use super::value::{Str, Value};
use super::{Fail, Result, cuts, percent, show, strings};

pub(super) fn call(name: &str, value: &Value, args: &Args) -> Result<Value> {
    match name {
        "string" => {
            args.none(name)?;
            return show::str_of(value).map(Value::Str);
        }
        "filesizeformat" => return file_size(value, args),
        "urlencode" => return url_encode(value, args),
        "xmlattr" => return xml_attributes(value, args),
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
        "center" => {
            let [width] = args.bind(name, ["width"], 0)?;
            let width = width.as_ref().map_or(Ok(80), strings::width)?;
            done(strings::justify(&text, width, " ", "center")?)
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
        "wordcount" => {
            args.none(name)?;
            budget::scan(text.len())?;
            let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
            Ok(Value::Int(
                words.filter(|word| !word.is_empty()).count() as i128
            ))
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
        _ => strip_tags(&text, args),
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
    let text = strings::string("truncate", Some(value))?;
    let length = length.as_ref().map_or(Ok(255), index)?;
    let end = end.map_or_else(|| Str::new("..."), |end| show::str_of(&end))?;
    let leeway = match leeway {
        None | Some(Value::None) => 5,
        Some(leeway) => index(&leeway)?,
    };
    budget::scan(text.len())?;
    let end_length = end.chars().count() as i128;
    if length < end_length || leeway < 0 {
        return Err(Fail::error(format!(
            "truncate: expected length >= {end_length} and leeway >= 0, got {length} and {leeway}"
        )));
    }
    if text.chars().count() as i128 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
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

fn strip_tags(text: &str, args: &Args) -> Result<Value> {
    args.none("striptags")?;
    budget::scan(text.len())?;
    let cut = |text: &str, open: &str, close: &str| {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(open) {
            let Some(end) = rest[at..].find(close) else {
                break;
            };
            out.push_str(&rest[..at]);
            rest = &rest[at + end + close.len()..];
        }
        out + rest
    };
    let bare = cut(&cut(text, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = bare
        .split(show::is_space)
        .filter(|word| !word.is_empty())
        .collect();
    let joined = words.join(" ");
    let pairs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ];
    Value::text(
        &pairs
            .into_iter()
            .fold(joined, |text, (from, to)| text.replace(from, to)),
    )
}

/// A number of bytes with a unit.
fn file_size(value: &Value, args: &Args) -> Result<Value> {
    let [binary] = args.bind("filesizeformat", ["binary"], 0)?;
    let binary = binary.is_some_and(|flag| flag.is_true());
    let bytes = match value {
        Value::Str(text) => super::number::parse_float(text),
        other => Number::of(other).map(Number::as_f64),
    };
    let Some(bytes) = bytes else {
        return Err(Fail::error("filesizeformat: expected a number"));
    };
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Value::text("1 Byte");
    }
    if bytes < base {
        return Value::text(&format!("{bytes:.0} Bytes"));
    }
    let mut unit = base;
    let mut prefix = 'k';
    for next in "kMGTPEZY".chars() {
        prefix = next;
        if bytes < unit * base || next == 'Y' {
            break;
        }
        unit *= base;
    }
    let prefix = if binary {
        format!("{}i", prefix.to_ascii_uppercase())
    } else {
        prefix.to_string()
    };
    Value::text(&format!("{:.1} {prefix}B", bytes / unit))
}

fn url_encode(value: &Value, args: &Args) -> Result<Value> {
    args.none("urlencode")?;
    let mut out = Builder::default();
    if matches!(value, Value::Str(_)) || !value.is_iterable() {
        quote_url(&show::str_of(value)?, false, &mut out)?;
        return Value::text(&out.finish());
    }
    let pairs = match value {
        Value::Dict(dict) => dict.entries().to_vec(),
        other => {
            let pair = |pair: Value| match pair.items()?.as_slice() {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err(Fail::error("urlencode: expected pairs")),
            };
            other
                .items()?
                .into_iter()
                .map(pair)
                .collect::<Result<_>>()?
        }
    };
    for (at, (key, value)) in pairs.iter().enumerate() {
        out.push(if at > 0 { "&" } else { "" })?;
        quote_url(&show::str_of(key)?, true, &mut out)?;
        out.push("=")?;
        quote_url(&show::str_of(value)?, true, &mut out)?;
    }
    Value::text(&out.finish())
}

fn quote_url(text: &str, query: bool, out: &mut Builder) -> Result<()> {
    budget::scan(text.len())?;
    for byte in text.bytes() {
        match byte {
            b' ' if query => out.push("+")?,
            b'/' if !query => out.push("/")?,
            b'-' | b'_' | b'.' | b'~' => out.push_char(byte.into())?,
            byte if byte.is_ascii_alphanumeric() => out.push_char(byte.into())?,
            byte => out.push(&format!("%{byte:02X}"))?,
        }
    }
    Ok(())
}

fn xml_attributes(value: &Value, args: &Args) -> Result<Value> {
    let [space] = args.bind("xmlattr", ["autospace"], 0)?;
    let Value::Dict(dict) = value else {
        return Err(Fail::error("xmlattr: expected a dict"));
    };
    let mut out = Builder::default();
    let mut first = !space.is_none_or(|space| space.is_true());
    for (key, value) in dict.entries() {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let key = strings::string("xmlattr", Some(key))?;
        if key.contains(|c: char| c.is_ascii_whitespace() || "/>=\u{b}".contains(c)) {
            return Err(Fail::error(format!(
                "xmlattr: a character that no name may have in {:?}",
                &**key
            )));
        }
        let escaped = |text: &Str| {
            if text.is_safe() {
                Ok(text.to_string())
            } else {
                show::escape(text)
            }
        };
        out.push(if first { "" } else { " " })?;
        first = false;
        out.push(&escaped(key)?)?;
        out.push("=\"")?;
        out.push(&escaped(&show::str_of(value)?)?)?;
        out.push("\"")?;
    }
    Value::text(&out.finish())
}

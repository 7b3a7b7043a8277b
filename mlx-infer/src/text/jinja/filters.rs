//! Filters: the names after `|`.

use super::attributes::{self, follow, item, path};
use super::calls::Args;
use super::interpreter::Machine;
use super::limits::{self, Builder};
use super::methods::{self, number};
use super::nodes::Binary;
use super::operators::{self, Number, index};
use super::values::{Seq, Str, Value};
use super::{Fail, Result, formats, repr, tests};

/// Filters of jinja2 that are refused by name: no chat template uses them.
const REFUSED: [&str; 12] = [
    "batch",
    "center",
    "filesizeformat",
    "forceescape",
    "pprint",
    "random",
    "slice",
    "striptags",
    "urlencode",
    "urlize",
    "wordwrap",
    "xmlattr",
];

const ON_LISTS: [&str; 20] = [
    "dictsort",
    "first",
    "groupby",
    "items",
    "join",
    "last",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "sum",
    "unique",
    "count",
    "length",
];

const ON_TEXTS: [&str; 11] = [
    "capitalize",
    "format",
    "indent",
    "lower",
    "replace",
    "title",
    "trim",
    "truncate",
    "upper",
    "wordcount",
    "string",
];

const ON_VALUES: [&str; 11] = [
    "abs", "attr", "d", "default", "e", "escape", "float", "int", "round", "safe", "tojson",
];

pub(super) fn is_known(name: &str) -> bool {
    [&ON_LISTS[..], &ON_TEXTS, &ON_VALUES, &REFUSED]
        .concat()
        .contains(&name)
}

pub(super) fn call(
    machine: &mut Machine<'_>,
    name: &str,
    value: &Value,
    args: &Args,
) -> Result<Value> {
    limits::work(1)?;
    if ON_LISTS.contains(&name) {
        return on_list(machine, name, value, args);
    }
    if ON_TEXTS.contains(&name) {
        return on_text(name, value, args);
    }
    match name {
        "abs" => {
            args.none(name)?;
            match number(name, value)? {
                Number::Int(number) => Ok(Value::Int(number.saturating_abs())),
                Number::Float(number) => Ok(Value::Float(number.abs())),
            }
        }
        "attr" => {
            let [attribute] = args.bind(name, ["name"], 1)?;
            attributes::only_attribute(value, methods::string(name, attribute.as_ref())?)
        }
        "d" | "default" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"], 0)?;
            let falsy = boolean.is_some_and(|flag| flag.is_true()) && !value.is_true();
            if value.is_undefined() || falsy {
                return default.map_or_else(|| Value::text(""), Ok);
            }
            Ok(value.clone())
        }
        "e" | "escape" => {
            args.none(name)?;
            let text = repr::str_of(value)?;
            if text.is_safe() {
                return Ok(Value::Str(text));
            }
            Str::with(repr::escape(&text)?.into(), true).map(Value::Str)
        }
        "safe" => {
            args.none(name)?;
            Str::with((*repr::str_of(value)?).into(), true).map(Value::Str)
        }
        "float" => float(value, args),
        "int" => int(value, args),
        "round" => round(value, args),
        "tojson" => repr::tojson(value, args),
        _ if REFUSED.contains(&name) => {
            Err(Fail::error(format!("the filter {name} is not supported")))
        }
        _ => Err(Fail::error(format!("no filter named {name:?}"))),
    }
}

/// `int(default=0, base=10)`: the default for values that are not integers.
fn int(value: &Value, args: &Args) -> Result<Value> {
    let [default, base] = args.bind("int", ["default", "base"], 0)?;
    let default = default.unwrap_or(Value::Int(0));
    let base = base.as_ref().map_or(Ok(10), index)?;
    let Some(base) = u32::try_from(base)
        .ok()
        .filter(|base| *base == 0 || (2..=36).contains(base))
    else {
        return Err(Fail::error(format!(
            "int: base is {base}; expected 0 or 2 to 36"
        )));
    };
    Ok(match value {
        Value::Undefined(what) => return Err(Fail::error(&**what)),
        Value::Bool(_) | Value::Int(_) => Value::Int(index(value)?),
        Value::Float(number) if number.is_nan() => default,
        Value::Float(number) => Value::Int(repr::whole(*number)?),
        Value::Str(text) => {
            limits::scan(text.len())?;
            if let Some(whole) = repr::parse_int(text, base)? {
                return Ok(Value::Int(whole));
            }
            match repr::parse_float(text).filter(|number| number.is_finite()) {
                Some(number) => Value::Int(repr::whole(number)?),
                None => default,
            }
        }
        _ => default,
    })
}

/// `float(default=0.0)`.
fn float(value: &Value, args: &Args) -> Result<Value> {
    let [default] = args.bind("float", ["default"], 0)?;
    let default = default.unwrap_or(Value::Float(0.0));
    Ok(match value {
        Value::Undefined(what) => return Err(Fail::error(&**what)),
        Value::Str(text) => {
            limits::scan(text.len())?;
            repr::parse_float(text).map_or(default, Value::Float)
        }
        other => Number::of(other).map_or(default, |number| Value::Float(number.as_f64())),
    })
}

/// `round(precision=0, method='common')`.
fn round(value: &Value, args: &Args) -> Result<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"], 0)?;
    let precision = precision.unwrap_or(Value::Int(0));
    let method = method.map_or_else(|| Str::new("common"), |method| repr::str_of(&method))?;
    let number = number("round", value)?;
    match (&*method, number) {
        ("common", Number::Int(number)) => {
            let digits = index(&precision)?;
            Ok(Value::Int(repr::round_int(number, digits)))
        }
        ("common", Number::Float(number)) => {
            Ok(Value::Float(repr::round(number, index(&precision)?)))
        }
        ("ceil" | "floor", _) => {
            let scale = operators::binary(Binary::Power, &Value::Int(10), &precision)?;
            let scaled = operators::binary(Binary::Multiply, value, &scale)?;
            let scaled = Number::of(&scaled).map_or(f64::NAN, Number::as_f64);
            let whole = if &*method == "ceil" {
                scaled.ceil()
            } else {
                scaled.floor()
            };
            let whole = Value::Int(repr::whole(whole)?);
            operators::binary(Binary::Divide, &whole, &scale)
        }
        _ => Err(Fail::error("round: method must be common, ceil or floor")),
    }
}

fn on_list(machine: &mut Machine<'_>, name: &str, value: &Value, args: &Args) -> Result<Value> {
    match name {
        "count" | "length" => {
            args.none(name)?;
            limits::scan(value.as_str().map_or(0, str::len))?;
            match value.len() {
                Some(count) => Ok(Value::Int(count as i128)),
                None => Err(Fail::error(format!(
                    "a value of type {} has no length",
                    value.type_name()
                ))),
            }
        }
        "first" => {
            args.none(name)?;
            first(value)
        }
        "last" => {
            args.none(name)?;
            if matches!(value, Value::Iter(_)) {
                return Err(Fail::error("last: a generator cannot be reversed"));
            }
            last(value)
        }
        "list" => {
            args.none(name)?;
            Value::list(value.items()?)
        }
        "items" => {
            args.none(name)?;
            Value::generator(|items| {
                match value {
                    Value::Undefined(_) => {}
                    Value::Dict(dict) => {
                        let view =
                            Value::View(super::values::View::Items, std::rc::Rc::clone(dict));
                        *items = view.items()?;
                    }
                    other => {
                        return Err(Fail::error(format!(
                            "items: expected a mapping, found {}",
                            other.type_name()
                        )));
                    }
                }
                Ok(())
            })
        }
        "reverse" => {
            args.none(name)?;
            if let Value::Str(text) = value {
                limits::scan(text.len())?;
                let reversed: String = text.chars().rev().collect();
                return Str::with(reversed.into(), text.is_safe()).map(Value::Str);
            }
            let mut items = value.items()?;
            items.reverse();
            Value::iter(items)
        }
        "join" => join(value, args),
        "sort" => sort(value, args),
        "dictsort" => dictsort(value, args),
        "unique" => unique(value, args),
        "min" | "max" => extreme(name, value, args),
        "sum" => sum(value, args),
        "groupby" => group_by(value, args),
        "map" => map(machine, value, args),
        _ => select(machine, name, value, args),
    }
}

fn first(value: &Value) -> Result<Value> {
    let found = match value {
        Value::List(items) | Value::Tuple(items) => items.first().cloned(),
        Value::Str(_) => Some(item(value, &Value::Int(0))?).filter(|found| !found.is_undefined()),
        Value::Iter(iter) => {
            limits::work(1)?;
            iter.take()?
        }
        other => other.items()?.into_iter().next(),
    };
    Ok(found.unwrap_or_else(|| Value::undefined("no first item: the sequence is empty")))
}

fn last(value: &Value) -> Result<Value> {
    let found = match value {
        Value::List(items) | Value::Tuple(items) => items.last().cloned(),
        Value::Str(_) => Some(item(value, &Value::Int(-1))?).filter(|found| !found.is_undefined()),
        other => other.items()?.pop(),
    };
    Ok(found.unwrap_or_else(|| Value::undefined("no last item: the sequence is empty")))
}

/// `join(d='', attribute=none)`.
fn join(value: &Value, args: &Args) -> Result<Value> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"], 0)?;
    let separator = separator.map_or_else(|| Str::new(""), |separator| repr::str_of(&separator))?;
    let path = path(&attribute.unwrap_or(Value::None))?;
    let mut out = Builder::default();
    for (at, item) in value.items()?.iter().enumerate() {
        out.push(if at > 0 { &separator } else { "" })?;
        out.push(&repr::str_of(&follow(item, &path, None)?)?)?;
    }
    Value::text(&out.finish())
}

/// The value that is compared: texts in lower case, unless `case_sensitive`.
fn folded(value: Value, case_sensitive: &Option<Value>) -> Result<Value> {
    if case_sensitive.as_ref().is_some_and(Value::is_true) {
        return Ok(value);
    }
    match &value {
        Value::Str(text) => Value::text(&methods::cased(text, "lower")?),
        _ => Ok(value),
    }
}

/// `sort(reverse=false, case_sensitive=false, attribute=none)`; the attribute may be several with commas.
fn sort(value: &Value, args: &Args) -> Result<Value> {
    let [reverse, case, attribute] =
        args.bind("sort", ["reverse", "case_sensitive", "attribute"], 0)?;
    let paths: Vec<Vec<Value>> = match &attribute {
        Some(Value::Str(names)) => names
            .split(',')
            .map(|name| path(&Value::text(name)?))
            .collect::<Result<_>>()?,
        Some(other) => vec![path(other)?],
        None => vec![Vec::new()],
    };
    let mut keyed = Vec::new();
    for item in value.items()? {
        let key = |path: &Vec<Value>| folded(follow(&item, path, None)?, &case);
        let keys: Vec<Value> = paths.iter().map(key).collect::<Result<_>>()?;
        keyed.push((Value::list(keys)?, item));
    }
    Value::list(operators::sort(
        keyed,
        reverse.is_some_and(|flag| flag.is_true()),
    )?)
}

/// `dictsort(case_sensitive=false, by='key', reverse=false)`.
fn dictsort(value: &Value, args: &Args) -> Result<Value> {
    let [case, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let by_value = match by.as_ref().map(|by| by.as_str()) {
        None | Some(Some("key")) => false,
        Some(Some("value")) => true,
        Some(_) => return Err(Fail::error("dictsort: by must be \"key\" or \"value\"")),
    };
    let dict = match value {
        Value::Dict(dict) => dict,
        Value::Undefined(what) => return Err(Fail::error(&**what)),
        other => {
            return Err(Fail::error(format!(
                "dictsort: expected a dict, found {}",
                other.type_name()
            )));
        }
    };
    let mut keyed = Vec::new();
    for (key, value) in dict.entries() {
        let by = if by_value { value } else { key };
        let pair = Value::tuple(vec![key.clone(), value.clone()])?;
        keyed.push((folded(by.clone(), &case)?, pair));
    }
    Value::list(operators::sort(
        keyed,
        reverse.is_some_and(|flag| flag.is_true()),
    )?)
}

/// `unique(case_sensitive=false, attribute=none)`.
fn unique(value: &Value, args: &Args) -> Result<Value> {
    let [case, attribute] = args.bind("unique", ["case_sensitive", "attribute"], 0)?;
    let path = path(&attribute.unwrap_or(Value::None))?;
    let mut seen = std::collections::HashSet::new();
    Value::generator(|kept| {
        for item in value.items()? {
            let key = folded(follow(&item, &path, None)?, &case)?;
            if seen.insert(super::values::Key::of(&key)?) {
                kept.push(item);
            }
        }
        Ok(())
    })
}

/// `min` and `max` `(case_sensitive=false, attribute=none)`.
fn extreme(name: &str, value: &Value, args: &Args) -> Result<Value> {
    let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
    let path = path(&attribute.unwrap_or(Value::None))?;
    let mut best: Option<(Value, Value)> = None;
    for item in value.items()? {
        let key = folded(follow(&item, &path, None)?, &case)?;
        let operator = if name == "min" { "<" } else { ">" };
        let better = match &best {
            Some((found, _)) => operators::ordered(&key, found, operator)?,
            None => true,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(
        || Value::undefined("no item: the sequence is empty"),
        |(_, item)| item,
    ))
}

/// `sum(attribute=none, start=0)`.
fn sum(value: &Value, args: &Args) -> Result<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"], 0)?;
    let path = path(&attribute.unwrap_or(Value::None))?;
    let mut total = start.unwrap_or(Value::Int(0));
    if matches!(total, Value::Str(_)) {
        return Err(Fail::error("sum cannot sum strings: use join"));
    }
    for item in value.items()? {
        total = operators::binary(Binary::Add, &total, &follow(&item, &path, None)?)?;
    }
    Ok(total)
}

/// `groupby(attribute, default=none, case_sensitive=false)`.
fn group_by(value: &Value, args: &Args) -> Result<Value> {
    let [attribute, default, case] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let path = path(&attribute.unwrap_or(Value::None))?;
    let default = default.filter(|default| !matches!(default, Value::None));
    let mut keyed = Vec::new();
    for item in value.items()? {
        let own = follow(&item, &path, default.as_ref())?;
        let key = folded(own.clone(), &case)?;
        keyed.push((key.clone(), (key, own, item)));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for (key, own, item) in operators::sort(keyed, false)? {
        match groups.last_mut() {
            Some((found, _, items)) if operators::equal(found, &key)? => items.push(item),
            _ => groups.push((key, own, vec![item])),
        }
    }
    let group = |(_, own, items)| {
        Ok(Value::Tuple(Seq::with(
            vec![own, Value::list(items)?],
            true,
        )?))
    };
    Value::list(groups.into_iter().map(group).collect::<Result<_>>()?)
}

/// `map(attribute=.., default=..)` or `map(filter, arguments)`.
fn map(machine: &mut Machine<'_>, value: &Value, args: &Args) -> Result<Value> {
    let is_attribute =
        args.positional.is_empty() && args.named.iter().any(|(name, _)| &**name == "attribute");
    Value::generator(|mapped| {
        if !value.is_true() {
            return Ok(());
        }
        if is_attribute {
            let [attribute, default] = args.bind("map", ["attribute", "default"], 0)?;
            let path = path(&attribute.unwrap_or(Value::None))?;
            let default = default.filter(|default| !matches!(default, Value::None));
            for item in value.items()? {
                limits::work(1)?;
                mapped.push(follow(&item, &path, default.as_ref())?);
            }
            return Ok(());
        }
        let mut inner = args.clone();
        if inner.positional.is_empty() {
            return Err(Fail::error("map needs a filter or an attribute"));
        }
        let name = inner.positional.remove(0);
        let name = methods::string("map", Some(&name))?;
        for item in value.items()? {
            mapped.push(machine.deeper(|it| call(it, name, &item, &inner))?);
        }
        Ok(())
    })
}

/// `select`, `reject`, `selectattr` and `rejectattr`.
fn select(machine: &mut Machine<'_>, filter: &str, value: &Value, args: &Args) -> Result<Value> {
    Value::generator(|kept| {
        if !value.is_true() {
            return Ok(());
        }
        let mut inner = args.clone();
        let mut take = || (!inner.positional.is_empty()).then(|| inner.positional.remove(0));
        let path = if filter.ends_with("attr") {
            match take() {
                Some(attribute) => path(&attribute)?,
                None => return Err(Fail::error(format!("{filter} needs an attribute"))),
            }
        } else {
            Vec::new()
        };
        let test = take();
        let rejects = filter.starts_with("reject");
        for item in value.items()? {
            limits::work(1)?;
            let tested = follow(&item, &path, None)?;
            let passes = match &test {
                Some(test) => {
                    let test = methods::string(filter, Some(test))?;
                    machine.deeper(|_| tests::call(test, &tested, &inner))?
                }
                None => tested.is_true(),
            };
            if passes != rejects {
                kept.push(item);
            }
        }
        Ok(())
    })
}

fn on_text(name: &str, value: &Value, args: &Args) -> Result<Value> {
    match name {
        "string" => {
            args.none(name)?;
            return repr::str_of(value).map(Value::Str);
        }
        "indent" => return indent(methods::string(name, Some(value))?, args),
        "truncate" => return truncate(value, args),
        _ => {}
    }
    let text = repr::str_of(value)?;
    let done = |made: String| Str::with(made.into(), text.is_safe()).map(Value::Str);
    match name {
        "capitalize" | "lower" | "upper" => {
            args.none(name)?;
            done(methods::cased(&text, name)?)
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
                .map(|chars| methods::string(name, Some(chars)))
                .transpose()?;
            limits::scan(text.len())?;
            done(methods::strip(&text, chars.map(|chars| &**chars), "strip")?)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            let count = match count {
                None | Some(Value::None) => -1,
                Some(count) => index(&count)?,
            };
            let replaced =
                methods::replace(&text, &repr::str_of(&old)?, &repr::str_of(&new)?, count)?;
            Value::text(&replaced)
        }
        "format" => {
            if !args.positional.is_empty() && !args.named.is_empty() {
                return Err(Fail::error(
                    "format: positional and named arguments at once",
                ));
            }
            if args.named.is_empty() {
                return formats::percent(&text, &Value::tuple(args.positional.clone())?);
            }
            let pair = |(name, value): &(std::sync::Arc<str>, Value)| {
                Ok((Value::text(name)?, value.clone()))
            };
            let pairs: Vec<_> = args.named.iter().map(pair).collect::<Result<_>>()?;
            formats::percent(&text, &Value::Dict(super::values::Dict::new(pairs)?))
        }
        _ => {
            args.none(name)?;
            limits::scan(text.len())?;
            let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
            Ok(Value::Int(
                words.filter(|word| !word.is_empty()).count() as i128
            ))
        }
    }
}

/// A capital after white space, `-` and opening brackets.
fn title(text: &str) -> Result<String> {
    limits::scan(text.len())?;
    let breaks = |c: char| repr::is_space(c) || "-({[<".contains(c);
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
        Some(width) => " ".repeat(methods::width(&width)?),
    };
    let is_true = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank) = (is_true(first), is_true(blank));
    limits::scan(text.len())?;
    let mut out = Builder::default();
    // jinja2 adds a line end before it splits, so that the last line counts.
    let with_end = format!("{}\n", &**text);
    for (at, line) in methods::lines(&with_end, false).into_iter().enumerate() {
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
            limits::scan(text.len())?;
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
    let end = end.map_or_else(|| Str::new("..."), |end| repr::str_of(&end))?;
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
    let text = methods::string("truncate", Some(value))?;
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

//! Filters on lists and other iterable values.

use super::ast::Binary;
use super::attributes::{follow, item, path};
use super::budget::{self, Builder};
use super::calls::Args;
use super::compare;
use super::machine::Machine;
use super::value::{Seq, Str, Value};
use super::{Fail, Result, arithmetic, checks, filters, show, strings};

pub(super) fn call(
    machine: &mut Machine<'_>,
    name: &str,
    value: &Value,
    args: &Args,
) -> Result<Value> {
    match name {
        "count" | "length" => {
            args.none(name)?;
            budget::scan(value.as_str().map_or(0, str::len))?;
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
                        let view = Value::View(super::value::View::Items, std::rc::Rc::clone(dict));
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
                budget::scan(text.len())?;
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
            budget::work(1)?;
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
    let separator = separator.map_or_else(|| Str::new(""), |separator| show::str_of(&separator))?;
    let path = path(&attribute.unwrap_or(Value::None))?;
    let mut out = Builder::default();
    for (at, item) in value.items()?.iter().enumerate() {
        out.push(if at > 0 { &separator } else { "" })?;
        out.push(&show::str_of(&follow(item, &path, None)?)?)?;
    }
    Value::text(&out.finish())
}

/// The value that is compared: texts in lower case, unless `case_sensitive`.
fn folded(value: Value, case_sensitive: &Option<Value>) -> Result<Value> {
    if case_sensitive.as_ref().is_some_and(Value::is_true) {
        return Ok(value);
    }
    match &value {
        Value::Str(text) => Value::text(&strings::cased(text, "lower")?),
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
    Value::list(compare::sort(
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
    Value::list(compare::sort(
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
            if seen.insert(super::dict::Key::of(&key)?) {
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
            Some((found, _)) => compare::ordered(&key, found, operator)?,
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
        total = arithmetic::binary(Binary::Add, &total, &follow(&item, &path, None)?)?;
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
    for (key, own, item) in compare::sort(keyed, false)? {
        match groups.last_mut() {
            Some((found, _, items)) if compare::equal(found, &key)? => items.push(item),
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
                budget::work(1)?;
                mapped.push(follow(&item, &path, default.as_ref())?);
            }
            return Ok(());
        }
        let mut inner = args.clone();
        if inner.positional.is_empty() {
            return Err(Fail::error("map needs a filter or an attribute"));
        }
        let name = inner.positional.remove(0);
        let name = strings::string("map", Some(&name))?;
        for item in value.items()? {
            mapped.push(machine.deeper(|it| filters::call(it, name, &item, &inner))?);
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
            budget::work(1)?;
            let tested = follow(&item, &path, None)?;
            let passes = match &test {
                Some(test) => {
                    let test = strings::string(filter, Some(test))?;
                    machine.deeper(|_| checks::call(test, &tested, &inner))?
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

//! Calls: functions, macros, methods, and the binding of arguments to parameters.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::interpreter::Machine;
use super::scope::Scope;
use super::values::{Dict, Function, Loop, Object, Range, Seq, Str, Value, depth_above};
use super::{Fail, Now, Result, limits, methods, operators, repr};

/// The limit of jinja2's sandbox.
const MAX_RANGE: usize = 100_000;
const MAX_NAMESPACES: usize = 10_000;

pub(super) const FUNCTIONS: [(&str, Function); 8] = [
    ("range", Function::Range),
    ("dict", Function::Dict),
    ("namespace", Function::Namespace),
    ("cycler", Function::Cycler),
    ("joiner", Function::Joiner),
    ("raise_exception", Function::RaiseException),
    ("strftime_now", Function::StrftimeNow),
    ("lipsum", Function::Lipsum),
];

/// The arguments of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Args {
    /// The value for each parameter. The first `required` ones must be given.
    pub(super) fn bind<const N: usize>(
        &self,
        function: &str,
        parameters: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            return Err(Fail::error(format!(
                "{function} takes at most {N} arguments, given {}",
                self.positional.len()
            )));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(&self.positional) {
            *slot = Some(value.clone());
        }
        for (name, value) in &self.named {
            let at = parameters
                .iter()
                .position(|parameter| *parameter == &**name);
            match at {
                Some(at) if bound[at].is_none() => bound[at] = Some(value.clone()),
                Some(_) => {
                    return Err(Fail::error(format!(
                        "{function}: several values for {name}"
                    )));
                }
                None => return Err(Fail::error(format!("{function} has no parameter {name}"))),
            }
        }
        match bound[..required].iter().position(Option::is_none) {
            Some(at) => Err(Fail::error(format!("{function} needs {}", parameters[at]))),
            None => Ok(bound),
        }
    }

    /// Refuses any argument.
    pub(super) fn none(&self, function: &str) -> Result<()> {
        self.bind(function, [], 0).map(drop)
    }
}

/// Sets an attribute of a namespace.
pub(super) fn set_attribute(
    attributes: &mut Vec<(Str, Value)>,
    name: &Str,
    value: Value,
) -> Result<()> {
    if name.starts_with('_') {
        return Err(Fail::error(format!(
            "a namespace cannot have an attribute that begins with an underscore, as {} does",
            &**name
        )));
    }
    depth_above(std::iter::once(&value))?;
    limits::work(1 + attributes.len() as u64 / 8)?;
    match attributes.iter_mut().find(|(found, _)| **found == **name) {
        Some((_, slot)) => *slot = value,
        None => {
            limits::items(attributes.len())?;
            attributes.push((name.clone(), value));
        }
    }
    Ok(())
}

impl<'t> Machine<'t> {
    pub(super) fn call(&mut self, callee: &Value, args: Args) -> Result<Value> {
        let object = match callee {
            Value::Undefined(what) => return Err(Fail::error(&**what)),
            Value::Object(object) => Rc::clone(object),
            other => return Err(not_callable(other)),
        };
        match &*object {
            Object::Function(function) => self.function(*function, &args),
            Object::Macro(bound) => self.call_macro(bound.at, &bound.scope, args),
            Object::Method(of, name) => methods::call(self, of, name, &args),
            Object::Loop(state) => self.recurse(state, &args),
            Object::Joiner(separator, used) => {
                args.none("joiner")?;
                Ok(Value::Str(if used.replace(true) {
                    separator.clone()
                } else {
                    Str::new("")?
                }))
            }
            Object::Namespace(_) | Object::Cycler(..) => Err(not_callable(callee)),
        }
    }

    fn recurse(&mut self, state: &Loop, args: &Args) -> Result<Value> {
        let [items] = args.bind("loop", ["iterable"], 1)?;
        let scope = state
            .recursive
            .as_ref()
            .map(|(at, scope)| (*at, scope.upgrade()));
        let Some((at, Some(scope))) = scope else {
            return Err(Fail::error(
                "a loop that is called must be marked recursive",
            ));
        };
        let depth = state.depth + 1;
        let (text, _) = self.called(|it| it.capture(|it| it.for_loop(at, items, depth, &scope)))?;
        Ok(Value::Str(text))
    }

    fn call_macro(&mut self, at: usize, scope: &Weak<Scope>, mut args: Args) -> Result<Value> {
        let template = self.template;
        let definition = &template.macros[at];
        let name = definition
            .name
            .map_or("caller", |name| &template.names[name]);
        // A macro that outlives the block of its definition sees the variables of the whole template.
        let scope = scope.upgrade().unwrap_or_else(|| Rc::clone(&self.root));
        let inner = Scope::inside(&scope);
        let [uses_list, uses_dict, uses_caller] = definition.uses;
        let find = |sought: &str| template.names.iter().position(|name| name == sought);
        let rest = args
            .positional
            .split_off(args.positional.len().min(definition.parameters.len()));
        let given = args.positional.len();
        for (parameter, value) in definition.parameters.iter().zip(args.positional.drain(..)) {
            inner.set(*parameter, value);
        }
        let first_default = definition.parameters.len() - definition.defaults.len();
        let mut missing = Vec::new();
        for (place, parameter) in definition.parameters.iter().enumerate().skip(given) {
            let parameter_name = &template.names[*parameter];
            match args
                .named
                .iter()
                .position(|(found, _)| **found == **parameter_name)
            {
                Some(found) => inner.set(*parameter, args.named.remove(found).1),
                None => {
                    let what = format!("parameter '{parameter_name}' was not provided");
                    inner.set(*parameter, Value::undefined(what));
                    missing.push((place, *parameter));
                }
            }
        }
        for (place, parameter) in missing {
            if place >= first_default {
                let default = &definition.defaults[place - first_default];
                let value = self.evaluate(default, &inner)?;
                inner.set(parameter, value);
            }
        }
        let has_parameter =
            |name: Option<usize>| name.is_some_and(|name| definition.parameters.contains(&name));
        let caller = find("caller");
        if uses_caller && !has_parameter(caller) {
            let found = args
                .named
                .iter()
                .position(|(found, _)| &**found == "caller");
            let value = match found {
                Some(found) => args.named.remove(found).1,
                None => Value::undefined("no caller defined"),
            };
            if let Some(caller) = caller {
                inner.set(caller, value);
            }
        }
        if uses_dict {
            let pair = |(name, value): (Arc<str>, Value)| Ok((Value::text(&name)?, value));
            let pairs: Vec<_> = args.named.drain(..).map(pair).collect::<Result<_>>()?;
            if let Some(kwargs) = find("kwargs") {
                inner.set(kwargs, Value::Dict(Dict::new(pairs)?));
            }
        } else if let Some((unknown, _)) = args.named.first() {
            return Err(Fail::error(format!(
                "macro {name} has no parameter {unknown}"
            )));
        }
        if uses_list {
            if let Some(varargs) = find("varargs") {
                inner.set(varargs, Value::tuple(rest)?);
            }
        } else if !rest.is_empty() {
            return Err(Fail::error(format!(
                "macro {name} takes at most {} arguments",
                definition.parameters.len()
            )));
        }
        let body = &definition.body;
        let (text, _) = self.called(|it| it.capture(|it| it.body(body, &inner)))?;
        Ok(Value::Str(text))
    }

    fn function(&mut self, function: Function, args: &Args) -> Result<Value> {
        match function {
            Function::Range => range(args),
            Function::Dict => Ok(Value::Dict(dict(args)?)),
            Function::Namespace => {
                let mut attributes = Vec::new();
                for (key, value) in dict(args)?.entries() {
                    let Value::Str(key) = key else {
                        return Err(Fail::error("namespace: names must be strings"));
                    };
                    set_attribute(&mut attributes, key, value.clone())?;
                }
                if self.namespaces.len() >= MAX_NAMESPACES {
                    return Err(Fail::Limit(format!(
                        "makes more than {MAX_NAMESPACES} namespaces"
                    )));
                }
                let object = Rc::new(Object::Namespace(RefCell::new(attributes)));
                self.namespaces.push(Rc::downgrade(&object));
                Ok(Value::Object(object))
            }
            Function::Cycler => {
                if args.positional.is_empty() || !args.named.is_empty() {
                    return Err(Fail::error("cycler needs at least one item"));
                }
                let items = Seq::new(args.positional.clone())?;
                Ok(Value::object(Object::Cycler(items, Cell::new(0))))
            }
            Function::Joiner => {
                let [separator] = args.bind("joiner", ["sep"], 0)?;
                let separator = match separator {
                    Some(separator) => repr::str_of(&separator)?,
                    None => Str::new(", ")?,
                };
                Ok(Value::object(Object::Joiner(separator, Cell::new(false))))
            }
            Function::RaiseException => {
                let [message] = args.bind("raise_exception", ["message"], 1)?;
                let message = repr::str_of(&message.unwrap_or(Value::None))?;
                Err(Fail::Raised(message.to_string()))
            }
            Function::StrftimeNow => self.strftime_now(args),
            Function::Lipsum => Err(Fail::error("lipsum is not supported: its text is random")),
        }
    }

    fn strftime_now(&self, args: &Args) -> Result<Value> {
        let [format] = args.bind("strftime_now", ["format"], 1)?;
        let format = format.unwrap_or(Value::None);
        let Some(format) = format.as_str() else {
            return Err(Fail::error("strftime_now: the format must be a string"));
        };
        limits::scan(format.len())?;
        let mut digits = 0;
        for c in format.chars() {
            digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
            if digits > 3 {
                return Err(Fail::error(
                    "strftime_now: a number of more than 3 digits in the format",
                ));
            }
        }
        limits::text(format.len().saturating_mul(64))?;
        Value::text(&formatted(self.now, format)?)
    }
}

/// The time by a format of `strftime`.
#[cfg(feature = "clock")]
fn formatted(now: Option<Now>, format: &str) -> Result<String> {
    let now = now.unwrap_or_else(|| jiff::Zoned::now().datetime());
    jiff::fmt::strtime::format(format, now)
        .map_err(|error| Fail::error(format!("strftime_now({format:?}): {error}")))
}

#[cfg(not(feature = "clock"))]
fn formatted(_now: Option<Now>, format: &str) -> Result<String> {
    Err(Fail::error(format!(
        "strftime_now({format:?}): the time needs the feature `clock` of mlx-infer"
    )))
}

fn not_callable(value: &Value) -> Fail {
    Fail::error(format!(
        "a value of type {} cannot be called",
        value.type_name()
    ))
}

fn range(args: &Args) -> Result<Value> {
    if !args.named.is_empty() {
        return Err(Fail::error("range has no named arguments"));
    }
    let bounds: Vec<i128> = args
        .positional
        .iter()
        .map(operators::index)
        .collect::<Result<_>>()?;
    let range = match bounds.as_slice() {
        [stop] => Range {
            start: 0,
            stop: *stop,
            step: 1,
        },
        [start, stop] => Range {
            start: *start,
            stop: *stop,
            step: 1,
        },
        [_, _, 0] => return Err(Fail::error("range: the step must not be 0")),
        [start, stop, step] => Range {
            start: *start,
            stop: *stop,
            step: *step,
        },
        _ => return Err(Fail::error("range takes 1 to 3 numbers")),
    };
    if range.len() > MAX_RANGE {
        return Err(Fail::error(format!(
            "range of more than {MAX_RANGE} numbers"
        )));
    }
    Ok(Value::Range(range))
}

/// `dict(mapping or pairs, **more)`.
fn dict(args: &Args) -> Result<Rc<Dict>> {
    let mut pairs = Vec::new();
    match args.positional.as_slice() {
        [] => {}
        [Value::Dict(from)] => {
            limits::work(from.entries().len() as u64)?;
            pairs.extend(from.entries().iter().cloned());
        }
        [from] => {
            for pair in from.items()? {
                let mut pair = pair.items()?.into_iter();
                match (pair.next(), pair.next(), pair.next()) {
                    (Some(key), Some(value), None) => pairs.push((key, value)),
                    _ => return Err(Fail::error("dict: expected pairs")),
                }
            }
        }
        _ => return Err(Fail::error("dict takes at most one positional argument")),
    }
    for (name, value) in &args.named {
        pairs.push((Value::text(name)?, value.clone()));
    }
    Dict::new(pairs)
}

//! The interpreter: statements and expressions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::calls::{self, Args};
use super::limits::{self, Builder};
use super::nodes::{
    Arguments, Body, Comparison, Expr, ExprKind, NameId, Parsed, Statement, StatementKind, Target,
};
use super::scope::Scope;
use super::values::{BoundMacro, Dict, Function, Loop, Object, Seq, Str, Value};
use super::{Fail, Now, Result, attributes, filters, operators, repr, tests};

/// The deepest nesting of calls, blocks and expressions.
const MAX_DEPTH: u32 = 4_000;
/// The deepest nesting of calls of macros and recursive loops.
const MAX_CALLS: u32 = 400;

pub(super) struct Machine<'t> {
    pub(super) template: &'t Parsed,
    pub(super) texts: Vec<Str>,
    /// The value of each name that the input or the language defines.
    globals: Vec<Option<Value>>,
    pub(super) root: Rc<Scope>,
    /// The output, followed by the outputs that are being captured.
    outputs: Vec<Builder>,
    pub(super) autoescape: bool,
    pub(super) now: Option<Now>,
    pub(super) namespaces: Vec<Weak<Object>>,
    depth: u32,
    pub(super) calls: u32,
    line: u32,
}

/// How a statement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

pub(super) fn render(
    template: &Parsed,
    variables: &Map<String, Json>,
    now: Option<Now>,
) -> Result<String> {
    let (values, bytes) = variables.values().map(size).fold((0, 0), add);
    limits::start(values, bytes);
    let mut globals: HashMap<&str, Value> = calls::FUNCTIONS
        .into_iter()
        .map(|(name, function): (_, Function)| (name, Value::object(Object::Function(function))))
        .collect();
    for (name, value) in variables {
        globals.insert(name, of_json(value)?);
    }
    let text = |text: &String| Str::new(text.as_str());
    let mut machine = Machine {
        template,
        texts: template.texts.iter().map(text).collect::<Result<_>>()?,
        globals: template
            .names
            .iter()
            .map(|name| globals.remove(name.as_str()))
            .collect(),
        root: Rc::default(),
        outputs: vec![Builder::default()],
        autoescape: false,
        now,
        namespaces: Vec::new(),
        depth: 0,
        calls: 0,
        line: 1,
    };
    // Values that the template makes are counted in addition to its input.
    limits::start(values, bytes);
    let root = Rc::clone(&machine.root);
    let done = machine.body(&template.body, &root);
    // A namespace may contain itself.
    for namespace in machine
        .namespaces
        .drain(..)
        .filter_map(|weak| weak.upgrade())
    {
        if let Object::Namespace(attributes) = &*namespace {
            attributes.take();
        }
    }
    match done {
        Ok(_) => Ok(machine.outputs.pop().unwrap_or_default().finish()),
        Err(Fail::Error(message, None)) => Err(Fail::at(machine.line, message)),
        Err(fail) => Err(fail),
    }
}

fn add((values, bytes): (u64, usize), more: (u64, usize)) -> (u64, usize) {
    (values + more.0, bytes + more.1)
}

/// The number of values, and of bytes of text.
fn size(json: &Json) -> (u64, usize) {
    match json {
        Json::String(text) => (1, text.len()),
        Json::Array(items) => items.iter().map(size).fold((1, 0), add),
        Json::Object(map) => map
            .iter()
            .map(|(key, value)| add(size(value), (0, key.len())))
            .fold((1, 0), add),
        _ => (1, 0),
    }
}

fn of_json(json: &Json) -> Result<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => Value::Int(number.into()),
            (None, Some(number), _) => Value::Int(number.into()),
            (None, None, number) => Value::Float(number.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::text(text)?,
        Json::Array(items) => Value::list(items.iter().map(of_json).collect::<Result<_>>()?)?,
        Json::Object(map) => {
            let pair = |(key, value): (&String, &Json)| Ok((Value::text(key)?, of_json(value)?));
            Value::Dict(Dict::new(
                map.iter().map(pair).collect::<Result<Vec<_>>>()?,
            )?)
        }
    })
}

impl<'t> Machine<'t> {
    /// Runs `work` one level deeper.
    pub(super) fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Fail::Limit(format!("nests more than {MAX_DEPTH} deep")));
        }
        let done = work(self);
        // A generator's error does not end the rendering, so the depth is restored after an error
        // too.
        self.depth -= 1;
        done
    }

    /// Calls a part of the template.
    pub(super) fn called<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.calls += 1;
        if self.calls > MAX_CALLS {
            return Err(Fail::Limit(format!(
                "calls macros more than {MAX_CALLS} deep"
            )));
        }
        let done = work(self)?;
        self.calls -= 1;
        Ok(done)
    }

    /// Returns the output of `work`.
    pub(super) fn capture(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Flow>,
    ) -> Result<(Str, Flow)> {
        self.outputs.push(Builder::default());
        let flow = work(self)?;
        let text = self.outputs.pop().unwrap_or_default().finish();
        Ok((Str::with(text.into(), self.autoescape)?, flow))
    }

    pub(super) fn write(&mut self, text: &str) -> Result<()> {
        match self.outputs.last_mut() {
            Some(output) => output.push(text),
            None => Ok(()),
        }
    }

    fn print(&mut self, value: &Value) -> Result<()> {
        let text = repr::str_of(value)?;
        if self.autoescape && !text.is_safe() {
            let escaped = repr::escape(&text)?;
            return self.write(&escaped);
        }
        self.write(&text)
    }

    pub(super) fn body(&mut self, body: &'t Body, scope: &Rc<Scope>) -> Result<Flow> {
        for statement in body {
            let flow = self.statement(statement, scope)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &'t Statement, scope: &Rc<Scope>) -> Result<Flow> {
        limits::work(1)?;
        self.line = statement.line;
        match &statement.kind {
            StatementKind::Data(text) => self.write(text)?,
            StatementKind::Output(value) => {
                let value = self.evaluate(value, scope)?;
                self.print(&value)?;
            }
            StatementKind::For(at) => return self.deeper(|it| it.for_loop(*at, None, 0, scope)),
            StatementKind::If(branches, otherwise) => {
                for (test, body) in branches {
                    if self.evaluate(test, scope)?.is_true() {
                        return self.deeper(|it| it.body(body, scope));
                    }
                }
                return self.deeper(|it| it.body(otherwise, scope));
            }
            StatementKind::Set(target, value) => {
                let value = self.evaluate(value, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::SetBlock(target, filter, body) => {
                let inner = Scope::inside(scope);
                let (text, flow) = self.capture(|it| it.deeper(|it| it.body(body, &inner)))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let mut value = Value::Str(text);
                if let Some(filter) = filter {
                    value = self.filter_block(filter, value, scope)?;
                }
                self.assign(target, value, scope)?;
            }
            StatementKind::With(assignments, body) => {
                let inner = Scope::inside(scope);
                for (target, value) in assignments {
                    let value = self.evaluate(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.deeper(|it| it.body(body, &inner));
            }
            StatementKind::Filter(filter, body) => {
                let inner = Scope::inside(scope);
                let (text, flow) = self.capture(|it| it.deeper(|it| it.body(body, &inner)))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let value = self.filter_block(filter, Value::Str(text), scope)?;
                self.print(&value)?;
            }
            StatementKind::Macro(at) => {
                let value = self.bind_macro(*at, scope)?;
                if let Some(name) = self.template.macros[*at].name {
                    scope.set(name, value);
                }
            }
            StatementKind::CallBlock(call, caller) => {
                let caller = self.bind_macro(*caller, scope)?;
                let value = self.call_with(call, Some(caller), scope)?;
                self.print(&value)?;
            }
            StatementKind::Scope(body) => {
                let inner = Scope::inside(scope);
                return self.deeper(|it| it.body(body, &inner));
            }
            StatementKind::Autoescape(value, body) => {
                let value = self.evaluate(value, scope)?.is_true();
                let before = std::mem::replace(&mut self.autoescape, value);
                let inner = Scope::inside(scope);
                let flow = self.deeper(|it| it.body(body, &inner))?;
                self.autoescape = before;
                return Ok(flow);
            }
            StatementKind::Other(tag) => {
                return Err(Fail::error(format!("there is no other template to {tag}")));
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// A macro whose body can read this scope.
    fn bind_macro(&self, at: usize, scope: &Rc<Scope>) -> Result<Value> {
        let definition = &self.template.macros[at];
        let name = |name: NameId| Str::new(self.template.names[name].as_str());
        let parameter = |parameter: &NameId| name(*parameter).map(Value::Str);
        let parameters = definition.parameters.iter().map(parameter);
        Ok(Value::object(Object::Macro(BoundMacro {
            at,
            scope: Rc::downgrade(scope),
            name: definition.name.map(name).transpose()?,
            parameters: Seq::new(parameters.collect::<Result<_>>()?)?,
            uses: definition.uses,
        })))
    }

    /// The value of a name; undefined if nothing defines it.
    pub(super) fn lookup(&self, name: NameId, scope: &Scope) -> Value {
        let found = scope.get(name).or_else(|| self.globals[name].clone());
        found.unwrap_or_else(|| {
            Value::undefined(format!("'{}' is undefined", self.template.names[name]))
        })
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(*name, value),
            Target::Attribute(name, attribute) => {
                let found = self.lookup(*name, scope);
                let Value::Object(object) = &found else {
                    return Err(not_a_namespace());
                };
                let Object::Namespace(attributes) = &**object else {
                    return Err(not_a_namespace());
                };
                calls::set_attribute(
                    &mut attributes.borrow_mut(),
                    &Str::new(&**attribute)?,
                    value,
                )?;
            }
            Target::Tuple(targets) => {
                let items = value.items()?;
                if items.len() != targets.len() {
                    return Err(Fail::error(format!(
                        "expected {} values to unpack, found {}",
                        targets.len(),
                        items.len()
                    )));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, scope)?;
                }
            }
        }
        Ok(())
    }

    /// A loop over its own items, or over those with which a recursive call calls it.
    pub(super) fn for_loop(
        &mut self,
        at: usize,
        given: Option<Value>,
        depth: u32,
        scope: &Rc<Scope>,
    ) -> Result<Flow> {
        let node = &self.template.loops[at];
        let items = match given {
            Some(items) => items,
            None => self.evaluate(&node.items, scope)?,
        };
        let mut items = items.items()?;
        if let Some(test) = &node.test {
            let mut kept = Vec::new();
            for item in items {
                let inner = Scope::inside(scope);
                self.assign(&node.target, item.clone(), &inner)?;
                if self.evaluate(test, &inner)?.is_true() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        let items = Seq::new(items)?;
        let state = Rc::new(Object::Loop(Loop {
            items: Rc::clone(&items),
            index: Cell::new(0),
            depth,
            recursive: node.recursive.then(|| (at, Rc::downgrade(scope))),
            changed: RefCell::default(),
        }));
        let name = self.template.names.iter().position(|name| name == "loop");
        // As in jinja2, a round that ends with `continue` does not count.
        let mut whole_rounds = 0;
        for (index, item) in items.iter().enumerate() {
            limits::work(1)?;
            if let Object::Loop(state) = &*state {
                state.index.set(index);
            }
            let inner = Scope::inside(scope);
            self.assign(&node.target, item.clone(), &inner)?;
            if let Some(name) = name {
                inner.set(name, Value::Object(Rc::clone(&state)));
            }
            match self.body(&node.body, &inner)? {
                Flow::Next => whole_rounds += 1,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        if whole_rounds == 0 {
            let inner = Scope::inside(scope);
            return self.body(&node.otherwise, &inner);
        }
        Ok(Flow::Next)
    }
}

fn not_a_namespace() -> Fail {
    Fail::error("cannot set an attribute of anything but a namespace")
}

impl<'t> Machine<'t> {
    pub(super) fn evaluate(&mut self, expr: &'t Expr, scope: &Rc<Scope>) -> Result<Value> {
        limits::work(1)?;
        match &expr.kind {
            ExprKind::None => Ok(Value::None),
            ExprKind::Bool(flag) => Ok(Value::Bool(*flag)),
            ExprKind::Int(number) => Ok(Value::Int(*number)),
            ExprKind::Float(number) => Ok(Value::Float(*number)),
            ExprKind::Text(at) => Ok(Value::Str(self.texts[*at].clone())),
            ExprKind::Name(name) => Ok(self.lookup(*name, scope)),
            _ => self.deeper(|it| it.compound(expr, scope)),
        }
    }

    fn all(&mut self, parts: &'t [Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        parts
            .iter()
            .map(|part| self.evaluate(part, scope))
            .collect()
    }

    fn compound(&mut self, expr: &'t Expr, scope: &Rc<Scope>) -> Result<Value> {
        match &expr.kind {
            ExprKind::List(items) => Value::list(self.all(items, scope)?),
            ExprKind::Tuple(items) => Value::tuple(self.all(items, scope)?),
            ExprKind::Dict(pairs) => {
                let mut found = Vec::new();
                for (key, value) in pairs {
                    found.push((self.evaluate(key, scope)?, self.evaluate(value, scope)?));
                }
                Dict::new(found).map(Value::Dict)
            }
            ExprKind::Not(part) => Ok(Value::Bool(!self.evaluate(part, scope)?.is_true())),
            ExprKind::Negative(part) => operators::negative(&self.evaluate(part, scope)?),
            ExprKind::Positive(part) => operators::positive(&self.evaluate(part, scope)?),
            ExprKind::Binary(operator, parts) => {
                let left = self.evaluate(&parts.0, scope)?;
                let right = self.evaluate(&parts.1, scope)?;
                operators::binary(*operator, &left, &right)
            }
            ExprKind::And(parts) => {
                let left = self.evaluate(&parts.0, scope)?;
                if left.is_true() {
                    self.evaluate(&parts.1, scope)
                } else {
                    Ok(left)
                }
            }
            ExprKind::Or(parts) => {
                let left = self.evaluate(&parts.0, scope)?;
                if left.is_true() {
                    Ok(left)
                } else {
                    self.evaluate(&parts.1, scope)
                }
            }
            ExprKind::Concat(parts) => {
                let parts = self.all(parts, scope)?;
                self.concat(&parts)
            }
            ExprKind::Compare(first, rest) => {
                let mut left = self.evaluate(first, scope)?;
                let mut answer = true;
                for (comparison, right) in rest {
                    let right = self.evaluate(right, scope)?;
                    answer = compared(*comparison, &left, &right)?;
                    if !answer {
                        break;
                    }
                    left = right;
                }
                Ok(Value::Bool(answer))
            }
            ExprKind::If(parts) => {
                if self.evaluate(&parts.1, scope)?.is_true() {
                    return self.evaluate(&parts.0, scope);
                }
                match &parts.2 {
                    Some(otherwise) => self.evaluate(otherwise, scope),
                    None => Ok(Value::undefined("the inline if-expression has no else")),
                }
            }
            ExprKind::Attribute(of, name) => {
                attributes::attribute(&self.evaluate(of, scope)?, name)
            }
            ExprKind::Item(parts) => {
                let of = self.evaluate(&parts.0, scope)?;
                let key = self.evaluate(&parts.1, scope)?;
                attributes::item(&of, &key)
            }
            ExprKind::Slice(parts) => {
                let of = self.evaluate(&parts.0, scope)?;
                let mut bounds = [const { None }; 3];
                for (bound, part) in bounds.iter_mut().zip(&parts.1) {
                    *bound = match part {
                        Some(part) => attributes::bound(&self.evaluate(part, scope)?)?,
                        None => None,
                    };
                }
                attributes::slice(&of, bounds)
            }
            ExprKind::Call(_) => self.call_with(expr, None, scope),
            ExprKind::Filter(Some(of), name, arguments) => {
                let of = self.evaluate(of, scope)?;
                let args = self.arguments(arguments, scope)?;
                filters::call(self, name, &of, &args)
            }
            ExprKind::Filter(None, ..) => Err(Fail::error("a filter of nothing")),
            ExprKind::Test(of, name, arguments) => {
                let of = self.evaluate(of, scope)?;
                let args = self.arguments(arguments, scope)?;
                tests::call(name, &of, &args).map(Value::Bool)
            }
            _ => self.evaluate(expr, scope),
        }
    }

    /// `a ~ b`: the texts of the parts, joined.
    fn concat(&mut self, parts: &[Value]) -> Result<Value> {
        let mut out = Builder::default();
        let any_safe = parts
            .iter()
            .any(|part| matches!(part, Value::Str(text) if text.is_safe()));
        let escapes = self.autoescape && any_safe;
        for part in parts {
            let text = repr::str_of(part)?;
            if escapes && !text.is_safe() {
                out.push(&repr::escape(&text)?)?;
            } else {
                out.push(&text)?;
            }
        }
        Str::with(out.finish().into(), escapes).map(Value::Str)
    }

    /// Applies the filters of `{% filter %}` or of a set block to the block's text.
    pub(super) fn filter_block(
        &mut self,
        filter: &'t Expr,
        text: Value,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let ExprKind::Filter(of, name, arguments) = &filter.kind else {
            return Err(Fail::error("expected a filter"));
        };
        let of = match of {
            Some(of) => self.deeper(|it| it.filter_block(of, text, scope))?,
            None => text,
        };
        let args = self.arguments(arguments, scope)?;
        filters::call(self, name, &of, &args)
    }

    /// A call. `caller` is the additional argument of a call block.
    pub(super) fn call_with(
        &mut self,
        call: &'t Expr,
        caller: Option<Value>,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let ExprKind::Call(parts) = &call.kind else {
            return Err(Fail::error("expected a call"));
        };
        let callee = self.evaluate(&parts.0, scope)?;
        let mut args = self.arguments(&parts.1, scope)?;
        if let Some(caller) = caller {
            args.named.push((Arc::from("caller"), caller));
        }
        self.call(&callee, args)
    }

    fn arguments(&mut self, arguments: &'t Arguments, scope: &Rc<Scope>) -> Result<Args> {
        let mut args = Args {
            positional: self.all(&arguments.positional, scope)?,
            named: Vec::new(),
        };
        if let Some(list) = &arguments.list {
            args.positional.extend(self.evaluate(list, scope)?.items()?);
        }
        for (name, value) in &arguments.named {
            args.named
                .push((Arc::clone(name), self.evaluate(value, scope)?));
        }
        if let Some(dict) = &arguments.dict {
            let Value::Dict(dict) = self.evaluate(dict, scope)? else {
                return Err(Fail::error("the argument after ** must be a dict"));
            };
            for (key, value) in dict.entries() {
                let Some(name) = key.as_str() else {
                    return Err(Fail::error("names of arguments must be strings"));
                };
                limits::work(1)?;
                args.named.push((Arc::from(name), value.clone()));
            }
        }
        for (at, (name, _)) in args.named.iter().enumerate() {
            limits::work(at as u64)?;
            if args.named[..at].iter().any(|(found, _)| found == name) {
                return Err(Fail::error(format!(
                    "several values for the argument {name}"
                )));
            }
        }
        Ok(args)
    }
}

fn compared(comparison: Comparison, left: &Value, right: &Value) -> Result<bool> {
    match comparison {
        Comparison::Equal => operators::equal(left, right),
        Comparison::NotEqual => operators::equal(left, right).map(|equal| !equal),
        Comparison::In => operators::contains(right, left),
        Comparison::NotIn => operators::contains(right, left).map(|found| !found),
        Comparison::Less => operators::ordered(left, right, "<"),
        Comparison::LessOrEqual => operators::ordered(left, right, "<="),
        Comparison::Greater => operators::ordered(left, right, ">"),
        Comparison::GreaterOrEqual => operators::ordered(left, right, ">="),
    }
}

//! The interpreter: expressions.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Arguments, Comparison, Expr, ExprKind};
use super::budget::{self, Builder};
use super::calls::Args;
use super::dict::Dict;
use super::machine::Machine;
use super::scope::Scope;
use super::value::{Str, Value};
use super::{Fail, Result, arithmetic, attributes, checks, compare, filters, show, slice};

impl<'t> Machine<'t> {
    pub(super) fn evaluate(&mut self, expr: &'t Expr, scope: &Rc<Scope>) -> Result<Value> {
        budget::work(1)?;
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
            ExprKind::Negative(part) => arithmetic::negative(&self.evaluate(part, scope)?),
            ExprKind::Positive(part) => arithmetic::positive(&self.evaluate(part, scope)?),
            ExprKind::Binary(operator, parts) => {
                let left = self.evaluate(&parts.0, scope)?;
                let right = self.evaluate(&parts.1, scope)?;
                arithmetic::binary(*operator, &left, &right)
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
                        Some(part) => slice::bound(&self.evaluate(part, scope)?)?,
                        None => None,
                    };
                }
                slice::slice(&of, bounds)
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
                checks::call(name, &of, &args).map(Value::Bool)
            }
            _ => self.evaluate(expr, scope),
        }
    }

    /// `a ~ b`: the texts of all.
    fn concat(&mut self, parts: &[Value]) -> Result<Value> {
        let mut out = Builder::default();
        let any_safe = parts
            .iter()
            .any(|part| matches!(part, Value::Str(text) if text.is_safe()));
        let escapes = self.autoescape && any_safe;
        for part in parts {
            let text = show::str_of(part)?;
            if escapes && !text.is_safe() {
                out.push(&show::escape(&text)?)?;
            } else {
                out.push(&text)?;
            }
        }
        Str::with(out.finish().into(), escapes).map(Value::Str)
    }

    /// Filters of `{% filter %}` and of a set block, applied to the block's text.
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
                budget::work(1)?;
                args.named.push((Arc::from(name), value.clone()));
            }
        }
        for (at, (name, _)) in args.named.iter().enumerate() {
            budget::work(at as u64)?;
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
        Comparison::Equal => compare::equal(left, right),
        Comparison::NotEqual => compare::equal(left, right).map(|equal| !equal),
        Comparison::In => compare::contains(right, left),
        Comparison::NotIn => compare::contains(right, left).map(|found| !found),
        Comparison::Less => compare::ordered(left, right, "<"),
        Comparison::LessOrEqual => compare::ordered(left, right, "<="),
        Comparison::Greater => compare::ordered(left, right, ">"),
        Comparison::GreaterOrEqual => compare::ordered(left, right, ">="),
    }
}

//! The suffixes of an expression: attributes, subscripts, calls, filters and tests.

use std::sync::Arc;

use super::Result;
use super::ast::{Arguments, Bounds, Expr, ExprKind};
use super::cursor::Parser;
use super::lexer::Kind;

impl Parser {
    pub(super) fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            if self.skip_op(".") {
                value = match self.advance() {
                    Kind::Name(name) => {
                        self.node(ExprKind::Attribute(Box::new(value), name.into()))?
                    }
                    Kind::Int(number) => {
                        let index = self.node(ExprKind::Int(number))?;
                        self.node(ExprKind::Item(Box::new((value, index))))?
                    }
                    _ => return self.fail("expected a name or a number after a point"),
                };
            } else if self.skip_op("[") {
                value = self.subscript(value)?;
            } else if self.is_op("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn subscript(&mut self, of: Expr) -> Result<Expr> {
        let mut parts = self.series("]", Self::subscripted)?;
        match (parts.pop(), parts.is_empty()) {
            (Some(Ok(index)), true) => self.node(ExprKind::Item(Box::new((of, index)))),
            (Some(Err(bounds)), true) => self.node(ExprKind::Slice(Box::new((of, bounds)))),
            (Some(_), false) => self.fail("several subscripts are not supported"),
            (None, _) => {
                let index = self.node(ExprKind::Tuple(Vec::new()))?;
                self.node(ExprKind::Item(Box::new((of, index))))
            }
        }
    }

    /// An index, or the bounds of a slice.
    fn subscripted(&mut self) -> Result<std::result::Result<Expr, Bounds>> {
        let mut bounds: Bounds = [None, None, None];
        if !self.is_op(":") {
            let first = self.expression(true)?;
            if !self.is_op(":") {
                return Ok(Ok(first));
            }
            bounds[0] = Some(first);
        }
        for bound in bounds.iter_mut().skip(1) {
            if !self.skip_op(":") {
                break;
            }
            if !self.is_op(":") && !self.is_op("]") && !self.is_op(",") {
                *bound = Some(self.expression(true)?);
            }
        }
        Ok(Err(bounds))
    }

    pub(super) fn call(&mut self, callee: Expr) -> Result<Expr> {
        let arguments = self.arguments()?;
        self.node(ExprKind::Call(Box::new((callee, arguments))))
    }

    fn arguments(&mut self) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        self.expect_op("(")?;
        let mut first = true;
        while !self.is_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            first = false;
            let after_dict = arguments.dict.is_some();
            if self.skip_op("*") {
                if after_dict || arguments.list.is_some() {
                    return self.fail("invalid syntax for a function call");
                }
                arguments.list = Some(self.expression(true)?);
            } else if self.skip_op("**") {
                if after_dict {
                    return self.fail("invalid syntax for a function call");
                }
                arguments.dict = Some(self.expression(true)?);
            } else if matches!(self.kind(), Kind::Name(_))
                && *self.second() == Kind::Op("=")
                && !after_dict
            {
                let name: Arc<str> = self.expect_name()?.into();
                self.advance();
                arguments.named.push((name, self.expression(true)?));
            } else {
                if after_dict || arguments.list.is_some() || !arguments.named.is_empty() {
                    return self.fail("a positional argument after a named one");
                }
                arguments.positional.push(self.expression(true)?);
            }
        }
        self.expect_op(")")?;
        Ok(arguments)
    }

    /// `| name(arguments)`, any number of them; `inline` without the first bar.
    pub(super) fn filter_of(&mut self, of: Option<Expr>, mut inline: bool) -> Result<Option<Expr>> {
        let mut value = of;
        while inline || self.skip_op("|") {
            inline = false;
            let name = self.dotted()?;
            let arguments = if self.is_op("(") {
                self.arguments()?
            } else {
                Arguments::default()
            };
            let kind = ExprKind::Filter(value.map(Box::new), name, Box::new(arguments));
            value = Some(self.node(kind)?);
        }
        Ok(value)
    }

    fn dotted(&mut self) -> Result<Arc<str>> {
        let mut name = self.expect_name()?;
        while self.skip_op(".") {
            name = format!("{name}.{}", self.expect_name()?);
        }
        Ok(name.into())
    }

    pub(super) fn test(&mut self, value: Expr) -> Result<Expr> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        let is_argument = match self.kind() {
            Kind::Name(name) => !["else", "or", "and"].contains(&name.as_str()),
            Kind::Text(_) | Kind::Int(_) | Kind::Float(_) | Kind::Op("[" | "{") => true,
            _ => false,
        };
        let arguments = if self.is_op("(") {
            self.arguments()?
        } else if self.is_name("is") {
            return self.fail("several tests with is");
        } else if is_argument {
            let argument = self.primary()?;
            Arguments {
                positional: vec![self.postfix(argument)?],
                ..Arguments::default()
            }
        } else {
            Arguments::default()
        };
        let test = self.node(ExprKind::Test(Box::new(value), name, Box::new(arguments)))?;
        if negated {
            return self.node(ExprKind::Not(Box::new(test)));
        }
        Ok(test)
    }
}

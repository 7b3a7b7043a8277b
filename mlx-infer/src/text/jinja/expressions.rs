//! Tokens to expressions, with jinja2's precedence, and their suffixes: attributes, subscripts, calls, filters and tests.

use std::sync::Arc;

use super::lexer::TokenKind;
use super::nodes::{Arguments, Binary, Bounds, Comparison, Expr, ExprKind};
use super::parser::Parser;
use super::{Fail, Result};

/// The deepest nesting of expressions.
const MAX_DEPTH: u32 = 400;

impl Parser {
    /// An expression made of its parts, unless they are nested too deep.
    pub(super) fn node(&self, kind: ExprKind) -> Result<Expr> {
        let depth = 1 + deepest(&kind);
        if depth > MAX_DEPTH {
            return Err(Fail::at(self.line(), too_deep()));
        }
        Ok(Expr { kind, depth })
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail(too_deep());
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// One expression, or several separated by commas, which are a tuple.
    pub(super) fn tuple(&mut self, conditional: bool, ends: &[&str]) -> Result<Expr> {
        self.tuple_in(conditional, ends, false)
    }

    fn tuple_in(&mut self, conditional: bool, ends: &[&str], in_parentheses: bool) -> Result<Expr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            let ended = match self.kind() {
                TokenKind::VariableEnd | TokenKind::BlockEnd | TokenKind::Op(")") => true,
                TokenKind::Name(name) => ends.contains(&name.as_str()),
                _ => false,
            };
            if ended {
                break;
            }
            items.push(self.expression(conditional)?);
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            if let Some(single) = items.pop() {
                return Ok(single);
            }
            if !in_parentheses {
                return self.unexpected("an expression");
            }
        }
        self.node(ExprKind::Tuple(items))
    }

    pub(super) fn expression(&mut self, conditional: bool) -> Result<Expr> {
        self.nested(|parser| {
            if conditional {
                parser.condition()
            } else {
                parser.or()
            }
        })
    }

    fn condition(&mut self) -> Result<Expr> {
        let mut value = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") {
                Some(self.nested(Self::condition)?)
            } else {
                None
            };
            value = self.node(ExprKind::If(Box::new((value, test, otherwise))))?;
        }
        Ok(value)
    }

    fn or(&mut self) -> Result<Expr> {
        let mut left = self.and()?;
        while self.skip_name("or") {
            let right = self.and()?;
            left = self.node(ExprKind::Or(Box::new((left, right))))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr> {
        let mut left = self.not()?;
        while self.skip_name("and") {
            let right = self.not()?;
            left = self.node(ExprKind::And(Box::new((left, right))))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            let inner = self.nested(Self::not)?;
            return self.node(ExprKind::Not(Box::new(inner)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.kind() {
                TokenKind::Op("==") => Comparison::Equal,
                TokenKind::Op("!=") => Comparison::NotEqual,
                TokenKind::Op("<") => Comparison::Less,
                TokenKind::Op("<=") => Comparison::LessOrEqual,
                TokenKind::Op(">") => Comparison::Greater,
                TokenKind::Op(">=") => Comparison::GreaterOrEqual,
                TokenKind::Name(name) if name == "in" => Comparison::In,
                TokenKind::Name(name)
                    if name == "not" && *self.second() == TokenKind::Name("in".to_owned()) =>
                {
                    self.advance();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.advance();
            rest.push((comparison, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        self.node(ExprKind::Compare(Box::new(first), rest))
    }

    fn sum(&mut self) -> Result<Expr> {
        self.binary(Self::concat, |operator| match operator {
            "+" => Some(Binary::Add),
            "-" => Some(Binary::Subtract),
            _ => None,
        })
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_op("~") {
            parts.push(self.product()?);
        }
        self.node(ExprKind::Concat(parts))
    }

    fn product(&mut self) -> Result<Expr> {
        self.binary(Self::power, |operator| match operator {
            "*" => Some(Binary::Multiply),
            "/" => Some(Binary::Divide),
            "//" => Some(Binary::FloorDivide),
            "%" => Some(Binary::Modulo),
            _ => None,
        })
    }

    fn power(&mut self) -> Result<Expr> {
        self.binary(
            |parser| parser.unary(true),
            |operator| (operator == "**").then_some(Binary::Power),
        )
    }

    fn binary(
        &mut self,
        operand: impl Fn(&mut Self) -> Result<Expr>,
        operator: impl Fn(&str) -> Option<Binary>,
    ) -> Result<Expr> {
        let mut left = operand(self)?;
        while let TokenKind::Op(found) = self.kind()
            && let Some(operator) = operator(found)
        {
            self.advance();
            let right = operand(self)?;
            left = self.node(ExprKind::Binary(operator, Box::new((left, right))))?;
        }
        Ok(left)
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let mut value = if self.skip_op("-") {
            let inner = self.nested(|parser| parser.unary(false))?;
            self.node(ExprKind::Negative(Box::new(inner)))?
        } else if self.skip_op("+") {
            let inner = self.nested(|parser| parser.unary(false))?;
            self.node(ExprKind::Positive(Box::new(inner)))?
        } else {
            self.primary()?
        };
        value = self.postfix(value)?;
        if !with_filters {
            return Ok(value);
        }
        loop {
            if self.is_op("|") {
                value = match self.filter_of(Some(value), false)? {
                    Some(value) => value,
                    None => return self.unexpected("a filter"),
                };
            } else if self.skip_name("is") {
                value = self.test(value)?;
            } else if self.is_op("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    pub(super) fn primary(&mut self) -> Result<Expr> {
        let kind = match self.kind() {
            TokenKind::Name(_) => {
                let name = self.expect_name()?;
                match name.as_str() {
                    "true" | "True" => ExprKind::Bool(true),
                    "false" | "False" => ExprKind::Bool(false),
                    "none" | "None" => ExprKind::None,
                    _ => ExprKind::Name(self.name(&name)),
                }
            }
            TokenKind::Text(_) => {
                let mut joined = String::new();
                while let TokenKind::Text(part) = self.kind() {
                    joined.push_str(part);
                    self.advance();
                }
                ExprKind::Text(self.text(joined))
            }
            TokenKind::Int(number) => {
                let number = *number;
                self.advance();
                ExprKind::Int(number)
            }
            TokenKind::Float(number) => {
                let number = *number;
                self.advance();
                ExprKind::Float(number)
            }
            TokenKind::Op("(") => {
                self.advance();
                let inner = self.nested(|parser| parser.tuple_in(true, &[], true))?;
                self.expect_op(")")?;
                return Ok(inner);
            }
            TokenKind::Op("[") => {
                self.advance();
                ExprKind::List(self.series("]", |parser| parser.expression(true))?)
            }
            TokenKind::Op("{") => {
                self.advance();
                ExprKind::Dict(self.series("}", |parser| {
                    let key = parser.expression(true)?;
                    parser.expect_op(":")?;
                    Ok((key, parser.expression(true)?))
                })?)
            }
            _ => return self.unexpected("an expression"),
        };
        self.node(kind)
    }

    /// Items separated by commas, up to a bracket.
    pub(super) fn series<T>(
        &mut self,
        end: &str,
        item: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.is_op(end) {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.is_op(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        self.expect_op(end)?;
        Ok(items)
    }
}

fn too_deep() -> String {
    format!("expressions nest more than {MAX_DEPTH} deep")
}

/// The depth of the deepest part.
fn deepest(kind: &ExprKind) -> u32 {
    let most = |parts: &[Expr]| parts.iter().map(|part| part.depth).max().unwrap_or(0);
    let of_arguments = |arguments: &Arguments| {
        let named = arguments.named.iter().map(|(_, value)| value);
        let parts = arguments.positional.iter().chain(named);
        let parts = parts.chain(&arguments.list).chain(&arguments.dict);
        parts.map(|part| part.depth).max().unwrap_or(0)
    };
    match kind {
        ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Concat(items) => most(items),
        ExprKind::Dict(pairs) => pairs
            .iter()
            .map(|(key, value)| key.depth.max(value.depth))
            .max()
            .unwrap_or(0),
        ExprKind::Not(part)
        | ExprKind::Negative(part)
        | ExprKind::Positive(part)
        | ExprKind::Attribute(part, _) => part.depth,
        ExprKind::Binary(_, parts)
        | ExprKind::And(parts)
        | ExprKind::Or(parts)
        | ExprKind::Item(parts) => parts.0.depth.max(parts.1.depth),
        ExprKind::Compare(first, rest) => rest
            .iter()
            .map(|(_, part)| part.depth)
            .fold(first.depth, u32::max),
        ExprKind::If(parts) => {
            let otherwise = parts.2.as_ref().map_or(0, |part| part.depth);
            parts.0.depth.max(parts.1.depth).max(otherwise)
        }
        ExprKind::Slice(parts) => parts
            .1
            .iter()
            .flatten()
            .map(|part| part.depth)
            .fold(parts.0.depth, u32::max),
        ExprKind::Call(parts) => parts.0.depth.max(of_arguments(&parts.1)),
        ExprKind::Filter(of, _, arguments) => of
            .as_ref()
            .map_or(0, |of| of.depth)
            .max(of_arguments(arguments)),
        ExprKind::Test(of, _, arguments) => of.depth.max(of_arguments(arguments)),
        _ => 0,
    }
}

impl Parser {
    pub(super) fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            if self.skip_op(".") {
                value = match self.advance() {
                    TokenKind::Name(name) => {
                        self.node(ExprKind::Attribute(Box::new(value), name.into()))?
                    }
                    TokenKind::Int(number) => {
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
            } else if matches!(self.kind(), TokenKind::Name(_))
                && *self.second() == TokenKind::Op("=")
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
            TokenKind::Name(name) => !["else", "or", "and"].contains(&name.as_str()),
            TokenKind::Text(_)
            | TokenKind::Int(_)
            | TokenKind::Float(_)
            | TokenKind::Op("[" | "{") => true,
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

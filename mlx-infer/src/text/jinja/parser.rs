//! Tokens to statements.

use std::collections::HashMap;

use super::lexer::{Token, TokenKind, tokens};
use super::nodes::{
    Body, Expr, ExprKind, For, Macro, NameId, Parsed, Statement, StatementKind, Target,
};
use super::{Fail, Result};

/// The names that a macro can use without declaring them as parameters.
const IMPLICIT: [&str; 3] = ["varargs", "kwargs", "caller"];

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    pub(super) parsed: Parsed,
    names: HashMap<String, NameId>,
    texts: HashMap<String, usize>,
    pub(super) blocks: usize,
    /// The number of loops around the current statement that `break` and `continue` can end.
    pub(super) loops: usize,
    /// The number of expressions that are being parsed.
    pub(super) depth: u32,
    /// For each macro that is being parsed, which of [`IMPLICIT`] it uses.
    pub(super) uses: Vec<[bool; 3]>,
}

impl Parser {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            at: 0,
            parsed: Parsed::default(),
            names: HashMap::new(),
            texts: HashMap::new(),
            blocks: 0,
            loops: 0,
            depth: 0,
            uses: Vec::new(),
        }
    }

    pub(super) fn kind(&self) -> &TokenKind {
        &self.tokens[self.at].kind
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    /// The kind of the token after the next.
    pub(super) fn second(&self) -> &TokenKind {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    pub(super) fn advance(&mut self) -> TokenKind {
        let kind = self.kind().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        kind
    }

    pub(super) fn fail<T>(&self, message: impl std::fmt::Display) -> Result<T> {
        Err(Fail::at(self.line(), message))
    }

    pub(super) fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let found = match self.kind() {
            TokenKind::End => "the end of the template".to_owned(),
            TokenKind::Data(_) => "text".to_owned(),
            TokenKind::BlockBegin => "{%".to_owned(),
            TokenKind::BlockEnd => "%}".to_owned(),
            TokenKind::VariableBegin => "{{".to_owned(),
            TokenKind::VariableEnd => "}}".to_owned(),
            TokenKind::Name(name) => name.clone(),
            TokenKind::Text(text) => format!("the string {text:?}"),
            TokenKind::Int(number) => number.to_string(),
            TokenKind::Float(number) => number.to_string(),
            TokenKind::Op(operator) => (*operator).to_owned(),
        };
        self.fail(format!("expected {expected}, found {found}"))
    }

    pub(super) fn is_op(&self, operator: &str) -> bool {
        matches!(self.kind(), TokenKind::Op(found) if *found == operator)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.kind(), TokenKind::Name(found) if found == name)
    }

    pub(super) fn skip_op(&mut self, operator: &str) -> bool {
        let found = self.is_op(operator);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect_op(&mut self, operator: &str) -> Result<()> {
        if self.skip_op(operator) {
            Ok(())
        } else {
            self.unexpected(operator)
        }
    }

    pub(super) fn expect_name(&mut self) -> Result<String> {
        match self.kind() {
            TokenKind::Name(_) => match self.advance() {
                TokenKind::Name(name) => Ok(name),
                _ => self.unexpected("a name"),
            },
            _ => self.unexpected("a name"),
        }
    }

    pub(super) fn expect(&mut self, kind: &TokenKind, shown: &str) -> Result<()> {
        if self.kind() == kind {
            self.advance();
            Ok(())
        } else {
            self.unexpected(shown)
        }
    }

    pub(super) fn name(&mut self, name: &str) -> NameId {
        if let Some(at) = IMPLICIT.iter().position(|implicit| *implicit == name)
            && let Some(uses) = self.uses.last_mut()
        {
            uses[at] = true;
        }
        let names = &mut self.parsed.names;
        *self.names.entry(name.to_owned()).or_insert_with(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
    }

    pub(super) fn text(&mut self, text: String) -> usize {
        let texts = &mut self.parsed.texts;
        *self.texts.entry(text.clone()).or_insert_with(|| {
            texts.push(text);
            texts.len() - 1
        })
    }
}

/// The deepest nesting of blocks.
const MAX_BLOCKS: usize = 200;

pub(super) fn parse(source: &str) -> Result<Parsed> {
    let mut parser = Parser::new(tokens(source)?);
    parser.parsed.body = parser.body(&[])?;
    Ok(parser.parsed)
}

impl Parser {
    /// Parses statements up to one of the tags `ends`. The name of that tag is the next token.
    fn body(&mut self, ends: &[&str]) -> Result<Body> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.kind() {
                TokenKind::End if ends.is_empty() => return Ok(body),
                TokenKind::Data(_) => match self.advance() {
                    TokenKind::Data(text) => StatementKind::Data(text),
                    _ => continue,
                },
                TokenKind::VariableBegin => {
                    self.advance();
                    let value = self.tuple(true, &[])?;
                    self.expect(&TokenKind::VariableEnd, "}}")?;
                    StatementKind::Output(value)
                }
                TokenKind::BlockBegin => {
                    self.advance();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    let kind = self.statement(ends)?;
                    self.expect(&TokenKind::BlockEnd, "%}")?;
                    kind
                }
                _ => return self.unexpected(&format!("{{% {} %}}", ends.join(" or "))),
            };
            body.push(Statement { kind, line });
        }
    }

    /// Parses the rest of an opening tag, and a body up to one of the closing tags. Returns that
    /// tag's name.
    fn block(&mut self, ends: &[&str]) -> Result<(Body, String)> {
        self.skip_op(":");
        self.expect(&TokenKind::BlockEnd, "%}")?;
        self.blocks += 1;
        if self.blocks > MAX_BLOCKS {
            return self.fail(format!("blocks nest more than {MAX_BLOCKS} deep"));
        }
        let body = self.body(ends)?;
        self.blocks -= 1;
        let end = self.expect_name()?;
        Ok((body, end))
    }

    fn statement(&mut self, ends: &[&str]) -> Result<StatementKind> {
        let tag = self.expect_name()?;
        Ok(match tag.as_str() {
            "for" => self.for_loop()?,
            "if" => self.if_block()?,
            "set" => self.set()?,
            "with" => {
                let mut assignments = Vec::new();
                while *self.kind() != TokenKind::BlockEnd {
                    if !assignments.is_empty() {
                        self.expect_op(",")?;
                    }
                    let target = self.target(false, &[])?;
                    self.expect_op("=")?;
                    assignments.push((target, self.expression(true)?));
                }
                StatementKind::With(assignments, self.block(&["endwith"])?.0)
            }
            "filter" => {
                let filter = self.filter_of(None, true)?;
                let (body, _) = self.block(&["endfilter"])?;
                match filter {
                    Some(filter) => StatementKind::Filter(filter, body),
                    None => return self.unexpected("a filter"),
                }
            }
            "macro" => {
                let name = self.expect_name()?;
                let name = self.assignable(&name)?;
                StatementKind::Macro(self.macro_body(Some(name), true, &["endmacro"])?)
            }
            "call" => {
                let parameters = if self.is_op("(") {
                    self.signature()?
                } else {
                    Default::default()
                };
                let call = self.expression(true)?;
                if !matches!(call.kind, ExprKind::Call(_)) {
                    return self.fail("expected a call after {% call %}");
                }
                let caller = self.macro_with(None, parameters, &["endcall"])?;
                StatementKind::CallBlock(call, caller)
            }
            "generation" => StatementKind::Scope(self.block(&["endgeneration"])?.0),
            "block" => {
                let name = self.expect_name()?;
                self.skip_name("scoped");
                self.skip_name("required");
                let (body, _) = self.block(&["endblock"])?;
                self.skip_name(&name);
                StatementKind::Scope(body)
            }
            "autoescape" => {
                let value = self.expression(true)?;
                StatementKind::Autoescape(value, self.block(&["endautoescape"])?.0)
            }
            "print" => {
                let mut values = vec![self.expression(true)?];
                while self.skip_op(",") {
                    values.push(self.expression(true)?);
                }
                StatementKind::Output(self.node(ExprKind::Concat(values))?)
            }
            "include" | "import" | "from" | "extends" => {
                while !matches!(self.kind(), TokenKind::BlockEnd | TokenKind::End) {
                    self.advance();
                }
                StatementKind::Other(match tag.as_str() {
                    "include" => "include",
                    "extends" => "extends",
                    _ => "import",
                })
            }
            "break" if self.loops > 0 => StatementKind::Break,
            "continue" if self.loops > 0 => StatementKind::Continue,
            "break" | "continue" => return self.fail(format!("{{% {tag} %}} outside of a loop")),
            _ if ends.is_empty() => return self.fail(format!("unknown tag {tag}")),
            _ => {
                return self.fail(format!(
                    "unknown tag {tag}, or expected {{% {} %}}",
                    ends.join(" or ")
                ));
            }
        })
    }

    fn for_loop(&mut self) -> Result<StatementKind> {
        let target = self.target(false, &["in"])?;
        if !self.skip_name("in") {
            return self.unexpected("in");
        }
        let items = self.tuple(false, &["recursive"])?;
        let test = if self.skip_name("if") {
            Some(self.expression(true)?)
        } else {
            None
        };
        let recursive = self.skip_name("recursive");
        self.loops += 1;
        let (body, end) = self.block(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = if end == "else" {
            self.block(&["endfor"])?.0
        } else {
            Vec::new()
        };
        self.parsed.loops.push(For {
            target,
            items,
            test,
            recursive,
            body,
            otherwise,
        });
        Ok(StatementKind::For(self.parsed.loops.len() - 1))
    }

    fn if_block(&mut self) -> Result<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false, &[])?;
            let (body, end) = self.block(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match end.as_str() {
                "elif" => {}
                "else" => {
                    let (otherwise, _) = self.block(&["endif"])?;
                    return Ok(StatementKind::If(branches, otherwise));
                }
                _ => return Ok(StatementKind::If(branches, Vec::new())),
            }
        }
    }

    fn set(&mut self) -> Result<StatementKind> {
        let target = self.target(true, &[])?;
        if self.skip_op("=") {
            return Ok(StatementKind::Set(target, self.tuple(true, &[])?));
        }
        let filter = self.filter_of(None, false)?;
        Ok(StatementKind::SetBlock(
            target,
            filter,
            self.block(&["endset"])?.0,
        ))
    }

    /// An assignment target: a name, with `attributes` also an attribute, or several targets.
    fn target(&mut self, attributes: bool, ends: &[&str]) -> Result<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            let ended = match self.kind() {
                TokenKind::VariableEnd | TokenKind::BlockEnd => true,
                TokenKind::Op(")") => true,
                TokenKind::Name(name) => ends.contains(&name.as_str()),
                _ => false,
            };
            if ended {
                break;
            }
            targets.push(if self.skip_op("(") {
                let inner = self.target(false, &[])?;
                self.expect_op(")")?;
                inner
            } else {
                let name = self.expect_name()?;
                let name = self.assignable(&name)?;
                if attributes && self.skip_op(".") {
                    Target::Attribute(name, self.expect_name()?.into())
                } else {
                    Target::Name(name)
                }
            });
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        match targets.pop() {
            Some(single) if !is_tuple => Ok(single),
            Some(last) => {
                targets.push(last);
                Ok(Target::Tuple(targets))
            }
            None => self.unexpected("a name"),
        }
    }

    fn assignable(&mut self, name: &str) -> Result<NameId> {
        if ["true", "false", "none", "True", "False", "None"].contains(&name) {
            return self.fail(format!("cannot assign to {name}"));
        }
        Ok(self.name(name))
    }

    fn signature(&mut self) -> Result<(Vec<NameId>, Vec<Expr>)> {
        let mut parameters = Vec::new();
        let mut defaults = Vec::new();
        self.expect_op("(")?;
        while !self.is_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.expect_name()?;
            parameters.push(self.assignable(&name)?);
            if self.skip_op("=") {
                defaults.push(self.expression(true)?);
            } else if !defaults.is_empty() {
                return self.fail("a parameter without a default after one with a default");
            }
        }
        self.expect_op(")")?;
        Ok((parameters, defaults))
    }

    fn macro_body(&mut self, name: Option<NameId>, signed: bool, ends: &[&str]) -> Result<usize> {
        let signature = if signed {
            self.signature()?
        } else {
            Default::default()
        };
        self.macro_with(name, signature, ends)
    }

    fn macro_with(
        &mut self,
        name: Option<NameId>,
        (parameters, defaults): (Vec<NameId>, Vec<Expr>),
        ends: &[&str],
    ) -> Result<usize> {
        let loops = std::mem::take(&mut self.loops);
        self.uses.push([false; 3]);
        let (body, _) = self.block(ends)?;
        self.loops = loops;
        let uses = self.uses.pop().unwrap_or_default();
        if let Some(outer) = self.uses.last_mut() {
            for (outer, used) in outer.iter_mut().zip(uses) {
                *outer |= used;
            }
        }
        self.parsed.macros.push(Macro {
            name,
            parameters,
            defaults,
            body,
            uses,
        });
        Ok(self.parsed.macros.len() - 1)
    }
}

//! The parser's position among the tokens, and its state.

use std::collections::HashMap;

use super::ast::{Name, Parsed};
use super::lexer::{Kind, Token};
use super::{Fail, Result};

/// The names that a macro can use without declaring them as parameters.
const IMPLICIT: [&str; 3] = ["varargs", "kwargs", "caller"];

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    pub(super) parsed: Parsed,
    names: HashMap<String, Name>,
    texts: HashMap<String, usize>,
    pub(super) blocks: usize,
    /// Loops that `break` and `continue` can stand in.
    pub(super) loops: usize,
    /// Expressions that are being parsed.
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

    pub(super) fn kind(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    /// The kind of the token after the next.
    pub(super) fn second(&self) -> &Kind {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    pub(super) fn advance(&mut self) -> Kind {
        let kind = self.kind().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        kind
    }

    pub(super) fn fail<T>(&self, message: impl std::fmt::Display) -> Result<T> {
        Err(Fail::at(self.line(), message))
    }

    pub(super) fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let found = match self.kind() {
            Kind::End => "the end of the template".to_owned(),
            Kind::Data(_) => "text".to_owned(),
            Kind::BlockBegin => "{%".to_owned(),
            Kind::BlockEnd => "%}".to_owned(),
            Kind::VariableBegin => "{{".to_owned(),
            Kind::VariableEnd => "}}".to_owned(),
            Kind::Name(name) => name.clone(),
            Kind::Text(text) => format!("the string {text:?}"),
            Kind::Int(number) => number.to_string(),
            Kind::Float(number) => number.to_string(),
            Kind::Op(operator) => (*operator).to_owned(),
        };
        self.fail(format!("expected {expected}, found {found}"))
    }

    pub(super) fn is_op(&self, operator: &str) -> bool {
        matches!(self.kind(), Kind::Op(found) if *found == operator)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.kind(), Kind::Name(found) if found == name)
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
            Kind::Name(_) => match self.advance() {
                Kind::Name(name) => Ok(name),
                _ => self.unexpected("a name"),
            },
            _ => self.unexpected("a name"),
        }
    }

    pub(super) fn expect(&mut self, kind: &Kind, shown: &str) -> Result<()> {
        if self.kind() == kind {
            self.advance();
            Ok(())
        } else {
            self.unexpected(shown)
        }
    }

    pub(super) fn name(&mut self, name: &str) -> Name {
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

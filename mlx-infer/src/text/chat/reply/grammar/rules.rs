//! Rules of a Lark grammar.

use serde_json::Value;

use super::super::ToolFormat;
use crate::text::tokenizer::Tokenizer;

/// The rules so far. Special tokens are written by id, other text in quotation marks.
pub(super) struct Rules<'t> {
    tokenizer: &'t Tokenizer,
    /// The form's marks that are special tokens.
    special: Vec<(&'static str, u32)>,
    lines: Vec<String>,
    named: Vec<&'static str>,
}

impl<'t> Rules<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, form: ToolFormat) -> Self {
        let marks = form.marks().iter().chain(form.inner_marks()).copied();
        let special = marks.filter(|mark| tokenizer.is_special(mark));
        let special = special.filter_map(|mark| Some((mark, tokenizer.token_to_id(mark)?)));
        Self {
            tokenizer,
            special: special.collect(),
            lines: Vec::new(),
            named: Vec::new(),
        }
    }

    pub(super) fn is_special(&self, mark: &str) -> bool {
        self.tokenizer.is_special(mark)
    }

    /// Adds a rule of this text. Returns its name.
    pub(super) fn rule(&mut self, text: &str) -> String {
        let name = format!("r{}", self.lines.len());
        self.lines.push(format!("{name}: {text}"));
        name
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.named.contains(&name)
    }

    /// A rule that is added only once.
    pub(super) fn once(&mut self, name: &'static str, text: &str) -> &'static str {
        if !self.named.contains(&name) {
            self.named.push(name);
            self.lines.push(format!("{name}: {text}"));
        }
        name
    }

    /// A literal text.
    pub(super) fn literal(&self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let first = self
            .special
            .iter()
            .filter_map(|&(mark, id)| Some((text.find(mark)?, mark, id)));
        match first.min() {
            Some((at, mark, id)) => {
                let (front, back) = (&text[..at], &text[at + mark.len()..]);
                let (front, back) = (self.literal(front), self.literal(back));
                format!("{front} <[{id}]> {back}").trim().to_owned()
            }
            // A JSON string is a string of Lark.
            None => Value::from(text).to_string(),
        }
    }

    /// Any text without special tokens.
    pub(super) fn text(&mut self) -> &'static str {
        self.once("text", "/(.|\\n)*/")
    }

    /// Any text up to `end`, and `end`.
    pub(super) fn text_until(&mut self, end: &str) -> String {
        let literal = self.literal(end);
        if literal.starts_with("<[") {
            return format!("{} {literal}", self.text());
        }
        // If a literal contains a special token, its part before the token ends the text.
        let (quoted, rest) = match literal.find(" <[") {
            Some(at) => literal.split_at(at),
            None => (literal.as_str(), ""),
        };
        let name = format!("r{}", self.lines.len());
        self.lines
            .push(format!("{name}[suffix={quoted}]: /(.|\\n)*/"));
        format!("{name} {rest}")
    }

    /// The grammar whose texts match `start`.
    pub(super) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}\n", self.lines.join("\n"))
    }
}

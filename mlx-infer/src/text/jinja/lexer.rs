//! Turns a template's source into tokens, with jinja2's rules for white space around tags (`trim_blocks` and
//! `lstrip_blocks` on).

use super::repr::is_space;
use super::{Fail, Result};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind {
    Data(String),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) line: u32,
}

/// Longer operators come first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

pub(super) fn tokens(source: &str) -> Result<Vec<Token>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer {
        source,
        at: 0,
        line: 1,
        line_starting: true,
        tokens: Vec::new(),
    };
    lexer.root()?;
    lexer.push(TokenKind::End);
    Ok(lexer.tokens)
}

pub(super) struct Lexer<'a> {
    pub(super) source: &'a str,
    pub(super) at: usize,
    line: u32,
    /// Whether the last match ended a line.
    line_starting: bool,
    tokens: Vec<Token>,
}

impl<'a> Lexer<'a> {
    pub(super) fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    pub(super) fn push(&mut self, kind: TokenKind) {
        let line = self.line;
        self.tokens.push(Token { kind, line });
    }

    pub(super) fn fail<T>(&self, message: impl std::fmt::Display) -> Result<T> {
        Err(Fail::at(self.line, message))
    }

    /// Advances by this number of bytes.
    pub(super) fn skip(&mut self, bytes: usize) {
        let text = &self.rest()[..bytes];
        self.line += text.matches('\n').count() as u32;
        self.at += bytes;
    }

    /// Skips the white space that a `-` removes.
    fn skip_space(&mut self) {
        let rest = self.rest();
        self.skip(rest.len() - rest.trim_start_matches(is_space).len());
    }

    /// Reads text and tags.
    fn root(&mut self) -> Result<()> {
        loop {
            let rest = self.rest();
            let next = rest
                .match_indices('{')
                .find(|(at, _)| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')));
            let Some((before, _)) = next else {
                if !rest.is_empty() {
                    self.push(TokenKind::Data(rest.to_owned()));
                    self.skip(rest.len());
                }
                return Ok(());
            };
            let text = &rest[..before];
            let tag = &rest[before..];
            let mark = tag.as_bytes()[1];
            let sign = match tag.as_bytes().get(2) {
                Some(sign @ (b'-' | b'+')) => *sign,
                _ => b' ',
            };
            self.data(text, sign, mark != b'{');
            self.skip(before);
            self.line_starting = false;
            let opened = 2 + usize::from(sign != b' ');
            if mark == b'%'
                && let Some(length) = raw_tag(tag, opened)
            {
                self.skip(length);
                self.raw()?;
                continue;
            }
            self.skip(opened);
            match mark {
                b'#' => self.comment()?,
                b'%' => {
                    self.push(TokenKind::BlockBegin);
                    self.inside("%}", TokenKind::BlockEnd)?;
                }
                _ => {
                    self.push(TokenKind::VariableBegin);
                    self.inside("}}", TokenKind::VariableEnd)?;
                }
            }
        }
    }

    /// The text before a tag. White space at its end is removed by `-`, and before a block or comment that stands alone
    /// at the start of its line.
    fn data(&mut self, text: &str, sign: u8, strips: bool) {
        let kept = match sign {
            b'-' => text.trim_end_matches(is_space),
            b' ' if strips => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let blank = text[line..].chars().all(is_space);
                if blank && (line > 0 || self.line_starting) {
                    &text[..line]
                } else {
                    text
                }
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.push(TokenKind::Data(kept.to_owned()));
        }
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else {
            return self.fail("a comment is not closed");
        };
        let trims = end > 0 && self.rest().as_bytes()[end - 1] == b'-';
        let keeps = end > 0 && self.rest().as_bytes()[end - 1] == b'+';
        self.skip(end + 2);
        self.after_block(trims, keeps);
        Ok(())
    }

    /// Removes the part of the following text that a block or comment takes with it.
    fn after_block(&mut self, trims: bool, keeps: bool) {
        let from = self.at;
        if trims {
            self.skip_space();
        } else if !keeps && self.rest().starts_with('\n') {
            self.skip(1);
        }
        self.line_starting = self.source[from..self.at].ends_with('\n');
    }

    /// Reads the text up to `{% endraw %}`.
    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        let found = rest.match_indices("{%").find_map(|(at, _)| {
            let tag = &rest[at + 2..];
            let sign = tag
                .as_bytes()
                .first()
                .copied()
                .filter(|c| matches!(c, b'-' | b'+'));
            let tag = &tag[usize::from(sign.is_some())..];
            let word = tag.trim_start_matches(is_space).strip_prefix("endraw")?;
            let close = word.trim_start_matches(is_space);
            let mark = close
                .as_bytes()
                .first()
                .copied()
                .filter(|c| matches!(c, b'-' | b'+'));
            let end = close[usize::from(mark.is_some())..].strip_prefix("%}")?;
            Some((at, sign.unwrap_or(b' '), mark, rest.len() - end.len()))
        });
        let Some((at, sign, mark, end)) = found else {
            return self.fail("a raw block is not closed");
        };
        self.data(&rest[..at], sign, true);
        self.skip(end);
        self.after_block(mark == Some(b'-'), mark == Some(b'+'));
        Ok(())
    }

    /// Reads the tokens of a tag, up to its end.
    fn inside(&mut self, end: &str, end_kind: TokenKind) -> Result<()> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            self.skip_space();
            let rest = self.rest();
            if open.is_empty() && self.closes(end, &end_kind) {
                return Ok(());
            }
            let Some(first) = rest.chars().next() else {
                // The parser reports the end of the source.
                return Ok(());
            };
            if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                let length = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
                let name = &rest[..length.unwrap_or(rest.len())];
                self.push(TokenKind::Name(name.to_owned()));
                self.skip(name.len());
            } else if first == '"' || first == '\'' {
                self.text(first)?;
            } else {
                let operator = OPERATORS
                    .into_iter()
                    .find(|operator| rest.starts_with(operator));
                let Some(operator) = operator else {
                    return self.fail(format!("unexpected character {first:?}"));
                };
                match operator {
                    "{" => open.push(b'}'),
                    "(" => open.push(b')'),
                    "[" => open.push(b']'),
                    "}" | ")" | "]" if open.pop() != Some(operator.as_bytes()[0]) => {
                        return self.fail(format!("unexpected '{operator}'"));
                    }
                    _ => {}
                }
                self.push(TokenKind::Op(operator));
                self.skip(operator.len());
            }
        }
    }

    fn closes(&mut self, end: &str, end_kind: &TokenKind) -> bool {
        let rest = self.rest();
        let is_block = *end_kind == TokenKind::BlockEnd;
        let trims = rest.starts_with('-');
        let keeps = is_block && rest.starts_with('+');
        let sign = usize::from(trims || keeps);
        if !rest[sign..].starts_with(end) {
            return false;
        }
        self.push(end_kind.clone());
        self.skip(sign + end.len());
        self.after_block(trims, keeps || !is_block);
        true
    }

    fn text(&mut self, quote: char) -> Result<()> {
        let rest = self.rest();
        let mut escaped = false;
        let end = rest[1..].find(|c| {
            let closes = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        let Some(end) = end else {
            return self.fail("a string is not closed");
        };
        let text = unescape(&rest[1..=end]).or_else(|message| self.fail(message))?;
        self.push(TokenKind::Text(text));
        self.skip(end + 2);
        Ok(())
    }
}

/// The length of a `{% raw %}` tag at the start of `tag`, whose mark and sign have `opened` bytes.
fn raw_tag(tag: &str, opened: usize) -> Option<usize> {
    let word = tag[opened..]
        .trim_start_matches(is_space)
        .strip_prefix("raw")?;
    let close = word.trim_start_matches(is_space);
    let end = match close.strip_prefix("-%}") {
        Some(end) => end.trim_start_matches(is_space),
        None => close.strip_prefix("%}")?,
    };
    Some(tag.len() - end.len())
}

impl Lexer<'_> {
    pub(super) fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let after_dot = self.at > 0 && self.source.as_bytes()[self.at - 1] == b'.';
        let digits = |from: usize, is_digit: fn(u8) -> bool| {
            let mut at = from;
            while at < bytes.len() && (is_digit(bytes[at]) || (bytes[at] == b'_' && at > from)) {
                at += 1;
            }
            while at > from && bytes[at - 1] == b'_' {
                at -= 1;
            }
            at
        };
        let decimal = |c: u8| c.is_ascii_digit();
        let whole = digits(0, decimal);
        let mut end = whole;
        if !after_dot {
            if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
                end = digits(end + 1, decimal);
            }
            if matches!(bytes.get(end), Some(b'e' | b'E')) {
                let sign = usize::from(matches!(bytes.get(end + 1), Some(b'-' | b'+')));
                let power = end + 1 + sign;
                if bytes.get(power).is_some_and(u8::is_ascii_digit) {
                    end = digits(power, decimal);
                }
            }
        }
        if end > whole {
            let text = rest[..end].replace('_', "");
            let Ok(number) = text.parse() else {
                return self.fail(format!("{text} is not a number"));
            };
            self.push(TokenKind::Float(number));
            self.skip(end);
            return Ok(());
        }
        let is_radix: (u32, fn(u8) -> bool) = match bytes.get(1).map(u8::to_ascii_lowercase) {
            Some(b'x') => (16, |c| c.is_ascii_hexdigit()),
            Some(b'o') => (8, |c| (b'0'..=b'7').contains(&c)),
            Some(b'b') => (2, |c| c == b'0' || c == b'1'),
            _ => (10, |_| false),
        };
        let (radix, is_digit) = is_radix;
        let (from, end) = match digits(2.min(bytes.len()), is_digit) {
            end if radix != 10 && bytes[0] == b'0' && end > 2 => (2, end),
            _ => (0, whole),
        };
        let radix = if from == 0 { 10 } else { radix };
        let Ok(number) = i128::from_str_radix(&rest[from..end].replace('_', ""), radix) else {
            return self.fail(format!("the number {} is too large", &rest[..end]));
        };
        self.push(TokenKind::Int(number));
        self.skip(end);
        Ok(())
    }
}

/// Python's escapes in a string.
pub(super) fn unescape(text: &str) -> std::result::Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let code = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>, count: usize| {
            let digits: String = chars.by_ref().take(count).collect();
            let whole =
                digits.chars().count() == count && digits.chars().all(|c| c.is_ascii_hexdigit());
            let code = u32::from_str_radix(&digits, 16).ok().filter(|_| whole);
            code.ok_or_else(|| format!("truncated escape \\{digits}"))
        };
        let scalar = |code: u32| {
            char::from_u32(code).ok_or_else(|| format!("\\u{code:04x} is not a character"))
        };
        match chars.next() {
            Some('\n') => {}
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('a') => out.push('\x07'),
            Some('b') => out.push('\x08'),
            Some('f') => out.push('\x0c'),
            Some('v') => out.push('\x0b'),
            Some(c @ ('\\' | '\'' | '"')) => out.push(c),
            Some('x') => out.push(scalar(code(&mut chars, 2)?)?),
            Some('u') => {
                let first = code(&mut chars, 4)?;
                let mut ahead = chars.clone();
                let pair = (0xd800..0xdc00).contains(&first)
                    && ahead.next() == Some('\\')
                    && ahead.next() == Some('u');
                if pair && let Ok(second @ 0xdc00..0xe000) = code(&mut ahead, 4) {
                    chars = ahead;
                    out.push(scalar(
                        0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00),
                    )?);
                } else {
                    out.push(scalar(first)?);
                }
            }
            Some('U') => out.push(scalar(code(&mut chars, 8)?)?),
            Some(first @ '0'..='7') => {
                let mut value = first as u32 - '0' as u32;
                for _ in 0..2 {
                    let Some(digit) = chars.peek().and_then(|c| c.to_digit(8)) else {
                        break;
                    };
                    value = value * 8 + digit;
                    chars.next();
                }
                out.push(scalar(value)?);
            }
            Some('N') => return Err("\\N{..} is not supported in a string".to_owned()),
            Some(other) => {
                out.push('\\');
                out.push(other);
            }
            None => return Err("\\ at end of string".to_owned()),
        }
    }
    Ok(out)
}

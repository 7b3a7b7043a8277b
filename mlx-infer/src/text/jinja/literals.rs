//! Numbers and strings in a template's source.

use super::Result;
use super::lexer::{Kind, Lexer};

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
            self.push(Kind::Float(number));
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
        self.push(Kind::Int(number));
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

//! JSON as it comes: where a value ends, and the head of a call.

/// Finds the end of a JSON value that comes in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    has_begun: bool,
}

impl Scan {
    /// Inside of an object that was opened before.
    pub(super) fn inside() -> Self {
        Self {
            depth: 1,
            has_begun: true,
            ..Self::default()
        }
    }

    /// Reads more of an object or a list. The number of bytes up to its end, if it ends here.
    pub(super) fn read(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    self.has_begun = true;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.has_begun && self.depth == 0 {
                return Some(at + 1);
            }
        }
        None
    }
}

/// What the beginning of a text is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// It may become a call.
    Unfinished,
    /// `{"name": NAME, "arguments": ` and the place where the arguments begin, with `{`.
    Call { name: String, start: usize },
    /// An object of another order, or something else: to be looked at when it is complete.
    Other,
}

/// The head of a call in JSON.
pub(super) fn head(text: &str) -> Head {
    let mut rest = Rest(text);
    let found = (|| {
        rest.expect('{')?;
        if rest.string()? != "name" {
            return None;
        }
        rest.expect(':')?;
        let name = rest.string()?;
        rest.expect(',')?;
        let key = rest.string()?;
        if key != "arguments" && key != "parameters" {
            return None;
        }
        rest.expect(':')?;
        rest.peek('{')?;
        Some(name)
    })();
    match found {
        Some(name) => Head::Call {
            name,
            start: text.len() - rest.0.len(),
        },
        None if rest.0.is_empty() => Head::Unfinished,
        None => Head::Other,
    }
}

/// What was not read yet. At its end it is empty, which tells a text that is cut from one that is wrong.
struct Rest<'t>(&'t str);

impl Rest<'_> {
    fn peek(&mut self, wanted: char) -> Option<()> {
        self.0 = self.0.trim_start();
        self.0.starts_with(wanted).then_some(())
    }

    fn expect(&mut self, wanted: char) -> Option<()> {
        self.peek(wanted)?;
        self.0 = &self.0[wanted.len_utf8()..];
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        self.peek('"')?;
        let mut is_escaped = false;
        for (at, byte) in self.0.bytes().enumerate().skip(1) {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => {
                    let (string, rest) = self.0.split_at(at + 1);
                    let parsed = serde_json::from_str(string).ok()?;
                    self.0 = rest;
                    return Some(parsed);
                }
                _ => {}
            }
        }
        self.0 = "";
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_in_any_pieces() {
        let text = r#"{"a": "}\"{", "b": [1, {"c": "\\"}]}rest"#;
        let end = text.len() - 4;
        for cut in 0..=text.len() {
            if !text.is_char_boundary(cut) {
                continue;
            }
            let mut scan = Scan::default();
            let first = scan.read(&text[..cut]);
            let found = first.or_else(|| scan.read(&text[cut..]).map(|at| cut + at));
            assert_eq!(found, Some(end), "{cut}");
        }
    }

    #[test]
    fn heads_are_told_apart() {
        let call = r#" {"name": "f\u0031", "arguments": {"a""#;
        let start = call.find(r#"{"a""#).unwrap();
        assert_eq!(
            head(call),
            Head::Call {
                name: "f1".into(),
                start
            }
        );
        for cut in 0..=start {
            assert_eq!(head(&call[..cut]), Head::Unfinished, "{cut}");
        }
        for other in [
            r#"{"arguments": {}"#,
            r#"{"name": 3"#,
            "x",
            r#"{"name": "f", "arguments": "{}""#,
            "{}",
        ] {
            assert_eq!(head(other), Head::Other, "{other}");
        }
    }
}

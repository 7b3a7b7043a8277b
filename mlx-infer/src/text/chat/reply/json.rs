//! Reads JSON character by character.

/// The effect of a character on a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the value, which continues.
    More,
    /// It is the last of the value.
    Last,
    /// It is not part of the value, which ended before it (numbers only).
    Behind,
    /// It cannot continue the value.
    Broken,
}

/// Reads one JSON value, by RFC 8259.
#[derive(Clone, Debug)]
pub(super) struct Json {
    /// The brackets that are open.
    open: Vec<char>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before a value; `may_close` after `[`.
    Value {
        may_close: bool,
    },
    /// Before a key; `may_close` after `{`.
    Key {
        may_close: bool,
    },
    Text {
        is_key: bool,
    },
    Escape {
        is_key: bool,
    },
    /// This number of digits of `\u` is missing.
    Hex {
        is_key: bool,
        missing: u8,
    },
    Colon,
    /// After a value inside of brackets.
    After,
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Default for Json {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            state: State::Value { may_close: false },
        }
    }
}

impl Json {
    /// Takes the next character. Blanks before the value belong to it.
    pub(super) fn take(&mut self, c: char) -> Step {
        let is_blank = is_blank(c);
        self.state = match self.state {
            State::Value { .. } | State::Key { .. } | State::Colon | State::After if is_blank => {
                return Step::More;
            }
            State::Value { may_close } => match c {
                '{' => {
                    self.open.push('}');
                    State::Key { may_close: true }
                }
                '[' => {
                    self.open.push(']');
                    State::Value { may_close: true }
                }
                ']' if may_close => return self.close(c),
                '"' => State::Text { is_key: false },
                '-' => State::Number(Number::Minus),
                '0' => State::Number(Number::Zero),
                '1'..='9' => State::Number(Number::Whole),
                't' => State::Word("rue"),
                'f' => State::Word("alse"),
                'n' => State::Word("ull"),
                _ => return Step::Broken,
            },
            State::Key { may_close } => match c {
                '"' => State::Text { is_key: true },
                '}' if may_close => return self.close(c),
                _ => return Step::Broken,
            },
            State::Text { is_key } => match c {
                '"' if is_key => State::Colon,
                '"' => return self.ended(),
                '\\' => State::Escape { is_key },
                '\0'..='\u{1f}' => return Step::Broken,
                _ => return Step::More,
            },
            State::Escape { is_key } => match c {
                'u' => State::Hex { is_key, missing: 4 },
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => State::Text { is_key },
                _ => return Step::Broken,
            },
            State::Hex { is_key, missing } if c.is_ascii_hexdigit() => match missing {
                1 => State::Text { is_key },
                _ => State::Hex {
                    is_key,
                    missing: missing - 1,
                },
            },
            State::Hex { .. } => return Step::Broken,
            State::Colon if c == ':' => State::Value { may_close: false },
            State::Colon => return Step::Broken,
            State::After => match (c, self.open.last()) {
                (',', Some('}')) => State::Key { may_close: false },
                (',', Some(_)) => State::Value { may_close: false },
                _ => return self.close(c),
            },
            State::Number(number) => match number.next(c) {
                Some(number) => State::Number(number),
                None if !number.may_end() => return Step::Broken,
                None if self.open.is_empty() => return Step::Behind,
                None => {
                    self.state = State::After;
                    return self.take(c);
                }
            },
            State::Word(rest) => match rest.strip_prefix(c) {
                Some("") => return self.ended(),
                Some(rest) => State::Word(rest),
                None => return Step::Broken,
            },
        };
        Step::More
    }

    /// Whether the value has not begun.
    pub(super) fn is_front(&self) -> bool {
        self.open.is_empty() && matches!(self.state, State::Value { .. })
    }

    fn close(&mut self, c: char) -> Step {
        match self.open.pop() {
            Some(open) if open == c => self.ended(),
            _ => Step::Broken,
        }
    }

    fn ended(&mut self) -> Step {
        self.state = State::After;
        match self.open.is_empty() {
            true => Step::Last,
            false => Step::More,
        }
    }
}

impl Number {
    fn next(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus | Self::Whole, '0'..='9') => Self::Whole,
            (Self::Zero | Self::Whole, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, 'e' | 'E') => Self::Exponent,
            (Self::Exponent, '+' | '-') => Self::Sign,
            (Self::Exponent | Self::Sign | Self::Power, '0'..='9') => Self::Power,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Whole | Self::Fraction | Self::Power
        )
    }
}

/// White space of JSON.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether the text is one value.
    fn accepts(text: &str) -> bool {
        let mut json = Json::default();
        let mut has_ended = false;
        for c in text.chars().chain([' ']) {
            if has_ended {
                if !is_blank(c) {
                    return false;
                }
                continue;
            }
            match json.take(c) {
                Step::More => {}
                Step::Last => has_ended = true,
                Step::Behind if is_blank(c) => has_ended = true,
                Step::Behind => return false,
                Step::Broken => return false,
            }
        }
        has_ended
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn accepts_what_serde_json_accepts(text in r#"[-{}\[\],:"0-2.eE+ \\untrfalsb]{0,12}"#) {
            // A number may be too large for serde_json, and surrogates must come in pairs.
            let parsed = serde_json::from_str::<serde_json::Value>(&text);
            let by_value = parsed.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
            prop_assert_eq!(accepts(&text), parsed.is_ok() || by_value, "{:?}", text);
        }
    }

    #[test]
    fn values_end_where_they_end() {
        for text in [
            r#"{"a": "}\"{", "b": [1, {"c": "\\"}, -0.5e+3, true], "d": {}}"#,
            "[]",
            "\"\\u00e9\"",
            "null",
        ] {
            assert!(accepts(text), "{text}");
            let mut json = Json::default();
            let steps: Vec<Step> = text.chars().map(|c| json.take(c)).collect();
            assert_eq!(
                steps.iter().position(|step| *step != Step::More),
                Some(steps.len() - 1)
            );
        }
        for bad in [
            "{\"a\" 1}",
            "[1,]",
            "{,}",
            "\"a\nb\"",
            "01",
            "1.",
            "\"\\x\"",
            "nul",
            "{]",
            "\"\\u12g4\"",
        ] {
            assert!(!accepts(bad), "{bad}");
        }
    }
}

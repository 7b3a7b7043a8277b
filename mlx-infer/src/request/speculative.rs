//! Whether tokens are drafted, and how many.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};

use crate::error::{Error, Result};

/// The most tokens of a draft. Rings of sliding windows have this number of extra slots.
pub const MOST: usize = 8;

/// Whether tokens are drafted for a request, and how many at a time.
///
/// Drafts come from the request's own text: the tokens that followed an earlier occurrence of its last tokens (prompt
/// lookup, also called n-gram speculation). This pays if an answer repeats its prompt: edits of a text, code,
/// summaries, extraction. If there is no earlier occurrence, a head for multi-token prediction drafts, if the
/// checkpoint has one and it was loaded with [`LoadOptions::max_draft`](crate::LoadOptions::max_draft) above 0.
///
/// In JSON and on the command line: `"off"`, `"auto"`, or a number from 1 to 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculative {
    /// One token a step.
    #[default]
    Off,
    /// As many tokens as are expected to pay, given the measured time of steps and the acceptance
    /// rate of the row's recent drafts.
    Auto,
    /// This number, 1 to 8, whenever there is a draft.
    Tokens(usize),
}

impl Speculative {
    /// The longest draft that it allows.
    pub fn most(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Auto => MOST,
            Self::Tokens(tokens) => tokens.min(MOST),
        }
    }

    /// Checks the number.
    ///
    /// # Errors
    /// It is not from 1 to 8.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Tokens(tokens) if !(1..=MOST).contains(&tokens) => Err(Error::argument(format!(
                "speculative must be off, auto, or from 1 to {MOST}, given {tokens}"
            ))),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Speculative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Tokens(tokens) => write!(f, "{tokens}"),
        }
    }
}

impl FromStr for Speculative {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            _ => match text.parse() {
                Ok(tokens) if (1..=MOST).contains(&tokens) => Ok(Self::Tokens(tokens)),
                _ => Err(format!("expected off, auto, or a number from 1 to {MOST}")),
            },
        }
    }
}

impl Serialize for Speculative {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Tokens(tokens) => serializer.serialize_u64(*tokens as u64),
            word => serializer.collect_str(word),
        }
    }
}

impl<'de> Deserialize<'de> for Speculative {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Speculative;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"off\", \"auto\", or a number from 1 to {MOST}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Speculative, E> {
                match text {
                    "off" => Ok(Speculative::Off),
                    "auto" => Ok(Speculative::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_u64<E: de::Error>(self, tokens: u64) -> std::result::Result<Speculative, E> {
                match usize::try_from(tokens) {
                    Ok(tokens) if (1..=MOST).contains(&tokens) => Ok(Speculative::Tokens(tokens)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(tokens), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, tokens: i64) -> std::result::Result<Speculative, E> {
                match u64::try_from(tokens) {
                    Ok(tokens) => self.visit_u64(tokens),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(tokens), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_is_a_word_or_a_number() {
        for (value, expected) in [
            (json!("off"), Speculative::Off),
            (json!("auto"), Speculative::Auto),
            (json!(3), Speculative::Tokens(3)),
        ] {
            let found: Speculative = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(found, expected);
            assert_eq!(serde_json::to_value(found).unwrap(), value);
            assert_eq!(expected.to_string().parse(), Ok(expected));
        }
        for wrong in [
            json!("on"),
            json!(0),
            json!(9),
            json!(-1),
            json!(2.5),
            json!("3"),
        ] {
            assert!(
                serde_json::from_value::<Speculative>(wrong.clone()).is_err(),
                "{wrong}"
            );
        }
        assert!("9".parse::<Speculative>().is_err());
        assert!(Speculative::Tokens(9).check().is_err());
    }
}

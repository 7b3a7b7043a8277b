//! The options of a request as a caller gives them: each field may be absent.
//!
//! [`SamplingParams`], [`GenerateOptions`] and [`Constraint`] define the meanings, defaults and ranges of the fields.
//! This type reads them from flags, from the JSON lines of a batch, and from the body of an HTTP request.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::request::generation::GenerateOptions;
use crate::request::grammar::{Constraint, Grammar};
use crate::request::repetition::RepetitionDetection;
use crate::request::sampling::SamplingParams;
use crate::request::speculative::Speculative;

macro_rules! request_options {
    (
        sampling { $($s:ident: $s_type:ty,)* }
        generation { $($g:ident: $g_type:ty,)* }
        grammar { $($(#[$doc:meta])* $c:ident: $c_type:ty,)* }
    ) => {
        /// The options of a request, each of which may be absent. `null` in JSON means absent.
        ///
        /// ```
        /// # fn main() -> mlx_infer::Result<()> {
        /// use mlx_infer::{GenerateOptions, RequestOptions};
        /// let given: RequestOptions = serde_json::from_str(r#"{"temperature": 0.7, "stop": ["."]}"#).unwrap();
        /// let options = given.over(&GenerateOptions::default());
        /// assert_eq!((options.sampling.temperature, options.max_tokens), (0.7, 256));
        /// options.check()
        /// # }
        /// ```
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct RequestOptions {
            $(
                #[doc = concat!("[`SamplingParams::", stringify!($s), "`].")]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $s: Option<$s_type>,
            )*
            $(
                #[doc = concat!("[`GenerateOptions::", stringify!($g), "`].")]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $g: Option<$g_type>,
            )*
            $(
                $(#[$doc])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $c: Option<$c_type>,
            )*
        }

        impl RequestOptions {
            /// The names of all options.
            pub const NAMES: &[&str] = &[
                $(stringify!($s),)* $(stringify!($g),)* $(stringify!($c),)*
            ];

            /// Removes the options from a JSON object and leaves its other keys.
            ///
            /// # Errors
            /// An option has a value of another type, or there are two grammars; the message names them.
            pub fn take_from(object: &mut Map<String, Value>) -> Result<Self> {
                let taken = Self {
                    $($s: take(object, stringify!($s))?,)*
                    $($g: take(object, stringify!($g))?,)*
                    $($c: take(object, stringify!($c))?,)*
                };
                taken.check_grammars().map(|()| taken)
            }

            /// These options, with `defaults` for those that are absent. The values are not checked
            /// ([`GenerateOptions::check`]). Of several grammars the first is used.
            pub fn over(self, defaults: &GenerateOptions) -> GenerateOptions {
                let base = defaults.clone();
                GenerateOptions {
                    grammar: self.constraint(base.grammar),
                    sampling: SamplingParams {
                        $($s: given(self.$s, base.sampling.$s),)*
                    },
                    $($g: given(self.$g, base.$g),)*
                    ..base
                }
            }
        }
    };
}

request_options! {
    sampling {
        temperature: f32,
        top_p: f32,
        top_k: usize,
        min_p: f32,
        repeat_penalty: f32,
        repeat_context: usize,
        presence_penalty: f32,
        frequency_penalty: f32,
        logit_bias: BTreeMap<u32, f32>,
        top_n_sigma: f32,
        xtc_probability: f32,
        xtc_threshold: f32,
        dry_multiplier: f32,
        dry_base: f32,
        dry_allowed_length: usize,
        dry_last_n: usize,
        dry_breakers: BTreeSet<u32>,
        seed: u64,
    }
    generation {
        max_tokens: usize,
        stop: Vec<String>,
        stop_ids: Vec<u32>,
        ignore_eos: bool,
        min_tokens: usize,
        repetition_detection: RepetitionDetection,
        logprobs: usize,
        speculative: Speculative,
    }
    grammar {
        /// [`Grammar::JsonSchema`].
        json_schema: Value,
        /// [`Grammar::Regex`].
        regex: String,
        /// [`Grammar::Choice`].
        choice: Vec<String>,
        /// [`Grammar::Lark`].
        grammar: String,
        /// [`Constraint::after`].
        grammar_after: String,
        /// [`Constraint::opener`].
        grammar_opener: String,
    }
}

impl RequestOptions {
    /// The grammars that the caller gives.
    fn grammars(&self) -> Vec<Grammar> {
        let json_schema = self.json_schema.clone().map(Grammar::JsonSchema);
        let regex = self.regex.clone().map(Grammar::Regex);
        let choice = self.choice.clone().map(Grammar::Choice);
        let lark = self.grammar.clone().map(Grammar::Lark);
        [json_schema, regex, choice, lark]
            .into_iter()
            .flatten()
            .collect()
    }

    fn check_grammars(&self) -> Result<()> {
        let all = "json_schema, regex, choice and grammar";
        match &self.grammars()[..] {
            [one, two, ..] => Err(Error::argument(format!(
                "{} and {}: expected at most one of {all}",
                one.name(),
                two.name()
            ))),
            [] if self.grammar_after.is_some() => {
                Err(Error::argument(format!("grammar_after needs one of {all}")))
            }
            [] if self.grammar_opener.is_some() => Err(Error::argument(format!(
                "grammar_opener needs one of {all}"
            ))),
            _ => Ok(()),
        }
    }

    /// The grammar that the caller gives, or `base`.
    fn constraint(&self, base: Option<Constraint>) -> Option<Constraint> {
        let given = self.grammars().into_iter().next().map(Constraint::from);
        let constraint = match (given, base) {
            (Some(given), Some(base)) => Constraint {
                grammar: given.grammar,
                ..base
            },
            (given, base) => given.or(base)?,
        };
        let after = self.grammar_after.clone().or(constraint.after);
        let opener = self.grammar_opener.clone().or(constraint.opener);
        Some(Constraint {
            after,
            opener,
            ..constraint
        })
    }
}

/// Converts a given value to the type of a field, which may be an option itself.
trait Given<T> {
    fn put(self) -> T;
}

impl<T> Given<T> for T {
    fn put(self) -> T {
        self
    }
}

impl<T> Given<Option<T>> for T {
    fn put(self) -> Option<T> {
        Some(self)
    }
}

fn given<T, G: Given<T>>(value: Option<G>, default: T) -> T {
    value.map_or(default, Given::put)
}

fn take<T: serde::de::DeserializeOwned>(
    object: &mut Map<String, Value>,
    name: &str,
) -> Result<Option<T>> {
    match object.shift_remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => T::deserialize(value)
            .map(Some)
            .map_err(|error| Error::argument(format!("{name}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_are_taken_and_the_rest_is_left() {
        let mut object = json!({
            "prompt": "x", "temperature": 0.5, "seed": 3, "logprobs": null, "logit_bias": {"7": -1.5}
        });
        let object = object.as_object_mut().unwrap();
        let found = RequestOptions::take_from(object).unwrap();
        assert_eq!(object.keys().collect::<Vec<_>>(), ["prompt"]);
        let defaults = GenerateOptions {
            max_tokens: 9,
            logprobs: Some(2),
            ..Default::default()
        };
        let options = found.clone().over(&defaults);
        assert_eq!((options.max_tokens, options.logprobs), (9, Some(2)));
        assert_eq!(options.sampling.seed, Some(3));
        assert_eq!(options.sampling.logit_bias, BTreeMap::from([(7, -1.5)]));
        assert_eq!(
            serde_json::to_value(&found).unwrap(),
            json!({"temperature": 0.5, "logit_bias": {"7": -1.5}, "seed": 3})
        );
        assert!(RequestOptions::NAMES.contains(&"min_p"));
    }

    #[test]
    fn one_grammar_is_taken() {
        let take = |mut value: Value| RequestOptions::take_from(value.as_object_mut().unwrap());
        let flags = GenerateOptions {
            grammar: Some(Constraint {
                after: Some("</think>".to_owned()),
                ..Grammar::Regex("a".to_owned()).into()
            }),
            ..Default::default()
        };
        let none = GenerateOptions::default();
        let found = take(json!({"choice": ["a", "b"]})).unwrap();
        let choice = Grammar::Choice(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(
            found.clone().over(&none).grammar,
            Some(choice.clone().into())
        );
        let over = found.over(&flags).grammar.unwrap();
        assert_eq!(over.grammar, choice);
        assert_eq!(over.after.as_deref(), Some("</think>"));
        let found = take(json!({"json_schema": true, "grammar_after": "x"})).unwrap();
        let over = found.over(&flags).grammar.unwrap();
        assert_eq!(over.grammar, Grammar::JsonSchema(json!(true)));
        assert_eq!((over.after.as_deref(), over.strict), (Some("x"), true));
        let nothing = take(json!({"regex": null})).unwrap();
        assert_eq!(nothing.over(&flags).grammar, flags.grammar);
        for (value, message) in [
            (
                json!({"regex": "a", "grammar": "start: \"a\""}),
                "regex and grammar: expected at most one of json_schema, regex, choice and grammar",
            ),
            (
                json!({"grammar_after": "x"}),
                "grammar_after needs one of json_schema, regex, choice and grammar",
            ),
            (
                json!({"choice": "a"}),
                "choice: invalid type: string \"a\", expected a sequence",
            ),
        ] {
            assert_eq!(take(value).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_value_of_another_type_is_named() {
        for (value, message) in [
            (
                json!({"temperature": "hot"}),
                "temperature: invalid type: string",
            ),
            (
                json!({"max_tokens": -1}),
                "max_tokens: invalid value: integer `-1`",
            ),
            (json!({"stop": "x"}), "stop: invalid type: string"),
        ] {
            let mut value = value;
            let error = RequestOptions::take_from(value.as_object_mut().unwrap()).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
        }
        let unknown = serde_json::from_str::<RequestOptions>(r#"{"tpo_p": 1}"#).unwrap_err();
        assert!(unknown.to_string().contains("unknown field `tpo_p`"));
    }
}

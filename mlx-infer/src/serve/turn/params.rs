//! Reads the options of a request, under the names of OpenAI, vLLM and llama.cpp.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind};
use crate::model::checked::{Checked, Refusal, RefusedPart};
use crate::model::frontend::Frontend;
use crate::request::generation::GenerateOptions;
use crate::request::json_options::RequestOptions;
use crate::request::speculative::Speculative;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::state::Loaded;
use crate::serve::turn::choices::MAX_CHOICES;
use crate::serve::turn::grammar;
use crate::text::chat::RESERVED;

/// The maximum number of stop strings of a request.
const MAX_STOPS: usize = 16;
/// Lower temperatures are taken as 0.
const LEAST_TEMPERATURE: f32 = 1e-4;

/// Texts over which no repetition reaches, if a request gives none, as in llama.cpp.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// A number of tokens that covers any text.
const WHOLE: usize = u32::MAX as usize;

/// One value or a list.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn list(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// Takes the options that all routes share, except `max_tokens`, which the caller takes.
///
/// # Errors
/// A key has a value of another type or out of range.
pub(crate) fn options(fields: &mut Fields, loaded: &Loaded) -> Result<GenerateOptions, ApiError> {
    let breakers: Option<Vec<String>> = fields.take("dry_sequence_breakers")?;
    let mut options = read(fields, &loaded.defaults)?;
    if options.sampling.penalises_repetitions() {
        let usual = || BREAKERS.map(str::to_owned).to_vec();
        let breakers = breakers.unwrap_or_else(usual);
        if breakers.iter().any(String::is_empty) || breakers.len() > MAX_STOPS {
            let message = format!(
                "dry_sequence_breakers must be at most {MAX_STOPS} texts, none of them empty"
            );
            return Err(ApiError::bad("dry_sequence_breakers", message));
        }
        options.sampling.dry_breakers = loaded.breakers(breakers)?;
    }
    Ok(options)
}

/// The same without the texts that break repetitions, which need the vocabulary.
fn read(fields: &mut Fields, defaults: &GenerateOptions) -> Result<GenerateOptions, ApiError> {
    let mut given = RequestOptions {
        temperature: fields.take("temperature")?,
        top_p: fields.take("top_p")?,
        top_k: fields.take::<i64>("top_k")?.map(top_k).transpose()?,
        min_p: fields.take("min_p")?,
        presence_penalty: fields.take("presence_penalty")?,
        frequency_penalty: fields.take("frequency_penalty")?,
        seed: fields.take::<i64>("seed")?.map(i64::cast_unsigned),
        stop_ids: fields.any(&["stop_token_ids", "stop_ids"])?,
        ignore_eos: fields.take("ignore_eos")?,
        min_tokens: fields.take("min_tokens")?,
        speculative: fields.take::<Speculative>("speculative")?,
        logit_bias: bias(fields)?,
        top_n_sigma: fields.take("top_n_sigma")?.map(|n: f32| n.max(0.0)),
        xtc_probability: fields.take("xtc_probability")?,
        xtc_threshold: fields.take("xtc_threshold")?,
        dry_multiplier: fields.take("dry_multiplier")?,
        dry_base: fields.take("dry_base")?,
        dry_allowed_length: fields.take("dry_allowed_length")?,
        repetition_detection: fields.take("repetition_detection")?,
        ..Default::default()
    };
    given.temperature = given.temperature.map(|t| match t {
        t if t > 0.0 && t < LEAST_TEMPERATURE => 0.0,
        t => t,
    });
    if given.top_p == Some(0.0) {
        // OpenAI's range begins at 0, where only the likeliest token is left.
        (given.top_p, given.top_k) = (None, Some(1));
    }
    // The penalty of vLLM and transformers looks at the whole text, that of llama.cpp at a part of
    // it.
    let whole: Option<f32> = fields.take("repetition_penalty")?;
    let part: Option<f32> = fields.take("repeat_penalty")?;
    given.repeat_penalty = whole.or(part);
    given.repeat_context = match fields.any::<i64>(&["repeat_last_n", "repeat_context"])? {
        None if whole.is_some() => Some(WHOLE),
        None => None,
        Some(-1) => Some(WHOLE),
        Some(0) => {
            given.repeat_penalty = Some(1.0);
            None
        }
        Some(n) => Some(usize::try_from(n).map_err(|_| {
            let message = format!("repeat_last_n must be at least 0, or -1 for all, given {n}");
            ApiError::bad("repeat_last_n", message)
        })?),
    };
    match fields.any::<i64>(&["dry_penalty_last_n", "dry_last_n"])? {
        None => {}
        Some(-1) => given.dry_last_n = Some(WHOLE),
        Some(0) => given.dry_multiplier = Some(0.0),
        Some(n) => {
            let last = usize::try_from(n).map_err(|_| {
                let message =
                    format!("dry_penalty_last_n must be at least 0, or -1 for all, given {n}");
                ApiError::bad("dry_penalty_last_n", message)
            })?;
            given.dry_last_n = Some(last);
        }
    }
    given.stop = stop_strings(fields, "stop")?;
    let mut options = given.over(defaults);
    options.grammar = grammar::take(fields)?;
    Ok(options)
}

/// Takes the texts that end an answer.
///
/// # Errors
/// There are too many, or they are not texts.
pub(crate) fn stop_strings(
    fields: &mut Fields,
    name: &str,
) -> Result<Option<Vec<String>>, ApiError> {
    let Some(stop) = fields.take::<OneOrMany>(name)? else {
        return Ok(None);
    };
    let stop = match stop {
        // Clients send "" for no stop string.
        OneOrMany::One(text) if text.is_empty() => return Ok(Some(Vec::new())),
        stop => stop.list(),
    };
    if let Some(at) = stop.iter().position(String::is_empty) {
        let message = format!("{name}[{at}] is empty, expected at least one character");
        return Err(ApiError::bad(name, message));
    }
    if stop.len() > MAX_STOPS {
        let message = format!("{name} has {} texts, at most {MAX_STOPS}", stop.len());
        return Err(ApiError::bad(name, message));
    }
    Ok(Some(stop))
}

fn top_k(k: i64) -> Result<usize, ApiError> {
    match k {
        -1 => Ok(0),
        k => usize::try_from(k).map_err(|_| {
            let message = format!("top_k must be at least 0, or -1 for all, given {k}");
            ApiError::bad("top_k", message)
        }),
    }
}

fn bias(fields: &mut Fields) -> Result<Option<BTreeMap<u32, f32>>, ApiError> {
    let given: Option<BTreeMap<String, f32>> = fields.take("logit_bias")?;
    let Some(given) = given else { return Ok(None) };
    let entry = |(id, bias): (String, f32)| match id.parse() {
        Ok(id) => Ok((id, bias)),
        Err(_) => {
            let message = format!("logit_bias: {id:?} is not a token id");
            Err(ApiError::bad("logit_bias", message))
        }
    };
    given
        .into_iter()
        .map(entry)
        .collect::<Result<_, _>>()
        .map(Some)
}

/// Takes the maximum number of tokens of an answer, under the first of these names that is given.
///
/// # Errors
/// It is 0, or has a value of another type.
pub(crate) fn max_tokens(fields: &mut Fields, names: &[&str]) -> Result<Option<usize>, ApiError> {
    let mut found = None;
    for name in names {
        let next: Option<usize> = fields.take(name)?;
        if next == Some(0) {
            let message = format!("{name} must be at least 1, given 0");
            return Err(ApiError::bad(*name, message));
        }
        found = found.or(next);
    }
    Ok(found)
}

/// Takes the maximum number of tokens of an answer as [`max_tokens`] does. It may be -1, llama.cpp's
/// word for no limit, which is `Some(None)`.
///
/// # Errors
/// It is another negative number or below `least`, or has a value of another type.
pub(crate) fn max_tokens_or_no_limit(
    fields: &mut Fields,
    names: &[&str],
    least: usize,
) -> Result<Option<Option<usize>>, ApiError> {
    let mut found = None;
    for name in names {
        let next = match fields.take::<i64>(name)? {
            None => None,
            Some(-1) => Some(None),
            Some(given) => {
                let most = usize::try_from(given).ok().filter(|most| *most >= least);
                let most = most.ok_or_else(|| {
                    let message = format!(
                        "{name} must be at least {least}, or -1 for no limit, given {given}"
                    );
                    ApiError::bad(*name, message)
                })?;
                Some(Some(most))
            }
        };
        found = found.or(next);
    }
    Ok(found)
}

/// Takes `chat_template_kwargs`, variables of the chat template.
///
/// # Errors
/// It is not an object, or has a variable for which there is an option.
pub(crate) fn kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    let kwargs: Map<String, Value> = fields.take(NAME)?.unwrap_or_default();
    match kwargs.keys().find(|key| RESERVED.contains(&key.as_str())) {
        Some(key) => Err(ApiError::bad(
            NAME,
            format!("{NAME}: {key} has an option of its own"),
        )),
        None => Ok(kwargs),
    }
}

/// Takes `n`.
///
/// # Errors
/// It is out of range.
pub(crate) fn choices(fields: &mut Fields) -> Result<usize, ApiError> {
    match fields.take::<usize>("n")?.unwrap_or(1) {
        n @ 1..=MAX_CHOICES => Ok(n),
        n => {
            let message = format!("n must be in 1..={MAX_CHOICES}, given {n}");
            Err(ApiError::bad("n", message))
        }
    }
}

/// Takes `best_of`: the number of answers that are generated, of which the `n` best are returned.
///
/// # Errors
/// It is less than `n`, or too large.
pub(crate) fn best_of(fields: &mut Fields, n: usize) -> Result<usize, ApiError> {
    match fields.take::<usize>("best_of")?.unwrap_or(n) {
        tried if (n..=MAX_CHOICES).contains(&tried) => Ok(tried),
        tried => {
            let message = format!("best_of must be in n..={MAX_CHOICES}, n is {n}, given {tried}");
            Err(ApiError::bad("best_of", message))
        }
    }
}

/// Checks the length of a prompt's text before it is tokenised, which takes time and memory.
///
/// # Errors
/// It has too many tokens for the model's positions, however it is tokenised.
pub(crate) fn check_length(frontend: &Frontend, prompt: &str, text: &str) -> Result<(), ApiError> {
    // A token has at least one byte, which gives the least number of tokens.
    let max = frontend
        .info()
        .max_positions
        .filter(|max| text.len() >= *max);
    let (Some(max), Some(tokenizer)) = (max, frontend.tokenizer_if_any()) else {
        return Ok(());
    };
    let least = tokenizer.least_tokens(text);
    if least < max {
        return Ok(());
    }
    let message = format!(
        "the prompt has {} bytes, which are at least {least} tokens; the model's context length is {max} tokens, of which one is for the answer",
        text.len()
    );
    Err(ApiError::bad(prompt, message).with_code("context_length_exceeded"))
}

/// Checks a prompt with its options, and names the parameter at fault. `prompt` is the name of the
/// prompt's parameter, `form` that of the parameter from which the grammar comes.
///
/// # Errors
/// The prompt is too long for the model or has ids outside its vocabulary, or an option is out of
/// range.
pub(crate) fn check(
    frontend: &Frontend,
    prompt: &str,
    form: &str,
    ids: Vec<u32>,
    options: GenerateOptions,
) -> Result<Checked, ApiError> {
    let vocab = frontend.info().vocab.unsigned_abs();
    let unknown = |name: &str, id: u32| {
        let message = format!("{name}: token id {id} is outside the model's vocabulary of {vocab}");
        ApiError::bad(name, message)
    };
    // The library accepts stop tokens outside the vocabulary, which are never generated.
    let stop_id = options.stop_ids.iter().max().copied();
    let checked = frontend.accept(ids, options);
    let checked = checked.map_err(|Refusal { part, error }| match part {
        RefusedPart::Length { tokens, positions } => {
            let message = format!(
                "the prompt has {tokens} tokens; the model's context length is {positions} tokens, of which one is for the answer"
            );
            ApiError::bad(prompt, message).with_code("context_length_exceeded")
        }
        RefusedPart::Prompt(id) => unknown(prompt, id),
        RefusedPart::LogitBias(id) => unknown("logit_bias", id),
        RefusedPart::Grammar => ApiError::from(error).with_param(form),
        RefusedPart::Options => of_option(error),
    })?;
    match stop_id.filter(|&id| id >= vocab) {
        Some(id) => Err(unknown("stop_token_ids", id)),
        None => Ok(checked),
    }
}

/// The error of an option, with the name of the option's parameter.
fn of_option(error: Error) -> ApiError {
    let message = error.to_string();
    let kind = error.kind();
    let refused = ApiError::from(error);
    // Messages of options begin with the option's name.
    let name = message.split([' ', ':']).next().unwrap_or_default();
    let param = match name {
        "repeat_penalty" => "repetition_penalty",
        "stop_ids" => "stop_token_ids",
        name => name,
    };
    match kind == ErrorKind::Argument && RequestOptions::NAMES.contains(&name) {
        true => refused.with_param(param),
        false => refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(json: &str) -> Result<GenerateOptions, ApiError> {
        let mut fields = Fields::parse(json.as_bytes(), false, Default::default())?;
        let found = read(&mut fields, &GenerateOptions::default())?;
        assert!(fields.end(&[])?.is_empty(), "{json}");
        Ok(found)
    }

    #[test]
    fn names_of_other_servers_are_read() {
        let options = taken(
            r#"{"temperature": 1e-5, "top_p": 0, "top_k": -1, "stop": "x", "seed": -1, "logit_bias": {"7": -100},
                "repetition_penalty": 1.1, "stop_token_ids": [3], "min_tokens": 5}"#,
        )
        .unwrap();
        let sampling = options.sampling;
        assert_eq!(
            (sampling.temperature, sampling.top_p, sampling.top_k),
            (0.0, 1.0, 1)
        );
        assert_eq!(
            (sampling.seed, sampling.logit_bias[&7]),
            (Some(u64::MAX), -100.0)
        );
        assert_eq!(
            (sampling.repeat_penalty, sampling.repeat_context),
            (1.1, WHOLE)
        );
        assert_eq!(
            (options.stop, options.stop_ids, options.min_tokens),
            (vec!["x".to_owned()], vec![3], 5)
        );
    }

    #[test]
    fn faults_name_the_parameter() {
        for (json, param) in [
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"stop": 3}"#, "stop"),
            (r#"{"stop": ["a", ""]}"#, "stop"),
            (r#"{"logit_bias": {"x": 1}}"#, "logit_bias"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"min_tokens": -4}"#, "min_tokens"),
            (r#"{"repeat_last_n": -2}"#, "repeat_last_n"),
            (r#"{"dry_penalty_last_n": -2}"#, "dry_penalty_last_n"),
            (r#"{"repetition_detection": {}}"#, "repetition_detection"),
            (
                r#"{"stop": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]}"#,
                "stop",
            ),
        ] {
            assert_eq!(
                taken(json).unwrap_err().param.as_deref(),
                Some(param),
                "{json}"
            );
        }
    }
}

//! `POST /v1/systemone`: typed questions about a state, each answered with the probability of each
//! allowed answer. No text is generated.
//!
//! Each question becomes a conversation of one user message: the state, the question, and its
//! answers with one label each. The labels are scored at the beginning of the reply
//! ([`classify`](crate::serve::routes::classify)). All questions begin with the state, which is
//! computed once.

use axum::Json;
use axum::http::HeaderMap;
use serde_json::{Map, Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Ask;
use crate::serve::http::room::heavy;
use crate::serve::routes::classify::computed;
use crate::serve::state::Loaded;
use crate::serve::turn::params;
use crate::serve::turn::{prepared, written};
use crate::tasks::classify::{ClassifyOptions, LabelScores};
use crate::text::chat::{Message, RenderOptions};

/// Most questions of a request.
const MAX_QUESTIONS: usize = 1024;
/// Most answers of a choice.
const MAX_CHOICES: usize = 256;
/// Most levels of a score.
const MAX_LEVELS: usize = 10;

enum Kind {
    /// One of these options.
    Choice(Vec<String>),
    /// Yes or no.
    Noul,
    /// A level, with the text of each.
    Score(Vec<String>),
}

struct Question {
    name: String,
    kind: Kind,
    /// The part of the user message after the state.
    text: String,
    labels: Vec<String>,
}

pub(crate) async fn systemone(ask: Ask) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let state = text_of(&fields.require::<Value>("state")?);
    let asked: Map<String, Value> = fields.require("questions")?;
    let mut kwargs: Map<String, Value> = params::kwargs(&mut fields)?;
    kwargs.entry("enable_thinking").or_insert(false.into());
    let long = fields.long().or(asked.len() > 1);
    let headers = fields.end(&[])?;
    if asked.is_empty() || asked.len() > MAX_QUESTIONS {
        let n = asked.len();
        let message = format!("questions has {n} entries, expected 1 to {MAX_QUESTIONS}");
        return Err(ApiError::bad("questions", message));
    }
    let asked = asked.into_iter().map(|(name, question)| {
        let place = format!("questions.{name}");
        Question::read(name, &question)
            .map_err(|what| ApiError::bad(&place, format!("{place}: {what}")))
    });
    let asked: Vec<Question> = asked.collect::<Result<_, _>>()?;
    let render = RenderOptions {
        add_generation_prompt: true,
        kwargs,
        ..Default::default()
    };
    let (encoded, tokens) = heavy(long, || -> Result<_, ApiError> {
        let prompts = asked.iter().map(|question| {
            let ids = question.prompt(loaded, &state, &render)?;
            Ok((ids, question.labels.clone()))
        });
        let prompts: Vec<_> = prompts.collect::<Result<_, ApiError>>()?;
        let tokens: usize = prompts.iter().map(|(ids, _)| ids.len()).sum();
        Ok((loaded.frontend().encode_each(prompts)?, tokens))
    })?;
    trace.prompt(tokens);
    let options = ClassifyOptions {
        ..Default::default()
    };
    let results = computed(&app, &served, encoded, options).await?;
    let mut answers = Map::new();
    for (question, result) in asked.into_iter().zip(results) {
        let scores = result
            .map_err(|error| ApiError::from(error).with_param("state"))?
            .labels;
        let scores = scores.ok_or_else(ApiError::internal)?;
        answers.insert(question.name, answer(&question.kind, &scores));
    }
    let usage = json!({"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens});
    let body = json!({"model": served.name, "answers": answers, "usage": usage});
    Ok((headers, Json(body)))
}

impl Question {
    fn read(name: String, question: &Value) -> Result<Self, String> {
        let instructions = match &question["instructions"] {
            Value::Null => return Err("instructions is missing".to_owned()),
            instructions => text_of(instructions),
        };
        let criteria = &question["criteria"];
        let (kind, answers, ask) = match question["type"].as_str() {
            Some("choice") => {
                let Value::Object(options) = criteria else {
                    return Err("criteria must be an object of options".to_owned());
                };
                check("options", options.len(), MAX_CHOICES)?;
                let names: Vec<String> = options.keys().cloned().collect();
                let texts = options.iter().map(|(name, text)| match text {
                    Value::Null => name.clone(),
                    text => format!("{name}: {}", text_of(text)),
                });
                let labels = letters(names.len());
                let answers: Vec<_> = labels.into_iter().zip(texts).collect();
                (Kind::Choice(names), answers, "the letter of one option")
            }
            Some("score") => {
                let Value::Array(levels) = criteria else {
                    return Err("criteria must be a list of levels, the lowest first".to_owned());
                };
                check("levels", levels.len(), MAX_LEVELS)?;
                let levels: Vec<String> = levels.iter().map(text_of).collect();
                let labels = (0..levels.len()).map(|level| level.to_string());
                let answers: Vec<_> = labels.zip(levels.clone()).collect();
                (Kind::Score(levels), answers, "the number of one level")
            }
            Some("noul") => {
                let side = |label: &str, key: &str| {
                    let text = match &criteria[key] {
                        Value::Null => key.to_owned(),
                        text => text_of(text),
                    };
                    (label.to_owned(), text)
                };
                let answers = vec![side("yes", "true"), side("no", "false")];
                (Kind::Noul, answers, "yes or no")
            }
            kind => {
                let given = kind.map_or("none".to_owned(), |kind| format!("{kind:?}"));
                return Err(format!("type must be choice, noul or score, given {given}"));
            }
        };
        let lines = answers
            .iter()
            .map(|(label, text)| format!("{label}: {text}\n"));
        let lines: String = lines.collect();
        Ok(Self {
            name,
            kind,
            text: format!("{instructions}\n{lines}Answer with {ask}, and nothing else."),
            labels: answers.into_iter().map(|(label, _)| label).collect(),
        })
    }

    /// The ids of the prompt after which the labels are scored.
    fn prompt(
        &self,
        loaded: &Loaded,
        state: &str,
        render: &RenderOptions,
    ) -> Result<Vec<u32>, ApiError> {
        let message = Message::new("user", format!("{state}\n\n{}", self.text));
        let text = written(loaded, &prepared(loaded, vec![message])?, render)?;
        if loaded.reply_format()?.begins_in_reasoning(&text) {
            let message = "the model's chat template opens the reasoning of each reply, and answers are read at the beginning of a reply";
            return Err(ApiError::bad("chat_template_kwargs", message));
        }
        Ok(loaded.frontend().tokenizer()?.encode(&text, false)?)
    }
}

fn check(name: &str, n: usize, most: usize) -> Result<(), String> {
    match n {
        _ if (2..=most).contains(&n) => Ok(()),
        n => Err(format!("criteria has {n} {name}, expected 2 to {most}")),
    }
}

/// `n` labels of equal length, so that none is a prefix of another: `A`, `B`, …, or `AA`, `AB`, ….
fn letters(n: usize) -> Vec<String> {
    let letter = |at: usize| char::from(b'A' + at as u8).to_string();
    match n {
        0..=26 => (0..n).map(letter).collect(),
        _ => (0..n)
            .map(|at| letter(at / 26) + &letter(at % 26))
            .collect(),
    }
}

/// A text as it is, and other values as JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn answer(kind: &Kind, scores: &LabelScores) -> Value {
    let probabilities = &scores.probabilities;
    let by_name = |names: &mut dyn Iterator<Item = String>| -> Map<String, Value> {
        names.zip(probabilities.iter().map(|&p| p.into())).collect()
    };
    let mut answer = match kind {
        Kind::Choice(names) => json!({
            "type": "choice",
            "choice": names[scores.best],
            "probabilities": by_name(&mut names.iter().cloned()),
            "confidence": probabilities[scores.best],
        }),
        Kind::Noul => json!({"type": "noul", "noul": probabilities[0]}),
        Kind::Score(levels) => {
            let weighted = probabilities.iter().enumerate();
            let score: f64 = weighted.map(|(level, p)| level as f64 * p).sum();
            let legend = levels.iter().enumerate();
            let legend = legend.map(|(level, text)| (level.to_string(), text.clone().into()));
            json!({
                "type": "score",
                "score": score,
                "probabilities": by_name(&mut (0..levels.len()).map(|level| level.to_string())),
                "legend": legend.collect::<Map<String, Value>>(),
                "confidence": probabilities[scores.best],
            })
        }
    };
    // The probability that the reply begins with one of the labels.
    let mass: f64 = scores.logprobs.iter().map(|logprob| logprob.exp()).sum();
    answer["label_mass"] = mass.into();
    answer
}

//! Structured output: every text matches its grammar.

mod command;
mod drafts;
mod refusals;
mod rows;

use std::ops::ControlFlow;

use mlx_infer::{
    Constraint, FinishReason, GenerateOptions, Generated, Grammar, Limits, LoadOptions,
    LoadedModel, Request, SamplingParams,
};
use serde_json::{Value, json};

use crate::checkpoint::with_tokenizer;

pub fn model() -> LoadedModel {
    LoadedModel::load_default().unwrap()
}

pub fn regex(regex: &str) -> Grammar {
    Grammar::Regex(regex.to_owned())
}

/// Options that sample at temperature 1.
pub fn with(grammar: impl Into<Option<Grammar>>, max_tokens: usize, seed: u64) -> GenerateOptions {
    GenerateOptions {
        sampling: SamplingParams {
            temperature: 1.0,
            seed: Some(seed),
            ..Default::default()
        },
        max_tokens,
        grammar: grammar.into().map(Constraint::from),
        logprobs: Some(3),
        ..Default::default()
    }
}

pub fn alone(model: &LoadedModel, prompt: &str, options: &GenerateOptions) -> Generated {
    let mut generation = model.generate(prompt, options).unwrap();
    generation.run(|_| ControlFlow::Continue(())).unwrap()
}

pub fn text(generated: &Generated) -> &str {
    generated.text.as_deref().unwrap()
}

/// The results of the grammar for many seeds, computed as one batch.
fn sampled(
    model: &LoadedModel,
    grammar: &Grammar,
    seeds: u64,
    max_tokens: usize,
) -> Vec<Generated> {
    sampled_with(model, seeds, &with(grammar.clone(), max_tokens, 0))
}

fn sampled_with(model: &LoadedModel, seeds: u64, options: &GenerateOptions) -> Vec<Generated> {
    let request = |seed| {
        let mut options = options.clone();
        options.sampling.seed = Some(seed);
        Request::new("The red fox", options)
    };
    let requests = (0..seeds).map(request).collect();
    let results = model.batch_generate(requests, &Limits::default()).unwrap();
    let results = results.into_iter();
    results
        .map(|result| result.into_generated().unwrap())
        .collect()
}

pub fn fox() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "eats": {
                "type": "array",
                "items": {"enum": ["berry", "egg", "fish"]},
                "minItems": 1,
                "maxItems": 3
            },
            "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/home"}]}
        },
        "required": ["name", "age", "eats", "home"],
        "additionalProperties": false,
        "$defs": {
            "home": {
                "type": "object",
                "properties": {"dry": {"type": "boolean"}},
                "required": ["dry"],
                "additionalProperties": false
            }
        }
    })
}

fn is_fox(text: &str) -> bool {
    let Ok(Value::Object(fox)) = serde_json::from_str(text) else {
        return false;
    };
    let name = fox["name"].as_str().is_some_and(|s| s.chars().count() <= 8);
    let age = fox["age"].as_u64().is_some_and(|age| age <= 120);
    let eats = fox["eats"].as_array().is_some_and(|list| {
        let known = |item: &Value| ["berry", "egg", "fish"].contains(&item.as_str().unwrap_or("?"));
        (1..=3).contains(&list.len()) && list.iter().all(known)
    });
    let home = match &fox["home"] {
        Value::Null => true,
        Value::Object(home) => home.len() == 1 && home["dry"].is_boolean(),
        _ => false,
    };
    fox.len() == 4 && name && age && eats && home
}

#[test]
fn a_schema_holds_for_every_seed() {
    let model = model();
    // The model has not learnt JSON, and prefers blanks.
    let tokenizer = model.tokenizer().unwrap();
    let is_blank = |id: &u32| {
        let text = tokenizer.decode(&[*id], true).unwrap();
        !text.is_empty() && text.chars().all(char::is_whitespace)
    };
    let blanks = (0..model.info().vocab as u32).filter(is_blank);
    let mut options = with(Grammar::JsonSchema(fox()), 200, 0);
    options.sampling.logit_bias = blanks.map(|id| (id, -12.0)).collect();
    let mut texts = Vec::new();
    for generated in sampled_with(&model, 24, &options) {
        let text = text(&generated);
        assert_eq!(generated.reason, FinishReason::Stop, "{text}");
        assert!(is_fox(text), "{text}");
        texts.push(text.to_owned());
    }
    texts.sort();
    texts.dedup();
    assert!(texts.len() > 18, "texts that are all alike prove little");
    // White space is one blank, or a line break with blanks, which the model prefers.
    let mut most = 0;
    for generated in sampled(&model, &Grammar::JsonSchema(fox()), 4, 80) {
        for blanks in text(&generated).split(|c: char| !c.is_ascii_whitespace()) {
            let line = blanks.strip_prefix('\n').map(|line| line.trim_matches(' '));
            assert!(
                ["", " "].contains(&blanks) || line == Some(""),
                "{blanks:?}"
            );
            most = most.max(blanks.len());
        }
    }
    assert_eq!(most, 21);
    // Multiples, integer and fractional.
    let schema = json!({"type": "array", "items": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 999},
        "prefixItems": [{"type": "number", "multipleOf": 0.25, "minimum": 1, "maximum": 9}], "minItems": 2, "maxItems": 2});
    let options = GenerateOptions {
        grammar: Some(Grammar::JsonSchema(schema).into()),
        ..options
    };
    for generated in sampled_with(&model, 8, &options) {
        let [quarters, sevens]: [f64; 2] = serde_json::from_str(text(&generated)).unwrap();
        assert!(
            (quarters * 4.0).fract() == 0.0 && sevens % 7.0 == 0.0,
            "{}",
            text(&generated)
        );
    }
    // A schema cannot set the compiler's own options.
    let mut schema = json!({"type": "boolean"});
    schema["x-guidance"] = json!({"lenient": true, "no such": 1});
    for generated in sampled(&model, &Grammar::JsonSchema(schema), 4, 20) {
        assert!(["true", "false"].contains(&text(&generated)));
    }
}

#[test]
fn regular_expressions_choices_and_grammars_hold() {
    let model = model();
    for expression in ["[A-Z][a-z]{2,5} [0-9]{3}", "^[A-Z][a-z]{2,5} [0-9]{3}$"] {
        for generated in sampled(&model, &regex(expression), 16, 40) {
            let (word, number) = text(&generated).split_once(' ').unwrap();
            assert!((3..=6).contains(&word.len()), "{word}");
            let (first, rest) = word.split_at(1);
            assert!(first.chars().all(|c| c.is_ascii_uppercase()), "{word}");
            assert!(rest.chars().all(|c| c.is_ascii_lowercase()), "{word}");
            assert!(number.len() == 3 && number.chars().all(|c| c.is_ascii_digit()));
            assert_eq!(generated.reason, FinishReason::Stop);
        }
    }
    // One text begins another; there are quotes, line ends and characters of several bytes.
    let texts = ["a", "ab", "say \"é\"\n", "\\d", "日本"];
    let mut found = Vec::new();
    let choice = Grammar::Choice(texts.map(str::to_owned).into());
    for generated in sampled(&model, &choice, 24, 40) {
        assert_eq!(generated.reason, FinishReason::Stop);
        let at = texts.iter().position(|known| *known == text(&generated));
        found.push(at.unwrap_or_else(|| panic!("{:?}", text(&generated))));
    }
    found.sort_unstable();
    found.dedup();
    assert!(found.len() > 1);
    let lark = "start: sum\nsum: NUMBER | \"(\" sum \"+\" sum \")\"\nNUMBER: /[1-9][0-9]?/";
    for generated in sampled(&model, &Grammar::Lark(lark.to_owned()), 24, 60) {
        let text = text(&generated);
        let (mut open, mut is_sum) = (0, true);
        for c in text.chars() {
            open += i32::from(c == '(') - i32::from(c == ')');
            is_sum &= open >= 0 && "()+0123456789".contains(c);
        }
        assert!(
            is_sum && (open == 0 || generated.reason == FinishReason::Length),
            "{text}"
        );
    }
}

#[test]
fn a_generation_ends_where_its_text_does() {
    let model = model();
    let eos = model.eos_ids();
    // No token can follow, so the text ends without an end token.
    let options = with(regex("a red fox"), 40, 1);
    let generated = alone(&model, "The red fox", &options);
    assert_eq!(
        (text(&generated), generated.reason),
        ("a red fox", FinishReason::Stop)
    );
    assert!(
        generated
            .tokens
            .iter()
            .all(|token| !eos.contains(&token.id))
    );
    // The end is allowed exactly where the text is complete.
    let mut ends = Vec::new();
    for seed in 0..24 {
        let generated = alone(&model, "47 + 38 =", &with(regex(" ?[0-9]{2,6}"), 40, seed));
        assert_eq!(generated.reason, FinishReason::Stop);
        let number = text(&generated).trim_start();
        assert!((2..=6).contains(&number.len()), "{number}");
        ends.push(eos.contains(&generated.tokens.last().unwrap().id));
    }
    assert!(ends.contains(&true), "no text was ended by the model");
    // Without end tokens the text goes on as long as the grammar allows.
    let options = GenerateOptions {
        ignore_eos: true,
        ..with(regex("a{2,4}"), 40, 3)
    };
    let generated = alone(&model, "The red fox", &options);
    assert_eq!(
        (text(&generated), generated.reason),
        ("aaaa", FinishReason::Stop)
    );
    // The caller's stop token is allowed where the text is complete.
    let dot = model.tokenizer().unwrap().encode(".", false).unwrap();
    let options = GenerateOptions {
        stop_ids: dot.clone(),
        sampling: SamplingParams {
            logit_bias: [(dot[0], 1000.0)].into(),
            ..Default::default()
        },
        ..options
    };
    let generated = alone(&model, "The red fox", &options);
    assert_eq!(
        (text(&generated), generated.reason),
        ("aa", FinishReason::Stop)
    );
    // Texts that `max_tokens`, a stop string or a stop token cuts.
    let generated = alone(&model, "The red fox", &with(regex("[a-z]{80}"), 3, 1));
    assert_eq!(generated.reason, FinishReason::Length);
    assert_eq!(generated.tokens.len(), 3);
    let options = GenerateOptions {
        stop: vec!["fox".to_owned()],
        ..with(regex("a red fox runs"), 40, 1)
    };
    let generated = alone(&model, "The red fox", &options);
    assert_eq!(
        (text(&generated), generated.reason),
        ("a red ", FinishReason::Stop)
    );
}

/// As in vLLM the mask is applied before log probabilities are computed: they are those of the actual choice.
#[test]
fn logprobs_are_of_the_allowed_tokens() {
    let model = model();
    let generated = alone(&model, "The red fox", &with(regex("[ab]"), 40, 1));
    assert_eq!(generated.tokens[0].top.len(), 2);
    for token in &generated.tokens {
        let sum: f32 = token.top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!(token.top.iter().any(|(id, _)| *id == token.id));
        assert!((sum - 1.0).abs() < 1e-3, "{sum}");
    }
    let generated = alone(&model, "The red fox", &with(regex("z"), 40, 1));
    assert_eq!(generated.tokens[0].top.len(), 1);
    assert!(generated.tokens[0].logprob.unwrap().abs() < 1e-5);
}

/// Tokenizers that spell tokens in other ways, or that have more tokens than the models.
#[test]
fn texts_match_with_other_tokenizers() {
    for (tokenizer, expression) in [
        ("qwen", "[A-Z]{3,9}"),
        ("llama3", "[A-Z]{3,9}"),
        ("llama2", " ?[0-9]{3,9}"),
        ("mistral", " ?[0-9]{3,9}"),
        ("gemma", " ?[0-9]{3,9}"),
    ] {
        let dir = with_tokenizer("qwen3", tokenizer);
        let options = LoadOptions {
            dtype: Some(mlx_core::DType::F32),
            ..Default::default()
        };
        let model = LoadedModel::load(dir.path(), options).unwrap();
        assert!((model.info().vocab as usize) < model.tokenizer().unwrap().vocab_size());
        for seed in 0..6 {
            let options = with(regex(expression), 12, seed);
            let mut generation = model.generate(vec![5, 6], &options).unwrap();
            let generated = generation.run(|_| ControlFlow::Continue(())).unwrap();
            let text = text(&generated);
            let word = match tokenizer {
                // This tokenizer shows no blank at the beginning, so a blank must not be generated there.
                "gemma" => text.strip_prefix(' ').unwrap_or(text),
                _ => text,
            };
            assert!((3..=9).contains(&word.len()), "{tokenizer}: {text:?}");
            let is_right = word
                .bytes()
                .all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
            assert!(is_right, "{tokenizer}: {text:?}");
        }
    }
}

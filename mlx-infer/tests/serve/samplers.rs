//! DRY, XTC and top-n-sigma under llama.cpp's names, and answers that end because they repeat
//! themselves.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use mlx_infer::{GenerateOptions, LoadedModel, SamplingParams};
use serde_json::{Value, json};

use crate::client::SERVER;
use crate::forms::api::{APIS, Api, Asked};
use crate::forms::family::FAMILIES;

const TEXT: &str = "/v1/completions";
const PROMPT: &str = "The red fox";

fn asked(more: &Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "max_tokens": 30, "seed": 5, "temperature": 1.0});
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

fn answer(more: &Value) -> String {
    let answer = SERVER.ok(TEXT, &asked(more));
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn samplers_are_the_librarys() {
    let model = LoadedModel::load_default().unwrap();
    let tokenizer = model.tokenizer().unwrap();
    let with_text = |texts: &[&str]| -> BTreeSet<u32> {
        let ids = 0..tokenizer.vocab_size() as u32;
        let found = ids.filter(|&id| {
            let token = tokenizer.decode(&[id], false).unwrap();
            texts.iter().any(|text| token.contains(text))
        });
        found.collect()
    };
    let base = SamplingParams {
        temperature: 1.0,
        seed: Some(5),
        ..Default::default()
    };
    let run = |sampling: SamplingParams| {
        let options = GenerateOptions {
            sampling,
            max_tokens: 30,
            ..Default::default()
        };
        let mut generation = model.generate(PROMPT, &options).unwrap();
        let generated = generation.run(|_| ControlFlow::Continue(())).unwrap();
        generated.text.unwrap()
    };
    let plain = run(base.clone());
    assert_eq!(answer(&json!({})), plain);
    // Penalties change what is likeliest.
    let greedy = SamplingParams {
        temperature: 0.0,
        ..base.clone()
    };
    let dry = SamplingParams {
        dry_multiplier: 5.0,
        dry_base: 1.5,
        dry_allowed_length: 1,
        dry_last_n: 20,
        ..greedy.clone()
    };
    let cases = [
        (
            json!({"temperature": 0, "dry_multiplier": 5, "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 20}),
            SamplingParams {
                dry_breakers: with_text(&["\n", ":", "\"", "*"]),
                ..dry.clone()
            },
        ),
        (
            json!({"temperature": 0, "dry_multiplier": 5, "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 20,
                "dry_sequence_breakers": ["fox", "."]}),
            SamplingParams {
                dry_breakers: with_text(&["fox", "."]),
                ..dry
            },
        ),
        (
            json!({"xtc_probability": 0.9, "xtc_threshold": 0.05, "top_p": 0.95}),
            SamplingParams {
                xtc_probability: 0.9,
                xtc_threshold: 0.05,
                top_p: 0.95,
                ..base.clone()
            },
        ),
        (
            json!({"temperature": 3, "top_n_sigma": 0.2}),
            SamplingParams {
                temperature: 3.0,
                top_n_sigma: 0.2,
                ..base.clone()
            },
        ),
    ];
    for (more, sampling) in cases {
        let without = run(SamplingParams {
            temperature: sampling.temperature,
            ..base.clone()
        });
        let expected = run(sampling);
        assert_eq!(answer(&more), expected, "{more}");
        assert_ne!(expected, without, "{more}");
    }
}

#[test]
fn samplers_that_change_nothing_are_taken_and_others_are_checked() {
    let plain = answer(&json!({}));
    // Values that change nothing.
    for more in [
        json!({"dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1}),
        json!({"dry_multiplier": 0.8, "dry_penalty_last_n": 0}),
        json!({"xtc_probability": 0, "xtc_threshold": 0.1, "top_n_sigma": -1}),
        json!({"xtc_probability": 1, "xtc_threshold": 0.6}),
    ] {
        assert_eq!(answer(&more), plain, "{more}");
    }
    for (more, param) in [
        (json!({"dry_base": 0.5}), "dry_base"),
        (json!({"dry_multiplier": -1}), "dry_multiplier"),
        (json!({"xtc_threshold": 2}), "xtc_threshold"),
        (json!({"xtc_probability": "x"}), "xtc_probability"),
        (
            json!({"dry_multiplier": 1, "dry_sequence_breakers": [""]}),
            "dry_sequence_breakers",
        ),
        (
            json!({"repetition_detection": {"max_pattern_size": 0, "min_count": 2}}),
            "repetition_detection",
        ),
    ] {
        let answer = SERVER.post(TEXT, &asked(&more));
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{more}"
        );
    }
}

#[test]
fn an_answer_that_repeats_itself_ends_if_that_is_asked_for() {
    let scripted = FAMILIES[0].start();
    let letters = ["x", "a", "b", "a", "b", "a", "b", "a", "b", "c"];
    let detection = json!({"max_pattern_size": 4, "min_count": 3});
    for api in APIS {
        let mut body = api.body(Asked::default());
        let short = api.body(Asked {
            max_tokens: Some(1),
            ..Asked::default()
        });
        let prompt = api.prompt_tokens(&scripted.server.ok(api.path(), &short));
        scripted.says(prompt, &letters);
        let whole = api.whole(&scripted.server.ok(api.path(), &body));
        assert_eq!(whole.content, letters.concat());
        body["repetition_detection"] = detection.clone();
        let answer = scripted.server.ok(api.path(), &body);
        let reason = match api {
            Api::Chat => &answer["choices"][0]["finish_reason"],
            Api::Responses => &answer["incomplete_details"]["reason"],
            Api::Messages => &answer["stop_reason"],
        };
        let expected = match api {
            Api::Messages => "max_tokens",
            _ => "repetition",
        };
        assert_eq!(reason, expected, "{answer}");
        let text = answer.to_string();
        assert!(text.contains("\"xababab\""), "{text}");
    }
    let metric = "vllm:request_success_total{finished_reason=\"repetition\"}";
    let metrics = scripted.server.get("/metrics").body;
    assert!(
        metrics.contains("finished_reason=\"repetition\""),
        "{metric}"
    );
}

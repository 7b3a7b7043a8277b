//! Every body gets an answer in JSON, and the server keeps working.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::client::SERVER;

const ROUTES: [&str; 12] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/classify",
    "/v1/systemone",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/tokenize",
    "/detokenize",
];

/// Keys that have a meaning on some route.
const NAMES: &[&str] = &[
    "messages",
    "prompt",
    "input",
    "content",
    "tokens",
    "labels",
    "query",
    "documents",
    "text_1",
    "text_2",
    "dimensions",
    "encoding_format",
    "template",
    "system",
    "instructions",
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "echo",
    "stream",
    "stream_options",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "text",
    "include",
    "reasoning",
    "reasoning_effort",
    "chat_template_kwargs",
    "continue_final_message",
    "thinking",
    "output_config",
    "ignore_eos",
    "add_special_tokens",
    "with_pieces",
    "speculative",
    "guided_regex",
    "min_tokens",
    "best_of",
    "state",
    "questions",
    "suffix",
];

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..30).prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        ".{0,12}".prop_map(Value::from),
        "(user|assistant|system|tool|auto|none|json_object|function|choice|noul|score|x)"
            .prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(3, 24, 4, |inner| {
        let key = prop_oneof![
            Just("role".to_owned()),
            Just("content".to_owned()),
            Just("type".to_owned()),
            Just("text".to_owned()),
            Just("function".to_owned()),
            Just("name".to_owned()),
            Just("instructions".to_owned()),
            Just("criteria".to_owned()),
            "[a-z]{0,4}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4)
                .prop_map(|pairs| pairs.into_iter().collect::<Map<_, _>>().into()),
        ]
    })
}

fn good(name: &str) -> Option<Value> {
    Some(match name {
        "messages" => json!([{"role": "user", "content": "hi"}]),
        "prompt" | "input" => json!("hi"),
        "labels" => json!(["a", "b"]),
        "tokens" => json!([5, 6]),
        "state" => json!("hi"),
        "questions" => json!({"q": {"type": "noul", "instructions": "is it?"}}),
        _ => return None,
    })
}

fn body() -> impl Strategy<Value = Value> {
    let pair = (prop::sample::select(NAMES), value());
    let pairs = prop::collection::vec(pair, 0..6);
    (pairs, any::<[bool; 6]>()).prop_map(|(pairs, is_good)| {
        let pairs = pairs
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let mut body: Map<String, Value> = pairs.collect();
        // Without good values for these keys most bodies would fail at the first one.
        for (name, is_good) in [
            "messages",
            "prompt",
            "input",
            "tokens",
            "state",
            "questions",
        ]
        .into_iter()
        .zip(is_good)
        {
            if is_good && let Some(value) = good(name) {
                body.insert(name.to_owned(), value);
            }
        }
        body.insert("max_tokens".to_owned(), 2.into());
        body.insert("max_output_tokens".to_owned(), 2.into());
        body.into()
    })
}

/// Ten thousand bodies with `MLX_INFER_FUZZ=10000`; CI takes fewer.
#[test]
fn any_body_gets_an_answer() {
    let cases = std::env::var("MLX_INFER_FUZZ")
        .ok()
        .and_then(|n| n.parse().ok());
    let config = Config {
        cases: cases.unwrap_or(1000),
        failure_persistence: None,
        ..Config::default()
    };
    let route = prop::sample::select(&ROUTES[..]);
    let mut runner = TestRunner::new(config);
    let result = runner.run(&(route, body()), |(route, body)| {
        let answer = SERVER.post(route, &body);
        prop_assert!(
            [200, 400, 404].contains(&answer.status),
            "{route} {body}: {answer:?}"
        );
        if answer.status != 200 {
            let message = answer.json()["error"]["message"].clone();
            prop_assert!(message.as_str().is_some_and(|text| !text.is_empty()));
        }
        Ok(())
    });
    result.unwrap();
    assert_eq!(SERVER.get("/health").status, 200);
}

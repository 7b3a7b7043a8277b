//! The budget of a model's reasoning, on each route for conversations, whole and streamed.

use std::net::SocketAddr;

use mlx_infer::LoadedModel;
use mlx_infer::serve::{ServeOptions, Server};
use serde_json::{Value, json};

use crate::client::SERVER;
use crate::forms::api::{APIS, Api, Asked, Reply};
use crate::forms::family::{FAMILIES, Family};
use crate::scripted::Scripted;

/// Each letter is a token.
const THOUGHT: &str = "abcdefgh";

/// The text that is forced in a family.
fn forced(family: &Family) -> &'static str {
    match family.template {
        "harmony" => "<|end|><|start|>assistant<|channel|>",
        _ => "</think>",
    }
}

/// Adds a budget to a body, under each name that the route has.
fn bodies(api: Api, body: &Value, tokens: i64) -> Vec<Value> {
    let with = |key: &str, value: Value| {
        let mut body = body.clone();
        body[key] = value;
        body
    };
    let mut bodies: Vec<Value> = [
        "reasoning_budget",
        "reasoning_budget_tokens",
        "thinking_budget_tokens",
        "thinking_token_budget",
    ]
    .map(|key| with(key, tokens.into()))
    .to_vec();
    match api {
        Api::Chat | Api::Responses => {
            bodies.push(with("reasoning", json!({"max_tokens": tokens})));
        }
        Api::Messages => {
            let thinking = json!({"type": "enabled", "budget_tokens": tokens});
            bodies.push(with("thinking", thinking));
        }
    }
    bodies
}

/// A script in which the model reasons without end, and answers behind the forced mark. Returns the
/// answer.
fn script(scripted: &Scripted, family: &Family, api: Api, tokens: usize, body: &Value) {
    let mut short = body.clone();
    let limit = match api {
        Api::Responses => "max_output_tokens",
        _ => "max_tokens",
    };
    short[limit] = 1.into();
    let prompt = api.prompt_tokens(&scripted.server.ok(api.path(), &short));
    let open = match family.template {
        "harmony" => family.think[0],
        "qwen3" => "<think>",
        _ => "",
    };
    let behind = match family.template {
        "harmony" => "final<|message|>It is 42.",
        _ => "It is 42.",
    };
    let letters = THOUGHT.split_inclusive(char::is_alphabetic);
    let thought: Vec<&str> = letters.take(tokens).collect();
    // The model prefers these tokens to the mark.
    let instead = vec!["x"; scripted.count(forced(family))];
    let pieces = [&[open][..], &thought, &instead, &[behind]].concat();
    scripted.says(prompt, &pieces);
}

fn both(scripted: &Scripted, api: Api, body: &Value) -> Reply {
    let whole = api.whole(&scripted.server.ok(api.path(), body));
    let mut body = body.clone();
    body["stream"] = true.into();
    let streamed = api.streamed(&scripted.server.post(api.path(), &body));
    assert_eq!(whole, streamed, "{api:?}");
    whole
}

#[test]
fn reasoning_ends_after_its_budget_on_every_route() {
    for family in &FAMILIES {
        let scripted = family.start();
        for api in APIS {
            let body = api.body(Asked::default());
            for (tokens, thought) in [(3, "abc"), (5, "abcde")] {
                for body in bodies(api, &body, tokens) {
                    script(&scripted, family, api, tokens as usize, &body);
                    let found = both(&scripted, api, &body);
                    let name = family.template;
                    assert_eq!(found.reasoning, thought, "{name}: {body}");
                    assert_eq!(
                        (&*found.content, found.end),
                        ("It is 42.", "stop"),
                        "{name}: {body}"
                    );
                }
            }
            // A draft does not change it.
            let mut body = body.clone();
            body["thinking_budget_tokens"] = 4.into();
            body["speculative"] = 3.into();
            script(&scripted, family, api, 4, &body);
            let found = both(&scripted, api, &body);
            assert_eq!((&*found.reasoning, &*found.content), ("abcd", "It is 42."));
        }
    }
}

#[test]
fn a_budget_of_0_means_no_reasoning() {
    for family in &FAMILIES {
        let scripted = family.start();
        for api in APIS {
            for body in bodies(api, &api.body(Asked::default()), 0) {
                script(&scripted, family, api, 0, &body);
                let found = both(&scripted, api, &body);
                assert_eq!(found.reasoning, "", "{}: {body}", family.template);
                assert!(
                    found.content.ends_with("It is 42."),
                    "{}: {found:?}",
                    family.template
                );
            }
        }
    }
}

/// A form is held behind the forced mark, and so are required calls.
#[test]
fn forms_and_calls_come_behind_the_forced_mark() {
    for family in &FAMILIES {
        let scripted = family.start();
        for api in APIS {
            let asked = |tools, has_schema| Asked {
                tools,
                has_schema,
                ..Asked::default()
            };
            for asked in [asked(None, true), asked(Some("required"), false)] {
                let mut body = api.body(asked);
                body["reasoning_budget"] = 3.into();
                script(&scripted, family, api, 3, &body);
                let found = both(&scripted, api, &body);
                assert_eq!(found.reasoning, "abc", "{}: {found:?}", family.template);
                match asked.has_schema {
                    true => {
                        let answer: Value = serde_json::from_str(&found.content).unwrap();
                        assert!(answer["answer"].is_i64(), "{found:?}");
                    }
                    false => assert_eq!(found.calls.len(), 1, "{}: {found:?}", family.template),
                }
            }
        }
    }
}

#[test]
fn the_servers_budget_is_that_of_requests_without_one() {
    let family = &FAMILIES[1];
    let scripted = Scripted::start(family.template, family.marks, family.ends, |options| {
        options.reasoning_budget = Some(2);
    });
    let path = Api::Chat.path();
    let mut body = Api::Chat.body(Asked::default());
    script(&scripted, family, Api::Chat, 2, &body);
    assert_eq!(
        Api::Chat.whole(&scripted.server.ok(path, &body)).reasoning,
        "ab"
    );
    body["reasoning_budget"] = 4.into();
    script(&scripted, family, Api::Chat, 4, &body);
    assert_eq!(
        Api::Chat.whole(&scripted.server.ok(path, &body)).reasoning,
        "abcd"
    );
    body["reasoning_budget"] = (-1).into();
    script(&scripted, family, Api::Chat, 4, &body);
    let found = Api::Chat.whole(&scripted.server.ok(path, &body));
    assert!(found.reasoning.starts_with("abcdx"), "{found:?}");
}

#[test]
fn allowed_tokens_without_the_mark_are_refused() {
    let scripted = FAMILIES[0].start();
    let mut body = Api::Chat.body(Asked::default());
    (body["allowed_token_ids"], body["reasoning_budget"]) = (json!([5, 6]), 3.into());
    let answer = scripted.server.post(Api::Chat.path(), &body);
    let error = answer.json()["error"].clone();
    assert_eq!(error["param"], "allowed_token_ids");
    let message =
        "allowed_token_ids lacks tokens of \"</think>\", which ends reasoning after its budget";
    assert_eq!(error["message"], message);
}

#[test]
fn budgets_that_cannot_hold_are_refused_by_name() {
    // The built-in model does not reason.
    for (api, key, value, param) in [
        (Api::Chat, "reasoning_budget", json!(3), "reasoning_budget"),
        (
            Api::Chat,
            "thinking_token_budget",
            json!(0),
            "thinking_token_budget",
        ),
        (
            Api::Chat,
            "reasoning",
            json!({"max_tokens": 7}),
            "reasoning",
        ),
        (
            Api::Responses,
            "reasoning",
            json!({"max_tokens": 7}),
            "reasoning",
        ),
        (
            Api::Messages,
            "thinking_budget_tokens",
            json!(7),
            "thinking_budget_tokens",
        ),
        (Api::Chat, "reasoning_budget", json!(-2), "reasoning_budget"),
        (
            Api::Chat,
            "reasoning_budget",
            json!("much"),
            "reasoning_budget",
        ),
        (
            Api::Messages,
            "thinking",
            json!({"type": "enabled", "budget_tokens": -7}),
            "thinking",
        ),
    ] {
        let mut body = api.body(Asked::default());
        body[key] = value;
        let answer = SERVER.post(api.path(), &body);
        assert_eq!(answer.status, 400, "{body}");
        let message = answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.starts_with(param), "{message}");
        if api != Api::Messages {
            assert_eq!(answer.json()["error"]["param"], param);
        }
    }
    let mut body = Api::Chat.body(Asked::default());
    body["reasoning_budget"] = (-1).into();
    SERVER.ok(Api::Chat.path(), &body);
    // Texts have no reasoning.
    let answer = SERVER.post(
        "/v1/completions",
        &json!({"prompt": "x", "reasoning_budget": 3}),
    );
    assert_eq!(
        answer.json()["error"]["message"],
        "reasoning_budget is not supported"
    );
}

#[test]
fn a_server_of_a_model_without_reasoning_does_not_start_with_a_budget() {
    let options = ServeOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        reasoning_budget: Some(3),
        log: false,
        ..Default::default()
    };
    let server = Server::bind(options).unwrap();
    let error = server.run(LoadedModel::load_default).unwrap_err();
    let message = "reasoning_budget: the model has no marks of reasoning";
    assert_eq!(error.to_string(), message);
}

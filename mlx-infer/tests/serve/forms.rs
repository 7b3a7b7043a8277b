//! Reasoning, tool calls and structured answers of families with their own marks, on each route for
//! conversations, whole and streamed.

pub mod api;
pub mod family;

use serde_json::{Value, json};

use self::api::{APIS, Api, Asked, Reply, parsed, text};
use self::family::{FAMILIES, Family};
use crate::scripted::Scripted;

/// The answer of a model that prefers to write these pieces. Whole and streamed answers are equal.
fn ask(scripted: &Scripted, api: Api, asked: Asked, pieces: &[&str]) -> Reply {
    let mut body = api.body(asked);
    let short = Asked {
        max_tokens: Some(1),
        ..asked
    };
    let prompt = api.prompt_tokens(&scripted.server.ok(api.path(), &api.body(short)));
    scripted.says(prompt, pieces);
    let whole = api.whole(&scripted.server.ok(api.path(), &body));
    body["stream"] = true.into();
    let streamed = api.streamed(&scripted.server.post(api.path(), &body));
    assert_eq!(whole, streamed, "{api:?}");
    whole
}

fn reply(reasoning: &str, content: &str, end: &'static str) -> Reply {
    Reply {
        reasoning: reasoning.to_owned(),
        content: content.to_owned(),
        calls: Vec::new(),
        end,
    }
}

fn each(mut check: impl FnMut(&Family, &Scripted, Api)) {
    for family in &FAMILIES {
        let scripted = family.start();
        for api in APIS {
            check(family, &scripted, api);
        }
    }
}

#[test]
fn reasoning_is_told_apart_from_the_answer() {
    each(|family, scripted, api| {
        let [open, close] = family.think;
        let [behind, alone] = family.answer;
        let blank = if family.template == "harmony" {
            ""
        } else {
            "\n\n"
        };
        let pieces = [open, "I add.", close, blank, behind, "It is 42."];
        let found = ask(scripted, api, Asked::default(), &pieces);
        assert_eq!(
            found,
            reply("I add.", "It is 42.", "stop"),
            "{}",
            family.template
        );
        let found = ask(scripted, api, Asked::default(), &[alone, "It is 42."]);
        assert_eq!(found, reply("", "It is 42.", "stop"), "{}", family.template);
        // An answer that is cut within its reasoning has no content.
        let cut = Asked {
            max_tokens: Some(scripted.count(open) + 2),
            ..Asked::default()
        };
        let found = ask(scripted, api, cut, &[open, "I add twenty and more.", close]);
        assert!(
            "I add twenty and more.".starts_with(&found.reasoning),
            "{found:?}"
        );
        assert_eq!(
            (found.content.as_str(), found.end),
            ("", "length"),
            "{found:?}"
        );
        assert!(!found.reasoning.is_empty());
    });
}

#[test]
fn calls_of_tools_are_told_apart_too() {
    each(|family, scripted, api| {
        let name = family.template;
        let [open, close] = family.think;
        let offered = Asked {
            tools: Some("auto"),
            ..Asked::default()
        };
        let call = ("add".to_owned(), json!({"a": 1, "b": "x"}));
        let mut expected = reply("I add.", "", "tool_calls");
        expected.calls.push(call.clone());
        let found = ask(
            scripted,
            api,
            offered,
            &[open, "I add.", close, family.call],
        );
        assert_eq!(found, expected, "{name}");
        if let Some(again) = family.again {
            expected.calls.push(call);
            let pieces = [open, "I add.", close, family.call, "\n", again];
            assert_eq!(ask(scripted, api, offered, &pieces), expected, "{name}");
        }
        // Without tools, or with other tools, the call is text.
        let other = family.call.replace("add", "sub");
        for (asked, call) in [(Asked::default(), family.call), (offered, &other)] {
            let found = ask(scripted, api, asked, &[open, "I add.", close, call]);
            assert_eq!((found.calls.len(), found.end), (0, "stop"), "{name}");
            assert!(
                found.content.contains("\"x\"") || found.content.contains(">x<"),
                "{found:?}"
            );
        }
    });
}

/// A grammar applies after the reasoning, in harmony to the final channel. A model that prefers
/// other text is constrained to it.
#[test]
fn a_form_is_held_behind_the_reasoning() {
    let held = Asked {
        has_schema: true,
        ..Asked::default()
    };
    let is_held = |found: &Reply| {
        let answer = parsed(&found.content)["answer"].clone();
        assert!(answer == 41 || answer == 42, "{found:?}");
        assert_eq!(found.end, "stop", "{found:?}");
    };
    each(|family, scripted, api| {
        let [open, close] = family.think;
        let [behind, alone] = family.answer;
        let right = "{\"answer\": 42}";
        let found = ask(scripted, api, held, &[open, "I add.", close, behind, right]);
        assert_eq!(found, reply("I add.", right, "stop"), "{}", family.template);
        let found = ask(scripted, api, held, &[alone, right]);
        assert_eq!(found, reply("", right, "stop"), "{}", family.template);
        // Reasoning is not constrained, even if it looks like an answer.
        let found = ask(
            scripted,
            api,
            held,
            &[open, "{\"answer\": 7}?", close, behind, "It is 7."],
        );
        assert_eq!(found.reasoning, "{\"answer\": 7}?", "{}", family.template);
        is_held(&found);
    });
    let qwen = FAMILIES[0].start();
    let closed = Asked {
        no_reasoning: true,
        ..held
    };
    for api in APIS {
        // The prompt has closed the reasoning, so a mark in the reply would be text.
        let found = ask(
            &qwen,
            api,
            closed,
            &["<think>\nI add.\n</think>", "{\"answer\": 42}"],
        );
        assert_eq!(found.reasoning, "");
        is_held(&found);
    }
}

/// A model that prefers to end its reply within its reasoning continues with the answer or the call
/// that the request demands.
#[test]
fn an_end_within_the_reasoning_does_not_lose_the_form() {
    each(|family, scripted, api| {
        let [open, close] = family.think;
        let name = family.template;
        let right = "{\"answer\": 42}";
        let held = Asked {
            has_schema: true,
            ..Asked::default()
        };
        let required = Asked {
            tools: Some("required"),
            ..Asked::default()
        };
        let thought = [open, "I ", family.ends[0], "add.", close];
        let answer = [&thought[..], &[family.answer[0], right]].concat();
        let found = ask(scripted, api, held, &answer);
        assert_eq!(
            (found.content.as_str(), found.end),
            (right, "stop"),
            "{name}: {found:?}"
        );
        let call = [&thought[..], &[family.call]].concat();
        let called = ask(scripted, api, required, &call);
        assert_eq!(
            (called.calls.len(), called.end),
            (1, "tool_calls"),
            "{name}: {called:?}"
        );
        for found in [found, called] {
            let thought = &found.reasoning;
            assert!(
                thought.starts_with("I ") && thought.ends_with("add.") && thought.len() > 6,
                "{name}: {found:?}"
            );
        }
    });
}

#[test]
fn required_calls_come_behind_the_reasoning() {
    each(|family, scripted, api| {
        let required = Asked {
            tools: Some("required"),
            ..Asked::default()
        };
        let [open, close] = family.think;
        // The second call names no offered tool.
        let other = family.call.replace("add", "sub");
        for said in [family.call, &other] {
            let found = ask(scripted, api, required, &[open, "I add.", close, said]);
            let name = family.template;
            assert_eq!(
                (found.reasoning.as_str(), found.content.as_str()),
                ("I add.", ""),
                "{name}: {found:?}"
            );
            assert_eq!(found.end, "tool_calls", "{name}");
            let [(function, arguments)] = &found.calls[..] else {
                panic!("{name}: {found:?}");
            };
            assert_eq!(function, "add");
            assert!(
                arguments["a"].is_i64() && arguments["b"].is_string(),
                "{name}: {arguments}"
            );
        }
    });
}

/// A conversation with reasoning, a call and its result makes the same prompt on each route.
#[test]
fn the_answer_goes_back_in_the_form_of_each_route() {
    let arguments = json!({"a": 1, "b": "x"});
    for family in &FAMILIES {
        let scripted = family.start();
        let mut counts = Vec::new();
        for api in APIS {
            let asked = Asked {
                tools: Some("auto"),
                max_tokens: Some(1),
                ..Asked::default()
            };
            let mut body = api.body(asked);
            let plain = api.prompt_tokens(&scripted.server.ok(api.path(), &body));
            let (key, more) = match api {
                Api::Chat => (
                    "messages",
                    json!([
                        {"role": "assistant", "content": null, "reasoning_content": "I add.", "tool_calls": [
                            {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments.to_string()}}]},
                        {"role": "tool", "tool_call_id": "c", "content": "42"},
                    ]),
                ),
                Api::Responses => (
                    "input",
                    json!([
                        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "I add."}]},
                        {"type": "function_call", "id": "f", "call_id": "c", "name": "add", "arguments": arguments.to_string()},
                        {"type": "function_call_output", "call_id": "c", "output": "42"},
                    ]),
                ),
                Api::Messages => (
                    "messages",
                    json!([
                        {"role": "assistant", "content": [
                            {"type": "thinking", "thinking": "I add.", "signature": "s"},
                            {"type": "tool_use", "id": "c", "name": "add", "input": arguments}]},
                        {"role": "user", "content": [
                            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "42"}]}]},
                    ]),
                ),
            };
            let more = more.as_array().unwrap().clone();
            body[key].as_array_mut().unwrap().extend(more);
            let count = api.prompt_tokens(&scripted.server.ok(api.path(), &body));
            assert!(
                count > plain + scripted.count("I add."),
                "{}",
                family.template
            );
            counts.push(count);
        }
        // Some clients use another name for the reasoning.
        assert_eq!(counts, [counts[0]; 3], "{}", family.template);
    }
}

/// The reasoning effort of a request is a variable of the template.
#[test]
fn the_effort_arrives_in_the_template() {
    let harmony = FAMILIES[2].start();
    let effort = "as much as you can, and then some";
    let counts = APIS.map(|api| {
        let mut body = api.body(Asked {
            max_tokens: Some(1),
            ..Asked::default()
        });
        let count = |body: &Value| api.prompt_tokens(&harmony.server.ok(api.path(), body));
        let before = count(&body);
        match api {
            Api::Chat => body["reasoning_effort"] = effort.into(),
            Api::Responses => body["reasoning"] = json!({"effort": effort}),
            Api::Messages => body["output_config"] = json!({"effort": effort}),
        }
        [before, count(&body)]
    });
    assert_eq!(counts, [counts[0]; 3]);
    let text = |effort: &str| harmony.count(&format!("\nReasoning: {effort}"));
    assert_eq!(counts[0][1] - counts[0][0], text(effort) - text("medium"));
    // OpenRouter's switch is the effort `none`.
    for api in [Api::Chat, Api::Responses] {
        let count = |reasoning: Value| {
            let mut body = api.body(Asked {
                max_tokens: Some(1),
                ..Asked::default()
            });
            body["reasoning"] = reasoning;
            api.prompt_tokens(&harmony.server.ok(api.path(), &body))
        };
        let off = count(json!({"enabled": false}));
        assert_eq!(off, count(json!({"effort": "none"})));
        assert_ne!(off, count(json!({"enabled": true})));
    }
}

/// Tokens of reasoning and of calls have log probabilities, and are counted.
#[test]
fn all_tokens_are_counted_and_have_log_probabilities() {
    each(|family, scripted, api| {
        let [open, close] = family.think;
        let [behind, _] = family.answer;
        let pieces = [open, "I add.", close, behind, "It is 42."];
        ask(scripted, api, Asked::default(), &pieces);
        let mut body = api.body(Asked::default());
        if api == Api::Chat {
            (body["logprobs"], body["top_logprobs"]) = (true.into(), 1.into());
        }
        let answer = scripted.server.ok(api.path(), &body);
        let usage = &answer["usage"];
        let total: usize = pieces.iter().map(|piece| scripted.count(piece)).sum();
        let details = match api {
            Api::Messages => {
                assert_eq!(usage["output_tokens"], total + 1);
                return;
            }
            Api::Chat => &usage["completion_tokens_details"]["reasoning_tokens"],
            Api::Responses => &usage["output_tokens_details"]["reasoning_tokens"],
        };
        let reasoned = details.as_u64().unwrap() as usize;
        let outside = scripted.count("It is 42.");
        assert!(
            (scripted.count("I add.")..=total - outside).contains(&reasoned),
            "{usage}"
        );
        if api != Api::Chat {
            return;
        }
        let entries = answer["choices"][0]["logprobs"]["content"].clone();
        // The end token is counted, but is not in the text.
        assert_eq!(entries.as_array().unwrap().len(), total);
        body["stream"] = true.into();
        let chunks = scripted.server.post(api.path(), &body).chunks();
        let parts = chunks
            .iter()
            .filter_map(|chunk| chunk.pointer("/choices/0/logprobs/content"));
        let streamed: Vec<&str> = parts
            .flat_map(|part| part.as_array().unwrap())
            .map(|entry| text(&entry["token"]))
            .collect();
        let whole = entries.as_array().unwrap().iter();
        assert_eq!(
            streamed,
            whole.map(|entry| text(&entry["token"])).collect::<Vec<_>>()
        );
    });
}

/// White space is allowed but limited, and a schema cannot set options of the compiler.
#[test]
fn a_model_that_writes_blanks_comes_to_an_end() {
    let qwen = FAMILIES[0].start();
    let mut body = Api::Chat.body(Asked {
        has_schema: true,
        ..Asked::default()
    });
    body["response_format"]["json_schema"]["schema"]["x-guidance"] =
        json!({"whitespace_pattern": "[ ]*", "coerce_one_of": true});
    let mut short = body.clone();
    short["max_tokens"] = 1.into();
    let prompt = Api::Chat.prompt_tokens(&qwen.server.ok("/v1/chat/completions", &short));
    let blanks: Vec<&str> = [" "].repeat(300);
    qwen.says(prompt, &[&["{"][..], &blanks[..]].concat());
    let found = Api::Chat.whole(&qwen.server.ok("/v1/chat/completions", &body));
    assert_eq!(found.end, "stop", "{found:?}");
    assert!(parsed(&found.content)["answer"].is_i64(), "{found:?}");
    let runs = found.content.split(|c: char| c != ' ').map(str::len);
    assert_eq!(runs.max(), Some(1), "{found:?}");
}

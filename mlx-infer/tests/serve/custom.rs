//! Tools of `type: custom`, whose input is a text with a grammar that is held.

use serde_json::{Value, json};

use crate::client::{Answer, SERVER};
use crate::forms::family::{FAMILIES, Family};
use crate::scripted::Scripted;

const TEXT: &str = "*** Begin\n+\"x\\\" é\n*** End";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// A call of `patch` with this text as its input.
fn call(family: &Family, text: &str) -> String {
    let json = json!({"input": text}).to_string();
    let json = json.replacen("{\"input\":", "{\"input\": ", 1);
    match family.template {
        "harmony" => {
            format!(
                "<|channel|>commentary to=functions.patch <|constrain|>json<|message|>{json}<|call|>"
            )
        }
        "minimax_m2" => format!(
            "<minimax:tool_call>\n<invoke name=\"patch\">\n<parameter name=\"input\">\n{text}\n</parameter>\n</invoke>\n</minimax:tool_call>"
        ),
        _ => {
            format!("<tool_call>\n{{\"name\": \"patch\", \"arguments\": {json}}}\n</tool_call>")
        }
    }
}

fn tool(format: Value) -> Value {
    json!({"type": "custom", "name": "patch", "description": "Edits files.", "format": format})
}

fn lark() -> Value {
    let definition =
        "start: \"*** Begin\" LF line+ \"*** End\"\nline: \"+\" /(.*)/ LF\n%import common.LF";
    json!({"type": "grammar", "syntax": "lark", "definition": definition})
}

fn body(path: &str, tool: &Value, choice: &str) -> Value {
    let question = json!([{"role": "user", "content": "Edit."}]);
    match path {
        RESPONSES => {
            json!({"input": question, "tools": [tool], "tool_choice": choice, "temperature": 0,
            "parallel_tool_calls": false, "max_output_tokens": 300})
        }
        _ => {
            let mut inner = tool.clone();
            let [syntax, definition] =
                ["syntax", "definition"].map(|key| inner["format"][key].clone());
            if inner["format"]["type"] == "grammar" {
                let grammar = json!({"syntax": syntax, "definition": definition});
                inner["format"] = json!({"type": "grammar", "grammar": grammar});
            }
            json!({"messages": question, "tools": [{"type": "custom", "custom": inner}], "tool_choice": choice,
                "temperature": 0, "parallel_tool_calls": false, "max_tokens": 300})
        }
    }
}

fn prompt(scripted: &Scripted, path: &str, body: &Value) -> usize {
    let mut short = body.clone();
    let limit = ["max_tokens", "max_output_tokens"][usize::from(path == RESPONSES)];
    short[limit] = 1.into();
    let usage = scripted.server.ok(path, &short)["usage"].clone();
    let count = usage.get("input_tokens").or(usage.get("prompt_tokens"));
    count.unwrap().as_u64().unwrap() as usize
}

/// The input of the only call in an answer.
fn input(path: &str, answer: &Value) -> String {
    let call = match path {
        RESPONSES => {
            let items = answer["output"].as_array().unwrap();
            let is_call = |item: &&Value| item["type"] == "custom_tool_call";
            let [call] = items.iter().filter(is_call).collect::<Vec<_>>()[..] else {
                panic!("{answer}");
            };
            assert!(call["id"].as_str().unwrap().starts_with("ctc_"), "{call}");
            assert_eq!(call["status"], "completed");
            assert!(call["call_id"].is_string());
            call.clone()
        }
        _ => {
            let [call] = &answer["choices"][0]["message"]["tool_calls"]
                .as_array()
                .unwrap()[..]
            else {
                panic!("{answer}");
            };
            assert_eq!(
                (&call["type"], &answer["choices"][0]["finish_reason"]),
                (&json!("custom"), &json!("tool_calls"))
            );
            call["custom"].clone()
        }
    };
    assert_eq!(call["name"], "patch", "{call}");
    call["input"].as_str().unwrap().to_owned()
}

/// The same for a stream, whose pieces are joined.
fn streamed(path: &str, answer: &Answer) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if path == CHAT {
        let chunks = answer.chunks();
        let deltas = chunks
            .iter()
            .filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0"));
        let deltas: Vec<&Value> = deltas.collect();
        assert_eq!(
            (&deltas[0]["type"], &deltas[0]["custom"]["name"]),
            (&json!("custom"), &json!("patch"))
        );
        return deltas
            .iter()
            .map(|delta| text(&delta["custom"]["input"]))
            .collect();
    }
    let events = answer.events();
    let of = |name: &str| -> Vec<&Value> {
        let found = events
            .iter()
            .filter(|(known, _)| known.strip_prefix("response.") == Some(name));
        found.map(|(_, data)| data).collect()
    };
    let added = of("output_item.added");
    let added = added
        .iter()
        .find(|data| data["item"]["type"] == "custom_tool_call")
        .unwrap();
    assert_eq!(added["item"]["input"], "");
    let joined: String = of("custom_tool_call_input.delta")
        .iter()
        .map(|data| text(&data["delta"]))
        .collect();
    let done = of("custom_tool_call_input.done");
    assert_eq!((done.len(), text(&done[0]["input"])), (1, joined.clone()));
    assert_eq!(done[0]["item_id"], added["item"]["id"]);
    assert!(of("function_call_arguments.delta").is_empty());
    assert_eq!(input(RESPONSES, &of("completed")[0]["response"]), joined);
    joined
}

fn both(scripted: &Scripted, path: &str, body: &Value) -> String {
    let whole = input(path, &scripted.server.ok(path, body));
    let mut body = body.clone();
    body["stream"] = true.into();
    assert_eq!(streamed(path, &scripted.server.post(path, &body)), whole);
    whole
}

#[test]
fn calls_of_custom_tools_have_a_text() {
    for family in &FAMILIES {
        let scripted = family.start();
        let [open, close] = family.think;
        for path in [CHAT, RESPONSES] {
            for (format, choice) in [
                (json!({"type": "text"}), "auto"),
                (lark(), "auto"),
                (lark(), "required"),
            ] {
                let body = body(path, &tool(format), choice);
                let prompt = prompt(&scripted, path, &body);
                scripted.says(prompt, &[open, "So.", close, &call(family, TEXT)]);
                assert_eq!(
                    both(&scripted, path, &body),
                    TEXT,
                    "{}: {body}",
                    family.template
                );
            }
        }
    }
}

/// A model that prefers another text is held to the grammar.
#[test]
fn the_grammar_is_held_while_tokens_are_drawn() {
    let digits = json!({"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}\"?"});
    for family in &FAMILIES {
        let scripted = family.start();
        let [open, close] = family.think;
        for path in [CHAT, RESPONSES] {
            for choice in ["auto", "required"] {
                let body = body(path, &tool(digits.clone()), choice);
                let prompt = prompt(&scripted, path, &body);
                scripted.says(prompt, &[open, "So.", close, &call(family, "hello")]);
                let found = both(&scripted, path, &body);
                let digits = found.trim_end_matches('"');
                assert_eq!(digits.len(), 3, "{}: {found}", family.template);
                assert!(
                    digits.bytes().all(|c| c.is_ascii_digit()) && found.len() < 5,
                    "{found}"
                );
            }
        }
    }
}

#[test]
fn custom_tools_are_shown_and_given_back() {
    let tool = tool(json!({"type": "grammar", "syntax": "regex", "definition": "x[0-9]{2}"}));
    let answer = SERVER.ok(RESPONSES, &body(RESPONSES, &tool, "auto"));
    assert_eq!(answer["tools"], json!([tool]));
    let named = |path: &str, choice: Value| {
        let mut body = body(path, &tool, "auto");
        body["tool_choice"] = choice;
        SERVER.ok(path, &body)
    };
    let choice = json!({"type": "custom", "name": "patch"});
    let answer = named(RESPONSES, choice.clone());
    assert_eq!(answer["tool_choice"], choice);
    let text = input(RESPONSES, &answer);
    assert!(text.len() == 3 && text.starts_with('x'), "{text}");
    let answer = named(CHAT, json!({"type": "custom", "custom": {"name": "patch"}}));
    let text = input(CHAT, &answer);
    assert!(text.len() == 3 && text.starts_with('x'), "{text}");
    // Calls go back in the form in which they came.
    let count = |messages: Value| {
        let body = json!({"messages": messages, "max_tokens": 1});
        SERVER.ok(CHAT, &body)["usage"]["prompt_tokens"].clone()
    };
    let history = |call: Value| {
        json!([{"role": "user", "content": "Edit."}, {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"}])
    };
    let custom = json!({"id": "c", "type": "custom", "custom": {"name": "patch", "input": TEXT}});
    let arguments = json!({"input": TEXT}).to_string();
    let function = json!({"id": "c", "type": "function", "function": {"name": "patch", "arguments": arguments}});
    assert_eq!(count(history(custom)), count(history(function)));
}

#[test]
fn formats_that_cannot_be_held_are_refused_by_name() {
    for (format, what) in [
        (
            json!({"type": "json"}),
            "tools[0] has a format whose type is neither text nor grammar",
        ),
        (
            json!({"type": "grammar"}),
            "tools[0] has a format without syntax and definition",
        ),
        (
            json!({"type": "grammar", "syntax": "lark", "definition": "start: %json {}"}),
            "the grammar of a tool: %json cannot stand in the grammar of a tool",
        ),
        (
            json!({"type": "grammar", "syntax": "regex", "definition": "("}),
            "the grammar of a tool: its regular expression \"(\": unclosed group",
        ),
        (
            json!({"type": "grammar", "syntax": "lark", "definition": "start: nothing"}),
            "unknown name",
        ),
    ] {
        let answer = SERVER.post(RESPONSES, &body(RESPONSES, &tool(format), "auto"));
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["param"]),
            (400, &json!("tools")),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains(what), "{error}");
    }
}

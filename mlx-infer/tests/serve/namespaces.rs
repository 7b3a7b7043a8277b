//! Tools in namespaces, as Codex offers those of its agents: the model sees them under joined
//! names, and calls of them have the namespace and the name apart.

use serde_json::{Value, json};

use crate::client::SERVER;
use crate::forms::api::{parsed, text};
use crate::forms::family::FAMILIES;

const PATH: &str = "/v1/responses";

fn body() -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"], "additionalProperties": false});
    let space = json!({
        "type": "namespace", "name": "sums", "description": "Of sums.",
        "tools": [{"type": "function", "name": "add", "parameters": schema, "strict": false, "description": "Adds."}],
    });
    let other = json!({"type": "function", "name": "halve", "parameters": schema});
    json!({"input": [{"role": "user", "content": "Add."}], "tools": [space, other], "temperature": 0,
        "parallel_tool_calls": false, "max_output_tokens": 300})
}

#[test]
fn a_call_has_its_namespace_apart() {
    for family in &FAMILIES {
        let scripted = family.start();
        let [open, close] = family.think;
        let call = family.call.replace("functions.add", "functions.sums__add");
        let call = call.replace("\"name\": \"add\"", "\"name\": \"sums__add\"");
        let call = call.replace("invoke name=\"add\"", "invoke name=\"sums__add\"");
        for choice in ["auto", "required"] {
            let mut body = body();
            body["tool_choice"] = choice.into();
            let mut short = body.clone();
            short["max_output_tokens"] = 1.into();
            let usage = scripted.server.ok(PATH, &short)["usage"].clone();
            let prompt = usage["input_tokens"].as_u64().unwrap() as usize;
            scripted.says(prompt, &[open, "So.", close, &call]);
            let whole = scripted.server.ok(PATH, &body);
            assert_eq!(whole["tools"], body["tools"]);
            let items = whole["output"].as_array().unwrap();
            let item = items.iter().find(|item| item["type"] == "function_call");
            let item = item.unwrap_or_else(|| panic!("{}: {whole}", family.template));
            assert_eq!(
                (&item["name"], &item["namespace"]),
                (&json!("add"), &json!("sums"))
            );
            assert_eq!(parsed(text(&item["arguments"])), json!({"a": 1, "b": "x"}));
            body["stream"] = true.into();
            let events = scripted.server.post(PATH, &body).events();
            let items = events
                .iter()
                .filter(|(_, data)| data["item"]["type"] == "function_call");
            let named = items.map(|(_, data)| [&data["item"]["name"], &data["item"]["namespace"]]);
            assert_eq!(
                named.collect::<Vec<_>>(),
                [[&json!("add"), &json!("sums")]; 2]
            );
        }
    }
}

#[test]
fn calls_go_back_under_the_joined_name() {
    let count = |calls: Value| {
        let mut input = vec![json!({"role": "user", "content": "Add."})];
        input.extend(calls.as_array().unwrap().clone());
        input.push(json!({"type": "function_call_output", "call_id": "c", "output": "3"}));
        let body = json!({"input": input, "max_output_tokens": 1});
        SERVER.ok(PATH, &body)["usage"]["input_tokens"].clone()
    };
    let call = |name: &str| json!({"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"});
    let mut apart = call("add");
    apart["namespace"] = "sums".into();
    assert_eq!(count(json!([apart])), count(json!([call("sums__add")])));
}

#[test]
fn namespaces_that_are_malformed_are_refused_by_place() {
    for (space, what) in [
        (
            json!({"type": "namespace", "name": "a"}),
            "tools[0] is a namespace without a name or without a list of tools",
        ),
        (
            json!({"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}),
            "tools[0] is a namespace with a tool that is neither function nor custom",
        ),
    ] {
        let answer = SERVER.post(PATH, &json!({"input": "x", "tools": [space]}));
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["param"]),
            (400, &json!("tools")),
            "{error}"
        );
        assert_eq!(error["message"], what);
    }
}

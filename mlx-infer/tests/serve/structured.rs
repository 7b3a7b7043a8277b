//! Structured answers, and tool calls.

use serde_json::{Value, json};

use crate::client::SERVER;

fn question() -> Value {
    json!([{"role": "user", "content": "What is 20 + 22?"}])
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"answer": {"enum": [1, 2, 3]}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"], "additionalProperties": false,
    })
}

#[test]
fn each_way_to_ask_for_a_form_holds_it() {
    let is_json = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(
            [1, 2, 3].map(Value::from).contains(&value["answer"]) && value["sure"].is_boolean(),
            "{text}"
        );
    };
    let is_colour = |text: &str| assert!(["red", "blue"].contains(&text), "{text}");
    let digits = |text: &str| {
        assert!(
            text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit()),
            "{text}"
        )
    };
    type Check<'c> = &'c dyn Fn(&str);
    let ways: [(Value, Check<'_>); 10] = [
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema(), "strict": true}}}),
            &is_json,
        ),
        (
            json!({"response_format": {"type": "json_schema", "schema": schema()}}),
            &is_json,
        ),
        (
            json!({"response_format": {"type": "json_object", "schema": schema()}}),
            &is_json,
        ),
        (json!({"guided_json": schema()}), &is_json),
        (json!({"guided_json": schema().to_string()}), &is_json),
        (json!({"structured_outputs": {"json": schema()}}), &is_json),
        (
            json!({"structured_outputs": {"choice": ["red", "blue"]}}),
            &is_colour,
        ),
        (json!({"guided_regex": "[0-9]{3}"}), &digits),
        (
            json!({"guided_grammar": "start: \"red\" | \"blue\""}),
            &is_colour,
        ),
        (
            json!({"grammar": "root ::= colour\ncolour ::= \"red\" | \"blue\" # llama.cpp's"}),
            &is_colour,
        ),
    ];
    for (at, (way, check)) in ways.into_iter().enumerate() {
        let mut body = way;
        body["max_tokens"] = 400.into();
        body["seed"] = at.into();
        body["messages"] = question();
        let answer = SERVER.ok("/v1/chat/completions", &body);
        check(answer["choices"][0]["message"]["content"].as_str().unwrap());
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        body.as_object_mut().unwrap().remove("messages");
        body["prompt"] = "The fox is".into();
        check(
            SERVER.ok("/v1/completions", &body)["choices"][0]["text"]
                .as_str()
                .unwrap(),
        );
    }
    let body = json!({
        "input": "x", "max_output_tokens": 400, "text": {"format": {"type": "json_schema", "name": "x", "schema": schema()}},
    });
    let answer = SERVER.ok("/v1/responses", &body);
    is_json(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    let body = json!({"input": "x", "max_output_tokens": 40, "guided_choice": ["red", "blue"]});
    let answer = SERVER.ok("/v1/responses", &body);
    is_colour(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    let body = json!({
        "messages": question(), "max_tokens": 400,
        "output_config": {"format": {"type": "json_schema", "schema": schema()}},
    });
    is_json(
        SERVER.ok("/v1/messages", &body)["content"][0]["text"]
            .as_str()
            .unwrap(),
    );
}

#[test]
fn an_error_names_the_parameter_of_the_form() {
    for (name, value) in [
        ("grammar", json!("root ::= nowhere")),
        ("guided_grammar", json!("start: nowhere")),
        ("guided_regex", json!("(")),
        ("guided_json", json!({"type": "nothing"})),
        ("structured_outputs", json!({"regex": "("})),
        (
            "response_format",
            json!({"type": "json_object", "schema": {"const": 9_007_199_254_740_993_u64}}),
        ),
    ] {
        for (path, key, asked) in [
            ("/v1/chat/completions", "messages", question()),
            ("/v1/completions", "prompt", json!("x")),
            ("/v1/responses", "input", json!("x")),
        ] {
            let answer = SERVER.post(path, &json!({key: asked, name: value}));
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!(answer.status, 400, "{path} {name}: {body}");
            assert_eq!(body["error"]["param"], name, "{path}: {body}");
        }
    }
}

/// A schema as pydantic writes it, without `additionalProperties`.
#[test]
fn objects_that_do_not_speak_of_other_properties_are_closed() {
    let mut open = schema();
    open.as_object_mut().unwrap().remove("additionalProperties");
    for seed in 0..8 {
        let body = json!({"messages": question(), "max_tokens": 120, "temperature": 0.8, "seed": seed,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": open}}});
        let answer = SERVER.ok("/v1/chat/completions", &body);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        let mut keys: Vec<_> = value.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(keys, ["answer", "sure"], "{text}");
    }
}

#[test]
fn a_tool_that_is_named_is_called_once() {
    let tool = json!({"type": "function", "function": {"name": "city", "parameters": {
        "type": "object", "properties": {"name": {"enum": ["Paris", "Rome"]}}, "required": ["name"]}}});
    for seed in 0..8 {
        let body = json!({"messages": question(), "tools": [tool], "temperature": 1.5, "seed": seed, "max_tokens": 150,
            "tool_choice": {"type": "function", "function": {"name": "city"}}});
        let answer = SERVER.ok("/v1/chat/completions", &body);
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
        assert_eq!(calls.map(Vec::len), Some(1), "{answer}");
    }
}

#[test]
fn a_form_that_cannot_be_held_is_refused_before_anything_is_generated() {
    for way in [
        json!({"guided_regex": "("}),
        json!({"guided_grammar": "start: nowhere"}),
        json!({"guided_json": {"type": "nothing"}}),
        json!({"guided_json": "{"}),
        json!({"guided_choice": []}),
        json!({"response_format": {"type": "json_schema"}}),
        json!({"guided_regex": "a", "guided_choice": ["b"]}),
        json!({"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "strict": true, "schema": {"type": "object", "unevaluatedProperties": false}}}}),
    ] {
        let mut body = way;
        body["messages"] = question();
        let answer = SERVER.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    }
    let body = json!({
        "messages": question(), "max_tokens": 400,
        "guided_json": {"type": "object", "unevaluatedProperties": false, "maxProperties": 1},
    });
    let answer = SERVER.post("/v1/chat/completions", &body);
    let ignored = answer.header("x-ignored-params").unwrap_or_default();
    assert!(
        answer.status == 200 && ignored.contains("unevaluatedProperties"),
        "{answer:?}"
    );
}

fn tools() -> Value {
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"], "additionalProperties": false}}})
    };
    json!([tool("add"), tool("multiply")])
}

#[test]
fn calls_are_made_and_streamed() {
    for (choice, names) in [
        (json!("required"), &["add", "multiply"][..]),
        (
            json!({"type": "function", "function": {"name": "multiply"}}),
            &["multiply"][..],
        ),
    ] {
        let mut body = json!({
            "messages": question(), "tools": tools(), "tool_choice": choice, "max_tokens": 400, "seed": 5,
            "parallel_tool_calls": false, "logprobs": true,
        });
        let whole = SERVER.ok("/v1/chat/completions", &body);
        let message = &whole["choices"][0]["message"];
        assert_eq!(
            whole["choices"][0]["finish_reason"], "tool_calls",
            "{whole}"
        );
        assert_eq!(message["content"], Value::Null);
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        let function = &calls[0]["function"];
        assert!(names.contains(&function["name"].as_str().unwrap()));
        let arguments: Value =
            serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["a"].is_i64() && ["x", "y"].map(Value::from).contains(&arguments["b"]));
        assert_eq!(calls[0]["id"].as_str().map(str::len), Some(9));

        body["stream"] = true.into();
        let chunks = SERVER.post("/v1/chat/completions", &body).chunks();
        let deltas = chunks
            .iter()
            .filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0"));
        let (mut name, mut text, mut ids) = (String::new(), String::new(), 0);
        for delta in deltas {
            ids += usize::from(delta["id"].is_string());
            name += delta
                .pointer("/function/name")
                .and_then(Value::as_str)
                .unwrap_or("");
            text += delta["function"]["arguments"].as_str().unwrap();
            assert_eq!(delta["index"], 0);
        }
        assert_eq!(
            (ids, name.as_str(), text.as_str()),
            (
                1,
                function["name"].as_str().unwrap(),
                function["arguments"].as_str().unwrap()
            )
        );
        let last = chunks.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    }
}

/// `allowed_tools` in the forms of both APIs: a model that must call a tool can call only the
/// allowed function.
#[test]
fn tools_that_are_not_allowed_are_not_offered() {
    let function = |name: &str| json!({"name": name, "parameters": {"type": "object", "additionalProperties": false}});
    let tool = |name: &str| json!({"type": "function", "function": function(name)});
    let mut body = json!({
        "messages": question(), "max_tokens": 60, "temperature": 0, "tools": [tool("add"), tool("subtract")],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{"type": "function", "function": {"name": "subtract"}}],
        }},
    });
    let answer = SERVER.ok("/v1/chat/completions", &body);
    let calls = &answer["choices"][0]["message"]["tool_calls"];
    assert_eq!(calls[0]["function"]["name"], "subtract", "{answer}");
    body["tools"] = json!([tool("subtract")]);
    body["tool_choice"] = "required".into();
    let alone = SERVER.ok("/v1/chat/completions", &body);
    assert_eq!(
        alone["usage"]["prompt_tokens"],
        answer["usage"]["prompt_tokens"]
    );
    let flat = |name: &str| {
        let mut flat = function(name);
        flat["type"] = "function".into();
        flat
    };
    let answer = SERVER.ok(
        "/v1/responses",
        &json!({
            "input": "What is 20 + 22?", "max_output_tokens": 60, "temperature": 0, "tools": [flat("add"), flat("subtract")],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "subtract"}]},
        }),
    );
    assert_eq!(answer["output"][0]["name"], "subtract", "{answer}");
}

#[test]
fn calls_have_the_shape_of_each_api() {
    let function = |tool: &Value| tool["function"].clone();
    let flat: Vec<Value> = (tools().as_array().unwrap().iter())
        .map(|tool| {
            let mut flat = function(tool);
            flat["type"] = "function".into();
            flat
        })
        .collect();
    let body = json!({
        "input": "x", "tools": flat, "tool_choice": {"type": "function", "name": "add"}, "max_output_tokens": 400,
        "parallel_tool_calls": false, "stream": true,
    });
    let events = SERVER.post("/v1/responses", &body).events();
    let done = events
        .iter()
        .find(|(name, _)| name == "response.function_call_arguments.done");
    let deltas = events
        .iter()
        .filter(|(name, _)| name == "response.function_call_arguments.delta");
    let text: String = deltas
        .map(|(_, data)| data["delta"].as_str().unwrap())
        .collect();
    assert_eq!(done.unwrap().1["arguments"], text);
    let whole = &events.last().unwrap().1["response"];
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &item["arguments"]),
        (&json!("function_call"), &json!("add"), &json!(text))
    );

    let inputs: Vec<Value> = (tools().as_array().unwrap().iter())
        .map(|tool| {
            let function = function(tool);
            json!({"name": function["name"], "input_schema": function["parameters"]})
        })
        .collect();
    let mut body = json!({
        "messages": question(), "max_tokens": 400, "tools": inputs,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    });
    let whole = SERVER.ok("/v1/messages", &body);
    assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
    assert_eq!(whole["content"][0]["type"], "tool_use");
    assert!(whole["content"][0]["input"]["a"].is_i64());
    body["stream"] = true.into();
    let events = SERVER.post("/v1/messages", &body).events();
    let parts = events
        .iter()
        .filter_map(|(_, data)| data.pointer("/delta/partial_json"));
    let text: String = parts.map(|part| part.as_str().unwrap()).collect();
    assert!(
        serde_json::from_str::<Value>(&text).unwrap()["a"].is_i64(),
        "{text}"
    );
}

#[test]
fn history_with_calls_is_read_or_refused_in_its_place() {
    let body = |arguments: Value| {
        json!({"max_tokens": 4, "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}]},
            {"role": "user", "content": "y"},
        ]})
    };
    for good in [
        json!(""),
        json!("null"),
        json!("{\"a\": 1}"),
        json!({"a": 1}),
    ] {
        SERVER.ok("/v1/chat/completions", &body(good));
    }
    let answer = SERVER.post("/v1/chat/completions", &body(json!("{\"a\": ")));
    assert_eq!(answer.status, 400);
    assert!(
        answer
            .body
            .contains("messages[1]: tool_calls[0]: arguments"),
        "{}",
        answer.body
    );
}

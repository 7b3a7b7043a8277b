//! Ollama's API: its answers equal those of the other routes, whole and as lines.

use mlx_infer::{EmbedOptions, LoadOptions, LoadedModel};
use serde_json::{Value, json};

use crate::client::{Answer, SERVER, TestServer};
use crate::embeddings::{self, values};
use crate::forms::family::FAMILIES;
use crate::scripted::{Fault, Scripted};
use crate::sentence::texts;

const QUESTION: &str = "What is 20 + 22?";

fn chat(content: &str) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": content}], "options": {"temperature": 0}})
}

/// The lines of a stream.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let kind = answer.header("content-type");
    assert_eq!(kind, Some("application/x-ndjson"), "{}", answer.body);
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    answer.body.lines().map(line).collect()
}

/// Ollama's documentation asks by curl's `-d`, which calls the body a form.
#[test]
fn bodies_of_curl_are_taken_and_forms_of_browsers_are_not() {
    const FORM: (&str, &str) = ("Content-Type", "application/x-www-form-urlencoded");
    let body =
        r#"{"model": "tiny", "prompt": "a", "stream": false, "options": {"num_predict": 1}}"#;
    let status =
        |path: &str, headers: &[(&str, &str)]| SERVER.send("POST", path, headers, body).status;
    assert_eq!(status("/api/generate", &[FORM]), 200);
    assert_eq!(status("/api/generate", &[]), 415);
    assert_eq!(status("/v1/completions", &[FORM]), 415);
    let own = format!("http://{}", SERVER.address);
    for of_browser in [("Origin", own.as_str()), ("Sec-Fetch-Site", "cross-site")] {
        assert_eq!(status("/api/generate", &[FORM, of_browser]), 415);
    }
}

/// The answer to a request, whole; a stream of the same request, joined, has the same parts.
fn both(server: &TestServer, path: &str, body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = false.into();
    let whole = server.ok(path, &body);
    body.as_object_mut().unwrap().remove("stream");
    let lines = lines(&server.post(path, &body));
    let (last, parts) = lines.split_last().unwrap();
    assert!(parts.iter().all(|line| line["done"] == false), "{lines:?}");
    assert_eq!(last["done"], true, "{lines:?}");
    let place = |line: &Value, key: &str| match path {
        "/api/chat" => line["message"][key].clone(),
        _ => line[if key == "content" { "response" } else { key }].clone(),
    };
    for key in ["content", "thinking"] {
        let said: String = (lines.iter())
            .map(|line| place(line, key).as_str().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(
            said,
            place(&whole, key).as_str().unwrap_or_default(),
            "{key}"
        );
    }
    let joined = |of: &dyn Fn(&Value) -> Value| -> Vec<Value> {
        let lists = lines.iter().map(of);
        lists
            .flat_map(|list| list.as_array().cloned().unwrap_or_default())
            .collect()
    };
    let bare = |call: &Value| call["function"].clone();
    let calls = joined(&|line| line["message"]["tool_calls"].clone());
    let calls: Vec<Value> = calls.iter().map(bare).collect();
    let of_whole = whole["message"]["tool_calls"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(calls, of_whole.iter().map(bare).collect::<Vec<_>>());
    let logprobs = joined(&|line| line["logprobs"].clone());
    assert_eq!(
        logprobs,
        whole["logprobs"].as_array().cloned().unwrap_or_default()
    );
    for key in ["done_reason", "eval_count", "prompt_eval_count", "model"] {
        assert_eq!(last[key], whole[key], "{key}");
    }
    for key in [
        "total_duration",
        "prompt_eval_duration",
        "eval_duration",
        "load_duration",
    ] {
        assert!(last[key].is_u64() && whole[key].is_u64(), "{key}: {last}");
    }
    let total = whole["total_duration"].as_u64().unwrap();
    assert!(
        total >= whole["eval_duration"].as_u64().unwrap() && total > 1000,
        "{whole}"
    );
    for line in &lines {
        let time = line["created_at"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
    whole
}

#[test]
fn a_conversation_is_answered_as_by_chat_completions() {
    let mut body = chat(QUESTION);
    (body["logprobs"], body["top_logprobs"]) = (true.into(), 2.into());
    let answer = both(&SERVER, "/api/chat", &body);
    let openai = json!({"messages": body["messages"], "temperature": 0, "logprobs": true, "top_logprobs": 2});
    let openai = SERVER.ok("/v1/chat/completions", &openai);
    assert_eq!(
        answer["message"],
        json!({"role": "assistant", "content": "42"})
    );
    assert_eq!(
        (&answer["done_reason"], &answer["model"]),
        (&json!("stop"), &json!("tiny"))
    );
    assert_eq!(answer["eval_count"], openai["usage"]["completion_tokens"]);
    assert_eq!(
        answer["prompt_eval_count"],
        openai["usage"]["prompt_tokens"]
    );
    assert_eq!(
        answer["logprobs"],
        openai["choices"][0]["logprobs"]["content"]
    );
}

#[test]
fn a_text_is_answered_continued_or_continued_raw() {
    let body = json!({"model": "tiny:latest", "prompt": QUESTION, "options": {"temperature": 0}});
    let answer = both(&SERVER, "/api/generate", &body);
    assert_eq!(
        (&answer["response"], &answer["model"]),
        (&json!("42"), &json!("tiny"))
    );
    // The template is given the system message.
    let mut with_system = body.clone();
    with_system["system"] = "You count.".into();
    let counted = both(&SERVER, "/api/generate", &with_system);
    let messages =
        json!([{"role": "system", "content": "You count."}, {"role": "user", "content": QUESTION}]);
    let same = json!({"messages": messages, "options": {"temperature": 0}});
    let same = both(&SERVER, "/api/chat", &same);
    assert_eq!(counted["response"], same["message"]["content"]);
    assert_eq!(counted["prompt_eval_count"], same["prompt_eval_count"]);
    assert!(counted["prompt_eval_count"].as_u64() > answer["prompt_eval_count"].as_u64());
    // Without the template the text is continued.
    let raw = json!({"prompt": "The red fox", "raw": true, "options": {"temperature": 0, "num_predict": 5}});
    let raw = both(&SERVER, "/api/generate", &raw);
    let plain = json!({"prompt": "The red fox", "temperature": 0, "max_tokens": 5});
    let plain = SERVER.ok("/v1/completions", &plain);
    assert_eq!(raw["response"], plain["choices"][0]["text"]);
    assert_eq!(
        (&raw["done_reason"], &raw["eval_count"]),
        (&json!("length"), &json!(5))
    );
    assert_eq!(raw["prompt_eval_count"], plain["usage"]["prompt_tokens"]);
}

#[test]
fn options_have_ollamas_names() {
    let raw = |options: Value| {
        let body = json!({"prompt": "The red fox", "raw": true, "options": options});
        both(&SERVER, "/api/generate", &body)["response"].clone()
    };
    let openai = |body: Value| {
        let mut body = body;
        (body["prompt"], body["max_tokens"]) = ("The red fox".into(), 12.into());
        SERVER.ok("/v1/completions", &body)["choices"][0]["text"].clone()
    };
    for (ours, theirs) in [
        (json!({"seed": 7}), json!({"seed": 7})),
        (
            json!({"seed": 7, "temperature": 1.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1}),
            json!({"seed": 7, "temperature": 1.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1}),
        ),
        (
            json!({"temperature": 0, "repeat_penalty": 1.9}),
            json!({"temperature": 0, "repeat_penalty": 1.9, "repeat_last_n": 64}),
        ),
        (
            json!({"temperature": 0, "repeat_penalty": 1.9, "repeat_last_n": 2}),
            json!({"temperature": 0, "repeat_penalty": 1.9, "repeat_last_n": 2}),
        ),
        (
            json!({"temperature": 0, "presence_penalty": 2, "frequency_penalty": 2}),
            json!({"temperature": 0, "presence_penalty": 2, "frequency_penalty": 2}),
        ),
        (
            json!({"temperature": 0, "stop": ["hill"]}),
            json!({"temperature": 0, "stop": ["hill"]}),
        ),
    ] {
        let mut ours = ours;
        ours["num_predict"] = 12.into();
        assert_eq!(raw(ours.clone()), openai(theirs), "{ours}");
    }
    // Without a number, and with Ollama's numbers for no limit, an answer goes on to its end.
    let whole = both(&SERVER, "/api/chat", &chat(QUESTION));
    for n in [-1, -2, 0] {
        let mut body = chat(QUESTION);
        body["options"]["num_predict"] = n.into();
        let answer = both(&SERVER, "/api/chat", &body);
        assert_eq!(answer["message"], whole["message"], "{n}");
    }
    // Options of the computation have no effect; unknown ones are named.
    let mut body = chat(QUESTION);
    for (name, value) in [
        ("num_ctx", json!(8192)),
        ("num_gpu", json!(1)),
        ("num_thread", json!(2)),
        ("warmth", json!(1)),
    ] {
        body["options"][name] = value;
    }
    (body["colour"], body["keep_alive"]) = ("red".into(), "5m".into());
    let answer = SERVER.post("/api/chat", &body);
    assert_eq!(
        answer.header("x-ignored-params"),
        Some("options.warmth,colour")
    );
    assert_eq!(lines(&answer).last().unwrap()["done_reason"], "stop");
    let strict = TestServer::start(|options| options.strict = true);
    let refused = strict.post("/api/chat", &body);
    assert_eq!(refused.status, 400);
    assert!(
        refused.json()["error"]
            .as_str()
            .unwrap()
            .starts_with("warmth is not known")
    );
}

#[test]
fn a_format_is_held() {
    let schema = json!({
        "type": "object", "properties": {"answer": {"enum": [41, 42]}}, "required": ["answer"], "additionalProperties": false,
    });
    for (path, key, value) in [
        (
            "/api/chat",
            "messages",
            json!([{"role": "user", "content": QUESTION}]),
        ),
        ("/api/generate", "prompt", QUESTION.into()),
    ] {
        let mut body = json!({"format": schema, "options": {"seed": 3}});
        body[key] = value.clone();
        let text = |answer: &Value| match path {
            "/api/chat" => answer["message"]["content"].as_str().unwrap().to_owned(),
            _ => answer["response"].as_str().unwrap().to_owned(),
        };
        let held = both(&SERVER, path, &body);
        let held: Value = serde_json::from_str(&text(&held)).unwrap();
        assert!(
            [41, 42].map(Value::from).contains(&held["answer"]),
            "{held}"
        );
        let mut body = json!({"format": "json", "options": {"seed": 3, "num_predict": 40}});
        body[key] = value.clone();
        let held = both(&SERVER, path, &body);
        assert!(text(&held).trim_start().starts_with('{'), "{held}");
        let mut bad = json!({"format": "xml"});
        bad[key] = value;
        let refused = SERVER.post(path, &bad);
        assert_eq!(refused.status, 400);
        let message = "format must be \"json\" or a JSON schema, given \"xml\"";
        assert_eq!(refused.json(), json!({"error": message}));
    }
}

fn tools() -> Value {
    // Ollama's client for Python leaves out the type of a tool that was made from a function.
    json!([{"function": {"name": "add", "description": "Adds.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"],
    }}}])
}

/// Lets a model write these pieces in answer to a body.
fn script(scripted: &Scripted, body: &Value, pieces: &[&str]) {
    let mut short = body.clone();
    short["stream"] = false.into();
    short["options"] = json!({"num_predict": 1});
    let prompt = scripted.server.ok("/api/chat", &short)["prompt_eval_count"].clone();
    scripted.says(prompt.as_u64().unwrap() as usize, pieces);
}

#[test]
fn reasoning_and_calls_have_keys_of_their_own() {
    for family in &FAMILIES {
        let name = family.template;
        let scripted = family.start();
        let [open, close] = family.think;
        let mut body = chat(QUESTION);
        body["tools"] = tools();
        script(&scripted, &body, &[open, "I add.", close, family.call]);
        let answer = both(&scripted.server, "/api/chat", &body);
        let message = &answer["message"];
        assert_eq!(
            (&message["thinking"], &message["content"]),
            (&json!("I add."), &json!("")),
            "{name}"
        );
        let function = json!({"index": 0, "name": "add", "arguments": {"a": 1, "b": "x"}});
        assert_eq!(message["tool_calls"][0]["function"], function, "{name}");
        assert_eq!(
            (
                message["tool_calls"].as_array().unwrap().len(),
                &answer["done_reason"]
            ),
            (1, &json!("stop"))
        );
        // The history that a client sends next: the call without an id, and its result by name.
        let mut next = body.clone();
        let call = json!({"function": {"name": "add", "arguments": {"a": 1, "b": "x"}}});
        let turns = next["messages"].as_array_mut().unwrap();
        turns.push(
            json!({"role": "assistant", "content": "", "thinking": "I add.", "tool_calls": [call]}),
        );
        turns.push(json!({"role": "tool", "tool_name": "add", "content": "42"}));
        script(&scripted, &next, &[family.answer[1], "It is 42."]);
        let answer = both(&scripted.server, "/api/chat", &next);
        assert_eq!(answer["message"]["content"], "It is 42.", "{name}");
        // A call that is cut is left out.
        script(&scripted, &body, &[open, "I add.", close, family.call]);
        let cut =
            scripted.count(&[open, "I add.", close].concat()) + scripted.count(family.call) * 3 / 4;
        body["options"]["num_predict"] = cut.into();
        let answer = both(&scripted.server, "/api/chat", &body);
        assert_eq!(
            (&answer["done_reason"], &answer["message"]["tool_calls"]),
            (&json!("length"), &Value::Null),
            "{name}"
        );
    }
}

#[test]
fn thinking_is_switched() {
    let qwen = FAMILIES[0].start();
    let mut body = chat(QUESTION);
    body["think"] = false.into();
    // The template closes the reasoning before it begins.
    script(&qwen, &body, &["It is 42."]);
    let answer = both(&qwen.server, "/api/chat", &body);
    assert_eq!(
        (
            &answer["message"]["content"],
            &answer["message"]["thinking"]
        ),
        (&json!("It is 42."), &Value::Null)
    );
    for think in [json!(true), json!("high")] {
        body["think"] = think;
        script(
            &qwen,
            &body,
            &["<think>\n", "I add.", "\n</think>", "It is 42."],
        );
        let answer = both(&qwen.server, "/api/chat", &body);
        assert_eq!(answer["message"]["thinking"], "I add.");
    }
    // The template is given the effort.
    let harmony = FAMILIES[2].start();
    let prompts = ["low", "high"].map(|think| {
        let mut body = chat(QUESTION);
        (body["think"], body["options"]["num_predict"]) = (think.into(), 1.into());
        both(&harmony.server, "/api/chat", &body)["prompt_eval_count"]
            .as_u64()
            .unwrap()
    });
    assert_eq!(
        prompts[0] + harmony.count("high") as u64,
        prompts[1] + harmony.count("low") as u64
    );
    // A model that does not reason.
    for (think, status) in [(json!(false), 200), (json!(true), 400), (json!("low"), 400)] {
        let mut body = chat(QUESTION);
        body["think"] = think;
        let answer = SERVER.post("/api/chat", &body);
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(status == 200 || answer.body.contains("think: the model has no marks"));
    }
}

/// Checks that a request is refused with this status and an error that begins with these words.
fn assert_refused(path: &str, body: &Value, status: u16, word: &str) {
    let error = refusal(&SERVER, path, body, status);
    assert!(error.starts_with(word), "{path} {body}: {error}");
}

/// The error of a request.
fn refusal(server: &TestServer, path: &str, body: &Value, status: u16) -> String {
    let answer = server.post(path, body);
    assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    answer.json()["error"].as_str().unwrap().to_owned()
}

#[test]
fn parameters_that_are_not_supported_are_refused_by_name() {
    let image = json!([{"role": "user", "content": "Look.", "images": ["iVBORw0KGgo="]}]);
    assert_refused(
        "/api/chat",
        &json!({"messages": image}),
        400,
        "messages[0]: images",
    );
    for (key, value, word) in [
        ("images", json!(["iVBORw0KGgo="]), "images"),
        ("template", "{{ .Prompt }}".into(), "template"),
        ("context", json!([1, 2]), "context"),
        ("suffix", "y".into(), "suffix: the model's vocabulary"),
        ("keep_alive", "soon".into(), "keep_alive"),
        ("think", "deeply".into(), "think"),
        ("options", json!({"mirostat": 2}), "mirostat"),
        ("options", json!({"num_predict": -9}), "num_predict"),
        ("options", json!({"num_ctx": 0}), "num_ctx"),
        ("options", json!({"top_p": 2}), "top_p"),
        ("options", json!({"stop": [""]}), "stop[0]"),
    ] {
        let mut body = json!({"prompt": "x"});
        body[key] = value;
        assert_refused("/api/generate", &body, 400, word);
    }
    let raw = json!({"prompt": "x", "system": "y", "raw": true});
    assert_refused("/api/generate", &raw, 400, "system");
    assert_refused("/api/chat", &json!({"messages": "x"}), 400, "messages");
    let unload = json!({"prompt": "", "keep_alive": 0});
    assert_refused(
        "/api/generate",
        &unload,
        400,
        "the server keeps its only model",
    );
    // Empty values change nothing.
    let body = json!({
        "prompt": QUESTION, "images": [], "template": "", "context": [], "suffix": "", "raw": false,
        "format": "", "think": null, "options": {"temperature": 0, "mirostat": 0, "tfs_z": 1},
    });
    assert_eq!(both(&SERVER, "/api/generate", &body)["response"], "42");
}

#[test]
fn routes_and_models_that_are_not_here_are_refused_by_name() {
    let other = "there is no model \"other\"";
    let of_other = json!({"model": "other", "messages": []});
    assert_refused("/api/chat", &of_other, 404, other);
    assert_refused("/api/show", &json!({"model": "other:latest"}), 404, other);
    for path in ["/api/embed", "/api/embeddings"] {
        assert_refused(path, &of_other, 404, other);
    }
    for name in ["pull", "push", "create", "copy", "blobs/sha256:00"] {
        let path = format!("/api/{name}");
        let word = format!("{path} is not supported");
        assert_refused(&path, &json!({"model": "tiny"}), 501, &word);
    }
    let json = [("Content-Type", "application/json")];
    let deleted = SERVER.send("DELETE", "/api/delete", &json, r#"{"model": "tiny"}"#);
    assert_eq!(deleted.status, 501, "{}", deleted.body);
}

/// The vectors are those of `/v1/embeddings`.
#[test]
fn texts_are_embedded_in_both_forms() {
    let (server, _dir) = embeddings::server("nomic_bert");
    let texts = texts();
    let given = json!({"model": "tiny:latest", "input": texts, "keep_alive": "5m",
        "options": {"num_ctx": 2048, "num_thread": 2, "temperature": 0}});
    let answer = server.post("/api/embed", &given);
    assert_eq!(
        (answer.status, answer.header("x-ignored-params")),
        (200, Some("options.temperature")),
        "{}",
        answer.body
    );
    let answer = answer.json();
    let same = |input: Value, more: Value| {
        let mut body = json!({"input": input, "normalize": true});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let list = server.ok("/v1/embeddings", &body);
        let data = list["data"].as_array().unwrap();
        let vectors: Vec<Value> = data.iter().map(|one| one["embedding"].clone()).collect();
        (json!(vectors), list["usage"]["prompt_tokens"].clone())
    };
    let (vectors, tokens) = same(json!(texts), json!({}));
    assert_eq!(
        (&answer["embeddings"], &answer["prompt_eval_count"]),
        (&vectors, &tokens)
    );
    assert_eq!(answer["model"], "tiny");
    let time = |key: &str| answer[key].as_u64().unwrap();
    assert!(time("total_duration") > 1000 && time("total_duration") > time("load_duration"));

    let short = json!({"input": texts[0], "dimensions": 8});
    let short = server.ok("/api/embed", &short)["embeddings"].clone();
    assert_eq!(short, same(json!(texts[0]), json!({"dimensions": 8})).0);
    let all = server.ok("/api/embed", &json!({"input": texts[0], "dimensions": 0}));
    assert_eq!(all["embeddings"][0], vectors[0]);

    // The older form has the checkpoint's own length.
    let old = json!({"model": "tiny", "prompt": texts[0]});
    assert_eq!(server.ok("/api/embeddings", &old)["embedding"], vectors[0]);
    let (longer, dir) = embeddings::server("bert_pools");
    let model = LoadedModel::load(dir.path(), LoadOptions::default()).unwrap();
    let prompt = vec![texts[0].as_str().into()];
    let raw = model.embed(prompt, &EmbedOptions::default()).unwrap();
    let old = values(&longer.ok("/api/embeddings", &old)["embedding"]);
    assert_eq!(old, raw.into_iter().next().unwrap().unwrap().values);
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let new = longer.ok("/api/embed", &json!({"input": texts[0]}));
    let new = length(&values(&new["embeddings"][0]));
    assert!(length(&old) > 2.0 && (new - 1.0).abs() < 1e-5, "{new}");

    // A model that generates text embeds too.
    let found = SERVER.ok("/api/embed", &json!({"input": "The red fox"}));
    let expected = SERVER.ok("/v1/embeddings", &json!({"input": ["The red fox"]}));
    assert_eq!(found["embeddings"][0], expected["data"][0]["embedding"]);
}

#[test]
fn texts_that_cannot_be_embedded_are_refused() {
    let (server, _dir) = embeddings::server("nomic_bert");
    let short = texts().swap_remove(0);
    // A text that is too long is cut, or refused.
    let long = "fox ".repeat(5000);
    let cut = server.ok("/api/embed", &json!({"input": ["x", long]}));
    assert_eq!(cut["embeddings"].as_array().unwrap().len(), 2);
    let whole = json!({"input": ["x", long], "truncate": false});
    let told = refusal(&server, "/api/embed", &whole, 400);
    assert!(
        told.starts_with("input 1: ") && told.contains("positions"),
        "{told}"
    );
    let embedded = |truncate: bool| {
        let body = json!({"input": short, "truncate": truncate});
        server.ok("/api/embed", &body)["embeddings"].clone()
    };
    assert_eq!(embedded(false), embedded(true));

    // Without a text the model is loaded.
    for input in [json!({}), json!({"input": ""}), json!({"input": []})] {
        assert_eq!(server.ok("/api/embed", &input)["embeddings"], json!([]));
    }
    let old = server.ok("/api/embeddings", &json!({"model": "tiny"}));
    assert_eq!(old, json!({"embedding": []}));
    for (path, body, word) in [
        ("/api/embed", json!({"input": 1}), "input"),
        ("/api/embed", json!({"input": ["x", null]}), "input"),
        (
            "/api/embed",
            json!({"input": "x", "dimensions": 33}),
            "dimensions",
        ),
        (
            "/api/embed",
            json!({"input": "x", "truncate": "no"}),
            "truncate",
        ),
        (
            "/api/embed",
            json!({"input": "x", "options": []}),
            "options",
        ),
        (
            "/api/embed",
            json!({"input": "x", "keep_alive": "5x"}),
            "keep_alive",
        ),
        ("/api/embeddings", json!({"prompt": ["x"]}), "prompt"),
        (
            "/api/generate",
            json!({"prompt": "x", "raw": true}),
            "encoder",
        ),
    ] {
        let told = refusal(&server, path, &body, 400);
        assert!(told.contains(word), "{path} {body}: {told}");
    }
    let shown = server.ok("/api/show", &json!({"model": "tiny"}));
    assert_eq!(shown["capabilities"], json!(["embedding"]));
}

#[test]
fn a_request_without_a_text_loads_the_model() {
    for (path, body) in [
        ("/api/generate", json!({"model": "tiny"})),
        (
            "/api/chat",
            json!({"model": "tiny", "messages": [], "keep_alive": -1}),
        ),
    ] {
        let answer = SERVER.ok(path, &body);
        assert_eq!(
            (&answer["done"], &answer["done_reason"]),
            (&json!(true), &json!("load")),
            "{answer}"
        );
    }
}

#[test]
fn models_are_described() {
    let tags = SERVER.get("/api/tags").json();
    let names: Vec<&str> = tags["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["tiny", "org/tiny"]);
    let running = SERVER.get("/api/ps").json();
    for one in tags["models"]
        .as_array()
        .unwrap()
        .iter()
        .chain(running["models"].as_array().unwrap())
    {
        assert_eq!(one["name"], one["model"]);
        assert!(one["size"].as_u64().unwrap() > 1_000_000, "{one}");
        let digest = one["digest"].as_str().unwrap();
        assert!(
            digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()),
            "{digest}"
        );
        assert_eq!(
            (&one["details"]["family"], &one["details"]["format"]),
            (&json!("gemma3_text"), &json!("safetensors"))
        );
        assert_eq!(one["details"]["parameter_size"], "2.2M");
    }
    assert_ne!(tags["models"][0]["digest"], tags["models"][1]["digest"]);
    assert_eq!(running["models"][0]["context_length"], 512);
    let shown = SERVER.ok(
        "/api/show",
        &json!({"name": "org/tiny:latest", "verbose": true}),
    );
    assert_eq!(shown["model_info"]["general.architecture"], "gemma3_text");
    assert_eq!(shown["model_info"]["gemma3_text.context_length"], 512);
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert!(shown["template"].as_str().unwrap().contains("messages"));
    let thinks = FAMILIES[0]
        .start()
        .server
        .ok("/api/show", &json!({"model": "tiny"}));
    assert_eq!(
        thinks["capabilities"],
        json!(["completion", "tools", "thinking"])
    );
    let version = SERVER.get("/api/version").json()["version"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        version
            .split('.')
            .filter(|part| part.parse::<u32>().is_ok())
            .count(),
        3,
        "{version}"
    );
}

#[test]
fn a_fault_ends_a_stream_with_an_error() {
    let scripted = FAMILIES[0].start();
    let body = chat("x");
    scripted.fault(Fault::Fails);
    let stream = scripted.server.post("/api/chat", &body);
    let last = lines(&stream).pop().unwrap();
    let error = last["error"].as_str().unwrap();
    let id = stream.header("x-request-id").unwrap();
    assert!(
        error.contains(id) && !stream.body.contains("secret"),
        "{error}"
    );
    let mut whole = body.clone();
    whole["stream"] = false.into();
    let whole = scripted.server.post("/api/chat", &whole);
    assert_eq!(whole.status, 500, "{}", whole.body);
    scripted.fault(Fault::None);
    scripted
        .server
        .ok("/api/generate", &json!({"prompt": "x", "stream": false}));
}

#[test]
fn silence_is_filled_with_lines_that_parse() {
    let ping = std::time::Duration::from_millis(20);
    let scripted = Scripted::start("qwen3", &[], &["<|im_end|>"], |options| options.ping = ping);
    scripted.fault(Fault::Slow(ping * 5));
    let mut body = chat("x");
    body["options"]["num_predict"] = 2.into();
    let lines = lines(&scripted.server.post("/api/chat", &body));
    assert!(lines.len() > 5, "{lines:?}");
    assert!(
        lines
            .iter()
            .all(|line| line["message"]["role"] == "assistant"),
        "{lines:?}"
    );
}

//! Parameters and defaults: their names and meanings are those of OpenAI, vLLM and llama.cpp.

use std::ops::ControlFlow;

use mlx_infer::{Files, GenerateOptions, LoadedModel, RequestOptions, SamplingParams};
use serde_json::{Value, json};

use crate::client::{SERVER, TestServer};

pub const QUESTION: &str = "What is 20 + 22?";

pub fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

pub fn text_of(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    let text = choice["text"]
        .as_str()
        .or(choice["message"]["content"].as_str());
    text.unwrap_or_else(|| panic!("no text: {answer}"))
}

/// llama.cpp's -1: an answer up to the end of the context, or of `--max-output`.
#[test]
fn minus_one_is_no_limit() {
    let tokens = |server: &TestServer, path: &str, body: &Value| -> [u64; 2] {
        let usage = &server.ok(path, body)["usage"];
        ["prompt_tokens", "completion_tokens"].map(|key| usage[key].as_u64().unwrap())
    };
    let short = TestServer::start(|options| options.max_output = 40);
    let texts = json!(["The red fox", "A much longer text of some words than that"]);
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let (mut of_chat, mut of_text) = (chat(json!({})), json!({"prompt": "The red fox"}));
        of_chat.as_object_mut().unwrap().shift_remove("max_tokens");
        for (path, body) in [
            ("/v1/chat/completions", &mut of_chat),
            ("/v1/completions", &mut of_text),
        ] {
            body["ignore_eos"] = true.into();
            body[name] = (-1).into();
            let [prompt, answer] = tokens(&SERVER, path, body);
            assert_eq!(prompt + answer, 512, "{path}, {name}");
            assert_eq!(tokens(&short, path, body)[1], 40, "{path}, {name}");
            body[name] = (-2).into();
            let refused = SERVER.post(path, body);
            let error = &refused.json()["error"];
            assert_eq!((refused.status, &error["param"]), (400, &json!(name)));
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("-1 for no limit, given -2"), "{message}");
        }
    }
    // Each prompt has its own rest of the context.
    let body = json!({"prompt": texts, "max_tokens": -1, "ignore_eos": true});
    let [prompts, answers] = tokens(&SERVER, "/v1/completions", &body);
    assert_eq!(prompts + answers, 2 * 512);
}

/// Each parameter of a request has the effect of the library's option.
#[test]
fn parameters_are_the_librarys_options() {
    let model = LoadedModel::load_default().unwrap();
    let prompt = "The red fox";
    let fox = model.tokenizer().unwrap().encode(" fox", false).unwrap()[0];
    let sampling = |change: &dyn Fn(&mut SamplingParams)| {
        let mut options = GenerateOptions {
            max_tokens: 24,
            ignore_eos: true,
            ..Default::default()
        };
        (options.sampling.temperature, options.sampling.seed) = (0.9, Some(11));
        change(&mut options.sampling);
        options
    };
    let whole = u32::MAX as usize;
    let ways: Vec<(Value, GenerateOptions)> = vec![
        (json!({"top_p": 0.3}), sampling(&|s| s.top_p = 0.3)),
        (json!({"top_p": 0}), sampling(&|s| s.top_k = 1)),
        (json!({"top_k": 2}), sampling(&|s| s.top_k = 2)),
        (json!({"top_k": -1}), sampling(&|_| ())),
        (json!({"min_p": 0.4}), sampling(&|s| s.min_p = 0.4)),
        (
            json!({"temperature": 1e-5}),
            sampling(&|s| s.temperature = 0.0),
        ),
        (
            json!({"presence_penalty": 1.5}),
            sampling(&|s| s.presence_penalty = 1.5),
        ),
        (
            json!({"frequency_penalty": 0.8}),
            sampling(&|s| s.frequency_penalty = 0.8),
        ),
        (
            json!({"repetition_penalty": 1.7}),
            sampling(&|s| (s.repeat_penalty, s.repeat_context) = (1.7, whole)),
        ),
        (
            json!({"repeat_penalty": 1.7, "repeat_last_n": 3}),
            sampling(&|s| (s.repeat_penalty, s.repeat_context) = (1.7, 3)),
        ),
        (
            json!({"repeat_penalty": 1.7, "repeat_last_n": -1}),
            sampling(&|s| (s.repeat_penalty, s.repeat_context) = (1.7, whole)),
        ),
        (
            json!({"repeat_penalty": 1.7, "repeat_last_n": 0}),
            sampling(&|_| ()),
        ),
        (
            json!({"logit_bias": {fox.to_string(): 100}}),
            sampling(&|s| s.logit_bias = [(fox, 100.0)].into()),
        ),
        (
            json!({"stop_token_ids": [fox], "ignore_eos": false}),
            GenerateOptions {
                stop_ids: vec![fox],
                ignore_eos: false,
                ..sampling(&|_| ())
            },
        ),
    ];
    let mut texts = Vec::new();
    for (way, options) in ways {
        let mut body = json!({"prompt": prompt, "max_tokens": 24, "ignore_eos": true, "temperature": 0.9, "seed": 11});
        body.as_object_mut()
            .unwrap()
            .extend(way.as_object().unwrap().clone());
        let found = SERVER.ok("/v1/completions", &body);
        let mut generation = model.generate(prompt, &options).unwrap();
        let expected = generation
            .run(|_| ControlFlow::Continue(()))
            .unwrap()
            .text
            .unwrap();
        assert_eq!(text_of(&found), expected, "{way}");
        texts.push(expected);
    }
    // The parameters make a difference.
    texts.sort();
    texts.dedup();
    assert!(texts.len() >= 8, "{texts:?}");
}

#[test]
fn the_newer_name_of_a_limit_goes_first() {
    let body = chat(json!({"max_completion_tokens": 3, "ignore_eos": true}));
    let answer = SERVER.ok("/v1/chat/completions", &body);
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

/// Parameters that a request does not give come from the server's flags, then from the checkpoint,
/// then from OpenAI's defaults.
#[test]
fn defaults_have_an_order() {
    let folder = tempfile::tempdir().unwrap();
    let Files::Embedded { files, .. } = mlx_infer::default_model_files() else {
        panic!("the built-in model is embedded");
    };
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let published = json!({"eos_token_id": [1, 5], "top_k": 1, "repetition_penalty": 1.0});
    let path = folder.path().join("generation_config.json");
    std::fs::write(path, published.to_string()).unwrap();
    let start = |defaults: RequestOptions, max_output: usize| {
        let dir = folder.path().to_owned();
        let load = move || LoadedModel::load(dir, Default::default());
        TestServer::of(load, |options| {
            (options.defaults, options.max_output) = (defaults, max_output);
            // In bf16, if two tokens are almost equally likely, a text depends on which rows are
            // computed together.
            options.engine.limits.prefix_bytes = 0;
        })
    };
    let body = json!({"prompt": "The red fox", "ignore_eos": true});
    let text = |server: &TestServer, more: Value| {
        let mut body = body.clone();
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        text_of(&server.ok("/v1/completions", &body)).to_owned()
    };
    let drawn = json!({"top_k": 0, "temperature": 1.5, "seed": 3});
    // The checkpoint's top_k of 1 applies until a flag or a request gives another one.
    let of_checkpoint = start(RequestOptions::default(), 7);
    let greedy = text(&of_checkpoint, json!({"temperature": 0}));
    assert_eq!(text(&of_checkpoint, json!({"seed": 3})), greedy);
    assert_ne!(text(&of_checkpoint, drawn.clone()), greedy);
    let flags = RequestOptions {
        top_k: Some(0),
        temperature: Some(1.5),
        ..Default::default()
    };
    let of_flags = start(flags, 7);
    assert_eq!(text(&of_flags, json!({"seed": 3})), text(&of_flags, drawn));
    assert_eq!(text(&of_flags, json!({"seed": 3, "top_k": 1})), greedy);
    // OpenAI's defaults: temperature 1, 16 tokens of a completion; a conversation continues up to
    // --max-output, or to the end of the context.
    let open = json!({"seed": 3, "top_k": 0});
    let one = json!({"seed": 3, "top_k": 0, "temperature": 1});
    assert_eq!(text(&of_checkpoint, open), text(&of_checkpoint, one));
    let counts =
        |server: &TestServer, path: &str, body: &Value| server.ok(path, body)["usage"].clone();
    assert_eq!(
        counts(&SERVER, "/v1/completions", &body)["completion_tokens"],
        16
    );
    let mut conversation = chat(json!({"ignore_eos": true}));
    conversation.as_object_mut().unwrap().remove("max_tokens");
    let path = "/v1/chat/completions";
    assert_eq!(
        counts(&of_flags, path, &conversation)["completion_tokens"],
        7
    );
    assert_eq!(counts(&SERVER, path, &conversation)["total_tokens"], 512);
    // A checkpoint with `do_sample: false` is greedy, whatever its other settings are, until a
    // request gives a temperature.
    let published = json!({"eos_token_id": [1, 5], "do_sample": false, "temperature": 1.5});
    let path = folder.path().join("generation_config.json");
    std::fs::write(path, published.to_string()).unwrap();
    let of_greedy = start(RequestOptions::default(), 7);
    assert_eq!(text(&of_greedy, json!({"seed": 3})), greedy);
    let drawn = json!({"seed": 3, "temperature": 1.5});
    assert_ne!(text(&of_greedy, drawn), greedy);
}

#[test]
fn parameters_that_cannot_matter_are_taken_in_silence() {
    let body = chat(json!({
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "verbosity": "low", "cache_control": {"type": "ephemeral"},
        "modalities": ["text"], "client_metadata": {}, "stream": true,
        "stream_options": {"include_usage": true, "include_obfuscation": false},
    }));
    let answer = SERVER.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("x-ignored-params"), None);
}

#[test]
fn parameters_that_would_change_the_answer_are_refused() {
    for (more, param) in [
        (json!({"audio": {"voice": "x", "format": "wav"}}), "audio"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"use_beam_search": true}), "use_beam_search"),
        (json!({"length_penalty": 0.5}), "length_penalty"),
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"typical_p": 0.8}), "typical_p"),
        (
            json!({"prediction": {"type": "content", "content": "x"}}),
            "prediction",
        ),
        (json!({"web_search_options": {}}), "web_search_options"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
    ] {
        let answer = SERVER.post("/v1/chat/completions", &chat(more));
        assert_eq!(answer.status, 400, "{param}: {}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.body);
    }
    let image = json!([{"type": "image_url", "image_url": {"url": "data:,"}}]);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": image}]}),
        ),
        (
            "/v1/responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}),
        ),
        (
            "/v1/messages",
            json!({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
        ),
    ] {
        let answer = SERVER.post(path, &body);
        assert_eq!(answer.status, 400, "{path}");
        let is_named = answer.body.contains("image");
        assert!(
            is_named && answer.body.contains("text"),
            "{path}: {}",
            answer.body
        );
    }
}

/// A refusal has its status and its JSON, even if a stream was requested.
#[test]
fn a_refused_stream_is_no_stream() {
    for (path, mut body) in [
        ("/v1/completions", json!({"prompt": "x", "top_p": 7})),
        ("/v1/chat/completions", chat(json!({"top_p": 7}))),
        ("/v1/responses", json!({"input": "x", "top_p": 7})),
        ("/v1/messages", chat(json!({"top_p": 7}))),
        ("/v1/completions", json!({"prompt": "fox ".repeat(600)})),
    ] {
        body["stream"] = true.into();
        let answer = SERVER.post(path, &body);
        assert_eq!(answer.status, 400, "{path}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/json"),
            "{path}"
        );
        assert!(answer.json()["error"]["message"].is_string(), "{path}");
    }
}

#[test]
fn null_is_absent_on_each_route() {
    let nulls = |names: &[&str]| {
        let nulls = names.iter().map(|name| ((*name).to_owned(), Value::Null));
        nulls.collect::<serde_json::Map<_, _>>()
    };
    let common = [
        "model",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "tools",
        "tool_choice",
        "metadata",
        "seed",
        "stop",
        "logit_bias",
        "suffix",
        "anything",
    ];
    for (path, mut body, names) in [
        (
            "/v1/responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}], "id": null, "status": null}],
                "text": {"format": null, "verbosity": null}, "reasoning": {"effort": null, "summary": null}}),
            &[
                "instructions",
                "previous_response_id",
                "background",
                "conversation",
                "prompt",
                "include",
                "max_output_tokens",
                "parallel_tool_calls",
                "truncation",
                "top_logprobs",
            ][..],
        ),
        (
            "/v1/messages",
            json!({"max_tokens": 3, "messages": [{"role": "user", "content": "x"}], "output_config": {"effort": null, "format": null}}),
            &["system", "thinking", "stop_sequences", "container"][..],
        ),
        (
            "/v1/chat/completions",
            json!({"max_tokens": 3, "stream_options": {"include_usage": null}, "messages": [
                {"role": "user", "content": "x", "name": null},
                {"role": "assistant", "content": null, "tool_calls": null, "reasoning_content": null, "refusal": null, "audio": null},
                {"role": "user", "content": "y"}]}),
            &["functions", "n", "response_format", "reasoning_effort"][..],
        ),
        (
            "/v1/classify",
            json!({"input": "x", "labels": ["a", "b"]}),
            &["template"][..],
        ),
        (
            "/v1/systemone",
            json!({"state": "x", "questions": {"q": {"type": "noul", "instructions": "i", "criteria": null}}}),
            &["chat_template_kwargs"][..],
        ),
        (
            "/tokenize",
            json!({"prompt": "x"}),
            &["content", "messages", "add_special_tokens", "with_pieces"][..],
        ),
        ("/detokenize", json!({"tokens": [7]}), &[][..]),
    ] {
        let object = body.as_object_mut().unwrap();
        object.extend(nulls(&common));
        object.extend(nulls(names));
        let answer = SERVER.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(answer.header("x-ignored-params"), None, "{path}");
    }
}

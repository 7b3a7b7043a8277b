//! Requests that are refused, and their errors.

use serde_json::{Value, json};

use crate::client::{SERVER, TestServer};

/// Sends a body, and returns status, parameter, code and message.
fn refused(path: &str, body: &Value) -> (u16, Value, Value, String) {
    let answer = SERVER.post(path, body);
    let error = answer.json()["error"].clone();
    let message = error["message"].as_str().unwrap_or_default().to_owned();
    (
        answer.status,
        error["param"].clone(),
        error["code"].clone(),
        message,
    )
}

#[test]
fn faults_of_a_request_name_the_parameter() {
    let chat = |mut more: Value| {
        let body = json!([{"role": "user", "content": "x"}]);
        more.as_object_mut()
            .unwrap()
            .entry("messages")
            .or_insert(body);
        ("/v1/chat/completions", more)
    };
    let complete = |mut more: Value| {
        more.as_object_mut()
            .unwrap()
            .entry("prompt")
            .or_insert("x".into());
        ("/v1/completions", more)
    };
    for ((path, body), param) in [
        (complete(json!({"temperature": -1})), "temperature"),
        (complete(json!({"temperature": 1e300})), "temperature"),
        (complete(json!({"top_p": 1.5})), "top_p"),
        (complete(json!({"n": 0})), "n"),
        (complete(json!({"n": 17})), "n"),
        (complete(json!({"logprobs": 21})), "logprobs"),
        (complete(json!({"max_tokens": 0})), "max_tokens"),
        (complete(json!({"max_tokens": -2})), "max_tokens"),
        (complete(json!({"n_predict": -1000})), "n_predict"),
        (chat(json!({"max_tokens": -2})), "max_tokens"),
        (
            chat(json!({"max_completion_tokens": -3})),
            "max_completion_tokens",
        ),
        (complete(json!({"prompt": []})), "prompt"),
        (complete(json!({"prompt": {"x": 1}})), "prompt"),
        (complete(json!({"suffix": "y"})), "suffix"),
        (complete(json!({"best_of": 3, "stream": true})), "best_of"),
        (complete(json!({"best_of": 2, "n": 3})), "best_of"),
        (complete(json!({"best_of": 17})), "best_of"),
        (complete(json!({"min_tokens": 99})), "min_tokens"),
        (complete(json!({"logit_bias": {"99999": 1}})), "logit_bias"),
        (complete(json!({"stop_token_ids": "x"})), "stop_token_ids"),
        (
            complete(json!({"stop_token_ids": [99999]})),
            "stop_token_ids",
        ),
        (complete(json!({"prompt": [99999]})), "prompt"),
        (
            complete(json!({"stream_options": [true]})),
            "stream_options",
        ),
        (
            complete(json!({"stream_options": {"include_usage": 1}})),
            "stream_options",
        ),
        (
            complete(json!({"structured_outputs": ["a"]})),
            "structured_outputs",
        ),
        (
            complete(json!({"structured_outputs": {"structural_tag": "x"}})),
            "structured_outputs",
        ),
        (chat(json!({"messages": "x"})), "messages"),
        (chat(json!({"messages": [{"content": "x"}]})), "messages"),
        (chat(json!({"messages": []})), "messages"),
        (chat(json!({"top_logprobs": 2})), "top_logprobs"),
        (
            chat(json!({"logprobs": true, "top_logprobs": 21})),
            "top_logprobs",
        ),
        (chat(json!({"tools": [{"type": "x"}]})), "tools"),
        (chat(json!({"tool_choice": "required"})), "tool_choice"),
        (chat(json!({"audio": {"voice": "x"}})), "audio"),
        (chat(json!({"max_tokens": 0})), "max_tokens"),
        (
            chat(json!({"max_completion_tokens": 0})),
            "max_completion_tokens",
        ),
        (
            chat(json!({"messages": [{"role": "user", "content": 3}]})),
            "messages",
        ),
        (
            chat(
                json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}),
            ),
            "tools",
        ),
        (
            chat(json!({
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "bogus"}}}],
                "tool_choice": "required",
            })),
            "tools",
        ),
        (
            chat(json!({"chat_template_kwargs": {"messages": []}})),
            "chat_template_kwargs",
        ),
        (
            chat(
                json!({"response_format": {"type": "json_schema", "json_schema": {"strict": "yes", "schema": {}}}}),
            ),
            "response_format",
        ),
        (
            chat(json!({"tool_choice": {"type": "allowed_tools", "mode": "auto"}})),
            "tool_choice",
        ),
        (("/v1/responses", json!({"input": []})), "input"),
        (("/v1/responses", json!({"input": [1]})), "input"),
        (
            ("/v1/responses", json!({"input": "fox ".repeat(600)})),
            "input",
        ),
        (
            ("/v1/responses", json!({"input": "x", "tools": [1]})),
            "tools",
        ),
        (
            (
                "/v1/responses",
                json!({"input": "x", "reasoning": {"effort": 3}}),
            ),
            "reasoning",
        ),
        (
            ("/v1/classify", json!({"input": "x", "labels": ["a", "a"]})),
            "labels",
        ),
        (
            ("/v1/classify", json!({"input": [1], "labels": ["a"]})),
            "input",
        ),
        (chat(json!({"continue_final_message": true})), "messages"),
        (
            chat(json!({"response_format": {"type": "xml"}})),
            "response_format",
        ),
        (
            ("/v1/classify", json!({"input": [], "labels": ["a", "b"]})),
            "input",
        ),
        (
            ("/v1/classify", json!({"input": "x", "labels": []})),
            "labels",
        ),
        (("/v1/classify", json!({"labels": ["a"]})), "input"),
        (
            (
                "/v1/classify",
                json!({"input": "x", "labels": ["a"], "template": "y"}),
            ),
            "template",
        ),
        (("/detokenize", json!({"tokens": [99999]})), "tokens"),
        (("/tokenize", json!({})), "prompt"),
    ] {
        let (status, found, _, message) = refused(path, &body);
        assert_eq!((status, &found), (400, &json!(param)), "{body}: {message}");
    }
}

#[test]
fn a_prompt_that_is_too_long_gives_both_numbers() {
    let long = "fox ".repeat(600);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": long})),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": long}]}),
        ),
    ] {
        let (status, param, code, message) = refused(path, &body);
        assert_eq!((status, code), (400, json!("context_length_exceeded")));
        assert!(body.get(param.as_str().unwrap()).is_some(), "{param}");
        assert!(
            message.contains("512 tokens") && message.contains("the prompt has"),
            "{message}"
        );
    }
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    let json_type = [("Content-Type", "application/json; charset=utf-8")];
    for (headers, body, status) in [
        (&json_type[..], "", 400),
        (&json_type[..], "{", 400),
        (&json_type[..], "[1]", 400),
        (&json_type[..], "\u{0}", 400),
        (&[][..], "{}", 415),
        (&[("Content-Type", "text/plain")][..], "{}", 415),
        (
            &[
                ("Content-Type", "application/json"),
                ("Content-Encoding", "gzip"),
            ][..],
            "{}",
            415,
        ),
    ] {
        let answer = SERVER.send("POST", "/v1/completions", headers, body);
        assert_eq!(answer.status, status, "{body:?}");
        assert!(answer.json()["error"]["message"].is_string());
    }
    // Paths that are not UTF-8.
    for path in ["/v1/models/%ff", "/v1/responses/%ff"] {
        let answer = SERVER.send("GET", path, &[], "");
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.json()["error"]["message"].is_string());
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let answer = SERVER.send(
        "POST",
        "/v1/completions",
        &json_type,
        &format!("{{\"prompt\": {deep}}}"),
    );
    assert_eq!(answer.status, 400);
    let large = "x".repeat(9 << 20);
    let answer = SERVER.send(
        "POST",
        "/v1/completions",
        &json_type,
        &format!("{{\"prompt\": \"{large}\"}}"),
    );
    assert_eq!(answer.status, 413, "{}", answer.body);
}

#[test]
fn routes_and_models_that_are_not_here() {
    assert_eq!(SERVER.get("/v1/nothing").status, 404);
    assert_eq!(SERVER.get("/v1/completions").status, 405);
    // Base URLs with /v1, for clients that add /v1 themselves.
    for path in ["/v1/v1/chat/completions", "/v1/chat/completions/"] {
        let message = SERVER.post(path, &json!({})).json()["error"]["message"].clone();
        assert_eq!(
            message,
            format!("there is no {path} here; there is /v1/chat/completions")
        );
    }
    let (status, _, code, message) =
        refused("/v1/completions", &json!({"model": "gpt-4", "prompt": "x"}));
    assert_eq!((status, code), (404, json!("model_not_found")));
    assert!(message.contains("tiny, org/tiny"), "{message}");
    for model in ["", "default", "org/tiny"] {
        SERVER.ok(
            "/v1/completions",
            &json!({"model": model, "prompt": "x", "max_tokens": 1}),
        );
    }
}

#[test]
fn parameters_without_effect_are_named() {
    let body = json!({"prompt": "x", "max_tokens": 1, "colour": "red", "user": "me"});
    let answer = SERVER.post("/v1/completions", &body);
    assert_eq!(answer.header("x-ignored-params"), Some("colour"));
    let strict = TestServer::start(|options| options.strict = true);
    let answer = strict.post("/v1/completions", &body);
    assert_eq!(
        (answer.status, &answer.json()["error"]["param"]),
        (400, &json!("colour"))
    );
}

/// Keys inside of objects, and values of lists, are named too.
#[test]
fn parts_of_parameters_without_effect_are_named() {
    let strict = TestServer::start(|options| options.strict = true);
    let question = json!([{"role": "user", "content": "x"}]);
    let schema = json!({"type": "object"});
    let (chat, responses, messages) = ("/v1/chat/completions", "/v1/responses", "/v1/messages");
    for (path, more, named) in [
        (
            chat,
            json!({"stream": true, "stream_options": {"continuous_usage_stats": true, "include_obfuscation": true}}),
            "stream_options.continuous_usage_stats",
        ),
        (
            chat,
            json!({"reasoning": {"exclude": true, "effort": "low", "enabled": true}}),
            "reasoning.exclude",
        ),
        (
            chat,
            json!({"response_format": {"type": "json_object", "schema": schema, "colour": "red"}}),
            "response_format.colour",
        ),
        (
            chat,
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "size": 1}}}),
            "response_format.json_schema.size",
        ),
        (
            chat,
            json!({"structured_outputs": {"regex": "x", "whitespace_pattern": " ", "disable_any_whitespace": false}}),
            "structured_outputs.whitespace_pattern",
        ),
        (
            responses,
            json!({"reasoning": {"mode": "x", "summary": "auto"}}),
            "reasoning.mode",
        ),
        (
            responses,
            json!({"text": {"colour": "red", "verbosity": "low"}}),
            "text.colour",
        ),
        (
            responses,
            json!({"include": ["sounds", "web_search_call.results"]}),
            "include.sounds",
        ),
        (responses, json!({"truncation": "auto"}), "truncation"),
        (
            messages,
            json!({"thinking": {"type": "adaptive", "display": "omitted"}}),
            "thinking.display",
        ),
        (
            messages,
            json!({"output_config": {"task_budget": {"tokens": 9}, "effort": "low"}}),
            "output_config.task_budget",
        ),
        (
            messages,
            json!({"mcp_servers": [{"type": "url", "url": "https://example.org", "name": "a"}]}),
            "mcp_servers",
        ),
    ] {
        let mut body = match path {
            "/v1/responses" => json!({"input": "x", "max_output_tokens": 1}),
            _ => json!({"messages": question, "max_tokens": 1}),
        };
        let object = body.as_object_mut().unwrap();
        object.extend(more.as_object().unwrap().clone());
        let answer = SERVER.post(path, &body);
        assert_eq!(answer.status, 200, "{named}: {}", answer.body);
        assert_eq!(answer.header("x-ignored-params"), Some(named));
        let refused = strict.post(path, &body);
        assert_eq!(refused.status, 400, "{named}");
        assert!(refused.body.contains(named), "{}", refused.body);
    }
    let body = json!({"input": "x", "truncation": "some"});
    let message = "truncation must be auto or disabled, given \"some\"";
    assert_eq!(refused(responses, &body).3, message);
    let body = json!({"messages": question, "reasoning": {"enabled": 1}});
    let message = "reasoning: enabled must be true or false, given 1";
    assert_eq!(refused(chat, &body).3, message);
}

#[test]
fn keys_are_needed_where_there_are_some() {
    let server = TestServer::start(|options| {
        options.keys = vec!["secret".to_owned(), "other".to_owned()];
        options.key_requests = Some(1);
    });
    let body = json!({"prompt": "x", "max_tokens": 1}).to_string();
    let kind = ("Content-Type", "application/json");
    for (header, status) in [
        (("Authorization", "Bearer secret"), 200),
        (("x-api-key", "other"), 200),
        (("Authorization", "Bearer wrong"), 401),
        (("Authorization", "Basic secret"), 401),
        (("X-Nothing", "secret"), 401),
    ] {
        let answer = server.send("POST", "/v1/completions", &[kind, header], &body);
        assert_eq!(answer.status, status, "{header:?}: {}", answer.body);
    }
    for open in ["/", "/health", "/ready"] {
        assert_eq!(server.get(open).status, 200, "{open}");
    }
    for closed in ["/metrics", "/v1/models"] {
        assert_eq!(server.get(closed).status, 401, "{closed}");
    }
    // A server with keys accepts any host name.
    let host = ("Host", "gpu.example");
    let headers = [kind, host, ("x-api-key", "other")];
    assert_eq!(
        server
            .send("POST", "/v1/completions", &headers, &body)
            .status,
        200
    );
}

#[test]
fn a_page_of_another_site_cannot_ask() {
    let headers = [
        ("Host", "evil.example:8080"),
        ("Content-Type", "application/json"),
    ];
    let answer = SERVER.send("POST", "/v1/completions", &headers, "{\"prompt\": \"x\"}");
    assert_eq!(answer.status, 403);
    let preflight = [
        ("Origin", "https://evil.example"),
        ("Access-Control-Request-Method", "POST"),
    ];
    let answer = SERVER.send("OPTIONS", "/v1/completions", &preflight, "");
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let server = TestServer::start(|options| {
        options.cors_origins = vec!["https://good.example".to_owned()];
    });
    let preflight = [
        ("Origin", "https://good.example"),
        ("Access-Control-Request-Method", "POST"),
        (
            "Access-Control-Request-Headers",
            "authorization,content-type",
        ),
    ];
    let answer = server.send("OPTIONS", "/v1/completions", &preflight, "");
    // Browsers do not include Authorization in `*`.
    let allowed = answer.header("access-control-allow-headers");
    assert_eq!(allowed, Some("authorization,content-type"));
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("https://good.example")
    );
}

#[test]
fn ids_of_requests_are_taken_or_made() {
    let answer = SERVER.send("GET", "/health", &[("x-request-id", "abc-1")], "");
    assert_eq!(answer.header("x-request-id"), Some("abc-1"));
    let answer = SERVER.send("GET", "/health", &[("x-request-id", "a b")], "");
    assert!(
        answer
            .header("request-id")
            .is_some_and(|id| id.starts_with("req_"))
    );
}

#[test]
fn a_server_without_a_key_stays_on_this_machine() {
    let options = mlx_infer::serve::ServeOptions {
        address: "0.0.0.0:0".parse().unwrap(),
        ..Default::default()
    };
    let error = mlx_infer::serve::Server::bind(options.clone()).unwrap_err();
    assert!(error.to_string().contains("API key"), "{error}");
    let open = mlx_infer::serve::ServeOptions {
        insecure: true,
        ..options
    };
    assert!(mlx_infer::serve::Server::bind(open).is_ok());
}

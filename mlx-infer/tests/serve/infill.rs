//! Filling in the middle: `suffix` of completions, and llama.cpp's `/infill`, with the requests of
//! editors.

use serde_json::{Value, json};

use crate::client::SERVER;
use crate::scripted::Scripted;

const MARKS: [&str; 5] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|repo_name|>",
    "<|file_sep|>",
];
const BEFORE: &str = "def add(a, b):\n    ";
const AFTER: &str = "\n\nprint(add(1, 2))\n";

fn coder() -> Scripted {
    Scripted::start("qwen3", &MARKS, &["<|im_end|>"], |_| ())
}

/// The form in which the extension for VS Code of llama.cpp asks.
fn of_llama_vscode() -> Value {
    json!({
        "input_prefix": "def add(a, b):\n", "input_suffix": AFTER, "prompt": "    ", "n_predict": 128,
        "input_extra": [{"text": "x = 1\n", "time": 17, "filename": "a.py"}],
        "top_k": 40, "top_p": 0.99, "stream": false, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true,
        "n_indent": 4, "t_max_prompt_ms": 500, "t_max_predict_ms": 2500,
    })
}

/// The prompts that the requests stand for.
fn plain() -> String {
    format!("<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>")
}

fn with_files() -> String {
    let files = "<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>filename\n";
    format!("{files}{}", plain())
}

#[test]
fn the_requests_of_llama_vscode_are_answered() {
    let coder = coder();
    let body = of_llama_vscode();
    let prompt = coder.count(&with_files());
    coder.says(prompt, &["return a + b", "<|fim_prefix|>", "more"]);
    let answer = coder.server.ok("/infill", &body);
    assert_eq!(answer["content"], "return a + b", "{answer}");
    assert_eq!(answer["tokens_evaluated"], prompt);
    assert_eq!(
        (&answer["stop"], &answer["truncated"], &answer["stop_type"]),
        (&json!(true), &json!(false), &json!("eos"))
    );
    assert!(
        answer["timings"]["predicted_n"].as_u64() > Some(1),
        "{answer}"
    );
    // The prompt is that of a completion of the same text.
    let text = json!({"prompt": with_files(), "max_tokens": 1, "temperature": 0});
    let same = coder.server.ok("/v1/completions", &text);
    assert_eq!(same["usage"]["prompt_tokens"], prompt);
    assert_eq!(
        same["usage"]["prompt_tokens_details"]["cached_tokens"],
        prompt - 1,
        "{same}"
    );
    // Streamed.
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = coder.server.post("/infill", &streamed);
    let lines = events
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let joined: String = events
        .iter()
        .map(|event| event["content"].as_str().unwrap())
        .collect();
    assert_eq!(joined, "return a + b");
    let (last, others) = events.split_last().unwrap();
    assert!(others.iter().all(|event| event["stop"] == false) && !others.is_empty());
    assert_eq!(
        (&last["stop"], &last["tokens_evaluated"]),
        (&json!(true), &json!(prompt))
    );
    // It sends such a request to have the other files computed.
    let warm = json!({"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "samplers": [], "cache_prompt": true,
        "input_extra": body["input_extra"], "t_max_prompt_ms": 500, "t_max_predict_ms": 1});
    let answer = coder.server.ok("/infill", &warm);
    assert_eq!(
        (&answer["content"], &answer["tokens_predicted"]),
        (&json!(""), &json!(0))
    );
    let limited = json!({"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 3});
    coder.says(coder.count(&plain()), &["return a + b"]);
    let answer = coder.server.ok("/infill", &limited);
    assert_eq!(
        (&answer["tokens_predicted"], &answer["stop_type"]),
        (&json!(3), &json!("limit"))
    );
}

/// minuet and other editors send OpenAI's older form.
#[test]
fn a_suffix_of_completions_is_that_of_the_gap() {
    let coder = coder();
    let prompt = coder.count(&plain());
    coder.says(prompt, &["return a + b", "<|file_sep|>"]);
    let mut body = json!({"model": "default", "prompt": BEFORE, "suffix": AFTER, "max_tokens": 56, "top_p": 0.9, "stream": true});
    let chunks = coder.server.post("/v1/completions", &body).chunks();
    let joined: String = chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(joined, "return a + b");
    assert_eq!(
        chunks.last().unwrap()["choices"][0]["finish_reason"],
        "stop"
    );
    body["stream"] = false.into();
    body["prompt"] = json!([BEFORE, BEFORE]);
    let answer = coder.server.ok("/v1/completions", &body);
    assert_eq!(
        (
            &answer["choices"][1]["text"],
            &answer["usage"]["prompt_tokens"]
        ),
        (&json!("return a + b"), &json!(2 * prompt))
    );
    for (key, value, what) in [
        ("echo", json!(true), "suffix and echo exclude each other"),
        (
            "prompt",
            json!([1, 2]),
            "suffix needs a prompt that is a text",
        ),
    ] {
        let mut body = body.clone();
        body[key] = value;
        let error = coder.server.post("/v1/completions", &body).json()["error"].clone();
        assert_eq!(
            (&error["message"], &error["param"]),
            (&json!(what), &json!("suffix"))
        );
    }
}

/// A text that is longer than the context loses what is far from the gap.
#[test]
fn long_texts_are_cut_far_from_the_gap() {
    let coder = coder();
    let long = "x = 1\n".repeat(3000);
    let body = json!({"input_prefix": long, "input_suffix": long, "n_predict": 8,
        "input_extra": [{"text": long, "filename": "a.py"}]});
    let answer = coder.server.ok("/infill", &body);
    assert_eq!(
        (&answer["truncated"], &answer["tokens_evaluated"]),
        (&json!(true), &json!(crate::scripted::POSITIONS - 8))
    );
}

#[test]
fn a_model_without_marks_refuses_by_name() {
    for (path, body, param) in [
        (
            "/v1/completions",
            json!({"prompt": "a", "suffix": "b"}),
            "suffix",
        ),
        ("/infill", of_llama_vscode(), "input_prefix"),
    ] {
        let answer = SERVER.post(path, &body);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("has no marks of a gap"), "{message}");
    }
    let empty = json!({"prompt": "a", "suffix": "", "max_tokens": 1});
    SERVER.ok("/v1/completions", &empty);
    let coder = coder();
    let bad = json!({"input_prefix": "a", "n_predict": -2});
    let answer = coder.server.post("/infill", &bad);
    assert_eq!(answer.json()["error"]["param"], "n_predict");
}

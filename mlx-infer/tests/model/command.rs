//! The command: its output on each stream, and its exit status.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::checkpoint::{self, goldens, log_softmax};

/// Runs the command with these arguments and an empty stdin.
pub fn mlx_infer(args: &[&str]) -> Output {
    with_input(args, b"")
}

pub fn spawn(args: &[&str]) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

pub fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = spawn(args);
    // A command that does not read its input may have closed the pipe.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// The output of a command that succeeded.
pub fn printed(output: Output) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The single JSON document of the output.
pub fn document(output: Output) -> Value {
    serde_json::from_str(&printed(output)).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

pub fn path(case: &str) -> String {
    checkpoint::dir(case).to_str().unwrap().to_owned()
}

#[test]
fn generate_gives_the_tokens_of_the_reference() {
    for case in [
        "gemma3",
        "llama_llama3",
        "qwen3_moe",
        "phi3_longrope",
        "q_llama_mxfp4",
        "q_qwen2_b4_g32",
    ] {
        let dir = path(case);
        for golden in goldens(case) {
            let ids = list(&golden.prompt);
            let args = [
                "generate",
                "--model",
                &dir,
                "--tokens",
                &ids,
                "--max-tokens",
                "24",
            ];
            let args = [&args[..], &["--ignore-eos", "--json", "--dtype", "f32"]].concat();
            let found = document(mlx_infer(&args));
            assert_eq!(
                keys(&found),
                ["text", "tokens", "finish_reason", "usage", "timings"]
            );
            assert_eq!(found["tokens"], json!(golden.tokens), "{case}");
            assert_eq!(found["text"], Value::Null);
            assert_eq!(found["finish_reason"], "length");
            let n = golden.prompt.len();
            let usage =
                json!({"prompt_tokens": n, "completion_tokens": 24, "total_tokens": n + 24});
            assert_eq!(found["usage"], usage);
        }
    }
}

#[test]
fn text_goes_to_stdout_and_all_else_to_stderr() {
    let copy = checkpoint::with_tokenizer("llama_tied", "qwen");
    let dir = copy.path().to_str().unwrap();
    let ids = list(&goldens("llama_tied")[0].prompt);
    let args = [
        "generate",
        "--model",
        dir,
        "--tokens",
        &ids,
        "--max-tokens",
        "12",
        "--ignore-eos",
    ];
    let found = document(mlx_infer(&[&args[..], &["--json"]].concat()));
    let output = mlx_infer(&[&args[..], &["--stats"]].concat());
    let stats = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(
        printed(output),
        format!("{}\n", found["text"].as_str().unwrap())
    );
    for word in [
        "prompt: ",
        "generation: 12 tokens",
        "first token",
        "peak memory",
    ] {
        assert!(stats.contains(word), "{stats}");
    }
    // Without a tokenizer there is no text: the output has ids instead.
    let bare = path("llama_tied");
    let args = [
        "generate",
        "--model",
        &bare,
        "--tokens",
        &ids,
        "--max-tokens",
        "4",
        "--ignore-eos",
    ];
    assert_eq!(
        printed(mlx_infer(&args)),
        format!("{}\n", list(&goldens("llama_tied")[0].tokens[..4]))
    );
}

#[test]
fn prompts_come_from_flags_files_and_stdin() {
    let copy = checkpoint::with_tokenizer("llama_tied", "qwen");
    let dir = copy.path().to_str().unwrap();
    let text = prompt_text(dir);
    let file = copy.path().join("prompt.txt");
    std::fs::write(&file, &text).unwrap();
    let tail = ["--max-tokens", "5", "--ignore-eos", "--json"];
    let tokens = |output| document(output)["tokens"].clone();
    let head = ["generate", "--model", dir];
    let by_flag = tokens(mlx_infer(
        &[&head[..], &["--prompt", &text], &tail].concat(),
    ));
    let by_file = tokens(mlx_infer(
        &[&head[..], &["--prompt-file", file.to_str().unwrap()], &tail].concat(),
    ));
    let by_stdin = tokens(with_input(
        &[&head[..], &["--prompt-file", "-"], &tail].concat(),
        text.as_bytes(),
    ));
    assert_eq!(by_flag.as_array().unwrap().len(), 5);
    assert_eq!((&by_flag, &by_flag), (&by_file, &by_stdin));
}

/// A text whose ids are all inside the tiny models' vocabularies.
fn prompt_text(dir: &str) -> String {
    let found = document(mlx_infer(&[
        "tokenize",
        "--model",
        dir,
        "--ids",
        "40, 41, 42",
        "--json",
    ]));
    let text = found["text"].as_str().unwrap().to_owned();
    let ids = document(mlx_infer(&[
        "tokenize", "--model", dir, "--text", &text, "--json",
    ]));
    let ids: Vec<u32> = serde_json::from_value(ids["ids"].clone()).unwrap();
    assert!(
        !ids.is_empty() && ids.iter().all(|&id| id < 64),
        "{text:?} {ids:?}"
    );
    text
}

#[test]
fn score_gives_the_log_probabilities_of_the_reference() {
    let dir = path("gemma2");
    let golden = &goldens("gemma2")[1];
    let ids = list(&golden.prompt);
    let args = [
        "score", "--model", &dir, "--tokens", &ids, "--top", "3", "--dtype", "f32",
    ];
    let found = document(mlx_infer(&[&args[..], &["--json"]].concat()));
    assert_eq!(
        keys(&found),
        ["tokens", "logprobs", "nll", "perplexity", "next"]
    );
    assert_eq!(found["tokens"], json!(golden.prompt));
    assert_eq!(found["logprobs"][0], Value::Null);
    for (i, &id) in golden.prompt.iter().enumerate().skip(1) {
        let expected = log_softmax(&golden.logits[i - 1])[id as usize];
        assert!((found["logprobs"][i].as_f64().unwrap() - expected).abs() < 1e-4);
    }
    assert_eq!(keys(&found["next"][0]), ["id", "token", "logprob"]);
    assert_eq!(found["next"].as_array().unwrap().len(), 3);
    assert_eq!(found["next"][0]["id"], json!(golden.tokens[0]));
    assert!(printed(mlx_infer(&args)).contains("perplexity: "));
}

#[test]
fn tokenize_goes_both_ways() {
    let dir = checkpoint::testdata("text/tokenizers/llama3");
    let dir = dir.to_str().unwrap();
    let found = document(mlx_infer(&[
        "tokenize",
        "--model",
        dir,
        "--text",
        "grüß dich",
        "--json",
    ]));
    assert_eq!(keys(&found), ["ids", "tokens"]);
    let ids: Vec<u32> = serde_json::from_value(found["ids"].clone()).unwrap();
    assert_eq!(found["tokens"].as_array().unwrap().len(), ids.len());
    let bare = mlx_infer(&[
        "tokenize",
        "--model",
        dir,
        "--text",
        "grüß dich",
        "--no-special",
    ]);
    let bare = printed(bare);
    let back = document(mlx_infer(&[
        "tokenize",
        "--model",
        dir,
        "--ids",
        bare.trim(),
        "--json",
    ]));
    assert_eq!(back, json!({"text": "grüß dich"}));
    assert!(list(&ids).ends_with(bare.trim()));
}

#[test]
fn chat_renders_the_template_and_answers() {
    let copy = checkpoint::with_tokenizer("llama_tied", "qwen");
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}T{% endif %}";
    std::fs::write(copy.path().join("chat_template.jinja"), template).unwrap();
    let dir = copy.path().to_str().unwrap();
    let text = prompt_text(dir);
    let messages = copy.path().join("messages.json");
    std::fs::write(
        &messages,
        json!([{"role": "user", "content": text}]).to_string(),
    )
    .unwrap();
    let file = messages.to_str().unwrap();
    let render = ["chat", "--model", dir, "--messages", file, "--render"];
    assert_eq!(printed(mlx_infer(&render)), text);
    let system = [&render[..], &["--system", "S: "]].concat();
    assert_eq!(printed(mlx_infer(&system)), format!("S: {text}"));
    let object = json!({"messages": [{"role": "user", "content": text}], "tools": [{"name": "f"}]});
    let args = ["chat", "--model", dir, "--messages", "-", "--render"];
    assert_eq!(
        printed(with_input(&args, object.to_string().as_bytes())),
        format!("{text}T")
    );
    let tail = ["--max-tokens", "6", "--ignore-eos", "--json"];
    let head = ["chat", "--model", dir, "--messages", file];
    let answer = document(mlx_infer(&[&head[..], &tail].concat()));
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    // The ids of the text, without the special tokens that the tokenizer would add.
    let ids = printed(mlx_infer(&[
        "tokenize",
        "--model",
        dir,
        "--text",
        &text,
        "--no-special",
    ]));
    let head = ["generate", "--model", dir, "--tokens", ids.trim()];
    assert_eq!(
        document(mlx_infer(&[&head[..], &tail].concat()))["tokens"],
        answer["tokens"]
    );
    // A conversation on stdin: each line is a turn, and each answer is a document.
    let input = format!("{text}\n\n{text}\n/exit\n{text}\n");
    let output = with_input(
        &[&["chat", "--model", dir], &tail[..]].concat(),
        input.as_bytes(),
    );
    let answers = printed(output);
    let answers: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0]["tokens"], answer["tokens"]);
    assert!(
        answers[1]["usage"]["prompt_tokens"].as_u64() > answer["usage"]["prompt_tokens"].as_u64()
    );
    // The second turn computes only its new tokens, and its answer is the same as if it had computed all.
    assert!(answers[0]["usage"].get("cached_tokens").is_none());
    let cached = answers[1]["usage"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= answer["usage"]["prompt_tokens"].as_u64().unwrap());
    let conversation = json!([
        {"role": "user", "content": text},
        {"role": "assistant", "content": answers[0]["text"]},
        {"role": "user", "content": text},
    ]);
    std::fs::write(&messages, conversation.to_string()).unwrap();
    let head = ["chat", "--model", dir, "--messages", file];
    let afresh = document(mlx_infer(&[&head[..], &tail].concat()));
    assert_eq!(answers[1]["tokens"], afresh["tokens"]);
    assert_eq!(
        answers[1]["usage"]["prompt_tokens"],
        afresh["usage"]["prompt_tokens"]
    );
}

#[test]
fn help_and_version_are_no_failures() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["generate", "--help"],
        &["chat", "--help"],
    ] {
        assert!(!printed(mlx_infer(args)).is_empty());
    }
}

/// A model with a template that opens reasoning.
#[test]
fn reasoning_ends_after_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |template: &str, more: &[&str]| {
        let copy = folder.path().join(format!("{}", template.len()));
        let from = checkpoint::testdata("hybrid-model");
        if !copy.exists() {
            std::fs::create_dir(&copy).unwrap();
            for entry in std::fs::read_dir(from).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
            }
            std::fs::write(copy.join("chat_template.jinja"), template).unwrap();
        }
        let args = [
            "chat",
            "--messages",
            "-",
            "--json",
            "--max-tokens",
            "12",
            "--model",
        ];
        let args = [&args[..], &[copy.to_str().unwrap()], more].concat();
        with_input(&args, br#"[{"role": "user", "content": "The red fox"}]"#)
    };
    let template = "{{ messages[0].content }}<think>{# </think> #}";
    let free = document(ask(template, &[]));
    let text = |document: &Value| document["text"].as_str().unwrap().to_owned();
    assert!(!text(&free).contains("</think>"), "{free}");
    let held = document(ask(template, &["--reasoning-budget", "2"]));
    let [free_ids, ids] = [&free, &held].map(|document| document["tokens"].as_array().unwrap());
    assert_eq!(ids[..2], free_ids[..2]);
    let (_, behind) = free_ids.split_at(2);
    assert_ne!(ids[2], behind[0]);
    let text = text(&held);
    assert!(text.contains("</think>"), "{text}");
    let none = ask("{{ messages[0].content }}", &["--reasoning-budget", "2"]);
    let stderr = String::from_utf8(none.stderr).unwrap();
    assert!(
        stderr.contains("reasoning_budget: the model has no marks of reasoning"),
        "{stderr}"
    );
}

/// Keywords of a schema without effect are named: in the line of a batch, and on stderr of other
/// commands.
#[test]
fn keywords_without_effect_are_named() {
    let schema = json!({"type": "string", "format": "iri", "maxLength": 2});
    let line =
        |schema: &Value| json!({"prompt": "x", "max_tokens": 5, "json_schema": schema}).to_string();
    let plain = json!({"type": "string", "maxLength": 2});
    let lines = format!("{}\n{}\n", line(&schema), line(&plain));
    let output = with_input(&["batch"], lines.as_bytes());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let named = lines[0]["ignored_keywords"].as_array().unwrap();
    assert!(
        named.len() == 1 && named[0].as_str().unwrap().contains("format"),
        "{text}"
    );
    assert_eq!(lines[1].get("ignored_keywords"), None, "{text}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("schema.json");
    std::fs::write(&path, schema.to_string()).unwrap();
    let path = path.to_str().unwrap();
    let args = [
        "generate",
        "--prompt",
        "x",
        "--max-tokens",
        "5",
        "--json-schema",
        path,
    ];
    let output = mlx_infer(&args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success()
            && stderr.contains("warning: parts of the JSON schema have no effect: "),
        "{stderr}"
    );
}

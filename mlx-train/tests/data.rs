//! Training data compared with the prompts that serving renders for the same conversations.
#![cfg(feature = "cli")]

use std::fs;

use mlx_infer::{ChatTemplate, Files, Message, RenderOptions, Tokenizer, default_model_files};
use mlx_train::data::{self, DataOptions, Encoder};
use serde_json::json;

fn options() -> DataOptions {
    DataOptions {
        max_tokens: 64,
        mask_prompt: true,
        vocab: 2048,
    }
}

/// The masked tokens are exactly the prompt of a chat, and the learnt tokens are the answer and its
/// end token.
#[test]
fn training_and_serving_share_the_template() {
    let files = default_model_files();
    let tokenizer = Tokenizer::load(&files).unwrap();
    let template = ChatTemplate::load(&files, &tokenizer).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.jsonl");
    let (question, answer) = ("What is 20 + 22?", "42");
    let line = json!({"messages": [
        {"role": "user", "content": question}, {"role": "assistant", "content": answer}]});
    fs::write(&path, line.to_string()).unwrap();
    let encoder = Encoder::load(&files).unwrap();
    let dataset = data::read(&path, &encoder, &options()).unwrap();
    let example = &dataset.examples[0];
    let render = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let asked = template
        .render(&[Message::new("user", question)], &render)
        .unwrap();
    let asked = tokenizer.encode(&asked, false).unwrap();
    assert_eq!(example.tokens[..example.prompt], asked);
    let learnt = &example.tokens[example.prompt..];
    assert!(tokenizer.decode(learnt, false).unwrap().starts_with(answer));
    // The end token is learnt, and no token after it.
    let ends = |id: &u32| tokenizer.eos_ids().contains(id);
    assert_eq!(
        learnt.iter().position(ends),
        Some(learnt.len() - 1),
        "{learnt:?}"
    );
}

#[test]
fn cutting_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.jsonl");
    let ids = |n: usize, prompt: usize| json!({"tokens": vec![1; n], "prompt_tokens": prompt});
    let lines = [ids(64, 3), ids(70, 0), ids(90, 64), ids(2, 2)];
    let text: String = lines.iter().map(|line| format!("{line}\n\n")).collect();
    fs::write(&path, text).unwrap();
    let report = data::read(&path, &Encoder::default(), &options())
        .unwrap()
        .report;
    assert_eq!((report.examples, report.tokens), (2, 128));
    assert_eq!(report.learnt, 61 + 63);
    assert_eq!((report.truncated, report.lost_tokens), (2, 6 + 26));
    assert_eq!(report.dropped, 2);
}

/// A template gets the line's tools as in serving. Tools that are not a list are refused, and the
/// error names the line.
#[test]
fn tools_are_part_of_the_prompt() {
    let testdata = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/text");
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "config.json"] {
        let from = testdata.join("tokenizers/qwen").join(name);
        fs::copy(from, dir.path().join(name)).unwrap();
    }
    let template = testdata.join("templates/qwen25.jinja");
    fs::copy(template, dir.path().join("chat_template.jinja")).unwrap();
    let files = Files::directory(dir.path()).unwrap();
    let (encoder, tokenizer) = (
        Encoder::load(&files).unwrap(),
        Tokenizer::load(&files).unwrap(),
    );
    let template = ChatTemplate::load(&files, &tokenizer).unwrap();
    let tools = json!([{"type": "function", "function": {
        "name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}}]);
    let messages = json!([
        {"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "No."}]);
    let options = DataOptions {
        max_tokens: 4096,
        vocab: u32::MAX,
        ..options()
    };
    let path = dir.path().join("data.jsonl");
    let read = |line: serde_json::Value| {
        fs::write(&path, line.to_string()).unwrap();
        data::read(&path, &encoder, &options)
    };
    let with = read(json!({"messages": messages, "tools": tools})).unwrap();
    let without = read(json!({"messages": messages})).unwrap();
    let render = RenderOptions {
        tools: tools.as_array().cloned(),
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let asked = template
        .render(&[Message::new("user", "Rain?")], &render)
        .unwrap();
    assert!(asked.contains("weather"));
    let asked = tokenizer.encode(&asked, false).unwrap();
    let example = &with.examples[0];
    assert_eq!(example.tokens[..example.prompt], asked);
    assert!(without.examples[0].prompt < example.prompt);
    // Calls in OpenAI's form: their arguments are texts, and contents may be missing.
    let call = |arguments: serde_json::Value| {
        let call = json!({"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}});
        let messages = json!([
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": null, "tool_calls": [call]}]);
        read(json!({"messages": messages, "tools": tools}))
            .unwrap()
            .examples
            .remove(0)
    };
    let (text, object) = (call(json!("{\"day\": 1}")), call(json!({"day": 1})));
    assert_eq!(text.tokens, object.tokens);
    let text = tokenizer.decode(&text.tokens, false).unwrap();
    assert!(text.contains("\"arguments\": {\"day\": 1}"), "{text}");

    let error = read(json!({"messages": messages, "tools": "weather"}))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("data.jsonl: line 1: tools: expected a list"),
        "{error}"
    );
}

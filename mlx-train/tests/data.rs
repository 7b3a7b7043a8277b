//! Data against what serving does with the same conversation.

use std::fs;

use mlx_infer::{ChatTemplate, Message, RenderOptions, Tokenizer, default_model_files};
use mlx_train::data::{self, DataOptions, Encoder};
use serde_json::json;

fn options() -> DataOptions {
    DataOptions {
        max_tokens: 64,
        mask_prompt: true,
        vocab: 2048,
    }
}

/// What is only read is exactly what a chat would be asked with, and what is learnt is the answer and
/// its end.
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
    // The end is learnt, and nothing behind it.
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

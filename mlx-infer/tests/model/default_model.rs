//! The built-in model: the tokens of transformers, and answers to questions that were not in its training.

use std::ops::ControlFlow;

use mlx_core::DType;
use mlx_infer::{GenerateOptions, LoadOptions, LoadedModel, Message, RenderOptions};
use serde_json::Value;

use crate::checkpoint::testdata;
use crate::command::mlx_infer;

fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(testdata("default-model").join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn it_gives_the_tokens_of_the_reference() {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..Default::default()
    };
    let files = mlx_infer::default_model_files();
    let model = LoadedModel::load_files(files, options, &mut |_, _| ()).unwrap();
    let golden = json("golden.json");
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 8);
    for case in cases {
        let (prompt, greedy) = (ids(&case["ids"]), ids(&case["greedy"]));
        let tokenizer = model.tokenizer().unwrap();
        let encoded = match case.get("messages") {
            Some(messages) => {
                let messages = Message::list_from_json(messages.clone()).unwrap();
                let render = RenderOptions {
                    add_generation_prompt: true,
                    ..Default::default()
                };
                let text = model
                    .chat_template()
                    .unwrap()
                    .render(&messages, &render)
                    .unwrap();
                assert_eq!(text, case["rendered"]);
                tokenizer.encode(&text, false)
            }
            None => tokenizer.encode(case["text"].as_str().unwrap(), true),
        };
        assert_eq!(encoded.unwrap(), prompt);
        let options = GenerateOptions {
            max_tokens: greedy.len(),
            ..Default::default()
        };
        let mut generated = model.generate(prompt, &options).unwrap();
        let generated = generated.run(|_| ControlFlow::Continue(())).unwrap();
        let found: Vec<u32> = generated.tokens.iter().map(|choice| choice.id).collect();
        assert_eq!(found, greedy, "{case}");
        assert_eq!(generated.text.as_deref(), case["answer"].as_str());
    }
}

#[test]
fn it_answers_questions_that_were_held_out() {
    let model = LoadedModel::load_default().unwrap();
    let text = std::fs::read_to_string(testdata("default-model").join("heldout.jsonl")).unwrap();
    for task in ["classify", "arithmetic"] {
        let (mut right, mut wrong) = (0, Vec::new());
        let questions = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        // Every other question: enough for the percentage, and quick.
        for question in questions
            .filter(|question| question["task"] == task)
            .step_by(2)
        {
            let prompt = question["prompt"].as_str().unwrap();
            let options = GenerateOptions {
                max_tokens: 16,
                ..Default::default()
            };
            let answer = match question["form"].as_str() {
                Some("chat") => model.chat(
                    &[Message::new("user", prompt)],
                    &Default::default(),
                    &options,
                ),
                _ => model.generate(prompt, &options),
            };
            let answer = answer.unwrap().run(|_| ControlFlow::Continue(())).unwrap();
            let answer = answer.text.unwrap();
            if answer.trim() == question["expected"].as_str().unwrap().trim() {
                right += 1;
            } else {
                wrong.push((prompt.to_owned(), answer));
            }
        }
        let n = right + wrong.len();
        assert!(n >= 100, "{task}: {n} questions");
        assert!(right * 100 >= n * 95, "{task}: {right} of {n}: {wrong:#?}");
    }
}

#[test]
fn the_command_uses_it_without_a_model() {
    let output = mlx_infer(&["generate", "--prompt", "The red fox", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["finish_reason"], "stop");
    assert!(!found["text"].as_str().unwrap().is_empty());
    let output = mlx_infer(&["info"]);
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("gemma3_text")
    );
    let output = mlx_infer(&["tokenize", "--text", "a"]);
    assert_eq!(output.status.code(), Some(0));
}

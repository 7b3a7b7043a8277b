//! Replies as chat templates of published families write them: their form is recognised, and what was written is read
//! back.
#![cfg(feature = "clock")]

use std::path::PathBuf;

use mlx_infer::chat::reply::{Part, ReplyFormat, ToolFormat};
use mlx_infer::{ChatTemplate, Files, Message, RenderOptions, Tokenizer};
use serde_json::{Value, json};

/// A template, the form of its calls, whether a reply has reasoning, and the text that ends it.
type Case = (&'static str, ToolFormat, bool, &'static str);

const CASES: [Case; 17] = [
    (
        "command4",
        ToolFormat::Command,
        true,
        "<|END_OF_TURN_TOKEN|>",
    ),
    (
        "deepseek_v4",
        ToolFormat::DsmlCalls,
        true,
        "<｜end▁of▁sentence｜>",
    ),
    (
        "deepseek_v41",
        ToolFormat::DsmlSpaced,
        true,
        "<｜end▁of▁sentence｜>",
    ),
    ("dots", ToolFormat::Dots, true, "<|im_end|>\n"),
    (
        "gigachat3",
        ToolFormat::GigaChat,
        false,
        "<|message_sep|>\n\n",
    ),
    ("hunyuan3", ToolFormat::HunyuanTags, true, "<|hy_eos|>"),
    ("internlm", ToolFormat::InternLm, false, "<|im_end|>\n"),
    ("iquest", ToolFormat::IQuest, true, "<|im_end|>\n"),
    ("kimi_k3", ToolFormat::KimiK3, true, ""),
    ("laguna", ToolFormat::Glm, true, "\n</assistant>\n"),
    ("ling3", ToolFormat::Glm, true, "<|role_end|>"),
    ("longcat", ToolFormat::LongCat, true, "</longcat_s>"),
    ("mimo", ToolFormat::Qwen3Coder, true, "<|im_end|>\n"),
    ("minicpm5", ToolFormat::MiniCpm5, true, "<|im_end|>\n"),
    ("muse", ToolFormat::Atem, true, ""),
    ("step3", ToolFormat::Step3, true, "<|EOT|>"),
    ("trinity", ToolFormat::Hermes, true, "<|im_end|>\n"),
];

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/text")
        .join(name)
}

fn tools() -> Vec<Value> {
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "description": "", "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"}},
        }}})
    };
    vec![tool("weather"), tool("nothing")]
}

/// The arguments of the first call.
fn arguments() -> Value {
    json!({"city": "Köln <am> \"Rhein\"\n& 3", "days": 3, "deep": {"a": [1, null, "b"]}})
}

/// The prompt of a conversation, and the text with which its template writes the answer.
fn written((name, form, _, end): Case) -> (ReplyFormat, String, String) {
    let tokenizer = Files::directory(data("tokenizers").join("qwen")).unwrap();
    let tokenizer = Tokenizer::load(&tokenizer).unwrap();
    let path = data("templates").join(format!("{name}.jinja"));
    let source = std::fs::read_to_string(path).unwrap();
    let template = ChatTemplate::from_source(&source, &tokenizer).unwrap();
    let call = |name: &str, arguments: Value| json!({"type": "function", "id": "a", "function": {"name": name, "arguments": arguments}});
    let mut calls = vec![call("weather", arguments()), call("nothing", json!({}))];
    if form == ToolFormat::GigaChat {
        // A reply has one call.
        calls.truncate(1);
    }
    let question = json!({"role": "user", "content": "What is it?"});
    let answer = json!({"role": "assistant", "reasoning_content": "I look.", "content": "So:", "tool_calls": calls});
    let render = |messages: Value, add_generation_prompt| {
        let options = RenderOptions {
            tools: Some(tools()),
            add_generation_prompt,
            kwargs: [("bos_token".to_owned(), Value::from("<bos>"))]
                .into_iter()
                .collect(),
            ..Default::default()
        };
        let messages = Message::list_from_json(messages).unwrap();
        template.render(&messages, &options).unwrap()
    };
    let prompt = render(json!([question]), true);
    let whole = render(json!([question, answer]), false);
    let reply = whole.strip_prefix(&prompt);
    let reply = reply.unwrap_or_else(|| panic!("{name}: {prompt:?} does not begin {whole:?}"));
    let reply = reply
        .strip_suffix(end)
        .unwrap_or_else(|| panic!("{name}: {reply:?}"));
    let format = ReplyFormat::detect(&template, &tokenizer);
    (format, prompt, reply.to_owned())
}

/// Reasoning, content, and calls with their arguments.
type Read = (String, String, Vec<(String, String)>);

fn read(format: &ReplyFormat, prompt: &str, pieces: &[&str]) -> Read {
    let mut parser = format.parser(prompt, &tools());
    let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Reasoning(text) => reasoning += &text,
            Part::Content(text) => content += &text,
            Part::CallStart { index, name } => {
                assert_eq!(index, calls.len());
                calls.push((name, String::new()));
            }
            Part::CallArguments { index, json } => calls[index].1 += &json,
            Part::CallEnd { index } => assert_eq!(index + 1, calls.len()),
        }
    }
    (reasoning, content, calls)
}

#[test]
fn what_a_template_writes_is_read_back_however_it_is_cut() {
    for case in CASES {
        let (name, form, has_reasoning, _) = case;
        let (format, prompt, reply) = written(case);
        assert_eq!(format.tools(), form, "{name}");
        assert!(format.has_reasoning() || !has_reasoning, "{name}");
        let whole = read(&format, &prompt, &[&reply]);
        let (reasoning, content, calls) = &whole;
        let thought = if has_reasoning { "I look." } else { "" };
        assert_eq!(
            (reasoning.as_str(), content.as_str()),
            (thought, "So:"),
            "{name}: {reply:?}"
        );
        let found: Vec<(&str, Value)> = calls
            .iter()
            .map(|(name, json)| (name.as_str(), serde_json::from_str(json).unwrap()))
            .collect();
        let mut expected = vec![("weather", arguments()), ("nothing", json!({}))];
        expected.truncate(if form == ToolFormat::GigaChat { 1 } else { 2 });
        assert_eq!(found, expected, "{name}: {reply:?}");
        for (cut, _) in reply.char_indices() {
            let (front, back) = reply.split_at(cut);
            assert_eq!(
                read(&format, &prompt, &[front, back]),
                whole,
                "{name}: cut at {cut}"
            );
        }
        let singly: Vec<&str> = reply.split("").collect();
        assert_eq!(read(&format, &prompt, &singly), whole, "{name}");
    }
}

#[test]
fn calls_of_unknown_tools_are_content_and_calls_that_break_off_are_no_others() {
    for case in CASES {
        let (name, ..) = case;
        let (format, prompt, reply) = written(case);
        let (.., calls) = read(&format, &prompt, &[&reply]);
        let other = reply.replace("weather", "whether");
        let (_, content, found) = read(&format, &prompt, &[&other]);
        assert!(content.contains("whether"), "{name}: {content:?}");
        assert!(
            found.iter().all(|(tool, _)| tool == "nothing"),
            "{name}: {found:?}"
        );
        for (cut, _) in reply.char_indices() {
            let (.., found) = read(&format, &prompt, &[&reply[..cut]]);
            for ((tool, json), (whole_tool, whole)) in found.iter().zip(&calls) {
                assert_eq!(tool, whole_tool, "{name}: cut at {cut}");
                assert!(
                    whole.starts_with(json.as_str()),
                    "{name}: cut at {cut}: {json}"
                );
            }
        }
    }
}

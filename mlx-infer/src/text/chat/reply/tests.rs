//! Replies in all forms, cut into pieces at any place.

use serde_json::{Value, json};

use self::cases::cases;
use super::{Part, ReplyFormat, ReplyFront, ToolFormat};
use crate::text::files::Files;
use crate::text::tokenizer::Tokenizer;

mod cases;
mod properties;

fn tools() -> Vec<Value> {
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"}, "any": {},
        }}}})
    };
    vec![tool("weather"), tool("add")]
}

/// The parts of a reply that arrives in pieces ending at these places.
fn parts(
    format: &ReplyFormat,
    prompt: &str,
    text: &str,
    cuts: &[usize],
    tools: &[Value],
) -> Vec<Part> {
    let mut parser = format.parser(prompt, tools);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    ends.retain(|&end| text.is_char_boundary(end));
    ends.sort_unstable();
    ends.push(text.len());
    let (mut start, mut parts) = (0, Vec::new());
    for end in ends {
        parts.extend(parser.push(&text[start..end]));
        start = end;
    }
    parts.extend(parser.finish());
    joined(parts)
}

/// Neighbours of the same kind as one.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut all: Vec<Part> = Vec::new();
    for part in parts {
        match (all.last_mut(), part) {
            (Some(Part::Content(said)), Part::Content(more))
            | (Some(Part::Reasoning(said)), Part::Reasoning(more)) => said.push_str(&more),
            (
                Some(Part::CallArguments { index, json }),
                Part::CallArguments {
                    index: next,
                    json: more,
                },
            ) if *index == next => json.push_str(&more),
            (_, part) => all.push(part),
        }
    }
    all
}

/// `reasoning | content | name(arguments)`, in a form that is easy to write down.
fn shown(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Reasoning(said) => text += &format!("[{said}]"),
            Part::Content(said) => text += said,
            Part::CallStart { index, name } => text += &format!("#{index}{name}"),
            Part::CallArguments { json, .. } => text += json,
            Part::CallEnd { .. } => text += "#",
        }
    }
    text
}

#[test]
fn every_form_is_read() {
    for (tools_form, reasoning, text, expected) in cases() {
        let format = ReplyFormat::of(reasoning, tools_form);
        let found = parts(&format, "", text, &[], &tools());
        assert_eq!(shown(&found), expected, "{tools_form:?} {text}");
    }
}

#[test]
fn single_characters_give_the_same() {
    for (tools_form, reasoning, text, expected) in cases() {
        let format = ReplyFormat::of(reasoning, tools_form);
        let cuts: Vec<usize> = (0..text.len()).collect();
        let found = parts(&format, "", text, &cuts, &tools());
        assert_eq!(shown(&found), expected, "{tools_form:?} {text}");
    }
}

#[test]
fn without_tools_calls_are_content() {
    let text = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
    let format = ReplyFormat::of(Some(0), ToolFormat::Hermes);
    for text in [text, " \n ", "a\n"] {
        assert_eq!(
            parts(&format, "", text, &[1], &[]),
            [Part::Content(text.to_owned())]
        );
    }
}

#[test]
fn a_prompt_that_has_opened_the_reasoning() {
    let format = ReplyFormat::of(Some(0), ToolFormat::Hermes);
    let prompt = "<|im_start|>assistant\n<think>\n";
    for text in ["\nwhy\n</think>\n\nso", "<think>\nwhy</think>so"] {
        for cut in 0..text.len() {
            assert_eq!(
                shown(&parts(&format, prompt, text, &[cut], &[])),
                "[why]so",
                "{text} {cut}"
            );
        }
    }
}

/// The text before an answer that a grammar constrains.
#[test]
fn the_front_of_a_reply() {
    let format = ReplyFormat::of(Some(0), ToolFormat::Hermes);
    let reasoning = |open| ReplyFront::Reasoning {
        open,
        close: "</think>",
    };
    let turn = "<|im_start|>assistant\n";
    let earlier = "<|im_start|>assistant\n<think>a</think>b<|im_end|>\n<|im_start|>assistant\n";
    let quoted = "<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n";
    let tokenizer = tokenizer();
    for (prompt, expected) in [
        (format!("{turn}<think>\n"), reasoning(None)),
        // A prompt whose last turn breaks off in the middle of the reasoning.
        (format!("{turn}<think>\nFirst,"), reasoning(None)),
        (turn.to_owned(), reasoning(Some("<think>"))),
        // Marks that belong to other turns.
        (earlier.to_owned(), reasoning(Some("<think>"))),
        (quoted.to_owned(), reasoning(Some("<think>"))),
        (
            format!("{turn}<think>\n\n</think>\n\n"),
            ReplyFront::Nothing,
        ),
    ] {
        assert_eq!(format.front(&tokenizer, &prompt), expected, "{prompt}");
    }
    let format = ReplyFormat::of(None, ToolFormat::Hermes);
    assert_eq!(format.front(&tokenizer, turn), ReplyFront::Nothing);
}

fn tokenizer() -> Tokenizer {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../testdata/text/tokenizers/qwen"
    );
    Tokenizer::load(&Files::directory(folder).unwrap()).unwrap()
}

#[test]
fn a_prompt_that_has_closed_the_reasoning() {
    let format = ReplyFormat::of(Some(0), ToolFormat::Hermes);
    let closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(shown(&parts(&format, closed, "so", &[1], &[])), "so");
}

#[test]
fn long_arguments_come_as_they_are_written() {
    let city = "long ".repeat(60);
    let begun = format!("<tool_call>{{\"name\": \"add\", \"arguments\": {{\"city\": \"{city}");
    let format = ReplyFormat::of(None, ToolFormat::Hermes);
    let mut parser = format.parser("", &tools());
    let mut came: Vec<Part> = begun
        .chars()
        .flat_map(|c| parser.push(c.encode_utf8(&mut [0; 4])))
        .collect();
    assert!(came.len() > 100, "{}", came.len());
    assert_eq!(
        shown(&joined(came.clone())),
        format!("#0add{{\"city\": \"{city}")
    );
    // The call is broken from here on: the text is content, except for the arguments that were
    // already returned.
    came.extend(parser.push("\" oops}</tool_call>"));
    came.extend(parser.finish());
    assert_eq!(
        shown(&joined(came)),
        format!("#0add{{\"city\": \"{city}\" oops}}</tool_call>")
    );
}

#[test]
fn forms_are_recognised_by_their_marks() {
    let cases = [
        ("<tool_call>", ToolFormat::Hermes),
        ("<tool_call> <function=", ToolFormat::Qwen3Coder),
        ("<tool_call> <arg_key>", ToolFormat::Glm),
        ("<minimax:tool_call>", ToolFormat::MiniMax),
        ("<|python_tag|>", ToolFormat::Llama3),
        ("[TOOL_CALLS] [", ToolFormat::Mistral),
        ("[TOOL_CALLS] [ARGS]", ToolFormat::MistralArgs),
        ("<|tool_call>call:", ToolFormat::Gemma4),
        ("<start_function_call>", ToolFormat::FunctionGemma),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
            ToolFormat::DeepSeek,
        ),
        ("<|tool_call_begin|>", ToolFormat::Kimi),
        ("<|channel|> <|call|>", ToolFormat::Harmony),
        ("<seed:tool_call> <function=", ToolFormat::Seed),
        ("respond with <|tool_call|>", ToolFormat::Granite),
        ("<|START_ACTION|>", ToolFormat::Command),
        ("<tool_calls>", ToolFormat::Hunyuan),
        ("<TOOLCALL>", ToolFormat::Nemotron),
        ("<|tool_call_start|>", ToolFormat::Lfm2),
        ("<function_calls>", ToolFormat::Olmo3),
        ("<|python_start|>", ToolFormat::Llama4),
        ("<|tools_prefix|>[", ToolFormat::Apertus),
        ("<｜DSML｜function_calls>", ToolFormat::Dsml),
        ("<｜DSML｜tool_calls>", ToolFormat::DsmlCalls),
        ("<｜DSML｜ calls>", ToolFormat::DsmlSpaced),
        ("<｜GCML｜tool_calls>", ToolFormat::Gcml),
        ("<|open|>tools<|sep|> <|close|>", ToolFormat::KimiK3),
        ("<longcat_tool_call>", ToolFormat::LongCat),
        ("<iquest_tool_call> <arg_key>", ToolFormat::IQuest),
        (
            "<tool_calls> <tool_call> <tool_sep> <arg_key>",
            ToolFormat::HunyuanTags,
        ),
        ("<tool_sep:opensource>", ToolFormat::HunyuanOpen),
        ("<steptml:invoke name=", ToolFormat::Step3),
        ("<atem:function_calls>", ToolFormat::Atem),
        ("<dots_function_call>", ToolFormat::Dots),
        ("<function name= <param name=", ToolFormat::MiniCpm5),
        ("<|action_start|> <|plugin|>", ToolFormat::InternLm),
        ("<|function_call|>", ToolFormat::GigaChat),
        ("<start_of_turn>", ToolFormat::Hermes),
    ];
    for (template, form) in cases {
        assert_eq!(
            ToolFormat::detect(|mark| template.contains(mark), |_| false),
            form,
            "{template}"
        );
    }
    assert_eq!(
        ToolFormat::detect(|_| false, |mark| mark == "<|python_tag|>"),
        ToolFormat::Llama3
    );
    for (token, form) in [
        ("<|python_start|>", ToolFormat::Llama4),
        ("｜DSML｜", ToolFormat::Dsml),
    ] {
        assert_eq!(ToolFormat::detect(|_| false, |mark| mark == token), form);
    }
    assert_eq!(
        ToolFormat::detect(|_| false, |mark| mark == "<|tool_call_start|>"),
        ToolFormat::Lfm2
    );
}

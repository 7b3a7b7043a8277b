//! Replies in all forms, in any pieces.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Part, ReplyFormat, ToolFormat};

fn tools() -> Vec<Value> {
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"},
        }}}})
    };
    vec![tool("weather"), tool("add")]
}

/// The parts of a reply that comes in pieces which end at these places.
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

/// Form, reasoning marks, reply, and its parts.
fn cases() -> Vec<(ToolFormat, Option<usize>, &'static str, &'static str)> {
    use ToolFormat::*;
    vec![
        (
            Hermes,
            Some(0),
            "<think>\nwhy\n</think>\n\nhello",
            "[why]hello",
        ),
        (
            Hermes,
            Some(0),
            "hello <think> there",
            "hello <think> there",
        ),
        (Hermes, None, "hello <tool", "hello <tool"),
        (
            Hermes,
            Some(0),
            "<think>a</think>So:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"K\\\"}öln\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>",
            "[a]So:#0weather{\"city\": \"K\\\"}öln\"}##1add{}#",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"arguments\": {\"days\": 3}, \"name\": \"add\"}</tool_call>bye",
            "#0add{\"days\":3}#bye",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"days\\\": 3}\"}</tool_call>",
            "#0add{\"days\": 3}#",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
        ),
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\"",
            "<tool_call>{\"name\": \"add\"",
        ),
        (
            Hermes,
            None,
            "<tool_call>no json</tool_call>",
            "<tool_call>no json</tool_call>",
        ),
        // A reply that is cut: what is there of the call stands.
        (
            Hermes,
            None,
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"days\": 1",
            "#0add{\"days\": 1",
        ),
        (
            Qwen3Coder,
            Some(0),
            "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "#0weather{\"city\": \"New\\nYork\", \"days\": 3}#",
        ),
        (
            Qwen3Coder,
            None,
            "x<function=add>\n</function>y",
            "x#0add{}#y",
        ),
        (
            Qwen3Coder,
            None,
            "<function=nope><parameter=a>1</parameter></function>",
            "<function=nope><parameter=a>1</parameter></function>",
        ),
        (
            Glm,
            Some(0),
            "<think></think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>3</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            "#0weather{\"city\": \"3\", \"days\": 3}#",
        ),
        (
            Llama3,
            None,
            "{\"name\": \"add\", \"parameters\": {\"days\": 1}}; {\"name\": \"add\", \"parameters\": {}}",
            "#0add{\"days\": 1}##1add{}#",
        ),
        (
            Llama3,
            None,
            "<|python_tag|>{\"type\": \"function\", \"name\": \"add\", \"parameters\": {\"days\": 1}}",
            "#0add{\"days\":1}#",
        ),
        (Llama3, None, "{\"answer\": 42}", "{\"answer\": 42}"),
        (
            Llama3,
            None,
            "text {\"name\": \"add\", \"parameters\": {}}",
            "text {\"name\": \"add\", \"parameters\": {}}",
        ),
        (
            Mistral,
            Some(1),
            "[THINK]hm[/THINK]ok[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"days\": 1}}, {\"name\": \"weather\", \"arguments\": {}}]",
            "[hm]ok#0add{\"days\": 1}##1weather{}#",
        ),
        (
            Mistral,
            None,
            "[TOOL_CALLS]add[ARGS]{\"days\": 1}[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{}",
            "#0add{\"days\": 1}##1weather{}#",
        ),
        (
            Mistral,
            None,
            "[TOOL_CALLS]nope[ARGS]{}",
            "[TOOL_CALLS]nope[ARGS]{}",
        ),
        (
            Gemma4,
            Some(2),
            "<|channel>thought\nhm<channel|><|tool_call>call:weather{city:<|\"|>Köln<|\"|>,days:2}<tool_call|>",
            "[hm]#0weather{\"city\":\"Köln\",\"days\":2}#",
        ),
        (
            Gemma4,
            None,
            "<|tool_call>call:nope{}<tool_call|>",
            "<|tool_call>call:nope{}<tool_call|>",
        ),
        (
            FunctionGemma,
            None,
            "<start_function_call>call:add{days:2}<end_function_call>",
            "#0add{\"days\":2}#",
        ),
        (
            DeepSeek,
            Some(0),
            "</think>hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"days\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"a\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "</think>hi#0add{\"days\": 1}##1weather{\"city\": \"a\"}#",
        ),
        (
            Harmony,
            None,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"days\": 1}<|call|>",
            "[hm]#0add{\"days\": 1}#",
        ),
        (
            Harmony,
            None,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>hello",
            "[hm]hello",
        ),
        (Harmony, None, "plain", "plain"),
    ]
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
    assert_eq!(
        parts(&format, "", text, &[5], &[]),
        [Part::Content(text.to_owned())]
    );
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
    assert_eq!(format.reasoning_end(prompt), Some("</think>"));
    let closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(format.reasoning_end(closed), None);
    assert_eq!(shown(&parts(&format, closed, "so", &[1], &[])), "so");
}

fn piece() -> impl Strategy<Value = String> {
    let marks = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<function=add>",
        "<parameter=days>",
        "</parameter>",
        "</function>",
        "<|python_tag|>",
        "<|tool_call>",
        "<tool_call|>",
        "call:add{days:1}",
        "{\"name\": \"add\", \"arguments\": {\"days\": 1}}",
        "{\"name\": \"add\", ",
        "\"arguments\": {",
        "{\"name\": \"no\", \"arguments\": {}}",
        "}",
        "[",
        "]",
        ",",
        ";",
        "\n",
        " ",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "add",
        "<|channel|>final",
        "<|message|>",
        "<|end|>",
        "to=functions.add",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "ü",
        "<",
    ]);
    prop_oneof![4 => marks.prop_map(str::to_owned), 1 => "[a-c<{ \n]{0,4}"]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// The parts of a reply do not depend on its pieces; ids count up, and each call that ends has begun.
    #[test]
    fn pieces_do_not_matter(
        pieces in prop::collection::vec(piece(), 0..14),
        cuts in prop::collection::vec(0usize..400, 0..8),
        form in prop::sample::select(vec![
            ToolFormat::Hermes, ToolFormat::Qwen3Coder, ToolFormat::Glm, ToolFormat::Llama3, ToolFormat::Mistral,
            ToolFormat::Gemma4, ToolFormat::DeepSeek, ToolFormat::Harmony,
        ]),
        begins_inside in any::<bool>(),
    ) {
        let text = pieces.concat();
        let format = ReplyFormat::of(Some(0), form);
        let prompt = if begins_inside { "<think>" } else { "" };
        let whole = parts(&format, prompt, &text, &[], &tools());
        let cut = parts(&format, prompt, &text, &cuts, &tools());
        prop_assert_eq!(&whole, &cut, "{:?}", text);
        let mut next = 0;
        for part in &whole {
            if let Part::CallStart { index, name } = part {
                prop_assert_eq!(*index, next);
                prop_assert!(name == "add" || name == "weather");
                next += 1;
            }
        }
        // Letters outside of marks are in one of the parts.
        if form == ToolFormat::Hermes && next == 0 {
            let letters = |text: &str| text.chars().filter(|c| *c == 'ü').count();
            prop_assert_eq!(letters(&text), letters(&shown(&whole)));
        }
    }
}

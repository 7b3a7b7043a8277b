//! Grammars in the harmony format: calls, and answers in the final channel.

use super::calls::{allows, allows_all, tools, with_special};
use crate::request::grammar::{Constraint, Grammar};
use crate::text::chat::ChatTemplate;
use crate::text::chat::reply::{Part, ReplyFormat, ReplyFront, ToolChoice};
use crate::text::tokenizer::Tokenizer;

/// A tokenizer with the marks of harmony, and the format that its template shows.
fn harmony() -> (Tokenizer, ReplyFormat) {
    let marks = [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|constrain|>",
        "<|call|>",
    ];
    let tokenizer = with_special(&marks);
    let template =
        ChatTemplate::from_source("{# <|channel|> <|call|> #}{{ tools }}x", &tokenizer).unwrap();
    let format = ReplyFormat::detect(&template, &tokenizer);
    (tokenizer, format)
}

#[test]
fn harmony_may_reason_before_the_call() {
    let (tokenizer, format) = harmony();
    let grammar = format
        .grammar(&tokenizer, &tools(false), &ToolChoice::Required, true)
        .unwrap()
        .unwrap();
    let call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Ulm\"}";
    assert!(allows(&tokenizer, &grammar, call), "{grammar}");
    let reasoned =
        format!("<|channel|>analysis<|message|>Ulm, then.<|end|><|start|>assistant{call}");
    assert!(allows(&tokenizer, &grammar, &reasoned), "{grammar}");
    assert!(!allows(
        &tokenizer,
        &grammar,
        "<|channel|>final<|message|>Hello"
    ));
    // No tool is strict, so the reply is not constrained.
    assert_eq!(
        format
            .grammar(&tokenizer, &tools(false), &ToolChoice::Auto, true)
            .unwrap(),
        None
    );
    assert_eq!(
        format
            .grammar(&tokenizer, &tools(true), &ToolChoice::None, true)
            .unwrap(),
        None
    );
}

/// The grammar of an answer applies in the final channel, after any reasoning.
#[test]
fn harmony_is_held_in_its_final_channel() {
    let (tokenizer, format) = harmony();
    let ReplyFront::Form(front) = format.front(&tokenizer, "<|start|>assistant") else {
        panic!("harmony has a front");
    };
    let constraint = Constraint {
        front: Some(front),
        ..Grammar::Regex("[0-9]{3}".to_owned()).into()
    };
    let thought = "<|channel|>analysis<|message|>It is 12.<|end|><|start|>assistant";
    let head = "<|channel|>final<|message|>";
    for (text, is_allowed) in [
        (format!("{head}123"), true),
        (format!("{thought}{head}123"), true),
        (format!("{thought}{thought}{head}123"), true),
        (format!("{head}12"), false),
        (format!("{head}abc"), false),
        (format!("{thought}{head}abc"), false),
        (thought.to_owned(), false),
        ("123".to_owned(), false),
        ("<|channel|>commentary<|message|>123".to_owned(), false),
        (
            format!("<|channel|>commentary<|message|>a<|end|><|start|>assistant{head}123"),
            false,
        ),
    ] {
        assert_eq!(
            allows_all(&tokenizer, &constraint, &text),
            is_allowed,
            "{text}"
        );
    }
    let mut parser = format.parser("", &[]);
    let parts = parser.push(&format!("{thought}{head}123"));
    let expected = [
        Part::Reasoning("It is 12.".to_owned()),
        Part::Content("123".to_owned()),
    ];
    assert_eq!(parts, expected);
}

/// With a strict tool a reply may reason, tell what it does, and then answer or call the tool.
#[test]
fn harmony_may_answer_where_calls_are_optional() {
    let (tokenizer, format) = harmony();
    let grammar = format.grammar(&tokenizer, &tools(true), &ToolChoice::Auto, true);
    let grammar = grammar.unwrap().unwrap();
    let analysis = "<|channel|>analysis<|message|>Ulm, then.<|end|><|start|>assistant";
    let preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Ulm\"}";
    let answer = "<|channel|>final<|message|>Hello";
    for front in [
        String::new(),
        analysis.to_owned(),
        format!("{analysis}{preamble}"),
    ] {
        for last in [call, answer] {
            let text = format!("{front}{last}");
            assert!(allows(&tokenizer, &grammar, &text), "{text}: {grammar}");
        }
        let wrong = format!("{front}{}", call.replace("city", "town"));
        assert!(!allows(&tokenizer, &grammar, &wrong), "{wrong}");
    }
    assert!(allows(&tokenizer, &grammar, "Hello"));
}

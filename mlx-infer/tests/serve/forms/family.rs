//! Families with marks of their own for reasoning and calls.

use crate::scripted::Scripted;

/// The form in which a family writes.
pub struct Family {
    pub template: &'static str,
    pub marks: &'static [&'static str],
    pub ends: &'static [&'static str],
    /// The marks around reasoning.
    pub think: [&'static str; 2],
    /// The texts between reasoning and an answer, and before an answer without reasoning.
    pub answer: [&'static str; 2],
    /// A call of `add`, and a second one after it if a reply may have two.
    pub call: &'static str,
    pub again: Option<&'static str>,
}

const CALL: &str =
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"x\"}}\n</tool_call>";

pub const FAMILIES: [Family; 3] = [
    // A model that opens its reasoning itself, if it reasons.
    Family {
        template: "qwen3",
        marks: &[],
        ends: &["<|im_end|>"],
        think: ["<think>\n", "\n</think>"],
        answer: ["", ""],
        call: CALL,
        again: Some(CALL),
    },
    // A model whose template opens the reasoning.
    Family {
        template: "minimax_m2",
        marks: &["[e~["],
        ends: &["[e~["],
        think: ["", "\n</think>"],
        answer: ["", "</think>"],
        call: "<minimax:tool_call>\n<invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"b\">x</parameter>\n</invoke>\n</minimax:tool_call>",
        again: None,
    },
    // A model with channels.
    Family {
        template: "harmony",
        marks: &[
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|end|>",
            "<|constrain|>",
            "<|call|>",
            "<|return|>",
        ],
        ends: &["<|return|>", "<|call|>"],
        think: [
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant",
        ],
        answer: ["<|channel|>final<|message|>", "<|channel|>final<|message|>"],
        call: "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1, \"b\": \"x\"}<|call|>",
        again: None,
    },
];

impl Family {
    pub fn start(&self) -> Scripted {
        Scripted::start(self.template, self.marks, self.ends, |_| ())
    }
}

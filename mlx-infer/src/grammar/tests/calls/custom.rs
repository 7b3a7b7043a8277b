//! Tools whose input is a text with a grammar of its own, in the forms of all families.

use serde_json::{Value, json};

use super::allows;
use super::forms::FORMS;
use crate::text::chat::ChatTemplate;
use crate::text::chat::reply::{Part, ReplyFormat, ToolChoice};
use crate::text::tokenizer::Tokenizer;

/// A grammar of patches, of the kind that Codex sends.
const PATCHES: &str = r#"
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"#;

const PATCH: &str = "*** Begin Patch\n*** Update File: src/a.rs\n@@ fn main\n-    say(\"a\\n\");\n+\tsay(\"ü\");\n*** End Patch";

const WRONG: [&str; 4] = [
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Add File: a\nx\n*** End Patch",
    "say",
    "*** Begin Patch\n*** Add File: a\n+x\n*** End Patches",
];

fn tool(syntax: &str, definition: &str) -> Value {
    let schema = json!({
        "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": false,
    });
    let format = json!({"type": "grammar", "syntax": syntax, "definition": definition});
    json!({"type": "function", "function": {"name": "weather", "parameters": schema}, "custom": {"format": format}})
}

/// A call of the form of `call`, with this text as its only argument.
fn with_input(call: &str, text: &str) -> String {
    let object = "{\"city\": \"Ulm\", \"days\": 3, \"unit\": \"C\"}";
    if call.contains(object) {
        let input = json!(text).to_string();
        return call.replace(object, &format!("{{\"input\": {input}}}"));
    }
    if let Some((_, behind)) = call.split_once("{city:") {
        let mark = &behind[..behind.find("Ulm").unwrap()];
        let given = format!("city:{mark}Ulm{mark},days:3,unit:{mark}C{mark}");
        return call.replace(&given, &format!("input:{mark}{text}{mark}"));
    }
    // A parameter begins a line, or its tag follows the one before.
    let begin = |word: &str| {
        let front = &call[..call.find(word).unwrap()];
        let line = front.rfind('\n').map(|at| at + 1);
        line.or_else(|| front.rfind('<')).unwrap()
    };
    let city = &call[begin("city")..begin("days")];
    let unit = city.replace("city", "unit").replace("Ulm", "C");
    let end = begin("unit") + unit.len();
    let input = city.replace("city", "input").replace("Ulm", text);
    format!("{}{input}{}", &call[..begin("city")], &call[end..])
}

pub(super) fn check(tokenizer: &Tokenizer) {
    for (marks, call, _) in FORMS {
        let template = format!("{{# {marks} #}}{{{{ tools }}}}x");
        let template = ChatTemplate::from_source(&template, tokenizer).unwrap();
        let format = ReplyFormat::detect(&template, tokenizer);
        let tools = [tool("lark", PATCHES)];
        let grammar = |tools: &[Value], choice| {
            let grammar = format.grammar(tokenizer, tools, &choice, false);
            grammar.unwrap().unwrap()
        };
        let [required, auto] =
            [ToolChoice::Required, ToolChoice::Auto].map(|choice| grammar(&tools, choice));
        let right = with_input(call, PATCH);
        for grammar in [&required, &auto] {
            assert!(
                allows(tokenizer, grammar, &right),
                "{marks}: {right} {grammar}"
            );
            for wrong in WRONG {
                let wrong = with_input(call, wrong);
                assert!(!allows(tokenizer, grammar, &wrong), "{marks}: {wrong}");
            }
        }
        assert!(allows(tokenizer, &auto, "Hello, you."), "{marks}");
        let numbers = [tool("regex", r#"^[0-9]{2}("|/)\\$"#)];
        let numbers = grammar(&numbers, ToolChoice::Required);
        assert!(
            allows(tokenizer, &numbers, &with_input(call, "12\"\\")),
            "{marks}: {numbers}"
        );
        assert!(
            allows(tokenizer, &numbers, &with_input(call, "12/\\")),
            "{marks}: {numbers}"
        );
        assert!(
            !allows(tokenizer, &numbers, &with_input(call, "12/")),
            "{marks}"
        );
        // The parser reads what the grammar allows.
        let mut parser = format.parser("", &tools);
        let mut parts = parser.push(&right);
        parts.extend(parser.finish());
        let json: String = (parts.iter())
            .filter_map(|part| match part {
                Part::CallArguments { json, .. } => Some(json.as_str()),
                _ => None,
            })
            .collect();
        let arguments: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(arguments, json!({"input": PATCH}), "{marks}");
        let bad = format.grammar(
            tokenizer,
            &[tool("lark", "start: @x")],
            &ToolChoice::Auto,
            true,
        );
        let error = bad.unwrap_err().to_string();
        assert!(
            error.contains("cannot stand in the grammar of a tool"),
            "{error}"
        );
    }
}

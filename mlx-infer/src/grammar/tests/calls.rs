//! Grammars of calls allow what the parser of the same form reads.

mod custom;
mod forms;

use serde_json::{Value, json};

use self::forms::FORMS;

use super::{allowed, guide, tokenizer};
use crate::request::grammar::{Constraint, Grammar};
use crate::text::chat::ChatTemplate;
use crate::text::chat::reply::{Part, ReplyFormat, ToolChoice};
use crate::text::files::Files;
use crate::text::tokenizer::Tokenizer;

pub(super) fn tools(is_strict: bool) -> Vec<Value> {
    let weather = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}, "all": {"type": "boolean"},
    }});
    let tool = |name: &str, schema: Value| json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": is_strict}});
    vec![
        tool("weather", weather),
        tool(
            "now",
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
        ),
    ]
}

/// Whether the grammar allows the whole text, and an end behind it.
pub(super) fn allows(tokenizer: &Tokenizer, lark: &str, text: &str) -> bool {
    allows_all(tokenizer, &Grammar::Lark(lark.to_owned()).into(), text)
}

/// Whether the constraint allows the whole text, and an end after it.
pub(super) fn allows_all(tokenizer: &Tokenizer, constraint: &Constraint, text: &str) -> bool {
    let mut guide = guide(tokenizer, tokenizer.vocab_size(), constraint);
    let mut is_complete = false;
    for id in tokenizer.encode(text, false).unwrap() {
        if is_complete || !allowed(&mut guide).contains(&id) {
            return false;
        }
        guide.check().unwrap();
        is_complete = guide.accept(id).unwrap();
    }
    is_complete || {
        let ends = allowed(&mut guide);
        tokenizer.eos_ids().iter().any(|id| ends.contains(id))
    }
}

/// The tokenizer with these additional special tokens.
pub(super) fn with_special(tokens: &[&str]) -> Tokenizer {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/text/tokenizers/qwen");
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    let path = to.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config["additional_special_tokens"] = json!(tokens);
    std::fs::write(&path, config.to_string()).unwrap();
    Tokenizer::load(&Files::directory(to.path()).unwrap()).unwrap()
}

fn check(tokenizer: &Tokenizer) {
    for (marks, call, two) in FORMS {
        let template =
            ChatTemplate::from_source(&format!("{{# {marks} #}}{{{{ tools }}}}x"), tokenizer)
                .unwrap();
        let format = ReplyFormat::detect(&template, tokenizer);
        let tools = tools(true);
        let grammar = |choice: &ToolChoice, is_parallel| {
            format
                .grammar(tokenizer, &tools, choice, is_parallel)
                .unwrap()
                .unwrap()
        };
        let required = grammar(&ToolChoice::Required, true);
        assert!(allows(tokenizer, &required, call), "{marks}: {required}");
        assert!(
            two.is_empty() || allows(tokenizer, &required, two),
            "{marks}: {required}"
        );
        for wrong in [
            "hello".to_owned(),
            call.replace("weather", "nothing"),
            call.replace('3', "x"),
            call.replace('C', "K"),
            call.replace("city", "town"),
        ] {
            assert!(!allows(tokenizer, &required, &wrong), "{marks}: {wrong}");
        }
        let single = grammar(&ToolChoice::Required, false);
        assert!(allows(tokenizer, &single, call), "{marks}");
        assert!(
            two.is_empty() || !allows(tokenizer, &single, two),
            "{marks}"
        );
        let named = grammar(&ToolChoice::Named("now".to_owned()), true);
        assert!(!allows(tokenizer, &named, call), "{marks}");
        // A named tool is called once.
        let once = grammar(&ToolChoice::Named("weather".to_owned()), true);
        assert!(allows(tokenizer, &once, call), "{marks}: {once}");
        assert!(
            two.is_empty() || !allows(tokenizer, &once, two),
            "{marks}: {once}"
        );
        // Calls within free text.
        let auto = grammar(&ToolChoice::Auto, true);
        assert!(allows(tokenizer, &auto, "Hello, you."), "{marks}: {auto}");
        assert!(allows(tokenizer, &auto, call), "{marks}: {auto}");
        assert!(
            !allows(tokenizer, &auto, &call.replace('3', "x")),
            "{marks}: {auto}"
        );
        if !call.starts_with('{') {
            assert!(
                allows(tokenizer, &auto, &format!("So: {call}")),
                "{marks}: {auto}"
            );
        }
        // The parser reads what the grammar allows.
        let mut parser = format.parser("", &tools);
        let mut parts = parser.push(call);
        parts.extend(parser.finish());
        let [
            Part::CallStart { name, .. },
            Part::CallArguments { json, .. },
            Part::CallEnd { .. },
        ] = &parts[..]
        else {
            panic!("{marks}: {parts:?}");
        };
        assert_eq!(name, "weather");
        let arguments: Value = serde_json::from_str(json).unwrap();
        assert_eq!(
            arguments,
            json!({"city": "Ulm", "days": 3, "unit": "C"}),
            "{marks}"
        );
    }
}

#[test]
fn calls_are_held_where_marks_are_spelled() {
    check(&tokenizer("qwen"));
    custom::check(&tokenizer("qwen"));
}

#[test]
fn calls_are_held_where_marks_are_special_tokens() {
    let marks = [
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|\"|>",
        "<start_function_call>",
        "<end_function_call>",
        "<escape>",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<|tool_call|>",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "<seed:tool_call>",
        "</seed:tool_call>",
        "<|python_start|>",
        "<|python_end|>",
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        "｜DSML｜",
    ];
    let tokenizer = with_special(&marks);
    assert!(marks.iter().all(|mark| tokenizer.is_special(mark)));
    check(&tokenizer);
    custom::check(&tokenizer);
}

#[test]
fn gemmas_notation_holds_every_type() {
    let tokenizer = tokenizer("qwen");
    let template = ChatTemplate::from_source("{# <|tool_call> #}{{ tools }}x", &tokenizer).unwrap();
    let format = ReplyFormat::detect(&template, &tokenizer);
    let grammar = |schema: Value, is_strict: bool| {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema, "strict": is_strict}});
        format.grammar(&tokenizer, &[tool], &ToolChoice::Required, false)
    };
    let call = |arguments: &str| format!("<|tool_call>call:f{arguments}<tool_call|>");
    let schema = json!({"type": "object", "required": ["b", "d"], "properties": {
        "a": {"type": ["integer", "null"]},
        "b": {"type": "array", "items": {"type": "number"}},
        "c": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"x": {"type": "boolean"}}}]},
        "d": {"type": "object"},
        "e": {},
    }});
    let lark = grammar(schema, true).unwrap().unwrap();
    for right in [
        "{b:[],d:{}}",
        "{a:null,b:[1,2.5],c:{x:true},d:{k:[<|\"|>v<|\"|>,{}]},e:false}",
        "{a:-3,b:[0],c:<|\"|>t<|\"|>,d:{}}",
        "{b:[],c:{},d:{},e:{}}",
    ] {
        assert!(allows(&tokenizer, &lark, &call(right)), "{right} {lark}");
    }
    for wrong in [
        "{}",
        "{b:[],}",
        "{d:{}}",
        "{b:[x],d:{}}",
        "{,b:[],d:{}}",
        "{b:[],d:{},f:1}",
        "{b:[],c:1,d:{}}",
    ] {
        assert!(!allows(&tokenizer, &lark, &call(wrong)), "{wrong}");
    }
    let optional =
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"const": "x"}}});
    let lark = grammar(optional, false).unwrap().unwrap();
    for right in ["{}", "{a:1}", "{b:<|\"|>x<|\"|>}", "{a:1,b:<|\"|>x<|\"|>}"] {
        assert!(allows(&tokenizer, &lark, &call(right)), "{right} {lark}");
    }
    let least = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}});
    assert!(grammar(least.clone(), false).is_ok());
    let error = grammar(least, true).unwrap_err().to_string();
    assert!(
        error.starts_with("a strict tool's schema has minimum"),
        "{error}"
    );
}

#[test]
fn many_tools_with_wide_schemas_are_held() {
    let tokenizer = tokenizer("qwen");
    let template = ChatTemplate::from_source("x", &tokenizer).unwrap();
    let format = ReplyFormat::detect(&template, &tokenizer);
    let property = |at: usize| {
        (
            format!("p{at}"),
            json!({"type": "string", "description": "a: b: c"}),
        )
    };
    let properties: serde_json::Map<String, Value> = (0..20).map(property).collect();
    let tool = |at: usize| {
        let schema = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": format!("f{at}"), "parameters": schema}})
    };
    let tools: Vec<Value> = (0..30).map(tool).collect();
    let grammar = format.grammar(&tokenizer, &tools, &ToolChoice::Required, false);
    let grammar = grammar.unwrap().unwrap();
    let call = "<tool_call>\n{\"name\": \"f29\", \"arguments\": {\"p19\": \"x\"}}\n</tool_call>";
    assert!(allows(&tokenizer, &grammar, call));
}

#[test]
fn marks_of_calls_are_text_and_other_special_tokens_are_not() {
    let tokenizer = with_special(&["[TOOL_CALLS]", "[ARGS]", "[OTHER]"]);
    let template = ChatTemplate::from_source("{# [TOOL_CALLS] [ARGS] #}x", &tokenizer).unwrap();
    let format = ReplyFormat::detect(&template, &tokenizer);
    let ids = tokenizer
        .encode("[OTHER]a[TOOL_CALLS]f[ARGS]{}[OTHER]", false)
        .unwrap();
    let text = |kept: &[u32]| {
        let mut detokenizer = tokenizer.detokenizer(true).keeping(kept);
        let pieces: String = ids
            .iter()
            .map(|id| detokenizer.push(*id).unwrap())
            .collect();
        pieces + &detokenizer.finish().unwrap()
    };
    assert_eq!(text(format.kept_special()), "a[TOOL_CALLS]f[ARGS]{}");
    assert_eq!(text(&[]), "af{}");
}

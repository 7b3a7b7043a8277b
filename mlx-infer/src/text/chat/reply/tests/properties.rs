//! Properties of every reply.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::super::grammar::tags_of;
use super::super::{Part, ReplyFormat, ToolFormat, tags};
use super::{parts, shown, tools};

fn forms() -> impl Strategy<Value = ToolFormat> {
    use ToolFormat::*;
    prop::sample::select(vec![
        Hermes,
        Qwen3Coder,
        Glm,
        MiniMax,
        Llama3,
        Mistral,
        MistralArgs,
        Gemma4,
        FunctionGemma,
        DeepSeek,
        Kimi,
        Harmony,
        Seed,
        Granite,
        Command,
        Hunyuan,
        Nemotron,
        Lfm2,
        Olmo3,
        Llama4,
        Apertus,
        Dsml,
        DsmlCalls,
        DsmlSpaced,
        Gcml,
        GigaChat,
        KimiK3,
        LongCat,
        IQuest,
        HunyuanTags,
        HunyuanOpen,
        Step3,
        Atem,
        Dots,
        MiniCpm5,
        InternLm,
    ])
}

/// Marks, parts of calls, and other text.
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
        "<parameter=city>",
        "</parameter>",
        "</function>",
        "<|python_tag|>",
        "<|tool_call>",
        "<tool_call|>",
        "call:add{days:1}",
        "call:add{",
        "city:<|\"|>",
        "<|\"|>",
        "{\"name\": \"add\", ",
        "{\"name\": \"add\", \"arguments\": {\"days\": 1}}",
        "\"arguments\": {",
        "\"city\": \"",
        "\"",
        "{\"name\": \"no\", \"arguments\": {}}",
        "}",
        "{",
        "[",
        "]",
        ",",
        ";",
        "\n",
        " ",
        "<arg_key>",
        "days",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "add",
        "<|channel|>final",
        "<|message|>",
        "<|end|>",
        "<|channel|>commentary to=functions.add",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<seed:tool_call>",
        "</seed:tool_call>",
        "<|tool_call|>",
        "<tool_calls>",
        "</tool_calls>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "add(days=1)",
        "[add(days=1), ",
        "<|python_start|>",
        "<|python_end|>",
        "<|tools_prefix|>",
        "{\"add\": {\"days\": 1}",
        "<|tools_suffix|>",
        "<｜DSML｜function_calls>",
        "<｜DSML｜invoke name=\"add\">",
        "<｜DSML｜parameter name=\"city\" string=\"true\">",
        "<｜DSML｜parameter name=\"days\" string=\"false\">",
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        "</｜DSML｜function_calls>",
        "<|open|>tools<|sep|>",
        "<|open|>call tool=\"add\" index=\"1\"<|sep|>",
        "<|open|>argument key=\"days\" type=\"number\"<|sep|>",
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
        "<function name=\"add\">",
        "<param name=\"city\">",
        "</param>",
        "<![CDATA[",
        "]]>",
        "<tool_sep>",
        "<|action_start|> <|plugin|>",
        "<|action_end|>",
        "<|function_call|>",
        "add(city='",
        "'",
        ")",
        "ü",
        "<",
        "a text that is so long that the arguments of a call are given before it ends, because more than 128 bytes came",
    ]);
    prop_oneof![4 => marks.prop_map(str::to_owned), 1 => "[a-c<{ \n]{0,4}"]
}

/// A JSON value that contains no mark of any form.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1000i32..1000).prop_map(|n| Value::from(f64::from(n) / 8.0)),
        "[a-z<>{}\"\\\\,:\n üß☃]{0,200}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A value in Gemma's notation.
fn noted(value: &Value, mark: &str) -> String {
    match value {
        Value::String(text) => format!("{mark}{text}{mark}"),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(|item| noted(item, mark)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => {
            let items: Vec<String> = map
                .iter()
                .map(|(key, item)| format!("{key}:{}", noted(item, mark)))
                .collect();
            format!("{{{}}}", items.join(","))
        }
        other => other.to_string(),
    }
}

/// A value as text between tags.
fn tagged(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The mark before the calls of a form in tags.
fn frame(form: ToolFormat) -> &'static str {
    match form {
        ToolFormat::DsmlCalls => "<｜DSML｜tool_calls>",
        ToolFormat::DsmlSpaced => "<｜DSML｜ calls>",
        _ => form.marks()[0],
    }
}

/// A call in the tags of a form, after the mark before them.
fn in_tags(form: ToolFormat, mark: &str, arguments: &Map<String, Value>) -> String {
    let tags = tags_of(form).unwrap();
    let named = |tag: &str, name: &str| match tag.ends_with('=') {
        true => format!("{tag}\"{name}\""),
        false => format!("{tag}{name}"),
    };
    let mut text = mark.to_owned() + &named(tags.call, "add");
    if tags.name_ends.contains(&'>') {
        text.push('>');
    } else if tags.separator.is_empty() {
        text.push('\n');
    }
    text += tags.separator;
    for (key, value) in arguments {
        text += &named(tags.parameter, key);
        if !tags.is_text.is_empty() {
            let word = match value.is_string() {
                true => tags.text_word,
                false => "false",
            };
            text += &format!("{}\"{word}\"", tags.is_text);
        }
        text += tags.name_end;
        text += tags.value;
        text += &tagged(value);
        text += tags.value_end;
        text += tags.line;
    }
    text + tags.call_end + tags.block_end
}

/// A call as a model of the form writes it.
fn written(form: ToolFormat, arguments: &Map<String, Value>) -> String {
    let json = serde_json::to_string_pretty(arguments).unwrap();
    let pairs = |write: &dyn Fn(&str, &Value) -> String| -> String {
        arguments
            .iter()
            .map(|(key, value)| write(key, value))
            .collect()
    };
    let object = Value::Object(arguments.clone());
    match form {
        ToolFormat::Hermes => {
            format!("<tool_call>\n{{\"name\": \"add\", \"arguments\": {json}}}\n</tool_call>")
        }
        ToolFormat::Llama3 => {
            format!("<|python_tag|>{{\"name\": \"add\", \"parameters\": {json}}}")
        }
        ToolFormat::Mistral => {
            format!("[TOOL_CALLS][{{\"arguments\": {json}, \"name\": \"add\"}}]")
        }
        ToolFormat::MistralArgs => format!("[TOOL_CALLS]add[ARGS]{json}"),
        ToolFormat::DeepSeek => {
            format!("<｜tool▁call▁begin｜>add<｜tool▁sep｜>{json}<｜tool▁call▁end｜>")
        }
        ToolFormat::Kimi => {
            format!(
                "<|tool_call_begin|>functions.add:3<|tool_call_argument_begin|>{json}<|tool_call_end|>"
            )
        }
        ToolFormat::Gemma4 => format!(
            "<|tool_call>call:add{}<tool_call|>",
            noted(&object, "<|\"|>")
        ),
        ToolFormat::FunctionGemma => {
            format!(
                "<start_function_call>call:add{}<end_function_call>",
                noted(&object, "<escape>")
            )
        }
        ToolFormat::Qwen3Coder => {
            let pairs = pairs(&|key, value| {
                format!("<parameter={key}>\n{}\n</parameter>\n", tagged(value))
            });
            format!("<tool_call>\n<function=add>\n{pairs}</function>\n</tool_call>")
        }
        ToolFormat::MiniMax => {
            let pairs = pairs(&|key, value| {
                format!(
                    "<parameter name=\"{key}\">\n{}\n</parameter>\n",
                    tagged(value)
                )
            });
            format!(
                "<minimax:tool_call>\n<invoke name=\"add\">\n{pairs}</invoke>\n</minimax:tool_call>"
            )
        }
        ToolFormat::Seed => {
            let pairs =
                pairs(&|key, value| format!("<parameter={key}>{}</parameter>\n", tagged(value)));
            format!("<seed:tool_call>\n<function=add>\n{pairs}</function>\n</seed:tool_call>")
        }
        ToolFormat::Granite => {
            format!("<|tool_call|>[{{\"name\": \"add\", \"arguments\": {json}}}]")
        }
        ToolFormat::Command => {
            format!(
                "<|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \"add\", \"parameters\": {json}}}\n]<|END_ACTION|>"
            )
        }
        ToolFormat::Hunyuan => {
            format!("<tool_calls>[{{\"name\": \"add\", \"arguments\": {json}}}]</tool_calls>")
        }
        ToolFormat::Nemotron => {
            format!("<TOOLCALL>[{{\"name\": \"add\", \"arguments\": {json}}}]</TOOLCALL>")
        }
        ToolFormat::Apertus => {
            format!("<|tools_prefix|>[{{\"add\": {json}}}]<|tools_suffix|>")
        }
        ToolFormat::Dsml => {
            let pairs = pairs(&|key, value| {
                format!(
                    "<｜DSML｜parameter name=\"{key}\" string=\"{}\">{}</｜DSML｜parameter>\n",
                    value.is_string(),
                    tagged(value)
                )
            });
            format!(
                "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"add\">\n{pairs}</｜DSML｜invoke>\n</｜DSML｜function_calls>"
            )
        }
        ToolFormat::Lfm2 | ToolFormat::Olmo3 | ToolFormat::Llama4 => {
            let pairs: Vec<String> = arguments
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            match form {
                ToolFormat::Lfm2 => format!(
                    "<|tool_call_start|>[add({})]<|tool_call_end|>",
                    pairs.join(", ")
                ),
                ToolFormat::Llama4 => {
                    format!("<|python_start|>[add({})]<|python_end|>", pairs.join(", "))
                }
                _ => format!(
                    "<function_calls>\nadd({})\n</function_calls>",
                    pairs.join(",")
                ),
            }
        }
        ToolFormat::GigaChat => {
            format!("<|function_call|>{{\"name\": \"add\", \"arguments\": {json}}}")
        }
        ToolFormat::InternLm => format!(
            "<|action_start|> <|plugin|>\n{{\"name\": \"add\", \"parameters\": {json}}}<|action_end|>"
        ),
        ToolFormat::MiniCpm5 => in_tags(form, "", arguments),
        ToolFormat::DsmlCalls
        | ToolFormat::DsmlSpaced
        | ToolFormat::Gcml
        | ToolFormat::KimiK3
        | ToolFormat::LongCat
        | ToolFormat::IQuest
        | ToolFormat::HunyuanTags
        | ToolFormat::HunyuanOpen
        | ToolFormat::Step3
        | ToolFormat::Atem
        | ToolFormat::Dots => in_tags(form, frame(form), arguments),
        ToolFormat::Glm => {
            let pairs = pairs(&|key, value| {
                format!(
                    "<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n",
                    tagged(value)
                )
            });
            format!("<tool_call>add\n{pairs}</tool_call>")
        }
        ToolFormat::Harmony => {
            format!(
                "<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{json}<|call|>"
            )
        }
    }
}

/// The value that a family's text of a parameter stands for.
fn meant(form: ToolFormat, key: &str, value: Value) -> Value {
    let tags = match tags_of(form) {
        Some(tags) if tags.is_text.is_empty() => tags,
        _ => return value,
    };
    let types: Option<&[&str]> = match key {
        "city" => Some(&["string"]),
        "days" => Some(&["integer"]),
        "deep" => Some(&["object"]),
        // The schema names no type.
        _ if !tags.untyped_is_text => None,
        _ => Some(&["string"]),
    };
    serde_json::from_str(&tags::by_type(types, &tagged(&value))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() })]

    /// The parts of a reply do not depend on how it is cut into pieces; calls are numbered in
    /// order, and each has an end; a reply without calls is content to the byte.
    #[test]
    fn pieces_do_not_matter_and_nothing_is_lost(
        pieces in prop::collection::vec(piece(), 0..14),
        cuts in prop::collection::vec(0usize..600, 0..8),
        form in forms(),
        has_reasoning in any::<bool>(),
        begins_inside in any::<bool>(),
    ) {
        let text = pieces.concat();
        let format = ReplyFormat::of(has_reasoning.then_some(0), form);
        let prompt = if begins_inside { "<think>" } else { "" };
        let whole = parts(&format, prompt, &text, &[], &tools());
        let cut = parts(&format, prompt, &text, &cuts, &tools());
        prop_assert_eq!(&whole, &cut, "{:?}", text);
        let singly: Vec<usize> = (0..text.len()).collect();
        prop_assert_eq!(&whole, &parts(&format, prompt, &text, &singly, &tools()), "{:?}", text);
        let mut begun = 0;
        for part in &whole {
            match part {
                Part::CallStart { index, name } => {
                    prop_assert_eq!(*index, begun);
                    prop_assert_eq!(name, "add");
                    begun += 1;
                }
                Part::CallArguments { index, .. } | Part::CallEnd { index } => prop_assert_eq!(*index + 1, begun),
                _ => {}
            }
        }
        if begun == 0 && !has_reasoning && form != ToolFormat::Harmony {
            prop_assert_eq!(shown(&whole), text.as_str());
        }
        // Arguments of a complete call are a JSON object.
        for at in 1..whole.len() {
            if let (Part::CallArguments { json, .. }, Part::CallEnd { .. }) = (&whole[at - 1], &whole[at]) {
                let value: Result<Map<String, Value>, _> = serde_json::from_str(json);
                prop_assert!(value.is_ok(), "{} of {:?}", json, text);
            }
        }
    }

    /// A call is returned with the arguments that were written, between the texts around it.
    #[test]
    fn calls_come_with_their_arguments(
        form in forms(),
        city in prop::option::of("[a-z<>{}\"\\\\,:\n üß☃]{0,200}"),
        days in prop::option::of(any::<i32>()),
        deep in prop::option::of(prop::collection::btree_map("[a-z_]{1,6}", value(), 0..4)),
        any in prop::option::of(value()),
        cuts in prop::collection::vec(0usize..900, 0..8),
    ) {
        let given = [
            ("city", city.map(Value::from)),
            ("days", days.map(Value::from)),
            ("deep", deep.map(|map| Value::Object(map.into_iter().collect()))),
            ("any", any),
        ];
        let arguments: Map<String, Value> =
            given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        let front = if form == ToolFormat::Harmony { "<|channel|>final<|message|>So:<|end|>" } else { "So:\n" };
        let text = format!("{front}{}", written(form, &arguments));
        let format = ReplyFormat::of(None, form);
        let found = parts(&format, "", &text, &cuts, &tools());
        let [Part::Content(said), Part::CallStart { index: 0, .. }, Part::CallArguments { json, .. }, Part::CallEnd { .. }] = &found[..]
        else {
            return Err(TestCaseError::fail(format!("{found:?} of {text:?}")));
        };
        prop_assert_eq!(said, "So:");
        let expected: Map<String, Value> =
            arguments.into_iter().map(|(key, value)| (key.clone(), meant(form, &key, value))).collect();
        let json: Map<String, Value> = serde_json::from_str(json).unwrap();
        prop_assert_eq!(json, expected, "{:?}", text);
    }

    /// A reply that breaks off returns the text before the call, and of the call either nothing or
    /// a beginning of its arguments.
    #[test]
    fn a_cut_call_is_content_or_goes_as_far_as_it_came(form in forms(), city in "[a-z \"\\\\]{0,200}", at in 0usize..400) {
        let arguments: Map<String, Value> = [("city".to_owned(), Value::from(city))].into_iter().collect();
        let call = written(form, &arguments);
        let mut at = at % (call.len() + 1);
        while !call.is_char_boundary(at) {
            at -= 1;
        }
        let format = ReplyFormat::of(None, form);
        let all = shown(&parts(&format, "", &call, &[], &tools()));
        let cut = shown(&parts(&format, "", &call[..at], &[], &tools()));
        let is_begun = all.starts_with(&cut) && (cut.is_empty() || cut.starts_with('#'));
        prop_assert!(is_begun || cut == call[..at] || form == ToolFormat::Harmony, "{cut:?} of {:?}", &call[..at]);
    }
}

//! Chat templates, compared with transformers on testdata/text (written by xtask/golden/text.py).
#![cfg(feature = "clock")]

use std::path::PathBuf;

use mlx_infer::{ChatTemplate, ErrorKind, Files, Message, RenderOptions, Tokenizer};
use serde_json::{Map, Value};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/text")
        .join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(data(name)).unwrap()).unwrap()
}

fn tokenizer(case: &str) -> Tokenizer {
    Tokenizer::load(&Files::directory(data("tokenizers").join(case)).unwrap()).unwrap()
}

fn options(conversation: &Value, prompt: bool) -> RenderOptions {
    let list = |key: &str| conversation.get(key).and_then(Value::as_array).cloned();
    RenderOptions {
        tools: list("tools"),
        documents: list("documents"),
        add_generation_prompt: prompt,
        kwargs: conversation
            .get("kwargs")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default(),
        now: Some("2025-03-04T05:06:07".parse().unwrap()),
        ..Default::default()
    }
}

#[test]
fn conversations_render_to_the_byte() {
    let tokenizer = tokenizer("qwen");
    let conversations = json("conversations.json");
    let cases = json("rendered.json");
    let (mut texts, mut refusals, mut errors) = (0, 0, 0);
    let mut wrong = Vec::new();
    for case in cases.as_array().unwrap() {
        let (template, name) = (
            case["template"].as_str().unwrap(),
            case["conversation"].as_str().unwrap(),
        );
        let source =
            std::fs::read_to_string(data("templates").join(format!("{template}.jinja"))).unwrap();
        let template_of = ChatTemplate::from_source(&source, &tokenizer).unwrap();
        let conversation = &conversations[name];
        let messages = Message::list_from_json(conversation["messages"].clone()).unwrap();
        let mut options = options(conversation, case["prompt"].as_bool().unwrap());
        // The tokenizer of the goldens has only these two special tokens.
        for (token, text) in [("bos_token", "<bos>"), ("eos_token", "<eos>")] {
            options
                .kwargs
                .entry(token)
                .or_insert_with(|| Value::from(text));
        }
        let found = template_of.render(&messages, &options);
        let label = format!("{template} / {name} / {}", case["prompt"]);
        if let Some(expected) = case["text"].as_str() {
            texts += 1;
            if found.as_deref().ok() != Some(expected) {
                wrong.push(format!(
                    "{label}:\nexpected {expected:?}\nfound    {found:?}"
                ));
            }
        } else if let Some(message) = case["raised"].as_str() {
            refusals += 1;
            let expected = format!("the chat template refuses the conversation: {message}");
            if found.as_ref().err().map(ToString::to_string) != Some(expected) {
                wrong.push(format!(
                    "{label}:\nexpected to raise {message:?}\nfound    {found:?}"
                ));
            }
        } else {
            errors += 1;
            if !found
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::Template)
            {
                wrong.push(format!(
                    "{label}:\nexpected {}\nfound    {found:?}",
                    case["error"]
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        texts > 250 && refusals > 10 && errors > 25,
        "{texts} texts, {refusals} refusals, {errors} errors"
    );
}

/// Methods and filters that are refused by name, because no chat template needs them, and integers of more than 127
/// bits.
const REFUSED: [&str; 9] = [
    "{{ s.encode() }}",
    "{{ 'foo bar baz'|wordwrap(5) }}",
    "{{ d|pprint }}",
    "{{ 1.5e40|int }}",
    "{{ ('9' * 40)|int }}",
    "{{ ('9' * 4300)|int(1)|string|length }}",
    "{{ '1e40'|int }}",
    "{{ '%d' % 1e40 }}",
    "{{ 1e40|round(0, 'ceil') }}",
];

/// Filters that are refused by name, because no chat template uses them.
const REFUSED_FILTERS: [&str; 8] = [
    "batch",
    "center",
    "filesizeformat",
    "forceescape",
    "slice",
    "striptags",
    "urlencode",
    "xmlattr",
];

#[test]
fn expressions_as_jinja2_and_python_have_them() {
    let tokenizer = tokenizer("qwen");
    let golden = json("expressions.json");
    let message = [Message::new("user", "x")];
    let mut wrong = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let source = case["source"].as_str().unwrap();
        let options = RenderOptions {
            kwargs: golden["context"].as_object().unwrap().clone(),
            now: Some("2025-03-04T05:06:07".parse().unwrap()),
            ..Default::default()
        };
        let found = ChatTemplate::from_source(source, &tokenizer)
            .and_then(|it| it.render(&message, &options));
        let right = match case["text"].as_str() {
            Some(expected) => found.as_deref().ok() == Some(expected),
            None => found.is_err(),
        };
        let refused = REFUSED_FILTERS
            .iter()
            .find(|filter| case["text"].is_string() && source.contains(&format!("|{filter}")));
        if let Some(filter) = refused {
            let message = found
                .as_ref()
                .err()
                .map_or_else(String::new, ToString::to_string);
            if !message.contains(&format!("the filter {filter} is not supported")) {
                wrong.push(format!("{source}\n  expected a refusal\n  found {found:?}"));
            }
            continue;
        }
        let known = REFUSED.contains(&source);
        if right == known {
            wrong.push(format!("{source}\n  expected {case}\n  found {found:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn with_files(files: &[(&str, &str)]) -> (tempfile::TempDir, Files, Tokenizer) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(
        data("tokenizers/qwen/tokenizer.json"),
        dir.path().join("tokenizer.json"),
    )
    .unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let files = Files::directory(dir.path()).unwrap();
    let tokenizer = Tokenizer::load(&files).unwrap();
    (dir, files, tokenizer)
}

#[test]
fn templates_are_found_where_checkpoints_keep_them() {
    let hello = [Message::new("user", "hello")];
    let render = |files: &[(&str, &str)], options: &RenderOptions| {
        let (_dir, files, tokenizer) = with_files(files);
        ChatTemplate::load(&files, &tokenizer).and_then(|template| template.render(&hello, options))
    };
    let plain = RenderOptions::default();
    let config = (
        "tokenizer_config.json",
        r#"{"chat_template": "config {{ messages[0].content }}"}"#,
    );
    assert_eq!(render(&[config], &plain).unwrap(), "config hello");
    assert_eq!(
        render(&[config, ("chat_template.jinja", "file")], &plain).unwrap(),
        "file"
    );
    assert_eq!(
        render(
            &[("chat_template.json", r#"{"chat_template": "legacy"}"#)],
            &plain
        )
        .unwrap(),
        "legacy"
    );

    let list = (
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}"#,
    );
    let named = |name: &str| RenderOptions {
        template: Some(name.to_owned()),
        ..Default::default()
    };
    let tools = RenderOptions {
        tools: Some(Vec::new()),
        ..Default::default()
    };
    assert_eq!(render(&[list], &plain).unwrap(), "d");
    assert_eq!(render(&[list], &tools).unwrap(), "t");
    assert_eq!(render(&[list], &named("tool_use")).unwrap(), "t");
    let error = render(&[list], &named("rag")).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with(r#"no chat template is called "rag"; known: default, tool_use"#),
        "{error}"
    );

    let extra = ("additional_chat_templates/rag.jinja", "r");
    assert_eq!(
        render(&[("chat_template.jinja", "d"), extra], &named("rag")).unwrap(),
        "r"
    );
    assert!(
        render(&[extra, config], &plain).is_err(),
        "files go first, and none of them is the default"
    );
}

#[test]
fn built_in_templates_for_families_without_one() {
    let turns = [
        Message::new("system", "Be kind."),
        Message::new("user", " hi "),
        Message::new("assistant", "yo"),
        Message::new("user", "bye"),
    ];
    let options = RenderOptions {
        add_generation_prompt: true,
        ..Default::default()
    };
    let render = |case: &str, model_type: &str, marks: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let mut json: Value = serde_json::from_str(
            &std::fs::read_to_string(data("tokenizers").join(case).join("tokenizer.json")).unwrap(),
        )
        .unwrap();
        let list = json["added_tokens"].as_array_mut().unwrap();
        for (at, mark) in marks.iter().enumerate() {
            let mut token = Map::new();
            token.insert("id".into(), Value::from(5000 + at));
            token.insert("content".into(), Value::from(*mark));
            for flag in ["single_word", "lstrip", "rstrip", "normalized"] {
                token.insert(flag.into(), Value::from(false));
            }
            token.insert("special".into(), Value::from(true));
            list.push(Value::Object(token));
        }
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        std::fs::write(
            dir.path().join("config.json"),
            format!(r#"{{"model_type": "{model_type}"}}"#),
        )
        .unwrap();
        std::fs::write(
            dir.path().join("tokenizer_config.json"),
            r#"{"bos_token": "<s>"}"#,
        )
        .unwrap();
        let files = Files::directory(dir.path()).unwrap();
        let tokenizer = Tokenizer::load(&files).unwrap();
        let template = ChatTemplate::load(&files, &tokenizer)?;
        assert!(template.is_built_in());
        template.render(&turns, &options)
    };
    assert_eq!(
        render("gemma", "gemma3_text", &[]).unwrap(),
        "<s><start_of_turn>user\nBe kind.\n\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n\
         <start_of_turn>user\nbye<end_of_turn>\n<start_of_turn>model\n"
    );
    assert_eq!(
        render("qwen", "qwen3", &[]).unwrap(),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n hi <|im_end|>\n\
         <|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        render(
            "llama3",
            "llama",
            &["<|start_header_id|>", "<|end_header_id|>"]
        )
        .unwrap(),
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\nyo<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nbye<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    for (case, model_type) in [("llama2", "llama"), ("phi3", "phi3"), ("llama3", "qwen3")] {
        let error = render(case, model_type, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("has no chat template")
                && error.to_string().contains("Gemma 3"),
            "{error}"
        );
    }
}

#[test]
fn arguments_are_checked() {
    let tokenizer = tokenizer("qwen");
    let template = ChatTemplate::from_source("x", &tokenizer).unwrap();
    assert_eq!(
        template
            .render(&[], &RenderOptions::default())
            .unwrap_err()
            .kind(),
        ErrorKind::Argument
    );
    let mut options = RenderOptions::default();
    options.kwargs.insert("messages".into(), Value::Null);
    assert_eq!(
        template
            .render(&[Message::new("user", "x")], &options)
            .unwrap_err()
            .kind(),
        ErrorKind::Argument
    );
    for bad in [
        r#"{"a": 1}"#,
        "3",
        r#"[{"content": "x"}]"#,
        r#"[3]"#,
        r#"{"messages": 3}"#,
    ] {
        let error = Message::list_from_json(serde_json::from_str(bad).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format, "{bad}");
    }
}

//! Grammars of `mlx-infer generate`, `chat` and `batch`.

use serde_json::{Value, json};

use super::fox;
use crate::command::run;

fn generate(args: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let prompt = ["generate", "--prompt", "The red fox", "--json"];
    run(&[&prompt[..], args].concat(), "")
}

#[test]
fn flags_name_what_the_text_must_match() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let schema = file("schema.json", r#"{"enum": ["berry", "egg"]}"#);
    let lark = file("grammar.lark", "start: \"x\" \"y\"~2");
    let texts = |args: &[&str]| {
        let (code, documents, stderr) = generate(args);
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(documents[0]["finish_reason"], "stop");
        documents[0]["text"].as_str().unwrap().to_owned()
    };
    assert!(["\"berry\"", "\"egg\""].contains(&texts(&["--json-schema", &schema]).as_str()));
    assert_eq!(texts(&["--grammar", &lark]), "xyy");
    assert_eq!(texts(&["--regex", "-[3]{4}"]), "-3333");
    let choices = ["--choice", "red", "--choice", "blue"];
    assert!(["red", "blue"].contains(&texts(&choices).as_str()));
    let after = texts(&["--regex", "[0-9]{4}", "--grammar-after", "."]);
    assert_eq!(after.split_once('.').unwrap().1.len(), 4, "{after}");

    let broken = file("broken.json", "{");
    for (args, code, message) in [
        (&["--regex", "("][..], 1, "error: regex: unclosed group"),
        (&["--regex", "a", "--choice", "b"], 2, "cannot be used with"),
        (
            &["--grammar-after", "x"],
            2,
            "required arguments were not provided",
        ),
        (
            &["--json-schema", &broken],
            1,
            "broken.json: not valid json: EOF",
        ),
        (&["--grammar", "/no/such"], 1, "error: cannot read /no/such"),
    ] {
        let (found, documents, stderr) = generate(args);
        assert_eq!(
            (found, documents.len()),
            (Some(code), 0),
            "{args:?}: {stderr}"
        );
        assert!(stderr.contains(message), "{args:?}: {stderr}");
    }
}

#[test]
fn lines_of_a_batch_name_theirs() {
    let lines = [
        json!({"prompt": "The red fox", "regex": "[0-9]{3}"}),
        json!({"prompt": "The red fox", "choice": ["a", "b"], "max_tokens": 9}),
        json!({"prompt": "The red fox", "grammar": "start: \"xyz\""}),
        json!({"prompt": "The red fox", "json_schema": {"type": "boolean"}}),
        json!({"prompt": "The red fox", "json_schema": {"contains": 3}}),
        json!({"prompt": "The red fox", "json_schema": {}, "regex": "a"}),
        json!({"prompt": "The red fox"}),
    ];
    let input = lines.map(|line| line.to_string()).join("\n");
    let (code, documents, stderr) = run(&["batch", "--regex", "the end"], &input);
    assert_eq!(code, Some(0), "{stderr}");
    let text = |at: usize| {
        documents[at]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("{at}"))
    };
    assert!(text(0).len() == 3 && text(0).bytes().all(|b| b.is_ascii_digit()));
    assert!(["a", "b"].contains(&text(1)));
    assert_eq!((text(2), text(6)), ("xyz", "the end"));
    assert!(["true", "false"].contains(&text(3)));
    let error = |at: usize| documents[at]["error"].as_str().unwrap();
    assert!(error(4).starts_with("json_schema: "), "{}", error(4));
    assert!(
        error(5).contains("json_schema and regex: expected at most one"),
        "{}",
        error(5)
    );
    // The schema of a file applies to all answers of a conversation.
    let folder = tempfile::tempdir().unwrap();
    let (messages, schema) = (folder.path().join("m.json"), folder.path().join("s.json"));
    std::fs::write(
        &messages,
        r#"[{"role": "user", "content": "What is 20 + 22?"}]"#,
    )
    .unwrap();
    std::fs::write(&schema, fox().to_string()).unwrap();
    let (messages, schema) = (messages.to_str().unwrap(), schema.to_str().unwrap());
    let args = [
        "chat",
        "--messages",
        messages,
        "--json-schema",
        schema,
        "--json",
        "--max-tokens",
        "6",
    ];
    let (code, documents, stderr) = run(&args, "");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(documents[0]["text"].as_str().unwrap().starts_with('{'));
}

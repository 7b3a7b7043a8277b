//! Grammars that cannot be matched are refused.

use mlx_infer::{
    Constraint, Engine, EngineOptions, ErrorKind, GenerateOptions, Grammar, Limits, LoadOptions,
    LoadedModel, Request,
};
use serde_json::{Value, json};

use super::{alone, model, regex, text, with};
use crate::checkpoint::{dir, load, with_tokenizer};

#[test]
fn a_grammar_and_a_bias_that_exclude_each_other_are_named() {
    let model = model();
    let ids = model.tokenizer().unwrap().encode("z", false).unwrap();
    let mut options = with(regex("z"), 40, 1);
    options.sampling.logit_bias = [(ids[0], f32::NEG_INFINITY)].into();
    let neighbour = with(regex("[a-z]{5}"), 40, 2);
    let asked = vec![
        Request::new("The", options),
        Request::new("The red fox", neighbour.clone()),
    ];
    let mut results = model.batch_generate(asked, &Limits::default()).unwrap();
    let expected = alone(&model, "The red fox", &neighbour).tokens;
    assert_eq!(results.pop().unwrap().tokens, expected);
    let error = results.pop().unwrap().error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Argument);
    let message = "regex: logit_bias forbids every token with which it could go on";
    assert_eq!(error.to_string(), message);
}

/// A chain of definitions, each of which refers to the next.
fn chain(n: usize, link: impl Fn(&str) -> Value) -> Grammar {
    let mut definitions = serde_json::Map::new();
    for at in 0..n {
        let next = format!("#/$defs/{}", at + 1);
        definitions.insert(at.to_string(), link(&next));
    }
    definitions.insert(n.to_string(), json!({"type": "boolean"}));
    Grammar::JsonSchema(json!({"$ref": "#/$defs/0", "$defs": definitions}))
}

/// The compiler is recursive; deeply nested grammars must not overflow its stack.
#[test]
fn long_chains_are_compiled() {
    let model = model();
    let properties = |next: &str| json!({"type": "object", "properties": {"a": {"$ref": next}}});
    for schema in [
        chain(8_000, |next| json!({"allOf": [{"$ref": next}]})),
        chain(4_000, properties),
    ] {
        model.frontend().ignored_keywords(&schema.into()).unwrap();
    }
    let rules: String = (0..900).map(|n| format!("\nr{n}: r{}", n + 1)).collect();
    let lark = Grammar::Lark(format!("start: r0{rules}\nr900: \"a\""));
    model.frontend().ignored_keywords(&lark.into()).unwrap();
}

#[test]
fn bad_grammars_are_refused_before_submission() {
    let model = model();
    let engine = Engine::start(LoadedModel::load_default, EngineOptions::default()).unwrap();
    let schema = |schema: Value| Grammar::JsonSchema(schema);
    let lark = |text: &str| Grammar::Lark(text.to_owned());
    let choice = |texts: &[&str]| Grammar::Choice(texts.iter().map(|t| (*t).to_owned()).collect());
    let deep = |open: &str, n: usize, close: &str| open.repeat(n) + "a" + &close.repeat(n);
    let cases = [
        (regex("(a"), "regex: unclosed group"),
        (regex(""), "regex: it matches the empty text only"),
        (regex("^$"), "regex: it matches the empty text only"),
        (regex("a\\"), "regex: it ends with an unfinished escape"),
        (regex("a(?=b)"), "regex: look-around"),
        (regex(r"\ba"), "regex: lookarounds not supported"),
        (regex(&deep("(", 5000, ")")), "regex: "),
        (
            lark(&format!(
                "start: {}",
                deep("(", 20_000, ")").replace('a', "\"a\"")
            )),
            "grammar: ",
        ),
        (
            lark(&format!(
                "start: A\nA: {}",
                deep("~(", 5000, ")").replace('a', "\"a\"")
            )),
            "grammar: ",
        ),
        (
            lark(&format!(
                "root ::= {}",
                deep("(", 20_000, ")").replace('a', "\"a\"")
            )),
            "grammar: GBNF, line 1: groups are nested deeper than 24 levels",
        ),
        (
            schema((0..300).fold(json!({}), |inner, _| json!({"items": [inner]}))),
            "json_schema: it is nested deeper than 256 levels",
        ),
        (
            lark(&format!(
                "start: %json {}",
                deep("{\"items\":", 500, "}").replace('a', "true")
            )),
            "grammar: ",
        ),
        (schema(json!({"type": "strin"})), "json_schema: "),
        (schema(json!(false)), "json_schema: false allows no value"),
        (
            schema(json!("string")),
            "json_schema: expected an object or a boolean, found a string",
        ),
        (schema(json!({"$ref": "#/$defs/none"})), "json_schema: "),
        (
            schema(json!({"$ref": "https://example.com/x"})),
            "json_schema: ",
        ),
        (
            schema(json!({"type": "array", "uniqueItems": true, "contains": {}})),
            "json_schema: not supported: contains, uniqueItems (without strict they are without effect)",
        ),
        (
            schema(json!({"type": "integer", "minimum": -1e20, "maximum": -1e19})),
            "json_schema: minimum: -1e+20 is outside -9007199254740991 to 9007199254740991",
        ),
        (
            schema(json!({"const": 9_007_199_254_740_993_u64})),
            "json_schema: const: 9007199254740993 is outside",
        ),
        (
            lark("root ::= \"a"),
            "grammar: GBNF, line 1: a string does not end on its line",
        ),
        (
            choice(&[]),
            "choice: the list is empty; expected at least one text",
        ),
        (
            choice(&["a", ""]),
            "choice: text 1 is empty; expected at least one character",
        ),
        (
            schema(json!({"oneOf": [{"type": "string"}, {"const": "a"}]})),
            "json_schema: not supported: oneOf of schemas that may match the same value",
        ),
        (
            schema(json!({"type": "integer", "multipleOf": 100_003})),
            "json_schema: multipleOf: the least common multiple",
        ),
        (
            schema(json!({"allOf": [{"multipleOf": 1009}, {"multipleOf": 1.013}]})),
            "json_schema: multipleOf: the least common multiple",
        ),
        (
            schema(json!({"anyOf": [{"multipleOf": 7}, {"multipleOf": 1e308}, {"multipleOf": 0}]})),
            "json_schema: multipleOf: the least common multiple",
        ),
        (
            schema(json!({"type": "number", "multipleOf": 1e-9})),
            "json_schema: multipleOf: the least common multiple",
        ),
        (
            chain(20_000, |next| json!({"allOf": [{"$ref": next}]})),
            "json_schema: it has 40003 subschemas, and at most 16384 are supported",
        ),
        (
            lark(&("start: a".to_owned() + &"\na: \"b\"".repeat(20_000))),
            "grammar: it has 20001 rules and terminals, and at most 1000 are supported",
        ),
        (lark("start: /[/"), "grammar: "),
        (lark(" "), "grammar: it is empty"),
        (lark("start: other"), "grammar: "),
        (lark("start: \"a"), "grammar: "),
        (
            lark(&format!("start: {}", deep("(", 5000, ")"))),
            "grammar: ",
        ),
    ];
    for (grammar, message) in cases {
        let shown = format!("{grammar:?}");
        let options = with(grammar, 8, 1);
        let checked = engine.frontend().check(&[5], &options);
        let error = checked.expect_err(&shown);
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        let text = error.to_string();
        assert!(text.starts_with(message), "{shown:.80}: {text}");
        let is_plain = !text.contains('\n') && !text.contains("panic") && text.len() < 600;
        assert!(is_plain && text.len() > message.len().min(14), "{text}");
        // The other functions that take a grammar return the same error.
        let error = model.generate("a", &options).map(drop).unwrap_err();
        assert_eq!(error.to_string(), text);
        let result = engine.submit(Request::new("a", options)).unwrap().wait();
        assert_eq!(result.error.unwrap().to_string(), text);
    }
    let mut options = with(regex("a"), 8, 1);
    options.grammar.as_mut().unwrap().after = Some(String::new());
    let error = model.generate("a", &options).map(drop).unwrap_err();
    assert!(
        error.to_string().starts_with("grammar_after is empty"),
        "{error}"
    );
    engine.finish().unwrap();

    let bare = load(dir("qwen3"));
    let error = bare
        .generate(vec![5], &with(regex("a"), 8, 1))
        .map(drop)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "regex needs a tokenizer, and this checkpoint has none"
    );
    let words = LoadedModel::load(
        with_tokenizer("qwen3", "wordpiece").path(),
        LoadOptions::default(),
    );
    let error = words
        .unwrap()
        .generate(vec![5], &with(regex("a"), 8, 1))
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("needs the whole text"),
        "{error}"
    );
}

#[test]
fn keywords_are_ignored_by_request_only() {
    let model = model();
    let schema = json!({
        "type": "array",
        "items": {"type": "string", "format": "no such", "maxLength": 3},
        "maxItems": 2,
        "uniqueItems": true,
        "contains": {"const": "x"}
    });
    let lenient = Constraint {
        strict: false,
        ..Grammar::JsonSchema(schema).into()
    };
    let mut ignored = model.frontend().ignored_keywords(&lenient).unwrap();
    ignored.sort();
    assert_eq!(ignored, ["contains", "format no such", "uniqueItems"]);
    let options = GenerateOptions {
        grammar: Some(lenient.clone()),
        ..with(None, 120, 5)
    };
    let generated = alone(&model, "The red fox", &options);
    let list: Vec<String> = serde_json::from_str(text(&generated)).unwrap();
    assert!(list.len() <= 2);
    let schema = json!({"type": "integer", "multipleOf": 1_000_003, "maximum": 9, "minimum": 1});
    let large = Constraint {
        grammar: Grammar::JsonSchema(schema),
        ..lenient.clone()
    };
    let ignored = model.frontend().ignored_keywords(&large).unwrap();
    assert_eq!(ignored, ["multipleOf"]);
    let strict = Constraint {
        strict: true,
        ..lenient
    };
    assert!(model.frontend().ignored_keywords(&strict).is_err());
}

/// A mask that takes too much work is an error of its request. The requests beside it get their tokens.
#[test]
fn a_grammar_that_becomes_too_complex_ends_its_own_request() {
    let model = model();
    let mut greedy = with(regex(r"((.{2,2428}|\.\d)+){1,1481}"), 100, 1);
    greedy.sampling.temperature = 0.0;
    let neighbour = with(regex("[a-z]{9}"), 40, 2);
    let asked = vec![
        Request::new("The red fox", greedy),
        Request::new("The red fox", neighbour.clone()),
    ];
    let mut results = model.batch_generate(asked, &Limits::default()).unwrap();
    let expected = alone(&model, "The red fox", &neighbour).tokens;
    assert_eq!(results.pop().unwrap().tokens, expected);
    let complex = results.pop().unwrap();
    let error = complex.error.as_ref().unwrap();
    assert_eq!(error.kind(), ErrorKind::Argument);
    let message = "regex: no mask could be computed: lexer error: too many";
    assert!(error.to_string().starts_with(message), "{error}");
    assert!(!complex.tokens.is_empty());
}

//! Schemas allow what JSON Schema allows, objects with named properties are closed, and numbers are
//! exact or refused.

use serde_json::{Value, json};

use super::super::compile::Grammars;
use super::calls::allows_all;
use super::tokenizer;
use crate::request::grammar::{Constraint, Grammar};

/// A text that the schema allows, or does not.
fn check(schema: &Value, allowed: &[&str], refused: &[&str]) {
    let tokenizer = tokenizer("qwen");
    let constraint = Constraint::from(Grammar::JsonSchema(schema.clone()));
    for (texts, is_allowed) in [(allowed, true), (refused, false)] {
        for text in texts {
            let found = allows_all(&tokenizer, &constraint, text);
            assert_eq!(found, is_allowed, "{schema}: {text}");
        }
    }
}

/// The keywords that have no effect, or the error.
fn compiled(schema: Value, strict: bool) -> Result<Vec<String>, String> {
    let tokenizer = tokenizer("qwen");
    let constraint = Constraint {
        strict,
        ..Grammar::JsonSchema(schema).into()
    };
    let compiled = Grammars::default().get(&constraint, &tokenizer, 400, tokenizer.eos_ids());
    compiled
        .map(|compiled| compiled.ignored().to_vec())
        .map_err(|error| error.to_string())
}

#[test]
fn objects_that_name_their_properties_are_closed() {
    let integer = json!({"type": "integer"});
    let with = |key: &str| json!({"properties": {key: integer}, "required": [key]});
    check(
        &json!({"type": "object", "properties": {"a": integer, "b": {"properties": {"c": {}}, "type": "object"}}}),
        &[r#"{"a":1}"#, "{}", r#"{"a":1,"b":{"c":1}}"#],
        &[
            r#"{"a":1,"x":1}"#,
            r#"{"x":1}"#,
            r#"{"a":1,"b":{"c":1,"d":1}}"#,
            r#"{"a":1,"a":1}"#,
        ],
    );
    for open in [json!(true), json!({"type": "integer"})] {
        check(
            &json!({"type": "object", "properties": {"a": integer}, "additionalProperties": open}),
            &[r#"{"a":1,"x":1}"#],
            &[r#"{"a":""}"#],
        );
    }
    // Without names an object stays open.
    check(&json!({"type": "object"}), &[r#"{"x":1}"#], &["1"]);
    check(
        &json!({"type": "object", "properties": {"a": integer}, "patternProperties": {"^x": integer}}),
        &[r#"{"a":1,"x1":1}"#],
        &[r#"{"a":1,"y":1}"#],
    );
    // Schemas that apply together are closed together.
    let both = [r#"{"a":1,"b":2}"#];
    let wrong = [r#"{"a":1}"#, r#"{"a":1,"b":2,"c":3}"#, r#"{"a":1,"b":""}"#];
    check(
        &json!({"type": "object", "allOf": [with("a"), with("b")]}),
        &both,
        &wrong,
    );
    let definitions = json!({"A": with("a"), "B": with("b")});
    check(
        &json!({"type": "object", "allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": definitions}),
        &both,
        &wrong,
    );
    check(
        &json!({"type": "object", "$ref": "#/$defs/A", "properties": {"b": integer}, "required": ["b"], "$defs": definitions}),
        &both,
        &wrong,
    );
    // Elsewhere the same definition is closed over its own properties.
    check(
        &json!({"type": "array", "prefixItems": [{"$ref": "#/$defs/A"}, {"allOf": [{"$ref": "#/$defs/A"}, with("b")]}],
            "items": false, "minItems": 2, "$defs": definitions}),
        &[r#"[{"a":1},{"a":1,"b":1}]"#],
        &[r#"[{"a":1,"b":1},{"a":1,"b":1}]"#, r#"[{"a":1},{"a":1}]"#],
    );
    let kinds = json!({"type": "object", "properties": {"k": integer}, "required": ["k"], "anyOf": [with("a"), with("b")]});
    check(
        &kinds,
        &[r#"{"k":1,"a":1}"#, r#"{"k":1,"b":1}"#],
        &[
            r#"{"k":1}"#,
            r#"{"k":1,"a":1,"b":1}"#,
            r#"{"k":1,"a":1,"x":1}"#,
        ],
    );
    check(
        &json!({"type": "object", "properties": {"a": integer, "b": integer}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        &[r#"{"a":1}"#, r#"{"b":1}"#, r#"{"a":1,"b":1}"#],
        &["{}", r#"{"a":1,"x":1}"#],
    );
    // A required property that is not described may have any value.
    check(
        &json!({"type": "object", "properties": {"a": integer}, "required": ["b"], "anyOf": [{"required": ["a"]}, {"required": ["c"]}]}),
        &[r#"{"a":1,"b":""}"#, r#"{"b":[],"c":{}}"#],
        &[r#"{"a":1}"#, r#"{"b":1}"#, r#"{"a":1,"b":1,"d":1}"#],
    );
    // `true` opens the whole object; `false` closes it to its own properties.
    let mut open = with("b");
    open["additionalProperties"] = true.into();
    check(
        &json!({"type": "object", "allOf": [with("a"), open]}),
        &[r#"{"a":1,"b":1,"c":""}"#],
        &[r#"{"a":1}"#],
    );
    // Recursion, a path with an escape, and the whole schema.
    check(
        &json!({"type": "object", "properties": {"a/b": integer, "next": {"$ref": "#"}, "same": {"$ref": "#/properties/a~1b"}}}),
        &[r#"{"a/b":1,"next":{"next":{"a/b":1}},"same":1}"#],
        &[r#"{"next":{"x":1}}"#, r#"{"same":""}"#],
    );
}

#[test]
fn many_schemas_that_apply_together_are_refused() {
    let property = |at: usize| json!({"properties": {format!("p{at}"): {}}});
    let all: Vec<Value> = (0..3000).map(property).collect();
    let error = compiled(json!({"allOf": all}), true).unwrap_err();
    assert!(
        error.contains("repeat more than 1000000 properties"),
        "{error}"
    );
}

#[test]
fn integers_are_exact_or_refused_by_name() {
    for (schema, name) in [
        (
            json!({"type": "integer", "minimum": -1e20, "maximum": -1e19}),
            "minimum",
        ),
        (
            json!({"type": "integer", "minimum": i64::MIN + 1, "maximum": i64::MIN + 1}),
            "minimum",
        ),
        (json!({"type": "integer", "minimum": i64::MIN}), "minimum"),
        (json!({"type": "integer", "maximum": u64::MAX}), "maximum"),
        (
            json!({"type": "integer", "exclusiveMaximum": 1e300}),
            "exclusiveMaximum",
        ),
        (
            json!({"type": "integer", "multipleOf": 7, "minimum": -1e30, "maximum": -1e20}),
            "minimum",
        ),
        (
            json!({"anyOf": [{"items": {"type": "number", "minimum": 9_007_199_254_740_993_u64}}]}),
            "minimum",
        ),
        (
            json!({"properties": {"a": {"const": 9_007_199_254_740_993_u64}}}),
            "const",
        ),
        (
            json!({"enum": [1, {"a": [-12_345_678_901_234_567_890.0]}]}),
            "enum",
        ),
    ] {
        let error = compiled(schema.clone(), true).unwrap_err();
        let message = format!("json_schema: {name}: ");
        assert!(error.starts_with(&message), "{schema}: {error}");
        assert!(
            error.contains("is outside -9007199254740991 to 9007199254740991"),
            "{error}"
        );
        // A bound may be ignored on request; a value is never changed.
        match name {
            "const" | "enum" => {
                assert_eq!(compiled(schema, false).unwrap_err().find(&message), Some(0))
            }
            _ => assert!(compiled(schema, false).unwrap().contains(&name.to_owned())),
        }
    }
    let tiny = json!({"type": "number", "minimum": 5e-324, "maximum": 1});
    let error = compiled(tiny.clone(), true).unwrap_err();
    let message = "json_schema: minimum: 5e-324 is nearer to zero than 1e-60";
    assert!(error.starts_with(message), "{error}");
    assert_eq!(compiled(tiny, false).unwrap(), ["minimum"]);
    let largest = 9_007_199_254_740_991_i64;
    check(
        &json!({"const": largest}),
        &["9007199254740991"],
        &["9007199254740990", "9007199254740992"],
    );
    check(
        &json!({"type": "integer", "minimum": largest, "maximum": largest}),
        &["9007199254740991"],
        &["9007199254740990"],
    );
    check(
        &json!({"type": "integer", "minimum": -largest, "exclusiveMaximum": 2 - largest}),
        &["-9007199254740991", "-9007199254740990"],
        &["-9007199254740989"],
    );
    // 4.0 is an integer.
    check(
        &json!({"type": "string", "minLength": 2.0, "maxLength": 3.0}),
        &[r#""ab""#],
        &[r#""a""#, r#""abcd""#],
    );
    check(
        &json!({"type": "array", "maxItems": 1.0, "items": {"const": 4.0}}),
        &["[]", "[4]"],
        &["[4,4]"],
    );
    check(
        &json!({"type": "integer", "minimum": 4.0, "maximum": 5.0}),
        &["4", "5"],
        &["3", "6"],
    );
}

#[test]
fn multiples_are_exact() {
    let tenths = |least: f64, most: f64| json!({"type": "number", "multipleOf": 0.1, "minimum": least, "maximum": most});
    check(&tenths(0.3, 0.3), &["0.3"], &["0.2", "0.4", "0.31"]);
    check(
        &tenths(-0.3, 0.75),
        &["-0.3", "-0.1", "0", "0.1", "0.7"],
        &["-0.4", "0.75", "0.8"],
    );
    check(
        &tenths(0.3, 900.0),
        &["0.3", "0.7", "899.9", "900"],
        &["0.2", "0.35", "900.1"],
    );
    check(
        &json!({"type": "number", "multipleOf": 0.07, "minimum": 0, "maximum": 100}),
        &["0.07", "0.7", "7"],
        &["0.08", "0.71"],
    );
    check(
        &json!({"type": "integer", "multipleOf": 1.5, "exclusiveMinimum": 3, "maximum": 9}),
        &["6", "9"],
        &["3", "7", "4.5"],
    );
    let error = compiled(tenths(0.31, 0.39), true).unwrap_err();
    assert!(error.starts_with("json_schema: "), "{error}");
    // Two of them share one automaton, whose size is computed in 32 bits.
    let two = json!({"allOf": [{"multipleOf": 100_000}, {"multipleOf": 50_000}]});
    assert!(compiled(two, true).unwrap_err().contains("multipleOf"));
}

#[test]
fn exclusive_bounds_exclude() {
    for (schema, allowed, refused) in [
        (
            json!({"exclusiveMinimum": 0, "maximum": 0.5}),
            ["0.1", "0.00001", "0.5"],
            ["0", "0.0", "0.6", "-0.1"],
        ),
        (
            json!({"exclusiveMaximum": 0, "minimum": -0.5}),
            ["-0.1", "-0.00001", "-0.5"],
            ["0", "-0", "-0.6", "0.1"],
        ),
        (
            json!({"exclusiveMinimum": 3, "maximum": 3.5}),
            ["3.1", "3.00001", "3.5"],
            ["3", "3.0", "2.9", "3.6"],
        ),
        (
            json!({"minimum": 3, "exclusiveMinimum": true, "maximum": 3.5}),
            ["3.1", "3.00001", "3.5"],
            ["3", "3.0", "2.9", "3.6"],
        ),
        (
            json!({"minimum": -3.5, "exclusiveMaximum": -3}),
            ["-3.1", "-3.5", "-3.25"],
            ["-3", "-3.0", "-2.9", "-3.6"],
        ),
        (
            json!({"exclusiveMinimum": 0, "exclusiveMaximum": 1}),
            ["0.1", "0.99", "0.01"],
            ["0", "1", "1.0", "-0.5"],
        ),
        (
            json!({"exclusiveMinimum": 0}),
            ["0.1", "1", "12.5"],
            ["0", "-1", "-0.5", "0.0"],
        ),
        (
            json!({"exclusiveMinimum": -1.5, "exclusiveMaximum": 2.5}),
            ["-1.4", "0", "2.4"],
            ["-1.5", "2.5", "3", "-2"],
        ),
    ] {
        let mut schema = schema;
        schema["type"] = "number".into();
        check(&schema, &allowed, &refused);
    }
}

#[test]
fn formats_are_held_or_are_annotations() {
    let format = |name: &str| json!({"type": "string", "format": name, "maxLength": 12});
    check(
        &format("json-pointer"),
        &[r#""""#, r#""/a~1b/0""#, r#""/""#],
        &[r#""a""#, r#""/a~""#],
    );
    check(
        &format("relative-json-pointer"),
        &[r#""0#""#, r#""1/a""#, r#""2""#],
        &[r#""01""#, r#""/a""#],
    );
    check(
        &format("uri-reference"),
        &[r#""a:b""#, r#""../x?y#z""#, r#""//h/p""#, r#""""#],
        &[r#""a b""#, r#""%zz""#, r##""#a#b""##],
    );
    for name in [
        "regex",
        "iri",
        "idn-email",
        "byte",
        "path",
        "binary",
        "password",
        "no such",
    ] {
        check(&format(name), &[r#""ab c""#], &[r#""abcdefghijklmn""#]);
        assert_eq!(
            compiled(format(name), true).unwrap(),
            [format!("format {name}")]
        );
    }
    assert!(
        compiled(json!({"type": "integer", "format": "int32"}), true)
            .unwrap()
            .is_empty()
    );
    // A property may have the name of a keyword.
    let named = json!({"type": "object", "properties": {"format": {"type": "string"}, "properties": {"const": 1}}});
    check(
        &named,
        &[r#"{"format":"x","properties":1}"#],
        &[r#"{"x":1}"#],
    );
}

#[test]
fn little_white_space_stands_between_the_parts_of_json() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]});
    let wide = format!("{{\n{}\"a\": []}}", " ".repeat(20));
    let wider = format!("{{\n{}\"a\": []}}", " ".repeat(21));
    check(
        &schema,
        &[
            r#"{"a":[1,2]}"#,
            r#"{ "a" : [ 1 , 2 ] }"#,
            "{\n  \"a\": [\n    1,\n    2\n  ]\n}",
            &wide,
        ],
        &[
            r#"{  "a":[]}"#,
            "{\t\"a\":[]}",
            "{\r\n\"a\":[]}",
            "{\n\n\"a\":[]}",
            "{ \n\"a\":[]}",
            &wider,
        ],
    );
    // The same holds for schemas inside a Lark grammar; strings and comments there are no schemas.
    let tokenizer = tokenizer("qwen");
    let lark = r##"start: "%json {\"a\":" X y // %json {"type": "integer"}
X: /[\/"]%json/
y: %json {"type": "array", "items": {"type": "object", "properties": {"b": {"const": 1}}}}"##;
    let constraint = Constraint::from(Grammar::Lark(lark.to_owned()));
    for (text, is_allowed) in [
        (r#"%json {"a":/%json[{"b":1}]"#, true),
        (r#"%json {"a":"%json[ {}]"#, true),
        (r#"%json {"a":"%json[  {}]"#, false),
        (r#"%json {"a":"%json[{"c":1}]"#, false),
    ] {
        assert_eq!(
            allows_all(&tokenizer, &constraint, text),
            is_allowed,
            "{lark}: {text}"
        );
    }
    let large = "start: %json {\"type\": \"integer\", \"minimum\": -1e20, \"maximum\": -1e19}";
    let constraint = Constraint::from(Grammar::Lark(large.to_owned()));
    let error = Grammars::default()
        .get(&constraint, &tokenizer, 400, &[])
        .err()
        .unwrap();
    assert!(
        error.to_string().starts_with("grammar: minimum: "),
        "{error}"
    );
}

//! Grammars in GBNF allow the texts that llama.cpp allows with them.

use super::super::compile::Grammars;
use super::calls::allows_all;
use super::tokenizer;
use crate::request::grammar::{Constraint, Grammar};

fn check(grammar: &str, allowed: &[&str], refused: &[&str]) {
    let tokenizer = tokenizer("qwen");
    let constraint = Constraint::from(Grammar::Lark(grammar.to_owned()));
    for (texts, is_allowed) in [(allowed, true), (refused, false)] {
        for text in texts {
            let found = allows_all(&tokenizer, &constraint, text);
            assert_eq!(found, is_allowed, "{grammar}\n{text:?}");
        }
    }
}

/// A grammar of JSON in the style of the one that llama.cpp ships.
const JSON: &str = r#"
# Any JSON object
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn recursive_grammars_hold() {
    check(
        JSON,
        &[
            "{}",
            r#"{"a": [1, -2.5e3, {"b": null}], "c\u00e9": "x"}"#,
            "{ }",
            "{\n  \"a\":\n 1}",
        ],
        &["[]", r#"{"a": 01}"#, r#"{"a" 1}"#, r#"{"a": tru}"#, "{}}"],
    );
    let sum = "root ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" root \")\"\n";
    check(sum, &["1+22", "((1)+2)+3"], &["1+", "(1", "1)"]);
}

#[test]
fn grammars_without_recursion_hold_every_text() {
    // A lexer that takes the longest match would refuse some of these.
    check(
        "root ::= a b | \"abc\" \"d\"\na ::= \"a\" | \"ab\"\nb ::= \"b\"? \"c\"",
        &["abc", "abbc", "ac", "abcd"],
        &["ab", "abd"],
    );
    check(
        "root ::= ([a-c] | .){2,3} \"\\x41\\u00e9\\n\" | \"x\"{2} | \"y\"{,2} \"z\"{1,}\nroot-2 ::= \"\" |\n  \"q\"",
        &["abA\u{e9}\n", "\u{65e5}/?A\u{e9}\n", "xx", "z", "yyzz"],
        &["aA\u{e9}\n", "x", "xxx", "yyyz", "abA"],
    );
    check(
        "root ::= [^a\\]\\-] [\\^/-] | \"\\\"\"",
        &["b/", "b-", "b^", "\""],
        &["a/", "]/", "--"],
    );
}

#[test]
fn errors_name_their_line() {
    let tokenizer = tokenizer("qwen");
    for (grammar, expected) in [
        ("root ::= \"a", "line 1: a string does not end on its line"),
        ("root ::= [a", "line 1: a class does not end on its line"),
        ("root ::= x\n", "rule x is not defined"),
        ("a ::= \"x\"", "there is no rule root"),
        (
            "root ::= \"a\"\n\nroot ::= \"b\"",
            "line 3: rule root is defined twice",
        ),
        ("root ::= (\"a\"", "line 1: expected )"),
        ("root ::= \"a\")", "line 1: unexpected ')'"),
        (
            "root ::= * \"a\"",
            "line 1: a repetition without anything in front of it",
        ),
        (
            "root ::= \"a\"{3,2}",
            "line 1: a repetition ends below its start",
        ),
        (
            "root ::= \"a\"{1000000}",
            "line 1: 1000000 repetitions; at most 100000 are supported",
        ),
        ("root ::= \"\\q\"", "line 1: unknown escape \\q"),
        (
            "root ::= !<[1]>",
            "line 1: negated tokens are not supported",
        ),
        ("root ::= [z-a]", "line 1: the range 'z' to 'a' is empty"),
        (
            &format!("root ::= {}", "(".repeat(10_000)),
            "line 1: groups are nested deeper than 24 levels",
        ),
    ] {
        let constraint = Constraint::from(Grammar::Lark(grammar.to_owned()));
        let error = Grammars::default().get(&constraint, &tokenizer, 400, &[]);
        let error = error.err().expect(grammar).to_string();
        let message = error.strip_prefix("grammar: GBNF").expect(&error);
        let message = message.trim_start_matches([',', ':', ' ']);
        assert!(message.starts_with(expected), "{grammar}: {error}");
    }
}

//! The bytes of tokens are those that the detokenizer shows, and masks allow exactly the tokens that fit.

mod calls;
mod gbnf;
mod harmony;
mod schemas;

use std::path::Path;

use super::compile::Grammars;
use super::guide::Guide;
use crate::request::grammar::{Constraint, Grammar};
use crate::text::files::Files;
use crate::text::spelling::{Spelled, Spelling};
use crate::text::tokenizer::Tokenizer;

fn tokenizer(name: &str) -> Tokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/text/tokenizers");
    Tokenizer::load(&Files::directory(folder.join(name)).unwrap()).unwrap()
}

#[test]
fn tokens_spell_what_the_detokenizer_shows() {
    for name in [
        "qwen", "llama3", "llama2", "gemma", "mistral", "unigram", "gpt2", "flags",
    ] {
        let tokenizer = tokenizer(name);
        let spelling = Spelling::new(&tokenizer).unwrap();
        let ids = 0..tokenizer.vocab_size() as u32;
        let is_text = |id: &u32| matches!(spelling.of(*id), Spelled::Text(bytes) if bytes == b"a");
        let first = ids.clone().find(is_text).unwrap();
        let mut checked = 0;
        for id in ids {
            let (bytes, is_special) = match spelling.of(id) {
                Spelled::Text(bytes) => (bytes, false),
                _ => (Vec::new(), true),
            };
            // A part of a character shows as U+FFFD.
            let Ok(text) = String::from_utf8(bytes.clone()) else {
                continue;
            };
            checked += 1;
            let behind = tokenizer.decode(&[first, id], true).unwrap();
            assert_eq!(behind, format!("a{text}"), "{name}: {id}");
            let alone = tokenizer.decode(&[id], true).unwrap();
            let is_shortened = !is_special && spelling.is_shortened(&bytes);
            assert_eq!(alone != text, is_shortened, "{name}: {id}: {alone:?}");
        }
        assert!(checked > 150, "{name}: {checked} tokens");
    }
}

fn guide(tokenizer: &Tokenizer, vocab: usize, constraint: &Constraint) -> Guide {
    let grammars = Grammars::default();
    let compiled = grammars.get(constraint, tokenizer, vocab, tokenizer.eos_ids());
    let front = constraint
        .front
        .clone()
        .map(|front| Constraint::from(Grammar::Lark(front)));
    let front = front.map(|front| {
        grammars
            .get(&front, tokenizer, vocab, tokenizer.eos_ids())
            .unwrap()
    });
    let ends = tokenizer.eos_ids();
    Guide::new(compiled.unwrap(), constraint, front.as_deref(), ends, false)
}

fn allowed(guide: &mut Guide) -> Vec<u32> {
    guide.prepare();
    let mask = guide.mask().expect("no fault").clone();
    (0..mask.len() as u32 * 32)
        .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
        .collect()
}

/// The mask has each token that spells a beginning of the allowed text, no other token, and no id
/// without a token.
#[test]
fn masks_hold_every_token_that_fits() {
    let tokenizer = tokenizer("qwen");
    let size = tokenizer.vocab_size();
    let spelling = Spelling::new(&tokenizer).unwrap();
    let sought = "the theme of these things";
    let constraint = Constraint::from(Grammar::Choice(vec![sought.to_owned()]));
    let mut guide = guide(&tokenizer, size + 77, &constraint);
    let mut rest = sought.as_bytes();
    while !rest.is_empty() {
        let fits = |id: &u32| match spelling.of(*id) {
            Spelled::Text(bytes) => !bytes.is_empty() && rest.starts_with(&bytes),
            _ => false,
        };
        let expected: Vec<u32> = (0..size as u32).filter(fits).collect();
        assert_eq!(allowed(&mut guide), expected);
        let Some(&last) = expected.last() else { break };
        guide.check().unwrap();
        let is_complete = guide.accept(last).unwrap();
        if let Spelled::Text(bytes) = spelling.of(last) {
            rest = &rest[bytes.len()..];
        }
        assert_eq!(is_complete, rest.is_empty());
    }
    assert!(rest.is_empty());
}

#[test]
fn a_mark_may_be_split_and_ends_with_a_token() {
    let tokenizer = tokenizer("qwen");
    let size = tokenizer.vocab_size();
    let id = |text: &str| tokenizer.encode(text, false).unwrap()[0];
    let after = |mark: &str, regex: &str| Constraint {
        after: Some(mark.to_owned()),
        ..Grammar::Regex(regex.to_owned()).into()
    };
    let feed = |guide: &mut Guide, text: &str| -> crate::error::Result<bool> {
        guide.prepare();
        guide.check()?;
        guide.accept(id(text))
    };
    // The tokens must be adjacent: the same letters further apart do not match.
    let mut split = guide(&tokenizer, size, &after("nt", "[0-9]"));
    for text in ["t", "n", "n", "t"] {
        assert!(split.mask().is_none());
        assert!(!feed(&mut split, text).unwrap());
    }
    assert!(allowed(&mut split).contains(&id("7")) && !allowed(&mut split).contains(&id("n")));
    // Tokens that begin with the mark, or with its end, and continue: `he` after the `t` of `th`.
    let is_allowed = |guide: &mut Guide, token: &str| {
        guide.prepare();
        let id = tokenizer.token_to_id(token).unwrap();
        (guide.mask()).is_none_or(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 1)
    };
    let mut whole = guide(&tokenizer, size, &after("l", "[0-9]"));
    for (token, may_come) in [("l", true), ("ll", false), ("llo", false), ("il", true)] {
        let known = tokenizer.token_to_id(token).is_some();
        assert!(
            !known || is_allowed(&mut whole, token) == may_come,
            "{token}"
        );
    }
    let mut part = guide(&tokenizer, size, &after("th", "[0-9]"));
    assert!(is_allowed(&mut part, "he"));
    assert!(!feed(&mut part, "t").unwrap());
    assert!(!is_allowed(&mut part, "he") && is_allowed(&mut part, "h"));
    assert!(!feed(&mut part, "h").unwrap());
    assert!(is_allowed(&mut part, "7") && !is_allowed(&mut part, "h"));
}

/// A reply that opens its reasoning is free up to the closing mark; any other reply is constrained
/// from its first token.
#[test]
fn reasoning_may_be_opened() {
    let tokenizer = tokenizer("qwen");
    let size = tokenizer.vocab_size();
    let constraint = |opener: &str, regex: &str| Constraint {
        after: Some("</t>".to_owned()),
        opener: Some(opener.to_owned()),
        ..Grammar::Regex(regex.to_owned()).into()
    };
    // Whether the masks allow all of the text, and whether its end can follow.
    let allows = |constraint: &Constraint, text: &str| {
        let mut guide = guide(&tokenizer, size, constraint);
        for id in tokenizer.encode(text, false).unwrap() {
            guide.prepare();
            let mask = guide.mask().cloned();
            if mask.is_some_and(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 0) {
                return None;
            }
            guide.check().unwrap();
            if guide.accept(id).unwrap() {
                return Some(true);
            }
        }
        guide.prepare();
        let end = tokenizer.eos_ids()[0];
        Some(
            guide
                .mask()
                .is_some_and(|mask| mask[end as usize / 32] >> (end % 32) & 1 == 1),
        )
    };
    let digits = constraint("<t>", "[0-9]{3}");
    for (text, expected) in [
        ("123", Some(true)),
        ("12", Some(false)),
        ("abc", None),
        ("<t>123", Some(false)),
        ("<t>so: abc</t>123", Some(true)),
        ("<t></t>12", Some(false)),
        ("<t>so</t>abc", None),
        ("<t123", None),
        ("<x", None),
        ("1<t>", None),
    ] {
        assert_eq!(allows(&digits, text), expected, "{text}");
    }
    // The constrained text may begin like the mark.
    let alike = constraint("<t>", "<(a|t)[a-z]*");
    for (text, expected) in [
        ("<abc", Some(true)),
        ("<tab", Some(true)),
        ("<t>123</t><a", Some(true)),
        ("<t>123</t>1", None),
        ("<t1", None),
    ] {
        assert_eq!(allows(&alike, text), expected, "{text}");
    }
}

/// An end token in the reasoning would lose the text that has to follow it.
#[test]
fn reasoning_does_not_end_the_request() {
    let tokenizer = tokenizer("qwen");
    let size = tokenizer.vocab_size();
    let end = tokenizer.eos_ids()[0];
    let front = "start: \"so \" /[a-z]{2}/ \".\"".to_owned();
    for (after, opener, front, text) in [
        (Some("</t>"), None, None, "so</t>"),
        (Some("</t>"), Some("<t>"), None, "<t>so</t>"),
        (None, None, Some(front), "so be."),
    ] {
        let constraint = Constraint {
            after: after.map(str::to_owned),
            opener: opener.map(str::to_owned),
            front,
            ..Grammar::Regex("[0-9]{2,3}".to_owned()).into()
        };
        let mut guide = guide(&tokenizer, size, &constraint);
        let text = format!("{text}123");
        let mut written = String::new();
        for id in tokenizer.encode(&text, false).unwrap() {
            let allowed = allowed(&mut guide);
            assert!(allowed.contains(&id), "{text}");
            let may_end = written.ends_with("12") || written.ends_with("123");
            assert_eq!(allowed.contains(&end), may_end, "{text}: {written}");
            guide.check().unwrap();
            guide.accept(id).unwrap();
            written += &tokenizer.decode(&[id], true).unwrap();
        }
    }
}

/// The deepest nesting that is allowed: the masks need a small part of any thread's stack.
#[test]
fn masks_need_little_stack() {
    let tokenizer = tokenizer("qwen");
    let size = tokenizer.vocab_size();
    let nested = "(?:a".repeat(80) + &"b?)*".repeat(80);
    let rules: String = (0..900)
        .map(|n| format!("\nr{n}: \"(\" r{}? \")\"", n + 1))
        .collect();
    let mut definitions = serde_json::Map::new();
    for at in 0..2000 {
        let next = serde_json::json!({"$ref": format!("#/$defs/{}", at + 1)});
        let link = serde_json::json!({"type": "object", "properties": {"a": next}});
        definitions.insert(at.to_string(), link);
    }
    definitions.insert("2000".to_owned(), true.into());
    let chain = serde_json::json!({"$ref": "#/$defs/0", "$defs": definitions});
    let any = serde_json::json!({"type": "array"});
    for (grammar, part, count) in [
        (Grammar::Regex(nested), "a", 300),
        (
            Grammar::Lark(format!("start: r0{rules}\nr900: \"a\"")),
            "(",
            800,
        ),
        (Grammar::JsonSchema(chain), "{\"a\":", 500),
        (Grammar::JsonSchema(any), "[", 2000),
    ] {
        let constraint = Constraint::from(grammar);
        let mut guide = guide(&tokenizer, size, &constraint);
        let ids = tokenizer.encode(part, false).unwrap();
        let thread = std::thread::Builder::new().stack_size(192 << 10);
        let advance = move || {
            for at in 0..count {
                for &id in &ids {
                    guide.foresee(&[]);
                    if let Err(error) = guide.check() {
                        // A grammar that is too complex is refused with an error; the stack does
                        // not overflow.
                        return (at, Some(error.to_string()));
                    }
                    guide.accept(id).unwrap();
                }
            }
            (count, None)
        };
        let (came, error) = thread.spawn(advance).unwrap().join().unwrap();
        assert!(came > 100, "{part}: {came} {error:?}");
    }
}

#[test]
fn grammars_are_compiled_once() {
    let tokenizer = tokenizer("qwen");
    let grammars = Grammars::default();
    let get = |regex: &str| {
        let constraint = Constraint::from(Grammar::Regex(regex.to_owned()));
        grammars.get(&constraint, &tokenizer, 350, &[])
    };
    let first = get("a").unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &get("a").unwrap()));
    let fault = get("(").err().unwrap().to_string();
    assert_eq!(get("(").err().unwrap().to_string(), fault);
    (0..40).for_each(|n| drop(get(&format!("b{n}"))));
    assert!(!std::sync::Arc::ptr_eq(&first, &get("a").unwrap()));
}

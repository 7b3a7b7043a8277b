//! Malformed and hostile tokenizers and templates: an error each time, no panic, no abort, no hang.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use mlx_infer::{ChatTemplate, ErrorKind, Files, Message, RenderOptions, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn data(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/text/tokenizers")
        .join(case)
}

fn load_with(files: &[(&str, &[u8])]) -> mlx_infer::Result<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    Tokenizer::load(&Files::directory(dir.path()).unwrap())
}

fn tokenizer_json(case: &str) -> Vec<u8> {
    std::fs::read(data(case).join("tokenizer.json")).unwrap()
}

fn render(source: &str) -> mlx_infer::Result<String> {
    let tokenizer = Tokenizer::load(&Files::directory(data("qwen")).unwrap()).unwrap();
    ChatTemplate::from_source(source, &tokenizer)?
        .render(&[Message::new("user", "hello")], &RenderOptions::default())
}

#[test]
fn templates_without_end_or_bound_are_stopped() {
    let bad = [
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% for a in range(1000000000) %}x{% endfor %}",
        "{{ range(100000000000)|list }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% set x = f(n + 1) %}{{ x }}{% endmacro %}{{ f(0) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x|tojson }}",
        "{% for t in [1] recursive %}{{ loop([t]) }}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ ([0] * 50000000)|list }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:>1000000000}'.format('x') }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x'|indent(1000000000, true) }}",
        "{{ [1]|tojson(indent=1000000000) }}",
        "{{ strftime_now('%1000000000Y') }}",
        "{{ strftime_now('%Q%!') }}",
        "{% macro f(x, n) %}{% if n < 40 %}{{ f(x ~ x, n + 1) }}{% endif %}{% endmacro %}{{ f('aaaaaaaa', 0) }}",
        "{{ range(100000)|join('x' * 16000000)|length }}",
        "{% set p = 'x' * 16000000 %}{{ p.join(p)|length }}",
        "{{ ('%99999s' * 100000)|format(*(['x'] * 100000))|length }}",
        "{{ [1]|slice(10000000000)|list|length }}",
        "{{ [1]|batch(100000000000, 'x')|list|length }}",
        "{{ ('\n' * 1000000)|indent('x' * 16000000, true, true)|length }}",
        "{{ ('\t' * 16000000).expandtabs(100000)|length }}",
        "{% set p = 'x' * 16000000 %}{{ (range(10000)|list)|tojson(separators=(p, p))|length }}",
        "{% set l = [(1,) * 90000000, (1,) * 90000000] %}{{ l|length }}",
        "{% set s = 'x' * 16000000 %}{% for i in range(100000) %}{% if s|upper|lower == 'a' %}{% endif %}{% endfor %}",
        "{% set l = range(100000)|list %}{% for i in l %}{% if -1 in l %}{% endif %}{% endfor %}",
        "{% set l = range(100000)|list %}{{ dict((l + l + l + l)|batch(2))|length }}",
        "{{ 'a'|replace('', 'x' * 16000000)|length }}",
        "{{ ('x' * 16000000)|replace('x', 'xxxxxxxxxx')|length }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + ['x' * 1000000] %}{% endfor %}",
        "{% set ns = namespace(d={}) %}{% for i in range(100000) %}{% set ns.d = dict(ns.d, **{i|string: i}) %}{% endfor %}",
        "{{ '{0:>99999}'.format('x') * 1000 }}",
        "{{ loop.cycle() }}",
        "{% include 'chat_template' %}",
        "{% extends 'default' %}",
        "{% import 'x' as x %}",
    ];
    for source in bad {
        let start = Instant::now();
        let error = render(source).expect_err(source);
        assert_eq!(error.kind(), ErrorKind::Template, "{source}: {error}");
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{source}: {:?}",
            start.elapsed()
        );
    }
}

/// Lists that contain the same list twice, nested many times: short to write, and endless to print or compare.
#[test]
fn lists_of_shared_lists_are_stopped() {
    let shared = "{% set a = [1, 1] %}".to_owned() + &"{% set a = [a, a] %}".repeat(40);
    let other = shared.replace("set a", "set b").replace("[a, a]", "[b, b]");
    for end in ["{{ a }}", "{{ a|tojson }}", "{{ a|string|length }}"] {
        let error = render(&(shared.clone() + end)).unwrap_err();
        assert!(
            error.to_string().contains("steps") || error.to_string().contains("bytes"),
            "{error}"
        );
    }
    let error = render(&(shared + &other + "{{ a == b }}")).unwrap_err();
    assert!(error.to_string().contains("steps"), "{error}");
}

#[test]
fn what_a_template_says_has_no_control_characters() {
    let error = render("{{ raise_exception('\\x1b[31mred\\x07 \\x9b') }}").unwrap_err();
    assert!(
        !error.to_string().chars().any(char::is_control),
        "{error:?}"
    );
    assert!(error.to_string().contains("red"), "{error}");
}

/// Numbers at the limits of their types: a result or an error.
#[test]
fn numbers_at_the_edge_do_not_panic() {
    let edge = "{% set big = 2**126 %}{% set low = -big * 2 %}";
    for end in [
        "{{ range(0, 10, 2)[::big]|list }}",
        "{{ range(low, 5)|length }}",
        "{{ low in range(5, 0, -1) }}",
        "{{ '%*d' % (low, 1) }}",
        "{{ big|round(low) }}{{ low|round(-2) }}{{ low|abs }}",
        "{{ -low }}",
        "{{ low // -1 }}",
        "{{ [1][low] }}{{ 'a'[low:big] }}{{ [1, 2][low:big:low] }}",
        "{{ 1.5|round(big) }}{{ 1.5|round(low) }}",
        "{{ 'a' * low }}",
    ] {
        if let Err(error) = render(&(edge.to_owned() + end)) {
            assert!(
                !error.to_string().contains("engine failed"),
                "{end}: {error}"
            );
        }
    }
}

/// Behaviour of jinja2 that real templates need: reversed slices, also of empty lists.
#[test]
fn slices_backwards_work() {
    assert_eq!(
        render("{{ [][::-1] }}{% for m in messages[1:][::-1] %}x{% endfor %}").unwrap(),
        "[]"
    );
    assert_eq!(
        render("{% if none is iterable %}a{% else %}b{% endif %}").unwrap(),
        "b"
    );
}

#[test]
fn long_and_deep_sources_are_refused() {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        open.repeat(depth) + inner + &close.repeat(depth)
    };
    let bad = [
        "{{ ".to_owned() + &nested("(", "1", ")", 100_000) + " }}",
        "{{ ".to_owned() + &nested("[", "", "]", 100_000) + " }}",
        nested("{% if true %}", "x", "{% endif %}", 20_000),
        nested("{% for x in [1] %}", "x", "{% endfor %}", 20_000),
        "x".repeat(2 << 20),
    ];
    for source in bad {
        let error = render(&source).expect_err(&source[..20]);
        assert_eq!(
            error.kind(),
            ErrorKind::Template,
            "{}: {error}",
            &source[..20]
        );
    }
}

#[test]
fn honest_work_is_not_stopped() {
    let tokenizer = Tokenizer::load(&Files::directory(data("qwen")).unwrap()).unwrap();
    let source = std::fs::read_to_string(data("../templates/qwen3.jinja")).unwrap();
    let template = ChatTemplate::from_source(&source, &tokenizer).unwrap();
    let messages: Vec<Message> = (0..3000)
        .map(|turn| {
            Message::new(
                if turn % 2 == 0 { "user" } else { "assistant" },
                "word ".repeat(50),
            )
        })
        .collect();
    let text = template
        .render(&messages, &RenderOptions::default())
        .unwrap();
    assert!(text.len() > 3000 * 250);
    let long = [Message::new("user", "x".repeat(8 << 20))];
    assert!(
        template
            .render(&long, &RenderOptions::default())
            .unwrap()
            .len()
            > 8 << 20
    );
}

#[test]
fn syntax_errors_name_the_place() {
    let error = render("a\nb\n{{ 1 + }}").unwrap_err();
    assert!(error.to_string().contains("line 3"), "{error}");
    for source in [
        "{% if %}",
        "{{",
        "{%",
        "{{ 'a }}",
        "{% endfor %}",
        "{% nothing %}",
        "{{ a b }}",
        "{% set %}",
        "{% set a = %}",
        "{% set a = ) %}",
    ] {
        assert_eq!(
            render(source).unwrap_err().kind(),
            ErrorKind::Template,
            "{source}"
        );
    }
}

#[test]
fn files_of_the_wrong_shape_are_refused_by_name() {
    let good = tokenizer_json("qwen");
    let refused = |name: &str, text: &str| {
        let error = load_with(&[("tokenizer.json", &good), (name, text.as_bytes())]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format, "{name}: {error}");
        assert!(
            error
                .to_string()
                .contains(name.strip_suffix(".json").unwrap()),
            "{name}: {error}"
        );
    };
    for name in [
        "tokenizer_config.json",
        "special_tokens_map.json",
        "config.json",
        "generation_config.json",
    ] {
        refused(name, "");
        refused(name, "[1, 2]");
        refused(name, "{\"a\": ");
        refused(name, &("[".repeat(100_000)));
    }
    for text in [
        r#"{"bos_token": 3}"#,
        r#"{"eos_token": {"lstrip": true}}"#,
        r#"{"added_tokens_decoder": [1]}"#,
        r#"{"added_tokens_decoder": {"x": {"content": "a"}}}"#,
        r#"{"added_tokens_decoder": {"1": "a"}}"#,
        r#"{"extra_special_tokens": "x"}"#,
    ] {
        refused("tokenizer_config.json", text);
    }
    for text in [
        r#"{"eos_token_id": "2"}"#,
        r#"{"eos_token_id": [1.5]}"#,
        r#"{"eos_token_id": 99999999999}"#,
    ] {
        refused("generation_config.json", text);
    }
    let chat = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), &good).unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), text).unwrap();
        let files = Files::directory(dir.path()).unwrap();
        ChatTemplate::load(&files, &Tokenizer::load(&files).unwrap())
            .unwrap_err()
            .kind()
    };
    assert_eq!(chat(r#"{"chat_template": 3}"#), ErrorKind::Format);
    assert_eq!(
        chat(r#"{"chat_template": [{"name": "default"}]}"#),
        ErrorKind::Format
    );
    assert_eq!(chat(r#"{"chat_template": "{% if"}"#), ErrorKind::Template);
}

#[test]
fn tokenizers_that_are_not_there_are_named() {
    let error = load_with(&[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(
        error.to_string().ends_with("has no tokenizer.json"),
        "{error}"
    );
    for name in ["vocab.json", "qwen.tiktoken"] {
        let error = load_with(&[(name, b"x")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains(name) && error.to_string().contains("python3 -c"),
            "{error}"
        );
    }
    let unigram = load_with(&[
        ("tokenizer.json", &tokenizer_json("unigram")),
        (
            "tokenizer_config.json",
            br#"{"tokenizer_class": "LlamaTokenizer"}"#,
        ),
    ]);
    assert_eq!(unigram.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn truncated_tokenizers_are_refused() {
    for case in ["qwen", "gemma", "unigram", "wordpiece"] {
        let bytes = tokenizer_json(case);
        for part in 0..40 {
            let cut = bytes.len() * part / 40;
            let error = load_with(&[("tokenizer.json", &bytes[..cut])]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Format, "{case} at {cut}: {error}");
        }
    }
}

/// Pipelines on which the tokenizers crate panics. The test shows the panic, and that it becomes an error here.
#[test]
fn panics_of_the_tokenizer_become_errors() {
    let mut json: Value = serde_json::from_slice(&tokenizer_json("wordpiece")).unwrap();
    json["decoder"] = json!({"type": "Strip", "content": "!", "start": 0, "stop": 2});
    let bytes = json.to_string();
    let inner = tokenizers::Tokenizer::from_bytes(bytes.as_bytes()).unwrap();
    let id = inner.token_to_id("!").unwrap();
    let panics = std::panic::catch_unwind(|| inner.decode(&[id], false)).is_err();
    assert!(
        panics,
        "the tokenizers crate has been mended; find another case"
    );
    let tokenizer = load_with(&[("tokenizer.json", bytes.as_bytes())]).unwrap();
    let error = tokenizer.decode(&[id], false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tokenizer);
    assert!(
        error
            .to_string()
            .starts_with("decode: the tokenizer is malformed"),
        "{error}"
    );
    let mut stream = tokenizer.detokenizer(false);
    assert!(stream.push(id).is_ok() && stream.finish().is_err());
}

#[test]
fn ids_and_texts_of_any_kind() {
    for case in ["qwen", "gemma", "llama2", "wordpiece", "unigram"] {
        let tokenizer = Tokenizer::load(&Files::directory(data(case)).unwrap()).unwrap();
        assert_eq!(tokenizer.decode(&[], true).unwrap(), "");
        assert_eq!(tokenizer.decode(&[u32::MAX, 1 << 31], true).unwrap(), "");
        assert_eq!(tokenizer.id_to_token(u32::MAX), None);
        let long = "word ".repeat(40_000) + &"x".repeat(20_000) + &" ".repeat(20_000);
        assert!(!tokenizer.encode(&long, true).unwrap().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// A few bytes of tokenizer.json are changed: a file that still loads works or fails with an error.
    #[test]
    fn damaged_tokenizers_do_not_panic(
        case in prop::sample::select(vec!["qwen", "gemma", "llama2", "wordpiece", "unigram"]),
        // Most of the file is the vocabulary: half of the changes are at its beginning, in the pipeline.
        damage in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = tokenizer_json(case);
        for (early, at, byte) in damage {
            let span = if early { bytes.len().min(2500) } else { bytes.len() };
            bytes[at.index(span)] = byte;
        }
        if let Ok(tokenizer) = load_with(&[("tokenizer.json", &bytes)]) {
            let _ = tokenizer.encode("Hello <s> wörld 👍\n\n 12", true);
            let ids: Vec<u32> = (0..40).collect();
            let _ = tokenizer.decode(&ids, true);
        }
    }

    #[test]
    fn templates_of_noise_do_not_panic(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "{{", "}}", "{%", "%}", "-%}", "{%-", "{#", "#}", " set ", " a ", "=", "|", "tojson", "if ", "for ",
                " in ", "messages", ".", "[", "]", "(", ")", "'", "\"", "endif", "endfor", "macro ", "~", "+", "1", ":",
                "é", "\\", "generation", "raw", "endraw", "\n", ",", "*", "loop", "is ", "defined", "strip()", "-1",
            ]),
            0..25,
        ),
    ) {
        let _ = render(&parts.concat());
    }
}

//! Typed questions about a state.

use mlx_infer::{ClassifyOptions, LoadedModel, Message, Prompt};
use serde_json::{Value, json};

use crate::client::SERVER;

fn state() -> Value {
    json!({"ticket": "I was charged twice.", "plan": "pro"})
}

/// The library's probabilities of labels after the same conversation.
fn probabilities(question: &str, labels: &[&str]) -> Vec<f64> {
    let model = LoadedModel::load_default().unwrap();
    let text = format!("{}\n\n{question}", state());
    let ids = model
        .chat_ids(&[Message::new("user", text)], &Default::default())
        .unwrap();
    let options = ClassifyOptions {
        labels: labels.iter().map(|&label| label.to_owned()).collect(),
        ..Default::default()
    };
    let mut results = model.classify(vec![Prompt::Tokens(ids)], &options).unwrap();
    results.remove(0).unwrap().labels.unwrap().probabilities
}

#[test]
fn each_type_of_question_is_answered() {
    let body = json!({"model": "tiny", "state": state(), "questions": {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {
            "billing": "Payments and refunds", "support": null}},
        "refund": {"type": "noul", "instructions": "Is a refund wanted?"},
        "urgency": {"type": "score", "instructions": {"ask": "How urgent?"}, "criteria": ["low", "some", "high"]},
    }});
    let answer = SERVER.ok("/v1/systemone", &body);
    let answers = &answer["answers"];
    assert_eq!(
        answers.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["team", "refund", "urgency"]
    );
    let near = |found: &Value, expected: f64| {
        let found = found.as_f64().unwrap();
        assert!(
            (found - expected).abs() < 1e-4,
            "{found} {expected}: {answer}"
        );
    };

    let expected = probabilities(
        "Which team?\nA: billing: Payments and refunds\nB: support\nAnswer with the letter of one option, and nothing else.",
        &["A", "B"],
    );
    let team = &answers["team"];
    near(&team["probabilities"]["billing"], expected[0]);
    near(&team["probabilities"]["support"], expected[1]);
    let best = if expected[0] >= expected[1] {
        "billing"
    } else {
        "support"
    };
    assert_eq!(
        (&team["type"], &team["choice"]),
        (&json!("choice"), &json!(best))
    );
    near(&team["confidence"], expected[0].max(expected[1]));

    let expected = probabilities(
        "Is a refund wanted?\nyes: true\nno: false\nAnswer with yes or no, and nothing else.",
        &["yes", "no"],
    );
    near(&answers["refund"]["noul"], expected[0]);

    let expected = probabilities(
        "{\"ask\":\"How urgent?\"}\n0: low\n1: some\n2: high\nAnswer with the number of one level, and nothing else.",
        &["0", "1", "2"],
    );
    let urgency = &answers["urgency"];
    near(&urgency["score"], expected[1] + 2.0 * expected[2]);
    for (level, expected) in expected.iter().enumerate() {
        near(&urgency["probabilities"][level.to_string()], *expected);
    }
    assert_eq!(
        urgency["legend"],
        json!({"0": "low", "1": "some", "2": "high"})
    );
    for name in ["team", "refund", "urgency"] {
        let mass = answers[name]["label_mass"].as_f64().unwrap();
        assert!(mass > 0.0 && mass <= 1.0 + 1e-6, "{answer}");
    }
    assert_eq!(answer["usage"]["output_tokens"], 0);
    assert!(answer["usage"]["input_tokens"].as_u64().unwrap() > 50);
}

/// More options than letters: all labels have two letters, and several tokens if the vocabulary has
/// no token for both.
#[test]
fn many_options_are_no_fault() {
    let options: serde_json::Map<String, Value> =
        (0..40).map(|n| (format!("o{n}"), Value::Null)).collect();
    let body = json!({"state": "x", "questions": {
        "a": {"type": "choice", "instructions": "Which?", "criteria": options},
        "b": {"type": "noul", "instructions": "Is it?", "criteria": {"true": "it is", "false": null}},
    }});
    let answer = SERVER.ok("/v1/systemone", &body);
    let found = answer["answers"]["a"]["probabilities"].as_object().unwrap();
    let total: f64 = found.values().map(|p| p.as_f64().unwrap()).sum();
    assert!(found.len() == 40 && (total - 1.0).abs() < 1e-9, "{answer}");
}

#[test]
fn questions_that_are_none_are_refused_by_name() {
    let ask = |question: Value| json!({"state": "x", "questions": {"q": question}});
    let choice =
        |criteria: Value| ask(json!({"type": "choice", "instructions": "x", "criteria": criteria}));
    let score =
        |criteria: Value| ask(json!({"type": "score", "instructions": "x", "criteria": criteria}));
    for (body, param, message) in [
        (json!({"questions": {}}), "state", "state is missing"),
        (json!({"state": "x"}), "questions", "questions is missing"),
        (
            json!({"state": "x", "questions": {}}),
            "questions",
            "questions has 0 entries",
        ),
        (
            ask(json!({"type": "box", "instructions": "x"})),
            "questions.q",
            "given \"box\"",
        ),
        (
            ask(json!({"type": "noul"})),
            "questions.q",
            "instructions is missing",
        ),
        (
            choice(json!({"one": null})),
            "questions.q",
            "criteria has 1 options",
        ),
        (
            choice(json!(["a", "b"])),
            "questions.q",
            "criteria must be an object",
        ),
        (score(json!(["a"])), "questions.q", "criteria has 1 levels"),
        (
            score(json!(vec!["x"; 11])),
            "questions.q",
            "criteria has 11 levels, expected 2 to 10",
        ),
    ] {
        let answer = SERVER.post("/v1/systemone", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], param, "{body}");
        assert!(
            error["message"].as_str().unwrap().contains(message),
            "{error}"
        );
    }
}

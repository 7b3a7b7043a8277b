//! Token ids in and out, and the log probabilities of prompts, as trainers need them.

use mlx_infer::{LoadedModel, ScoreOptions};
use serde_json::{Value, json};

use crate::client::SERVER;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn messages() -> Value {
    json!([{"role": "user", "content": "What is 20 + 22?"}])
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn text(model: &LoadedModel, ids: &[u32]) -> String {
    model.tokenizer().unwrap().decode(ids, true).unwrap()
}

#[test]
fn ids_of_conversations_are_given_whole_and_streamed() {
    let model = LoadedModel::load_default().unwrap();
    let prompt = SERVER.ok("/tokenize", &json!({"messages": messages()}))["tokens"].clone();
    let mut body =
        json!({"messages": messages(), "temperature": 0, "n": 2, "return_token_ids": true});
    let whole = SERVER.ok(CHAT, &body);
    assert_eq!(whole["prompt_token_ids"], prompt);
    body["stream"] = true.into();
    let chunks = SERVER.post(CHAT, &body).chunks();
    let prompts = chunks
        .iter()
        .filter_map(|chunk| chunk.get("prompt_token_ids"));
    assert!(prompts.clone().count() > 0 && prompts.clone().all(|found| *found == prompt));
    for index in 0..2 {
        let choice = &whole["choices"][index];
        let found = ids(&choice["token_ids"]);
        // The token that ends an answer is among them.
        let (last, others) = found.split_last().unwrap();
        assert!(model.eos_ids().contains(last), "{found:?}");
        assert_eq!(
            text(&model, others),
            choice["message"]["content"].as_str().unwrap()
        );
        let of_row = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == index);
        let joined: Vec<u32> = of_row
            .filter_map(|chunk| chunk.pointer("/choices/0/token_ids"))
            .flat_map(ids)
            .collect();
        assert_eq!(joined, found);
    }
    let plain = SERVER.ok(
        CHAT,
        &json!({"messages": messages(), "return_token_ids": false}),
    );
    assert!(
        plain.get("prompt_token_ids").is_none() && plain["choices"][0].get("token_ids").is_none()
    );
}

/// A prompt of ids is answered like the conversation that makes it.
#[test]
fn ids_are_a_conversations_prompt() {
    let prompt = SERVER.ok("/tokenize", &json!({"messages": messages()}))["tokens"].clone();
    let options = json!({"temperature": 1, "seed": 3, "return_token_ids": true, "max_tokens": 20});
    let ask = |key: &str, value: &Value| {
        let mut body = options.clone();
        body[key] = value.clone();
        SERVER.ok(CHAT, &body)
    };
    let expected = ask("messages", &messages());
    for key in ["prompt_token_ids", "input_ids"] {
        let found = ask(key, &prompt);
        assert_eq!(found["choices"], expected["choices"]);
        assert_eq!(
            found["usage"]["prompt_tokens"],
            expected["usage"]["prompt_tokens"]
        );
    }
    for (body, param, what) in [
        (
            json!({"prompt_token_ids": [1, 99999]}),
            "prompt_token_ids",
            "token id 99999 is outside",
        ),
        (json!({"prompt_token_ids": []}), "prompt_token_ids", "empty"),
        (
            json!({"prompt_token_ids": ["x"]}),
            "prompt_token_ids",
            "invalid type",
        ),
        (
            json!({"prompt_token_ids": [1], "messages": messages()}),
            "prompt_token_ids",
            "exclude each other",
        ),
        (
            json!({"prompt_token_ids": vec![5; 600]}),
            "prompt_token_ids",
            "context length",
        ),
    ] {
        let answer = SERVER.post(CHAT, &body);
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["param"]),
            (400, &json!(param)),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains(what), "{error}");
    }
    // Clients that must send messages send none.
    let body = json!({"prompt_token_ids": prompt, "messages": [], "max_tokens": 1});
    SERVER.ok(CHAT, &body);
}

#[test]
fn ids_of_completions_are_given_whole_and_streamed() {
    let model = LoadedModel::load_default().unwrap();
    let mut body = json!({"prompt": ["The red fox", "47 + 38 ="], "temperature": 0, "max_tokens": 6, "return_token_ids": true});
    let whole = SERVER.ok(TEXT, &body);
    body["stream"] = true.into();
    let chunks = SERVER.post(TEXT, &body).chunks();
    for (index, prompt) in ["The red fox", "47 + 38 ="].into_iter().enumerate() {
        let choice = &whole["choices"][index];
        let expected = model.tokenizer().unwrap().encode(prompt, true).unwrap();
        assert_eq!(ids(&choice["prompt_token_ids"]), expected);
        let found = ids(&choice["token_ids"]);
        assert_eq!(text(&model, &found), choice["text"].as_str().unwrap());
        let of_row = |key: &str| -> Vec<u32> {
            let rows = chunks.iter().map(|chunk| &chunk["choices"][0]);
            let rows = rows.filter(|choice| choice["index"] == index);
            rows.filter_map(|choice| choice.get(key))
                .flat_map(ids)
                .collect()
        };
        assert_eq!(
            (of_row("token_ids"), of_row("prompt_token_ids")),
            (found, expected)
        );
    }
}

#[test]
fn log_probabilities_of_prompts_are_the_librarys() {
    let model = LoadedModel::load_default().unwrap();
    let check = |list: &Value, prompt: Vec<u32>, top: usize| {
        let options = ScoreOptions {
            top_each: top.max(1),
            ..Default::default()
        };
        let score = model.score(prompt, &options).unwrap();
        let list = list.as_array().unwrap();
        assert_eq!((list.len(), &list[0]), (score.tokens.len(), &Value::Null));
        for (at, (entry, id)) in list.iter().zip(&score.tokens).enumerate().skip(1) {
            let own = &entry[id.to_string()];
            let found = own["logprob"].as_f64().unwrap() as f32;
            assert!((found - score.logprobs[at].unwrap()).abs() < 1e-4, "{own}");
            let rank = score.ranks[at].unwrap();
            assert_eq!(own["rank"], rank, "{own}");
            let best = &score.top[at][..top.min(score.top[at].len())];
            for (rank, (id, logprob)) in best.iter().enumerate() {
                let found = &entry[id.to_string()];
                assert_eq!(found["rank"], rank + 1, "{entry}");
                assert!((found["logprob"].as_f64().unwrap() as f32 - logprob).abs() < 1e-4);
            }
            assert!(
                (top..=top + 1).contains(&entry.as_object().unwrap().len()) || top == 0,
                "{entry}"
            );
        }
    };
    let encode = |text: &str| model.tokenizer().unwrap().encode(text, true).unwrap();
    for top in [0, 3] {
        let body =
            json!({"prompt": ["The red fox", "It eats"], "max_tokens": 1, "prompt_logprobs": top});
        let answer = SERVER.ok(TEXT, &body);
        check(
            &answer["choices"][0]["prompt_logprobs"],
            encode("The red fox"),
            top,
        );
        check(
            &answer["choices"][1]["prompt_logprobs"],
            encode("It eats"),
            top,
        );
        let body = json!({"messages": messages(), "max_tokens": 1, "prompt_logprobs": top, "return_token_ids": true});
        let answer = SERVER.ok(CHAT, &body);
        check(
            &answer["prompt_logprobs"],
            ids(&answer["prompt_token_ids"]),
            top,
        );
    }
    // The lists of an echoed prompt stay those of its own number.
    let echo = json!({"prompt": "The red fox", "max_tokens": 0, "echo": true, "logprobs": 1});
    let mut both = echo.clone();
    both["prompt_logprobs"] = 5.into();
    let [echo, both] = [echo, both].map(|body| SERVER.ok(TEXT, &body)["choices"][0].clone());
    assert_eq!(echo["logprobs"], both["logprobs"]);
    check(&both["prompt_logprobs"], encode("The red fox"), 5);
    for (more, what) in [
        (
            json!({"prompt_logprobs": 21}),
            "prompt_logprobs must be in 0..=20, given 21",
        ),
        (
            json!({"prompt_logprobs": -1}),
            "prompt_logprobs must be in 0..=20, given -1",
        ),
        (
            json!({"prompt_logprobs": 1, "stream": true}),
            "prompt_logprobs cannot be streamed",
        ),
    ] {
        let mut body = json!({"prompt": "x", "max_tokens": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        assert_eq!(SERVER.post(TEXT, &body).json()["error"]["message"], what);
    }
}

#[test]
fn tokens_of_a_responses_input_are_counted() {
    let body = json!({"input": messages(), "instructions": "Be brief.", "max_output_tokens": 1,
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}]});
    let count = SERVER.ok("/v1/responses/input_tokens", &body);
    assert_eq!(count["object"], "response.input_tokens");
    let answer = SERVER.ok("/v1/responses", &body);
    assert_eq!(count["input_tokens"], answer["usage"]["input_tokens"]);
}

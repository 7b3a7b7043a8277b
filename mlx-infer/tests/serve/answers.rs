//! The server's answers equal those of the library.

use mlx_infer::{
    ClassifyOptions, GenerateOptions, LoadedModel, Message, SamplingParams, ScoreOptions,
};
use serde_json::{Value, json};

use crate::client::{SERVER, TestServer};

fn model() -> LoadedModel {
    LoadedModel::load_default().unwrap()
}

fn sampled(seed: u64) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 24,
        ignore_eos: true,
        sampling: SamplingParams {
            temperature: 0.9,
            seed: Some(seed),
            ..Default::default()
        },
        ..Default::default()
    }
}

fn run(model: &LoadedModel, prompt: &str, options: &GenerateOptions) -> String {
    let mut generation = model.generate(prompt, options).unwrap();
    let end = generation.run(|_| std::ops::ControlFlow::Continue(()));
    end.unwrap().text.unwrap()
}

#[test]
fn completions_are_the_librarys() {
    let model = model();
    for seed in [1, 2] {
        let body = json!({"prompt": "The red fox", "max_tokens": 24, "ignore_eos": true, "temperature": 0.9, "seed": seed});
        let answer = SERVER.ok("/v1/completions", &body);
        let text = run(&model, "The red fox", &sampled(seed));
        assert_eq!(answer["choices"][0]["text"], text);
        assert_eq!(answer["usage"]["completion_tokens"], 24);
        assert_eq!(answer["model"], "tiny");
    }
}

/// `min_tokens` has the library's meaning.
#[test]
fn an_answer_has_its_least_tokens() {
    let body = json!({
        "messages": [{"role": "user", "content": "What is 20 + 22?"}], "temperature": 0, "min_tokens": 9, "max_tokens": 12,
    });
    let answer = SERVER.ok("/v1/chat/completions", &body);
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 9);
    let model = model();
    let options = GenerateOptions {
        min_tokens: 9,
        max_tokens: 12,
        ..Default::default()
    };
    let messages = [Message::new("user", "What is 20 + 22?")];
    let mut generation = model
        .chat(&messages, &Default::default(), &options)
        .unwrap();
    let end = generation
        .run(|_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(
        answer["choices"][0]["message"]["content"],
        end.text.unwrap()
    );
}

#[test]
fn choices_have_seeds_in_a_row() {
    let model = model();
    let body = json!({
        "model": "org/tiny", "prompt": ["The red fox", "The old man"],
        "max_tokens": 24, "ignore_eos": true, "temperature": 0.9, "seed": 7, "n": 3,
    });
    let answer = SERVER.ok("/v1/completions", &body);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    for (index, choice) in choices.iter().enumerate() {
        let prompt = ["The red fox", "The old man"][index / 3];
        assert_eq!(choice["index"], index);
        let seed = 7 + (index % 3) as u64;
        assert_eq!(choice["text"], run(&model, prompt, &sampled(seed)));
    }
}

/// `best_of` returns the answers with the highest mean log probability of a token.
#[test]
fn the_best_of_several_are_given() {
    let body = json!({
        "prompt": ["The red fox", "The old man"], "max_tokens": 12, "temperature": 1.2, "seed": 3, "n": 8, "logprobs": 0,
    });
    let all = SERVER.ok("/v1/completions", &body);
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        let sum: f64 = logprobs
            .iter()
            .map(|logprob| logprob.as_f64().unwrap())
            .sum();
        sum / logprobs.len() as f64
    };
    for has_logprobs in [true, false] {
        let mut body = body.clone();
        (body["n"], body["best_of"]) = (2.into(), 8.into());
        if !has_logprobs {
            body["logprobs"] = Value::Null;
        }
        let best = SERVER.ok("/v1/completions", &body);
        assert_eq!(best["choices"].as_array().unwrap().len(), 4);
        for (prompt, all) in all["choices"].as_array().unwrap().chunks(8).enumerate() {
            let mut all: Vec<&Value> = all.iter().collect();
            all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
            for (rank, expected) in all[..2].iter().enumerate() {
                let found = &best["choices"][prompt * 2 + rank];
                assert_eq!(found["text"], expected["text"]);
                assert_eq!(found["index"], prompt * 2 + rank);
                assert_eq!(found["logprobs"].is_null(), !has_logprobs);
            }
        }
        assert_eq!(best["usage"], all["usage"]);
    }
}

/// The prompt of several choices is computed once.
#[test]
fn choices_share_their_prompt() {
    let server = TestServer::start(|options| options.engine.limits.prefix_bytes = 0);
    let prompt = "The red fox jumps over the hill. ".repeat(10);
    let body = |n: usize| json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true, "temperature": 1, "seed": 3, "n": n});
    let mut forwards = Vec::new();
    for n in [1, 6] {
        let before = server.metric("mlx_forwards_total");
        server.ok("/v1/completions", &body(n));
        forwards.push(server.metric("mlx_forwards_total") - before);
    }
    // Rows that were submitted one after the other may join in two groups.
    assert!(forwards[1] <= 2.0 * forwards[0], "{forwards:?}");
}

#[test]
fn echo_scores_the_prompt_as_the_library_does() {
    let model = model();
    let text = "The red fox jumps over the hill.";
    let options = ScoreOptions {
        top_each: 2,
        ..Default::default()
    };
    let score = model.score(text, &options).unwrap();
    // Prompts as ids, as lm-eval sends them.
    let ids: Vec<Vec<u32>> = vec![score.tokens.clone()];
    for (prompt, max_tokens) in [(json!(text), 0), (json!(ids), 1)] {
        let body = json!({
            "prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": max_tokens, "temperature": 0,
        });
        let answer = SERVER.ok("/v1/completions", &body);
        let choice = &answer["choices"][0];
        let lists = &choice["logprobs"];
        let logprobs = lists["token_logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), score.tokens.len() + max_tokens);
        assert_eq!(logprobs[0], Value::Null);
        for (at, expected) in score.logprobs.iter().enumerate().skip(1) {
            let found = logprobs[at].as_f64().unwrap();
            assert!((found - f64::from(expected.unwrap())).abs() < 1e-6);
            let top = lists["top_logprobs"][at].as_object().unwrap();
            let best = top
                .values()
                .filter_map(Value::as_f64)
                .fold(f64::MIN, f64::max);
            assert!((best - f64::from(score.top[at][0].1)).abs() < 1e-6);
            assert!(top.contains_key(lists["tokens"][at].as_str().unwrap()));
        }
        let echoed = choice["text"].as_str().unwrap();
        assert!(echoed.starts_with(text), "{echoed}");
        // Offsets cut the text into its tokens.
        let offsets = lists["text_offset"].as_array().unwrap();
        for at in 1..score.tokens.len() - 1 {
            let span =
                offsets[at].as_u64().unwrap() as usize..offsets[at + 1].as_u64().unwrap() as usize;
            assert_eq!(lists["tokens"][at], echoed[span]);
        }
    }
}

#[test]
fn conversations_are_the_librarys() {
    let model = model();
    let question = "What is 20 + 22?";
    let options = GenerateOptions::default();
    let answer = model
        .chat(
            &[Message::new("user", question)],
            &Default::default(),
            &options,
        )
        .unwrap()
        .run(|_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let body = json!({
        "messages": [{"role": "user", "content": question}],
        "temperature": 0, "logprobs": true, "top_logprobs": 3,
    });
    let served = SERVER.ok("/v1/chat/completions", &body);
    let choice = &served["choices"][0];
    assert_eq!(
        choice["message"],
        json!({"role": "assistant", "content": answer.text})
    );
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(served["object"], "chat.completion");
    assert_eq!(served["usage"]["completion_tokens"], answer.tokens.len());
    let content = choice["logprobs"]["content"].as_array().unwrap();
    // The end token is counted, and is not part of the text.
    assert_eq!(content.len(), answer.tokens.len() - 1);
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(content[0]["bytes"], json!(b"4"));
}

#[test]
fn an_answer_is_continued() {
    let body = json!({
        "messages": [
            {"role": "user", "content": "What is 20 + 22?"},
            {"role": "assistant", "content": "4"},
        ],
        "temperature": 0, "continue_final_message": true, "add_generation_prompt": false,
    });
    let served = SERVER.ok("/v1/chat/completions", &body);
    assert_eq!(served["choices"][0]["message"]["content"], "2");
}

#[test]
fn null_is_absent_everywhere() {
    let names = [
        "model",
        "temperature",
        "top_p",
        "n",
        "stream",
        "stream_options",
        "stop",
        "max_tokens",
        "max_completion_tokens",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "seed",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "user",
        "suffix",
        "reasoning_effort",
        "chat_template_kwargs",
        "min_tokens",
        "audio",
    ];
    let mut body =
        json!({"messages": [{"role": "user", "content": "What is 1 + 1?", "name": null}]});
    for name in names {
        body[name] = Value::Null;
    }
    SERVER.ok("/v1/chat/completions", &body);
    body.as_object_mut().unwrap().remove("messages");
    body["prompt"] = "x".into();
    SERVER.ok("/v1/completions", &body);
}

#[test]
fn labels_are_the_librarys() {
    let model = model();
    let labels = [" 4", " 7"];
    let texts = ["2 + 2 =", "3 + 4 ="];
    let options = ClassifyOptions {
        labels: labels.map(str::to_owned).to_vec(),
        ..Default::default()
    };
    let expected = model
        .classify(texts.map(Into::into).to_vec(), &options)
        .unwrap();
    // More texts than one batch holds, one of them empty.
    let mut input: Vec<&str> = texts.iter().copied().cycle().take(150).collect();
    input[70] = "";
    let answer = SERVER.ok("/v1/classify", &json!({"input": input, "labels": labels}));
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), 150);
    for (at, one) in data.iter().enumerate() {
        assert_eq!(one["index"], at);
        if at == 70 {
            // The tokenizer puts <bos> in front of an empty text, which makes it a prompt.
            assert!(one["label"].is_string(), "{one}");
            continue;
        }
        let scores = expected[at % 2].as_ref().unwrap().labels.as_ref().unwrap();
        assert_eq!(one["label"], labels[scores.best]);
        assert_eq!(one["num_classes"], 2);
        let found = one["logprobs"][0].as_f64().unwrap();
        assert!((found - scores.logprobs[0]).abs() < 1e-3, "{at}");
    }
}

#[test]
fn texts_become_ids_and_come_back() {
    let body =
        json!({"prompt": "The red fox", "add_special_tokens": false, "return_token_strs": true});
    let answer = SERVER.ok("/tokenize", &body);
    let ids = answer["tokens"].clone();
    assert_eq!(answer["count"], ids.as_array().unwrap().len());
    let back = SERVER.ok("/detokenize", &json!({"tokens": ids}));
    assert_eq!(back["prompt"], "The red fox");
    let pieces = SERVER.ok(
        "/tokenize",
        &json!({"content": "The fox", "with_pieces": true}),
    );
    assert_eq!(pieces["tokens"][0]["piece"], "The");
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let count = SERVER.ok("/v1/messages/count_tokens", &chat);
    assert_eq!(
        SERVER.ok("/tokenize", &chat)["count"],
        count["input_tokens"]
    );
    // Parts and roles are read as for an answer.
    let parts =
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]});
    assert_eq!(
        SERVER.ok("/tokenize", &parts)["tokens"],
        SERVER.ok("/tokenize", &chat)["tokens"]
    );
    let info = SERVER.get("/tokenizer_info").json();
    assert_eq!(info["model_max_length"], 512);
}

#[test]
fn models_are_listed_with_slashes_in_their_names() {
    let list = SERVER.get("/v1/models").json();
    assert_eq!(list["data"][0]["id"], "tiny");
    assert_eq!(list["data"][0]["max_model_len"], 512);
    let one = SERVER.get("/v1/models/org/tiny").json();
    assert_eq!(one["id"], "org/tiny");
    assert_eq!(SERVER.get("/v1/models/org/other").status, 404);
    let headers = [("anthropic-version", "2023-06-01")];
    let anthropic = SERVER.send("GET", "/v1/models", &headers, "").json();
    assert_eq!(anthropic["data"][0]["type"], "model");
}

/// `tests/batch/adapters.rs` shows that each adapter's tokens are its own: this checkpoint has no
/// tokenizer, and so no texts.
#[test]
fn adapters_are_models_with_names() {
    let testdata = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    let adapter = testdata.join("train/adapters/peft-qwen3");
    let load = move || LoadedModel::load(testdata.join("models/qwen3"), Default::default());
    let server = TestServer::of(load, |options| {
        options.engine.adapters = vec![("sport".to_owned(), adapter)];
    });
    for name in ["tiny", "sport"] {
        let body =
            json!({"model": name, "prompt": [7, 1, 30, 12], "max_tokens": 4, "ignore_eos": true});
        let answer = server.ok("/v1/completions", &body);
        assert_eq!(
            (&answer["model"], &answer["usage"]["completion_tokens"]),
            (&json!(name), &json!(4))
        );
    }
    let list = server.get("/v1/models").json();
    assert_eq!(
        (&list["data"][2]["id"], &list["data"][2]["parent"]),
        (&json!("sport"), &json!("tiny"))
    );
    let unknown = server.post("/v1/completions", &json!({"model": "art", "prompt": [7]}));
    assert!(
        unknown.status == 404 && unknown.body.contains("sport"),
        "{}",
        unknown.body
    );
}

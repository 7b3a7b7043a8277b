//! Streams: their joined events equal the whole answer.

use serde_json::{Value, json};

use crate::client::SERVER;

fn joined<'c>(chunks: &'c [Value], index: usize, path: &str) -> Vec<&'c Value> {
    let choices = chunks.iter().filter_map(|chunk| {
        let choices = chunk["choices"].as_array().unwrap();
        choices.iter().find(|choice| choice["index"] == index)
    });
    let found = choices.filter_map(|choice| choice.pointer(path));
    found.filter(|found| !found.is_null()).collect()
}

fn text(chunks: &[Value], index: usize, path: &str) -> String {
    let texts = joined(chunks, index, path).into_iter();
    texts.map(|text| text.as_str().unwrap()).collect()
}

#[test]
fn completions_joined_are_the_whole() {
    let mut body = json!({
        "prompt": ["The red fox", "The old man"], "n": 2, "max_tokens": 20, "temperature": 0.8,
        "ignore_eos": true, "seed": 3, "logprobs": 2, "echo": true,
    });
    let whole = SERVER.ok("/v1/completions", &body);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let answer = SERVER.post("/v1/completions", &body);
    assert_eq!(
        answer.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    let chunks = answer.chunks();
    for index in 0..4 {
        let choice = &whole["choices"][index];
        assert_eq!(text(&chunks, index, "/text"), choice["text"]);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let parts = joined(&chunks, index, &format!("/logprobs/{list}"));
            let parts: Vec<Value> = parts
                .iter()
                .flat_map(|part| part.as_array().unwrap().clone())
                .collect();
            let expected = choice["logprobs"][list].as_array().unwrap();
            assert_eq!(parts.len(), expected.len(), "{list}");
            if list != "token_logprobs" && list != "top_logprobs" {
                assert_eq!(&parts, expected, "{list}");
            }
        }
        assert_eq!(joined(&chunks, index, "/finish_reason"), ["length"]);
    }
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 80);
    for chunk in rest {
        assert!(chunk.get("usage").is_some_and(Value::is_null));
        for same in ["id", "created", "model"] {
            assert_eq!(chunk[same], last[same]);
        }
        // The time is in seconds, not in milliseconds.
        let created = chunk["created"].as_u64().unwrap();
        assert!((1_700_000_000..5_000_000_000).contains(&created));
    }
}

/// A prompt that is scored and not continued gets a stream too, if the request asks for one.
#[test]
fn an_echo_alone_is_streamed() {
    let mut body = json!({"prompt": ["The red fox", "The old man"], "echo": true, "logprobs": 1, "max_tokens": 0});
    let whole = SERVER.ok("/v1/completions", &body);
    body["stream"] = true.into();
    let chunks = SERVER.post("/v1/completions", &body).chunks();
    assert_eq!(chunks.len(), 2);
    for (chunk, choice) in chunks.iter().zip(whole["choices"].as_array().unwrap()) {
        for key in ["index", "text", "finish_reason"] {
            assert_eq!(chunk["choices"][0][key], choice[key], "{key}");
        }
        let tokens = |choice: &Value| choice["logprobs"]["tokens"].clone();
        assert_eq!(tokens(&chunk["choices"][0]), tokens(choice));
    }
}

#[test]
fn conversations_joined_are_the_whole() {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me of the red fox."}],
        "n": 2, "max_tokens": 20, "temperature": 0.8, "seed": 3, "logprobs": true, "top_logprobs": 1,
    });
    let whole = SERVER.ok("/v1/chat/completions", &body);
    body["stream"] = true.into();
    // An empty object is legal; it has crashed another server.
    body["stream_options"] = json!({});
    let chunks = SERVER.post("/v1/chat/completions", &body).chunks();
    for index in 0..2 {
        let choice = &whole["choices"][index];
        assert_eq!(
            text(&chunks, index, "/delta/content"),
            choice["message"]["content"]
        );
        assert_eq!(joined(&chunks, index, "/delta/role"), ["assistant"]);
        let tokens: usize = joined(&chunks, index, "/logprobs/content")
            .iter()
            .map(|part| part.as_array().unwrap().len())
            .sum();
        assert_eq!(
            tokens,
            choice["logprobs"]["content"].as_array().unwrap().len()
        );
        let ends = joined(&chunks, index, "/finish_reason");
        assert_eq!(ends, [&choice["finish_reason"]]);
    }
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[test]
fn a_stop_string_ends_the_text_on_every_route() {
    let prompt = "The red fox";
    let body = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0});
    let full = SERVER.ok("/v1/completions", &body)["choices"][0]["text"].clone();
    let full = full.as_str().unwrap();
    let stop = &full[full.len() / 2..full.len() / 2 + 3];
    let cut = full.split(stop).next().unwrap();
    for stop in [json!(stop), json!([stop, "never there"])] {
        let mut body = body.clone();
        body["stop"] = stop;
        let answer = SERVER.ok("/v1/completions", &body);
        assert_eq!(answer["choices"][0]["text"], cut);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        body["stream"] = true.into();
        let chunks = SERVER.post("/v1/completions", &body).chunks();
        assert_eq!(text(&chunks, 0, "/text"), cut);
    }
    let chat = json!({
        "messages": [{"role": "user", "content": "What is 20 + 22?"}], "temperature": 0, "stop": "2",
    });
    let answer = SERVER.ok("/v1/chat/completions", &chat);
    assert_eq!(answer["choices"][0]["message"]["content"], "4");
    let chat = json!({
        "messages": [{"role": "user", "content": "What is 20 + 22?"}],
        "temperature": 0, "stop_sequences": ["2"], "max_tokens": 9,
    });
    assert_eq!(SERVER.ok("/v1/messages", &chat)["content"][0]["text"], "4");
    let input = json!({"input": "What is 20 + 22?", "temperature": 0, "stop": ["2"]});
    let answer = SERVER.ok("/v1/responses", &input);
    assert_eq!(answer["output"][0]["content"][0]["text"], "4");
}

//! What several ranks compute besides the generation of text: embeddings, labels and scores, adapters that come and go,
//! prefixes in files and in the memory of the host, and drafts of other models.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Served, run, stdout, text};

#[path = "../../../mlx-models/tests/shared/checkpoints.rs"]
mod formulas;

/// `launch` of so many ranks.
fn ranks(n: &'static str) -> [&'static str; 4] {
    ["launch", "-n", n, "--"]
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

fn path(of: &Path) -> &str {
    of.to_str().unwrap()
}

/// The status of an answer, and its JSON.
fn answer(served: &Served, route: &str, body: &Value) -> (u16, Value) {
    let answer = served.post(route, body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    let json = serde_json::from_str(body).unwrap_or_else(|_| json!(body));
    (status.parse().unwrap(), json)
}

fn ok(served: &Served, route: &str, body: &Value) -> Value {
    let (status, answer) = answer(served, route, body);
    assert_eq!(status, 200, "{route} {body}: {answer}");
    answer
}

/// Whether two answers are the same, up to the order of sums, times and made names.
fn same(found: &Value, expected: &Value, at: &str) {
    match (found, expected) {
        (Value::Number(found), Value::Number(expected)) => {
            let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
            let off = (found - expected).abs();
            assert!(off < 2e-3, "{at}: {found}, expected {expected}");
        }
        (Value::Array(found), Value::Array(expected)) => {
            assert_eq!(found.len(), expected.len(), "{at}");
            for (index, pair) in found.iter().zip(expected).enumerate() {
                same(pair.0, pair.1, &format!("{at}[{index}]"));
            }
        }
        (Value::Object(found), Value::Object(expected)) => {
            let names =
                |of: &serde_json::Map<String, Value>| of.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(found), names(expected), "{at}");
            for (name, value) in found {
                if !["id", "created"].contains(&name.as_str()) {
                    same(value, &expected[name], &format!("{at}.{name}"));
                }
            }
        }
        _ => assert_eq!(found, expected, "{at}"),
    }
}

/// Requests that are no generations.
fn text_work() -> Vec<(&'static str, Value)> {
    let texts = [
        "The red fox",
        "An old man who walks through the wood",
        "47 + 38 =",
    ];
    let long = "The fox runs. ".repeat(40);
    vec![
        ("/v1/embeddings", json!({"input": texts})),
        (
            "/v1/embeddings",
            json!({"input": [long, "b"], "dimensions": 8}),
        ),
        (
            "/v1/classify",
            json!({"input": texts, "labels": [" yes", " no", " the fox"]}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "The red fox runs", "max_tokens": 0, "echo": true, "logprobs": 3, "temperature": 0}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "The old man", "max_tokens": 6, "echo": true, "logprobs": 1, "temperature": 0}),
        ),
        ("/v1/rerank", json!({"query": "fox", "documents": texts})),
        ("/v1/score", json!({"text_1": "fox", "text_2": texts})),
    ]
}

#[test]
fn texts_are_embedded_classified_and_scored_by_two_ranks() {
    let alone = Served::start(&[]);
    let ask = |served: &Served, (route, body): &(&str, Value)| answer(served, route, body);
    let expected: Vec<_> = text_work().iter().map(|work| ask(&alone, work)).collect();
    drop(alone);
    assert!(expected.iter().filter(|(status, _)| *status == 200).count() >= 5);
    let shared = Served::start(&ranks("2"));
    let check = |found: (u16, Value), index: usize| {
        let (status, answer) = &expected[index];
        assert_eq!(found.0, *status, "{}: {}", text_work()[index].0, found.1);
        same(&found.1, answer, text_work()[index].0);
    };
    for (index, work) in text_work().iter().enumerate() {
        check(ask(&shared, work), index);
    }
    // All at a time, beside a generation.
    let body = json!({"prompt": "The red fox", "max_tokens": 30, "temperature": 0});
    let first = shared.complete(&body);
    std::thread::scope(|scope| {
        let rows = scope.spawn(|| shared.complete(&body));
        // Requests with few texts share passes.
        let work = (0..text_work().len()).chain([0, 1, 2].repeat(6));
        let all: Vec<_> = work
            .map(|index| {
                let shared = &shared;
                (index, scope.spawn(move || ask(shared, &text_work()[index])))
            })
            .collect();
        for (index, found) in all {
            check(found.join().unwrap(), index);
        }
        assert_eq!(rows.join().unwrap(), first);
    });
    // A client that leaves ends its work on all ranks.
    let many = vec!["The old man and the red fox go through the wood. ".repeat(20); 200];
    shared.leave("/v1/embeddings", &json!({"input": many}));
    assert_eq!(shared.complete(&body), first);
    check(ask(&shared, &text_work()[0]), 0);
}

/// A prompt of `n` tokens for a model without a tokenizer. No prompt begins like another one.
fn prompt(model: &str, n: usize) -> Value {
    let ids: Vec<u32> = (0..n as u32)
        .map(|at| 6 + (at * 13 + at * at + n as u32) % 50)
        .collect();
    json!({
        "model": model, "prompt": ids, "max_tokens": 10, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "logprobs": 0,
    })
}

fn ids(answer: &Value) -> Value {
    let ids = answer["choices"][0]["token_ids"].clone();
    assert_eq!(ids.as_array().map(Vec::len), Some(10), "{answer}");
    ids
}

/// Flags of a server for a model, which is called `tiny`.
fn tiny(model: &Path) -> [&str; 6] {
    ["--model", path(model), "--name", "tiny", "--dtype", "f32"]
}

/// A copy of an adapter in the folder `to`.
fn copy(name: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(testdata("train/adapters").join(name)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[test]
fn adapters_come_and_go_on_two_ranks() {
    let (model, folder) = (testdata("models/qwen3"), tempfile::tempdir().unwrap());
    copy("peft-qwen3", &folder.path().join("sport"));
    copy("dora-llama_tied", &folder.path().join("other"));
    let start = format!("news={}", path(&folder.path().join("sport")));
    let dirs = ["--adapters-dir", path(folder.path()), "--adapter", &start];
    let flags = [&tiny(&model)[..], &dirs].concat();
    let load = |served: &Served, name: &str, path: &str| {
        let body = json!({"lora_name": name, "lora_path": path});
        answer(served, "/v1/load_lora_adapter", &body)
    };
    let day = |served: &Served| {
        let mut found = vec![ids(&ok(served, "/v1/completions", &prompt("tiny", 12)))];
        assert_eq!(load(served, "sport", "sport").0, 200);
        // An adapter of another model is refused by all ranks.
        let (status, refused) = load(served, "x", "other");
        assert_eq!(status, 400, "{refused}");
        let names = ["tiny", "sport", "news"];
        for name in names {
            found.push(ids(&ok(served, "/v1/completions", &prompt(name, 12))));
        }
        // Rows of different adapters in one step.
        std::thread::scope(|scope| {
            let rows: Vec<_> = [names, names]
                .concat()
                .into_iter()
                .enumerate()
                .map(|(at, name)| {
                    scope.spawn(move || ok(served, "/v1/completions", &prompt(name, 9 + at)))
                })
                .collect();
            found.extend(rows.into_iter().map(|row| ids(&row.join().unwrap())));
        });
        let body = json!({"model": "sport", "input": [[7, 1, 30, 12]]});
        let vectors = answer(served, "/v1/embeddings", &body);
        let gone = json!({"lora_name": "sport"});
        assert_eq!(answer(served, "/v1/unload_lora_adapter", &gone).0, 200);
        assert_eq!(
            answer(served, "/v1/completions", &prompt("sport", 12)).0,
            404
        );
        // Its place is free for another one.
        assert_eq!(load(served, "again", "sport").0, 200);
        found.push(ids(&ok(served, "/v1/completions", &prompt("again", 12))));
        found.push(ids(&ok(served, "/v1/completions", &prompt("tiny", 12))));
        (found, vectors)
    };
    let alone = Served::with(&[], &flags);
    let (expected, vectors) = day(&alone);
    drop(alone);
    assert_ne!(expected[1], expected[2], "the adapter changes nothing");
    assert_eq!(expected[2], expected[3]);
    let shared = Served::with(&ranks("2"), &flags);
    let (found, found_vectors) = day(&shared);
    assert_eq!(found, expected);
    assert_eq!(found_vectors.0, vectors.0);
    same(&found_vectors.1, &vectors.1, "embeddings");
}

/// The value of a counter.
fn counter(served: &Served, name: &str) -> u64 {
    let metrics = served.get("/metrics");
    let line = metrics.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
}

/// The number of tokens of prompts that came from a tier of prefixes.
fn hits(served: &Served, tier: &str) -> u64 {
    counter(served, &format!("mlx_prefix_{tier}_hits_total"))
}

#[test]
fn prefixes_in_files_are_those_of_every_rank() {
    let (model, folder) = (testdata("models/qwen3"), tempfile::tempdir().unwrap());
    let dir = folder.path().join("prefixes");
    let flags = [&tiny(&model)[..], &["--prefix-dir", path(&dir)]].concat();
    let ask = |served: &Served, n: usize| ids(&ok(served, "/v1/completions", &prompt("tiny", n)));
    let alone = Served::with(&[], &tiny(&model));
    let expected = [200, 150].map(|n| ask(&alone, n));
    drop(alone);
    let models = || {
        let folders = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
        folders.sort();
        folders
    };
    let first = Served::with(&ranks("2"), &flags);
    assert_eq!([200, 150].map(|n| ask(&first, n)), expected);
    first.stop();
    // Each rank has a folder of its own.
    assert_eq!(models().len(), 2, "{:?}", models());
    let second = Served::with(&ranks("2"), &flags);
    assert_eq!([200, 150].map(|n| ask(&second, n)), expected);
    assert!(hits(&second, "dir") >= 1, "no prefix came from files");
    second.stop();
    // What one rank lacks is used by none.
    for file in std::fs::read_dir(&models()[0]).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let third = Served::with(&ranks("2"), &flags);
    assert_eq!([200, 150].map(|n| ask(&third, n)), expected);
    assert_eq!(hits(&third, "dir"), 0);
    third.stop();
    // A file that one rank cannot read neither.
    for file in std::fs::read_dir(&models()[1]).unwrap() {
        let file = file.unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    let fourth = Served::with(&ranks("2"), &flags);
    assert_eq!([200, 150].map(|n| ask(&fourth, n)), expected);
    assert_eq!(hits(&fourth, "dir"), 0);
}

#[test]
fn prefixes_in_the_memory_of_the_host_are_those_of_every_rank() {
    let model = testdata("models/falcon_alibi");
    let flags = tiny(&model);
    // Memory holds one prefix, so that the first comes back from the host.
    let with_host = [
        &flags[..],
        &["--prefix-bytes", "60000", "--prefix-host-bytes", "10000000"],
    ]
    .concat();
    let ask = |served: &Served| {
        [100, 180, 100, 180].map(|n| ids(&ok(served, "/v1/completions", &prompt("tiny", n))))
    };
    let alone = Served::with(&[], &flags);
    let expected = ask(&alone);
    drop(alone);
    let shared = Served::with(&ranks("3"), &with_host);
    assert_eq!(ask(&shared), expected);
    assert!(hits(&shared, "host") >= 1, "no prefix came from the host");
}

/// Two drawn texts of a model, with and without drafts, alone and on two ranks.
fn drafts_change_no_token(model: &Path, drafts: &[&str]) {
    let flags = tiny(model);
    let ask =
        |served: &Served| [12, 40].map(|n| ids(&ok(served, "/v1/completions", &prompt("tiny", n))));
    let expected = ask(&Served::with(&[], &flags));
    let shared = Served::with(&ranks("2"), &[&flags[..], drafts].concat());
    assert_eq!(ask(&shared), expected);
    assert!(counter(&shared, "vllm:spec_decode_num_draft_tokens_total") > 0);
}

#[test]
fn drafts_of_another_model_change_no_token_on_two_ranks() {
    let model = testdata("models/qwen3");
    let drafts = ["--draft-model", path(&model), "--speculative", "3"];
    drafts_change_no_token(&model, &drafts);
    let fox = ["generate", "--prompt", "The red fox", "--max-tokens", "16"];
    let drafted = [&fox[..], &["--speculative", "3"]].concat();
    assert_eq!(stdout(&[&ranks("2")[..], &drafted].concat()), stdout(&fox));
}

/// The model has a head for multi-token prediction.
#[test]
fn drafts_of_a_head_change_no_token_on_two_ranks() {
    drafts_change_no_token(&testdata("models/qwen3_5_text"), &["--speculative", "2"]);
}

#[test]
fn drafters_that_read_the_model_change_no_token_on_two_ranks() {
    for (model, drafter) in [("smollm3", "eagle3"), ("qwen3_tied", "dflash")] {
        let drafter = formulas::checkpoint(&format!("../drafters/{drafter}"));
        let drafts = ["--draft-model", path(&drafter), "--speculative", "3"];
        drafts_change_no_token(&formulas::checkpoint(model), &drafts);
    }
    let model = formulas::checkpoint("gemma4_text");
    let assistant = formulas::checkpoint("../drafters/gemma4_assistant");
    let generate = [
        "generate",
        "--model",
        path(&model),
        "--tokens",
        "7,9",
        "--draft-model",
        path(&assistant),
        "--speculative",
        "2",
    ];
    let output = run(&[&ranks("2")[..], &generate].concat());
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("are divided among ranks"), "{said}");
}

#[test]
fn what_ranks_do_not_serve_is_refused_by_name() {
    let (one, other) = (testdata("models/qwen3"), testdata("models/llama_tied"));
    let several = [
        &ranks("2")[..],
        &[
            "serve",
            "--port",
            "0",
            "--model",
            path(&one),
            "--model",
            path(&other),
        ],
    ]
    .concat();
    let output = run(&several);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("models-dir or several --model is for a server of one process"),
        "{said}"
    );
}

/// A file with lines, and their number.
fn lines(folder: &tempfile::TempDir) -> (PathBuf, usize) {
    let texts = [
        "The red fox",
        "An old man who walks",
        "",
        "47 + 38 =",
        "The end",
    ];
    let long = "The fox runs through the wood. ".repeat(30);
    let lines: Vec<&str> = texts.into_iter().chain([long.as_str()]).collect();
    let file = folder.path().join("lines");
    std::fs::write(&file, lines.join("\n")).unwrap();
    (file, lines.len())
}

#[test]
fn commands_on_texts_print_on_two_ranks_what_one_process_prints() {
    let folder = tempfile::tempdir().unwrap();
    let (file, n) = lines(&folder);
    let numbers = |args: &[&str]| -> Vec<Value> {
        let lines = stdout(args);
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    for args in [
        &[
            "embed",
            "--input",
            path(&file),
            "--json",
            "--batch-tokens",
            "20",
        ][..],
        &[
            "classify",
            "--input",
            path(&file),
            "--labels",
            " yes, no",
            "--logits",
        ],
        &["classify", "--input", path(&file)],
        &["score", "--text", "The red fox runs", "--json"],
    ] {
        let expected = numbers(args);
        let found = numbers(&[&ranks("2")[..], args].concat());
        assert!(expected.len() == n || args[0] == "score", "{args:?}");
        for (found, expected) in found.iter().zip(&expected) {
            same(found, expected, args[0]);
        }
        assert_eq!(found.len(), expected.len(), "{args:?}");
    }
    // An error of the first rank ends all.
    let absent = [&ranks("2")[..], &["embed", "--input", "absent.txt"]].concat();
    let output = run(&absent);
    let said = text(&output.stderr);
    assert!(
        !output.status.success() && said.contains("absent.txt"),
        "{said}"
    );
}

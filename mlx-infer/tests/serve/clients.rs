//! The official clients: their packages if they are installed, and in any case their requests, as
//! recorded by `record.py`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mlx_infer::{LoadedModel, ScoreOptions};
use serde_json::Value;

use crate::client::{Answer, Client, SERVER};

/// The clients for node with their versions, and the script of each.
const NODE_CLIENTS: [(&str, &str); 2] = [
    ("openai@6.49.0", "clients.mjs"),
    ("ollama@0.6.4", "ollama.mjs"),
];

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve")
}

fn address() -> String {
    format!("http://{}", SERVER.address)
}

/// What a command prints. It must succeed.
fn printed(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `cargo xtask test` names a Python that has the packages.
#[test]
fn the_official_clients_work() {
    let Some(python) = std::env::var_os("MLX_TEST_PYTHON") else {
        eprintln!("left out: MLX_TEST_PYTHON names no Python with the clients");
        return;
    };
    let output = Command::new(python)
        .arg(folder().join("clients.py"))
        .arg(address())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .unwrap();
    let ran = printed(&output);
    eprintln!("clients: {ran}");
    let clients = ["openai", "anthropic", "ollama"];
    assert!(clients.iter().all(|name| ran.contains(name)), "{ran}");
}

/// The log likelihoods that lm-eval gets for a task of this folder are sums of the library's log probabilities.
#[test]
fn lm_eval_scores_as_the_library_does() {
    let Some(python) = std::env::var_os("MLX_TEST_PYTHON") else {
        eprintln!("left out: MLX_TEST_PYTHON names no Python with lm-eval");
        return;
    };
    let output = Command::new(python)
        .arg(folder().join("lm_eval_task.py"))
        .arg(address())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let ran = printed(&output);
    let answers = ran.lines().last().expect("answers in the last line");
    let answers: Vec<(String, String, f64, bool)> = serde_json::from_str(answers).unwrap();
    assert_eq!(answers.len(), 7);
    let model = LoadedModel::load_default().unwrap();
    for (context, continuation, logprob, is_greedy) in answers {
        let encode = |text: &str| model.tokenizer().unwrap().encode(text, false).unwrap();
        let (ids, start) = (
            encode(&format!("{context}{continuation}")),
            encode(&context).len(),
        );
        let (sum, best) = scored(&model, ids, start);
        assert!(
            (sum - logprob).abs() < 1e-4,
            "{context}{continuation}: {sum} {logprob}"
        );
        assert_eq!(best, is_greedy, "{context}{continuation}");
    }
}

/// The sum of the log probabilities of the tokens from `start` on, and whether each is the likeliest.
fn scored(model: &LoadedModel, ids: Vec<u32>, start: usize) -> (f64, bool) {
    let options = ScoreOptions {
        top_each: 1,
        ..Default::default()
    };
    let score = model.score(ids, &options).unwrap();
    let sum = score.logprobs[start..]
        .iter()
        .flatten()
        .map(|&lp| f64::from(lp))
        .sum();
    let mut places = start..score.tokens.len();
    (sum, places.all(|at| score.top[at][0].0 == score.tokens[at]))
}

/// The recorded requests of lm-eval get the log probabilities of the library.
#[test]
fn recorded_scores_are_the_librarys() {
    let path = folder().join("requests/lm-eval.json");
    let requests: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let model = LoadedModel::load_default().unwrap();
    let scores = requests
        .iter()
        .filter(|request| request["path"] == "/v1/completions");
    let mut count = 0;
    for request in scores {
        let answer = SERVER.ok("/v1/completions", &request["body"]);
        let ids: Vec<u32> = serde_json::from_value(request["body"]["prompt"][0].clone()).unwrap();
        let found = answer["choices"][0]["logprobs"]["token_logprobs"]
            .as_array()
            .unwrap();
        let (sum, _) = scored(&model, ids.clone(), 1);
        let found: f64 = found[1..ids.len()]
            .iter()
            .map(|lp| lp.as_f64().unwrap())
            .sum();
        assert!((sum - found).abs() < 1e-4, "{ids:?}: {sum} {found}");
        count += 1;
    }
    assert_eq!(count, 7);
}

#[test]
fn the_clients_for_node_work() {
    for (client, script) in NODE_CLIENTS {
        runs_in_node(client, script);
    }
}

/// Runs a script of this folder with a package of npm.
fn runs_in_node(client: &str, name: &str) {
    let to =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("node-{}", client.replace('@', "-")));
    std::fs::create_dir_all(&to).unwrap();
    let npm = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--no-save", client])
        .arg("--prefix")
        .arg(&to)
        .output();
    match npm {
        Err(_) => {
            return eprintln!("left out: npm, which installs {client}, is not there");
        }
        Ok(output) if !output.status.success() => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return eprintln!("left out: npm cannot install {client}: {stderr}");
        }
        Ok(_) => {}
    }
    let script = to.join(name);
    std::fs::copy(folder().join(name), &script).unwrap();
    let output = Command::new("node").arg(script).arg(address()).output();
    let ran = printed(&output.unwrap());
    assert_eq!(ran.trim(), client.replace('@', " "));
}

/// The places of all values of a JSON document, as `a.b` or `a[].b`, as in `record.py`.
fn places(value: &Value, place: &str, found: &mut Vec<String>) {
    found.push(place.to_owned());
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                let place = match place {
                    "" => key.clone(),
                    place => format!("{place}.{key}"),
                };
                places(inner, &place, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                places(item, &format!("{place}[]"), found);
            }
        }
        _ => {}
    }
}

/// The requests of a file.
pub fn recorded(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let requests: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(!requests.is_empty(), "{}", path.display());
    requests
}

/// The headers of a recorded request.
pub fn headers(request: &Value) -> Vec<(&str, &str)> {
    let headers = request["headers"].as_object().unwrap();
    (headers.iter())
        .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
        .collect()
}

/// Sends a recorded request. Its answer must have the recorded status and type, and every key of
/// the recorded answer.
pub fn check_recorded(server: &Client, request: &Value, place: &str) -> Answer {
    let body = match &request["body"] {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let (method, path) = (&request["method"], &request["path"]);
    let answer = server.send(
        method.as_str().unwrap(),
        path.as_str().unwrap(),
        &headers(request),
        &body,
    );
    assert_eq!(request["status"], answer.status, "{place}: {}", answer.body);
    let kind = answer.header("content-type").unwrap_or_default();
    assert!(
        kind.starts_with(request["type"].as_str().unwrap()),
        "{place}: {kind}"
    );
    let mut found = Vec::new();
    if kind.starts_with("text/event-stream") {
        let events = answer.body.lines();
        for event in events.filter_map(|line| line.strip_prefix("data: {")) {
            places(
                &serde_json::from_str(&format!("{{{event}")).unwrap(),
                "",
                &mut found,
            );
        }
    } else if kind.starts_with("application/x-ndjson") {
        for line in answer.body.lines() {
            places(&serde_json::from_str(line).unwrap(), "", &mut found);
        }
    } else if kind.starts_with("application/json") && !answer.body.is_empty() {
        places(&answer.json(), "", &mut found);
    }
    for key in request["keys"].as_array().unwrap() {
        let key = key.as_str().unwrap();
        assert!(
            found.iter().any(|known| known == key),
            "{place}: no {key}: {}",
            answer.body
        );
    }
    answer
}

/// Each recorded request gets an answer with the recorded status and type, which has every key of
/// the recorded answer.
#[test]
fn what_clients_send_is_understood() {
    let mut clients = 0;
    for entry in std::fs::read_dir(folder().join("requests")).unwrap() {
        let path = entry.unwrap().path();
        clients += 1;
        for request in recorded(&path) {
            let place = format!("{}: {request}", path.display());
            check_recorded(&SERVER, &request, &place);
        }
    }
    assert_eq!(
        clients, 8,
        "openai and ollama for Python and node, anthropic, langchain-openai, litellm, lm-eval"
    );
}

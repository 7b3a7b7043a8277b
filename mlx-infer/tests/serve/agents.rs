//! Coding agents against a model that follows a script: a fault in two files with calls of tools, a
//! failing call and its repetition, an interruption, and the next answer after it. Open WebUI calls
//! one of its own tools.

mod model;
mod order;
mod script;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use self::script::{AgentTask, ScriptedReply};
use crate::client::{Client, TestServer, at_first_event};
use crate::clients::{check_recorded, folder, headers, recorded};
use crate::forms::api::{Api, Reply};
use crate::page::chromium;

/// The reply to requests that name no task, with which agents ask for titles.
const ASIDE: &str = "{\"title\": \"Mend the shop\"}";

/// Runs the agents themselves, if `MLX_TEST_AGENTS` names a folder to install them in.
#[test]
fn the_agents_work() {
    let Some(to) = std::env::var_os("MLX_TEST_AGENTS") else {
        eprintln!("left out: MLX_TEST_AGENTS names no folder for the agents");
        return;
    };
    let served = model::start(&script::tasks(), ASIDE, |_| ());
    let only = std::env::var("MLX_TEST_AGENTS_ONLY").unwrap_or_default();
    let python = std::env::var_os("MLX_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let status = Command::new(python)
        .arg(folder().join("agents/agents.py"))
        .arg(format!("http://{}", served.server.address))
        .arg(to)
        .args(only.split_whitespace())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status();
    assert!(status.unwrap().success());
}

/// Runs Open WebUI and its page, if `MLX_TEST_OPEN_WEBUI` names a folder to install it in. The page
/// needs a Chromium, and a Python with playwright.
#[test]
fn open_webui_works() {
    let Some(to) = std::env::var_os("MLX_TEST_OPEN_WEBUI") else {
        eprintln!("left out: MLX_TEST_OPEN_WEBUI names no folder for Open WebUI");
        return;
    };
    let served = model::start(&script::tasks(), ASIDE, |_| ());
    let python = std::env::var_os("MLX_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let status = Command::new(python)
        .arg(folder().join("agents/open_webui.py"))
        .arg(format!("http://{}", served.server.address))
        .arg(to)
        .arg(chromium().expect("a Chromium in PATH"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status();
    assert!(status.unwrap().success());
}

/// The recorded requests of each agent get the replies of the script, in events that come in the
/// order of their API. An answer that the agent did not read to its end frees its row.
#[test]
fn recorded_agents_get_the_replies_of_the_script() {
    let tasks = script::tasks();
    let served = model::start(&tasks, ASIDE, |_| ());
    let mut agents = Vec::new();
    let mut paths: Vec<_> = std::fs::read_dir(folder().join("agents/requests"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    for path in &paths {
        let agent = path.file_stem().unwrap().to_str().unwrap();
        agents.push(agent);
        let given = replay(&served.server, path);
        let mend = format!("[{agent}-mend]");
        let has_tools = tasks.iter().any(|task| task.name == mend && task.has_tools);
        let next = if has_tools { "[next]" } else { "[next-text]" };
        let wanted = [&mend, next].map(|name| replies(&tasks, name));
        assert_eq!(given, wanted.concat(), "{agent}");
    }
    assert_eq!(agents, AGENTS);
}

/// The agents whose requests are recorded.
const AGENTS: [&str; 7] = [
    "aider",
    "claude",
    "cline",
    "codex",
    "continue",
    "open-webui",
    "opencode",
];

fn replies(tasks: &[AgentTask], name: &str) -> Vec<Reply> {
    let task = tasks.iter().find(|task| task.name == name).unwrap();
    task.replies.iter().map(ScriptedReply::reply).collect()
}

/// Sends the recorded requests. Returns the replies of tasks.
fn replay(server: &TestServer, path: &Path) -> Vec<Reply> {
    let (mut replies, mut cuts) = (Vec::new(), 0);
    for request in recorded(path) {
        let route = request["path"].as_str().unwrap();
        if request["cut"] == true {
            leave(server, &request);
            server.until(|| server.metric("vllm:num_requests_running") == 0.0);
            cuts += 1;
            continue;
        }
        let place = format!("{}: {route}", path.display());
        let answer = check_recorded(server, &request, &place);
        let apis = [Api::Chat, Api::Responses, Api::Messages];
        let api = apis
            .into_iter()
            .find(|api| route.split('?').next() == Some(api.path()));
        let Some(api) = api.filter(|_| answer.status == 200) else {
            continue;
        };
        let is_stream = request["body"]["stream"] == true;
        let reply = match is_stream {
            true => {
                order::check(api, &answer);
                api.streamed(&answer)
            }
            false => api.whole(&answer.json()),
        };
        // Agents also ask for titles.
        if reply.content != ASIDE {
            replies.push(reply);
        }
    }
    assert_eq!(cuts, 1, "{}", path.display());
    replies
}

/// Reads an answer to its first event, and leaves.
fn leave(server: &Client, request: &Value) {
    let body = request["body"].to_string();
    let stream = server.open(
        request["method"].as_str().unwrap(),
        request["path"].as_str().unwrap(),
        &headers(request),
        &body,
    );
    drop(at_first_event(stream));
}

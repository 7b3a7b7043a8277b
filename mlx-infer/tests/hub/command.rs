//! The commands: pull, list, and `--model org/name`.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::mock::{COMMIT, Mock, Reply, etag, noise, part};
use crate::{CONFIG, blob};

/// The command with this hub and this cache; all other variables for hub and cache are unset.
pub fn command(url: &str, cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-infer"));
    for name in [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
    ] {
        command.env_remove(name);
    }
    command
        .args(args)
        .env("HF_ENDPOINT", url)
        .env("HF_HUB_CACHE", cache)
        .env("HF_TOKEN_PATH", cache.join("no-token"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(url: &str, cache: &Path, args: &[&str]) -> Output {
    command(url, cache, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A hub with the built-in model's files.
pub fn default_model() -> Mock {
    let mlx_infer::Files::Embedded { files, .. } = mlx_infer::default_model_files() else {
        panic!("the built-in model is embedded");
    };
    Mock::new(files)
}

#[test]
fn every_command_takes_a_name() {
    let mock = default_model();
    let cache = tempfile::tempdir().unwrap();
    let ask = ["--prompt", "The red fox", "--max-tokens", "8", "--json"];
    let named = run(
        &mock.url,
        cache.path(),
        &[&["generate", "--model", "org/name"][..], &ask].concat(),
    );
    assert!(named.status.success(), "{}", text(&named.stderr));
    assert_eq!(text(&named.stderr), "", "no bar, as this is no terminal");
    let built_in = run(
        &mock.url,
        cache.path(),
        &[&["generate", "--dtype", "f32"][..], &ask].concat(),
    );
    let tokens = |output: &Output| {
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["tokens"].clone()
    };
    assert!(!tokens(&named).as_array().unwrap().is_empty());
    assert_eq!(
        tokens(&named).as_array().unwrap().len(),
        tokens(&built_in).as_array().unwrap().len()
    );
    let before = mock.log().len();
    let output = run(
        &mock.url,
        cache.path(),
        &["info", "--model", "org/name@main", "--json"],
    );
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(info["model"].as_str().unwrap().ends_with(COMMIT), "{info}");
    assert_eq!(
        mock.log().len(),
        before + 1,
        "one question for the revision"
    );
    let output = run(
        &mock.url,
        cache.path(),
        &["tokenize", "--model", "org/name", "--text", "fox"],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));

    // A local folder of that name takes precedence.
    let here = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(here.path().join("org/name")).unwrap();
    let mut folder = command(&mock.url, cache.path(), &["info", "--model", "org/name"]);
    let output = folder.current_dir(here.path()).output().unwrap();
    assert!(
        text(&output.stderr).contains("org/name/config.json"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_is_neither_a_folder_nor_a_model_is_told_as_both() {
    let mock = Mock::new(&[("config.json", CONFIG)]);
    let cache = tempfile::tempdir().unwrap();
    for (model, expected) in [
        (
            "no/such",
            vec![
                "no/such does not exist as a folder",
                "has no model no/such (404",
            ],
        ),
        (
            "./no/such",
            vec!["./no/such does not exist as a folder", "org/name@revision"],
        ),
        (
            "nosuch",
            vec!["nosuch does not exist as a folder", "org/name@revision"],
        ),
    ] {
        let output = run(
            &mock.url,
            cache.path(),
            &["generate", "--model", model, "--prompt", "x"],
        );
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.lines().count() == 1,
            "{stderr}"
        );
        for part in expected {
            assert!(stderr.contains(part), "{stderr}");
        }
    }
    let output = run(&mock.url, cache.path(), &["pull", "../x"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

/// The errors for a file in GGUF that is cut, and for a folder with such a file and no safetensors, name the file.
#[test]
fn a_cut_file_in_gguf_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("q4.gguf");
    std::fs::write(&file, b"GGUF").unwrap();
    for model in [folder.path(), &file] {
        let model = model.to_str().unwrap();
        for command in [
            &["generate", "--prompt", "x"][..],
            &["serve", "--port", "0"],
            &["info"],
        ] {
            let output = run(
                "http://127.0.0.1:9",
                cache.path(),
                &[command, &["--model", model]].concat(),
            );
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            let message = format!(
                "{}: 4 bytes at 4 reach beyond the file of 4 bytes",
                file.display()
            );
            assert!(stderr.contains(&message), "{stderr}");
        }
    }
}

#[test]
fn pull_and_list() {
    let weights = noise(1_500_000);
    let config = br#"{"model_type": "other_type"}"#;
    let mock = Mock::new(&[("config.json", config), ("model.safetensors", &weights)]);
    let cache = tempfile::tempdir().unwrap();
    let empty = run(&mock.url, cache.path(), &["list"]);
    assert_eq!(
        (text(&empty.stdout).as_str(), empty.status.code()),
        ("", Some(0))
    );
    let output = run(&mock.url, cache.path(), &["pull", "org/name"]);
    let path = text(&output.stdout);
    assert_eq!(
        std::fs::read(Path::new(path.trim()).join("model.safetensors")).unwrap(),
        weights
    );
    let note = format!("org/name: commit {COMMIT}, 1.5 MB fetched\n");
    assert_eq!(text(&output.stderr), note);
    let output = run(&mock.url, cache.path(), &["pull", "org/name", "--json"]);
    let again: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&again["fetched_bytes"], &again["commit"]),
        (&0.into(), &COMMIT.into())
    );
    let output = run(&mock.url, cache.path(), &["list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let model = &list["models"][0];
    assert_eq!(model["name"], "org/name");
    assert_eq!(model["revisions"], serde_json::json!(["main"]));
    assert_eq!(
        (&model["architecture"], &model["supported"]),
        (&"other_type".into(), &false.into())
    );
    assert_eq!(model["bytes"], (config.len() + weights.len()) as u64);
    assert!(
        model["last_used"].as_str().unwrap().starts_with("20"),
        "{model}"
    );
    let output = run(&mock.url, cache.path(), &["list"]);
    let table = text(&output.stdout);
    assert!(
        table.contains("org/name  main (0123456789ab)  1.5 MB  other_type, not supported  20"),
        "{table}"
    );
    let offline = command(&mock.url, cache.path(), &["pull", "org/other"])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(
        text(&offline.stderr).contains("HF_HUB_OFFLINE forbids"),
        "{}",
        text(&offline.stderr)
    );
}

/// A hub that stalls on the first request: it sends the first bytes of the weights and then
/// nothing.
fn stalling(weights: &[u8], first: usize) -> Mock {
    let all = weights.to_vec();
    Mock::scripted(
        &[("config.json", CONFIG), ("model.safetensors", weights)],
        move |seen| {
            if !seen.at_bytes || seen.nth > 0 {
                return None;
            }
            let reply = part(&all, seen.from());
            let length = reply.body.len().to_string();
            let body = reply.body[..first].to_vec();
            let silent = Reply {
                body,
                stall: Duration::from_secs(600),
                ..reply
            };
            Some(silent.with("Content-Length", length))
        },
    )
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn finish(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr)
}

#[test]
fn two_processes_fetch_a_file_once_and_one_that_is_interrupted_is_gone_on_from() {
    let weights = noise(1_000_000);
    let mock = stalling(&weights, 400_000);
    let cache = tempfile::tempdir().unwrap();
    let unfinished = blob(
        cache.path(),
        &format!("{}.incomplete", etag("model.safetensors", &weights)),
    );
    // On a busy machine the second process may start later than the default timeout of the first
    // one.
    let first = command(&mock.url, cache.path(), &["pull", "org/name"])
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "600")
        .spawn()
        .unwrap();
    wait_for("the first bytes", || {
        std::fs::metadata(&unfinished).is_ok_and(|found| found.len() == 400_000)
    });
    let second = command(&mock.url, cache.path(), &["pull", "org/name"])
        .spawn()
        .unwrap();
    wait_for("the second process", || {
        mock.log()
            .iter()
            .filter(|seen| seen.is("HEAD", "model.safetensors"))
            .count()
            == 2
    });
    assert_eq!(mock.fetches("model.safetensors"), 1, "the second one waits");
    let killed = Command::new("kill")
        .args(["-TERM", &first.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert!(!first.wait_with_output().unwrap().status.success());
    let said = finish(second);
    assert!(said.contains("commit"), "{said}");
    let resumed = mock.log().into_iter().rfind(|seen| seen.at_bytes).unwrap();
    assert_eq!(resumed.from(), 400_000);
    assert_eq!(mock.fetches("model.safetensors"), 2);
    assert_eq!(
        std::fs::read(blob(cache.path(), &etag("model.safetensors", &weights))).unwrap(),
        weights
    );
}

/// Requests to a plain HTTP hub behind a proxy go to the proxy with the whole address, without a
/// tunnel.
#[test]
fn a_hub_without_tls_is_asked_through_a_proxy() {
    let weights = noise(1000);
    let mock = Mock::new(&[("config.json", CONFIG), ("model.safetensors", &weights)]);
    let cache = tempfile::tempdir().unwrap();
    let mut pull = command("http://hub.test", cache.path(), &["pull", "org/name"]);
    for name in [
        "ALL_PROXY",
        "all_proxy",
        "http_proxy",
        "NO_PROXY",
        "no_proxy",
    ] {
        pull.env_remove(name);
    }
    let proxy = mock.url.replace("http://", "http://me:p%40ss@");
    let done = pull.env("HTTP_PROXY", proxy).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let log = mock.log();
    assert!(log.len() > 2);
    for seen in log {
        assert!(seen.proxied && seen.method != "CONNECT", "{seen:?}");
        assert_eq!(
            seen.headers["host"] == "hub.test",
            !seen.at_bytes,
            "{seen:?}"
        );
        assert_eq!(seen.headers["proxy-authorization"], "Basic bWU6cEBzcw==");
    }

    let mut direct = command(&mock.url, cache.path(), &["pull", "org/name"]);
    direct
        .env("HTTP_PROXY", "http://127.0.0.1:9")
        .env("NO_PROXY", "127.0.0.1");
    assert!(direct.output().unwrap().status.success(), "NO_PROXY");

    let mut down = command("http://hub.test", cache.path(), &["pull", "org/other"]);
    down.env_remove("NO_PROXY").env_remove("no_proxy");
    down.env("HTTP_PROXY", "http://127.0.0.1:9")
        .env("http_proxy", "http://127.0.0.1:9");
    let mut down = down.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let _ = down.kill();
    let error = text(&down.wait_with_output().unwrap().stderr);
    assert!(
        error.contains("hub.test: through the proxy 127.0.0.1:9"),
        "{error}"
    );
}

//! Batches of embeddings, and batches whose models are not in memory.

use std::time::Duration;

use mlx_infer::serve::{PoolOptions, PooledModel};
use mlx_infer::{Error, ErrorKind, LoadOptions, LoadedModel, Result, default_model_files};
use serde_json::{Value, json};

use crate::batches::{batch, chat, content, create, line, text, until, upload, with_folder};
use crate::client::TestServer;

fn load(progress: &mut dyn FnMut(usize, usize)) -> Result<LoadedModel> {
    LoadedModel::load_files(default_model_files(), LoadOptions::default(), progress)
}

#[test]
fn texts_of_a_batch_are_embedded() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 4);
    let url = "/v1/embeddings";
    let body = json!({"input": ["The red fox", "A lake"], "dimensions": 8});
    let packed = json!({"input": "A lake", "encoding_format": "base64"});
    let lines = [
        line("a", url, &body),
        line("b", url, &packed),
        line("c", url, &json!({"input": []})),
    ];
    let file = upload(&server, &lines);
    let made = create(&server, &file, url, "24h");
    let done = until(&server, &made["id"], "completed");
    let counts = json!({"total": 3, "completed": 2, "failed": 1});
    assert_eq!(done["request_counts"], counts);
    let answers = content(&server, &done["output_file_id"]);
    for (id, body) in [("a", &body), ("b", &packed)] {
        assert_eq!(
            answers[id]["response"]["body"],
            server.ok(url, body),
            "{id}"
        );
    }
    let errors = content(&server, &done["error_file_id"]);
    let message = text(&errors["c"]["response"]["body"]["error"]["message"]);
    assert_eq!(message, "input is empty");
}

/// The lines of a batch wait while the server sleeps, and no model is loaded for them.
#[test]
fn a_batch_waits_for_a_server_that_sleeps() {
    let folder = tempfile::tempdir().unwrap();
    let model = PooledModel::new(["a"], load);
    let server = TestServer::pool(vec![model], PoolOptions::default(), |options| {
        options.batch_dir = Some(folder.path().to_owned());
    });
    assert_eq!(server.post("/sleep", &json!({})).status, 200);
    let file = upload(&server, &[chat("x", 4), chat("y", 4)]);
    let made = create(&server, &file, "/v1/chat/completions", "24h");
    until(&server, &made["id"], "in_progress");
    std::thread::sleep(Duration::from_millis(700));
    let waiting = batch(&server, &made["id"]);
    assert_eq!(
        (&waiting["status"], &waiting["request_counts"]["failed"]),
        (&json!("in_progress"), &json!(0))
    );
    let asleep = json!({"is_sleeping": true});
    assert_eq!(server.get("/is_sleeping").json(), asleep);
    assert_eq!(server.get("/v1/models/a").json()["state"], "unloaded");
    assert_eq!(server.post("/wake_up", &json!({})).status, 200);
    let done = until(&server, &made["id"], "completed");
    let counts = json!({"total": 2, "completed": 2, "failed": 0});
    assert_eq!(done["request_counts"], counts);
}

/// A line loads its model. If that fails, also for want of memory, the line gets the error.
#[test]
fn the_lines_of_a_batch_load_their_models() {
    let folder = tempfile::tempdir().unwrap();
    let fails = |kind, words: &'static str| {
        move |_: &mut dyn FnMut(usize, usize)| -> Result<LoadedModel> {
            Err(Error::new(kind, words))
        }
    };
    let models = vec![
        PooledModel::new(["a"], load),
        PooledModel::new(["large"], fails(ErrorKind::Memory, "no memory for 7 bytes")),
        PooledModel::new(["broken"], fails(ErrorKind::Format, "a shard ends early")),
    ];
    let server = TestServer::pool(models, PoolOptions::default(), |options| {
        options.batch_dir = Some(folder.path().to_owned());
    });
    assert_eq!(server.get("/v1/models/a").json()["state"], "unloaded");
    let url = "/v1/completions";
    let lines = ["a", "large", "broken"].map(|model| {
        line(
            model,
            url,
            &json!({"model": model, "prompt": "x", "max_tokens": 2}),
        )
    });
    let file = upload(&server, &lines);
    let made = create(&server, &file, url, "24h");
    let done = until(&server, &made["id"], "completed");
    let counts = json!({"total": 3, "completed": 1, "failed": 2});
    assert_eq!(done["request_counts"], counts);
    let answers = content(&server, &done["output_file_id"]);
    assert_eq!(answers["a"]["response"]["body"]["model"], "a");
    let errors = content(&server, &done["error_file_id"]);
    for (id, status, words) in [
        ("large", 503, "no memory for 7 bytes"),
        ("broken", 400, "a shard ends early"),
    ] {
        let response: &Value = &errors[id]["response"];
        assert_eq!(response["status_code"], status, "{response}");
        let message = text(&response["body"]["error"]["message"]);
        assert!(message.contains(words), "{message}");
    }
}

//! Python's huggingface_hub and this crate share a cache. `cargo xtask test` names a Python that has it; without one
//! the test reports that it was skipped.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::mock::{COMMIT, Mock, etag, noise};
use crate::{CONFIG, builder, get, pulled};

/// The output of the Python script.
fn python(args: &[&Path], url: &str) -> Option<Value> {
    let Some(python) = std::env::var_os("MLX_TEST_PYTHON") else {
        eprintln!("left out: MLX_TEST_PYTHON names no Python with huggingface_hub");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hub/huggingface_hub_cache.py");
    let mut command = Command::new(python);
    for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"] {
        command.env_remove(name);
    }
    let output = command
        .arg(script)
        .args(args)
        .env("HF_ENDPOINT", url)
        .env("HF_HOME", args[1])
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_UPDATE_CHECK", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    Some(serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}")))
}

#[test]
fn each_reads_what_the_other_has_fetched() {
    let weights = noise(300_000);
    let files: [(&str, &[u8]); 4] = [
        ("config.json", CONFIG),
        ("tokenizer.json", b"{}"),
        ("additional_chat_templates/rag.jinja", b"{{ x }}"),
        ("model.safetensors", &weights),
    ];
    let mock = Mock::new(&files);
    let ours = tempfile::tempdir().unwrap();
    let found = pulled(&mock, ours.path()).0.unwrap();
    let asked = mock.log().len();
    let Some(read) = python(&[Path::new("read"), ours.path()], &mock.url) else {
        return;
    };
    assert_eq!(mock.log().len(), asked, "it needs nothing more");
    assert_eq!(
        read["snapshot"],
        found.path().canonicalize().unwrap().to_str().unwrap()
    );
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(
        read["scan"],
        serde_json::json!([["org/name", COMMIT, ["main"], total]])
    );
    assert_eq!(read["warnings"], serde_json::json!([]));
    for (file, bytes) in files {
        assert_eq!(read["sizes"][file], bytes.len(), "{file}");
    }

    let theirs = tempfile::tempdir().unwrap();
    let written = python(&[Path::new("write"), theirs.path()], &mock.url).unwrap();
    let asked = mock.log().len();
    let hub = builder(&mock.url, theirs.path())
        .offline(true)
        .build()
        .unwrap();
    let found = get(&hub).0.unwrap();
    assert_eq!(
        written["snapshot"],
        found.path().canonicalize().unwrap().to_str().unwrap()
    );
    assert_eq!(
        std::fs::read(found.path().join("model.safetensors")).unwrap(),
        weights
    );
    let list = hub.cached().unwrap();
    assert_eq!((list.len(), list[0].bytes), (1, total as u64));
    let hub = builder(&mock.url, theirs.path()).build().unwrap();
    assert_eq!(get(&hub).0.unwrap().fetched_bytes(), 0);
    assert_eq!(
        mock.log().len(),
        asked + 1,
        "the revision alone is asked for"
    );

    // A lock that one program holds excludes the other.
    let tag = etag("model.safetensors", &weights);
    let lock = ours
        .path()
        .join(".locks/models--org--name")
        .join(format!("{tag}.lock"));
    let held = python(&[Path::new("lock"), ours.path(), &lock], &mock.url).unwrap();
    assert_eq!(held["free"], true);
    let file = std::fs::File::open(&lock).unwrap();
    file.lock().unwrap();
    let held = python(&[Path::new("lock"), ours.path(), &lock], &mock.url).unwrap();
    assert_eq!(held["free"], false);
}

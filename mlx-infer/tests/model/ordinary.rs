//! Parts of a checkpoint that are not ordinary files: each is refused at once, and the error names
//! it.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::checkpoint;
use crate::command::with_input;

/// Puts a special file of this kind, or a file of a terabyte, at `path`.
fn put(kind: &str, path: &Path) {
    let _ = fs::remove_file(path);
    match kind {
        "pipe" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        "device" => std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        "folder" => fs::create_dir(path).unwrap(),
        _ => File::create(path).unwrap().set_len(1 << 40).unwrap(),
    }
}

fn refused(args: &[&str], name: &str, kind: &str) {
    let started = Instant::now();
    let output = with_input(args, b"[{\"role\": \"user\", \"content\": \"a\"}]");
    let took = started.elapsed();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{name} {kind}: {stderr}");
    let line = stderr.strip_prefix("error: ").unwrap_or_default();
    assert!(
        line.contains(name) && line.lines().count() == 1,
        "{kind}: {stderr}"
    );
    let says_kind = line.contains(&format!("not a file but a {kind}"));
    assert!(says_kind || kind == "terabyte", "{name} {kind}: {stderr}");
    // The command alone takes a tenth of this.
    assert!(took < Duration::from_secs(5), "{name} {kind}: {took:?}");
}

const KINDS: [&str; 4] = ["pipe", "device", "folder", "terabyte"];

#[test]
fn parts_of_a_checkpoint() {
    let base = checkpoint::with_tokenizer("llama_tied", "qwen");
    let adapter = tempfile::tempdir().unwrap();
    let [dir, adapter_dir] = [&base, &adapter].map(|dir| dir.path().to_str().unwrap());
    let chat = ["chat", "--model", dir, "--render", "--messages", "-"];
    let tokenize = ["tokenize", "--model", dir, "--text", "a"];
    let generate = ["generate", "--model", dir, "--tokens", "1"];
    let adapted = [&generate[..], &["--adapter", adapter_dir]].concat();
    let cached = [&generate[..], &["--prompt-cache", adapter_dir]].concat();
    let index = "model.safetensors.index.json";
    for (name, args) in [
        ("config.json", &generate[..]),
        ("generation_config.json", &generate),
        ("tokenizer.json", &tokenize),
        ("tokenizer_config.json", &tokenize),
        ("chat_template.json", &chat),
        ("chat_template.jinja", &chat),
        ("additional_chat_templates/rag.jinja", &chat),
        ("model.safetensors", &generate),
        (index, &generate),
    ] {
        for kind in KINDS {
            // A folder in this folder is not read as a template.
            if kind == "folder" && name.starts_with("additional") {
                continue;
            }
            let copy = checkpoint::with_tokenizer("llama_tied", "qwen");
            let path = copy.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if name == index {
                fs::remove_file(copy.path().join("model.safetensors")).unwrap();
            }
            put(kind, &path);
            let copy = copy.path().to_str().unwrap();
            let args: Vec<&str> = args
                .iter()
                .map(|&arg| if arg == dir { copy } else { arg })
                .collect();
            refused(&args, name, kind);
        }
    }
    for kind in KINDS {
        for name in ["adapter_config.json", "adapters.safetensors"] {
            let adapter = tempfile::tempdir().unwrap();
            let config = "{\"fine_tune_type\": \"lora\", \"num_layers\": 2, \
                \"lora_parameters\": {\"rank\": 2, \"scale\": 2.0, \"dropout\": 0.0}}";
            fs::write(adapter.path().join("adapter_config.json"), config).unwrap();
            put(kind, &adapter.path().join(name));
            let other = adapter.path().to_str().unwrap();
            let args = adapted
                .iter()
                .map(|&arg| if arg == adapter_dir { other } else { arg });
            refused(&args.collect::<Vec<_>>(), name, kind);
        }
        let caches = tempfile::tempdir().unwrap();
        let path = caches.path().join("cache.safetensors");
        put(kind, &path);
        let path = path.to_str().unwrap();
        let args = cached
            .iter()
            .map(|&arg| if arg == adapter_dir { path } else { arg });
        refused(&args.collect::<Vec<_>>(), "cache.safetensors", kind);
    }
}

//! Wrong usage and malformed checkpoints: the right exit status and one clear message, never a panic.

use std::path::Path;

use serde_json::{Value, json};

use crate::checkpoint;
use crate::command::{mlx_infer, with_input};

/// The message of a command that must fail with this status, without other output.
fn message(args: &[&str], status: i32) -> String {
    let output = mlx_infer(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let is_error = |line: &&str| !line.starts_with("warning: ");
    let stderr: Vec<&str> = stderr.lines().filter(is_error).collect();
    let stderr = stderr.join("\n");
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(
        stderr.starts_with("error: ") && !stderr.contains("panicked"),
        "{args:?}: {stderr}"
    );
    stderr
}

/// The single line with which generation from a checkpoint fails.
fn refusal(dir: &Path) -> String {
    let args = [
        "generate",
        "--model",
        dir.to_str().unwrap(),
        "--tokens",
        "1,2",
        "--max-tokens",
        "2",
        "--ignore-eos",
    ];
    let stderr = message(&args, 1);
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn wrong_usage_exits_with_2() {
    let dir = checkpoint::dir("qwen3");
    let model = ["generate", "--model", dir.to_str().unwrap()];
    let tokens = ["--tokens", "1,2"];
    let cases: [(&[&str], &str); 18] = [
        (&[], "--prompt"),
        (&["--tokens", "1,x"], "'x'"),
        (&["--tokens", ""], "--tokens"),
        (&["--tokens", "1", "--prompt", "a"], "cannot be used with"),
        (&["--tokens", "4294967296"], "4294967296"),
        (&["--nonsense"], "--nonsense"),
        (&["--top-p", "1.7"], "top_p must be in (0, 1], given 1.7"),
        (&["--temperature=-1"], "given -1"),
        (&["--temperature", "nan"], "given NaN"),
        (&["--min-p", "2"], "min_p must be in [0, 1], given 2"),
        (
            &["--max-tokens", "0"],
            "max_tokens must be at least 1, given 0",
        ),
        (
            &["--max-tokens", "99999999999999999999999"],
            "99999999999999999999999",
        ),
        (
            &["--context-len", "0"],
            "context-len must be at least 1, given 0",
        ),
        (&["--dtype", "int4"], "int4"),
        (&["--kv-bits", "3"], "4 or 8 bits, given affine, 3 bits"),
        (
            &["--kv-bits", "7"],
            "kv-bits and kv-group-size: affine quantization has bits",
        ),
        (
            &["--kv-bits", "8", "--kv-group-size", "48"],
            "has group sizes [32, 64, 128], given 48",
        ),
        (&["--kv-group-size", "64"], "--kv-bits"),
    ];
    for (flags, word) in cases {
        let has_prompt = flags.is_empty() || flags.contains(&"--tokens");
        let prompt: &[&str] = if has_prompt { &[] } else { &tokens };
        let stderr = message(&[&model[..], prompt, flags].concat(), 2);
        assert!(stderr.contains(word), "{flags:?}: {stderr}");
    }
    message(&["sing"], 2);
    message(&["score"], 2);
    message(&["chat", "--render"], 2);
    message(&["generate", "--prompt", "a", "--stop", ""], 2);
}

#[test]
fn requests_that_the_model_cannot_answer_exit_with_1() {
    let dir = checkpoint::dir("phi3_longrope");
    let dir = dir.to_str().unwrap();
    let long = vec!["1"; 161].join(",");
    let cases: [(&[&str], &str); 7] = [
        (
            &["generate", "--tokens", "1,64"],
            "token id 64 at index 1 is outside the model's vocabulary of 64",
        ),
        (&["generate", "--tokens", &long], "160 positions"),
        (&["generate", "--prompt", "text"], "has no tokenizer.json"),
        (
            &["generate", "--prompt-file", "/does/not/exist"],
            "/does/not/exist",
        ),
        (&["score", "--tokens", "4294967295"], "4294967295"),
        (&["score", "--text", "text"], "has no tokenizer.json"),
        (
            &["chat", "--messages", "/does/not/exist"],
            "/does/not/exist",
        ),
    ];
    for (args, word) in cases {
        let stderr = message(&[args, &["--model", dir]].concat(), 1);
        assert!(stderr.contains(word), "{args:?}: {stderr}");
    }
    let no_model = message(&["info", "--model", "/does/not/exist"], 1);
    assert!(
        no_model.contains("/does/not/exist does not exist"),
        "{no_model}"
    );
    // However large --max-tokens is, the generation ends at the model's last position, and caches
    // take memory only for the positions that are used.
    let huge = u64::MAX.to_string();
    let args = [
        "generate",
        "--model",
        dir,
        "--tokens",
        "1",
        "--max-tokens",
        &huge,
        "--ignore-eos",
        "--json",
    ];
    let found: Value = serde_json::from_slice(&mlx_infer(&args).stdout).unwrap();
    assert_eq!(found["tokens"].as_array().unwrap().len(), 159);
}

#[test]
fn malformed_conversations_exit_with_1() {
    let copy = checkpoint::with_tokenizer("llama_tied", "flags");
    std::fs::write(
        copy.path().join("chat_template.jinja"),
        "{{ messages[0].content }}",
    )
    .unwrap();
    let deep = "[".repeat(100_000);
    for text in [
        "",
        "{",
        "[]",
        "{}",
        "3",
        "[1]",
        "[{\"content\": \"x\"}]",
        "{\"messages\": 1}",
        &deep,
    ] {
        let args = [
            "chat",
            "--model",
            copy.path().to_str().unwrap(),
            "--messages",
            "-",
            "--render",
        ];
        let output = with_input(&args, text.as_bytes());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.trim_end().lines().count() == 1,
            "{stderr}"
        );
    }
    let output = with_input(&["generate", "--prompt-file", "-"], b"\xff\xfe");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn malformed_files_are_refused_in_one_line() {
    let case = "qwen3";
    let weights = std::fs::read(checkpoint::dir(case).join("model.safetensors")).unwrap();
    let files: [(&str, Vec<u8>, &str); 12] = [
        ("config.json", b"{".to_vec(), "config.json"),
        ("config.json", b"[]".to_vec(), "config.json"),
        (
            "config.json",
            "[".repeat(100_000).into_bytes(),
            "config.json",
        ),
        (
            "config.json",
            br#"{"model_type": "mamba9"}"#.to_vec(),
            "mamba9",
        ),
        ("model.safetensors", Vec::new(), "model.safetensors"),
        (
            "model.safetensors",
            b"12345678".to_vec(),
            "model.safetensors",
        ),
        (
            "model.safetensors",
            weights[..weights.len() - 1].to_vec(),
            "model.safetensors",
        ),
        (
            "model.safetensors",
            weights[..100].to_vec(),
            "model.safetensors",
        ),
        (
            "model.safetensors",
            [&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
            "model.safetensors",
        ),
        ("tokenizer.json", b"{".to_vec(), "tokenizer.json"),
        (
            "generation_config.json",
            br#"{"eos_token_id": "x"}"#.to_vec(),
            "eos_token_id",
        ),
        (
            "model.safetensors.index.json",
            br#"{"weight_map": {"a": "../../secret.safetensors"}}"#.to_vec(),
            "../../secret.safetensors",
        ),
    ];
    for (name, bytes, word) in files {
        let copy = checkpoint::with_config(case, |_| ());
        if name.ends_with(".index.json") {
            // The index is read only if there is no single file, as in transformers.
            std::fs::remove_file(copy.path().join("model.safetensors")).unwrap();
        }
        std::fs::write(copy.path().join(name), &bytes).unwrap();
        let stderr = refusal(copy.path());
        assert!(stderr.contains(word), "{name}: {stderr}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(refusal(empty.path()).contains("config.json"));
    let copy = checkpoint::with_config(case, |_| ());
    std::fs::remove_file(copy.path().join("model.safetensors")).unwrap();
    assert!(refusal(copy.path()).contains("safetensors"));
}

#[test]
fn absurd_configs_are_refused_in_one_line() {
    let keys = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "head_dim",
        "max_position_embeddings",
    ];
    let values = [
        json!(0),
        json!(-1),
        json!(2_147_483_647),
        json!(1e30),
        json!("many"),
        json!([1]),
    ];
    for key in keys {
        for value in &values {
            let fits = key == "max_position_embeddings" && value.as_i64() == Some(2_147_483_647);
            if fits {
                continue;
            }
            let copy = checkpoint::with_config("qwen3", |config| config[key] = value.clone());
            refusal(copy.path());
        }
    }
    let copy = checkpoint::with_config("llama_yarn", |config| {
        config["rope_scaling"] = json!({"rope_type": "foo", "factor": 2.0});
    });
    assert!(refusal(copy.path()).contains("foo"));
}

//! The back end through the command: flags, the fallback for unknown families, the list of back ends.

use std::process::Command;

use serde_json::Value;

use super::bridge::Fake;
use crate::checkpoint;
use crate::command::mlx_infer;

fn stderr_of(args: &[&str], status: i32) -> String {
    let output = mlx_infer(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    stderr
}

#[test]
fn the_command_runs_it_and_refuses_flags_that_it_lacks() {
    let fake = Fake::new("good");
    let python = fake.options().python.unwrap();
    let python = python.to_str().unwrap();
    let output = mlx_infer(&[
        "generate",
        "--backend",
        "mlx-lm",
        "--python",
        python,
        "--prompt",
        "The",
        "--max-tokens",
        "3",
        "--ignore-eos",
        "--json",
    ]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["tokens"], serde_json::json!([5, 6, 7]));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "back end: mlx_lm 0.0-fake\n"
    );

    for (flags, expected) in [
        (
            &["--regex", "a+"][..],
            "grammar is not supported by the mlx-lm back end",
        ),
        (
            &["--speculative", "auto"],
            "speculative is not supported by the mlx-lm back end",
        ),
        (
            &["--kv-bits", "8"],
            "--kv-bits is not supported with --backend mlx-lm",
        ),
        (
            &["--context-len", "8"],
            "--context-len is not supported with --backend mlx-lm",
        ),
        (
            &["--allow-nan"],
            "--allow-nan is not supported with --backend mlx-lm",
        ),
        (
            &["--prompt-cache", "x"],
            "--prompt-cache is not supported with --backend mlx-lm",
        ),
    ] {
        let args = [
            &[
                "generate",
                "--backend",
                "mlx-lm",
                "--python",
                python,
                "--prompt",
                "x",
            ],
            flags,
        ]
        .concat();
        assert!(stderr_of(&args, 2).contains(expected), "{flags:?}");
    }
    let stderr = stderr_of(&["generate", "--python", python, "--prompt", "x"], 2);
    assert!(
        stderr.contains("--python is for --backend mlx-lm"),
        "{stderr}"
    );
}

/// The project's CUDA library sets this variable in its own process. The bridge gets it only if the
/// user has set it.
#[test]
fn the_bridge_gets_the_users_setting_of_cuda_graphs() {
    let fake = Fake::new("tells-graphs");
    let python = fake.options().python.unwrap();
    for given in [None, Some("0"), Some("1")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-infer"));
        command.env_remove("MLX_USE_CUDA_GRAPHS");
        command.envs(given.map(|value| ("MLX_USE_CUDA_GRAPHS", value)));
        command.args(["generate", "--backend", "mlx-lm", "--prompt", "The"]);
        let output = command.arg("--python").arg(&python).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let told = format!("graphs: {}", given.unwrap_or("None"));
        assert!(stderr.contains(&told), "{stderr}");
    }
}

#[test]
fn an_unknown_family_names_the_back_end_that_may_have_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("config.json"),
        r#"{"model_type": "new_family"}"#,
    )
    .unwrap();
    std::fs::copy(
        checkpoint::dir("qwen2").join("model.safetensors"),
        folder.path().join("model.safetensors"),
    )
    .unwrap();
    let stderr = stderr_of(
        &[
            "generate",
            "--model",
            folder.path().to_str().unwrap(),
            "--prompt",
            "x",
        ],
        1,
    );
    assert!(
        stderr.contains(r#"model_type "new_family" is not supported; known: "#),
        "{stderr}"
    );
    assert!(
        stderr.contains("may load it") && stderr.contains("--backend mlx-lm"),
        "{stderr}"
    );
}

#[test]
fn back_ends_are_listed_with_what_is_missing() {
    let output = mlx_infer(&["backends", "--json", "--python", "/no/such/python"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list[0]["name"], "native");
    assert_eq!(list[0]["available"], true);
    assert_eq!(
        (&list[1]["name"], &list[1]["available"]),
        (&"mlx-lm".into(), &false.into())
    );
    assert!(
        list[1]["missing"]
            .as_str()
            .unwrap()
            .starts_with("cannot run /no/such/python: ")
    );
    let output = mlx_infer(&["backends", "--python", "/no/such/python"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("mlx-lm   not available: cannot run /no/such/python"),
        "{text}"
    );
}

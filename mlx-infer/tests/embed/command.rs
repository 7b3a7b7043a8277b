//! `mlx-infer embed`: lines in, vectors out.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use mlx_infer::mlx_core::{self, Safetensors};
use serde_json::{Value, json};

use crate::cases::{case, folder, headless, load, texts};
use crate::vectors;

fn run(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The library's vectors, in each form of output.
#[test]
fn every_form_of_output_has_the_librarys_vectors() {
    let dir = folder(case("nomic_bert"));
    let model = dir.path().to_str().unwrap();
    let expected = vectors(&load(dir.path()), "query");
    let input = texts().join("\n") + "\n";
    let flags = ["embed", "--model", model, "--prompt-name", "query"];

    let plain = stdout(&run(&flags, &input));
    let plain: Vec<Vec<f32>> = plain
        .lines()
        .map(|line| {
            line.split(' ')
                .map(|number| number.parse().unwrap())
                .collect()
        })
        .collect();
    assert_eq!(plain, expected);

    let json = stdout(&run(&[&flags[..], &["--json"]].concat(), &input));
    for (at, (line, expected)) in json.lines().zip(&expected).enumerate() {
        let document: Value = serde_json::from_str(line).unwrap();
        assert_eq!(document["line"], at + 1);
        let found: Vec<f32> = serde_json::from_value(document["embedding"].clone()).unwrap();
        assert_eq!(&found, expected);
        assert!(document["tokens"].as_u64().unwrap() > 2);
    }

    let npy = dir.path().join("out.npy");
    let file = dir.path().join("out.safetensors");
    let lines: Vec<String> = texts()
        .iter()
        .map(|text| json!({"body": text}).to_string())
        .collect();
    for out in [&npy, &file] {
        let more = ["--field", "body", "--out", out.to_str().unwrap()];
        stdout(&run(&[&flags[..], &more].concat(), &lines.join("\n")));
    }
    let mlx_core::files::Loaded::Array(npy) = mlx_core::load(&npy).unwrap() else {
        panic!("npy has one array");
    };
    let file = Safetensors::open(&file)
        .unwrap()
        .array("embeddings")
        .unwrap();
    for array in [npy, file] {
        assert_eq!(array.shape(), [6, 32]);
        assert_eq!(array.to_vec::<f32>().unwrap(), expected.concat());
    }
}

/// A converted checkpoint keeps its modules and prompts, and embeds alike.
#[test]
fn a_quantised_encoder_keeps_its_modules() {
    for name in ["bert_pools", "nomic_bert"] {
        let dir = folder(case(name));
        let (model, out) = (dir.path().to_str().unwrap(), dir.path().join("small"));
        let flags = [
            "convert",
            "--model",
            model,
            "--quantize",
            "--bits",
            "8",
            "--group-size",
            "32",
        ];
        stdout(&run(
            &[&flags[..], &["--out", out.to_str().unwrap()]].concat(),
            "",
        ));
        let small = load(&out);
        assert!(small.info().quantization.is_some());
        for (small, whole) in vectors(&small, "query")
            .iter()
            .zip(vectors(&load(dir.path()), "query"))
        {
            let cosine = crate::cosine(small, &whole);
            assert!(cosine > 0.99 && cosine < 1.0 - 1e-7, "{name}: {cosine}");
        }
    }
}

#[test]
fn wrong_flags_and_lines_are_refused() {
    let dir = folder(case("bert_pools"));
    let model = dir.path().to_str().unwrap();
    let refused = |args: &[&str], input: &str, code: i32, words: &[&str]| {
        let output = run(&[&["embed", "--model", model], args].concat(), input);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(words.iter().all(|word| stderr.contains(word)), "{stderr}");
    };
    refused(
        &["--out", "x.txt"],
        "",
        2,
        &["x.txt", ".npy or .safetensors"],
    );
    refused(&["--json", "--out", "x.npy"], "", 2, &["--json", "--out"]);
    refused(&["--dimensions", "25"], "", 1, &["1..=24"]);
    refused(
        &["--prompt-name", "passage"],
        "",
        1,
        &["passage", "document, query"],
    );
    // A file has a row for each line.
    let out = dir.path().join("x.npy");
    let flags = ["--field", "a", "--out", out.to_str().unwrap()];
    refused(
        &flags,
        "{\"a\": \"x\"}\n{}\n",
        1,
        &["line 2", "there is no \"a\""],
    );
    assert!(!out.exists());
    let output = run(
        &["embed", "--model", model, "--field", "a", "--json"],
        "{}\n{\"a\": \"x\"}\n",
    );
    let lines = stdout(&output);
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        lines[0]["error"]
            .as_str()
            .unwrap()
            .contains("there is no \"a\"")
    );
    assert_eq!(lines[1]["embedding"].as_array().unwrap().len(), 24);
    // An encoder cannot generate.
    let output = run(&["generate", "--model", model, "--prompt", "x"], "");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && stderr.contains("is an encoder"),
        "{stderr}"
    );
}

#[test]
fn a_decoder_without_its_head_embeds_only() {
    let dir = folder(&headless("qwen3"));
    let model = dir.path().to_str().unwrap();
    let input = texts().join("\n") + "\n";
    let found = stdout(&run(&["embed", "--model", model], &input));
    assert_eq!(found.lines().count(), texts().len());
    let info = stdout(&run(&["info", "--model", model, "--json"], ""));
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["task"], "embed, without an output head");
    for (command, flag) in [("generate", "--prompt"), ("score", "--text")] {
        let output = run(&[command, "--model", model, flag, "x"], "");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command}: {stderr}");
        assert!(
            stderr.contains("no output head (lm_head.weight)"),
            "{command}: {stderr}"
        );
    }
}

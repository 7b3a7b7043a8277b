//! The command: train, kill, resume, fuse, evaluate, and its refusals.
#![cfg(feature = "cli")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

fn testdata(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    path.join(name).to_str().unwrap().to_owned()
}

/// A folder with data as token ids, for models without a tokenizer.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines = |from: usize, to: usize| -> String {
        (from..to)
            .map(|index| {
                let tokens: Vec<usize> =
                    (0..5 + index % 7).map(|at| (index * 3 + at) % 60).collect();
                format!(
                    "{}\n",
                    json!({"tokens": tokens, "prompt_tokens": index % 3})
                )
            })
            .collect()
    };
    fs::write(dir.path().join("train.jsonl"), lines(0, 13)).unwrap();
    fs::write(dir.path().join("valid.jsonl"), lines(13, 18)).unwrap();
    dir
}

fn command(dir: &TempDir, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
    command
        .current_dir(dir.path())
        .args(line.split_whitespace());
    command
}

fn run(dir: &TempDir, line: &str) -> Output {
    command(dir, line).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a command that must succeed, and returns its output.
fn ok(dir: &TempDir, line: &str) -> String {
    let output = run(dir, line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// Runs a command that must fail with status 1 and one line, and returns that line.
fn refused(dir: &TempDir, line: &str) -> String {
    let output = run(dir, line);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{line}: {}",
        text(&output.stderr)
    );
    let stderr = text(&output.stderr);
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    errors[0].to_owned()
}

fn eval(dir: &TempDir, line: &str) -> Value {
    serde_json::from_str(&ok(dir, &format!("eval --data valid.jsonl --json {line}"))).unwrap()
}

/// A run that saves at every step and is killed at different moments ends with the same bits as an
/// uninterrupted run.
#[test]
fn a_run_that_is_killed_again_and_again_computes_the_same() {
    let dir = folder();
    let model = testdata("qwen3");
    let line = format!(
        "lora --model {model} --dtype f32 --data . --steps 40 --batch-size 2 --accumulate 2 \
         --learning-rate 1e-3 --schedule cosine --warmup 3 --rank 2 --dropout 0.1 --clip 1 \
         --eval-every 7 --save-every 1"
    );
    let started = Instant::now();
    ok(&dir, &format!("{line} --out whole"));
    let length = started.elapsed();
    let parameters =
        |out: &str| fs::read(dir.path().join(out).join("adapters.safetensors")).unwrap();
    let mut kills = 0;
    // The step of the last checkpoint. A name that does not begin with a digit is one that is being written.
    let checkpoints = dir.path().join("parts/checkpoints");
    let last_step = || -> u32 {
        let entries = fs::read_dir(&checkpoints).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name());
        let steps = names.filter_map(|name| name.to_str()?.parse().ok());
        steps.max().unwrap_or(0)
    };
    for attempt in 0u32.. {
        let first = last_step();
        let flag = if first > 0 { "--resume" } else { "" };
        let mut child = command(&dir, &format!("{line} --out parts {flag}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The run is killed after a part of the time that it takes on this machine, longer at each attempt, so that it
        // reaches its end; and after 12 steps, because the machine may be faster by now.
        let started = Instant::now();
        let part = length * (20 + attempt * 17 % 23 + attempt * 6) / 100;
        while started.elapsed() < part && last_step() < first + 12 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            kills += 1;
        }
        child.wait().unwrap();
        if last_step() == 40 {
            break;
        }
    }
    assert!(kills > 1, "the run was killed {kills} times");
    assert!(parameters("whole") == parameters("parts"));
    assert!(parameters("whole/best") == parameters("parts/best"));
}

#[test]
fn an_adapter_is_trained_used_and_fused() {
    let dir = folder();
    for (name, extra) in [
        ("qwen3", "--dora"),
        ("q_llama_b4_g64", "--keys self_attn.*"),
        ("gemma3_text", "--pack"),
        (
            "q_qwen3_moe_b4_g32",
            "--keys mlp.*,model.embed_tokens --dropout 0.1",
        ),
        ("q_qwen3_5_mixed", "--keys linear_attn.*"),
    ] {
        let model = testdata(name);
        let out = format!("out-{name}");
        let events = ok(
            &dir,
            &format!(
                "lora --model {model} --dtype f32 --data . --out {out} --steps 12 --learning-rate 3e-3 \
                 --num-layers 2 --eval-every 4 --json {extra}"
            ),
        );
        let events: Vec<Value> = events
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            events
                .iter()
                .filter(|event| event["event"] == "step")
                .count(),
            12
        );
        assert_eq!(
            events
                .iter()
                .filter(|event| event["event"] == "evaluated")
                .count(),
            3
        );
        let metrics = fs::read_to_string(dir.path().join(&out).join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.lines().count(), events.len());
        let svg = fs::read_to_string(dir.path().join(&out).join("loss.svg")).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 2);

        let source = format!("--model {model} --dtype f32");
        let (plain, adapted) = (
            eval(&dir, &source),
            eval(&dir, &format!("{source} --adapter {out}")),
        );
        let loss = |of: &Value| of["loss"].as_f64().unwrap();
        assert!(loss(&adapted) < loss(&plain), "{name}: {adapted} {plain}");
        let last = events
            .iter()
            .rfind(|event| event["event"] == "evaluated")
            .unwrap();
        assert!(
            (loss(last) - loss(&adapted)).abs() < 1e-6,
            "{last} {adapted}"
        );
        ok(
            &dir,
            &format!("fuse --model {model} --adapter {out} --out fused-{name} --dequantize"),
        );
        let fused = eval(&dir, &format!("--model fused-{name} --dtype f32"));
        // Parameters that are stored in 16 bits are rounded once more.
        let tolerance = if name == "qwen3" { 1e-4 } else { 3e-2 };
        assert!(
            (loss(&fused) - loss(&adapted)).abs() < tolerance,
            "{name}: {fused} {adapted}"
        );
    }
}

#[test]
fn full_training_writes_parameters_that_fuse_takes() {
    let dir = folder();
    let model = testdata("qwen2_window");
    ok(
        &dir,
        &format!(
            "full --model {model} --dtype f32 --data train.jsonl --out out --steps 6 --optimizer muon \
             --learning-rate 2e-3 --trainable *.mlp.*,*norm.weight"
        ),
    );
    let adapted = eval(&dir, &format!("--model {model} --dtype f32 --adapter out"));
    ok(
        &dir,
        &format!("fuse --model {model} --adapter out --out fused"),
    );
    let fused = eval(&dir, "--model fused --dtype f32");
    let off = fused["loss"].as_f64().unwrap() - adapted["loss"].as_f64().unwrap();
    assert!(off.abs() < 3e-2, "{fused} {adapted}");
    let again = refused(
        &dir,
        &format!("fuse --model {model} --adapter out --out fused"),
    );
    assert!(again.contains("fused is not empty"), "{again}");
}

/// Conversations, prompts with completions, and texts, with the built-in model's tokenizer.
#[test]
fn texts_are_data_too() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [
        json!({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two three"}]}),
        json!({"prompt": "one", "completion": "two three"}),
        json!({"text": "the red fox"}),
    ];
    let counts: Vec<Value> = ["", "--mask-prompt"]
        .iter()
        .flat_map(|flag| lines.iter().map(move |line| (flag, line)))
        .map(|(flag, line)| {
            fs::write(dir.path().join("valid.jsonl"), format!("\n{line}\n")).unwrap();
            eval(&dir, flag)["tokens"].clone()
        })
        .collect();
    // The two forms are the same conversation; a masked prompt counts fewer tokens, a text counts all.
    assert_eq!(counts[0], counts[1]);
    assert_eq!(counts[3], counts[4]);
    assert!(counts[3].as_u64() < counts[0].as_u64() && counts[3].as_u64() > Some(1));
    assert_eq!(counts[2], counts[5]);
}

#[test]
fn long_examples_are_cut_and_reported() {
    let dir = folder();
    let model = testdata("qwen3");
    let output = run(
        &dir,
        &format!("eval --model {model} --data valid.jsonl --max-seq-length 6"),
    );
    assert!(output.status.success());
    assert!(
        text(&output.stderr).contains("examples were cut"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn bad_input_is_refused_by_place() {
    let dir = folder();
    let model = testdata("qwen3");
    let base = format!("lora --model {model} --data data.jsonl --steps 1 --out out");
    let good = r#"{"tokens":[1,2,3]}"#;
    for (line, message) in [
        ("{\"tokens\":[1,2", "data.jsonl: line 2: EOF while parsing"),
        ("[1]", "line 2: expected an object"),
        (
            "{\"tokens\":[1,64]}",
            "line 2: token 64 is outside the model's vocabulary of 64",
        ),
        ("{\"tokens\":[1,-4]}", "found -4"),
        (
            "{\"tokens\":[1,2],\"prompt_tokens\":3}",
            "prompt_tokens: expected at most 2, found 3",
        ),
        (
            "{\"txt\":\"a\"}",
            "expected messages, prompt and completion, text, or tokens",
        ),
        ("{\"text\":\"a\"}", "the model has no tokenizer.json"),
    ] {
        fs::write(dir.path().join("data.jsonl"), format!("{good}\n{line}\n")).unwrap();
        let error = refused(&dir, &base);
        assert!(error.contains(message), "{line}: {error}");
    }
    fs::write(dir.path().join("data.jsonl"), "{\"tokens\":[1]}\n").unwrap();
    assert!(refused(&dir, &base).contains("no line has anything to learn"));
    fs::write(dir.path().join("data.jsonl"), good).unwrap();
    for (flags, message) in [
        ("--optimizer adamx", "unknown variant `adamx`"),
        ("--schedule step", "known: constant, linear, cosine"),
        (
            "--num-layers 3",
            "num_layers must be from 1 to the model's 2",
        ),
        ("--keys attn.q", "no layer is chosen"),
        (
            "--keys self_attn.q_proj,self_attn.qproj",
            "keys: \"self_attn.qproj\" matches no layer that is trained",
        ),
        ("--rank 0", "rank must be at least 1"),
        ("--batch-size 0", "batch_size must be at least 1"),
        (
            "--learning-rate=-1",
            "a learning rate must be a number of at least 0",
        ),
        ("--dtype f8", "known: f32, bf16, f16"),
        ("--resume", "no checkpoint to resume"),
        ("--config no.yaml", "no.yaml"),
    ] {
        let error = refused(&dir, &format!("{base} {flags}"));
        assert!(error.contains(message), "{flags}: {error}");
    }
    let packed = testdata("q_llama_b4_g64");
    let error = refused(
        &dir,
        &format!("full --model {packed} --data data.jsonl --steps 1 --out out"),
    );
    assert!(
        error.contains("is quantised and cannot be trained"),
        "{error}"
    );
    assert_eq!(run(&dir, "lora --no-such-flag").status.code(), Some(2));
}

/// A YAML file with mlx-lm's names, and flags that override it.
#[test]
fn settings_come_from_a_file() {
    let dir = folder();
    let model = testdata("qwen3");
    let yaml = format!(
        "model: {model}\ndata: train.jsonl\niters: 5\nbatch_size: 2\noptimizer: adamw\n\
         optimizer_config: {{adamw: {{weight_decay: 0.01}}}}\n\
         lr_schedule: {{name: cosine_decay, warmup: 2, arguments: [1.0e-3, 4, 1.0e-4]}}\n\
         lora_parameters: {{rank: 4, scale: 2.0, dropout: 0.1, keys: [self_attn.q_proj]}}\n\
         num_layers: 1\nadapter_path: from-file\n"
    );
    let path: PathBuf = dir.path().join("run.yaml");
    fs::write(&path, &yaml).unwrap();
    let events = ok(&dir, "lora --config run.yaml --rank 3 --json");
    let rates: Vec<f64> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|event| event["rate"].as_f64())
        .collect();
    let expected = [0.0, 5e-4, 1e-3];
    assert!(rates.len() == 5 && rates[..3] == expected, "{rates:?}");
    let config = fs::read(dir.path().join("from-file/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["num_layers"], 1);
    assert_eq!(
        config["lora_parameters"],
        json!({"rank": 3, "scale": 2.0, "dropout": 0.1, "keys": ["self_attn.q_proj"]})
    );
    fs::write(&path, yaml + "no_such_key: 1\n").unwrap();
    let error = refused(&dir, "lora --config run.yaml");
    assert!(error.contains("no_such_key"), "{error}");
}

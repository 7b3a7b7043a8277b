//! `mlx-infer bench`, and what `info` says fits the machine.

use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args(args)
        .output()
        .unwrap()
}

fn stdout(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn speeds_are_measured_by_rows_and_lengths() {
    let args = [
        "bench", "--rows", "1,3", "--prompt", "16,40", "--tokens", "8", "--repeat", "1",
    ];
    let document: Value =
        serde_json::from_str(&stdout(run(&[&args[..], &["--json"]].concat()))).unwrap();
    let lines = document["lines"].as_array().unwrap();
    let asked: Vec<_> = (lines.iter())
        .map(|line| (line["prompt_tokens"].as_u64(), line["rows"].as_u64()))
        .collect();
    let some = |prompt, rows| (Some(prompt), Some(rows));
    assert_eq!(asked, [some(16, 1), some(16, 3), some(40, 1), some(40, 3)]);
    let weights = document["weight_bytes"].as_f64().unwrap();
    for line in lines {
        for key in [
            "prompt_tokens_per_s",
            "decode_tokens_per_s",
            "first_token_s",
        ] {
            assert!(line[key].as_f64().unwrap() > 0.0, "{key}: {line}");
        }
        assert_eq!(line["new_tokens"], 8);
        assert!(
            line["peak_memory_bytes"].as_f64().unwrap() > weights,
            "{line}"
        );
        // The speed of the prompts is their tokens by the time to the first token.
        let tokens = (line["rows"].as_f64().unwrap()) * line["prompt_tokens"].as_f64().unwrap();
        let speed = tokens / line["first_token_s"].as_f64().unwrap();
        let ratio = line["prompt_tokens_per_s"].as_f64().unwrap() / speed;
        assert!((ratio - 1.0).abs() < 1e-6, "{line}");
    }
    let table = stdout(run(&args));
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(
        table.lines().next().unwrap().contains("decode tok/s"),
        "{table}"
    );
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    for (args, word) in [
        (&["--prompt", "600"][..], "512 positions"),
        (&["--tokens", "500"], "give lengths"),
        (&["--tokens", "1"], "at least 2"),
        (&["--rows", "1,0"], "rows must be at least 1"),
        (&["--repeat", "0"], "repeat must be at least 1"),
        (&["--rows", "x"], "x"),
    ] {
        let output = run(&[&["bench"], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && stderr.contains(word),
            "{args:?}: {stderr}"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn info_says_how_many_rows_fit() {
    let document: Value = serde_json::from_str(&stdout(run(&["info", "--json"]))).unwrap();
    let fit = &document["fit"];
    let number = |value: &Value| value.as_u64().unwrap();
    let (free, room) = (number(&fit["free_bytes"]), number(&fit["cache_room_bytes"]));
    assert!(0 < room && room < free, "{fit}");
    let rows = fit["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["context"], 512);
    // The bytes of a row at the whole context, as the document gives them.
    let row = number(&document["memory"]["cache_bytes"]);
    assert_eq!(number(&rows[0]["rows"]), room / row);
    let table = stdout(run(&["info"]));
    assert!(table.contains("rows of 512 tokens"), "{table}");
}

//! `mlx-infer info`.

use mlx_infer::{Files, LoadOptions, LoadedModel};
use mlx_nn::shard::Ranks;
use serde_json::{Value, json};

use crate::checkpoint;
use crate::command::{document, mlx_infer, path, printed};

#[test]
fn info_describes_the_model() {
    let found = document(mlx_infer(&[
        "info",
        "--model",
        &path("q_qwen3_mixed"),
        "--json",
    ]));
    assert_eq!(found["architecture"], "qwen3");
    assert_eq!(found["quantization"]["mode"], "affine");
    assert_eq!(found["context"], 512);
    assert!(found["parameters"].as_u64().unwrap() > 0);
    let memory = &found["memory"];
    let sum = memory["weight_bytes"].as_u64().unwrap() + memory["cache_bytes"].as_u64().unwrap();
    assert_eq!(memory["total_bytes"], json!(sum));
    let args = [
        "info",
        "--model",
        &path("gemma3_text"),
        "--context-len",
        "6",
        "--json",
    ];
    let found = document(mlx_infer(&args));
    assert_eq!(found["quantization"], Value::Null);
    for cache in found["caches"].as_array().unwrap() {
        assert_eq!(
            (cache["kind"].as_str(), &cache["positions"]),
            (Some("ring"), &json!(6))
        );
    }
    assert_eq!(found["mtp"], Value::Null);
    // A head for multi-token prediction, in the model's file and beside it.
    for (case, file) in [
        ("qwen3_5_text", "model.safetensors"),
        ("../hybrid-model", "mtp.safetensors"),
    ] {
        let found = document(mlx_infer(&["info", "--model", &path(case), "--json"]));
        let file = mlx_core::Safetensors::open(checkpoint::dir(case).join(file)).unwrap();
        let of_head = file.names().filter(|name| name.starts_with("mtp."));
        let sizes = of_head.map(|name| file.info(name).unwrap().1.iter().product::<i32>());
        let parameters: i32 = sizes.sum();
        assert_eq!(found["mtp"]["parameters"], json!(parameters));
        assert_eq!(found["mtp"]["quantization"], Value::Null);
        let text = printed(mlx_infer(&["info", "--model", &path(case)]));
        let line = text.lines().find(|line| line.starts_with("mtp head"));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(
            line.contains(&format!(" {parameters} parameters")),
            "{line}"
        );
        assert!(line.ends_with("dense"), "{line}");
    }
    // The built-in model has heads of 64 features: 256 bytes in f32, or codes with two scales and
    // two biases.
    let of = |flags: &[&str]| document(mlx_infer(&[&["info", "--json"], flags].concat()));
    let bytes = |found: &Value| {
        found["memory"]["cache_bytes_per_position"]
            .as_u64()
            .unwrap()
    };
    let wide = bytes(&of(&[]));
    for (bits, packed) in [("4", 32 + 16), ("8", 64 + 16)] {
        let found = of(&["--kv-group-size", "32", "--kv-bits", bits]);
        assert_eq!(found["kv_quantization"]["bits"].to_string(), bits);
        assert_eq!(bytes(&found), wide / 256 * packed);
    }
    let text = printed(mlx_infer(&["info", "--model", &path("gemma3_text")]));
    for word in [
        "gemma3_text",
        "parameters",
        "ring of 8 positions",
        "memory needed",
    ] {
        assert!(text.contains(word), "{text}");
    }
}

/// Without loading, `--ranks` tells the bytes that ranks hold which have loaded their parts.
#[test]
fn the_parts_of_ranks_are_described_as_they_are_loaded() {
    for (case, n, counts) in [
        ("q_qwen2_b4_g32", 2, vec![2]),
        ("mixtral", 2, vec![2, 4]),
        ("qwen3_5_text", 2, vec![2]),
        ("gemma3_text", 4, vec![2, 4]),
    ] {
        let count = n.to_string();
        let args = ["info", "--model", &path(case), "--ranks", &count];
        let found = document(mlx_infer(&[&args[..], &["--json"]].concat()));
        assert_eq!(found["counts"], json!(counts), "{case}");
        let context = found["cache_context"].as_u64().unwrap() as usize;
        let ranks = found["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), n);
        for (rank, part) in ranks.iter().enumerate() {
            let options = LoadOptions {
                ranks: Ranks::new(rank, n).unwrap(),
                ..LoadOptions::default()
            };
            let files = Files::Directory(checkpoint::dir(case));
            let loaded = LoadedModel::load_files(files, options, &mut |_, _| ()).unwrap();
            let costs = loaded.state_costs();
            let caches: usize = costs.iter().map(|cost| cost.bytes(context)).sum();
            let weights = loaded.info().weight_bytes;
            assert_eq!(part["weight_bytes"], json!(weights), "{case} {rank}");
            assert_eq!(part["cache_bytes"], json!(caches), "{case} {rank}");
        }
        let whole = document(mlx_infer(&["info", "--model", &path(case), "--json"]));
        let whole = whole["memory"]["weight_bytes"].as_u64().unwrap();
        let sum: u64 = (ranks.iter())
            .map(|part| part["weight_bytes"].as_u64().unwrap())
            .sum();
        assert!(
            sum >= whole && sum < whole * n as u64,
            "{case}: {sum} {whole}"
        );
        let text = printed(mlx_infer(&args));
        assert!(
            text.contains("ranks that work") && text.contains("rank 1 "),
            "{text}"
        );
    }
    for (ranks, code, words) in [
        ("3", 1, "numbers of ranks that work: 2, 4"),
        ("1", 2, "--ranks must be from 2 to 1024, given 1"),
    ] {
        let output = mlx_infer(&["info", "--ranks", ranks]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

//! Features of hashed n-grams of DeepSeek V4.1: the kinds of tokens are in the config or in a file beside it.

use mlx_core::DType;
use mlx_models::{LoadOptions, Loaded, load};
use serde_json::{Value, json};

use super::case::Case;
use super::renamed::{loaded, tensors};
use super::run::{log_probs, prompt_logits};
use crate::checkpoints::checkpoint;

const KEY: &str = "engram_token_map";

fn case() -> Case {
    let mut cases = Case::all().into_iter();
    cases
        .find(|case| case.name == "deepseek_v41_ngrams")
        .unwrap()
}

fn refused(config: Value) -> String {
    let case = case();
    let files = case.files();
    let loaded = mlx_models::load_from(&case.name, config, files, LoadOptions::default());
    loaded.err().expect("the config is refused").to_string()
}

#[test]
fn kinds_of_tokens_are_read_from_a_file_beside_the_config() {
    let case = case();
    let mut config = case.config("config.json");
    let kinds = config.as_object_mut().unwrap().remove(KEY).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| {
        std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    };
    write("config.json", &config);
    write(&format!("{KEY}.json"), &kinds);
    let weights = "model.safetensors";
    std::fs::copy(
        checkpoint(&case.name).join(weights),
        dir.path().join(weights),
    )
    .unwrap();
    let options = || LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let model = load(dir.path(), options()).unwrap();
    let of = |model: &Loaded| log_probs(&prompt_logits(model, &case.prompts[1]).unwrap()).unwrap();
    assert_eq!(of(&model), of(&case.load("config.json", None).unwrap()));
    // Other kinds are other rows.
    let mut others = kinds.as_array().unwrap().clone();
    others.rotate_left(1);
    write(&format!("{KEY}.json"), &Value::Array(others));
    let model = load(dir.path(), options()).unwrap();
    assert_ne!(of(&model), of(&case.load("config.json", None).unwrap()));
    assert!(refused(config).contains("need engram_token_map.json"));
}

#[test]
fn configs_that_do_not_fit_are_refused_by_name() {
    let changed = |key: &str, value: Value| {
        let mut config = case().config("config.json");
        config[key] = value;
        refused(config)
    };
    for (key, value, words) in [
        (KEY, json!([0, 1, 2]), "has 3 kinds of tokens"),
        ("engram_pad_token_id", json!(64), "engram_pad_token_id 64"),
        (
            "engram_num_embeddings",
            json!([180, 262]),
            "180 rows, but 184",
        ),
        ("engram_num_embeddings", json!([190]), "1 entries for 2"),
        ("engram_max_ngram_size", json!(1), "known: 2 to 16"),
        ("engram_head_dim", json!(12), "not a multiple of 32"),
        ("q_lora_rank", json!(24), "q_lora_rank 24"),
        (
            "kv_source_layer_ids",
            json!([2]),
            "no layer before it keeps any",
        ),
        (
            "index_source_layer_ids",
            json!([2]),
            "not in index_source_layer_ids",
        ),
        (
            "index_source_layer_ids",
            json!([0, 1]),
            "has compress_ratios 0",
        ),
        (
            "compress_ratios",
            json!([0, 1, 2]),
            "layer 2 has compress_ratios 2",
        ),
        ("compress_ratios", json!([0, 1]), "2 entries for 3 layers"),
        ("n_shared_experts", json!(2), "n_shared_experts"),
    ] {
        let message = changed(key, value);
        assert!(message.contains(words), "{key}: {message}");
    }
    let mut config = case().config("config.json");
    config["candidate_source_layer_id"] = json!(1);
    config["candidate_topk_blocks"] = json!(2);
    config["candidate_block_size"] = json!(4);
    assert!(refused(config).contains("can be fewer than index_topk 6"));
}

/// Published configs have the text model's keys in `text_config`. Published tensors have no prefix, and mlx-vlm's have one.
#[test]
fn a_published_config_and_both_forms_of_names_compute_the_same() {
    let case = case();
    let text = case.config("config.json");
    let config = json!({
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "text_config": text,
        "vision_config": {"hidden_size": 8},
        "image_token_id": 60,
    });
    let of = |model: &Loaded| log_probs(&prompt_logits(model, &case.prompts[1]).unwrap()).unwrap();
    let expected = of(&case.load("config.json", None).unwrap());
    for prefix in ["", "language_model."] {
        let named = tensors(&case).into_iter().map(|(name, array)| {
            let name = match prefix {
                "" => name,
                _ if name.starts_with("vision.") => name,
                _ => format!(
                    "{prefix}{}",
                    name.replace("embed.weight", "embed_tokens.weight")
                )
                .replace("engram.embed_tokens", "engram.embed"),
            };
            (name, array)
        });
        let named: Vec<_> = named.collect();
        let model = loaded("deepseek_v41", config.clone(), &named)
            .unwrap_or_else(|error| panic!("{prefix:?}: {error}"));
        assert_eq!(of(&model), expected, "{prefix:?}");
    }
}

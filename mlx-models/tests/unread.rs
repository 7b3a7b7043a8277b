//! Keys that transformers does not read for a family, and tokens in whose place it reads another.

use mlx_core::{Array, DType};
use mlx_models::{LoadOptions, load_from};
use mlx_nn::{CacheOptions, ModelCache};
use serde_json::{Value, json};

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use checkpoints::checkpoint;

const PROMPT: [u32; 24] = [
    1, 5, 9, 17, 3, 22, 8, 40, 31, 12, 50, 7, 44, 19, 28, 2, 36, 11, 53, 25, 14, 6, 47, 33,
];

fn config(case: &str) -> Value {
    let text = std::fs::read(checkpoint(case).join("config.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The logits of a text by the tensors of a case with this config.
fn logits(case: &str, config: &Value, text: &[u32]) -> Vec<f32> {
    let files = mlx_models::open_weights(&checkpoint(case)).unwrap();
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let loaded = load_from(case, config.clone(), files, options).unwrap();
    let model = loaded.model.as_ref();
    let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(text, &[1, text.len() as i32]).unwrap();
    let mut step = cache.begin(&[text.len()]).unwrap();
    let hidden = model.hidden(&input, &mut step).unwrap();
    model.logits(&hidden).unwrap().to_vec().unwrap()
}

/// Every head of GPT-NeoX has keys and values of its own, and outside of its entry the rope has other keys than in other
/// families.
#[test]
fn gpt_neox_has_no_keys_of_other_families() {
    let case = "gpt_neox";
    let mut config = config(case);
    let expected = logits(case, &config, &PROMPT);
    config["num_key_value_heads"] = json!(2);
    config["head_dim"] = json!(16);
    config["partial_rotary_factor"] = json!(1.0);
    config["rope_theta"] = json!(3.0);
    assert_eq!(logits(case, &config, &PROMPT), expected);
    for (key, value) in [("rotary_pct", json!(1.0)), ("rotary_emb_base", json!(3.0))] {
        let mut other = config.clone();
        other[key] = value;
        assert_ne!(logits(case, &other, &PROMPT), expected, "{key}");
    }
    config["rope_scaling"] = json!({"type": "default", "partial_rotary_factor": 1.0});
    assert_ne!(logits(case, &config, &PROMPT), expected);
}

/// YaRN reads `truncate` in the entry of a rope that all layers share, and not in those of kinds of layers.
#[test]
fn entries_of_kinds_of_layers_have_no_truncate() {
    let yarn = |truncate: bool| {
        json!({
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 40,
            "truncate": truncate,
        })
    };
    let at = |case: &str, key: &[&str], truncate: bool| {
        let mut config = config(case);
        let mut place = &mut config;
        for key in key {
            place = &mut place[key];
        }
        *place = yarn(truncate);
        logits(case, &config, &PROMPT)
    };
    let shared = ["rope_scaling"];
    assert_ne!(
        at("llama_yarn", &shared, true),
        at("llama_yarn", &shared, false)
    );
    for (case, entry) in [
        ("gemma3_text_v5", &["rope_parameters", "full_attention"][..]),
        ("gemma3_text", &["rope_scaling"]),
    ] {
        assert_eq!(at(case, entry, true), at(case, entry, false), "{case}");
    }
}

/// A text may have the tokens that stand for images and videos. Muse reads token 0 there, and Gemma 4 the padding.
#[test]
fn placeholders_are_read_as_another_token() {
    for (case, instead) in [("muse_glimmer", 0), ("gemma4", 3), ("gemma4_unified", 3)] {
        let mut config = config(case);
        config["text_config"]["pad_token_id"] = json!(3);
        let plain = logits(case, &config, &PROMPT);
        let (image, video) = (PROMPT[9], PROMPT[20]);
        config["image_token_id"] = json!(image);
        config["video_token_id"] = json!(video);
        let read = PROMPT.map(|token| match token {
            token if token == image || token == video => instead,
            token => token,
        });
        let found = logits(case, &config, &PROMPT);
        assert_eq!(found, logits(case, &config, &read), "{case}");
        assert_ne!(found, plain, "{case}");
        // A config that names none has none.
        config["image_token_id"] = Value::Null;
        config["video_token_id"] = Value::Null;
        assert_eq!(logits(case, &config, &PROMPT), plain, "{case}");
    }
}

/// GPT-2, GPT-J and OPT have other names for the features of the MLP, and heads of one size with keys of their own.
#[test]
fn classics_have_no_keys_of_other_families() {
    for case in ["gpt2", "gpt_bigcode", "gpt_bigcode_heads", "gptj", "opt"] {
        let mut config = config(case);
        let expected = logits(case, &config, &PROMPT);
        config["intermediate_size"] = json!(20);
        config["num_key_value_heads"] = json!(2);
        config["head_dim"] = json!(16);
        assert_eq!(logits(case, &config, &PROMPT), expected, "{case}");
    }
}

/// Configs of decoders that transformers computes without a causal mask, as models for embeddings have them.
#[test]
fn decoders_without_a_causal_mask_are_refused() {
    let case = "qwen3_tied";
    let mut config = config(case);
    config["is_causal"] = json!(true);
    let found = logits(case, &config, &PROMPT);
    assert_eq!(found, logits(case, &self::config(case), &PROMPT));
    config["is_causal"] = json!(false);
    let files = mlx_models::open_weights(&checkpoint(case)).unwrap();
    let Err(error) = load_from(case, config, files, LoadOptions::default()) else {
        panic!("loaded");
    };
    assert!(error.to_string().contains("is_causal false"), "{error}");
}

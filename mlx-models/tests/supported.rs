//! Which published `model_type`s are supported, and why others are not.

use std::collections::BTreeSet;

use mlx_models::Registry;

/// Types that are loaded, in groups: text models of multimodal checkpoints, models of 2026, older models.
const SUPPORTED: &[&str] = &[
    "gemma3",
    "gemma4",
    "lfm2_vl",
    "mistral3",
    "NemotronH_Nano_Omni_Reasoning_V3",
    "nemotron_h_omni",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    //
    "afmoe",
    "bailing_hybrid",
    "bailing_moe",
    "bailing_moe_linear",
    "bailing_moe_v2",
    "cohere2_moe",
    "exaone_moe",
    "hy_v3",
    "laguna",
    "lfm3",
    "mimo_v2",
    "mimo_v2_flash",
    "minimax_m3_vl",
    "muse_glimmer",
    "solar_open",
    "step3p5",
    "step3p7",
    //
    "baichuan_m1",
    "bamba",
    "cwm",
    "deepseek_v4",
    "deepseek_v41",
    "exaone",
    "falcon_mamba",
    "flex_olmo",
    "glm",
    "glm46v",
    "glm4v_moe",
    "gpt_bigcode",
    "gptj",
    "granite_swa",
    "granitemoe_swa",
    "granitemoeshared",
    "hyperclovax",
    "internlm2",
    "iquestcoder",
    "jais2",
    "jamba",
    "kolibri1",
    "mamba",
    "mellum",
    "minicpm",
    "minicpm3",
    "ministral",
    "nemotron-nas",
    "olmo",
    "olmo_hybrid",
    "phi3small",
    "plamo2",
    "plamo3",
    "rwkv7",
    "sarvam_moe",
    "telechat3",
    "vaultgemma",
    "xverse",
    "youtu",
];

/// Types that are not loaded, and words of the message.
const REFUSED: &[(&str, &str)] = &[("axk1", "\"axk1\" is not supported")];

/// Keys whose values are not supported, and words of the message.
#[test]
fn values_that_are_not_supported_are_refused_by_name() {
    let small = serde_json::json!({
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
        "intermediate_size": 48, "ff_intermediate_size": 48,
    });
    for (name, key, value, words) in [
        (
            "phi3small",
            "rope_scaling",
            serde_json::json!({"type": "su"}),
            "only null",
        ),
        ("phi3small", "ff_dim_multiplier", 4.into(), "only null"),
        ("phi3small", "hidden_act", "silu".into(), "only gegelu"),
        (
            "phi3small",
            "blocksparse_homo_head_pattern",
            true.into(),
            "only false",
        ),
        ("phi3small", "blocksparse_block_size", 0.into(), "1..="),
        ("baichuan_m1", "conv_window", 3.into(), "only 2"),
        (
            "baichuan_m1",
            "tie_word_embeddings",
            true.into(),
            "not supported",
        ),
        (
            "baichuan_m1",
            "sliding_window_layers",
            [2].into(),
            "layer 2 of 2",
        ),
        (
            "baichuan_m1",
            "sliding_window_layers",
            [1].into(),
            "no sliding_window",
        ),
        (
            "baichuan_m1",
            "num_swa_attention_heads",
            5.into(),
            "not a multiple",
        ),
    ] {
        let mut config = small.clone();
        config["model_type"] = name.into();
        assert!(
            mlx_models::initialised("here", config.clone(), 1).is_ok(),
            "{name}"
        );
        config[key] = value;
        let error = mlx_models::initialised("here", config, 1).err();
        let message = error
            .unwrap_or_else(|| panic!("{name}: {key} is taken"))
            .to_string();
        assert!(
            message.contains(key) && message.contains(words),
            "{message}"
        );
    }
}

#[test]
fn published_types_are_known_or_refused_with_the_reason() {
    let known: BTreeSet<&str> = Registry::default().known_types().into_iter().collect();
    let missing: Vec<_> = SUPPORTED
        .iter()
        .filter(|name| !known.contains(*name))
        .collect();
    assert!(missing.is_empty(), "not known: {missing:?}");
    for (name, words) in REFUSED {
        assert!(!known.contains(name), "{name} is known");
        let config = serde_json::json!({ "model_type": name });
        let error = mlx_models::initialised("here", config, 1).err().unwrap();
        let message = error.to_string();
        assert!(
            message.contains(words) && message.contains("known: llama"),
            "{name}: {message}"
        );
    }
}

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
    "sarvam_moe",
    "telechat3",
    "vaultgemma",
    "xverse",
    "youtu",
];

/// Types that are not loaded, and words of the reason in the message.
const REFUSED: &[(&str, &str)] = &[("rwkv7", "no kernel here computes")];

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

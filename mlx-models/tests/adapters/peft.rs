//! Each kind and setting of PEFT's adapters gives PEFT's results, or is refused by name.

use super::*;

/// With each of these settings, PEFT's result for the same tensors differs from that of plain LoRA.
#[test]
fn other_kinds_are_refused_by_name() {
    for (key, value) in [
        ("init_lora_weights", json!("pissa")),
        ("init_lora_weights", json!("pissa_niter_16")),
        ("init_lora_weights", json!("olora")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("loftq")),
        ("init_lora_weights", json!("lora_ga")),
        ("init_lora_weights", json!("tomorrow")),
        ("init_lora_weights", json!(3)),
        ("alora_invocation_tokens", json!([29, 3])),
        ("arrow_config", json!({"arrow_top_k": 3})),
        ("bias", json!("lora_only")),
        ("ensure_weight_tying", json!(true)),
        ("kasa_config", json!({"beta": 1.0})),
        ("layer_replication", json!([[0, 2], [1, 2]])),
        ("lora_bias", json!(true)),
        ("megatron_config", json!({"hidden_size": 4})),
        ("modules_to_save", json!(["lm_head"])),
        ("monteclora_config", json!({"num_samples": 8})),
        ("peft_type", json!("ADALORA")),
        ("peft_type", json!(null)),
        ("target_parameters", json!(["mlp.experts.gate_up_proj"])),
        ("task_type", json!("SEQ_CLS")),
        ("trainable_token_indices", json!([3])),
        ("use_bdlora", json!({"nblocks": 2})),
        ("use_qalora", json!(true)),
        ("velora_config", json!({"num_groups": 2})),
        ("a_key_of_a_later_version", json!(1)),
        ("use_rslora", json!("yes")),
        ("use_dora", json!(1)),
        ("r", json!("3")),
        ("rank_pattern", json!(["k_proj"])),
        ("layers_to_transform", json!("all")),
        ("target_modules", json!("(k_proj")),
        ("target_modules", json!([1])),
    ] {
        let error = refused("peft-qwen3", json!({key: value}));
        assert!(error.contains(key), "{key} = {value}: {error}");
        assert!(!error.contains('\n'), "{key} = {value}: {error}");
    }
}

/// Tensors that PEFT would not load with these settings are not used here either.
#[test]
fn tensors_that_the_settings_do_not_choose_are_refused() {
    for (patch, message) in [
        (
            json!({"target_modules": ["k_proj"]}),
            "does not choose this layer",
        ),
        (
            json!({"target_modules": ".*k_proj"}),
            "does not choose this layer",
        ),
        (
            json!({"layers_to_transform": 0}),
            "does not choose this layer",
        ),
        (
            json!({"layers_to_transform": [0, 1], "layers_pattern": "h"}),
            "does not choose this layer",
        ),
        (
            json!({"exclude_modules": ["k_proj"]}),
            "does not choose this layer",
        ),
        (
            json!({"exclude_modules": r"model\.layers\.1\..*"}),
            "does not choose this layer",
        ),
        (json!({"r": 4}), "is not of the rank 4"),
        (
            json!({"rank_pattern": {"layers.1.self_attn.k_proj": 2}}),
            "is not of the rank 2",
        ),
    ] {
        let error = refused("peft-qwen3", patch.clone());
        assert!(error.contains(message), "{patch}: {error}");
    }
}

/// Settings in another notation, and settings without effect, give PEFT's results.
#[test]
fn settings_that_mean_the_same_give_the_same() {
    let golden = Safetensors::open(folder("peft-qwen3").join("golden.safetensors")).unwrap();
    let expected = golden.array("logits").unwrap().to_vec::<f32>().unwrap();
    for patch in [
        json!({"init_lora_weights": "gaussian"}),
        json!({"init_lora_weights": "eva", "eva_config": {"rho": 2.0}}),
        json!({"init_lora_weights": "orthogonal"}),
        json!({"init_lora_weights": "mica"}),
        json!({"init_lora_weights": false, "loftq_config": {"loftq_bits": 4}}),
        json!({"r": 8, "rank_pattern": {"k_proj": 3, ".*up_pro[jk]": 3}}),
        json!({"layers_to_transform": [0, 1, 7]}),
        json!({"layers_to_transform": [0, 1], "layers_pattern": ["blocks", "layers"]}),
        json!({"target_modules": r"model\.layers\.\d+\.(self_attn|mlp)\.(k|up)_proj"}),
        json!({"target_modules": "all-linear", "exclude_modules": ["lm_head", "k"]}),
        json!({"fan_in_fan_out": true, "task_type": "CAUSAL_LM", "a_later_key": false}),
    ] {
        let dir = patched("peft-qwen3", &patch);
        let mut model = model("qwen3");
        adapter::load(dir.path(), model.as_mut())
            .unwrap_or_else(|error| panic!("{patch}: {error}"));
        let found = logits(model.as_ref());
        assert!(
            off(&found, &expected) < 2e-4,
            "{patch}: {}",
            off(&found, &expected)
        );
    }
}

/// An adapter that changes nothing is refused as a mistake, in both formats and of every kind.
#[test]
fn adapters_without_tensors_are_refused() {
    let none = std::iter::empty::<(&str, &Array)>;
    for (case, file, patch) in [
        ("peft-qwen3", "adapter_model.safetensors", json!({})),
        ("dora-llama_tied", "adapters.safetensors", json!({})),
        (
            "dora-llama_tied",
            "adapters.safetensors",
            json!({"fine_tune_type": "full"}),
        ),
    ] {
        let dir = patched(case, &patch);
        let path = dir.path().join(file);
        mlx_core::safetensors::save(path, none(), &Default::default()).unwrap();
        let error = adapter::load(dir.path(), model("qwen3").as_mut()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("the adapter has no tensors"),
            "{case}: {error}"
        );
    }
}

//! Each kind and setting of PEFT's adapters gives PEFT's results, or is refused by name.

use std::collections::BTreeMap;

use mlx_core::safetensors;

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
        ("target_parameters", json!([3])),
        ("task_type", json!("SEQ_CLS")),
        ("trainable_token_indices", json!([3])),
        ("use_bdlora", json!({"nblocks": 2})),
        ("use_qalora", json!(true)),
        ("velora_config", json!({"num_groups": 2})),
        ("a_key_of_a_later_version", json!(1)),
        ("use_rslora", json!("yes")),
        ("use_dora", json!(1)),
        ("r", json!("3")),
        ("alpha_pattern", json!([5])),
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
        json!({"lora_alpha": 0, "alpha_pattern": {"k_proj": 5, ".*up_pro[jk]": 5.0}}),
        json!({"alpha_pattern": {"layers.9.self_attn.k_proj": 7, "proj": 7}}),
        json!({"layers_to_transform": [0, 1, 7]}),
        json!({"layers_to_transform": [0, 1], "layers_pattern": ["blocks", "layers"]}),
        json!({"target_modules": r"model\.layers\.\d+\.(self_attn|mlp)\.(k|up)_proj"}),
        // Whole paths and expressions choose modules of every layer.
        json!({"layers_to_transform": 7, "target_modules": [
            "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.up_proj",
            "model.layers.1.self_attn.k_proj", "model.layers.1.mlp.up_proj"]}),
        json!({"layers_to_transform": [7], "target_modules": ".*(k|up)_proj"}),
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

/// A module's own alpha is a factor of its B.
#[test]
fn modules_may_have_alphas_of_their_own() {
    let found = |dir: &Path| {
        let mut model = model("qwen3");
        adapter::load(dir, model.as_mut()).unwrap();
        logits(model.as_ref())
    };
    let own = json!({"alpha_pattern": {r"layers\.1\.mlp\.up_proj": 10}});
    let by_alpha = found(patched("peft-qwen3", &own).path());
    let larger = patched("peft-qwen3", &json!({}));
    let path = larger.path().join("adapter_model.safetensors");
    let file = Safetensors::open(&path).unwrap();
    let tensors: Vec<(String, Array)> = file
        .names()
        .map(|name| {
            let array = file.array(name).unwrap();
            match name.contains("layers.1.mlp.up_proj.lora_B") {
                true => (name.to_owned(), array.multiply(2).unwrap()),
                false => (name.to_owned(), array),
            }
        })
        .collect();
    mlx_core::eval(tensors.iter().map(|(_, array)| array)).unwrap();
    save(&path, &tensors);
    let by_b = found(larger.path());
    assert!(off(&by_alpha, &by_b) < 1e-5, "{}", off(&by_alpha, &by_b));
    let plain = found(&folder("peft-qwen3"));
    assert!(off(&by_alpha, &plain) > 1e-3);
}

/// Numbers between -0.3 and 0.3.
fn numbers(shape: [i32; 2], step: f32) -> Array {
    let count = shape[0] * shape[1];
    let numbers: Vec<f32> = (0..count).map(|n| (n as f32 * step).sin() * 0.3).collect();
    Array::from_slice(&numbers, &shape).unwrap()
}

fn save(path: &Path, tensors: &[(String, Array)]) {
    let named = tensors.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(path, named, &BTreeMap::new()).unwrap();
}

/// The tensors of a case in F32.
fn wide(case: &str) -> Vec<(String, Array)> {
    let path = testdata("models").join(case).join("model.safetensors");
    let file = Safetensors::open(path).unwrap();
    let wide = |name: &str| file.array(name).unwrap().astype(DType::F32).unwrap();
    file.names()
        .map(|name| (name.to_owned(), wide(name)))
        .collect()
}

/// The logits of a case with these tensors.
fn merged(case: &str, tensors: &[(String, Array)]) -> Vec<f32> {
    let whole = tempfile::tempdir().unwrap();
    save(&whole.path().join("model.safetensors"), tensors);
    let config = testdata("models").join(case).join("config.json");
    fs::copy(config, whole.path().join("config.json")).unwrap();
    let loaded = load(whole.path(), LoadOptions::default()).unwrap();
    logits(loaded.model.as_ref())
}

/// Writes an adapter of rank 2 and alpha 6 for these matrices, `[out, in]`. Returns each one's B A.
fn adapter_of(matrices: &[(&str, [i32; 2])], dir: &Path) -> Vec<Array> {
    let (mut tensors, mut products) = (Vec::new(), Vec::new());
    for (index, &(path, [rows, columns])) in matrices.iter().enumerate() {
        let a = numbers([2, columns], 1.7 + index as f32);
        let b = numbers([rows, 2], 0.9 + index as f32);
        products.push(b.matmul(&a).unwrap());
        tensors.push((format!("base_model.model.{path}.lora_A.weight"), a));
        tensors.push((format!("base_model.model.{path}.lora_B.weight"), b));
    }
    save(&dir.join("adapter_model.safetensors"), &tensors);
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 6,
        "target_modules": matrices.iter().map(|(path, _)| path).collect::<Vec<_>>()});
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    products
}

/// GPT-2 stores its matrices transposed, and queries, keys and values in one.
#[test]
fn adapters_of_transposed_matrices_are_those_of_their_layers() {
    let matrices = [
        ("transformer.h.0.attn.c_attn", [96, 32]),
        ("transformer.h.1.mlp.c_proj", [32, 128]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let products = adapter_of(&matrices, dir.path());
    let mut adapted = model("gpt2");
    let plain = logits(adapted.as_ref());
    adapter::load(dir.path(), adapted.as_mut()).unwrap();
    let found = logits(adapted.as_ref());

    let mut tensors = wide("gpt2");
    for ((path, _), product) in matrices.iter().zip(products) {
        let is_own = |name: &str| format!("transformer.{name}") == format!("{path}.weight");
        let (_, weight) = tensors.iter_mut().find(|(name, _)| is_own(name)).unwrap();
        *weight = weight
            .add(product.multiply(3).unwrap().t().unwrap())
            .unwrap();
    }
    let expected = merged("gpt2", &tensors);
    assert!(off(&found, &expected) < 2e-4, "{}", off(&found, &expected));
    assert!(off(&found, &plain) > 0.1);
}

/// transformers holds the matrices of all experts in two tensors, and PEFT wraps their module for each of them.
#[test]
fn adapters_of_stacked_experts_are_those_of_each_expert() {
    let case = "qwen3_moe";
    let path = "model.layers.2.mlp.experts";
    let (n, inner, hidden, rank, scale) = (4, 24, 32, 2, 3);
    let mut tensors = Vec::new();
    // One for each expert: [n, out, in].
    let mut deltas = Vec::new();
    for (path, [rows, columns], step) in [
        (format!("{path}.base_layer"), [2 * inner, hidden], 1.3),
        (path.to_owned(), [hidden, inner], 2.3),
    ] {
        let a = numbers([n * rank, columns], step);
        let b = numbers([rows, rank * n], step - 0.6);
        let own_b = b.reshape(&[rows, rank, n]).unwrap();
        let own_b = own_b.transpose(&[2, 0, 1]).unwrap();
        let own_a = a.reshape(&[n, rank, columns]).unwrap();
        deltas.push(own_b.matmul(&own_a).unwrap().multiply(scale).unwrap());
        tensors.push((format!("base_model.model.{path}.lora_A.weight"), a));
        tensors.push((format!("base_model.model.{path}.lora_B.weight"), b));
    }
    let write = |settings: &Value| {
        let dir = tempfile::tempdir().unwrap();
        save(&dir.path().join("adapter_model.safetensors"), &tensors);
        fs::write(dir.path().join("adapter_config.json"), settings.to_string()).unwrap();
        dir
    };
    let settings = json!({"peft_type": "LORA", "r": 7, "lora_alpha": 6, "target_modules": [],
        "rank_pattern": {".*_proj": 2}, "target_parameters": ["experts.down_proj", "gate_up_proj"]});
    let mut adapted = model(case);
    let plain = logits(adapted.as_ref());
    adapter::load(write(&settings).path(), adapted.as_mut()).unwrap();
    let found = logits(adapted.as_ref());

    let mut all = wide(case);
    for (name, weight) in &mut all {
        let Some((expert, part)) = name
            .strip_prefix(&format!("{path}."))
            .and_then(|rest| rest.split_once('.'))
        else {
            continue;
        };
        let (of, from, to) = match part {
            "gate_proj.weight" => (0, 0, inner),
            "up_proj.weight" => (0, inner, 2 * inner),
            _ => (1, 0, hidden),
        };
        let expert: i32 = expert.parse().unwrap();
        let own = deltas[of].slice_axis(0, expert, expert + 1).unwrap();
        let own = own.squeeze(0).unwrap().slice_axis(0, from, to).unwrap();
        *weight = weight.add(&own).unwrap();
    }
    let expected = merged(case, &all);
    assert!(off(&found, &expected) < 2e-4, "{}", off(&found, &expected));
    assert!(off(&found, &plain) > 0.1);

    for (key, value, words) in [
        (
            "target_parameters",
            json!(["gate_up_proj"]),
            "names no parameter",
        ),
        ("target_parameters", json!([]), "names no parameter"),
        ("rank_pattern", json!({}), "is not of the rank 7"),
    ] {
        let mut settings = settings.clone();
        settings[key] = value;
        let error = adapter::load(write(&settings).path(), model(case).as_mut());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{key}: {error}");
    }
}

/// Like the weights of other towers, their adapters have no effect on texts.
#[test]
fn adapters_of_other_towers_are_left_out() {
    let text = ("model.language_model.layers.0.self_attn.q_proj", [64, 32]);
    let found = |matrices: &[(&str, [i32; 2])]| {
        let dir = tempfile::tempdir().unwrap();
        adapter_of(matrices, dir.path());
        let mut model = model("gemma3");
        adapter::load(dir.path(), model.as_mut()).unwrap();
        logits(model.as_ref())
    };
    let vision = "model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj";
    assert_eq!(found(&[text, (vision, [8, 8])]), found(&[text]));
    // Alone they would leave the model as it is.
    let dir = tempfile::tempdir().unwrap();
    adapter_of(&[(vision, [8, 8])], dir.path());
    let error = adapter::load(dir.path(), model("gemma3").as_mut());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the adapter has no tensors"), "{error}");
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
        safetensors::save(path, none(), &Default::default()).unwrap();
        let error = adapter::load(dir.path(), model("qwen3").as_mut()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("the adapter has no tensors"),
            "{case}: {error}"
        );
    }
}

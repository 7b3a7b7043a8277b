//! Drafters of other folders: what they draft, compared with the references', and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, Safetensors};
use mlx_models::{DraftHead, DraftKind, Drafting, LoadOptions, Loaded, load};
use mlx_nn::{CacheOptions, ModelCache};
use serde_json::{Value, json};

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use checkpoints::checkpoint;

const CASES: [&str; 6] = [
    "eagle3",
    "eagle3_speculators",
    "dflash",
    "muse_glimmer_assistant",
    "gemma4_assistant",
    "gemma4_unified_assistant",
];

fn dir(case: &str) -> PathBuf {
    checkpoint(&format!("../drafters/{case}"))
}

fn golden(case: &str) -> Value {
    serde_json::from_slice(&fs::read(dir(case).join("golden.json")).unwrap()).unwrap()
}

fn target(name: &str) -> Loaded {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load(checkpoint(name), options).unwrap()
}

fn target_of(case: &str) -> Loaded {
    target(golden(case)["target"].as_str().unwrap())
}

fn ids(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[1, tokens.len() as i32]).unwrap()
}

/// A cache that holds these tokens, which the model has read in parts.
fn after(model: &Loaded, tokens: &[u32], options: CacheOptions) -> ModelCache {
    let mut cache = ModelCache::new(model.model.states(), 1, options);
    for part in tokens.chunks(7) {
        let mut step = cache.begin(&[part.len()]).unwrap();
        model.model.hidden(&ids(part), &mut step).unwrap();
        step.commit_all().unwrap();
    }
    cache
}

/// The log probabilities `[K, V]` of greedy drafts after `next`.
fn drafts(head: &dyn DraftHead, cache: &mut ModelCache, next: u32, number: i32) -> Array {
    let len = cache.lens()[0];
    let logits = match head.manner() {
        Drafting::Block(block) => {
            let mut step = cache.begin_slots(head.states(), None, &[block]).unwrap();
            let features = head.block(&ids(&[next]), &mut step).unwrap();
            let features = features.slice_axis(1, 1, block as i32).unwrap();
            head.logits(&features.squeeze(0).unwrap(), None).unwrap()
        }
        manner => {
            let mut step = cache.begin_part(head.states(), &[1]).unwrap();
            let mut features = head.follow(&ids(&[next]), None, &mut step).unwrap();
            drop(step);
            let mut steps = Vec::new();
            for draft in 1..=number {
                let logits = head.logits(&features.squeeze(1).unwrap(), None).unwrap();
                let token: u32 = logits.argmax(-1, false).unwrap().item().unwrap();
                steps.push(logits);
                let ahead = if manner == Drafting::Held {
                    0
                } else {
                    draft as usize
                };
                let mut step = cache.begin_at(head.states(), &[len + ahead], &[1]).unwrap();
                features = head.draft(&ids(&[token]), &features, &mut step).unwrap();
            }
            mlx_core::ops::concat(&steps, 0).unwrap()
        }
    };
    let sum = logits.logsumexp(-1, true).unwrap();
    logits.subtract(&sum).unwrap()
}

/// The largest difference from the golden's log probabilities, and whether all greedy drafts are its tokens.
fn compare(case: &str, model: &Loaded) -> (f32, bool) {
    let head = model.model.drafting().unwrap();
    let facts = golden(case);
    let tensors = Safetensors::open(dir(case).join("golden.safetensors")).unwrap();
    let columns = tensors.array("columns").unwrap();
    let prompts: Vec<Vec<u32>> = serde_json::from_value(facts["prompts"].clone()).unwrap();
    let (mut worst, mut is_same) = (0.0f32, true);
    for (index, prompt) in prompts.iter().enumerate() {
        let expected = tensors.array(&format!("logprobs.{index}")).unwrap();
        let tokens = tensors.array(&format!("tokens.{index}")).unwrap();
        let number = tokens.dim(1).unwrap();
        for n in 1..prompt.len() {
            let mut cache = after(model, &prompt[..n], CacheOptions::default());
            let found = drafts(head, &mut cache, prompt[n], number);
            let at = n as i32 - 1;
            let expected = expected
                .slice_axis(0, at, at + 1)
                .unwrap()
                .squeeze(0)
                .unwrap();
            let shown = found.take(&columns, 1).unwrap();
            let off = shown.subtract(&expected).unwrap().abs().unwrap();
            worst = worst.max(off.max(.., false).unwrap().item().unwrap());
            let greedy: Vec<u32> = found.argmax(-1, false).unwrap().to_vec().unwrap();
            let tokens = tokens
                .slice_axis(0, at, at + 1)
                .unwrap()
                .squeeze(0)
                .unwrap();
            let tokens: Vec<u32> = tokens.astype(DType::U32).unwrap().to_vec().unwrap();
            is_same &= greedy == tokens;
        }
    }
    (worst, is_same)
}

#[test]
fn drafts_equal_the_references() {
    for case in CASES {
        let model = target_of(case).with_drafter(dir(case), None).unwrap();
        let (off, is_same) = compare(case, &model);
        let tolerance = golden(case)["tolerance"].as_f64().unwrap() as f32;
        assert!(
            is_same && off < tolerance,
            "{case}: off by {off}, same tokens: {is_same}"
        );
    }
}

/// RFC 7386.
fn patched(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(key)),
            value => patched(&mut target[key], value),
        }
    }
}

/// A copy of a drafter's folder with another config.json.
fn with_config(case: &str, patch: &Value) -> tempfile::TempDir {
    let (new, old) = (tempfile::tempdir().unwrap(), dir(case));
    fs::copy(
        old.join("model.safetensors"),
        new.path().join("model.safetensors"),
    )
    .unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(old.join("config.json")).unwrap()).unwrap();
    patched(&mut config, patch);
    fs::write(new.path().join("config.json"), config.to_string()).unwrap();
    new
}

#[test]
fn a_wrong_flag_shows_in_the_drafts() {
    for case in CASES {
        let mutations = golden(case)["mutations"].as_array().unwrap().clone();
        assert!(!mutations.is_empty(), "{case}");
        for mutation in mutations {
            let changed = with_config(case, &mutation["config"]);
            let model = target_of(case).with_drafter(changed.path(), None).unwrap();
            let (off, _) = compare(case, &model);
            assert!(off > 1e-3, "{case}, {}: off by {off}", mutation["name"]);
        }
    }
}

/// The model computes the same with a drafter as without one, to the bit.
#[test]
fn a_drafter_changes_no_result_of_its_target() {
    for case in CASES {
        let (plain, drafted) = (target_of(case), target_of(case));
        let drafted = drafted.with_drafter(dir(case), None).unwrap();
        let bits = |model: &Loaded| -> Vec<u32> {
            let mut cache = model.model.new_cache(1);
            let prompt = ids(&[9, 33, 12, 50, 7, 21, 18, 40, 11, 30]);
            let logits = model.model.forward(&prompt, &mut cache).unwrap();
            let logits: Vec<f32> = logits.to_vec().unwrap();
            logits.into_iter().map(f32::to_bits).collect()
        };
        assert_eq!(bits(&plain), bits(&drafted), "{case}");
        assert!(drafted.info.head.is_some() && plain.info.head.is_none());
        let names = drafted.model.parameters();
        let own = names.keys().filter(|name| name.starts_with("drafter."));
        assert_eq!(own.count() + plain.model.parameters().len(), names.len());
    }
}

/// Drafts leave no trace: after dropped steps of the head the next drafts are the same.
#[test]
fn drafts_leave_no_trace() {
    for case in CASES {
        let model = target_of(case).with_drafter(dir(case), None).unwrap();
        let head = model.model.drafting().unwrap();
        let mut cache = after(&model, &[9, 33, 12, 50, 7], CacheOptions::default());
        let bits = |array: Array| -> Vec<u32> {
            let values: Vec<f32> = array.to_vec().unwrap();
            values.into_iter().map(f32::to_bits).collect()
        };
        let first = bits(drafts(head, &mut cache, 21, 4));
        drafts(head, &mut cache, 30, 4);
        assert_eq!(first, bits(drafts(head, &mut cache, 21, 4)), "{case}");
        assert_eq!(cache.lens(), [5]);
    }
}

fn refused(case: &str, target: Loaded, patch: &Value) -> String {
    let folder = with_config(case, patch);
    match target.with_drafter(folder.path(), None) {
        Ok(_) => panic!("{case} {patch} is accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn drafters_of_other_models_are_refused() {
    let none = json!({});
    for (case, other, message) in [
        (
            "gemma4_assistant",
            "gemma3_text",
            "model_type \"gemma3_text\"",
        ),
        ("gemma4_unified_assistant", "gemma4_text", "the model has"),
        ("eagle3", "qwen3", "at least 4 layers"),
        (
            "eagle3",
            "gemma3n_text",
            "the residual stream of the model has",
        ),
        ("dflash", "qwen3", "target_layer_ids"),
    ] {
        let error = refused(case, target(other), &none);
        assert!(error.contains(message), "{case} for {other}: {error}");
    }
}

#[test]
fn drafters_of_other_forms_are_refused() {
    let none = json!({});
    for (case, patch, message) in [
        (
            "eagle3",
            json!({"norm_before_fc": true}),
            "norm_before_fc is not supported",
        ),
        (
            "eagle3",
            json!({"model_type": "deepseek_v3"}),
            "known: llama",
        ),
        (
            "eagle3",
            json!({"num_hidden_layers": 2}),
            "2 layers is not supported",
        ),
        ("eagle3", json!({"draft_vocab_size": 39}), "d2t must have"),
        ("eagle3", json!({"vocab_size": 65}), "vocabulary of 65"),
        (
            "eagle3",
            json!({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}),
            "2 places",
        ),
        (
            "eagle3",
            json!({"eagle_config": {"use_aux_hidden_state": false}}),
            "use_aux_hidden_state",
        ),
        ("dflash", json!({"block_size": 1}), "block_size must be 2"),
        (
            "dflash",
            json!({"dflash_config": {"mask_token_id": 64}}),
            "mask_token_id 64",
        ),
        (
            "dflash",
            json!({"dflash_config": {"attention_mode": "mla"}}),
            "attention_mode \"mla\"",
        ),
        ("dflash", json!({"model_type": "llama"}), "known: qwen3"),
        ("dflash", json!({"hidden_size": 16}), "hidden_size is 16"),
        (
            "gemma4_assistant",
            json!({"backbone_hidden_size": 48}),
            "backbone_hidden_size is 48",
        ),
        (
            "gemma4_assistant",
            json!({"num_centroids": 5}),
            "must divide",
        ),
        (
            "gemma4_assistant",
            json!({"text_config": {"sliding_window": 9}}),
            "the model has none",
        ),
        (
            "gemma4_assistant",
            json!({"text_config": {"enable_moe_block": true}}),
            "enable_moe_block",
        ),
    ] {
        let error = refused(case, target_of(case), &patch);
        assert!(error.contains(message), "{case} {patch}: {error}");
    }
    let drafted = target_of("eagle3")
        .with_drafter(dir("eagle3"), None)
        .unwrap();
    let twice = refused("eagle3", drafted, &none);
    assert!(twice.contains("a head of its own"), "{twice}");
    for (config, name) in [
        (
            json!({"architectures": ["LlamaForCausalLMEagle"]}),
            "LlamaForCausalLMEagle",
        ),
        (json!({"speculators_model_type": "eagle"}), "eagle"),
        (
            json!({"architectures": ["DFlash2DraftModel"]}),
            "DFlash2DraftModel",
        ),
        (json!({"architectures": ["MedusaModel"]}), "MedusaModel"),
    ] {
        let error = DraftKind::of(&config).unwrap_err().to_string();
        assert!(
            error.contains(name) && error.contains("known: EAGLE-3"),
            "{error}"
        );
    }
}

/// The tensors must be those of the config, and their values are checked.
#[test]
fn faulty_tensors_are_named() {
    let folder = with_config("eagle3", &json!({"intermediate_size": 40}));
    let error = target_of("eagle3")
        .with_drafter(folder.path(), None)
        .err()
        .unwrap();
    assert!(error.to_string().contains("layers.0.mlp"), "{error}");
    let missing = Path::new("/nonexistent/drafter");
    assert!(target_of("eagle3").with_drafter(missing, None).is_err());
}

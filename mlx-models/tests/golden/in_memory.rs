//! The names and forms of tensors that transformers 5 keeps in memory, which some programs write: experts are two tensors
//! a layer, convolutions are joint, and residual streams have names of their own.

use std::collections::BTreeMap;

use mlx_core::ops::concat;
use mlx_core::ops::create::ones;
use mlx_core::{Array, DType, Safetensors};

use mlx_models::convert::{ConvertOptions, convert};
use mlx_models::{LoadOptions, load_from};
use serde_json::Value;

use super::case::Case;
use super::renamed::{loaded, same_as_golden, tensors};

type Tensors = BTreeMap<String, Array>;

fn case(name: &str) -> Case {
    let found = Case::all().into_iter().find(|case| case.name == name);
    found.unwrap_or_else(|| panic!("there is no case {name}"))
}

/// Makes two tensors of the experts of each layer. `more` experts without `down_proj` follow.
fn fused_experts(mut tensors: Tensors, experts: usize, more: i32) -> Tensors {
    let paths: Vec<String> = tensors
        .keys()
        .filter_map(|name| name.strip_suffix(".experts.0.up_proj.weight"))
        .map(str::to_owned)
        .collect();
    assert!(!paths.is_empty(), "no layer has experts");
    for path in paths {
        let mut take = |part: &str| {
            let each = (0..experts).map(|expert| {
                let name = format!("{path}.experts.{expert}.{part}.weight");
                tensors.remove(&name).unwrap().expand_dims(0).unwrap()
            });
            concat(&each.collect::<Vec<_>>(), 0).unwrap()
        };
        let gate_up = concat(&[take("gate_proj"), take("up_proj")], 1).unwrap();
        let down = take("down_proj");
        let [_, rows, columns] = gate_up.dims().unwrap();
        let rest = ones([more, rows, columns], DType::F32).unwrap();
        let rest = rest.astype(gate_up.dtype()).unwrap();
        let gate_up = concat(&[gate_up, rest], 0).unwrap();
        tensors.insert(format!("{path}.experts.gate_up_proj"), gate_up);
        tensors.insert(format!("{path}.experts.down_proj"), down);
    }
    tensors
}

fn renamed(tensors: Tensors, names: &[(&str, &str)]) -> Vec<(String, Array)> {
    let all = tensors.into_iter().map(|(name, array)| {
        let new = names
            .iter()
            .fold(name, |name, (from, to)| name.replace(from, to));
        (new, array)
    });
    all.collect()
}

#[test]
fn longcat_flash_has_rows_for_experts_that_return_their_input() {
    let case = case("longcat_flash");
    let fused = fused_experts(tensors(&case), 4, 2);
    let config = case.config("config.json");
    same_as_golden(&case, "longcat_flash", config, &renamed(fused, &[]));
}

/// mlx-lm reads the router under its published names.
#[test]
fn longcat_flash_is_written_for_mlx_lm() {
    let case = case("longcat_flash");
    let dir = tempfile::tempdir().unwrap();
    let (config, options) = (case.config("config.json"), ConvertOptions::default());
    convert(
        "here",
        config,
        case.files(),
        dir.path(),
        &options,
        &mut |_, _| Ok(()),
    )
    .unwrap();
    let file = Safetensors::open(dir.path().join("model.safetensors")).unwrap();
    let of_router = file
        .names()
        .filter(|name| name.contains("layers.1.mlp.router."));
    let mut of_router: Vec<&str> = of_router.collect();
    of_router.sort_unstable();
    let expected = ["classifier.weight", "e_score_correction_bias"];
    assert_eq!(
        of_router,
        expected.map(|name| format!("model.layers.1.mlp.router.{name}"))
    );
}

#[test]
fn hunyuan_4_has_the_names_of_deepseek_4() {
    let case = case("hy_v4");
    let names = [
        (".hc_attn_layer.hc_pre.hc_", ".attn_hc."),
        (".hc_mlp_layer.hc_pre.hc_", ".ffn_hc."),
        (".hc_head.hc_head_", ".hc_head.hc_"),
        (".self_attn.linear_gate.", ".self_attn.gate_proj."),
        (".learnable_sink_param", ".sinks"),
    ];
    let written = [
        (".hc_attn_layer.hc_pre.", ".hc_pre.hc_attn_layer."),
        (".hc_mlp_layer.hc_pre.", ".hc_pre.hc_mlp_layer."),
        (".hc_head.", ".hc_pre.hc_head."),
        (".gate_proj.", ".linear_gate."),
    ];
    for names in [&names[..], &written] {
        let config = case.config("config.json");
        let renamed = renamed(tensors(&case), names);
        same_as_golden(&case, "hy_v4", config, &renamed);
    }
}

#[test]
fn glm_5_3_has_joint_convolutions() {
    let case = case("glm5_next");
    let mut joint = fused_experts(tensors(&case), 6, 0);
    let paths: Vec<String> = joint
        .keys()
        .filter_map(|name| name.strip_suffix(".q_conv1d.weight"))
        .map(str::to_owned)
        .collect();
    assert!(!paths.is_empty(), "no layer has convolutions");
    for path in paths {
        let parts = ["q", "k", "v"].map(|part| {
            let name = format!("{path}.{part}_conv1d.weight");
            joint.remove(&name).unwrap()
        });
        let all = concat(&parts, 0).unwrap();
        joint.insert(format!("{path}.conv1d.weight"), all);
    }
    let names = [
        (".hc_attn_", ".attn_hc."),
        (".hc_ffn_", ".ffn_hc."),
        (".f_a_proj.", ".forget_gate.f_a_proj."),
        (".f_b_proj.", ".forget_gate.f_b_proj."),
        (".A_log", ".forget_gate.A_log"),
        (".dt_bias", ".forget_gate.dt_bias"),
    ];
    let config = case.config("config.json");
    same_as_golden(&case, "glm5_next", config, &renamed(joint, &names));
}

#[test]
fn qwen_4_has_tables_of_one_tensor() {
    let case = case("qwen4_exp");
    let mut whole = tensors(&case);
    for layer in 0..2 {
        let table =
            format!("model.language_model.layers.{layer}.ple.ple_embedding.ngram_embedding");
        let parts = (0..4).map(|part| whole.remove(&format!("{table}.shard_{part}.weight")));
        let parts: Vec<Array> = parts.map(Option::unwrap).collect();
        whole.insert(format!("{table}.weight"), concat(&parts, 0).unwrap());
    }
    let config = case.config("config.json");
    same_as_golden(&case, "qwen4_exp", config, &renamed(whole, &[]));
}

/// As transformers keeps them in memory, with two tensors for all experts.
#[test]
fn deepseek_4_has_the_names_of_transformers() {
    let case = case("deepseek_v4");
    let names = [
        (".attn.", ".self_attn."),
        (".ffn.", ".mlp."),
        ("embed.weight", "model.embed_tokens.weight"),
        ("hc_head_", "model.hc_head.hc_"),
        ("layers.", "model.layers."),
        (".attn_norm.", ".input_layernorm."),
        (".ffn_norm.", ".post_attention_layernorm."),
        (".hc_attn_", ".attn_hc."),
        (".hc_ffn_", ".ffn_hc."),
        (".attn_sink", ".sinks"),
        (".indexer.compressor.", ".compressor.indexer."),
        (
            ".self_attn.indexer.weights_proj.",
            ".self_attn.compressor.indexer.scorer.weights_proj.",
        ),
        (
            ".self_attn.indexer.wq_b.",
            ".self_attn.compressor.indexer.q_b_proj.",
        ),
        (".norm.", ".kv_norm."),
        (".ape", ".position_bias"),
        (".wq_a.", ".q_a_proj."),
        (".wq_b.", ".q_b_proj."),
        (".wkv.", ".kv_proj."),
        (".wgate.", ".gate_proj."),
        (".wo_a.", ".o_a_proj."),
        (".wo_b.", ".o_b_proj."),
        (".q_norm.", ".q_a_norm."),
        (".gate.bias", ".gate.e_score_correction_bias"),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
    ];
    let mut kept: Tensors = renamed(tensors(&case), &names).into_iter().collect();
    for (name, own) in [
        ("head.weight", "lm_head.weight"),
        ("norm.weight", "model.norm.weight"),
    ] {
        let tensor = kept.remove(name).unwrap();
        kept.insert(own.to_owned(), tensor);
    }
    let kept = fused_experts(kept, 6, 0);
    same_as_golden(
        &case,
        "deepseek_v4",
        case.config("config.json"),
        &renamed(kept, &[]),
    );
}

#[test]
fn deepseek_4_refuses_experts_that_do_not_exist() {
    let case = case("deepseek_v4");
    for expert in [-1i64, 6] {
        let mut changed = tensors(&case);
        let table: Vec<i64> = (0..128)
            .map(|at| if at == 77 { expert } else { at % 6 })
            .collect();
        let table = Array::from_slice(&table, &[64, 2]).unwrap();
        changed.insert("layers.0.ffn.gate.tid2eid".to_owned(), table);
        let config = case.config("config.json");
        let found = loaded("deepseek_v4", config, &renamed(changed, &[]));
        let error = found.err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| panic!("expert {expert} was not refused"));
        assert!(error.contains("layers.0.mlp.tid2eid: experts"), "{error}");
    }
}

/// Hashes are numbers of the file, and must name rows of its tables.
#[test]
fn qwen_4_refuses_hashes_that_leave_their_tables() {
    let case = case("qwen4_exp");
    let path = "model.language_model.layers.0.ple.ple_embedding";
    for (name, values) in [
        ("ngram_heads_vocab_sizes", [23i64, 0, 31, 37]),
        ("ngram_heads_offsets", [0, 23, 52, 84]),
        ("ngram_heads_offsets", [0, -1, 52, 83]),
    ] {
        let mut changed = tensors(&case);
        let array = Array::from_slice(&values, &[4]).unwrap();
        changed.insert(format!("{path}.{name}"), array);
        let config = case.config("config.json");
        let found = loaded("qwen4_exp", config, &renamed(changed, &[]));
        let error = found.err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| panic!("{name} {values:?} was not refused"));
        assert!(
            error.contains("layers.0.ple.ple_embedding: a table of"),
            "{error}"
        );
    }
}

/// A case, a place in its config.json, the value there as JSON, and what the error says.
const REFUSED: [(&str, &str, &str, &str); 17] = [
    (
        "deepseek_v4",
        "/rope_scaling/rope_type",
        r#""dynamic""#,
        "a rope that changes with the length is not supported over compressed blocks",
    ),
    (
        "deepseek_v4",
        "/compress_ratios/1",
        r#"8"#,
        "compress_ratios 8 is not supported; known: 0, 4, 128",
    ),
    (
        "deepseek_v4",
        "/scoring_func",
        r#""softmax""#,
        "scoring_func \"softmax\" is not supported; known: sqrtsoftplus, sigmoid",
    ),
    (
        "deepseek_v4",
        "/o_groups",
        r#"3"#,
        "num_attention_heads 4 is not a multiple of o_groups 3",
    ),
    (
        "deepseek_v4",
        "/sliding_window",
        r#"1"#,
        "a window of 1 positions",
    ),
    (
        "qwen4_exp",
        "/text_config/ple_layer_ids",
        r#"[1, 3]"#,
        "ple_layer_ids names layer 3, which is not a linear_attention layer of 1 to 3",
    ),
    (
        "qwen4_exp",
        "/text_config/indexer_kv_heads",
        r#"2"#,
        "indexer_kv_heads 2 is not supported; known: 1",
    ),
    (
        "qwen4_exp",
        "/text_config/eos_token_id",
        "null",
        "eos_token_id must be a token",
    ),
    (
        "qwen4_exp",
        "/text_config/indexer_budget",
        r#"7"#,
        "indexer_budget 7 is not a multiple of indexer_compress_ratio 4",
    ),
    (
        "longcat_flash",
        "/router_bias",
        r#"true"#,
        "router_bias true is not supported",
    ),
    (
        "longcat_flash",
        "/zero_expert_type",
        r#""copy""#,
        "zero_expert_type \"copy\" is not supported; known: \"identity\"",
    ),
    (
        "longcat_flash",
        "/zero_expert_num",
        r#"-1"#,
        "zero_expert_num -1 is not a number of experts",
    ),
    (
        "hy_v4",
        "/indexer_types/0",
        r#""shared""#,
        "the first layer has no earlier one",
    ),
    (
        "hy_v4",
        "/hc_mult",
        r#"65"#,
        "hc_mult must be at most 64, found 65",
    ),
    (
        "glm5_next",
        "/text_config/index_kpool_always_select_tail",
        r#"false"#,
        "index_kpool_always_select_tail false is not supported",
    ),
    (
        "glm5_next",
        "/text_config/index_topk",
        r#"10"#,
        "index_topk 10 is not a multiple of index_kpool 4",
    ),
    (
        "glm5_next",
        "/text_config/indexer_types/1",
        r#""shared""#,
        "layer 1 is shared, but the layer before it has no indexer",
    ),
];

#[test]
fn forms_that_are_not_supported_are_refused_by_name() {
    for (name, place, value, expected) in REFUSED {
        let value: Value = serde_json::from_str(value).unwrap();
        let mut config = case(name).config("config.json");
        match config.pointer_mut(place) {
            Some(entry) => *entry = value,
            None => config[&place[1..]] = value,
        }
        let found = load_from("here", config, Vec::new(), LoadOptions::default());
        let error = found
            .err()
            .unwrap_or_else(|| panic!("{place} was accepted"));
        let error = error.to_string();
        assert!(error.contains(expected), "{place}: {error}");
    }
}

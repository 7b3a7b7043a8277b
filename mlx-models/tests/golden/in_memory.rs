//! The names and forms of tensors that transformers 5 keeps in memory, which some programs write: residual streams have
//! names of their own.

use std::collections::BTreeMap;

use mlx_core::Array;
use mlx_models::{LoadOptions, load_from};
use serde_json::{Value, json};

use super::case::Case;
use super::renamed::{same_as_golden, tensors};

type Tensors = BTreeMap<String, Array>;

fn case(name: &str) -> Case {
    let found = Case::all().into_iter().find(|case| case.name == name);
    found.unwrap_or_else(|| panic!("there is no case {name}"))
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
fn forms_that_are_not_supported_are_refused_by_name() {
    let cases: [(&str, &str, Value, &str); 2] = [
        (
            "hy_v4",
            "/indexer_types/0",
            json!("shared"),
            "the first layer has no earlier one",
        ),
        (
            "hy_v4",
            "/hc_mult",
            json!(65),
            "hc_mult must be at most 64, found 65",
        ),
    ];
    for (name, place, value, expected) in cases {
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

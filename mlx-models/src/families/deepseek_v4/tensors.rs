//! The names of DeepSeek V4's tensors.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use super::DEFAULTS;
use super::sizes::{self, Kind};
use crate::config::keys;
use crate::config::{Bits, Source};

/// The names of published files, which have no `model.`, without those of experts and indexers.
pub(crate) fn common_names(source: &Source<'_>) -> Result<Vec<Rule>> {
    const PARTS: [(&str, &str); 13] = [
        ("wq_a", "q_a_proj"),
        ("wq_b", "q_b_proj"),
        ("q_norm", "q_a_norm"),
        ("wkv", "kv_proj"),
        ("wgate", "gate_proj"),
        ("wo_a", "o_a_proj"),
        ("wo_b", "o_b_proj"),
        // As transformers writes it.
        ("self_attn.norm", "self_attn.kv_norm"),
        ("compressor.norm", "compressor.kv_norm"),
        ("indexer.norm", "indexer.kv_norm"),
        ("w1", "gate_proj"),
        ("w2", "down_proj"),
        ("w3", "up_proj"),
    ];
    let rename = |from: &str, to: &str| Rule::rename(from, to);
    let mut rules = vec![
        Rule::drop("mtp.*", "a head for multi-token prediction"),
        Rule::drop("model.mtp.*", "a head for multi-token prediction"),
        rename("embed.weight", "model.embed_tokens.weight"),
        rename("head.weight", "lm_head.weight"),
        rename("norm.weight", "model.norm.weight"),
        rename("hc_head_*", "model.hc_head.hc_*"),
        rename("layers.*", "model.layers.*"),
        rename("*.attn.*", "*.self_attn.*"),
        rename("*.ffn.*", "*.mlp.*"),
        rename("*.attn_norm.*", "*.input_layernorm.*"),
        rename("*.ffn_norm.*", "*.post_attention_layernorm.*"),
        rename("*.hc_attn_*", "*.attn_hc.*"),
        rename("*.hc_ffn_*", "*.ffn_hc.*"),
        rename("*_hc.fn", "*_hc.mix"),
        rename("model.hc_head.hc_fn", "model.hc_head.mix"),
        rename("model.hc_head.hc_*", "model.hc_head.*"),
        rename("*.attn_sink", "*.sinks"),
        rename("*.ape", "*.position_bias"),
        rename("*.mlp.gate.bias", "*.mlp.e_score_correction_bias"),
        rename("*.mlp.gate.tid2eid", "*.mlp.tid2eid"),
    ];
    rules.extend(PARTS.map(|(from, to)| rename(&format!("*.{from}.*"), &format!("*.{to}.*"))));
    let groups = source.config.size("o_groups", Some(8))?;
    for name in source.tensors.names() {
        let parts = name.split_once("layers.").and_then(|(_, rest)| {
            let (layer, rest) = rest.split_once('.')?;
            let (_, part) = rest
                .split_once(".wo_a.")
                .or(rest.split_once(".o_a_proj."))?;
            Some((layer, part))
        });
        if let Some((layer, part)) = parts
            && source
                .tensors
                .shape(name)?
                .is_some_and(|shape| shape.len() == 2)
        {
            let path = format!("model.layers.{layer}.self_attn.o_a_proj");
            let each = (0..groups).map(|at| format!("{path}.{at}.{part}"));
            let each: Vec<String> = each.collect();
            let each: Vec<&str> = each.iter().map(String::as_str).collect();
            rules.push(Rule::divide(&format!("{path}.{part}"), &each));
        }
    }
    rules.push(Rule::stack("*.o_a_proj.#.*", "*.o_a_proj.*"));
    Ok(rules)
}

/// The names of published files, and of those that transformers keeps in memory.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let indexers = [
        (
            "*.self_attn.indexer.compressor.*",
            "*.self_attn.compressor.indexer.*",
        ),
        ("*.self_attn.indexer.*", "*.self_attn.compressor.indexer.*"),
        ("*.indexer.scorer.*", "*.indexer.*"),
    ];
    let mut rules = common_names(source)?;
    rules.extend(indexers.map(|(from, to)| Rule::rename(from, to)));
    let kinds = sizes::kinds(
        source.config,
        keys::n_layers(source.config, Some(DEFAULTS.layers))?,
    )?;
    for (layer, _) in kinds
        .iter()
        .enumerate()
        .filter(|(_, kind)| **kind == Kind::Near)
    {
        let unused = format!("model.layers.{layer}.self_attn.compressor.*");
        rules.push(Rule::drop(&unused, "the layer has no blocks"));
    }
    Ok(Rules::from(rules).and(&keys::deepseek_expert_names()))
}

/// Projections that published files leave in 16 bits.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("*.mlp.gate", Bits::Dense),
    ("*.compressor.kv_proj", Bits::Dense),
    ("*.compressor.gate_proj", Bits::Dense),
    ("*.indexer.kv_proj", Bits::Dense),
    ("*.indexer.gate_proj", Bits::Dense),
    ("*.indexer.weights_proj", Bits::Dense),
];

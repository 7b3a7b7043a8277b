//! Llama-Nemotron Super and Ultra (arXiv:2411.19146): Llama whose layers were searched for. Each
//! layer has its own number of KV heads and its own width, and attention or MLP may be absent or
//! one linear map.

use mlx_core::Result;
use mlx_nn::LayerKind;

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::causal_lm::CausalLm;
use crate::model::{LayerGeometry, kv_heads};

mod layer;

use layer::{Half, SearchedLayer, Shared};

/// The defaults of the published configuration class for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_256,
    hidden: 8192,
    layers: 80,
    heads: 64,
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 500_000.0,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<SearchedLayer>> {
    let c = source.config;
    // The numbers of KV heads and the widths of all layers are in `block_configs`.
    c.ignore(&["intermediate_size", "num_key_value_heads"]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    let shared = Shared {
        activation: keys::activation(c, "hidden_act", "silu")?,
        mlp_bias: c.or("mlp_bias", false)?,
        config,
    };
    let (mut layers, mut sizes) = (Vec::new(), Vec::new());
    for (attention, mlp) in blocks(c, &shared.config)? {
        layers.push(shared.layer(attention, mlp)?);
        let plan = &shared.config.attention;
        sizes.push(match attention {
            Half::Whole(kv) => {
                let kv = kv_heads(kv, plan.head_dim);
                LayerGeometry::attention(plan.heads, kv, LayerKind::Full)
            }
            Half::Absent | Half::Linear => LayerGeometry::stateless(),
        });
    }
    CausalLm::around(layers, shared.config.surroundings_of(sizes)?)
}

/// The two halves of each layer: attention with its number of KV heads, and an MLP with its width.
fn blocks(c: &Config, config: &DecoderConfig) -> Result<Vec<(Half<i32>, Half<i32>)>> {
    const KEY: &str = "block_configs";
    let blocks: Vec<serde_json::Value> = c.required(KEY)?;
    let n = config.layers.len();
    if blocks.len() != n {
        let found = blocks.len();
        return Err(c.error(format!("{KEY} has {found} entries for {n} layers")));
    }
    let heads = config.attention.heads;
    let block = |(layer, block): (usize, &serde_json::Value)| {
        let wrong = |what: String| c.error(format!("{KEY}, layer {layer}: {what}"));
        let half = |name: &str| {
            let given = &block[name];
            let is = |key: &str| given[key] == true;
            match (is("no_op"), is("replace_with_linear")) {
                (true, _) => Half::Absent,
                (false, true) => Half::Linear,
                (false, false) => Half::Whole(given),
            }
        };
        let attention = match half("attention") {
            Half::Absent => Half::Absent,
            Half::Linear => Half::Linear,
            Half::Whole(given) => {
                for key in ["num_sink_tokens", "sparsify", "window_length"] {
                    if !given[key].is_null() {
                        return Err(c.unsupported(format!(
                            "{key} of attention in layer {layer} is not supported: only attention to all earlier tokens"
                        )));
                    }
                }
                let group = given["n_heads_in_group"].as_i64();
                let group = group.filter(|&group| group >= 1 && i64::from(heads) % group == 0);
                let Some(group) = group else {
                    return Err(wrong(format!(
                        "n_heads_in_group must divide the {heads} heads, found {}",
                        given["n_heads_in_group"]
                    )));
                };
                Half::Whole((i64::from(heads) / group) as i32)
            }
        };
        let mlp = match half("ffn") {
            Half::Absent => Half::Absent,
            Half::Linear => Half::Linear,
            Half::Whole(given) => {
                let factor = given["ffn_mult"].as_f64();
                let Some(factor) = factor.filter(|factor| (0.0..=64.0).contains(factor)) else {
                    return Err(wrong(format!(
                        "ffn_mult must be a number from 0 to 64, found {}",
                        given["ffn_mult"]
                    )));
                };
                Half::Whole(width(factor, config.hidden))
            }
        };
        Ok((attention, mlp))
    };
    blocks.iter().enumerate().map(block).collect()
}

/// Two thirds of `factor * hidden`, rounded up to a multiple of 256.
fn width(factor: f64, hidden: i32) -> i32 {
    let factor = (factor * 1e6).round() / 1e6;
    let width = (2.0 * factor * f64::from(hidden) / 3.0) as i32;
    ((width + 255) / 256 * 256).max(256)
}

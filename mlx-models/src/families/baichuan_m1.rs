//! Baichuan M1 (arXiv:2502.12671): keys and values are mixed with those of the token before, layers with a window have heads of
//! their own, and the rows of the output head have length 1.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::{AttentionPlan, DecoderConfig};
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// mlx-lm's model requires the sizes, and the others are those of Llama.
const DEFAULTS: Defaults = Defaults {
    vocab: 133_120,
    ..Defaults::LLAMA
};

/// The number that is added to the norms of the head's rows.
const LEAST: f32 = 1e-7;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let config = config(source.config)?;
    if config.head.tied {
        return Err(source.config.unsupported(
            "tie_word_embeddings true is not supported: the rows of the head are divided by their norms",
        ));
    }
    Decoder::new(&config)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let taps = c.size("conv_window", Some(2))?;
    if taps != 2 {
        return Err(c.unsupported(format!("conv_window {taps} is not supported: only 2")));
    }
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.kv_taps = true;
    let n = config.layers.len();
    let listed: Vec<usize> = c.or("sliding_window_layers", Vec::new())?;
    if let Some(layer) = listed.iter().find(|&&layer| layer >= n) {
        return Err(c.error(format!(
            "sliding_window_layers has layer {layer} of {n}, which count from 0"
        )));
    }
    let window = keys::window(c, None)?;
    if window.is_none() && !listed.is_empty() {
        return Err(c.error("sliding_window_layers has layers, but there is no sliding_window"));
    }
    let sliding = of_windows(c, &config)?;
    let full = config.attention.clone();
    for (layer, kind) in config.layers.iter_mut().enumerate() {
        let is_sliding = listed.contains(&layer);
        if is_sliding {
            *kind = keys::kind(window);
        }
        let plan = if is_sliding { &sliding } else { &full };
        if let Some(rope) = &mut config.ropes[layer] {
            rope.dims = plan.head_dim;
        }
        config.attentions.push(plan.clone());
    }
    Ok(config)
}

/// The attention of layers with a window. All heads of a layer have the width of a token together.
fn of_windows(c: &Config, config: &DecoderConfig) -> Result<AttentionPlan> {
    let full = &config.attention;
    // 0 and null mean those of the other layers.
    let own = |key: &str, usual: i32| match c.value(key) {
        Some(given) if given.as_i64() != Some(0) => c.size(key, Some(usual)),
        _ => Ok(usual),
    };
    let heads = own("num_swa_attention_heads", full.heads)?;
    let kv_heads = own("num_swa_key_value_heads", full.kv_heads)?;
    if config.hidden % heads != 0 {
        return Err(c.error(format!(
            "hidden_size {} is not a multiple of num_swa_attention_heads {heads}",
            config.hidden
        )));
    }
    let head_dim = config.hidden / heads;
    keys::check_heads(c, heads, kv_heads, head_dim)?;
    Ok(AttentionPlan {
        kv_taps: true,
        ..AttentionPlan::plain(heads, kv_heads, head_dim)
    })
}

/// Published names, which MLX's files have too.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let config = config(source.config)?;
    let split = config.attentions.iter().enumerate().map(|(layer, plan)| {
        let name = |name: &str| format!("model.layers.{layer}.self_attn.{name}.*");
        let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(name);
        let (queries, keys) = (plan.heads * plan.head_dim, plan.kv_heads * plan.head_dim);
        let parts = [(&*q, queries), (&*k, keys), (&*v, keys)];
        Rule::split(&name("W_pack"), 1, parts).written()
    });
    let head = Rule::unit_rows("lm_head.weight", LEAST);
    Ok(Rules::from(split.chain([head])))
}

#[cfg(test)]
mod tests {
    use mlx_nn::LayerKind;

    use super::*;

    #[test]
    fn layers_with_a_window_have_heads_of_their_own() {
        let value = serde_json::json!({
            "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "sliding_window": 8, "sliding_window_layers": [1], "num_swa_attention_heads": 8,
            "num_swa_key_value_heads": null, "conv_window": 2,
        });
        let found = config(&Config::new("here", value).unwrap()).unwrap();
        let kinds = [LayerKind::Full, LayerKind::Window(8), LayerKind::Full];
        assert_eq!(found.layers, kinds);
        let sizes = found.attentions.iter();
        let sizes: Vec<_> = sizes
            .map(|plan| (plan.heads, plan.kv_heads, plan.head_dim))
            .collect();
        assert_eq!(sizes, [(4, 2, 8), (8, 2, 4), (4, 2, 8)]);
    }
}

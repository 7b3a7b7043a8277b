//! Ling and Ring 2.0 Linear (Bailing): Ling 2 with lightning attention (arXiv:2401.04658) in all layers but the last of each
//! group. Queries and keys of these layers are normed and rotated too, and their outputs are normed in groups.

use mlx_core::Result;
use mlx_nn::{
    Attention, FeedForward, LayerKind, Lightning, LightningConfig, Norm, Normed, Residual, Rope,
    Rule, Rules, Step, module,
};

use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};
use crate::families::bailing_moe;

/// A layer of Ling Linear.
#[derive(Clone)]
pub(crate) struct LingLinearLayer {
    input_layernorm: Norm,
    self_attn: Option<Attention>,
    linear_attn: Option<Lightning>,
    post_attention_layernorm: Norm,
    mlp: FeedForward,
}
module!(LingLinearLayer {
    input_layernorm,
    self_attn,
    linear_attn,
    post_attention_layernorm,
    mlp
});

impl DecoderLayer for LingLinearLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let normed = Normed::new(x, &self.input_layernorm);
        let y = match (&self.self_attn, &self.linear_attn) {
            (Some(attention), _) => attention.forward(&normed, state, step)?,
            (None, Some(lightning)) => lightning.forward(normed.array()?, state, step)?,
            (None, None) => unreachable!("a layer has one of them"),
        };
        let [x, y] = step.narrow([normed.sum()?, &y])?;
        let normed = Normed::new(Residual::new(x, y), &self.post_attention_layernorm);
        let y = self.mlp.forward(&normed)?;
        Ok(Residual::new(normed.sum()?.clone(), y))
    }
}

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<LingLinearLayer>> {
    let c = source.config;
    let config = config(c)?;
    let lightning = lightning(c, &config)?;
    let last = (config.layers.len() as f64 - 1.0).max(1.0);
    CausalLm::of(&config, |config, layer| {
        let rope = config.ropes[layer].as_ref();
        let recurrent = matches!(config.layers[layer], LayerKind::Recurrent(_));
        // The decays are weaker in later layers.
        let depth = 1.0 - (layer as f64 - 1.0).max(0.0) / last + 1e-5;
        Ok(LingLinearLayer {
            input_layernorm: config.norm()?,
            self_attn: match recurrent {
                true => None,
                false => Some(config.attention(None, rope)?),
            },
            linear_attn: match recurrent {
                true => {
                    let rope = rope.map(|rope| Rope::new(rope, lightning.head_dim));
                    let layer = Lightning::empty(lightning, depth as f32)?;
                    Some(layer.with_rope(rope.transpose()?))
                }
                false => None,
            },
            post_attention_layernorm: config.norm()?,
            mlp: config.mlp(&config.feed_forward[layer])?,
        })
    })
}

/// The decoder that a config describes. The layers after the last whole group attend.
fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = bailing_moe::config(c)?;
    for rope in config.ropes.iter_mut().flatten() {
        rope.interleaved = c.or("rope_traditional", false)?;
    }
    let kind = lightning(c, &config)?.kind();
    let group = c.size("layer_group_size", Some(1))? as usize;
    let n = config.layers.len();
    for (layer, own) in config.layers.iter_mut().enumerate() {
        if (layer + 1) % group != 0 && layer < n / group * group {
            *own = kind;
        }
    }
    Ok(config)
}

fn lightning(c: &Config, config: &DecoderConfig) -> Result<LightningConfig> {
    let attention = &config.attention;
    if attention.heads * attention.head_dim != config.hidden {
        return Err(c.unsupported(format!(
            "head_dim {} is not supported: only hidden_size / num_attention_heads",
            attention.head_dim
        )));
    }
    let groups = c.size("group_norm_size", Some(1))?;
    if attention.heads % groups != 0 {
        return Err(c.error(format!(
            "num_attention_heads {} is not a multiple of group_norm_size {groups}",
            attention.heads
        )));
    }
    for (key, known) in [
        ("linear_rope", true),
        ("use_linear_silu", false),
        ("linear_silu", false),
    ] {
        if c.or(key, known)? != known {
            return Err(c.unsupported(format!("{key} {} is not supported: only {known}", !known)));
        }
    }
    Ok(LightningConfig {
        hidden: config.hidden,
        heads: attention.heads,
        head_dim: attention.head_dim,
        activation: None,
        norm_eps: config.norm.eps,
        groups,
        bias: attention.qkv_bias,
        qk_norm: attention.qk_norm.map(|norm| norm.eps),
        scaled: true,
        slopes: true,
    })
}

/// The names of Ling 2. Lightning attention has its values, keys and queries in one matrix.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let config = config(source.config)?;
    let width = config.hidden;
    let mut rules = Vec::new();
    for (layer, kind) in config.layers.iter().enumerate() {
        if !matches!(kind, LayerKind::Recurrent(_)) {
            continue;
        }
        let name = |name: &str| format!("model.layers.{layer}.{name}.*");
        let own = |part: &str| name(&format!("linear_attn.{part}"));
        let [q, k, v] = ["q", "k", "v"].map(own);
        let fused = name("attention.query_key_value");
        rules.push(Rule::split(&fused, 1, [(&*q, width), (&*k, width), (&*v, width)]).written());
        let parts = [(&*v, width), (&*k, width), (&*q, width)];
        rules.push(Rule::join(parts, 1, &own("in_proj")).written());
        for (from, to) in [
            ("dense", "out_proj"),
            ("g_norm", "norm"),
            ("g_proj", "output_gate"),
            ("key_layernorm", "k_norm"),
            ("query_layernorm", "q_norm"),
        ] {
            let from = name(&format!("attention.{from}"));
            rules.push(Rule::rename(&from, &own(to)).written());
        }
    }
    Ok(Rules::from(rules).and(&bailing_moe::names(source)?))
}

//! MiniMax 01 (arXiv:2501.08313): layers with lightning attention and layers with softmax
//! attention, experts in every layer; residual connections start from the normed inputs and are
//! weighted.

use mlx_core::{Array, Result};
use mlx_nn::{
    Attention, FeedForward, LayerKind, Lightning, LightningConfig, Norm, Residual, Rule, Rules,
    Step, module,
};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Config, Source};
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};
use crate::families::mixtral;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 1_000_000.0,
    ..Defaults::LLAMA
};

/// The epsilon of the norm after lightning attention. No config has a key for it.
const LIGHTNING_EPS: f32 = 1e-6;

/// Keys without an effect: the size of chunks, which changes no result; noise in training; and keys
/// of published files that transformers does not read.
const IGNORED: &[&str] = &[
    "block_size",
    "postnorm",
    "rotary_dim",
    "router_jitter_noise",
    "shared_intermediate_size",
    "shared_moe_mode",
];

/// A layer of MiniMax 01.
#[derive(Clone)]
pub(crate) struct MiniMaxLayer {
    input_layernorm: Norm,
    self_attn: Option<Attention>,
    linear_attn: Option<Lightning>,
    post_attention_layernorm: Norm,
    mlp: FeedForward,
    attention_weights: Weights,
    mlp_weights: Weights,
}
module!(MiniMaxLayer { input_layernorm, self_attn, linear_attn, post_attention_layernorm, mlp }
        plain { attention_weights, mlp_weights });

/// Factors of the residual and of the output that is added to it.
#[derive(Clone, Copy)]
struct Weights {
    alpha: f32,
    beta: f32,
}

impl Weights {
    fn read(c: &Config, of: &str) -> Result<Self> {
        let number = |name: &str| -> Result<f32> { c.or(&format!("{of}_{name}_factor"), 1.0) };
        Ok(Self {
            alpha: number("alpha")?,
            beta: number("beta")?,
        })
    }

    fn sum(self, residual: &Array, y: &Array) -> Result<Array> {
        residual.multiply(self.alpha)?.add(y.multiply(self.beta)?)
    }
}

impl DecoderLayer for MiniMaxLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let (_, x) = x.normed(&self.input_layernorm)?;
        let y = match (&self.self_attn, &self.linear_attn) {
            (Some(attention), _) => attention.forward(&x, state, step)?,
            (None, Some(lightning)) => lightning.forward(&x, state, step)?,
            (None, None) => unreachable!("a layer has one of them"),
        };
        let [x, y] = step.narrow([&x, &y])?;
        let sum = self.attention_weights.sum(&x, &y)?;
        let x = self.post_attention_layernorm.forward(&sum)?;
        let sum = self.mlp_weights.sum(&x, &self.mlp.forward(&x)?)?;
        Ok(sum.into())
    }
}

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<MiniMaxLayer>> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let experts = keys::experts(c, config.hidden, &EXPERTS)?;
    config.feed_forward.fill(MlpConfig::Experts(experts));
    let lightning = lightning(c, &config)?;
    let full = keys::kind(keys::window(c, None)?);
    let known = [
        ("full_attention", full),
        ("linear_attention", lightning.kind()),
    ];
    let kinds = |layer: usize| known[layer % 2].1;
    config.layers = keys::layer_types(c, config.layers.len(), known, kinds)?;
    let mlp_weights = Weights::read(c, "mlp")?;
    let [full_weights, linear_weights] = [
        Weights::read(c, "full_attn")?,
        Weights::read(c, "linear_attn")?,
    ];
    let last = config.layers.len() as f64 - 1.0;
    CausalLm::of(&config, |config, layer| {
        let recurrent = matches!(config.layers[layer], LayerKind::Recurrent(_));
        // The decays are weaker in later layers.
        let depth = 1.0 - layer as f64 / (last + 1e-5) + 1e-5;
        Ok(MiniMaxLayer {
            input_layernorm: config.norm()?,
            self_attn: match recurrent {
                true => None,
                false => Some(config.attention(None, config.ropes[layer].as_ref())?),
            },
            linear_attn: match recurrent {
                true => Some(Lightning::empty(lightning, depth as f32)?),
                false => None,
            },
            post_attention_layernorm: config.norm()?,
            mlp: config.mlp(&config.feed_forward[layer])?,
            attention_weights: if recurrent {
                linear_weights
            } else {
                full_weights
            },
            mlp_weights,
        })
    })
}

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 14_336,
    n_experts: 8,
    top_k: 2,
    norm_topk_prob: Some(true),
};

fn lightning(c: &Config, config: &DecoderConfig) -> Result<LightningConfig> {
    Ok(LightningConfig {
        hidden: config.hidden,
        heads: config.attention.heads,
        head_dim: config.attention.head_dim,
        activation: Some(keys::activation(c, "hidden_act", "silu")?),
        norm_eps: LIGHTNING_EPS,
        groups: 1,
        bias: false,
        qk_norm: None,
        scaled: false,
        slopes: false,
    })
}

/// The names of Mixtral. Lightning attention has queries, keys and values in one matrix, head by
/// head. Its decays are computed from the config, and those in files of transformers are dropped.
///
/// transformers computes with the decays of the file. In a file of 16 bits they are rounded, four
/// tables each for itself: the first chunk of a text then decays at other rates than the tokens after
/// it, so no rates of ours would give both.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let c = source.config;
    let LightningConfig {
        heads, head_dim, ..
    } = lightning(c, &keys::decoder(c, &DEFAULTS)?)?;
    let part = |name: &str| format!("*.linear_attn.{name}.*");
    let [q, k, v] = ["q", "k", "v"].map(part);
    let whole = [&v, &k, &q].map(|name| (&**name, heads * head_dim));
    let decays = ["slope_rate", "query_decay", "key_decay", "diagonal_decay"];
    let decays =
        decays.map(|name| Rule::drop(&format!("*.self_attn.{name}"), "computed from config.json"));
    let moved = ["out_proj", "output_gate", "norm"].map(|name| {
        let from = format!("*.self_attn.{name}.*");
        Rule::rename(&from, &part(name)).written()
    });
    let fused = [
        Rule::split(
            "*.self_attn.qkv_proj.*",
            heads,
            [(&*q, head_dim), (&*k, head_dim), (&*v, head_dim)],
        )
        .written(),
        Rule::join(whole, 1, &part("in_proj")).written(),
    ];
    let own = Rules::from(decays.into_iter().chain(moved).chain(fused));
    Ok(own.and(&mixtral::names(source)?))
}

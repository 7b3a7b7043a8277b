//! Phi 3 and 4 mini (arXiv:2404.14219): q, k and v in one projection, gate and up in another.

use mlx_core::Result;
use mlx_nn::{FusedAttention, FusedMlp, Norm, Normed, Residual, Rope, Step, module};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::config::plan::{AttentionPlan, DecoderConfig, MlpConfig};
use crate::config::rope::Dialect;
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 32_064,
    hidden: 3072,
    intermediate: 8192,
    max_positions: 4096,
    norm_eps: 1e-5,
    rope: Some(Dialect::Phi3),
    ..Defaults::LLAMA
};

/// A layer of [`Phi3`].
#[derive(Clone)]
pub struct Phi3Layer {
    input_layernorm: Norm,
    self_attn: FusedAttention,
    post_attention_layernorm: Norm,
    mlp: FusedMlp,
}
module!(Phi3Layer {
    input_layernorm,
    self_attn,
    post_attention_layernorm,
    mlp
});

impl Phi3Layer {
    fn new(c: &DecoderConfig, index: usize) -> Result<Self> {
        let (
            &MlpConfig::Dense {
                intermediate,
                activation,
                ..
            },
            Some(rope),
        ) = (&c.feed_forward[index], &c.ropes[index])
        else {
            unreachable!("phi3's config has dense layers with a rope");
        };
        let AttentionPlan {
            heads,
            kv_heads,
            head_dim,
            ..
        } = c.attention;
        Ok(Self {
            input_layernorm: c.norm()?,
            self_attn: FusedAttention::empty(
                c.hidden,
                [heads, kv_heads],
                head_dim,
                Rope::new(rope, head_dim)?,
            )?,
            post_attention_layernorm: c.norm()?,
            mlp: FusedMlp::empty(c.hidden, intermediate, activation)?,
        })
    }
}

impl DecoderLayer for Phi3Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let normed = Normed::new(x, &self.input_layernorm);
        let y = self.self_attn.forward(&normed, state, step)?;
        let [x, y] = step.narrow([normed.sum()?, &y])?;
        let normed = Normed::new(Residual::new(x, y), &self.post_attention_layernorm);
        let y = self.mlp.forward(&normed)?;
        Ok(Residual::new(normed.sum()?.clone(), y))
    }
}

/// A Phi 3 model.
pub type Phi3 = CausalLm<Phi3Layer>;

pub(crate) fn load(source: &Source<'_>) -> Result<Phi3> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    // Published files have these keys, but transformers does not read them.
    c.ignore(&["attention_bias", "lm_head_bias", "mlp_bias"]);
    c.ignore(&["full_attn_mod", "interpolate_factor"]);
    let window = keys::window(c, None)?;
    config.layers = vec![keys::kind(window); config.layers.len()];
    CausalLm::of(&config, Phi3Layer::new)
}

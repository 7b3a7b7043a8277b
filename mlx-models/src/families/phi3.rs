//! Phi 3 and 4 mini (arXiv:2404.14219): q, k and v in one projection, gate and up in another.

use mlx_core::{Array, Result};
use mlx_nn::attention::{merge_heads, split_heads};
use mlx_nn::{Activation, Attend, Linear, Norm, Normed, Residual, Rope, Step, module};

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

#[derive(Clone)]
struct Attention {
    qkv_proj: Linear,
    o_proj: Linear,
    rope: Rope,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
}
module!(Attention { qkv_proj, o_proj } plain { rope, heads, kv_heads, head_dim });

impl Attention {
    fn forward(&self, x: &Normed<'_>, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let (q_end, k_end) = (self.heads, self.heads + self.kv_heads);
        let qkv = split_heads(&self.qkv_proj.forward(x)?, self.head_dim)?;
        let q = self.rope.forward(&qkv.slice_axis(1, 0, q_end)?, step)?;
        let k = self.rope.forward(&qkv.slice_axis(1, q_end, k_end)?, step)?;
        let v = qkv.slice_axis(1, k_end, k_end + self.kv_heads)?;
        let options = Attend {
            scale: (self.head_dim as f32).powf(-0.5),
            softcap: None,
            sinks: None,
            alibi: None,
        };
        let y = step.attend(state, &q, &k, &v, &options)?;
        self.o_proj.forward(&merge_heads(&y)?)
    }
}

#[derive(Clone)]
struct Mlp {
    gate_up_proj: Linear,
    down_proj: Linear,
    intermediate: i32,
    activation: Activation,
}
module!(Mlp { gate_up_proj, down_proj } plain { intermediate, activation });

impl Mlp {
    fn forward(&self, x: &Normed<'_>) -> Result<Array> {
        let both = self.gate_up_proj.forward(x)?;
        let gate = both.slice_axis(-1, 0, self.intermediate)?;
        let up = both.slice_axis(-1, self.intermediate, 2 * self.intermediate)?;
        self.down_proj.forward(&self.activation.gated(&gate, &up)?)
    }
}

/// A layer of [`Phi3`].
#[derive(Clone)]
pub struct Phi3Layer {
    input_layernorm: Norm,
    self_attn: Attention,
    post_attention_layernorm: Norm,
    mlp: Mlp,
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
            self_attn: Attention {
                qkv_proj: Linear::empty(c.hidden, (heads + 2 * kv_heads) * head_dim, false)?,
                o_proj: Linear::empty(heads * head_dim, c.hidden, false)?,
                rope: Rope::new(rope, head_dim)?,
                heads,
                kv_heads,
                head_dim,
            },
            post_attention_layernorm: c.norm()?,
            mlp: Mlp {
                gate_up_proj: Linear::empty(c.hidden, 2 * intermediate, false)?,
                down_proj: Linear::empty(intermediate, c.hidden, false)?,
                intermediate,
                activation,
            },
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

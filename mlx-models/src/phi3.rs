//! Phi 3 and 4 mini (arXiv:2404.14219): q, k and v in one projection, gate and up in another.

use mlx_core::{Array, Result};
use mlx_nn::attention::{merge_heads, split_heads};
use mlx_nn::{Activation, Attend, Embedding, Head, LayerKind, Linear, RmsNorm, Rope, Step, module};

use crate::Model;
use crate::config::Config;
use crate::decoder::{DecoderConfig, MlpConfig};
use crate::family;

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
    fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let (q_end, k_end) = (self.heads, self.heads + self.kv_heads);
        let qkv = split_heads(&self.qkv_proj.forward(x)?, self.head_dim)?;
        let q = self.rope.forward(&qkv.slice_axis(1, 0, q_end)?, step)?;
        let k = self.rope.forward(&qkv.slice_axis(1, q_end, k_end)?, step)?;
        let v = qkv.slice_axis(1, k_end, k_end + self.kv_heads)?;
        let options = Attend {
            scale: (self.head_dim as f32).powf(-0.5),
            softcap: None,
            sinks: None,
        };
        let y = step.attend(layer, &q, &k, &v, &options)?;
        self.o_proj.forward(&merge_heads(&y)?)
    }
}

struct Mlp {
    gate_up_proj: Linear,
    down_proj: Linear,
    intermediate: i32,
    activation: Activation,
}
module!(Mlp { gate_up_proj, down_proj } plain { intermediate, activation });

impl Mlp {
    fn forward(&self, x: &Array) -> Result<Array> {
        let both = self.gate_up_proj.forward(x)?;
        let gate = both.slice_axis(-1, 0, self.intermediate)?;
        let up = both.slice_axis(-1, self.intermediate, 2 * self.intermediate)?;
        self.down_proj.forward(&self.activation.gated(&gate, &up)?)
    }
}

struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}
module!(Layer {
    input_layernorm,
    self_attn,
    post_attention_layernorm,
    mlp
});

impl Layer {
    fn new(c: &DecoderConfig, mlp: &MlpConfig) -> Result<Self> {
        let &MlpConfig::Dense {
            intermediate,
            activation,
            ..
        } = mlp
        else {
            unreachable!("phi3's config has no experts");
        };
        Ok(Self {
            input_layernorm: RmsNorm::new(c.hidden, c.norm_eps)?,
            self_attn: Attention {
                qkv_proj: Linear::new(c.hidden, (c.heads + 2 * c.kv_heads) * c.head_dim, false)?,
                o_proj: Linear::new(c.heads * c.head_dim, c.hidden, false)?,
                rope: Rope::new(&c.rope, c.head_dim)?,
                heads: c.heads,
                kv_heads: c.kv_heads,
                head_dim: c.head_dim,
            },
            post_attention_layernorm: RmsNorm::new(c.hidden, c.norm_eps)?,
            mlp: Mlp {
                gate_up_proj: Linear::new(c.hidden, 2 * intermediate, false)?,
                down_proj: Linear::new(intermediate, c.hidden, false)?,
                intermediate,
                activation,
            },
        })
    }

    fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let x = x.add(
            self.self_attn
                .forward(&self.input_layernorm.forward(x)?, layer, step)?,
        )?;
        x.add(
            self.mlp
                .forward(&self.post_attention_layernorm.forward(&x)?)?,
        )
    }
}

struct Backbone {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
}
module!(Backbone {
    embed_tokens,
    layers,
    norm
});

/// A Phi 3 model.
pub struct Phi3 {
    model: Backbone,
    lm_head: Option<Linear>,
    kinds: Vec<LayerKind>,
    switches_after: Option<usize>,
}
module!(Phi3 { model, lm_head } plain { kinds, switches_after });

pub(crate) fn load(c: &Config) -> Result<Phi3> {
    let mut config = family::decoder(c, None)?;
    // Never true in a phi3 that exists; transformers does not read it.
    c.ignore(&["attention_bias", "original_max_position_embeddings"]);
    let window = family::window(c, None)?;
    config.layers = family::layer_kinds(c, config.layers.len(), window, |_| window.is_some())?;
    let layers: Result<Vec<_>> = config
        .mlps
        .iter()
        .map(|mlp| Layer::new(&config, mlp))
        .collect();
    Ok(Phi3 {
        model: Backbone {
            embed_tokens: Embedding::new(config.vocab, config.hidden)?,
            layers: layers?,
            norm: RmsNorm::new(config.hidden, config.norm_eps)?,
        },
        lm_head: if config.tied {
            None
        } else {
            Some(Linear::new(config.hidden, config.vocab, false)?)
        },
        switches_after: Rope::new(&config.rope, config.head_dim)?.switches_after(),
        kinds: config.layers,
    })
}

impl Model for Phi3 {
    fn embed(&self, tokens: &Array) -> Result<Array> {
        self.model.embed_tokens.forward(tokens)
    }

    fn layer(&self, index: usize, x: &Array, step: &mut Step<'_>) -> Result<Array> {
        self.model.layers[index].forward(x, index, step)
    }

    fn norm(&self, x: &Array) -> Result<Array> {
        self.model.norm.forward(x)
    }

    fn head(&self) -> Head<'_> {
        Head::of(self.lm_head.as_ref(), &self.model.embed_tokens, None)
    }

    fn layers(&self) -> &[LayerKind] {
        &self.kinds
    }

    fn switches_after(&self) -> Option<usize> {
        self.switches_after
    }
}

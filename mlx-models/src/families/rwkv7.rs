//! RWKV 7 (arXiv:2503.14456): no attention. Tokens are mixed with the one before them, and each
//! head of a layer has a matrix, which forgets by channel, is cleared at one key and learns at
//! another. Values are mixed with those of the first layer.

use mlx_core::{Result, ops::concat};
use mlx_nn::{ChannelMix, Norm, NormKind, Residual, Rule, Rules, Rwkv7, Rwkv7Config, Step, module};
use serde_json::Value;

use crate::config::keys::{self, Defaults};
use crate::config::{Bits, Config, Source};
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};

/// The defaults of flash-linear-attention's class for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    hidden: 2048,
    layers: 24,
    heads: 1,
    head_dim: Some(64),
    norm_eps_key: "norm_eps",
    norm_eps: 1e-5,
    activation_key: "",
    rope: None,
    ..Defaults::LLAMA
};

/// Keys that choose between equal forms or only concern training.
const IGNORED: &[&str] = &[
    "attn_mode",
    "fuse_cross_entropy",
    "fuse_linear_cross_entropy",
    "fuse_norm",
    "hidden_ratio",
    "num_heads",
    "use_l2warp",
];

/// A layer. Behind the features of a token the stream has the values of the first layer.
#[derive(Clone)]
pub(crate) struct Rwkv7Layer {
    pre_norm: Option<Norm>,
    attn_norm: Norm,
    attn: Rwkv7,
    ffn_norm: Norm,
    ffn: ChannelMix,
    hidden: i32,
    place: Place,
}
module!(Rwkv7Layer { pre_norm, attn_norm, attn, ffn_norm, ffn } plain { hidden, place });

/// Whether a layer is the first, and whether it is the last.
#[derive(Clone, Copy)]
struct Place {
    is_first: bool,
    is_last: bool,
}

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<Rwkv7Layer>> {
    let (c, sizes) = sizes(source.config)?;
    let mut config = keys::decoder(&c, &DEFAULTS)?;
    config.norm.kind = NormKind::layer(c.or("norm_bias", true)?);
    config.layers.fill(sizes.kind());
    // A recurrence has no positions. `max_position_embeddings` is the length of texts in training.
    config.max_positions = None;
    let has_norm = c.or("norm_first", true)?;
    let last = config.layers.len() - 1;
    let layer = |at: usize| {
        Ok(Rwkv7Layer {
            pre_norm: (at == 0 && has_norm).then(|| config.norm()).transpose()?,
            attn_norm: config.norm()?,
            attn: Rwkv7::empty(sizes, at == 0)?,
            ffn_norm: config.norm()?,
            ffn: ChannelMix::empty(sizes)?,
            hidden: config.hidden,
            place: Place {
                is_first: at == 0,
                is_last: at == last,
            },
        })
    };
    let layers = (0..=last).map(layer).collect::<Result<_>>()?;
    CausalLm::around(layers, config.surroundings()?)
}

/// The sizes of a layer, and the config with the keys that have none of transformers' names.
fn sizes(given: &Config) -> Result<(Config, Rwkv7Config)> {
    let mut c = given.clone();
    c.ignore(IGNORED);
    let activation = c.or("hidden_act", "sqrelu".to_owned())?;
    if activation != "sqrelu" {
        return Err(c.unsupported(format!(
            "hidden_act {activation:?} is not supported; known: sqrelu"
        )));
    }
    if c.value("attn").is_some() {
        return Err(
            c.unsupported("attn: layers with attention among those of RWKV 7 are not supported")
        );
    }
    let hidden = c.size("hidden_size", Some(DEFAULTS.hidden))?;
    let head_dim = match (c.value("head_dim"), c.opt::<i32>("num_heads")?) {
        (None, Some(heads)) if c.is_null("head_dim") => match hidden.checked_rem(heads) {
            Some(0) if heads > 0 => hidden / heads,
            _ => {
                let message =
                    format!("hidden_size {hidden} is not a multiple of num_heads {heads}");
                return Err(c.error(message));
            }
        },
        _ => c.size("head_dim", Some(64))?,
    };
    c.set("head_dim", Value::from(head_dim));
    keys::check_heads(&c, 1, 1, head_dim)?;
    if hidden % head_dim != 0 {
        return Err(c.error(format!(
            "hidden_size {hidden} is not a multiple of head_dim {head_dim}"
        )));
    }
    check_values(&c, hidden)?;
    if c.value("intermediate_size").is_none() {
        let inside = (f64::from(hidden) * c.positive("hidden_ratio", Some(4.0))?).floor();
        let inside = (inside / 32.0).ceil() * 32.0;
        c.set("intermediate_size", Value::from(inside as i64));
    }
    // A rank of null follows from the sizes.
    let rank = |key: &str, default: i32, factor: f64, by_head: bool| {
        if !c.is_null(key) {
            return c.size(key, Some(default));
        }
        let by_head = if by_head {
            f64::from(head_dim) / 64.0
        } else {
            1.0
        };
        let rank = factor * f64::from(hidden).sqrt() * by_head;
        Ok(((rank / 32.0).round_ties_even() as i32 * 32).max(32))
    };
    let sizes = Rwkv7Config {
        hidden,
        head_dim,
        decay_rank: rank("decay_low_rank_dim", 64, 2.5, true)?,
        rate_rank: rank("a_low_rank_dim", 64, 2.5, true)?,
        value_rank: rank("v_low_rank_dim", 16, 1.7, true)?,
        gate_rank: rank("gate_low_rank_dim", 128, 5.0, false)?,
        intermediate: c.size("intermediate_size", None)?,
        norm_eps: (c.positive("norm_eps", Some(DEFAULTS.norm_eps))? * f64::from(head_dim)) as f32,
    };
    Ok((c, sizes))
}

/// Refuses values that are wider than keys: `value_dim` is a number, or one for each layer.
fn check_values(c: &Config, hidden: i32) -> Result<()> {
    let given = c.value("value_dim").cloned();
    let sizes: Vec<Value> = match given {
        None => Vec::new(),
        Some(Value::Array(sizes)) => sizes,
        Some(size) => vec![size],
    };
    match sizes.iter().find(|size| **size != hidden) {
        Some(other) => Err(c.unsupported(format!(
            "value_dim {other} is not supported; values have the {hidden} features of a token"
        ))),
        None => Ok(()),
    }
}

impl DecoderLayer for Rwkv7Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let Place { is_first, is_last } = self.place;
        let (x, first) = match is_first {
            true => (x, None),
            false => {
                let x = x.sum()?;
                let first = x.slice_axis(-1, self.hidden, x.dim(-1)?)?;
                (x.slice_axis(-1, 0, self.hidden)?.into(), Some(first))
            }
        };
        let x = match &self.pre_norm {
            Some(norm) => norm.forward(&x.sum()?)?.into(),
            None => x,
        };
        let (x, normed) = x.normed(&self.attn_norm)?;
        let [y, first] = self.attn.forward(&normed, first.as_ref(), state, step)?;
        let (x, normed) = Residual::new(x, y).normed(&self.ffn_norm)?;
        let mixed = self.ffn.mixed(&normed, state, step)?;
        let [x, mixed] = step.narrow([&x, &mixed])?;
        let y = self.ffn.forward(&mixed)?;
        match is_last {
            true => Ok(Residual::new(x, y)),
            false => Ok(concat(&[x.add(y)?, first], -1)?.into()),
        }
    }
}

/// Published names, which MLX's files have too, and the axes of vectors: files differ in them. The
/// first published files have the six mixes of a layer in one tensor.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let (_, sizes) = sizes(source.config)?;
    let (hidden, dim) = (sizes.hidden, sizes.head_dim);
    let mixes = ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g"].map(|name| format!("*.attn.{name}"));
    let mut rules = vec![Rule::divide(
        "*.attn.x_x",
        &mixes.each_ref().map(String::as_str),
    )];
    rules.extend(
        mixes
            .iter()
            .map(|name| Rule::reshape(name, &[1, 1, hidden]).written()),
    );
    for name in [
        "ffn.x_k",
        "attn.k_k",
        "attn.k_a",
        "attn.g_norm.weight",
        "attn.g_norm.bias",
    ] {
        rules.push(Rule::reshape(&format!("*.{name}"), &[hidden]).written());
    }
    rules.push(Rule::reshape("*.attn.r_k", &[hidden / dim, dim]).written());
    let renames = [
        ("model.embeddings.*", "model.embed_tokens.*"),
        ("*_lora.lora.0.*", "*_lora.down.*"),
        ("*_lora.lora.2.*", "*_lora.up.*"),
        ("*.ffn.key.*", "*.ffn.up_proj.*"),
        ("*.ffn.value.*", "*.ffn.down_proj.*"),
    ];
    rules.extend(renames.map(|(from, to)| Rule::rename(from, to).written()));
    Ok(Rules::from(rules))
}

/// The embedding and the second matrices of low rank keep more bits, as in mlx-lm.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("*_lora.up", Bits::Eight),
    ("model.embed_tokens", Bits::Eight),
];

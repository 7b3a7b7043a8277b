//! Reading configs: the keys of multi-head latent attention (MLA).

use mlx_core::Result;
use mlx_nn::{IndexConfig, LatentConfig, LayerKind};

use super::{Defaults, MAX_HEAD_DIM, check_heads, decoder_of_heads};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};

/// transformers' defaults for the keys of latent attention that a config leaves out.
pub(crate) struct LatentDefaults {
    pub query_rank: i32,
    pub rank: i32,
    pub plain_dim: i32,
    /// 0 if the family has no rope.
    pub rope_dim: i32,
    pub value_dim: i32,
}

impl LatentDefaults {
    /// The defaults of DeepSeek's configuration classes. Kimi's are the same.
    pub(crate) const DEEPSEEK: Self = Self {
        query_rank: 1536,
        rank: 512,
        plain_dim: 128,
        rope_dim: 64,
        value_dim: 128,
    };
}

/// The epsilon of the norms of compressed vectors. No config has a key for it.
const EPS: f32 = 1e-6;

/// The pre-norm decoder that a config describes, with latent attention in all layers.
///
/// # Errors
/// Sizes do not fit each other.
pub(crate) fn latent(
    source: &Source<'_>,
    defaults: &Defaults,
    sizes: &LatentDefaults,
) -> Result<DecoderConfig> {
    let c = source.config;
    // Latent attention has no KV heads. The head sizes follow from the sizes below.
    c.ignore(&["num_key_value_heads", "head_dim", "qk_head_dim"]);
    let heads = c.size("num_attention_heads", Some(defaults.heads))?;
    let plain_dim = c.size("qk_nope_head_dim", Some(sizes.plain_dim))?;
    let rope_dim = match sizes.rope_dim {
        0 => no_rope(c)?,
        default => c.size("qk_rope_head_dim", Some(default))?,
    };
    let value_dim = c.size("v_head_dim", Some(sizes.value_dim))?;
    let rank = c.size("kv_lora_rank", Some(sizes.rank))?;
    check_heads(
        c,
        heads,
        1,
        plain_dim.max(value_dim).saturating_add(rope_dim),
    )?;
    if rank.saturating_add(rope_dim) > MAX_HEAD_DIM {
        return Err(c.error(format!("kv_lora_rank {rank} is more than any model has")));
    }
    let query_rank = match c.is_null("q_lora_rank") {
        true => {
            c.ignore(&["q_lora_rank"]);
            None
        }
        false => Some(c.size("q_lora_rank", Some(sizes.query_rank))?),
    };
    let mut config = decoder_of_heads(c, defaults, (heads, heads, rope_dim))?;
    let grown = match defaults.rope {
        Some(_) => mscale(source)?.powi(2),
        None => 1.0,
    };
    let scale = f64::from(plain_dim + rope_dim).powf(-0.5) * grown;
    config.layers.fill(LayerKind::Latent);
    config.attention.latent = Some(LatentConfig {
        hidden: config.hidden,
        heads,
        query_rank,
        rank,
        plain_dim,
        rope_dim,
        value_dim,
        scale: scale as f32,
        eps: EPS,
        bias: c.or("attention_bias", false)?,
        latent_scale: None,
        gate: None,
        growth: None,
        split: source
            .tensors
            .names()
            .any(|name| name.contains(".embed_q.")),
        sinks: false,
        index: None,
    });
    Ok(config)
}

/// The size of the rotated part in families without a rope.
fn no_rope(c: &Config) -> Result<i32> {
    match c.or("qk_rope_head_dim", 0i64)? {
        0 => Ok(0),
        other => Err(c.unsupported(format!(
            "qk_rope_head_dim {other} is not supported; known: 0"
        ))),
    }
}

/// The factor on queries and keys with which YaRN of these families makes scores larger.
fn mscale(source: &Source<'_>) -> Result<f64> {
    let c = source.config;
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(entry) = c.object(key)?.filter(|entry| !entry.is_empty()) else {
            continue;
        };
        let kind = match entry.opt::<String>("rope_type")? {
            Some(kind) => kind,
            None => entry.or("type", "default".to_owned())?,
        };
        let all: f64 = entry.or("mscale_all_dim", 0.0)?;
        if kind == "default" || all == 0.0 {
            return Ok(1.0);
        }
        let factor = entry.positive("factor", None)?;
        return Ok(match factor > 1.0 {
            true => 0.1 * all * factor.ln() + 1.0,
            false => 1.0,
        });
    }
    Ok(1.0)
}

/// Checks the sizes of an indexer whose rope rotates `rope_dim` features.
///
/// # Errors
/// A size is too large, or a head has fewer features than the rope rotates.
pub(crate) fn check_index(c: &Config, index: &IndexConfig, rope_dim: i32) -> Result<()> {
    check_heads(c, index.heads, 1, index.dim)?;
    match index.dim < rope_dim {
        true => Err(c.error(format!(
            "index_head_dim {} is less than qk_rope_head_dim {rope_dim}",
            index.dim
        ))),
        false => Ok(()),
    }
}

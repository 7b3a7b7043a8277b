//! StableLM 2 and 3: layer norms, rope on a quarter of each head, attention and MLP in sequence or in parallel.

use mlx_core::Result;
use mlx_nn::{NormKind, QkKind, QkNorm, Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::config::rope::Dialect;
use crate::decoders::parallel_residual::ParallelResidual;
use crate::decoders::pre_norm::Decoder;
use crate::model::Model;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_304,
    hidden: 2560,
    intermediate: 6912,
    kv_heads: Some(32),
    max_positions: 4096,
    norm_eps_key: "layer_norm_eps",
    norm_eps: 1e-5,
    rope: Some(Dialect::Partial(0.25)),
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Box<dyn Model>> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.norm.kind = NormKind::layer(true);
    config.attention.qkv_bias = c.or("use_qkv_bias", false)?;
    c.ignore(&["hidden_dropout"]);
    if c.or("qk_layernorm", false)? {
        config.attention.qk_norm = Some(QkNorm {
            kind: QkKind::LayerByHead { split: true },
            ..QkNorm::heads(config.norm.eps, 0.0)
        });
    }
    Ok(match c.or("use_parallel_residual", false)? {
        true => Box::new(ParallelResidual::new(&config)?),
        false => Box::new(Decoder::new(&config)?),
    })
}

/// The rules for the norms that have other names in the model than in files.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::rename("*.self_attn.q_layernorm.*", "*.self_attn.q_norm.*").written(),
        Rule::rename("*.self_attn.k_layernorm.*", "*.self_attn.k_norm.*").written(),
    ]))
}

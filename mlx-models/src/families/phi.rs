//! Phi 1 and 2: attention and MLP in parallel after one layer norm, biases everywhere, rope on a part of each head.

use mlx_core::Result;
use mlx_nn::{NormKind, QkKind, QkNorm, Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::config::rope::Dialect;
use crate::decoders::parallel_residual::ParallelResidual;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 51_200,
    hidden: 2048,
    intermediate: 8192,
    layers: 24,
    norm_eps_key: "layer_norm_eps",
    norm_eps: 1e-5,
    activation: "gelu_new",
    rope: Some(Dialect::Partial(0.5)),
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<ParallelResidual> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.norm.kind = NormKind::layer(true);
    (
        config.attention.qkv_bias,
        config.attention.out_bias,
        config.head.bias,
    ) = (true, true, true);
    keys::ungated(&mut config);
    keys::set_mlp_bias(&mut config, true);
    if c.or("qk_layernorm", false)? {
        config.attention.qk_norm = Some(QkNorm {
            kind: QkKind::Layer,
            ..QkNorm::heads(config.norm.eps, 0.0)
        });
    }
    ParallelResidual::new(&config)
}

/// The rules for the matrices that have other names in the model than in files.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::rename("*.self_attn.dense.*", "*.self_attn.o_proj.*").written(),
        Rule::rename("*.self_attn.q_layernorm.*", "*.self_attn.q_norm.*").written(),
        Rule::rename("*.self_attn.k_layernorm.*", "*.self_attn.k_norm.*").written(),
        Rule::rename("*.mlp.fc1.*", "*.mlp.up_proj.*").written(),
        Rule::rename("*.mlp.fc2.*", "*.mlp.down_proj.*").written(),
        Rule::rename("model.final_layernorm.*", "model.norm.*").written(),
    ]))
}

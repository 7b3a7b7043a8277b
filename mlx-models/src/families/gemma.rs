//! Gemma 1 (arXiv:2403.08295): Llama with Gemma's norms and scaled embeddings.

use mlx_core::Result;
use mlx_nn::Activation;

use crate::config::Source;
use crate::config::keys::Defaults;
use crate::config::plan::MlpConfig;
use crate::decoders::pre_norm::Decoder;
use crate::families::gemma2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 256_000,
    hidden: 3072,
    intermediate: 24_576,
    layers: 28,
    heads: 16,
    kv_heads: Some(16),
    head_dim: Some(256),
    max_positions: 8192,
    activation: "gelu_pytorch_tanh",
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    // transformers reads only `hidden_act`.
    c.ignore(&["hidden_activation"]);
    let mut config = gemma2::common(c, &DEFAULTS)?;
    for mlp in &mut config.feed_forward {
        // Early files name the activation "gelu", but the models use its approximation by tanh.
        if let MlpConfig::Dense { activation, .. } = mlp
            && *activation == Activation::Gelu
        {
            *activation = Activation::GeluTanh;
        }
    }
    Decoder::new(&config)
}

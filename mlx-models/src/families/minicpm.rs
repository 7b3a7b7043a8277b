//! MiniCPM 1, 2 and 4 (arXiv:2404.06395): Llama with factors on embeddings, residuals and logits,
//! as in Granite. The factors of residuals and logits depend on the depth and the width.

use mlx_core::Result;

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// The defaults of the published configuration class for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults::LLAMA;

/// Keys that do not change the results of the published code.
pub(crate) const IGNORED: &[&str] = &["mup_denominator", "use_flash_attn"];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    if c.or("num_experts", 0)? > 0 {
        return Err(c.unsupported("num_experts of minicpm is not supported: only dense models"));
    }
    if c.object("sparse_config")?.is_some() {
        return Err(c.unsupported(
            "sparse_config of minicpm is not supported: remove the key to attend to all positions, as the published code \
             does up to dense_len",
        ));
    }
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    factors(c, &mut config, &FACTORS)?;
    Decoder::new(&config)
}

/// The defaults of the factors.
pub(crate) struct Factors {
    /// Embeddings are multiplied by this.
    pub embedding: f64,
    /// The outputs of attention and MLP are multiplied by this over the root of the number of
    /// layers.
    pub depth: f64,
    /// Logits are multiplied by this over the width.
    pub base: f64,
}

const FACTORS: Factors = Factors {
    embedding: 1.0,
    depth: 1.0,
    base: 1.0,
};

/// Reads the factors.
///
/// # Errors
/// A factor is not a positive number.
pub(crate) fn factors(c: &Config, config: &mut DecoderConfig, defaults: &Factors) -> Result<()> {
    let (layers, hidden) = (config.layers.len() as f64, f64::from(config.hidden));
    // Null means a factor of 1.
    let given = |key, default, neutral| match c.is_null(key) {
        true => Ok(neutral),
        false => c.positive(key, Some(default)),
    };
    let depth = given("scale_depth", defaults.depth, layers.sqrt())?;
    let base = given("dim_model_base", defaults.base, hidden)?;
    config.scales.embedding = Some(c.positive("scale_emb", Some(defaults.embedding))? as f32);
    config.scales.residual = Some((depth / layers.sqrt()) as f32);
    config.scales.logits = Some((base / hidden) as f32);
    Ok(())
}

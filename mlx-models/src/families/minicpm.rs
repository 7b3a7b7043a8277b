//! MiniCPM 1, 2 and 4 (arXiv:2404.06395): Llama with factors on embeddings, residuals and logits,
//! as in Granite. The factors of residuals and logits depend on the depth and the width.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// The defaults of the published configuration class for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults::LLAMA;

/// Keys that do not change the results of the published code.
const IGNORED: &[&str] = &["mup_denominator", "use_flash_attn"];

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
    let layers = config.layers.len() as f64;
    let base = c.positive("dim_model_base", Some(1.0))?;
    let depth = match c.is_null("scale_depth") {
        true => layers.sqrt(),
        false => c.positive("scale_depth", Some(1.0))?,
    };
    config.scales.embedding = Some(c.positive("scale_emb", Some(1.0))? as f32);
    config.scales.residual = Some((depth / layers.sqrt()) as f32);
    config.scales.logits = Some((base / f64::from(config.hidden)) as f32);
    Decoder::new(&config)
}

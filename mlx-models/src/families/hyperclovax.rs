//! HyperCLOVA X SEED: Granite with additional norms after attention and MLP. Logits are multiplied
//! by `logits_scaling`, not divided.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_and_post_norm::PreAndPostNorm;
use crate::decoders::pre_norm::Decoder;
use crate::families::granite;
use crate::model::Model;
use mlx_nn::{Rule, Rules};

pub(crate) fn load(source: &Source<'_>) -> Result<Box<dyn Model>> {
    let c = source.config;
    let mut config = keys::decoder(c, &Defaults::LLAMA)?;
    keys::attention_bias(c, &mut config)?;
    keys::mlp_bias(c, &mut config)?;
    let scale = config.attention.scale;
    granite::multipliers(c, &mut config)?;
    if c.value("attention_multiplier").is_none() {
        config.attention.scale = scale;
    }
    config.scales.logits = Some(c.positive("logits_scaling", Some(1.0))? as f32);
    Ok(match c.or("use_post_norm", true)? {
        true => Box::new(PreAndPostNorm::new(&config)?),
        false => Box::new(Decoder::new(&config)?),
    })
}

/// In layers with four norms, two norms have other names in files.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let norm =
        |from: &str, to: &str| Rule::rename(&format!("*.{from}.*"), &format!("*.{to}.*")).written();
    Ok(match source.config.or("use_post_norm", true)? {
        true => Rules::from([
            norm("post_attention_layernorm", "pre_feedforward_layernorm"),
            norm("post_norm1", "post_attention_layernorm"),
            norm("post_norm2", "post_feedforward_layernorm"),
        ]),
        false => Rules::none(),
    })
}

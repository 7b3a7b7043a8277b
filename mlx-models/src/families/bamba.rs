//! Bamba: Mamba 2 layers and a few attention layers, with a rope on half of each head.

use mlx_core::Result;
use mlx_nn::{LayerKind, RecurrenceConfig, Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::config::rope::Dialect;
use crate::decoders::pre_norm::Decoder;
use crate::families::granitemoehybrid;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_000,
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 262_144,
    norm_eps: 1e-5,
    rope: Some(Dialect::Partial(ROTATED)),
    ..Defaults::LLAMA
};

/// The fraction of a head that rotates. transformers ignores the config's number, but not that of a
/// rope's entry.
const ROTATED: f64 = 0.5;

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "mamba_chunk_size",
    "num_logits_to_keep",
    "z_loss_coefficient",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let mut c = source.config.clone();
    c.set("partial_rotary_factor", ROTATED.into());
    let c = &c;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    keys::mlp_bias(c, &mut config)?;
    let expand = c.size("mamba_expand", Some(2))?;
    let inner = i64::from(expand) * i64::from(config.hidden);
    let mamba = granitemoehybrid::mamba(c, &config, inner)?;
    config.recurrence = Some(RecurrenceConfig::Mamba(mamba));
    let attends: Vec<usize> = c.opt("attn_layer_indices")?.unwrap_or_default();
    for (layer, kind) in config.layers.iter_mut().enumerate() {
        *kind = match attends.contains(&layer) {
            true => LayerKind::Full,
            false => mamba.kind(),
        };
    }
    Decoder::new(&config)
}

/// Published names.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let conv = keys::convolutions(source.tensors, ".conv1d.weight")?;
    let rules = [
        Rule::rename("model.final_layernorm.*", "model.norm.*").written(),
        Rule::rename("*.mamba.*", "*.linear_attn.*").written(),
        Rule::rename("*.pre_ff_layernorm.*", "*.post_attention_layernorm.*").written(),
        Rule::rename("*.feed_forward.*", "*.mlp.*").written(),
    ];
    Ok(Rules::from(conv.into_iter().chain(rules)))
}

//! Qwen 2 VL and 2.5 VL (arXiv:2502.13923), the text tower: Qwen 2, whose published configs have the text model's keys
//! beside those of the vision tower. Rotary sections for images change nothing for texts.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::{OF_OTHER_TOWER, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::qwen2;

/// transformers' defaults for keys that a config leaves out: those of 2.5.
const DEFAULTS: Defaults = Defaults {
    vocab: 152_064,
    hidden: 8192,
    intermediate: 29_568,
    layers: 80,
    heads: 64,
    kv_heads: Some(8),
    max_positions: 32_768,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

/// Keys of images and videos.
const IGNORED: &[&str] = &[
    "image_token_id",
    "rope_type",
    "video_token_id",
    "vision_end_token_id",
    "vision_start_token_id",
    "vision_token_id",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qkv_bias = true;
    config.layers = qwen2::windows_from(c, config.layers.len(), DEFAULTS.layers as usize)?;
    Decoder::new(&config)
}

/// The rules that drop the tensors of the vision tower, which published files and adapters also hold.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let places = ["visual.*", "model.visual.*"];
    Ok(Rules::from(
        places.map(|place| Rule::drop(place, OF_OTHER_TOWER)),
    ))
}

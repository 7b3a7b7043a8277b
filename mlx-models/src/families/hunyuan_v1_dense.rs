//! Hunyuan 1, dense: norms on q and k after rope, and a rope base that a fixed `alpha` enlarges.

use mlx_core::Result;
use mlx_nn::{QkNorm, QkPlace, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::rope::Dialect;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 290_943,
    norm_eps: 1e-5,
    rope: Some(Dialect::Alpha),
    ..Defaults::LLAMA
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "add_classification_head",
    "anyres_pooling_size",
    "anyres_vit_max_image_size",
    "attention_head_dim",
    "cla_share_factor",
    "class_num",
    "dense_list",
    "eod_token_id",
    "im_end_id",
    "im_newline_id",
    "im_start_id",
    "kv_lora_rank",
    "mask_init_id",
    "mlp_bias",
    "norm_type",
    "num_media_embeds",
    "org_vocab_size",
    "pad_id",
    "pool_type",
    "position_embedding_xdrope",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "skip_cls_token",
    "text_end_id",
    "text_start_id",
    "use_cla",
    "use_mla",
    "use_qk_norm",
    "use_rotary_pos_emb",
    "v_head_dim",
    "video_end_id",
    "video_start_id",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    Decoder::new(&config(c)?)
}

pub(crate) fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, &DEFAULTS)?;
    c.ignore(IGNORED);
    keys::attention_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm {
        place: QkPlace::Rotated,
        ..QkNorm::heads(config.norm.eps, 0.0)
    });
    Ok(config)
}

/// Published files have other names for the norms on q and k.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::rename("*.query_layernorm.*", "*.q_norm.*").written(),
        Rule::rename("*.key_layernorm.*", "*.k_norm.*").written(),
    ]))
}

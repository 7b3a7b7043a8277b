//! Sarvam 30B: experts of DeepSeek's kind after a dense layer, norms on q and k.

use mlx_core::Result;
use mlx_nn::{QkNorm, Rule, Rules};

use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults};
use crate::config::plan::DecoderConfig;
use crate::config::rope::Dialect;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 262_144,
    intermediate: 8192,
    layers: 19,
    heads: 64,
    kv_heads: Some(4),
    head_dim: Some(64),
    max_positions: 131_072,
    theta: 8_000_000.0,
    rope: Some(Dialect::Partial(1.0)),
    ..Defaults::LLAMA
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    scale: 2.5,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 1024,
            n_experts: 128,
            top_k: 6,
            norm_topk_prob: None,
        },
        true,
        1,
    )
};

/// Names that published files and transformers use for the same keys.
const ALIASES: [(&str, &str); 2] = [
    ("attention_bias", "use_qkv_bias"),
    ("n_shared_experts", "num_shared_experts"),
];

/// Keys of published files that transformers ignores, because the family has only one form. No
/// published file has heads for multi-token prediction.
const IGNORED: &[&str] = &[
    "embedding_dropout",
    "max_window_layers",
    "moe_router_enable_expert_bias",
    "moe_router_enable_routed_scaling",
    "moe_router_enable_shared_expert",
    "mtp_loss_scaling_factor",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "norm_head",
    "norm_softmax",
    "output_dropout",
    "rotary_dim",
    "score_function",
    "scoring_func",
    "topk_method",
    "use_bias",
    "use_rmsnorm",
    "use_sliding_window",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = &source.config.with_aliases(&ALIASES);
    c.ignore(IGNORED);
    let mut config = config(c)?;
    config.attention.qkv_bias = c.or("attention_bias", false)?;
    if c.or("use_qk_norm", true)? {
        config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    }
    keys::deepseek_experts(c, &mut config, &EXPERTS)?;
    Decoder::new(&config)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    keys::decoder(c, &DEFAULTS)
}

/// Published names. The rows of queries, keys and values are one matrix.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let attention = config(source.config)?.attention;
    let [q, kv] = [attention.heads, attention.kv_heads].map(|heads| heads * attention.head_dim);
    let published = Rules::from([
        Rule::rename("model.word_embeddings.*", "model.embed_tokens.*"),
        Rule::split(
            "*.attention.query_key_value.*",
            1,
            [
                ("*.self_attn.q_proj.*", q),
                ("*.self_attn.k_proj.*", kv),
                ("*.self_attn.v_proj.*", kv),
            ],
        ),
        Rule::rename("*.attention.dense.*", "*.self_attn.o_proj.*"),
        Rule::rename("*.attention.query_layernorm.*", "*.self_attn.q_norm.*"),
        Rule::rename("*.attention.key_layernorm.*", "*.self_attn.k_norm.*"),
        Rule::rename(
            "*.mlp.gate.expert_bias",
            "*.mlp.gate.e_score_correction_bias",
        ),
    ]);
    Ok(published.and(&keys::deepseek_expert_names()))
}

//! Phi 3 small (arXiv:2404.14219): attention that is sparse in blocks by head in every second layer, layer norms and biases, bounded
//! gates, and the multipliers of muP.

use mlx_core::Result;
use mlx_nn::{BlockPattern, ClampedGate, NormKind, RopeScaling, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// The defaults of the published configuration class for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 100_352,
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 8192,
    norm_eps_key: "layer_norm_epsilon",
    norm_eps: 1e-5,
    activation_key: "",
    theta: 1e6,
    ..Defaults::LLAMA
};

/// The keys of [`Defaults`] have other names in this family.
const ALIASES: &[(&str, &str)] = &[
    ("intermediate_size", "ff_intermediate_size"),
    ("rope_theta", "rope_embedding_base"),
];

/// Keys of published files that have no effect on the results.
const IGNORED: &[&str] = &[
    "attention_dropout_prob",
    "blocksparse_triton_kernel_block_size",
    "embedding_dropout_prob",
    "ffn_dropout_prob",
    "gegelu_pad_to_256",
    "pad_sequence_to_multiple_of_64",
    "reorder_and_upcast_attn",
];

/// The factor in the sigmoid of the gates.
const ALPHA: f32 = 1.702;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let unused: Vec<i32> = c.or("dummy_token_indices", unused_tokens())?;
    Decoder::new(&config(c)?)?.without_tokens(&unused)
}

/// The tokens of the published vocabulary that stand for nothing.
fn unused_tokens() -> Vec<i32> {
    let single = [100_256, 100_258, 100_259, 100_260, 100_264, 100_265];
    single.into_iter().chain(100_267..100_352).collect()
}

fn config(c: &Config) -> Result<DecoderConfig> {
    c.ignore(IGNORED);
    let act: String = c.or("hidden_act", "gegelu".to_owned())?;
    if act != "gegelu" {
        return Err(c.unsupported(format!("hidden_act {act:?} is not supported: only gegelu")));
    }
    for key in ["rope_scaling", "ff_dim_multiplier"] {
        if c.value(key).is_some() {
            return Err(c.unsupported(format!("{key} is not supported in phi3small: only null")));
        }
    }
    if c.or("blocksparse_homo_head_pattern", false)? {
        let message = "blocksparse_homo_head_pattern true is not supported: only false";
        return Err(c.unsupported(message));
    }
    let mut config = keys::decoder(&c.with_aliases(ALIASES), &DEFAULTS)?;
    config.norm.kind = NormKind::layer(true);
    let scale = c.positive("rope_position_scale", Some(1.0))?;
    for rope in config.ropes.iter_mut().flatten().filter(|_| scale != 1.0) {
        rope.scaling = RopeScaling::Linear {
            factor: 1.0 / scale,
        };
    }
    multipliers(c, &mut config)?;
    let limit = match c.is_null("gegelu_limit") {
        true => f32::INFINITY,
        false => c.positive("gegelu_limit", Some(20.0))? as f32,
    };
    let gate = ClampedGate {
        rounds: false,
        alpha: ALPHA,
        limit,
        shift: 1.0,
        bounds_result: false,
        activation: None,
    };
    for mlp in &mut config.feed_forward {
        if let MlpConfig::Dense { intermediate, .. } = *mlp {
            *mlp = MlpConfig::Paired { intermediate, gate };
        }
    }
    patterns(c, &mut config)?;
    Ok(config)
}

/// Reads the multipliers of muP (arXiv:2203.03466). 0 and null mean 1.
fn multipliers(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let factor = |key, usual: f64| -> Result<Option<f32>> {
        if c.is_null(key)
            || c.value(key)
                .is_some_and(|given| given.as_f64() == Some(0.0))
        {
            return Ok(None);
        }
        Ok(Some(c.positive(key, Some(usual))? as f32))
    };
    config.scales.embedding = factor("mup_embedding_multiplier", 10.0)?;
    config.scales.logits = factor("mup_width_multiplier", 8.0)?.map(|by| 1.0 / by);
    let attention = c.positive("mup_attn_multiplier", Some(1.0))? as f32;
    let plan = &mut config.attention;
    (plan.qkv_bias, plan.out_bias) = (true, true);
    if c.or("mup_use_scaling", true)? {
        plan.scale = attention / plan.head_dim as f32;
    }
    Ok(())
}

/// Gives layer 0 and every `dense_attention_every_n_layers`-th layer from it on the pattern of blocks, as mlx-lm does. In
/// the published program the last of as many layers is dense and the others have the pattern. All published files have 2,
/// for which both are the same.
fn patterns(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let pattern = BlockPattern {
        block: c.size("blocksparse_block_size", Some(64))?,
        local: c.size("blocksparse_num_local_blocks", Some(16))?,
        stride: c.size("blocksparse_vert_stride", Some(8))?,
    };
    let every = match c.is_null("dense_attention_every_n_layers") {
        true => 1,
        false => c.size("dense_attention_every_n_layers", Some(2))?,
    };
    let dense = config.attention.clone();
    let of = |layer: usize| {
        let is_sparse = layer.is_multiple_of(every as usize);
        let pattern = is_sparse.then_some(pattern);
        crate::config::plan::AttentionPlan {
            pattern,
            ..dense.clone()
        }
    };
    config.attentions = (0..config.layers.len()).map(of).collect();
    Ok(())
}

/// Published names, which MLX's files have too. The rows of q, k and v alternate by groups of heads.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let config = config(source.config)?;
    let attention = &config.attention;
    let (groups, dim) = (attention.kv_heads, attention.head_dim);
    let heads = [
        ("*.self_attn.q_proj.*", attention.heads / groups * dim),
        ("*.self_attn.k_proj.*", dim),
        ("*.self_attn.v_proj.*", dim),
    ];
    Ok(Rules::from([
        Rule::split("*.self_attn.query_key_value.*", groups, heads).written(),
        Rule::rename("*.self_attn.dense.*", "*.self_attn.o_proj.*").written(),
        Rule::rename("model.final_layernorm.*", "model.norm.*").written(),
    ]))
}

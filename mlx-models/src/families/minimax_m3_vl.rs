//! MiniMax M3, the text tower: attention over blocks of positions that a small attention chooses; experts of MiniMax M2's form
//! with a shared one, and gpt-oss's bounded gate in all MLPs.

use mlx_core::Result;
use mlx_nn::{
    BlockChoice, ClampedGate, Correction, NormKind, QkNorm, Routing, Scoring, SharedExpert,
};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::rope::Dialect;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

mod names;

pub(crate) use names::names;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 200_064,
    hidden: 6144,
    intermediate: 3072,
    layers: 60,
    heads: 64,
    kv_heads: Some(4),
    head_dim: Some(128),
    max_positions: 524_288,
    theta: 5_000_000.0,
    rope: Some(Dialect::Partial(1.0)),
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 3072,
    n_experts: 128,
    top_k: 4,
    norm_topk_prob: Some(true),
};

/// Keys that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "attention_output_gate",
    "mtp_transformer_layers",
    "n_shared_experts",
    "num_mtp_modules",
    "output_router_logits",
    "qk_norm_type",
    "rotary_dim",
    "router_jitter_noise",
    "scoring_func",
    "use_mtp",
    "use_routing_bias",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    source.config.ignore(IGNORED);
    Decoder::new(&config(source.config)?)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    // The gate is the one below, whatever the key says.
    let c = &{
        let mut own = c.clone();
        own.set("hidden_act", "silu".into());
        own
    };
    for key in ["use_gemma_norm", "use_qk_norm"] {
        if !c.or(key, true)? {
            return Err(c.unsupported(format!("{key} false is not supported: only true")));
        }
    }
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.norm.kind = NormKind::Rms(1.0);
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 1.0));
    let blocks = blocks(c, &config)?;
    let mut chosen = config.attention.clone();
    chosen.blocks = Some(blocks);
    let plain = config.attention.clone();
    let plan = |chooses: bool| {
        if chooses {
            chosen.clone()
        } else {
            plain.clone()
        }
    };
    config.attentions = choosing_layers(c, config.layers.len())?
        .into_iter()
        .map(plan)
        .collect();
    mlps(c, &mut config)?;
    Ok(config)
}

/// Gives the layers their MLPs.
fn mlps(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let clamp = Some(ClampedGate {
        rounds: false,
        alpha: c.positive("swiglu_alpha", Some(1.702))? as f32,
        limit: c.positive("swiglu_limit", Some(7.0))? as f32,
        shift: 1.0,
        bounds_result: false,
        activation: None,
    });
    let width = c.size("dense_intermediate_size", Some(12_288))?;
    for mlp in &mut config.feed_forward {
        if let MlpConfig::Dense {
            intermediate,
            clamp: own,
            ..
        } = mlp
        {
            (*intermediate, *own) = (width, clamp);
        }
    }
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.clamp = clamp;
    experts.routing = Routing {
        scoring: Scoring::Sigmoid,
        correction: Correction::Vector,
        scale: Some(c.positive("routed_scaling_factor", Some(2.0))? as f32),
        ..experts.routing
    };
    experts.shared = Some(SharedExpert {
        intermediate: c.size("shared_intermediate_size", Some(3072))?,
        bias: false,
        gate: false,
        clamp,
    });
    let listed = c.opt::<Vec<i32>>("moe_layer_freq")?.unwrap_or_default();
    keys::experts_by_types(c, config, experts, |layer| {
        listed.get(layer).is_none_or(|&sparse| sparse != 0)
    })
}

/// The keys of the choice of blocks under which published files have them, which take precedence.
fn published(c: &Config) -> Result<Config> {
    let given = c.object("sparse_attention_config")?;
    let given = given.unwrap_or_else(|| c.part("sparse_attention_config", []));
    given.ignore(&[
        "sparse_disable_index_value",
        "sparse_init_block",
        "use_sparse_attention",
    ]);
    match given.or("sparse_score_type", "max".to_owned())?.as_str() {
        "max" => Ok(given),
        other => Err(given.unsupported(format!(
            "sparse_score_type {other:?} is not supported; known: max"
        ))),
    }
}

/// Whether the queries of each layer see only chosen blocks.
fn choosing_layers(c: &Config, n: usize) -> Result<Vec<bool>> {
    const KNOWN: [(&str, bool); 2] = [("full_attention", false), ("minimax_m3_sparse", true)];
    let listed = published(c)?.opt::<Vec<i32>>("sparse_attention_freq")?;
    let listed = listed.unwrap_or_default();
    keys::layer_types(c, n, KNOWN, |layer| {
        listed.get(layer).is_some_and(|&sparse| sparse != 0)
    })
}

fn blocks(c: &Config, config: &DecoderConfig) -> Result<BlockChoice> {
    let published = published(c)?;
    let number = |key: &str, own: &str, default: i32| match published.value(own) {
        Some(_) => {
            c.ignore(&[key]);
            published.size(own, None)
        }
        None => c.size(key, Some(default)),
    };
    let heads = number("index_n_heads", "sparse_num_index_heads", 4)?;
    let dim = number("index_head_dim", "sparse_index_dim", 128)?;
    let local = match published.value("sparse_local_block") {
        Some(_) => {
            c.ignore(&["index_local_blocks"]);
            published.required("sparse_local_block")?
        }
        None => c.or("index_local_blocks", 1)?,
    };
    keys::check_heads(c, heads, 1, dim)?;
    let queries = config.attention.heads;
    if queries % heads != 0 || !(0..=1 << 20).contains(&local) {
        return Err(c.error(format!(
            "num_attention_heads {queries} is not a multiple of the {heads} heads that choose blocks, or {local} local blocks are not possible"
        )));
    }
    Ok(BlockChoice {
        heads,
        dim,
        block: number("index_block_size", "sparse_block_size", 128)?,
        top: number("index_topk_blocks", "sparse_topk_blocks", 16)?,
        local,
        norm_eps: config.norm.eps,
        norm_offset: 1.0,
    })
}

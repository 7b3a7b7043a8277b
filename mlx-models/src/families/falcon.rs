//! Falcon: attention and MLP in parallel, one KV head for all query heads or for each group of them, rope or ALiBi. The
//! layers of the larger models have two norms.

use mlx_core::Result;
use mlx_nn::{NormKind, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::{AttentionPlan, DecoderConfig};
use crate::config::{Config, Source};
use crate::decoders::parallel_residual::ParallelResidual;
use crate::decoders::pre_norm::Decoder;
use crate::model::Model;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 65_024,
    hidden: 4544,
    heads: 71,
    norm_eps_key: "layer_norm_epsilon",
    norm_eps: 1e-5,
    activation_key: "activation",
    activation: "gelu",
    ..Defaults::LLAMA
};

/// Older names of keys.
const ALIASES: [(&str, &str); 3] = [
    ("hidden_size", "n_embed"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
];

/// Keys that have no effect in a model with ALiBi, which has no rope.
const ROPE_KEYS: &[&str] = &["rope_parameters", "rope_scaling", "rope_theta"];

/// The form of the layers of a config.
struct Form {
    /// Whether the rows of the fused projection are grouped: the query heads of a group, then its
    /// key head and its value head.
    grouped: bool,
    multi_query: bool,
    parallel: bool,
    two_norms: bool,
}

fn form(c: &Config) -> Result<Form> {
    let grouped = c.or("new_decoder_architecture", false)?;
    let parallel = c.or("parallel_attn", true)?;
    let norms: i32 = c.or("num_ln_in_parallel_attn", if grouped { 2 } else { 1 })?;
    if grouped && !parallel {
        return Err(
            c.unsupported("new_decoder_architecture without parallel_attn is not supported")
        );
    }
    if !(1..=2).contains(&norms) || (norms == 2 && !grouped) {
        return Err(c.unsupported(format!(
            "num_ln_in_parallel_attn {norms} is not supported; known: 1, and 2 with new_decoder_architecture"
        )));
    }
    Ok(Form {
        grouped,
        multi_query: c.or("multi_query", true)?,
        parallel,
        two_norms: norms == 2,
    })
}

pub(crate) fn load(source: &Source<'_>) -> Result<Box<dyn Model>> {
    let (config, form) = config(source.config)?;
    Ok(match (form.parallel, form.two_norms) {
        (true, true) => Box::new(ParallelResidual::with_two_norms(&config)?),
        (true, false) => Box::new(ParallelResidual::new(&config)?),
        (false, _) => Box::new(Decoder::new(&config)?),
    })
}

fn config(c: &Config) -> Result<(DecoderConfig, Form)> {
    let mut c = c.with_aliases(&ALIASES);
    c.ignore(&[
        "apply_residual_connection_post_layernorm",
        "hidden_dropout",
        "intermediate_size",
        "num_key_value_heads",
    ]);
    let form = form(&c)?;
    let heads = c.size("num_attention_heads", Some(DEFAULTS.heads))?;
    let kv_heads = match (form.grouped, form.multi_query, c.value("num_kv_heads")) {
        (false, true, _) => 1,
        (_, _, Some(_)) => c.size("num_kv_heads", None)?,
        _ => heads,
    };
    c.set("num_key_value_heads", kv_heads.into());
    let has_alibi = c.or("alibi", false)?;
    let defaults = Defaults {
        rope: DEFAULTS.rope.filter(|_| !has_alibi),
        ..DEFAULTS
    };
    let mut config = keys::decoder(&c, &defaults)?;
    let inner = match c.value("ffn_hidden_size") {
        Some(_) => c.size("ffn_hidden_size", None)?,
        None => 4 * config.hidden,
    };
    keys::set_intermediate(&mut config, inner);
    keys::ungated(&mut config);
    let bias = c.or("bias", false)?;
    keys::set_mlp_bias(&mut config, bias);
    config.attention.qkv_bias = bias;
    config.attention.out_bias = bias;
    config.norm.kind = NormKind::layer(true);
    if has_alibi {
        c.ignore(ROPE_KEYS);
        config.attention.alibi = Some(config.attention.scale);
    }
    Ok((config, form))
}

/// Published names. Queries, keys and values are one matrix.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let (config, form) = config(source.config)?;
    let AttentionPlan {
        heads,
        kv_heads,
        head_dim: dim,
        ..
    } = config.attention;
    let (groups, queries) = match (form.grouped, form.multi_query) {
        (true, _) => (kv_heads, heads / kv_heads),
        (false, true) => (1, heads),
        (false, false) => (heads, 1),
    };
    let layer = "model.layers.#";
    let [q, k, v] = ["q", "k", "v"].map(|name| format!("{layer}.self_attn.{name}_proj.*"));
    let of_layer = [
        ("self_attention.dense", "self_attn.o_proj"),
        ("mlp.dense_h_to_4h", "mlp.up_proj"),
        ("mlp.dense_4h_to_h", "mlp.down_proj"),
    ];
    let norms = match form.two_norms {
        true => ["ln_attn", "ln_mlp"],
        false => ["input_layernorm", "post_attention_layernorm"],
    };
    let [first, second] = norms;
    let norms = [
        (first, "input_layernorm"),
        (second, "post_attention_layernorm"),
    ];
    let of_layer = of_layer.into_iter().chain(norms).map(|(from, to)| {
        Rule::rename(
            &format!("transformer.h.#.{from}.*"),
            &format!("{layer}.{to}.*"),
        )
        .written()
    });
    let around = [
        Rule::rename("transformer.word_embeddings.*", "model.embed_tokens.*").written(),
        Rule::rename("transformer.ln_f.*", "model.norm.*").written(),
        Rule::split(
            "transformer.h.#.self_attention.query_key_value.*",
            groups,
            [(&*q, queries * dim), (&*k, dim), (&*v, dim)],
        )
        .written(),
    ];
    Ok(Rules::from(around.into_iter().chain(of_layer)))
}

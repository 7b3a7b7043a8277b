//! LongCat Flash (arXiv:2509.01322): two blocks of latent attention and MLP a layer; experts that read the first block's
//! normed features and are added after the second; experts that return their input.

use mlx_core::Result;
use mlx_nn::{
    Correction, ExpertsConfig, ExpertsMlp, GatedMlp, LatentAttention, LayerKind, Norm, Normed,
    Residual, Routing, Rule, Rules, Step, module,
};
use serde_json::Value;

use crate::config::keys::{self, Defaults, ExpertsDefaults, LatentDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Bits, Config, Source};
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};
use crate::families::qwen3_5;
use crate::model::LayerGeometry;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 131_072,
    hidden: 6144,
    intermediate: 12_288,
    layers: 28,
    heads: 64,
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 10_000_000.0,
    interleaved: true,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 2048,
    n_experts: 512,
    top_k: 12,
    norm_topk_prob: Some(false),
};

/// The number of experts that return their input, and the factor of weights.
const IDENTITIES: i64 = 256;
const SCALE: f64 = 6.0;

/// The family's names of keys, and the usual names.
const ALIASES: [(&str, &str); 5] = [
    ("intermediate_size", "ffn_hidden_size"),
    ("moe_intermediate_size", "expert_ffn_hidden_size"),
    ("num_experts_per_tok", "moe_topk"),
    ("num_hidden_layers", "num_layers"),
    ("num_local_experts", "n_routed_experts"),
];

/// The blocks of attention and MLP in a layer.
const BLOCKS: usize = 2;

/// A layer. Its states are those of its two attentions.
#[derive(Clone)]
pub(crate) struct LongcatFlashLayer {
    input_layernorm: Vec<Norm>,
    self_attn: Vec<LatentAttention>,
    post_attention_layernorm: Vec<Norm>,
    mlps: Vec<GatedMlp>,
    mlp: ExpertsMlp,
}
module!(LongcatFlashLayer {
    input_layernorm,
    self_attn,
    post_attention_layernorm,
    mlps,
    mlp
});

impl DecoderLayer for LongcatFlashLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let normed = Normed::new(x, &self.input_layernorm[0]);
        let y = self.self_attn[0].forward(&normed, state, step)?;
        let x = Residual::new(normed.sum()?.clone(), y);
        let normed = Normed::new(x, &self.post_attention_layernorm[0]);
        let shortcut = self.mlp.forward(&normed)?;
        let y = self.mlps[0].forward(&normed)?;
        let x = Residual::new(normed.sum()?.clone(), y);
        let normed = Normed::new(x, &self.input_layernorm[1]);
        let y = self.self_attn[1].forward(&normed, state + 1, step)?;
        let [x, y, shortcut] = step.narrow([normed.sum()?, &y, &shortcut])?;
        let normed = Normed::new(Residual::new(x, y), &self.post_attention_layernorm[1]);
        let y = self.mlps[1].forward(&normed)?;
        Ok(Residual::new(normed.sum()?.add(y)?, shortcut))
    }
}

/// The config with the usual names of keys.
fn renamed(config: &Config) -> Result<Config> {
    let mut c = config.clone();
    if config.value("num_layers").is_none() && config.value("num_hidden_layers").is_some() {
        // transformers counts the blocks of all layers under this name.
        let blocks = config.size("num_hidden_layers", None)?;
        c.set("num_hidden_layers", Value::from(blocks / BLOCKS as i32));
    }
    for (key, own) in ALIASES {
        if let Some(value) = config.value(own) {
            c.set(key, value.clone());
        }
    }
    Ok(c)
}

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<LongcatFlashLayer>> {
    let c = &renamed(source.config)?;
    let source = &Source {
        config: c,
        ..*source
    };
    only_forms(c)?;
    let mut config = keys::latent(source, &DEFAULTS, &LatentDefaults::DEEPSEEK)?;
    if let Some(latent) = &mut config.attention.latent {
        let Some(query_rank) = latent.query_rank else {
            return Err(c.unsupported("q_lora_rank null is not supported; known: a size"));
        };
        let grown = |rank: i32| (config.hidden as f32 / rank as f32).sqrt();
        latent.scale *= grown(query_rank);
        latent.latent_scale = Some(grown(latent.rank));
    }
    let experts = experts(c, &config)?;
    let layers = (0..config.layers.len()).map(|index| layer(&config, index, experts));
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let mut geometry =
        LayerGeometry::attention(config.attention.heads, config.kv(), LayerKind::Latent);
    geometry.states.push(LayerKind::Latent);
    let around = config.surroundings_of(vec![geometry; layers.len()])?;
    CausalLm::around(layers, around)
}

/// Refuses forms that no published checkpoint has.
fn only_forms(c: &Config) -> Result<()> {
    let method = c.or("attention_method", "MLA".to_owned())?;
    let kind = c.or("zero_expert_type", "identity".to_owned())?;
    for (key, given, known) in [
        ("attention_method", method, "MLA"),
        ("zero_expert_type", kind, "identity"),
    ] {
        if given != known {
            return Err(c.unsupported(format!(
                "{key} {given:?} is not supported; known: {known:?}"
            )));
        }
    }
    for (key, known) in [
        ("mla_scale_q_lora", true),
        ("mla_scale_kv_lora", true),
        ("router_bias", false),
    ] {
        if c.or(key, known)? != known {
            return Err(c.unsupported(format!("{key} {} is not supported", !known)));
        }
    }
    // transformers ignores it: weights are not scaled to sum to 1.
    c.ignore(&["norm_topk_prob"]);
    Ok(())
}

fn experts(c: &Config, config: &DecoderConfig) -> Result<ExpertsConfig> {
    let n_identities = match c.is_null("zero_expert_num") {
        true => 0,
        false => c.or("zero_expert_num", IDENTITIES)?,
    };
    if !(0..=1 << 20).contains(&n_identities) {
        return Err(c.error(format!(
            "zero_expert_num {n_identities} is not a number of experts"
        )));
    }
    let top_k = c.size("num_experts_per_tok", Some(EXPERTS.top_k))?;
    let experts = keys::experts_of(c, config.hidden, &EXPERTS, top_k)?;
    Ok(ExpertsConfig {
        n_identities: n_identities as i32,
        routing: Routing {
            correction: Correction::Vector,
            scale: Some(c.positive("routed_scaling_factor", Some(SCALE))? as f32),
            ..Routing::softmax(false)
        },
        ..experts
    })
}

fn layer(c: &DecoderConfig, index: usize, experts: ExpertsConfig) -> Result<LongcatFlashLayer> {
    let attention = || {
        let latent = c.attention.latent.expect("attention is latent");
        c.latent_attention(latent, c.ropes[index].as_ref())
    };
    let mlp = || match c.feed_forward[index] {
        MlpConfig::Dense {
            intermediate,
            activation,
            ..
        } => GatedMlp::empty(c.hidden, intermediate, false, activation),
        _ => unreachable!("no other MLP was read"),
    };
    Ok(LongcatFlashLayer {
        input_layernorm: vec![c.norm()?, c.norm()?],
        self_attn: vec![attention()?, attention()?],
        post_attention_layernorm: vec![c.norm()?, c.norm()?],
        mlps: vec![mlp()?, mlp()?],
        mlp: ExpertsMlp::empty(experts)?,
    })
}

/// The names of published files. transformers also stores rows of `gate_proj` and `up_proj` for experts that return
/// their input; they are not read.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    const UNUSED: &str = "the expert returns its input";
    let c = &renamed(source.config)?;
    let experts = c.size("num_local_experts", Some(EXPERTS.n_experts))?;
    let mut rules = vec![
        Rule::drop("model.mtp.*", "a head for multi-token prediction"),
        Rule::rename("*.mlp.router.classifier.*", "*.mlp.gate.*").written(),
        Rule::rename(
            "*.mlp.router.e_score_correction_bias",
            "*.mlp.e_score_correction_bias",
        )
        .written(),
    ];
    let tensors = source.tensors;
    let mut unused: Vec<&str> = tensors
        .names()
        .filter(|name| is_unused(name, experts))
        .collect();
    unused.sort_unstable();
    rules.extend(unused.into_iter().map(|name| Rule::drop(name, UNUSED)));
    for name in tensors
        .names()
        .filter(|name| name.ends_with(".mlp.experts.gate_up_proj"))
    {
        if let Some(&[all, ..]) = tensors.shape(name)?.as_deref()
            && all > experts
        {
            let rest = format!("{name}_rest");
            rules.extend([
                Rule::transpose(name, &[1, 0, 2]),
                Rule::split(name, 1, [(name, experts), (&rest, all - experts)]),
                Rule::transpose(name, &[1, 0, 2]),
                Rule::drop(&rest, UNUSED),
            ]);
        }
    }
    rules.extend(qwen3_5::expert_names());
    Ok(Rules::from(rules))
}

/// Whether the tensor is one of an expert after the first `experts`.
fn is_unused(name: &str, experts: i32) -> bool {
    let number = name
        .split_once(".mlp.experts.")
        .and_then(|(_, rest)| rest.split_once('.'));
    let number = number.and_then(|(number, _)| number.parse::<i32>().ok());
    number.is_some_and(|number| number >= experts)
}

/// mlx-lm gives the router 8 bits. The absorbed form of attention multiplies with the dense matrices of `kv_b_proj`.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("*.mlp.gate", Bits::Eight),
    ("*.self_attn.*.kv_b_proj", Bits::Dense),
];

//! Gemma 4: layers with full attention have another head size, and their keys may also be their
//! values; the last layers may read the keys and values of earlier ones; layers may have per-layer
//! inputs, and experts beside the MLP. Also the text tower of the multimodal checkpoints.

use mlx_core::Result;
use mlx_nn::{AttentionConfig, ExpertsConfig, KvSource, LayerKind, QkNorm, Routing, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::rope::context;
use crate::config::{Bits, Config, Source};
use crate::decoders::causal_lm::CausalLm;
use crate::decoders::per_layer_inputs::{LayerInput, LayerInputSizes, LayerInputs};
use crate::model::{LayerGeometry, kv_heads};

pub(crate) mod assistant;
mod beside;
mod layer;
mod sizes;

use beside::Beside;
use layer::Gemma4Layer;

pub(crate) type Gemma4 = CausalLm<Gemma4Layer, (), Option<LayerInputs>>;

/// transformers' defaults for keys that a config leaves out.
pub(crate) const DEFAULTS: Defaults = Defaults {
    vocab: 262_144,
    hidden: 2304,
    intermediate: 9216,
    layers: 30,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    max_positions: 131_072,
    activation_key: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    rope: None,
    ..Defaults::LLAMA
};

/// The tokens that stand for images, sounds and videos. In a text they are read as the padding.
const PLACEHOLDERS: [(&str, i32); 3] = [
    ("image_token_id", 258_880),
    ("audio_token_id", 258_881),
    ("video_token_id", 258_884),
];

pub(crate) fn load(source: &Source<'_>) -> Result<Gemma4> {
    let c = source.config;
    let config = config(c, &DEFAULTS, 512)?;
    let width = match c.or("hidden_size_per_layer_input", 256)? {
        0 => None,
        _ => Some(c.size("hidden_size_per_layer_input", Some(256))?),
    };
    let vocab = c.size("vocab_size_per_layer_input", Some(262_144))?;
    let inputs = width.map(|width| LayerInputSizes {
        vocab,
        hidden: config.hidden,
        layers: config.layers.len() as i32,
        width,
        eps: config.norm.eps,
        cut: false,
    });
    build(source, config, inputs, experts(c)?)
}

/// The experts of every layer.
fn experts(c: &Config) -> Result<Option<ExpertsConfig>> {
    if !c.or("enable_moe_block", false)? {
        c.ignore(&["num_experts", "top_k_experts", "moe_intermediate_size"]);
        return Ok(None);
    }
    let experts = ExpertsConfig {
        hidden: c.size("hidden_size", Some(DEFAULTS.hidden))?,
        intermediate: c.size("moe_intermediate_size", None)?,
        n_experts: c.size("num_experts", None)?,
        n_identities: 0,
        top_k: c.size("top_k_experts", None)?,
        routing: Routing::softmax(true),
        activation: keys::activation(c, DEFAULTS.activation_key, DEFAULTS.activation)?,
        clamp: None,
        bias: false,
        scales_inputs: false,
        shared: None,
        ungated: None,
        output_scale: None,
    };
    if experts.top_k > experts.n_experts {
        let ExpertsConfig {
            top_k, n_experts, ..
        } = experts;
        return Err(c.error(format!(
            "top_k_experts {top_k} exceeds num_experts {n_experts}"
        )));
    }
    Ok(Some(experts))
}

/// The decoder of a config, with what the text models of Gemma 4 have in common. [`build`] reads
/// the ropes.
pub(crate) fn config(c: &Config, defaults: &Defaults, window: i32) -> Result<DecoderConfig> {
    if c.or("use_bidirectional_attention", String::new())? == "all" {
        return Err(c.unsupported(
            "use_bidirectional_attention \"all\" is not supported; known: null, \"vision\" (only images)",
        ));
    }
    // The family has rope keys in the new dialect only.
    c.ignore(&["rope_scaling", "hidden_act"]);
    let mut config = keys::decoder(c, defaults)?;
    keys::attention_bias(c, &mut config)?;
    config.attention.scale = 1.0;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    config.scales.embedding = Some(f64::from(config.hidden).sqrt() as f32);
    config.scales.logit_softcap = keys::softcap(c, "final_logit_softcapping", None)?;
    let window = keys::window(c, Some(window))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| (layer + 1) % 6 != 0)?;
    config.layers[n - 1] = LayerKind::Full;
    Ok(config)
}

/// Builds the model. `config` has the values that all layers share.
pub(crate) fn build(
    source: &Source<'_>,
    mut config: DecoderConfig,
    inputs: Option<LayerInputSizes>,
    experts: Option<ExpertsConfig>,
) -> Result<Gemma4> {
    let c = source.config;
    let shares = keys::shared_layers(c, &config.layers, 0)?;
    let heads = sizes::heads(c, &config)?;
    let alike = c.or("attention_k_eq_v", false)?;
    let wide = c.or("use_double_wide_mlp", false)?;
    let (mut layers, mut geometry) = (Vec::new(), Vec::new());
    for (index, &(kv, head_dim)) in heads.iter().enumerate() {
        let kind = config.layers[index];
        let rope = sizes::rope(c, &config, kind, head_dim)?;
        let of_kind = AttentionConfig {
            kv_heads: kv,
            head_dim,
            value_norm: Some(config.norm.eps),
            source: match alike && kind == LayerKind::Full {
                true => KvSource::Alike,
                false => KvSource::Own,
            },
            ..config.attention_config()
        };
        let attention = keys::with_sharing(of_kind, index, &shares);
        if let (MlpConfig::Dense { intermediate, .. }, true, Some(_)) =
            (&mut config.feed_forward[index], wide, shares[index])
        {
            *intermediate *= 2;
        }
        let activation = keys::activation(c, DEFAULTS.activation_key, DEFAULTS.activation)?;
        let input = inputs.map(|LayerInputSizes { width, eps, .. }| {
            LayerInput::new(config.hidden, width, eps, activation)
        });
        let parts = (&attention, &rope, &config.feed_forward[index]);
        let layer = Gemma4Layer::new(&config, parts)?;
        let experts = experts.map(|experts| Beside::new(&experts, config.norm.eps));
        let width = inputs.map_or(0, |inputs| inputs.width);
        layers.push(layer.with(experts.transpose()?, input.transpose()?, width));
        let kv = kv_heads(kv, head_dim);
        geometry.push(match shares[index] {
            Some(source) => LayerGeometry::sharing(config.attention.heads, kv, source),
            None => LayerGeometry::attention(config.attention.heads, kv, kind),
        });
        config.max_positions = context(&rope, config.max_positions);
        config.ropes[index] = Some(rope);
    }
    let model = CausalLm::around(layers, config.surroundings_of(geometry)?)?;
    let placeholders = source.placeholders(&PLACEHOLDERS)?;
    let model = model.with_placeholders(&placeholders, c.or("pad_token_id", 0)?)?;
    Ok(model.with_ends(inputs.map(LayerInputs::new).transpose()?))
}

/// Published files have the gate and up projections of all experts as one tensor. They have
/// projections of keys and values for layers that do not use them.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let unused = keys::unused_projections(source.config, DEFAULTS.layers, 0)?;
    let experts = [
        Rule::split(
            "*.experts.gate_up_proj",
            1,
            [
                ("*.experts.switch_glu.gate_proj.weight", 1),
                ("*.experts.switch_glu.up_proj.weight", 1),
            ],
        ),
        Rule::rename(
            "*.experts.down_proj",
            "*.experts.switch_glu.down_proj.weight",
        ),
    ];
    Ok(Rules::from(unused.into_iter().chain(experts)))
}

/// The router keeps more bits, as in mlx-lm.
pub(crate) const BITS: &[(&str, Bits)] = &[("*.router.proj", Bits::EightUnlessMixed)];

//! Ministral 3 and Devstral 2: Mistral with queries that grow with their positions, and YaRN. Also the text towers of
//! the multimodal checkpoints, which may be Mistral (Small 3).

use mlx_core::Result;
use mlx_nn::{Growth, RopeScaling};

use crate::config::rope::context;
use crate::decoder::Decoder;
use crate::family::{self, Defaults};
use crate::mistral;
use crate::registry::Source;

/// What transformers assumes about absent keys.
const DEFAULTS: Defaults = Defaults {
    vocab: 131_072,
    intermediate: 14_336,
    layers: 34,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 262_144,
    norm_eps: 1e-5,
    theta: 1_000_000.0,
    ..Defaults::LLAMA
};

/// The context length before YaRN, in a config without rope keys.
const ORIGINAL: f64 = 16_384.0;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    match c.or("model_type", "ministral3".to_owned())?.as_str() {
        "ministral3" => {}
        "mistral" if source.nested => return mistral::load(c),
        other => {
            return Err(c.unsupported(format!(
                "a text model of model_type {other:?} is not supported; known: ministral3, mistral"
            )));
        }
    }
    let mut config = family::decoder(c, &DEFAULTS)?;
    let (mut growth, mut original) = (None, None);
    let mut has_rope = false;
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(entry) = c.object(key)?.filter(|entry| !entry.is_empty()) {
            has_rope = true;
            growth = growth.or(entry.opt::<f64>("llama_4_scaling_beta")?);
            original = original.or(entry.opt::<f64>("original_max_position_embeddings")?);
        }
    }
    if !has_rope {
        (growth, original) = (Some(0.1), Some(ORIGINAL));
        let scaling = RopeScaling::Yarn {
            factor: 16.0,
            original: ORIGINAL,
            beta_fast: 32.0,
            beta_slow: 1.0,
            amplitude: 1.0,
            truncate: true,
        };
        for rope in config.ropes.iter_mut().flatten() {
            (rope.base, rope.scaling) = (DEFAULTS.theta, scaling.clone());
            config.max_positions = context(rope, config.max_positions);
        }
    }
    config.query_growth = match (growth, original) {
        (Some(beta), Some(original)) if original >= 1.0 => Some(Growth {
            beta: beta as f32,
            period: original as f32,
        }),
        (None, _) => None,
        (Some(_), _) => {
            return Err(c.error("llama_4_scaling_beta needs original_max_position_embeddings"));
        }
    };
    // transformers does not read it here.
    c.ignore(&["layer_types"]);
    let window = family::window(c, None)?;
    config.layers.fill(family::kind(window));
    Decoder::new(&config)
}

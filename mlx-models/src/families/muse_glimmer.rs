//! Muse Glimmer, the text tower: normed embeddings, four norms a layer, norms without weights on q and k, a gate on every
//! feature of attention's output, and layers without a rope.

use mlx_core::{Array, Result, fast};
use mlx_nn::{GateFunction, HeadGate, NormConfig, NormKind, QkNorm, QkPlace, Rule, Rules, module};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::causal_lm::{CausalLm, Ends, Surroundings};
use crate::decoders::pre_and_post_norm::PreAndPostNormLayer;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 202_048,
    hidden: 6656,
    intermediate: 19_968,
    layers: 52,
    kv_heads: Some(2),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1e-5,
    activation_key: "hidden_activation",
    ..Defaults::LLAMA
};

/// Every fourth layer, counted from the last, has neither a window nor a rope.
const EVERY: usize = 4;

/// The tokens that stand for images and videos, which are read as token 0 in a text.
const PLACEHOLDERS: [(&str, i32); 2] = [("image_token_id", 200_092), ("video_token_id", 200_091)];

/// The norm of the embeddings, which has no weight.
#[derive(Clone)]
pub(crate) struct NormedEmbeddings {
    eps: f32,
}
module!(NormedEmbeddings { } plain { eps });

impl Ends for NormedEmbeddings {
    fn enter(&self, _tokens: &Array, x: Array) -> Result<Array> {
        fast::rms_norm(&x, None, self.eps)
    }
}

pub(crate) fn load(
    source: &Source<'_>,
) -> Result<CausalLm<PreAndPostNormLayer, (), NormedEmbeddings>> {
    let c = source.config;
    c.ignore(&["hidden_act"]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    let eps = config.norm.eps;
    config.norm.kind = NormKind::Rms(1.0);
    config.norm.after = Some(c.positive("post_norm_eps", Some(1e-8))? as f32);
    config.attention.qk_norm = Some(QkNorm {
        place: QkPlace::HeadsUnweighted,
        ..QkNorm::heads(eps, 0.0)
    });
    config.attention.scale *= c.positive("qk_scale_factor", Some(3.87))? as f32;
    config.attention.gate = Some(HeadGate {
        by_feature: true,
        function: GateFunction::Sigmoid,
    });
    let window = keys::window(c, Some(2048))?;
    let n = config.layers.len();
    let is_full = |layer: usize| (n - 1 - layer).is_multiple_of(EVERY);
    config.layers = keys::layer_kinds(c, n, window, |layer| !is_full(layer))?;
    // A base of 0 means no rope. transformers reads no other base from the list.
    let bases = c.opt::<Vec<f64>>("layer_rope_theta")?;
    if let Some(bases) = bases.as_ref().filter(|bases| bases.len() != n) {
        let found = bases.len();
        return Err(c.error(format!(
            "layer_rope_theta has {found} entries for {n} layers"
        )));
    }
    for (layer, rope) in config.ropes.iter_mut().enumerate() {
        let rotates = match &bases {
            Some(bases) => bases[layer] != 0.0,
            None => !is_full(layer),
        };
        *rope = rope.take().filter(|_| rotates);
    }
    let multiplier = c.positive("output_multiplier", Some(0.196_116_135_138_184_04))?;
    config.scales.logits = Some(multiplier as f32);
    config.scales.logit_softcap = keys::softcap(c, "final_logit_softcapping", Some(20.0))?;
    let layers = (0..n).map(|layer| PreAndPostNormLayer::new(&config, layer));
    // The weight of the final norm is stored as it is.
    let around = Surroundings {
        norm: NormConfig {
            kind: NormKind::Rms(0.0),
            eps,
        },
        ..config.surroundings()?
    };
    let model = CausalLm::around(layers.collect::<Result<_>>()?, around)?;
    let placeholders = source.placeholders(&PLACEHOLDERS)?;
    let model = model.with_placeholders(&placeholders, 0)?;
    Ok(model.with_ends(NormedEmbeddings { eps }))
}

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::drop("*.rotary_emb.freqs", "computed from config.json"),
        Rule::rename("*.self_attn.gate_proj.*", "*.self_attn.g_proj.*").written(),
    ]))
}

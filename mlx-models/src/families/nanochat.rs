//! nanochat: norms without weights, one of them after the embedding; the rope rotates in the
//! opposite direction, and q and k are normed after it; an MLP without a gate; a soft cap of the
//! logits.

use mlx_core::{Array, Result};
use mlx_nn::{Norm, NormKind, QkKind, QkNorm, QkPlace, Rule, Rules, module};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::causal_lm::{CausalLm, Ends};
use crate::decoders::pre_norm::{Decoder, PreNormLayer};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_304,
    hidden: 768,
    intermediate: 8192,
    layers: 12,
    heads: 6,
    activation: "relu2",
    ..Defaults::LLAMA
};

/// A norm between the embedding and the first layer.
#[derive(Clone)]
pub(crate) struct EmbeddingNorm {
    norm: Norm,
}
module!(EmbeddingNorm { norm });

impl Ends for EmbeddingNorm {
    fn enter(&self, _tokens: &Array, x: Array) -> Result<Array> {
        self.norm.forward(&x)
    }
}

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<PreNormLayer, (), EmbeddingNorm>> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    keys::ungated(&mut config);
    config.scales.logit_softcap = keys::softcap(c, "final_logit_softcapping", Some(15.0))?;
    config.norm.kind = NormKind::Bare;
    config.attention.qk_norm = Some(QkNorm {
        eps: config.norm.eps,
        offset: 0.0,
        kind: QkKind::Rms,
        place: QkPlace::RotatedUnweighted,
    });
    for rope in config.ropes.iter_mut().flatten() {
        rope.reversed = true;
    }
    let norm = config.norm()?;
    Ok(Decoder::new(&config)?.with_ends(EmbeddingNorm { norm }))
}

/// The names of a layer's parts: in files of transformers, in files of MLX and of the original
/// program, and in the model.
const PARTS: [[&str; 3]; 6] = [
    ["self_attn.q_proj", "attn.c_q", "self_attn.q_proj"],
    ["self_attn.k_proj", "attn.c_k", "self_attn.k_proj"],
    ["self_attn.v_proj", "attn.c_v", "self_attn.v_proj"],
    ["self_attn.o_proj", "attn.c_proj", "self_attn.o_proj"],
    ["mlp.fc1", "mlp.c_fc", "mlp.up_proj"],
    ["mlp.fc2", "mlp.c_proj", "mlp.down_proj"],
];

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    const EMBEDDING: [&str; 2] = ["model.embed_tokens.*", "transformer.wte.*"];
    let layer = |part: &str| format!("model.layers.#.{part}.*");
    let block = |part: &str| format!("transformer.h.#.{part}.*");
    let mut published = vec![Rule::rename(EMBEDDING[0], EMBEDDING[1])];
    let mut written = vec![Rule::rename(EMBEDDING[1], EMBEDDING[0]).written()];
    for [transformers, mlx, own] in PARTS {
        published.push(Rule::rename(&layer(transformers), &block(mlx)));
        written.push(Rule::rename(&block(mlx), &layer(own)).written());
    }
    Ok(Rules::from(published).and(&Rules::from(written)))
}

//! DeepSeek V4.1: DeepSeek V4 whose compressed blocks are kept by some layers and seen by those after them, with activations
//! that are rounded to few bits, and streams whose weights for reading come from the block before.

use mlx_core::Result;
use mlx_nn::{CompressedAttention, ExpertsMlp, LayerKind, SourcedBlocks, StreamMixer};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::decoders::causal_lm::CausalLm;
use crate::decoders::engram::Engram;
use crate::families::deepseek_v4;
use crate::model::{LayerGeometry, kv_heads};

mod engrams;
mod layer;
mod sizes;
mod tensors;

use layer::{V41Ends, V41Layer};
pub(crate) use tensors::names;

/// The defaults of published configs.
const DEFAULTS: Defaults = Defaults {
    vocab: 129_280,
    hidden: 5120,
    intermediate: 2304,
    layers: 40,
    norm_eps: 1e-20,
    ..deepseek_v4::DEFAULTS
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate: 2304,
    n_experts: 384,
    ..deepseek_v4::EXPERTS
};

/// Keys that have no effect on text: the family has no biases, images are refused, and its heads for multi-token prediction
/// are not read.
const IGNORED: &[&str] = &[
    "attention_dropout",
    "hc_pre_from_prev_sublayer",
    "image_token_id",
    "q_head_norm",
    "vision_config",
];

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<V41Layer, (), V41Ends>> {
    let c = source.config;
    c.ignore(IGNORED);
    c.ignore(deepseek_v4::IGNORED);
    let config = keys::decoder(c, &DEFAULTS)?;
    let blocks = sizes::blocks(c, config.layers.len())?;
    let [near, of_blocks] = deepseek_v4::ropes(c, config.attention.head_dim)?;
    let streams = keys::streams(c, &config)?;
    let experts = sizes::experts(c, &config)?;
    let engrams = engrams::engrams(c, streams, (config.vocab, config.norm.eps), blocks.len())?;
    let last = engrams.iter().rposition(Option::is_some);
    let (mut layers, mut geometry, mut first) = (Vec::new(), Vec::new(), None);
    for (at, (blocks, engram)) in blocks.into_iter().zip(engrams).enumerate() {
        let attention = sizes::attention(c, &config, blocks)?;
        let kv = kv_heads(1, attention.head_dim);
        let mut own = LayerGeometry::attention(attention.heads, kv, LayerKind::Latent);
        own.states = attention.states();
        let states = own.states.len();
        own.states
            .extend(engram.as_ref().map(|(sizes, _)| sizes.kind()));
        let kept = blocks.filter(|blocks| blocks.keeps);
        let index = kept.and_then(|blocks| blocks.index);
        own.index_dim = index.map(|index| index.dim);
        if let Some(SourcedBlocks { keeps, .. }) = blocks {
            first = first.or(Some(at));
            own.reads = first.filter(|_| !keeps);
        }
        geometry.push(own);
        let rope = match blocks {
            Some(_) => &of_blocks,
            None => &near,
        };
        let engram = engram.map(|(sizes, kinds)| Engram::new(sizes, &kinds));
        layers.push(V41Layer {
            engram: engram.transpose()?,
            attn_hc: StreamMixer::empty(streams)?,
            input_layernorm: config.norm()?,
            self_attn: CompressedAttention::empty(attention, rope)?,
            ffn_hc: StreamMixer::empty(streams)?,
            post_attention_layernorm: config.norm()?,
            mlp: ExpertsMlp::empty(experts)?,
            streams,
            states,
            passes_bytes: last.is_some_and(|last| at < last),
        });
    }
    let around = config.surroundings_of(geometry)?;
    Ok(CausalLm::around(layers, around)?.with_ends(V41Ends {
        streams,
        bytes: last.is_some(),
    }))
}

//! Falcon H1 (arXiv:2507.22448): attention and Mamba 2 in parallel in every layer, and a multiplier for nearly every
//! projection.

use mlx_core::{Array, Result};
use mlx_nn::{
    Attention, GatedMlp, LayerKind, Mamba, MambaConfig, MambaNorm, Norm, Residual, Rule, Rules,
    Step, module,
};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};
use crate::families::granitemoehybrid;
use crate::model::{Geometry, LayerGeometry, kv_heads};

mod multipliers;

use multipliers::{Multipliers, outside};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_000,
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 8192,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "attn_layer_indices",
    "layer_types",
    "layers_block_type",
    "mamba_chunk_size",
    "mamba_use_mlp",
    "mlp_expansion_factor",
    "num_logits_to_keep",
    "rope_traditional",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
];

/// A layer of Falcon H1. Its first state is that of the attention, the second that of the scan.
#[derive(Clone)]
pub(crate) struct FalconH1Layer {
    input_layernorm: Norm,
    mamba: Mamba,
    self_attn: Attention,
    pre_ff_layernorm: Norm,
    feed_forward: GatedMlp,
    multipliers: Multipliers,
}
module!(FalconH1Layer { input_layernorm, mamba, self_attn, pre_ff_layernorm, feed_forward } plain { multipliers });

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<FalconH1Layer>> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    let outside = outside(source, &config)?;
    config.attention.scale *= c.positive("key_multiplier", Some(1.0))? as f32;
    config.scales.embedding = Some(outside.embedding).filter(|&by| by != 1.0);
    config.scales.logits = Some(outside.logits).filter(|&by| by != 1.0);
    let scan = MambaConfig {
        multipliers: outside.scan,
        ..scan(c, &config)?
    };
    let bias = c.or("mlp_bias", false)?;
    let intermediate = c.size("intermediate_size", Some(DEFAULTS.intermediate))?;
    let activation = keys::activation(c, "hidden_act", "silu")?;
    let layers = config.ropes.iter().map(|rope| {
        let mlp = GatedMlp::empty(config.hidden, intermediate, bias, activation)?;
        Ok(FalconH1Layer {
            input_layernorm: config.norm()?,
            mamba: Mamba::empty(scan)?,
            self_attn: config.attention(None, rope.as_ref())?,
            pre_ff_layernorm: config.norm()?,
            feed_forward: mlp.with_multipliers(outside.mlp),
            multipliers: outside.layer,
        })
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let mut around = config.surroundings()?;
    let kv = kv_heads(config.attention.kv_heads, config.attention.head_dim);
    let mut of_layer = LayerGeometry::attention(config.attention.heads, kv, LayerKind::Full);
    of_layer.states.push(scan.kind());
    let geometry = &around.geometry;
    let (most, switches) = (geometry.max_positions, geometry.switches_after);
    let grows = geometry.grows_after;
    around.geometry = Geometry::new(config.vocab, config.hidden, vec![of_layer; layers.len()])
        .with_positions(most, switches)
        .growing_after(grows);
    CausalLm::around(layers, around)
}

/// The scan of a layer.
fn scan(c: &Config, config: &DecoderConfig) -> Result<MambaConfig> {
    let inner = match c.is_null("mamba_d_ssm") {
        true => i64::from(c.size("mamba_expand", Some(2))?) * i64::from(config.hidden),
        false => i64::from(c.size("mamba_d_ssm", Some(1024))?),
    };
    c.ignore(&["mamba_expand"]);
    let mamba = granitemoehybrid::mamba(c, config, inner)?;
    let before_gate = c.or("mamba_norm_before_gate", true)?;
    let norm = mamba.norm.map(|norm| MambaNorm {
        before_gate,
        ..norm
    });
    Ok(MambaConfig {
        out_bias: c.or("projectors_bias", false)?,
        norm: norm.filter(|_| c.value("mamba_rms_norm").is_some_and(|given| given == true)),
        ..mamba
    })
}

impl DecoderLayer for FalconH1Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let of = &self.multipliers;
        let (x, y) = x.normed(&self.input_layernorm)?;
        let attended = scaled(y.clone(), of.attention_in)?;
        let attended = self.self_attn.forward(&attended, state, step)?;
        let scanned = self
            .mamba
            .forward(&scaled(y, of.scan_in)?, state + 1, step)?;
        let both = scaled(scanned, of.scan_out)?.add(scaled(attended, of.attention_out)?)?;
        let [x, both] = step.narrow([&x, &both])?;
        let (x, y) = Residual::new(x, both).normed(&self.pre_ff_layernorm)?;
        Ok(Residual::new(x, self.feed_forward.forward(&y)?))
    }
}

fn scaled(x: Array, by: f32) -> Result<Array> {
    if by == 1.0 { Ok(x) } else { x.multiply(by) }
}

/// Parameters outside the layers have other names. A written file keeps the axes of the
/// convolutions, because a reader infers from them whether the weights contain the multipliers.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let conv = keys::convolutions(source.tensors, ".conv1d.weight")?;
    let norm = Rule::rename("model.final_layernorm.*", "model.norm.*").written();
    Ok(Rules::from(
        conv.map(Rule::written).into_iter().chain([norm]),
    ))
}

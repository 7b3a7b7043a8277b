//! A user-defined family: a sliding window, a recurrence, an attention layer with other heads, and a head for
//! multi-token prediction. This file is everything that the family needs.

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Result};
use mlx_models::causal::{CausalLm, DecoderLayer, Predict, Surroundings};
use mlx_models::convert::Bits;
use mlx_models::{Family, Geometry, LayerGeometry, Model, Source, kv_heads};
use mlx_nn::{
    Activation, Attention, AttentionConfig, GatedMlp, LayerKind, Linear, NormConfig, Param,
    RecurrentShape, Residual, RmsNorm, Rope, RopeConfig, RopeScaling, Rule, Rules, StateAfter,
    StatePart, Step, module,
};

pub const HIDDEN: i32 = 64;
pub const INTERMEDIATE: i32 = 128;
pub const VOCAB: i32 = 96;
const TAPS: i32 = 4;
const EPS: f32 = 1e-5;

pub const STATE: RecurrentShape = RecurrentShape::new(&[
    StatePart::Window {
        name: "conv",
        len: TAPS - 1,
        width: HIDDEN,
    },
    StatePart::Carry {
        name: "sum",
        shape: [1, 1, HIDDEN],
        dtype: DType::F32,
    },
]);

/// The number of query heads, the number of KV heads, and the head size. `SMALL` is for layer 0 (a
/// window of 8), `LARGE` for layer 2 and the head.
pub const SMALL: [i32; 3] = [4, 2, 16];
pub const LARGE: [i32; 3] = [2, 1, 32];

pub const FAMILY: Family = Family {
    names,
    tied: true,
    bits: &[("mtp.fc", Bits::Dense), ("mtp.layers.*", Bits::Eight)],
    ..Family::new(&["toy"], build)
};

/// In published files gate and up are one tensor, down is `[in, out]`, a kernel has three axes, and
/// norms are stored as `weight - 1`. MLX's files have the forms of the model. In both, q, k and v
/// are one tensor, group by group of heads.
fn names(source: &Source<'_>) -> Result<Rules> {
    let mut rules = vec![
        Rule::drop("*.attn.mask", "a buffer"),
        Rule::rename("transformer.wte.*", "model.embed_tokens.*"),
        Rule::rename("transformer.norm.*", "model.norm.*"),
        Rule::rename("transformer.h.#.*", "model.layers.#.*"),
        Rule::rename("*.attn.out.*", "*.self_attn.o_proj.*"),
        Rule::split(
            "*.mlp.gate_up.*",
            1,
            [("*.mlp.gate_proj.*", 1), ("*.mlp.up_proj.*", 1)],
        ),
    ];
    for (layer, [heads, kv_heads, dim]) in [
        ("model.layers.0", SMALL),
        ("model.layers.2", LARGE),
        ("mtp.layers.0", LARGE),
    ] {
        let part = |name: &str| format!("{layer}.self_attn.{name}.*");
        let parts = [
            (&*part("q_proj"), heads / kv_heads * dim),
            (&*part("k_proj"), dim),
            (&*part("v_proj"), dim),
        ];
        rules.push(Rule::split(&format!("{layer}.attn.qkv.*"), kv_heads, parts).written());
    }
    let kernel = source.tensors.shape("transformer.h.1.rec.conv1d.weight")?;
    if kernel.is_some_and(|shape| shape[1] == 1) {
        rules.push(Rule::transpose("*.conv1d.weight", &[0, 2, 1]));
        rules.push(Rule::transpose("*.mlp.down_proj.weight", &[1, 0]));
        rules.push(Rule::add("*norm*.weight", 1.0));
    }
    Ok(Rules::from(rules))
}

#[derive(Clone)]
struct Conv {
    weight: Param,
}
module!(Conv { weight });

/// A causal convolution and a decaying sum.
#[derive(Clone)]
struct Recurrent {
    in_proj: Linear,
    conv1d: Conv,
    decay: Param,
    out_proj: Linear,
}
module!(Recurrent {
    in_proj,
    conv1d,
    decay,
    out_proj
});

impl Recurrent {
    fn new() -> Result<Self> {
        Ok(Self {
            in_proj: Linear::empty(HIDDEN, HIDDEN, false)?,
            conv1d: Conv {
                weight: Param::empty(&[HIDDEN, TAPS, 1])?,
            },
            decay: Param::empty(&[HIDDEN])?,
            out_proj: Linear::empty(HIDDEN, HIDDEN, false)?,
        })
    }

    fn forward(&self, x: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let inputs = step.window(state, 0, &self.in_proj.forward(x)?)?;
        let kernel = self.conv1d.weight.value().squeeze(-1)?.t()?;
        let mut y = None::<Array>;
        for tap in 0..TAPS {
            let term = inputs.slice_axis(2, tap, tap + 1)?.squeeze(2)?;
            let term = term.multiply(kernel.slice_axis(0, tap, tap + 1)?)?;
            y = Some(match y {
                None => term,
                Some(y) => y.add(&term)?,
            });
        }
        let y = y.expect("a kernel has taps");
        let decay = self.decay.value().sigmoid()?;
        let before = step.state(state, 1)?;
        let (mut sums, mut ends) = (Vec::new(), Vec::new());
        for (row, places) in step.places().enumerate() {
            let mut sum = before.slice_axis(0, row as i32, row as i32 + 1)?;
            for place in places {
                let new = y.slice_axis(1, place as i32, place as i32 + 1)?;
                sum = sum.multiply(&decay)?.add(&new.expand_dims(1)?)?;
                sums.push(sum.clone());
            }
            ends.push(sum);
        }
        let each = concat(&sums, 0)?;
        let after = match step.keeps_parts() {
            true => StateAfter::Each(each.clone()),
            false => StateAfter::End(concat(&ends, 0)?),
        };
        step.set_state(state, 1, after)?;
        self.out_proj
            .forward(&each.squeeze([1, 2])?.expand_dims(0)?)
    }
}

#[derive(Clone)]
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Option<Attention>,
    rec: Option<Recurrent>,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}
module!(Layer {
    input_layernorm,
    self_attn,
    rec,
    post_attention_layernorm,
    mlp
});

impl Layer {
    /// A layer with attention of these heads, or a recurrent layer.
    fn new(attention: Option<[i32; 3]>) -> Result<Self> {
        let (self_attn, rec) = match attention {
            None => (None, Some(Recurrent::new()?)),
            Some([heads, kv_heads, head_dim]) => {
                let config = AttentionConfig {
                    qkv_bias: true,
                    ..AttentionConfig::plain(HIDDEN, heads, kv_heads, head_dim)
                };
                let rope = RopeConfig {
                    base: 10_000.0,
                    dims: head_dim,
                    interleaved: false,
                    reversed: false,
                    scaling: RopeScaling::Default,
                };
                (
                    Some(Attention::empty(&config, Rope::new(&rope, head_dim)?)?),
                    None,
                )
            }
        };
        Ok(Self {
            input_layernorm: RmsNorm::empty(HIDDEN, EPS)?,
            self_attn,
            rec,
            post_attention_layernorm: RmsNorm::empty(HIDDEN, EPS)?,
            mlp: GatedMlp::empty(HIDDEN, INTERMEDIATE, false, Activation::Silu)?,
        })
    }
}

impl DecoderLayer for Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let y = self.input_layernorm.forward(&x)?;
        let y = match (&self.self_attn, &self.rec) {
            (Some(attention), _) => attention.forward(&y, state, step)?,
            (None, Some(rec)) => rec.forward(&y, state, step)?,
            (None, None) => unreachable!("a layer has a mixer"),
        };
        let x = x.add(&y)?;
        let y = self
            .mlp
            .forward(&self.post_attention_layernorm.forward(&x)?)?;
        Ok(Residual::new(x, y))
    }
}

/// The head for multi-token prediction: a separate set of modules.
#[derive(Clone)]
struct Mtp {
    fc: Linear,
    pre_fc_norm_embedding: RmsNorm,
    pre_fc_norm_hidden: RmsNorm,
    layers: Vec<Layer>,
    norm: RmsNorm,
}
module!(Mtp {
    fc,
    pre_fc_norm_embedding,
    pre_fc_norm_hidden,
    layers,
    norm
});

impl Predict for Mtp {}

impl Mtp {
    fn new() -> Result<Self> {
        Ok(Self {
            fc: Linear::empty(2 * HIDDEN, HIDDEN, false)?,
            pre_fc_norm_embedding: RmsNorm::empty(HIDDEN, EPS)?,
            pre_fc_norm_hidden: RmsNorm::empty(HIDDEN, EPS)?,
            layers: vec![Layer::new(Some(LARGE))?],
            norm: RmsNorm::empty(HIDDEN, EPS)?,
        })
    }
}

fn build(source: &Source<'_>) -> Result<Box<dyn Model>> {
    let window = source.config.size("sliding_window", None)? as usize;
    let attention =
        |[heads, kv, dim]: [i32; 3], kind| LayerGeometry::attention(heads, kv_heads(kv, dim), kind);
    let sizes = vec![
        attention(SMALL, LayerKind::Window(window)),
        LayerGeometry::recurrent(STATE),
        attention(LARGE, LayerKind::Full),
    ];
    let around = Surroundings {
        geometry: Geometry::new(VOCAB, HIDDEN, sizes),
        norm: NormConfig::rms(EPS),
        tied: source.config.or("tie_word_embeddings", true)?,
        head_bias: false,
        embed_scale: None,
        logit_scale: None,
        softcap: None,
    };
    let layers = [Some(SMALL), None, Some(LARGE)].map(Layer::new);
    let layers = layers.into_iter().collect::<Result<_>>()?;
    let mtp = source.has("mtp.").then(Mtp::new).transpose()?;
    Ok(Box::new(CausalLm::around(layers, around)?.with_mtp(mtp)))
}

//! A layer of Gemma 4: four norms, experts beside the MLP, an input of its own, and a factor on its output.

use mlx_core::{Array, Result, fast, ops::concat};
use mlx_nn::{
    Attention, AttentionConfig, ExpertsConfig, FeedForward, Initial, Linear, Norm, Normed, Param,
    Residual, RmsNorm, Rope, RopeConfig, Routing, StackedExperts, Step, module,
};

use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::decoders::causal_lm::DecoderLayer;
use crate::decoders::per_layer_inputs::LayerInput;

/// A layer of a [`Gemma4`](super::Gemma4).
#[derive(Clone)]
pub(crate) struct Gemma4Layer {
    self_attn: Attention,
    mlp: FeedForward,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
    pre_feedforward_layernorm: Norm,
    post_feedforward_layernorm: Norm,
    layer_scalar: Param,
    experts: Option<Beside>,
    /// The layer's own input. It is the first part of the features that follow the residual stream.
    input: Option<LayerInput>,
    hidden: i32,
    width: i32,
}
module!(Gemma4Layer {
    self_attn,
    mlp,
    input_layernorm,
    post_attention_layernorm,
    pre_feedforward_layernorm,
    post_feedforward_layernorm,
    layer_scalar
} flat { experts, input } plain { hidden, width });

impl Gemma4Layer {
    /// A layer with this attention, rope and MLP, without experts and an input of its own. Its parameters have no values.
    pub(crate) fn new(
        config: &DecoderConfig,
        (attention, rope, mlp): (&AttentionConfig, &RopeConfig, &MlpConfig),
    ) -> Result<Self> {
        Ok(Self {
            self_attn: Attention::empty(attention, Rope::new(rope, attention.head_dim)?)?,
            mlp: config.mlp(mlp)?,
            input_layernorm: config.norm()?,
            post_attention_layernorm: config.norm()?,
            pre_feedforward_layernorm: config.norm()?,
            post_feedforward_layernorm: config.norm()?,
            layer_scalar: Param::starting(&[1], Initial::Constant(1.0))?,
            experts: None,
            input: None,
            hidden: config.hidden,
            width: 0,
        })
    }

    /// The layer with these experts, and an input of its own of this width.
    pub(crate) fn with(
        self,
        experts: Option<Beside>,
        input: Option<LayerInput>,
        width: i32,
    ) -> Self {
        Self {
            experts,
            input,
            width,
            ..self
        }
    }

    /// The features after the layer, from `x [1, T, E]` and the layer's input `[1, T, P]`.
    fn features(
        &self,
        x: &Array,
        input: Option<(&LayerInput, &Array)>,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let normed = Normed::new(x.clone(), &self.input_layernorm);
        let y = self.self_attn.forward(&normed, state, step)?;
        let [x, y] = step.narrow([x, &y])?;
        let x = Residual::with_norm(x, &self.post_attention_layernorm, y)?;
        let normed = Normed::new(x, &self.pre_feedforward_layernorm);
        let mut y = self.mlp.forward(&normed)?;
        let x = normed.sum()?;
        if let Some(experts) = &self.experts {
            y = experts.forward(x, &y)?;
        }
        let mut x = self.post_feedforward_layernorm.add_to(x, &y)?;
        if let Some((layer, input)) = input {
            let [input] = step.narrow([input])?;
            x = fast::add(&layer.forward(&x, &input)?, &x)?;
        }
        x.multiply(self.layer_scalar.value())
    }
}

impl DecoderLayer for Gemma4Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let Some(input) = &self.input else {
            return Ok(self.features(&x, None, state, step)?.into());
        };
        let (end, own) = (x.dim(-1)?, self.hidden + self.width);
        let of_layer = x.slice_axis(-1, self.hidden, own)?;
        let features = x.slice_axis(-1, 0, self.hidden)?;
        let y = self.features(&features, Some((input, &of_layer)), state, step)?;
        match own < end {
            true => Ok(concat(&[&y, &x.slice_axis(-1, own, end)?], -1)?.into()),
            false => Ok(y.into()),
        }
    }
}

/// Experts beside the MLP. They read the MLP's input before its norm.
#[derive(Clone)]
pub(crate) struct Beside {
    router: Router,
    experts: Experts,
    pre_feedforward_layernorm_2: RmsNorm,
    post_feedforward_layernorm_1: RmsNorm,
    post_feedforward_layernorm_2: RmsNorm,
}
module!(Beside {
    router,
    experts,
    pre_feedforward_layernorm_2,
    post_feedforward_layernorm_1,
    post_feedforward_layernorm_2
});

#[derive(Clone)]
struct Experts {
    switch_glu: StackedExperts,
}
module!(Experts { switch_glu });

#[derive(Clone)]
struct Router {
    proj: Linear,
    scale: Param,
    per_expert_scale: Param,
    routing: Routing,
    top_k: i32,
    eps: f32,
}
module!(Router { proj, scale, per_expert_scale } plain { routing, top_k, eps });

impl Router {
    /// The chosen experts `[N, top_k]` of tokens `[N, E]`, and their weights, F32 `[N, top_k]`.
    fn choose(&self, x: &Array) -> Result<(Array, Array)> {
        let root = (x.dim(-1)? as f32).powf(-0.5);
        let scale = self.scale.value().multiply(root)?;
        let scores = self
            .proj
            .forward(&fast::rms_norm(x, Some(&scale), self.eps)?)?;
        let (experts, weights) = self.routing.choose(&scores, None, self.top_k)?;
        let scales = self.per_expert_scale.value().take(&experts, 0)?;
        Ok((experts, weights.multiply(scales.astype(weights.dtype())?)?))
    }
}

impl Beside {
    pub(crate) fn new(config: &ExpertsConfig, eps: f32) -> Result<Self> {
        let norm = || RmsNorm::empty(config.hidden, eps);
        let ones = |n| Param::starting(&[n], Initial::Constant(1.0));
        Ok(Self {
            router: Router {
                proj: Linear::empty(config.hidden, config.n_experts, false)?,
                scale: ones(config.hidden)?,
                per_expert_scale: ones(config.n_experts)?,
                routing: config.routing,
                top_k: config.top_k,
                eps,
            },
            experts: Experts {
                switch_glu: StackedExperts::empty(config)?,
            },
            pre_feedforward_layernorm_2: norm()?,
            post_feedforward_layernorm_1: norm()?,
            post_feedforward_layernorm_2: norm()?,
        })
    }

    /// The sum of the MLP's output `y` and the experts', each normed; `x` is the residual stream. All `[1, T, E]`.
    fn forward(&self, x: &Array, y: &Array) -> Result<Array> {
        let [b, l, hidden] = x.dims()?;
        let (chosen, weights) = self.router.choose(&x.reshape(&[b * l, hidden])?)?;
        let normed = self.pre_feedforward_layernorm_2.forward(x)?;
        let normed = normed.reshape(&[b * l, 1, 1, hidden])?;
        let of_experts = self.experts.switch_glu.forward(&normed, &chosen)?;
        let sum = fast::weighted_sum(&of_experts, &weights)?;
        let sum = sum.reshape(&[b, l, hidden])?;
        let y = self.post_feedforward_layernorm_1.forward(y)?;
        self.post_feedforward_layernorm_2.add_to(&y, &sum)
    }
}

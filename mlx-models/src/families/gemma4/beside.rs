//! The experts of a Gemma 4, beside the MLP of each layer.

use mlx_core::{Array, Result, fast};
use mlx_nn::{ExpertsConfig, Initial, Linear, Param, RmsNorm, Routing, StackedExperts, module};

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
    pub(crate) fn forward(&self, x: &Array, y: &Array) -> Result<Array> {
        let [b, l, hidden] = x.dims()?;
        let (chosen, weights) = self.router.choose(&x.reshape(&[b * l, hidden])?)?;
        let normed = self.pre_feedforward_layernorm_2.forward(x)?;
        let normed = normed.reshape(&[b * l, 1, 1, hidden])?;
        let experts = &self.experts.switch_glu;
        let sum = experts.forward(&normed, &chosen, Some(&weights))?;
        let sum = sum.reshape(&[b, l, hidden])?;
        let y = self.post_feedforward_layernorm_1.forward(y)?;
        self.post_feedforward_layernorm_2.add_to(&y, &sum)
    }
}

//! [`DFlash`]: drafters by block diffusion (Chen et al., arXiv:2602.06036). One pass makes all drafts: its tokens are the
//! last one and masks, each of which sees the whole block and what the layers have stored of the target's features at the
//! positions before it. The target's embedding and output head are the drafter's.

use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::{
    Attend, Checkpoint, FeedForward, KvShape, LayerKind, Linear, Norm, Normed, Residual, RmsNorm,
    Rope, Rule, Rules, Step, merge_heads, module, split_heads,
};

use super::drafted::{Reader, other_manner};
use crate::config::Config;
use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::model::{Drafting, Model};

/// The largest block that is read.
const MOST: usize = 64;

/// A drafter by block diffusion.
#[derive(Clone)]
pub(crate) struct DFlash {
    fc: Linear,
    hidden_norm: Norm,
    layers: Vec<DFlashLayer>,
    norm: Norm,
    places: Vec<usize>,
    block: usize,
    mask: u32,
    kv: KvShape,
}
module!(DFlash { fc, hidden_norm, layers, norm } plain { places, block, mask, kv });

#[derive(Clone)]
struct DFlashLayer {
    input_layernorm: Norm,
    self_attn: BlockAttention,
    post_attention_layernorm: Norm,
    mlp: FeedForward,
}
module!(DFlashLayer {
    input_layernorm,
    self_attn,
    post_attention_layernorm,
    mlp
});

/// Attention whose queries come from the block, and whose keys and values come from the block and from the target's
/// features.
#[derive(Clone)]
struct BlockAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    rope: Option<Rope>,
    head_dim: i32,
    scale: f32,
    /// How many positions before its own a token sees; all, if there is no limit.
    reach: Option<i32>,
}
module!(BlockAttention { q_proj, k_proj, v_proj, o_proj, q_norm, k_norm }
        plain { rope, head_dim, scale, reach });

/// The rules for the names of published drafters: those of the paper's authors, and transformers'.
pub(crate) fn names() -> Rules {
    Rules::from([
        Rule::rename("encoder.fc.*", "fc.*"),
        Rule::rename("encoder.output_norm_enc.*", "hidden_norm.*"),
    ])
}

/// The defaults of the keys that a config leaves out: those of Qwen3, whose class published drafters use.
const DEFAULTS: Defaults = Defaults {
    head_dim: Some(128),
    max_positions: 32_768,
    ..Defaults::LLAMA
};

/// transformers' defaults for the drafter of Muse Glimmer.
const OF_MUSE: Defaults = Defaults {
    hidden: 6656,
    intermediate: 19_968,
    layers: 5,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 500_000.0,
    ..Defaults::LLAMA
};

impl DFlash {
    /// The drafter that `c`, its config.json, describes. Its parameters have no values.
    ///
    /// # Errors
    /// The drafter has a form that is not supported, or belongs to another target.
    pub(crate) fn load(c: &Config, tensors: &Checkpoint, target: &dyn Model) -> Result<Self> {
        let kind: String = c.or("model_type", "qwen3".to_owned())?;
        let of_muse = kind == "muse_glimmer_assistant";
        if !(of_muse || kind == "qwen3") {
            return Err(c.unsupported(format!(
                "a DFlash drafter of model_type {kind:?} is not supported; known: qwen3, muse_glimmer_assistant"
            )));
        }
        c.ignore(&[
            "vocab_size",
            "use_sliding_window",
            "max_window_layers",
            "num_target_layers",
        ]);
        let mut c = c.clone();
        // The drafter has no vocabulary of its own.
        c.set("vocab_size", target.geometry().vocab.into());
        let c = &c;
        let defaults = if of_muse { OF_MUSE } else { DEFAULTS };
        let mut config = keys::decoder(c, &defaults)?;
        keys::attention_bias(c, &mut config)?;
        let n = config.layers.len();
        let window = keys::window(c, of_muse.then_some(2048))?;
        config.layers = keys::layer_kinds(c, n, window, |_| of_muse)?;
        let sizes = target.geometry();
        if config.hidden != sizes.hidden {
            return Err(c.unsupported(format!(
                "the drafter is of another model: its hidden_size is {}, the model's {}",
                config.hidden, sizes.hidden
            )));
        }
        let own = c.object("dflash_config")?;
        let own = own.as_ref().unwrap_or(c);
        let mode: String = own.or("attention_mode", "gqa".to_owned())?;
        if own.value("attention_modes").is_some() || !matches!(mode.as_str(), "gqa" | "mha") {
            return Err(own.unsupported(format!(
                "attention_mode {mode:?}, or attention_modes, is not supported; known: gqa, mha"
            )));
        }
        let targets = sizes.layers().len();
        let ids: Vec<usize> = match own.opt("target_layer_ids")? {
            Some(ids) => ids,
            None if of_muse => vec![1, 13, 25, 37, 49],
            None => spread(targets, n),
        };
        if ids.is_empty() || ids.iter().any(|&id| id >= targets) {
            return Err(own.error(format!(
                "target_layer_ids must be of the model's {targets} layers, found {ids:?}"
            )));
        }
        let default = of_muse.then_some(16);
        let block = match own.value("block_size").is_some() {
            true => own.size("block_size", None)?,
            false => c.size("block_size", default)?,
        };
        let block = usize::try_from(block).unwrap_or_default();
        if !(2..=MOST).contains(&block) {
            return Err(c.error(format!("block_size must be 2 to {MOST}, found {block}")));
        }
        let mask: u32 = match own.opt("mask_token_id")? {
            Some(mask) => mask,
            None if of_muse => 201_818,
            None => own.required("mask_token_id")?,
        };
        if i64::from(mask) >= i64::from(sizes.vocab) {
            return Err(own.error(format!(
                "mask_token_id {mask} is none of the model's {} tokens",
                sizes.vocab
            )));
        }
        let layers = (0..n).map(|index| DFlashLayer::new(&config, index, tensors));
        Ok(Self {
            fc: Linear::empty(sizes.hidden * ids.len() as i32, config.hidden, false)?,
            hidden_norm: config.norm()?,
            layers: layers.collect::<Result<_>>()?,
            norm: config.norm()?,
            places: ids.iter().map(|id| id + 1).collect(),
            block,
            mask,
            kv: config.kv(),
        })
    }
}

/// The layers whose outputs a drafter of `n` layers reads if its config does not name them: from layer 1 to the third last
/// in equal steps, rounded to even.
fn spread(targets: usize, n: usize) -> Vec<usize> {
    if n == 1 {
        return vec![targets / 2];
    }
    let span = targets.saturating_sub(4) as f64;
    let step = |at: usize| (1.0 + at as f64 * span / (n - 1) as f64).round_ties_even();
    (0..n).map(|at| step(at) as usize).collect()
}

impl DFlashLayer {
    fn new(c: &DecoderConfig, index: usize, tensors: &Checkpoint) -> Result<Self> {
        let plan = &c.attention;
        let (hidden, head_dim) = (c.hidden, plan.head_dim);
        let linear = |heads: i32| Linear::empty(hidden, heads * head_dim, plan.qkv_bias);
        let bias = tensors.contains(&format!("layers.{index}.self_attn.o_proj.bias"));
        let rope = c.ropes[index].as_ref();
        Ok(Self {
            input_layernorm: c.norm()?,
            self_attn: BlockAttention {
                q_proj: linear(plan.heads)?,
                k_proj: linear(plan.kv_heads)?,
                v_proj: linear(plan.kv_heads)?,
                o_proj: Linear::empty(plan.heads * head_dim, hidden, bias)?,
                q_norm: RmsNorm::empty(head_dim, c.norm.eps)?,
                k_norm: RmsNorm::empty(head_dim, c.norm.eps)?,
                rope: rope.map(|rope| Rope::new(rope, head_dim)).transpose()?,
                head_dim,
                scale: plan.scale,
                reach: match c.layers[index] {
                    LayerKind::Window(window) => Some(window as i32),
                    _ => None,
                },
            },
            post_attention_layernorm: c.norm()?,
            mlp: c.mlp(&c.feed_forward[index])?,
        })
    }

    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let normed = Normed::new(x, &self.input_layernorm);
        let y = self.self_attn.forward(normed.array()?, state, step)?;
        let x = Residual::new(normed.sum()?.clone(), y);
        let normed = Normed::new(x, &self.post_attention_layernorm);
        let y = self.mlp.forward(&normed)?;
        Ok(Residual::new(normed.sum()?.clone(), y))
    }
}

impl BlockAttention {
    fn rotated(&self, heads: Array, step: &Step<'_>) -> Result<Array> {
        match &self.rope {
            Some(rope) => rope.forward(&heads, step),
            None => Ok(heads),
        }
    }

    /// Keys and values `[1, K, T, D]`.
    fn kept(&self, x: &Array, step: &Step<'_>) -> Result<(Array, Array)> {
        let k = split_heads(&self.k_proj.forward(x)?, self.head_dim)?;
        let k = self.rotated(self.k_norm.forward(&k)?, step)?;
        let v = split_heads(&self.v_proj.forward(x)?, self.head_dim)?;
        Ok((k, v))
    }

    fn forward(&self, x: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let q = split_heads(&self.q_proj.forward(x)?, self.head_dim)?;
        let q = self.rotated(self.q_norm.forward(&q)?, step)?;
        let (k, v) = self.kept(x, step)?;
        let options = Attend {
            scale: self.scale,
            softcap: None,
            sinks: None,
            alibi: None,
        };
        let y = step.attend_block(state, self.reach, &q, &k, &v, &options)?;
        self.o_proj.forward(&merge_heads(&y)?)
    }
}

impl Reader for DFlash {
    fn duplicate(&self) -> Box<dyn Reader> {
        Box::new(self.clone())
    }

    fn reads(&self) -> Option<&[usize]> {
        Some(&self.places)
    }

    fn states(&self) -> (KvShape, Vec<LayerKind>) {
        (self.kv, vec![LayerKind::Full; self.layers.len()])
    }

    fn manner(&self) -> Drafting {
        Drafting::Block(self.block)
    }

    /// Stores the keys and values of each layer. There are no features to return but the input of the layers.
    fn follow(
        &self,
        _target: &dyn Model,
        first: usize,
        _tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let features = features.ok_or_else(|| {
            let message = "a DFlash drafter reads a position from the model's features of it";
            Error::new(ErrorKind::Invalid, message)
        })?;
        let features = self.hidden_norm.forward(&self.fc.forward(features)?)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let (k, v) = layer.self_attn.kept(&features, step)?;
            step.store(first + index, &k, &v)?;
        }
        Ok(features)
    }

    fn draft(
        &self,
        _target: &dyn Model,
        _first: usize,
        _tokens: &Array,
        _before: &Array,
        _step: &mut Step<'_>,
    ) -> Result<Array> {
        Err(other_manner())
    }

    fn block(
        &self,
        target: &dyn Model,
        first: usize,
        last: &Array,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        // The tokens of a block: the row's last one, and masks.
        let (mut order, mut is_last) = (Vec::new(), Vec::new());
        for (row, places) in step.places().enumerate() {
            order.extend(places.clone().map(|_| row as i32));
            is_last.extend(places.clone().map(|place| place == places.start));
        }
        let n = order.len() as i32;
        let tokens = last.take(&Array::from_slice(&order, &[n])?, 1)?;
        let tokens = Array::from_slice(&is_last, &[1, n])?.select(&tokens, self.mask)?;
        let mut x = Residual::from(target.embeddings(&tokens)?);
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x, first + index, step)?;
        }
        let (_, normed) = x.normed(&self.norm)?;
        Ok(normed)
    }

    fn logits(&self, target: &dyn Model, features: &Array, first: Option<i32>) -> Result<Array> {
        match first {
            Some(first) => target.head().first(first, features),
            None => target.logits(features),
        }
    }
}

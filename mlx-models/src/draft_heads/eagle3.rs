//! [`Eagle3`]: heads of EAGLE-3 (Li et al., arXiv:2503.01840). A layer of Llama reads the embedding of a token and the
//! features of the position before it: at first those of three places in the target's residual stream, projected to one
//! vector, and then its own. The head predicts a part of the vocabulary.

use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, DType, Result};
use mlx_nn::{
    Attention, AttentionConfig, Checkpoint, Embedding, FeedForward, KvShape, LayerKind, Linear,
    Norm, Normed, Residual, Rope, Rule, Rules, Step, module,
};

use super::drafted::{Reader, last_features};
use crate::config::keys::{self, Defaults};
use crate::config::{Config, plan::MlpConfig};
use crate::model::{Drafting, Model, kv_heads, paired};

/// How far the logits of tokens that the head does not know are below the least of the others.
const ABSENT: f32 = 20.0;

/// A head of EAGLE-3.
#[derive(Clone)]
pub(crate) struct Eagle3 {
    fc: Linear,
    layers: Vec<Eagle3Layer>,
    norm: Norm,
    lm_head: Linear,
    embed_tokens: Option<Embedding>,
    /// For each token of the target, its row in `lm_head`, or the row after the last: I32 `[V]`. `None`: all tokens have
    /// rows, in order.
    rows: Option<Array>,
    places: Vec<usize>,
    hidden: i32,
    kv: KvShape,
}
module!(Eagle3 { fc, layers, norm, lm_head, embed_tokens } plain { rows, places, hidden, kv });

#[derive(Clone)]
struct Eagle3Layer {
    input_layernorm: Norm,
    hidden_norm: Norm,
    self_attn: Attention,
    post_attention_layernorm: Norm,
    mlp: FeedForward,
    /// Whether the residual stream begins after `hidden_norm`.
    norm_before_residual: bool,
}
module!(Eagle3Layer { input_layernorm, hidden_norm, self_attn, post_attention_layernorm, mlp }
        plain { norm_before_residual });

/// The rules for the names of published heads: those of the paper's authors and of SpecForge, and those of speculators.
pub(crate) fn names() -> Rules {
    const VOCABULARY: &str = "the vocabulary of an EAGLE-3 head";
    Rules::from([
        Rule::rename("midlayer.*", "layers.0.*"),
        Rule::drop("d2t", VOCABULARY),
        Rule::drop("t2d", VOCABULARY),
    ])
}

impl Eagle3 {
    /// The head that `outer`, its config.json, describes. `published` has the tensors under their published names, and
    /// `tensors` under those of parameters. The parameters have no values.
    ///
    /// # Errors
    /// The head has a form that is not supported, or belongs to another target.
    pub(crate) fn load(
        outer: &Config,
        published: &Checkpoint,
        tensors: &Checkpoint,
        target: &dyn Model,
    ) -> Result<Self> {
        for key in ["norm_before_fc", "fc_norm", "norm_output"] {
            if outer.or(key, false)? {
                return Err(outer.unsupported(format!(
                    "{key} is not supported for heads of EAGLE-3; known: false"
                )));
            }
        }
        outer.ignore(&["target_hidden_size", "t2d", "auto_map"]);
        let nested = outer.object("transformer_layer_config")?;
        let is_speculators = nested.is_some();
        let c = nested.as_ref().unwrap_or(outer);
        let kind: String = c.or("model_type", "llama".to_owned())?;
        if kind != "llama" {
            return Err(c.unsupported(format!(
                "the layer of a head of EAGLE-3 is of model_type {kind:?}; known: llama"
            )));
        }
        let sizes = target.geometry();
        let vocab = c.size("vocab_size", None)?;
        if vocab > sizes.vocab {
            return Err(c.unsupported(format!(
                "the head is for a vocabulary of {vocab} tokens, the model's has {}",
                sizes.vocab
            )));
        }
        let mut config = keys::decoder(c, &Defaults::LLAMA)?;
        keys::attention_bias(c, &mut config)?;
        keys::mlp_bias(c, &mut config)?;
        if config.layers.len() != 1 {
            return Err(c.unsupported(format!(
                "a head of EAGLE-3 with {} layers is not supported; known: 1",
                config.layers.len()
            )));
        }
        let hidden = config.hidden;
        let places = places(outer, is_speculators, sizes.layers().len())?;
        let inputs = sizes.hidden * places.len() as i32;
        if let Some(shape) = tensors.shape("fc.weight")?
            && shape.last() != Some(&inputs)
            && !tensors.contains("fc.scales")
        {
            return Err(outer.unsupported(format!(
                "fc.weight {shape:?} does not read {} places of a residual stream of {} features; the head is of another \
                 model",
                places.len(),
                sizes.hidden
            )));
        }
        let drafted = outer.size("draft_vocab_size", Some(vocab))?;
        let rope = config.ropes[0].as_ref();
        let attention = AttentionConfig {
            hidden: 2 * hidden,
            output: Some(hidden),
            ..config.attention_config()
        };
        let rope = rope.map(|rope| Rope::new(rope, attention.head_dim));
        let mlp: &MlpConfig = &config.feed_forward[0];
        Ok(Self {
            fc: Linear::empty(inputs, hidden, tensors.contains("fc.bias"))?,
            layers: vec![Eagle3Layer {
                input_layernorm: config.norm()?,
                hidden_norm: config.norm()?,
                self_attn: Attention::empty(&attention, rope.transpose()?)?,
                post_attention_layernorm: config.norm()?,
                mlp: config.mlp(mlp)?,
                norm_before_residual: outer.or("norm_before_residual", is_speculators)?,
            }],
            norm: config.norm()?,
            lm_head: Linear::empty(hidden, drafted, false)?,
            embed_tokens: match tensors.contains("embed_tokens.weight") {
                true => Some(Embedding::empty(vocab, hidden)?),
                false if hidden == sizes.hidden => None,
                false => {
                    return Err(outer.unsupported(format!(
                        "the head has {hidden} features, the model {}, and the head has no embed_tokens",
                        sizes.hidden
                    )));
                }
            },
            rows: vocabulary(outer, published, [drafted, vocab, sizes.vocab])?,
            places,
            hidden,
            kv: kv_heads(attention.kv_heads, attention.head_dim),
        })
    }
}

impl Eagle3Layer {
    fn forward(
        &self,
        embedded: &Array,
        before: &Array,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let embedded = self.input_layernorm.forward(embedded)?;
        let normed = self.hidden_norm.forward(before)?;
        let y = concat(&[&embedded, &normed], -1)?;
        let y = self.self_attn.forward(&y, state, step)?;
        let x = match self.norm_before_residual {
            true => normed,
            false => before.clone(),
        };
        let normed = Normed::new(Residual::new(x, y), &self.post_attention_layernorm);
        let y = self.mlp.forward(&normed)?;
        Residual::new(normed.sum()?.clone(), y).sum()
    }
}

/// The places that a head reads. Its config names the layers whose outputs they are, or, in the format of speculators,
/// the layers whose inputs they are. Without names they are the inputs of layers 2, n / 2 and n - 3 of n.
fn places(c: &Config, is_speculators: bool, layers: usize) -> Result<Vec<usize>> {
    const KEY: &str = "eagle_aux_hidden_state_layer_ids";
    let inside = c.object("eagle_config")?;
    if let Some(inside) = &inside
        && !inside.or("use_aux_hidden_state", true)?
    {
        return Err(inside.unsupported(
            "use_aux_hidden_state false is not supported for heads of EAGLE-3; known: true",
        ));
    }
    let given = match &inside {
        Some(inside) => inside.opt::<Vec<usize>>(KEY)?,
        None => None,
    };
    let given = given.or(c.opt::<Vec<usize>>(KEY)?);
    let given = given.or(c.opt::<Vec<usize>>("aux_hidden_state_layer_ids")?);
    match given {
        Some(ids) if ids.is_empty() || ids.len() > 16 || ids.iter().any(|&id| id > layers) => {
            Err(c.error(format!(
                "{KEY} must be 1 to 16 of the model's {layers} layers, found {ids:?}"
            )))
        }
        Some(ids) if is_speculators => Ok(ids),
        Some(ids) => Ok(ids.iter().map(|id| id + 1).collect()),
        None if layers >= 4 => Ok(vec![2, layers / 2, layers - 3]),
        None => Err(c.unsupported(format!(
            "a head of EAGLE-3 that does not name its layers ({KEY}) reads a model of at least 4 layers; the model has \
             {layers}"
        ))),
    }
}

/// For each token of the target, its row among the `drafted` ones, if they are not the same. The head is for `vocab` tokens,
/// and the target has `all`.
fn vocabulary(
    c: &Config,
    published: &Checkpoint,
    [drafted, vocab, all]: [i32; 3],
) -> Result<Option<Array>> {
    match published.array("d2t")? {
        Some(offsets) => rows(c, &offsets, drafted, all).map(Some),
        None if drafted < vocab => Err(c.error(format!(
            "draft_vocab_size {drafted} is less than vocab_size {vocab}, and the tensor d2t is missing"
        ))),
        None if drafted == all => Ok(None),
        None => rows(c, &zeros(&[drafted], DType::I64)?, drafted, all).map(Some),
    }
}

/// For each of the target's `vocab` tokens, its row among the `drafted` ones: row i stands for token i + `offsets[i]`.
fn rows(c: &Config, offsets: &Array, drafted: i32, vocab: i32) -> Result<Array> {
    if offsets.shape() != [drafted] {
        return Err(c.error(format!(
            "d2t must have draft_vocab_size {drafted} elements, found {:?}",
            offsets.shape()
        )));
    }
    let offsets: Vec<i64> = offsets.astype(DType::I64)?.to_vec()?;
    let mut rows = vec![drafted; vocab as usize];
    for (row, offset) in offsets.into_iter().enumerate() {
        let token = (row as i64).checked_add(offset);
        let place = token.and_then(|token| usize::try_from(token).ok());
        let Some(place) = place.and_then(|place| rows.get_mut(place)) else {
            return Err(c.error(format!(
                "d2t[{row}] is {offset}, and token {row} + {offset} is none of the model's {vocab}"
            )));
        };
        *place = row as i32;
    }
    Array::from_slice(&rows, &[vocab])
}

impl Reader for Eagle3 {
    fn duplicate(&self) -> Box<dyn Reader> {
        Box::new(self.clone())
    }

    fn reads(&self) -> Option<&[usize]> {
        Some(&self.places)
    }

    fn states(&self) -> (KvShape, Vec<LayerKind>) {
        (self.kv, vec![LayerKind::Full, last_features(self.hidden)])
    }

    fn manner(&self) -> Drafting {
        Drafting::Chain
    }

    fn follow(
        &self,
        target: &dyn Model,
        first: usize,
        tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let features = match features {
            Some(features) => self.features(features)?,
            None => {
                let dtype = target.embeddings(tokens)?.dtype();
                zeros(&[1, step.tokens() as i32, self.hidden], dtype)?
            }
        };
        let (tokens, before) = paired(tokens, &features, first + 1, step)?;
        self.draft(target, first, &tokens, &before, step)
    }

    fn draft(
        &self,
        target: &dyn Model,
        first: usize,
        tokens: &Array,
        before: &Array,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        step.at_previous_position(|step| self.predict(target, first, tokens, before, step))
    }

    fn reads_pairs(&self) -> bool {
        true
    }

    fn features(&self, input: &Array) -> Result<Array> {
        self.fc.forward(input)
    }

    fn predict(
        &self,
        target: &dyn Model,
        first: usize,
        next: &Array,
        before: &Array,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let embedded = match &self.embed_tokens {
            Some(own) => own.forward(next)?,
            None => target.embeddings(next)?,
        };
        let embedded = embedded.astype(before.dtype())?;
        self.layers[0].forward(&embedded, before, first, step)
    }

    /// All logits, also if only the `first` are asked for: the head has its own choice of frequent tokens.
    fn logits(&self, _: &dyn Model, features: &Array, _first: Option<i32>) -> Result<Array> {
        let logits = self.lm_head.forward(&self.norm.forward(features)?)?;
        let Some(rows) = &self.rows else {
            return Ok(logits);
        };
        // A finite number, so that a grammar which allows no other token still has one to choose.
        let absent = logits.min(-1, true)?.subtract(ABSENT)?;
        concat(&[&logits, &absent], -1)?.take(rows, -1)
    }
}

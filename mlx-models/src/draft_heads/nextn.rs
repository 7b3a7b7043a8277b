//! [`NextN`]: heads for multi-token prediction that are published as extra layers after the model's
//! last layer (DeepSeek-V3, arXiv:2412.19437, §2.2). The first head makes all drafts, because
//! published models have only one.

use mlx_core::ops::concat;
use mlx_core::{Array, Result};
use mlx_nn::{Embedding, KvShape, LayerKind, Linear, Module, Norm, Rule, Rules, Step, module};

use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Config, Source, keys};
use crate::decoders::causal_lm::{DecoderLayer, Predict};
use crate::decoders::pre_norm::PreNormLayer;
use crate::draft_heads::mtp::NORM_OFFSET;

/// The most heads that a checkpoint may have: more than any published one.
const MAX_HEADS: usize = 8;

/// All heads of a model. Head i, counted from 0, predicts the token i + 2 positions ahead.
#[derive(Clone)]
pub struct NextN {
    layers: Vec<NextNHead>,
    /// The KV cache of a head's layer.
    kind: LayerKind,
    kv: KvShape,
}
module!(NextN { layers } plain { kind, kv });

/// One head: norms of both inputs, a projection that joins them, a layer of the decoder, and optionally an embedding, a
/// final norm and an output head.
#[derive(Clone, Module)]
struct NextNHead {
    enorm: Norm,
    hnorm: Norm,
    eh_proj: Linear,
    embed_tokens: Option<Embedding>,
    shared_head: Option<SharedHead>,
    // The layer's parameters have no prefix of their own: `mtp.layers.0.self_attn`, not
    // `mtp.layers.0.layer.self_attn`.
    #[module(flat)]
    layer: PreNormLayer,
}

#[derive(Clone)]
struct SharedHead {
    norm: Norm,
    head: Option<Linear>,
}
module!(SharedHead { norm, head });

impl NextN {
    /// The heads of a checkpoint, if it has tensors of some. Their parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub(crate) fn of(source: &Source<'_>, config: &DecoderConfig) -> Result<Option<Self>> {
        let keys = ["num_nextn_predict_layers", "num_mtp_layers", NORM_OFFSET];
        source.config.ignore(&keys);
        let is_there = |head: &usize| source.has(&format!("mtp.layers.{head}."));
        let layers = (0..MAX_HEADS).take_while(is_there);
        let layers = layers.map(|head| NextNHead::new(source, config, head));
        let layers: Vec<NextNHead> = layers.collect::<Result<_>>()?;
        Ok((!layers.is_empty()).then_some(Self {
            layers,
            kind: kind(config),
            kv: config.kv(),
        }))
    }
}

impl NextNHead {
    fn new(source: &Source<'_>, config: &DecoderConfig, head: usize) -> Result<Self> {
        let has = |part: &str| source.has(&format!("mtp.layers.{head}.{part}."));
        let experts = has("mlp.switch_mlp");
        let fits = |mlp: &&MlpConfig| matches!(mlp, MlpConfig::Experts(_)) == experts;
        let mlp = config
            .feed_forward
            .iter()
            .rfind(fits)
            .unwrap_or(&config.feed_forward[0]);
        let rope = config.ropes.last();
        let hidden = config.hidden;
        let embed_tokens = match has("embed_tokens") {
            true => Some(Embedding::empty(config.vocab, hidden)?),
            false => None,
        };
        let shared_head = match has("shared_head") {
            true => Some(SharedHead {
                norm: config.norm()?,
                head: match has("shared_head.head") {
                    true => Some(Linear::empty(hidden, config.vocab, false)?),
                    false => None,
                },
            }),
            false => None,
        };
        Ok(Self {
            enorm: config.norm()?,
            hnorm: config.norm()?,
            eh_proj: Linear::empty(2 * hidden, hidden, false)?,
            embed_tokens,
            shared_head,
            layer: PreNormLayer::with(config, kind(config), mlp, rope.and_then(Option::as_ref))?,
        })
    }
}

/// The kind of the KV cache of a head's layer: that of the decoder's last layer.
fn kind(config: &DecoderConfig) -> LayerKind {
    config.layers.last().copied().unwrap_or(LayerKind::Full)
}

impl Predict for NextN {
    /// The head has an output head of its own.
    const IS_TRAINED: bool = false;

    fn kv(&self) -> Option<(LayerKind, KvShape)> {
        let keeps_all = matches!(self.kind, LayerKind::Full | LayerKind::Latent);
        let has_norm = self.layers.first()?.shared_head.is_some();
        (keeps_all && has_norm).then_some((self.kind, self.kv))
    }

    fn embed(&self, tokens: &Array) -> Result<Option<Array>> {
        let own = self
            .layers
            .first()
            .and_then(|head| head.embed_tokens.as_ref());
        own.map(|own| own.forward(tokens)).transpose()
    }

    fn leave(&self, features: &Array) -> Result<Array> {
        match self
            .layers
            .first()
            .and_then(|head| head.shared_head.as_ref())
        {
            Some(shared) => shared.norm.forward(features),
            None => Ok(features.clone()),
        }
    }

    fn output(&self) -> Option<&Linear> {
        self.layers.first()?.shared_head.as_ref()?.head.as_ref()
    }

    fn forward(
        &self,
        embedded: &Array,
        before: &Array,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let head = &self.layers[0];
        let mut embedded = embedded.clone();
        if step.begins() {
            // The embedding at position 0 is zero, as in the programs that serve these models.
            let is_later = step.positions().greater(0)?.expand_dims(-1)?;
            embedded = is_later.select(&embedded, 0.0f32)?;
        }
        let inputs = [head.enorm.forward(&embedded)?, head.hnorm.forward(before)?];
        let x = head.eh_proj.forward(&concat(&inputs, -1)?)?;
        head.layer.forward(x.into(), state, step)?.sum()
    }
}

/// The rules for the names of the heads in files, which are layers after the model's last layer.
///
/// # Errors
/// The number of layers in the config is invalid.
pub(crate) fn names(c: &Config, layers: i32) -> Result<Rules> {
    let n = keys::n_layers(c, Some(layers))?;
    let rules = (0..MAX_HEADS).map(|head| {
        let published = format!("model.layers.{}.*", n + head);
        Rule::rename(&published, &format!("mtp.layers.{head}.*"))
    });
    Ok(Rules::from(rules))
}

/// The rules that drop the tensors of such heads.
///
/// # Errors
/// The number of layers in the config is invalid.
pub(crate) fn dropped(c: &Config, layers: i32) -> Result<Rules> {
    const REASON: &str = "of a head for multi-token prediction";
    let n = keys::n_layers(c, Some(layers))?;
    let rules =
        (n..n + MAX_HEADS).map(|layer| Rule::drop(&format!("model.layers.{layer}.*"), REASON));
    Ok(Rules::from(rules))
}

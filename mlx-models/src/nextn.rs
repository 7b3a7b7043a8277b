//! [`NextN`]: heads for multi-token prediction that are published as layers behind the last (DeepSeek-V3, arXiv:2412.19437,
//! §2.2). They are loaded, adapted, quantised and written; nothing drafts with them yet.

use mlx_core::Result;
use mlx_nn::{
    Embedding, LayerKind, Linear, Module, Norm, Path, Rule, Rules, Visit, VisitMut, module,
};

use crate::causal::Predict;
use crate::config::Config;
use crate::decoder::{DecoderConfig, Layer, MlpConfig};
use crate::family;
use crate::mtp::NORM_OFFSET;
use crate::registry::Source;

/// The most heads that a checkpoint may have: more than any published one.
const MAX_HEADS: usize = 8;

/// All heads of a model. Head i predicts the token i + 2 places further.
#[derive(Clone)]
pub struct NextN {
    layers: Vec<Head>,
}
module!(NextN { layers });

/// One head: norms of both inputs, a projection of both to one, a layer of the decoder, and what stands before and behind it.
#[derive(Clone)]
struct Head {
    enorm: Norm,
    hnorm: Norm,
    eh_proj: Linear,
    embed_tokens: Option<Embedding>,
    shared_head: Option<SharedHead>,
    layer: Layer,
}

#[derive(Clone)]
struct SharedHead {
    norm: Norm,
    head: Option<Linear>,
}
module!(SharedHead { norm, head });

impl NextN {
    /// The heads of a checkpoint that has tensors of some, without values.
    ///
    /// # Errors
    /// Sizes do not fit.
    pub(crate) fn of(source: &Source<'_>, config: &DecoderConfig) -> Result<Option<Self>> {
        let keys = ["num_nextn_predict_layers", "num_mtp_layers", NORM_OFFSET];
        source.config.ignore(&keys);
        let is_there = |head: &usize| source.has(&format!("mtp.layers.{head}."));
        let layers = (0..MAX_HEADS).take_while(is_there);
        let layers = layers.map(|head| Head::new(source, config, head));
        let layers: Vec<Head> = layers.collect::<Result<_>>()?;
        Ok((!layers.is_empty()).then_some(Self { layers }))
    }
}

impl Head {
    fn new(source: &Source<'_>, config: &DecoderConfig, head: usize) -> Result<Self> {
        let has = |part: &str| source.has(&format!("mtp.layers.{head}.{part}."));
        let experts = has("mlp.switch_mlp");
        let fits = |mlp: &&MlpConfig| matches!(mlp, MlpConfig::Experts(_)) == experts;
        let mlp = config.mlps.iter().rfind(fits).unwrap_or(&config.mlps[0]);
        let (kind, rope) = (config.layers.last(), config.ropes.last());
        let kind = kind.copied().unwrap_or(LayerKind::Full);
        let hidden = config.hidden;
        let embed_tokens = match has("embed_tokens") {
            true => Some(Embedding::new(config.vocab, hidden)?),
            false => None,
        };
        let shared_head = match has("shared_head") {
            true => Some(SharedHead {
                norm: config.norm()?,
                head: match has("shared_head.head") {
                    true => Some(Linear::new(hidden, config.vocab, false)?),
                    false => None,
                },
            }),
            false => None,
        };
        Ok(Self {
            enorm: config.norm()?,
            hnorm: config.norm()?,
            eh_proj: Linear::new(2 * hidden, hidden, false)?,
            embed_tokens,
            shared_head,
            layer: Layer::with(config, kind, mlp, rope.and_then(Option::as_ref))?,
        })
    }
}

// The layer's parts stand beside the others: `mtp.layers.0.self_attn`, not `mtp.layers.0.layer.self_attn`.
impl Module for Head {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("enorm", |path| self.enorm.visit(path, v))?;
        path.scoped("hnorm", |path| self.hnorm.visit(path, v))?;
        path.scoped("eh_proj", |path| self.eh_proj.visit(path, v))?;
        path.scoped("embed_tokens", |path| self.embed_tokens.visit(path, v))?;
        path.scoped("shared_head", |path| self.shared_head.visit(path, v))?;
        self.layer.visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("enorm", |path| self.enorm.visit_mut(path, v))?;
        path.scoped("hnorm", |path| self.hnorm.visit_mut(path, v))?;
        path.scoped("eh_proj", |path| self.eh_proj.visit_mut(path, v))?;
        path.scoped("embed_tokens", |path| self.embed_tokens.visit_mut(path, v))?;
        path.scoped("shared_head", |path| self.shared_head.visit_mut(path, v))?;
        self.layer.visit_mut(path, v)
    }
}

impl Predict for NextN {}

/// The heads' names: those of layers behind the last.
///
/// # Errors
/// The config has no number of layers.
pub(crate) fn names(c: &Config, layers: i32) -> Result<Rules> {
    let n = family::n_layers(c, Some(layers))?;
    let rules = (0..MAX_HEADS).map(|head| {
        let published = format!("model.layers.{}.*", n + head);
        Rule::rename(&published, &format!("mtp.layers.{head}.*"))
    });
    Ok(Rules::from(rules))
}

/// Rules that leave such heads out.
///
/// # Errors
/// The config has no number of layers.
pub(crate) fn dropped(c: &Config, layers: i32) -> Result<Rules> {
    const REASON: &str = "of a head for multi-token prediction";
    let n = family::n_layers(c, Some(layers))?;
    let rules =
        (n..n + MAX_HEADS).map(|layer| Rule::drop(&format!("model.layers.{layer}.*"), REASON));
    Ok(Rules::from(rules))
}

//! [`shard`]: the visitor that cuts a module's layers.

use std::fmt::Write as _;

use mlx_core::{Error, ErrorKind, Result};

use super::Ranks;
use crate::attention::Attention;
use crate::cache::LayerKind;
use crate::compressed::CompressedAttention;
use crate::delta::GatedDeltaNet;
use crate::delta_channels::ChannelDelta;
use crate::embedding::Embedding;
use crate::experts::{ExpertsMlp, StackedExperts};
use crate::fused::{FusedAttention, FusedMlp};
use crate::latent::LatentAttention;
use crate::lightning::Lightning;
use crate::linear::Linear;
use crate::mamba::Mamba;
use crate::mlp::{GatedMlp, PlainMlp};
use crate::module::{Module, Path, VisitMut};
use crate::projected_scan::ProjectedScan;
use crate::rwkv::Rwkv7;
use crate::selective::SelectiveScan;
use crate::short_conv::ShortConv;

/// What a layer divides among ranks: `many` things, each `many / few` of which share one of `few`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub many: i32,
    pub few: i32,
    /// Whether several ranks can hold the same one of `few`.
    pub copies: bool,
}

impl Heads {
    /// Whether `n` ranks can divide them.
    pub(crate) fn fit(self, n: i32) -> bool {
        self.many % n == 0 && (self.few % n == 0 || self.copies && n % self.few == 0)
    }
}

/// A layer that ranks can share.
pub(crate) trait Shard {
    /// What must divide evenly; `None` if any number of ranks will do.
    fn heads(&self) -> Option<Heads>;

    /// The state of a row, if it is one that the layer divides.
    fn state(&self) -> Option<LayerKind> {
        None
    }

    /// Leaves this rank's part of the layer. Features inside MLPs are divided in blocks of `unit`.
    fn shard(&mut self, ranks: Ranks, unit: i32) -> Result<()>;
}

/// How a module was divided.
#[derive(Clone, Debug, Default)]
pub struct Sharded {
    /// The states of divided recurrent layers: the whole one, and this rank's.
    pub states: Vec<(LayerKind, LayerKind)>,
    /// The layers that were divided.
    pub layers: usize,
    /// All numbers of ranks, from 2 on, that divide the heads of every layer. Empty if no layer has heads: then any
    /// number works.
    pub counts: Vec<i32>,
}

/// Leaves this rank's part of every layer of `module` that can be divided. The features inside MLPs are divided in blocks
/// of `unit`, the largest group of packed weights.
///
/// ```
/// use mlx_core::Result;
/// use mlx_nn::shard::{Ranks, shard};
/// use mlx_nn::{Activation, GatedMlp};
///
/// # fn main() -> Result<()> {
/// let mut mlp = GatedMlp::empty(8, 32, false, Activation::Silu)?;
/// let sharded = shard(&mut mlp, Ranks::ALONE, 1)?;
/// assert_eq!(sharded.layers, 0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The number of ranks does not divide the heads of a layer; the message names the layers and the numbers that do. No
/// layer can be divided. The module is not changed then.
pub fn shard(module: &mut dyn Module, ranks: Ranks, unit: i32) -> Result<Sharded> {
    if ranks.size == 1 {
        return Ok(Sharded::default());
    }
    let mut survey = Survey::default();
    module.visit_mut(&mut Path::default(), &mut survey)?;
    survey.check(ranks.size)?;
    let mut divider = Divider {
        ranks,
        unit,
        inside: Inside::default(),
        sharded: Sharded {
            counts: survey.counts(),
            ..Sharded::default()
        },
        tied: !survey.has_head,
    };
    module.visit_mut(&mut Path::default(), &mut divider)?;
    Ok(divider.sharded)
}

/// The name of a model's output layer.
const HEAD: &str = "lm_head";
/// The name of its embedding.
const EMBEDDING: &str = "model.embed_tokens";

/// A layer that ranks can share, whatever its type.
fn known(module: &mut dyn Module) -> Option<&mut dyn Shard> {
    macro_rules! any {
        ($($ty:ty),*) => { $(
            if module.is::<$ty>() {
                return module.downcast_mut::<$ty>().map(|layer| layer as &mut dyn Shard);
            }
        )* };
    }
    any!(
        Attention,
        FusedAttention,
        LatentAttention,
        CompressedAttention,
        GatedMlp,
        FusedMlp,
        PlainMlp,
        ExpertsMlp,
        StackedExperts,
        GatedDeltaNet,
        ChannelDelta,
        Mamba,
        ProjectedScan,
        SelectiveScan,
        Lightning,
        Rwkv7,
        ShortConv
    );
    None
}

/// Tells the layers that are parts of a layer that was divided before.
#[derive(Default)]
struct Inside(Option<String>);

impl Inside {
    fn has(&self, path: &Path) -> bool {
        let Some(outer) = &self.0 else {
            return false;
        };
        let rest = path.as_str().strip_prefix(outer.as_str());
        rest.is_some_and(|rest| rest.starts_with('.') || outer.is_empty())
    }

    fn enter(&mut self, path: &Path) {
        self.0 = Some(path.as_str().to_owned());
    }
}

/// What the layers divide.
#[derive(Default)]
struct Survey {
    inside: Inside,
    layers: usize,
    heads: Vec<(String, Heads)>,
    has_head: bool,
}

impl VisitMut for Survey {
    fn module(&mut self, path: &Path, module: &mut dyn Module) -> Result<()> {
        self.has_head |= path.as_str() == HEAD;
        if self.inside.has(path) {
            return Ok(());
        }
        if let Some(layer) = known(module) {
            self.inside.enter(path);
            self.layers += 1;
            let name = path.as_str().to_owned();
            self.heads.extend(layer.heads().map(|heads| (name, heads)));
        }
        Ok(())
    }
}

impl Survey {
    /// The numbers of ranks, from 2 on, that divide all heads.
    fn counts(&self) -> Vec<i32> {
        let most = self.heads.iter().map(|(_, heads)| heads.many).max();
        let works = |&n: &i32| self.heads.iter().all(|(_, heads)| heads.fit(n));
        (2..=most.unwrap_or(0)).filter(works).collect()
    }

    fn check(&self, size: i32) -> Result<()> {
        let unsupported = |message| Err(Error::new(ErrorKind::Unsupported, message));
        if self.layers == 0 {
            let message = "the model has no layer that ranks can share";
            return unsupported(message.to_owned());
        }
        let misfits = self.heads.iter().filter(|(_, heads)| !heads.fit(size));
        let misfits: Vec<_> = misfits.collect();
        let Some((path, heads)) = misfits.first() else {
            return Ok(());
        };
        let works: Vec<String> = self.counts().iter().map(i32::to_string).collect();
        let mut message = format!(
            "{size} ranks cannot share {path}, which has {} heads",
            heads.many
        );
        if heads.few != heads.many {
            let _ = write!(message, " and {} of keys or groups", heads.few);
        }
        if misfits.len() > 1 {
            let _ = write!(message, ", and {} other layers", misfits.len() - 1);
        }
        let _ = match works.is_empty() {
            true => write!(message, "; no number of ranks works for all layers"),
            false => write!(
                message,
                "; numbers of ranks that work: {}",
                works.join(", ")
            ),
        };
        unsupported(message)
    }
}

struct Divider {
    ranks: Ranks,
    unit: i32,
    inside: Inside,
    sharded: Sharded,
    /// Whether the embedding is also the output head, or there is none.
    tied: bool,
}

impl VisitMut for Divider {
    fn module(&mut self, path: &Path, module: &mut dyn Module) -> Result<()> {
        if self.inside.has(path) {
            return Ok(());
        }
        let context = |error: Error| error.context(path.as_str());
        if let Some(layer) = known(module) {
            self.inside.enter(path);
            let whole = layer.state();
            layer.shard(self.ranks, self.unit).map_err(context)?;
            self.sharded.states.extend(whole.zip(layer.state()));
            self.sharded.layers += 1;
        } else if path.as_str() == HEAD
            && let Some(head) = module.downcast_mut::<Linear>()
        {
            head.shard_vocabulary(self.ranks).map_err(context)?;
        } else if self.tied
            && path.as_str() == EMBEDDING
            && let Some(table) = module.downcast_mut::<Embedding>()
        {
            table.shard_vocabulary(self.ranks).map_err(context)?;
        }
        Ok(())
    }
}

//! The sizes of a model's parts on several ranks, before any of it is loaded.

use mlx_core::DType;
use mlx_models::{ModelInfo, Outline, Registry};
use mlx_nn::StateCost;
use mlx_nn::shard::Ranks;

use super::read::{embedded, head_drafts};
use super::{LoadOptions, cache_options, check_caches};
use crate::error::Result;
use crate::text::files::Files;

/// What each of several ranks would hold of a model.
#[derive(Clone, Debug)]
pub struct RanksOutline {
    /// The sizes of each rank's part, in the order of the ranks.
    pub ranks: Vec<RankSizes>,
    /// All numbers of ranks, from 2 on, that divide the heads of every layer. Empty if no layer has heads: then any
    /// number works.
    pub counts: Vec<usize>,
}

/// What a rank would hold of a model.
#[derive(Clone, Debug)]
pub struct RankSizes {
    /// Information about the rank's part: the bytes of its weights, and layers with its heads.
    pub info: ModelInfo,
    /// The cost of each layer's state: bytes of a row and of a position.
    pub costs: Vec<StateCost>,
}

impl RanksOutline {
    /// The parts of a model on `size` ranks, by the sizes in its files. No weight is read, so the model may be larger than
    /// this machine, and no other process is needed. [`LoadOptions::ranks`] has no effect.
    ///
    /// ```
    /// use mlx_infer::{LoadOptions, RanksOutline, default_model_files};
    ///
    /// let outline = RanksOutline::of(&default_model_files(), LoadOptions::default(), 2)?;
    /// assert_eq!(outline.ranks.len(), 2);
    /// assert_eq!(outline.counts, [2, 4]);
    /// # Ok::<(), mlx_infer::Error>(())
    /// ```
    ///
    /// # Errors
    /// The number of ranks does not divide the model; the message has the numbers that do. The files are not those of a
    /// model.
    pub fn of(files: &Files, options: LoadOptions, size: usize) -> Result<Self> {
        let mut outline = Self {
            ranks: Vec::with_capacity(size),
            counts: Vec::new(),
        };
        for rank in 0..size {
            let ranks = Ranks::new(rank, size)?;
            let found = part(files, &options, ranks)?;
            check_caches(&found.info, &cache_options(&options))?;
            let costs = (found.info.geometry).costs(found.info.dtype, &cache_options(&options))?;
            outline.counts = found.counts;
            outline.ranks.push(RankSizes {
                info: found.info,
                costs,
            });
        }
        Ok(outline)
    }
}

/// The facts that the files of a model have, by the names and the sizes of their tensors. `None` for files that are not
/// those of a model, and for a model in GGUF, whose tensors would be read.
#[cfg(feature = "serve")]
pub(crate) fn info_in_files(files: &Files) -> Option<ModelInfo> {
    let whole = Ranks::new(0, 1).ok()?;
    let is_read = files.architecture().is_some();
    let outline = (!is_read).then(|| part(files, &LoadOptions::default(), whole).ok());
    outline.flatten().map(|outline| outline.info)
}

fn part(files: &Files, options: &LoadOptions, ranks: Ranks) -> Result<Outline> {
    let of_models = |dtype: Option<DType>| mlx_models::LoadOptions {
        dtype,
        drafts: head_drafts(options),
        expand: options.expand,
        ranks,
        ..mlx_models::LoadOptions::default()
    };
    let registry = Registry::default();
    match files.path() {
        Some(path) => Ok(registry.outline(path, of_models(options.dtype))?),
        None => {
            let (config, weights, dtype) = embedded(files, options.dtype)?;
            let options = of_models(dtype);
            Ok(registry.outline_from(&files.describe(), config, vec![weights], options)?)
        }
    }
}

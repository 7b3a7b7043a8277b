//! Limits on what is computed at a time.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::work_sizes::WorkSizes;

/// Limits on concurrent work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most rows of a step.
    pub rows: usize,
    /// Most tokens of a step: one of each row that decodes, and chunks of prompts in order of
    /// arrival, at least one token of them. Without a number, a CPU takes 4 and two and a half for
    /// each row that decodes, and a GPU 2,048. While no row decodes, prompts are computed in longer
    /// passes. On CUDA prompts have passes of their own, of 8,192 tokens without a number.
    pub step_tokens: Option<usize>,
    /// Most bytes of the rows' caches, in pages of 64 positions. A page that several rows share counts
    /// once. Without a number, a CPU has no limit, and on a GPU with memory of its own the limit is
    /// what is free beside the weights, stored prefixes and an eighth for work in progress. There the
    /// pages are reserved at the start.
    pub cache_bytes: Option<usize>,
    /// For models that share a GPU with memory of its own: the most bytes of weights of all models that are
    /// in memory at a time, those of this one among them. The model then takes by default as much of the
    /// memory for pages as of these weights, and prefixes at most a quarter of that. `None`: no other model
    /// is in memory.
    pub models_bytes: Option<usize>,
    /// Most bytes of stored prefixes, in addition to `cache_bytes`; 0 stores none. Pages that rows hold
    /// do not count. A prompt that
    /// starts with a stored prefix is computed in different parts, which may change the last bits
    /// of its logits, as another `prefill_chunk` may.
    pub prefix_bytes: usize,
    /// Most bytes of prefixes in the memory of the host, for GPUs with memory of their own; 0 stores
    /// none. Prefixes are copied there when they are stored, and come back as copies when their pages
    /// were dropped. It needs `prefix_bytes`.
    pub prefix_host_bytes: usize,
    /// A folder in which prefixes are stored too, so that they survive a restart; `None` stores
    /// none. It needs `prefix_bytes`.
    pub prefix_dir: Option<PrefixDirLimits>,
}

/// The folder of prefixes in files. Several processes may share it.
///
/// Files are of one model: of the bytes of its weights, its config, its adapter and the options of
/// its caches. A damaged or foreign file is a warning, and the prefix is computed. A folder that
/// cannot be written turns itself off with a warning. Prompts that start with a prefix from a file
/// are computed in different parts, as with [`Limits::prefix_bytes`].
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{GenerateOptions, Limits, LoadedModel, PrefixDirLimits, Request};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().to_owned();
/// let limits = Limits {
///     prefix_dir: Some(PrefixDirLimits { path, bytes: 1 << 30 }),
///     ..Limits::default()
/// };
/// let story = "The red fox wanders through the forest and looks for something to eat.";
/// let options = GenerateOptions { max_tokens: 4, ..Default::default() };
/// for expects_files in [false, true] {
///     let model = LoadedModel::load_default()?;
///     let request = Request::new(story, options.clone());
///     let results = model.batch_generate(vec![request], &limits)?;
///     assert_eq!(results[0].metrics.cached_tokens > 0, expects_files);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixDirLimits {
    /// The folder. It is made if it does not exist.
    pub path: PathBuf,
    /// Most bytes of its files, of all models together. The least recently used files are removed.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows: 64,
            step_tokens: None,
            cache_bytes: None,
            models_bytes: None,
            prefix_bytes: 512 << 20,
            prefix_host_bytes: 0,
            prefix_dir: None,
        }
    }
}

impl Limits {
    /// Most tokens of prompts in a pass in which `rows` rows decode and `prompts` requests wait for
    /// their first token. Where more requests wait than decode, a pass is as long as if all of them
    /// decoded: a short pass would keep many waiting for the sake of few.
    pub(crate) fn prompt_tokens(&self, rows: usize, prompts: usize) -> usize {
        let sizes = WorkSizes::of_device();
        let step = self.step_tokens.unwrap_or(sizes.step(rows.max(prompts)));
        match rows {
            0 => step.max(sizes.prompts),
            rows => step.saturating_sub(rows).max(1),
        }
    }

    /// Checks all limits.
    ///
    /// # Errors
    /// A limit is 0, or prefixes are to be in files or in the memory of the host, but not in pages.
    pub fn check(&self) -> Result<()> {
        if self.prefix_host_bytes > 0 && self.prefix_bytes == 0 {
            return Err(Error::argument(format!(
                "prefix_host_bytes needs prefix_bytes above 0: prefixes come back into pages; given {} and 0",
                self.prefix_host_bytes
            )));
        }
        if let Some(dir) = &self.prefix_dir {
            if self.prefix_bytes == 0 {
                let message = "prefix_dir needs prefix_bytes above 0: files are read into memory";
                return Err(Error::argument(message));
            }
            if dir.bytes == 0 || dir.path.as_os_str().is_empty() {
                let message = format!(
                    "prefix_dir needs a folder and bytes above 0, given {:?} and {}",
                    dir.path.display().to_string(),
                    dir.bytes
                );
                return Err(Error::argument(message));
            }
        }
        for (name, value) in [("rows", Some(self.rows)), ("step_tokens", self.step_tokens)] {
            if value == Some(0) {
                return Err(Error::argument(format!(
                    "{name} must be at least 1, given 0"
                )));
            }
        }
        Ok(())
    }
}

//! Loading and initialising models of a registry's families.

use std::path::Path;

use mlx_core::Result;
use serde_json::Value;

use super::Registry;
use crate::{LoadOptions, Loaded, Weights, assemble, weights};

impl Registry {
    /// [`load`](fn@crate::load) with these families.
    ///
    /// # Errors
    /// The same as those of [`load`](fn@crate::load).
    pub fn load(&self, dir: &Path, options: LoadOptions<'_>) -> Result<Loaded> {
        let config = weights::read_json(dir, "config.json")?;
        let label = dir.display().to_string();
        self.load_from(&label, config, weights::open(dir)?, options)
    }

    /// [`load_from`](crate::load_from) with these families.
    ///
    /// # Errors
    /// The same as those of [`load_from`](crate::load_from).
    pub fn load_from(
        &self,
        label: &str,
        config: Value,
        weights: impl Into<Weights>,
        mut options: LoadOptions<'_>,
    ) -> Result<Loaded> {
        let mut assembled = assemble::filled(self, label, config, weights.into(), &mut options)?;
        if options.drafts {
            assembled.model.enable_drafts();
        }
        assembled.finish(label)
    }

    /// [`initialised`](fn@crate::initialised) with these families.
    ///
    /// # Errors
    /// The same as those of [`initialised`](fn@crate::initialised).
    pub fn initialised(&self, label: &str, config: Value, seed: u64) -> Result<Loaded> {
        let mut assembled = assemble::empty(self, label, config)?;
        let config = &assembled.config;
        if assembled.quantization.default_scheme().is_some() || assembled.stored.is_some() {
            return Err(config
                .unsupported("quantised weights cannot be initialised: train dense ones first"));
        }
        let deviation = config.positive("initializer_range", Some(0.02))? as f32;
        mlx_nn::init::initialise(assembled.model.as_mut(), seed, deviation)?;
        assembled.finish(label)
    }
}

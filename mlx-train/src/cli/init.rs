//! `mlx-train init`.

use std::path::PathBuf;

use clap::Args;
use mlx_infer::console;
use mlx_infer::convert::NewCheckpoint;
use mlx_train::{Error, ErrorKind, Result, export};

use super::source;

/// The model that gets random weights.
#[derive(Args)]
pub(super) struct Init {
    /// Folder, or model of the hub, with config.json, and tokenizer and templates, which are copied
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    model: PathBuf,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Output folder; the weights are f32
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Init {
    pub(super) fn run(self) -> Result<()> {
        let files = source::files(Some(&self.model))?;
        let new = NewCheckpoint::begin(&files, &self.out, false)?;
        let config = files.json("config.json")?.ok_or_else(|| {
            let message = format!("{} has no config.json", files.describe());
            Error::new(ErrorKind::Missing, message)
        })?;
        let loaded = mlx_models::initialised(&files.describe(), config, self.seed)?;
        export::model(new, &files, loaded.model.as_ref(), false)?;
        console::note(&format!("{} numbers drawn", loaded.info.n_parameters));
        Ok(())
    }
}

//! `mlx-train fuse`.

use std::path::PathBuf;

use clap::Args;
use mlx_infer::console;
use mlx_infer::convert::NewCheckpoint;
use mlx_models::adapter;
use mlx_nn::lora;
use mlx_train::{Result, export};

use super::source;

/// The model and the adapter that are merged.
#[derive(Args)]
pub(super) struct Fuse {
    /// Checkpoint folder, or the name of a model on the hub [default: the built-in model]
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    model: Option<PathBuf>,
    /// Adapter folder
    #[arg(long, value_name = "DIR")]
    adapter: PathBuf,
    /// Output folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Convert floating-point weights: f32, bf16 or f16 [default: as stored]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<String>,
    /// Expand blocks of GGUF that have no exact packed form (Q2_K, Q6_K)
    #[arg(long)]
    expand: bool,
    /// Unpack a quantised model
    #[arg(long)]
    dequantize: bool,
}

impl Fuse {
    pub(super) fn run(self) -> Result<()> {
        let files = source::files(self.model.as_deref())?;
        let new = NewCheckpoint::begin(&files, &self.out, false)?;
        let mut loaded = source::load(&files, self.dtype.as_deref(), self.expand)?;
        let adapter = adapter::load(&self.adapter, loaded.model.as_mut())?;
        let layers = lora::fuse(loaded.model.as_mut(), self.dequantize)?;
        if self.dequantize {
            mlx_nn::quantize::dequantize(loaded.model.as_mut(), None)?;
        }
        export::model(new, &files, loaded.model.as_ref(), self.dequantize)?;
        console::note(&match adapter.kind {
            adapter::AdapterKind::Full => format!("{} parameters replaced", adapter.names.len()),
            _ => format!("{layers} layers fused"),
        });
        Ok(())
    }
}

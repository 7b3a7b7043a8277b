//! The model that a command works on.

use std::path::Path;

use mlx_core::{DType, Safetensors};
use mlx_infer::{Files, hub};
use mlx_models::{LoadOptions, Loaded};
use mlx_train::{Error, ErrorKind, Result};

/// The files of a folder, of a model of the hub, or of the built-in model.
pub(super) fn files(model: Option<&Path>) -> Result<Files> {
    match model {
        Some(model) => hub::open(model),
        None => Ok(mlx_infer::default_model_files()),
    }
}

/// The dtype of this name.
pub(super) fn dtype(name: &str) -> Result<DType> {
    match name {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::BF16),
        "f16" => Ok(DType::F16),
        other => {
            let message = format!("dtype {other:?} is not known; known: f32, bf16, f16");
            Err(Error::new(ErrorKind::Argument, message))
        }
    }
}

/// Loads the model from its files. `expand` allows dense weights for blocks of GGUF without a packed form.
pub(super) fn load(files: &Files, dtype_name: Option<&str>, expand: bool) -> Result<Loaded> {
    let options = LoadOptions {
        dtype: dtype_name.map(dtype).transpose()?,
        expand,
        ..LoadOptions::default()
    };
    if let Some(path) = files.path() {
        return Ok(mlx_models::load(path, options)?);
    }
    let missing = |name: &str| {
        let message = format!("{} has no {name}", files.describe());
        Error::new(ErrorKind::Missing, message)
    };
    let config = files.json("config.json")?;
    let config = config.ok_or_else(|| missing("config.json"))?;
    let bytes = files.read("model.safetensors")?;
    let bytes = bytes.ok_or_else(|| missing("model.safetensors"))?;
    let weights = Safetensors::from_cow(bytes)?;
    Ok(mlx_models::load_from(
        &files.describe(),
        config,
        vec![weights],
        options,
    )?)
}

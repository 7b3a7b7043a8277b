//! Writing a model as a checkpoint folder.

use mlx_core::DType;
use mlx_infer::Files;
use mlx_infer::convert::NewCheckpoint;
use mlx_models::Model;
use mlx_nn::{Param, Visit};
use serde_json::Value;

use crate::error::{Result, format};

/// Writes `model`, which was loaded from `files`, as the checkpoint `new`: weights, `config.json`,
/// and unchanged copies of the other files (tokenizer, templates, generation settings). `dense` is
/// whether a quantised model has been unpacked. Of a multimodal checkpoint only the text model is
/// written.
///
/// # Errors
/// A file cannot be written; then no folder is left.
pub fn model(new: NewCheckpoint<'_>, files: &Files, model: &dyn Model, dense: bool) -> Result<()> {
    let config = match files {
        Files::Gguf { path, .. } => Some(mlx_models::open_checkpoint(path)?.0),
        files => files.json("config.json")?,
    };
    let Some(Value::Object(mut config)) = config else {
        return Err(format(format!("{} has no config.json", files.describe())));
    };
    if dense {
        config.shift_remove("quantization");
        config.shift_remove("quantization_config");
    }
    // The weights may have been converted.
    let mut dtype = FirstDtype(None);
    model.visit(&mut mlx_nn::Path::default(), &mut dtype)?;
    for key in ["dtype", "torch_dtype"] {
        if let (Some(value), Some(dtype)) = (config.get_mut(key), dtype.0) {
            *value = dtype.into();
        }
    }
    new.write(|dir| {
        mlx_models::convert::save(model, &config, dir)?;
        Ok(())
    })
}

/// The name in config.json for the dtype of the first floating-point weight.
struct FirstDtype(Option<&'static str>);

impl Visit for FirstDtype {
    fn param(&mut self, _path: &mlx_nn::Path, param: &Param) -> mlx_core::Result<()> {
        let name = match param.value().dtype() {
            DType::F32 => Some("float32"),
            DType::F16 => Some("float16"),
            DType::BF16 => Some("bfloat16"),
            _ => None,
        };
        self.0 = self.0.or(name);
        Ok(())
    }
}

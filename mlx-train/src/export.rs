//! Writing a model as a checkpoint folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mlx_core::Array;
use mlx_core::safetensors::save;
use mlx_infer::Files;
use mlx_models::Model;
use mlx_nn::{Param, Visit};
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result, argument, format, io};

/// Whether a file belongs to a checkpoint beside its weights and config.json: tokenizers, templates,
/// generation settings.
fn is_copied(name: &str) -> bool {
    let ends = [".json", ".jinja", ".model", ".txt", ".tiktoken"];
    let inside = match name.rsplit_once('/') {
        None => !name.starts_with('.'),
        Some((folder, _)) => folder == "additional_chat_templates",
    };
    inside
        && ends.iter().any(|end| name.ends_with(end))
        && name != "config.json"
        && !name.ends_with(".safetensors.index.json")
}

/// Writes `model`, which was made from `files`: `model.safetensors`, `config.json`, and the other
/// files (tokenizer, templates, generation settings) as they are. `dense` says that a quantised
/// model has been unpacked.
///
/// # Errors
/// The folder holds a model already, the checkpoint is multimodal, or a file cannot be written.
pub fn model(dir: &Path, files: &Files, model: &dyn Model, dense: bool) -> Result<()> {
    struct Collect(Vec<(String, Array)>);
    impl Visit for Collect {
        fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> mlx_core::Result<()> {
            self.0
                .push((path.as_str().to_owned(), param.value().clone()));
            Ok(())
        }
    }
    let config = files.json("config.json")?;
    let Some(Value::Object(mut config)) = config else {
        return Err(format(format!("{} has no config.json", files.describe())));
    };
    if config.contains_key("text_config") {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: a multimodal checkpoint cannot be written: only its text model is loaded",
                files.describe()
            ),
        ));
    }
    if dense {
        config.shift_remove("quantization");
        config.shift_remove("quantization_config");
    }
    let weights = dir.join("model.safetensors");
    if dir.join("config.json").exists() || weights.exists() {
        return Err(argument(format!("{} holds a model already", dir.display())));
    }
    fs::create_dir_all(dir).map_err(|error| io(dir, error))?;
    for name in files.list()? {
        if !is_copied(&name) {
            continue;
        }
        let Some(bytes) = files.read(&name)? else {
            continue;
        };
        let path = dir.join(&name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| io(parent, error))?;
        }
        fs::write(&path, bytes).map_err(|error| io(&path, error))?;
    }
    let mut params = Collect(Vec::new());
    model.visit(&mut mlx_nn::Path::default(), &mut params)?;
    let pairs = params.0.iter().map(|(name, array)| (name.as_str(), array));
    let format_mlx = BTreeMap::from([("format".to_owned(), "mlx".to_owned())]);
    save(&weights, pairs, &format_mlx)?;
    // Last: without it the folder is no checkpoint.
    let text = serde_json::to_string_pretty(&Value::Object(config))
        .map_err(|error| format(error.to_string()))?;
    let path = dir.join("config.json");
    fs::write(&path, text + "\n").map_err(|error| io(&path, error))
}

//! Formats of other programs in published files: 8-bit floats with one scale per block, and packed
//! integers. A weight stays packed if one of MLX's schemes represents it exactly; all others become
//! dense.

use std::collections::HashMap;

use mlx_core::{DType, Result, Safetensors, Scheme};
use mlx_nn::{Checkpoint, Decoded};

use crate::config::Config;

mod fp8;
mod int4;

/// The format in which the weights of a checkpoint are stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Format {
    /// How they are packed in memory; `None` if they are dense there.
    pub scheme: Option<Scheme>,
    /// A description of the format and of its form in memory, for users.
    pub described: String,
}

/// How stored weights are read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// The dtype of weights that become dense, if not BF16.
    pub dtype: Option<DType>,
    /// 8-bit weights become dense even if a scheme represents them exactly.
    pub dense: bool,
    /// Blocks of a model in GGUF become dense if no scheme represents them exactly.
    pub expand: bool,
}

/// The methods of `quantization_config` that are read, here or with the tensors of gpt-oss and BitNet.
const METHODS: &str = "bitnet, compressed-tensors, fp8, mxfp4";

/// Converts the weights from the format that `quantization_config` names into a format of this
/// crate. The checkpoint is unchanged if the config names no such format.
///
/// # Errors
/// The format is not supported, or the tensors are not those of the format.
pub(crate) fn decoded(
    checkpoint: Checkpoint,
    config: &Config,
    reading: Reading,
) -> Result<(Checkpoint, Option<Format>)> {
    match decode(&StoredTensors::of(checkpoint.files()), config, reading)? {
        None => Ok((checkpoint, None)),
        Some((decoded, format)) => Ok((checkpoint.with_decoded(decoded)?, Some(format))),
    }
}

/// The tensors that replace those of the format that `quantization_config` names. `None` if it
/// names no such format.
///
/// # Errors
/// The same as those of [`decoded`].
pub(crate) fn decode(
    tensors: &StoredTensors<'_>,
    config: &Config,
    reading: Reading,
) -> Result<Option<(Decoded, Format)>> {
    let Some(entry) = settings(config)? else {
        return Ok(None);
    };
    let method: Option<String> = entry.opt("quant_method")?;
    let found = match method.as_deref() {
        None | Some("mxfp4" | "bitnet") => return Ok(None),
        Some("fp8") => {
            let block = fp8::block(&entry)?;
            fp8::decoded(tensors, &entry, block, reading)?
        }
        Some("compressed-tensors") => match entry.or("format", String::new())?.as_str() {
            "float-quantized" | "naive-quantized" => {
                let block = fp8::block_of_groups(&entry)?;
                fp8::decoded(tensors, &entry, block, reading)?
            }
            "pack-quantized" => int4::decoded(tensors, &entry)?,
            other => {
                return Err(entry.unsupported(format!(
                    "format {other:?} of compressed-tensors is not supported; known: float-quantized, naive-quantized, \
                     pack-quantized"
                )));
            }
        },
        Some(other) => {
            return Err(entry.unsupported(format!(
                "quant_method {other:?} is not supported; known: {METHODS}, and checkpoints quantised by MLX (affine, mxfp4, mxfp8, \
                 nvfp4)"
            )));
        }
    };
    Ok(Some(found))
}

/// [`decode`] for a head for multi-token prediction in files of its own. Where the config names no
/// format, 8-bit floats are recognised by their scales.
///
/// # Errors
/// The same as those of [`decoded`].
pub(crate) fn decode_head(
    tensors: &StoredTensors<'_>,
    config: &Config,
    reading: Reading,
) -> Result<Option<(Decoded, Format)>> {
    match decode(tensors, config, reading)? {
        None if tensors.have_fp8()? => fp8::decoded(tensors, config, None, reading).map(Some),
        found => Ok(found),
    }
}

/// `quantization_config` as another program writes it. `None` if the config has MLX's own settings.
/// A multimodal config may have the key outside or inside its `text_config`.
fn settings(config: &Config) -> Result<Option<Config>> {
    const KEY: &str = "quantization_config";
    if config.value("quantization").is_some() {
        return Ok(None);
    }
    match (config.object(KEY)?, config.object("text_config")?) {
        (Some(entry), _) => Ok(Some(entry)),
        (None, Some(text)) => text.object(KEY),
        (None, None) => Ok(None),
    }
}

/// The tensors of files, by their published names.
pub(crate) struct StoredTensors<'c> {
    files: HashMap<&'c str, &'c Safetensors>,
}

impl<'c> StoredTensors<'c> {
    /// All tensors of these files.
    pub(crate) fn of(files: impl Iterator<Item = &'c Safetensors>) -> Self {
        let files = files.flat_map(|file| file.names().map(move |name| (name, file)));
        Self {
            files: files.collect(),
        }
    }

    /// Removes the tensors for whose names `fits` is false.
    pub(crate) fn only(mut self, fits: impl Fn(&str) -> bool) -> Self {
        self.files.retain(|name, _| fits(name));
        self
    }

    fn have_fp8(&self) -> Result<bool> {
        for (name, file) in &self.files {
            if file.stored_dtype(name)? == "F8_E4M3" {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The names, in order.
    fn names(&self) -> Vec<&'c str> {
        let mut names: Vec<&str> = self.files.keys().copied().collect();
        names.sort_unstable();
        names
    }

    /// The dtype, as the file names it, and the shape of a tensor. `None` if the files have no such
    /// tensor.
    fn info(&self, name: &str) -> Result<Option<(&'static str, &'c [i32])>> {
        let Some(file) = self.files.get(name) else {
            return Ok(None);
        };
        Ok(Some((file.stored_dtype(name)?, file.info(name)?.1)))
    }

    fn array(&self, name: &str) -> Result<mlx_core::Array> {
        self.files[name].array(name)
    }
}

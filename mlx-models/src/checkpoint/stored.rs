//! Formats of other programs in published files: 8-bit floats with scales of blocks, and packed integers. A weight that
//! one of our schemes represents exactly stays packed; all others become dense.

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
    /// 8-bit weights become dense in any case.
    pub dense: bool,
}

/// The methods of `quantization_config` that are read, here or with the tensors of gpt-oss and BitNet.
const METHODS: &str = "bitnet, compressed-tensors, fp8, mxfp4";

/// Brings the weights of a format that `quantization_config` names into a format of this crate. Without such a format the checkpoint is as it
/// was.
///
/// # Errors
/// A format that is not supported, or tensors that are not those of the format.
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

/// The tensors that stand for those of a format that `quantization_config` names, if it names one.
///
/// # Errors
/// As [`decoded`].
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

/// The same for a head for multi-token prediction in files of its own. Its 8-bit floats say by their scales what they are, where no config does.
///
/// # Errors
/// As [`decoded`].
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

/// The settings of another program, unless there are settings of MLX. A multimodal config may have them outside or
/// inside.
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

    /// Without those whose names do not fit.
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

    /// The dtype in the file's words, and the shape, if there is such a tensor.
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

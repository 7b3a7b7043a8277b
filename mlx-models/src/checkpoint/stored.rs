//! Formats of other programs in published files: floats of 8 and 4 bits, and integers. A weight
//! stays packed if one of MLX's schemes represents it exactly; all others become dense.

use std::collections::BTreeMap;

use mlx_core::{DType, Result, Scheme};
use mlx_nn::{Checkpoint, Decoded, Rules};
use serde_json::Value;

use crate::config::Config;
use crate::config::quantization::Quantization;

mod awq;
mod bitsandbytes;
mod compressed;
mod fp4;
mod fp8;
mod gptq;
mod integers;
mod modelopt;
mod tensors;
mod torchao;

pub(crate) use fp4::{GLOBAL_SCALE, LARGEST_NVFP4};
pub(crate) use tensors::StoredTensors;

/// The format in which the weights of a checkpoint are stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Format {
    /// The scheme of most packed weights in memory; `None` if all are dense there.
    pub scheme: Option<Scheme>,
    /// The schemes of packed weights, by the published paths of their modules.
    pub schemes: BTreeMap<String, Scheme>,
    /// A description of the format and of its form in memory, for users.
    pub described: String,
    /// Whether the weights were rounded to few numbers, so that they are not quantised again.
    pub is_rounded: bool,
}

impl Format {
    /// A format in which the modules of these published paths have these schemes.
    fn new(schemes: BTreeMap<String, Scheme>, described: String, is_rounded: bool) -> Self {
        let mut counts: Vec<(Scheme, usize)> = Vec::new();
        for &scheme in schemes.values() {
            match counts.iter_mut().find(|(own, _)| *own == scheme) {
                Some((_, n)) => *n += 1,
                None => counts.push((scheme, 1)),
            }
        }
        let most = counts.iter().map(|&(_, n)| n).max();
        let scheme = counts.into_iter().find(|&(_, n)| Some(n) == most);
        Self {
            scheme: scheme.map(|(scheme, _)| scheme),
            schemes,
            described,
            is_rounded,
        }
    }

    /// The schemes of the model's weights. `rules` map published paths.
    ///
    /// # Errors
    /// Weights that are parts of one parameter have different schemes.
    pub(crate) fn quantization(&self, rules: &Rules) -> Result<Quantization> {
        Quantization::of_modules(self.scheme, &self.schemes, rules)
    }

    /// This format and another one in the same files.
    fn and(self, other: Self) -> Self {
        let mut schemes = self.schemes;
        schemes.extend(other.schemes);
        let described = format!("{}; {}", self.described, other.described);
        Self::new(schemes, described, self.is_rounded || other.is_rounded)
    }
}

/// Adds the tensors of one more format in the same files.
fn join(decoded: &mut Decoded, format: &mut Option<Format>, own: Decoded, found: Format) {
    decoded.made.extend(own.made);
    decoded.hidden.extend(own.hidden);
    *format = Some(match format.take() {
        Some(format) => format.and(found),
        None => found,
    });
}

/// Refuses files without a packed matrix, if the config names a method whose packed matrices are
/// all weights of linear layers.
fn require_some(tensors: &StoredTensors<'_>, config: &Config, decoded: &Decoded) -> Result<()> {
    let Some(entry) = settings(config)? else {
        return Ok(());
    };
    let endings = [
        ("awq", "qweight"),
        ("gptq", "qweight"),
        ("bitsandbytes", "weight of U8 or I8"),
        ("torchao", "_weight_qdata"),
    ];
    let method = entry.or("quant_method", String::new())?;
    let named = endings.iter().find(|(name, _)| method.starts_with(name));
    match named {
        Some((_, ending)) if decoded.made.is_empty() && !tensors.is_empty() => Err(entry.error(
            format!("{method} packs matrices, but no tensor is a {ending}"),
        )),
        _ => Ok(()),
    }
}

/// The columns that share a scale: a positive number, or `None` for -1, a whole row.
fn group_size(entry: &Config, key: &str) -> Result<Option<i32>> {
    match entry.opt::<i32>(key)? {
        Some(-1) => Ok(None),
        _ => entry.size(key, None).map(Some),
    }
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
const METHODS: &str =
    "awq, bitnet, bitsandbytes, compressed-tensors, fp8, gptq, modelopt, mxfp4, mxfp8, torchao";

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
    let tensors = StoredTensors::of(checkpoint.files());
    match decode(&tensors, config, reading)? {
        None => {
            let factors = fp4::of_mlx(&tensors, config)?;
            match factors.made.is_empty() {
                true => Ok((checkpoint, None)),
                false => Ok((checkpoint.with_decoded(factors)?, None)),
            }
        }
        Some((decoded, format)) => {
            require_some(&tensors, config, &decoded)?;
            Ok((checkpoint.with_decoded(decoded)?, Some(format)))
        }
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
        Some("fp8" | "mxfp8") => {
            let block = fp8::block(&entry)?;
            let (decoded, format) = fp8::decoded(tensors, &entry, block, reading)?;
            match fp4::decoded(tensors, &entry, &fp4::DEEPSEEK)? {
                Some((mut of_experts, found)) => {
                    let mut all = Some(found);
                    join(&mut of_experts, &mut all, decoded, format);
                    (of_experts, all.expect("there is a format"))
                }
                None => (decoded, format),
            }
        }
        Some("compressed-tensors") => compressed::decoded(tensors, &entry, reading)?,
        Some("awq") => awq::decoded(tensors, &entry, reading)?,
        Some("gptq") => gptq::decoded(tensors, &entry, reading)?,
        Some("bitsandbytes") => bitsandbytes::decoded(tensors, &entry, reading)?,
        Some("torchao") => torchao::decoded(tensors, &entry, reading)?,
        Some(method) if method.starts_with("modelopt") => {
            modelopt::decoded(tensors, &entry, reading)?
        }
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

/// Adds the settings of a file `hf_quant_config.json` (ModelOpt) to a config that has none.
///
/// # Errors
/// The settings are no object.
pub(crate) fn add_settings(config: &mut Config, beside: Value) -> Result<()> {
    let has = |config: &Config| {
        let keys = ["quantization", "quantization_config"];
        keys.iter().any(|key| config.value(key).is_some())
    };
    let inside = config.object("text_config")?;
    if has(config) || inside.as_ref().is_some_and(has) {
        return Ok(());
    }
    let Value::Object(mut settings) = beside else {
        return Err(config.error("hf_quant_config.json is no JSON object"));
    };
    settings.insert("quant_method".to_owned(), "modelopt".into());
    config.set("quantization_config", Value::Object(settings));
    Ok(())
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

//! Converting checkpoints: weights are quantised, unpacked or cast, as in `mlx_lm.convert`.
//!
//! The result loads here and in mlx-lm: `model.safetensors` or shards with an index, and a `config.json` whose
//! `quantization` describes the packing of each weight. Tensors are read, changed and written one after the other, so
//! memory never holds the whole model.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use mlx_core::safetensors::{NonFinite, Vanishing};
use mlx_core::{DType, Error, ErrorKind, Result, Scheme};
use mlx_nn::{Patterns, Piece};
use serde_json::{Map, Value};

use crate::checkpoint::{Weights, ternary};
use crate::config::text::rename_text;
use crate::model::Model;
use crate::registry::assemble::{Assembled, filled};
use crate::registry::{LoadOptions, Registry};

mod config;
mod gguf;
mod recipe;
mod shards;
mod tensors;

use config::{
    describe, describes_packing, remove_quantization, settings, untie, write_head,
    write_quantization,
};
use shards::Shards;
use tensors::{Matrices, Schemes, WrittenTensors};

pub use crate::checkpoint::weights::non_finite;
pub use crate::config::Bits;
pub use gguf::{GgufType, convert_to_gguf};
pub use recipe::{Mixed, Recipe};
pub use shards::SHARD_BYTES;

/// What is done with the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// The weights stay as they are, dense or packed.
    #[default]
    Keep,
    /// The weights of a dense model are quantised.
    Quantize(Recipe),
    /// The weights of a quantised model are unpacked.
    Dequantize,
}

/// How [`convert`] converts.
#[derive(Clone, Copy, Debug)]
pub struct ConvertOptions {
    /// What is done with the weights.
    pub packing: Packing,
    /// The dtype of weights that are not packed. The default is that of config.json (`torch_dtype`, or `dtype` of its
    /// `text_config`), and without that key the stored dtype. mlx-lm has the same rule.
    pub dtype: Option<DType>,
    /// Whether blocks of a model in GGUF become dense if no packed form is exact ([`LoadOptions::expand`]).
    pub expand: bool,
    /// The largest size of a file in bytes, unless one tensor is larger.
    pub shard_bytes: u64,
}

impl Default for ConvertOptions {
    /// Keeps the weights as they are, in files of up to [`SHARD_BYTES`].
    fn default() -> Self {
        Self {
            packing: Packing::Keep,
            dtype: None,
            expand: false,
            shard_bytes: SHARD_BYTES,
        }
    }
}

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The names of the files with weights.
    pub files: Vec<String>,
    /// Bytes of all weights.
    pub bytes: u64,
    /// The number of elements of all weights, as if they were dense.
    pub parameters: usize,
    /// The number of packed weights.
    pub packed: usize,
    /// Matrices that quantising left dense, because the length of their rows is not a multiple of the group size.
    pub left_dense: Vec<String>,
    /// NaN and infinite elements of the weights that were read.
    pub non_finite: Option<NonFinite>,
    /// The tensors that lose small numbers in the new dtype: of the elements that are not zero,
    /// more than 1 % become zero. Elements that packing rounds to zero do not count. Tensors in
    /// formats of other programs are left out.
    pub vanishing: Vec<Vanishing>,
}

/// Called with the bytes written so far and their total. An error that it returns stops the conversion.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> Result<()>;

/// Converts a checkpoint, given by its parsed config.json and its opened files. Writes
/// `config.json` and safetensors files into the folder `dir`, which should be empty. `label` names
/// the source in errors.
///
/// Of a multimodal checkpoint only the text model is written, under the names that mlx-lm reads.
///
/// # Errors
/// The checkpoint does not load, it is to be quantised but already is, it is to be unpacked but is
/// not quantised, a file cannot be written, or `progress` returns an error. After an error `dir`
/// holds no checkpoint.
pub fn convert(
    label: &str,
    config: Value,
    weights: impl Into<Weights>,
    dir: &Path,
    options: &ConvertOptions,
    progress: Progress<'_>,
) -> Result<Converted> {
    convert_with(
        &Registry::default(),
        label,
        config,
        weights,
        dir,
        options,
        progress,
    )
}

/// [`convert`] with the families of `registry`.
///
/// # Errors
/// The same as those of [`convert`].
pub fn convert_with(
    registry: &Registry,
    label: &str,
    config: Value,
    weights: impl Into<Weights>,
    dir: &Path,
    options: &ConvertOptions,
    progress: Progress<'_>,
) -> Result<Converted> {
    let refuse = |message: String| {
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("{label}: {message}"),
        ))
    };
    let Value::Object(mut object) = config.clone() else {
        return Err(Error::new(
            ErrorKind::Format,
            format!("{label}: config.json: expected a JSON object"),
        ));
    };
    rename_text(&mut object);
    let weights = weights.into();
    let non_finite = non_finite(&weights)?;
    let dtype = options.dtype.or_else(|| config_dtype(&object));
    let mut load = LoadOptions {
        dtype,
        unpack: options.packing != Packing::Keep,
        expand: options.expand,
        ..LoadOptions::default()
    };
    let (assembled, checkpoint) = filled(registry, label, config, weights, &mut load)?;
    let mut vanishing = checkpoint.vanishing(assembled.model.as_ref())?;
    vanishing.retain(|found| 100 * found.zeros > found.nonzero);
    drop(checkpoint);
    let Assembled {
        mut model,
        model_type,
        family,
        nested,
        quantization,
        stored,
        ..
    } = assembled;
    if nested && !family.wrappers.contains(&model_type) {
        return refuse(format!(
            "a model_type {model_type:?} with a text_config is not supported; known: {}",
            registry.wrappers().join(", ")
        ));
    }
    let prefix = prefix(nested);
    // Refuses matrices that are not floating point.
    Matrices::of(model.as_ref())?;
    let mut left_dense = Vec::new();
    let rounded = stored.as_ref().filter(|stored| stored.is_rounded);
    if let (Packing::Quantize(_), None, Some(stored)) =
        (&options.packing, quantization.default_scheme(), rounded)
    {
        return refuse(format!(
            "already quantised ({}), and packing it again would round twice; convert the original, \
             or unpack this one first",
            stored.described
        ));
    }
    match (&options.packing, quantization.default_scheme()) {
        (Packing::Keep, scheme) => {
            if quantization.is_ternary() {
                ternary::written(&mut object);
            }
            // Weights that were read from another program's format are written in MLX's.
            if stored.is_some() {
                mlx_nn::quantize::fold(model.as_mut())?;
                remove_quantization(&mut object);
                if let Some(scheme) = scheme {
                    let entry = schemes_of(scheme, model.as_ref(), prefix)?;
                    write_quantization(&mut object, entry);
                }
            }
        }
        (Packing::Quantize(_), Some(scheme)) => {
            return refuse(format!(
                "already quantised ({scheme}), and packing it again would round twice; convert the \
                 original, or unpack this one first"
            ));
        }
        (Packing::Dequantize, Some(_)) if quantization.is_ternary() => {
            return refuse(
                "inputs of ternary matrices are rounded, which unpacked ones would not tell"
                    .to_owned(),
            );
        }
        (Packing::Dequantize, None) if stored.is_none() => {
            return refuse("not quantised".to_owned());
        }
        (Packing::Dequantize, _) => {
            match stored.is_some() {
                true => mlx_nn::quantize::dequantize_in_f32(model.as_mut(), dtype)?,
                false => mlx_nn::quantize::dequantize(model.as_mut(), dtype)?,
            }
            remove_quantization(&mut object);
        }
        (Packing::Quantize(recipe), None) => {
            let Chosen {
                schemes,
                entries,
                left_dense: dense,
            } = chosen(family.bits, model.as_ref(), prefix, recipe)?;
            left_dense = dense;
            if schemes.is_empty() {
                let groups = recipe.scheme().group_size;
                return refuse(format!(
                    "no weight has rows of a whole number of groups of {groups}; choose a smaller group size"
                ));
            }
            mlx_nn::quantize::quantize(model.as_mut(), |path, _| schemes.get(path).copied())?;
            let mut entry = settings(recipe.scheme());
            for (path, scheme) in entries {
                if recipe.names(scheme) {
                    entry.insert(path, Value::Object(settings(scheme)));
                }
            }
            remove_quantization(&mut object);
            write_quantization(&mut object, entry);
        }
    }
    describe(&mut object, options.dtype, nested);
    let tensors = WrittenTensors::of(model.as_ref(), prefix, family.head_file)?;
    untie(&mut object, &tensors, registry);
    write_head(&mut object, &tensors);
    // The model's handles would keep each tensor in memory after it was evaluated and written.
    drop(model);
    let converted = write(tensors, &object, dir, options.shard_bytes, progress)?;
    Ok(Converted {
        left_dense,
        non_finite,
        vanishing,
        ..converted
    })
}

/// The schemes that a recipe gives to the matrices of a model.
struct Chosen {
    /// By the paths of the parameters.
    schemes: BTreeMap<String, Scheme>,
    /// By the names in config.json.
    entries: BTreeMap<String, Scheme>,
    /// Names of the matrices that stay dense because of the length of their rows.
    left_dense: Vec<String>,
}

fn chosen(
    bits: &[(&'static str, Bits)],
    model: &dyn Model,
    prefix: &str,
    recipe: &Recipe,
) -> Result<Chosen> {
    let bits: Vec<(Patterns, Bits)> = bits
        .iter()
        .map(|&(path, bits)| (Patterns::new([path]), bits))
        .collect();
    let inverse = model.names().checkpoint();
    let layers = model.geometry().layers().len();
    let mut found = Chosen {
        schemes: BTreeMap::new(),
        entries: BTreeMap::new(),
        left_dense: Vec::new(),
    };
    for (path, inputs) in Matrices::of(model)? {
        let bits = bits.iter().find(|(paths, _)| paths.matches(&path));
        let bits = bits.map(|(_, bits)| *bits);
        // Weights that are parts of one matrix in the files have one scheme.
        let pieces = inverse.modules(&path).unwrap_or_default();
        let written = pieces.first().map_or(path.as_str(), Piece::name);
        let name = format!("{prefix}{written}");
        match recipe.scheme_of(written, inputs, layers, bits) {
            Some(scheme) => {
                found.schemes.insert(path, scheme);
                found.entries.insert(name, scheme);
            }
            None if bits == Some(Bits::Dense) || found.left_dense.contains(&name) => {}
            None => found.left_dense.push(name),
        }
    }
    Ok(found)
}

/// The schemes that [`convert`] gives to the matrices of a dense model with this `model_type`, by the paths of their
/// parameters.
///
/// # Errors
/// A matrix is not floating point.
pub fn schemes(
    model: &dyn Model,
    model_type: &str,
    recipe: Recipe,
) -> Result<BTreeMap<String, Scheme>> {
    let registry = Registry::default();
    let bits = registry
        .family(model_type)
        .map_or(&[][..], |family| family.bits);
    Ok(chosen(bits, model, "", &recipe)?.schemes)
}

/// The `quantization` of a model whose weights are packed by `usual`, and some by other schemes.
fn schemes_of(usual: Scheme, model: &dyn Model, prefix: &str) -> Result<Map<String, Value>> {
    let inverse = model.names().checkpoint();
    let mut entry = settings(usual);
    for (path, own) in Schemes::of(model)? {
        for piece in inverse.modules(&path).unwrap_or_default() {
            if own != usual {
                entry.insert(
                    format!("{prefix}{}", piece.name()),
                    Value::Object(settings(own)),
                );
            }
        }
    }
    Ok(entry)
}

/// Writes a model as `config.json` and safetensors files of the folder `dir`, which should be
/// empty. `config` is the config.json of the checkpoint from which the model was loaded. Its
/// `quantization` must describe how the weights are packed now; a missing one, or the
/// `quantization_config` of another program, is replaced. If `config` has a dtype, the written dtype is that of the weights.
///
/// # Errors
/// An evaluation fails or a file cannot be written.
pub fn save(model: &dyn Model, config: &Map<String, Value>, dir: &Path) -> Result<Converted> {
    let mut config = config.clone();
    rename_text(&mut config);
    let nested = config.contains_key("text_config");
    let registry = Registry::default();
    let model_type = config.get("model_type").and_then(Value::as_str);
    let family = model_type.and_then(|name| registry.family(name));
    let head_file = family.and_then(|family| family.head_file);
    let tensors = WrittenTensors::of(model, prefix(nested), head_file)?;
    let dtypes = tensors.arrays.iter().map(|(_, array)| array.dtype());
    describe(
        &mut config,
        dtypes.into_iter().find(|dtype| dtype.is_float()),
        nested,
    );
    if !describes_packing(&config) {
        remove_quantization(&mut config);
        if let Some((_, usual)) = Schemes::of(model)?.first() {
            let entry = schemes_of(*usual, model, prefix(nested))?;
            write_quantization(&mut config, entry);
        }
    }
    untie(&mut config, &tensors, &registry);
    write_head(&mut config, &tensors);
    write(tensors, &config, dir, SHARD_BYTES, &mut |_, _| Ok(()))
}

/// The prefix that mlx-lm gives the text model of a multimodal checkpoint.
fn prefix(nested: bool) -> &'static str {
    if nested { "language_model." } else { "" }
}

fn write(
    tensors: WrittenTensors<'_>,
    config: &Map<String, Value>,
    dir: &Path,
    shard_bytes: u64,
    progress: Progress<'_>,
) -> Result<Converted> {
    let mut shards = Shards::new(tensors.arrays, shard_bytes);
    let index = (shards.names().len() > 1).then(|| shards.index(tensors.parameters));
    if let Some((file, head)) = tensors.head {
        shards.beside(file, head);
    }
    let converted = Converted {
        files: shards.names(),
        bytes: shards.bytes,
        parameters: tensors.parameters,
        packed: tensors.packed,
        left_dense: Vec::new(),
        non_finite: None,
        vanishing: Vec::new(),
    };
    if let Some(index) = index {
        write_json(dir, "model.safetensors.index.json", &index)?;
    }
    shards.write(dir, &mut |done| progress(done, converted.bytes))?;
    // Written last, because a folder without config.json does not count as a checkpoint.
    write_json(dir, "config.json", config)?;
    Ok(converted)
}

/// The dtype that a config names, by mlx-lm's rule.
fn config_dtype(config: &Map<String, Value>) -> Option<DType> {
    let own = config.get("torch_dtype").filter(|value| !value.is_null());
    let name = own.or_else(|| config.get("text_config")?.get("dtype"))?;
    match name.as_str()? {
        "float32" => Some(DType::F32),
        "bfloat16" => Some(DType::BF16),
        "float16" => Some(DType::F16),
        _ => None,
    }
}

fn write_json(dir: &Path, name: &str, value: &impl serde::Serialize) -> Result<()> {
    let path = dir.join(name);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&path)?;
        file.write_all(serde_json::to_string_pretty(value)?.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    };
    write().map_err(|error| Error::from(error).context(path.display()))
}

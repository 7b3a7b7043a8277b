//! A prompt cache as a safetensors file.
//!
//! Tensors: `tokens`, U32 `[n]`, and the arrays of each layer's state ([`LayerKind::row_parts`]), as `layers.N.PART`.
//! Keys and values are `[1, K, slots, D]`; in a quantised cache U32 `[1, K, slots, words]`, the format of
//! [`mlx_core::fast::pack`]. A layer that keeps all positions has a slot for each token, in order. A layer with a
//! window has token p in slot `p % window` when the window is full. A recurrent layer has the parts of its kind, and
//! `layers.N.PART@LEN` for each shorter length that was recorded.
//!
//! The metadata identify the file format and the model: another model cannot read the file. Format version 2 added
//! recurrent layers; files without them are written as version 1, which older programs can read.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::{Array, DType, Safetensors, safetensors};
use mlx_models::Geometry;
use mlx_nn::{KvShape, LayerKind, ModelCache, Param, RowPart, Visit};

use super::{Embedding, PromptCache, PromptState};
use crate::error::{Error, Result};
use crate::model::frontend::{check_ids, check_positions};
use crate::model::{LoadedModel, is_recurrent};

const FORMAT: &str = "mlx-infer prompt cache";
/// Known format versions: without recurrent layers, and with them.
const VERSIONS: [&str; 2] = ["1", "2"];
/// The tensor with the ids.
pub(crate) const TOKENS: &str = "tokens";
/// The key with the lengths that recurrent layers recorded.
pub(crate) const RECORDED: &str = "recorded";
/// The key with the largest number of positions that the row has ever had.
pub(crate) const WRITTEN: &str = "written";
/// The key that tells whether positions are embedded as in texts beyond the original context.
pub(crate) const BEYOND_SWITCH: &str = "beyond_switch";
/// The key for the storage format of keys and values, and its value if they are not quantised.
const KV: &str = "kv_quantization";
const UNQUANTIZED: &str = "the model's dtype";
/// How many numbers of each parameter go into the fingerprint.
const SAMPLE: usize = 64;

/// Writes a prompt cache of this model to a safetensors file, which appears whole or not at all.
///
/// # Errors
/// The cache is of another model, or the file cannot be written.
pub(super) fn save(model: &LoadedModel, cache: &PromptCache, path: &Path) -> Result<()> {
    cache.check(model)?;
    let tokens = Array::from_slice(&cache.ids, &[cache.ids.len() as i32])?;
    let state = &cache.state.cache;
    let mut metadata = fingerprint(model)?;
    let recorded = state.recorded(0);
    let version = VERSIONS[usize::from(model.is_recurrent())];
    for (key, value) in [
        ("format", FORMAT.to_owned()),
        ("format_version", version.to_owned()),
        (WRITTEN, state.written(0).to_string()),
        (
            BEYOND_SWITCH,
            (cache.state.embedding != Embedding::Short).to_string(),
        ),
    ] {
        metadata.insert(key.to_owned(), value);
    }
    if !recorded.is_empty() {
        let lengths: Vec<String> = recorded.iter().map(usize::to_string).collect();
        metadata.insert(RECORDED.to_owned(), lengths.join(" "));
    }
    let mut arrays = arrays(model, &cache.state)?;
    arrays.push((TOKENS.to_owned(), tokens));
    let arrays = arrays.iter().map(|(name, array)| (name.as_str(), array));
    Ok(safetensors::save(path, arrays, &metadata)?)
}

/// The arrays of a state with their names in files: those of its full length, then those of the
/// lengths that recurrent layers have recorded.
///
/// # Errors
/// Keys and values cannot be packed as the options say.
pub(crate) fn arrays(model: &LoadedModel, state: &PromptState) -> Result<Vec<(String, Array)>> {
    let cache = &state.cache;
    let recorded = cache.recorded(0);
    let names = array_names(model, &recorded)?;
    let now = cache.to_row(0)?;
    let before = recorded.iter().flat_map(|&len| {
        let layers = cache.recorded_state(0, len);
        layers.into_iter().flat_map(|(_, arrays)| arrays)
    });
    let names = names.into_iter().map(|(name, _)| name);
    Ok(names.zip(now.into_iter().chain(before.cloned())).collect())
}

/// The names of the arrays that hold all positions in order.
///
/// # Errors
/// Keys and values cannot be packed as the options say.
pub(crate) fn growing(model: &LoadedModel) -> Result<Vec<String>> {
    let (layers, kinds) = (model.row_parts()?, model.model().states());
    let options = model.cache_options();
    let mut names = Vec::new();
    for (layer, parts) in layers.iter().enumerate() {
        if kinds[layer].window(&options).is_none() {
            let growing = parts.iter().filter(|part| part.grows);
            names.extend(growing.map(|part| array_name(layer, part.name)));
        }
    }
    Ok(names)
}

fn array_name(layer: usize, part: &str) -> String {
    format!("layers.{layer}.{part}")
}

/// Reads a file that [`save`] wrote, with the same model.
///
/// # Errors
/// It cannot be read, is not such a file or is damaged, or was written with another model; the message names the
/// difference.
pub(super) fn load(model: &LoadedModel, path: &Path) -> Result<PromptCache> {
    read(model, path).map_err(|error| {
        let (file, message) = (path.display().to_string(), error.to_string());
        match message.contains(&file) {
            true => error,
            false => Error::new(error.kind(), format!("{file}: {message}")),
        }
    })
}

fn read(model: &LoadedModel, path: &Path) -> Result<PromptCache> {
    let file = Safetensors::open(path)?;
    let given = |key: &str| file.metadata().get(key).map(String::as_str);
    if given("format") != Some(FORMAT) {
        return Err(Error::format(format!(
            "this is no prompt cache: its metadata have no format {FORMAT:?}"
        )));
    }
    let version = given("format_version").unwrap_or("");
    if !VERSIONS.contains(&version) {
        return Err(Error::unsupported(format!(
            "format_version {version:?} is not known to this version; known: {}",
            VERSIONS.join(", ")
        )));
    }
    for (key, own) in fingerprint(model)? {
        // Files that were written before caches could be quantised do not have this key.
        let absent = if key == KV { UNQUANTIZED } else { "missing" };
        let other = given(&key).unwrap_or(absent);
        if key == KV && other != own {
            return Err(Error::argument(format!(
                "its keys and values are kept in {other}, those of this model in {own}"
            )));
        }
        if other != own {
            return Err(Error::argument(format!(
                "written with another model: its {key} is {other}, that of this one {own}"
            )));
        }
    }
    let (ids, state) = state(model, &file)?;
    Ok(PromptCache {
        state,
        serial: model.serial(),
        ids,
    })
}

/// The tokens of a file and the states after them.
///
/// # Errors
/// The tensors and metadata do not fit the model; that they are of this model is not checked.
pub(crate) fn state(model: &LoadedModel, file: &Safetensors) -> Result<(Vec<u32>, PromptState)> {
    let given = |key: &str| file.metadata().get(key).map(String::as_str);
    let recorded = lengths(given(RECORDED).unwrap_or_default())?;
    let names = array_names(model, &recorded)?;
    if let Some(name) = file
        .names()
        .find(|name| *name != TOKENS && !names.iter().any(|(known, _)| known == name))
    {
        return Err(Error::format(format!("tensor {name:?} is not known")));
    }
    let tokens = file.array(TOKENS)?;
    tokens.dims::<1>()?;
    let ids = tokens.to_vec::<u32>()?;
    check_ids(&ids, model.vocab())?;
    check_positions(ids.len(), model.info().max_positions, "")?;
    let written = given(WRITTEN).and_then(|text| text.parse().ok());
    let written =
        written.ok_or_else(|| Error::format("metadata: written is no number of positions"))?;
    let own = Embedding::of(model, ids.len());
    let embedding = match given(BEYOND_SWITCH) {
        Some("true") if model.model().grows_after().is_some() => Embedding::Own,
        Some("true") => Embedding::Long,
        Some("false") if own == Embedding::Short => own,
        _ => {
            let message = "metadata: beyond_switch is not what it must be for this many tokens";
            return Err(Error::format(message));
        }
    };
    let mut arrays = names
        .iter()
        .map(|(name, part)| read_part(file, name, part))
        .collect::<Result<Vec<_>>>()?
        .into_iter();
    let layers = model.model().states();
    let parts = |kind: &LayerKind| kind.part_names().len();
    let row = arrays
        .by_ref()
        .take(layers.iter().map(parts).sum())
        .collect();
    let malformed = |error: mlx_core::Error| Error::format(error.to_string());
    let mut cache = ModelCache::from_row(layers, model.cache_options(), ids.len(), written, row)
        .map_err(malformed)?;
    for len in recorded {
        let recurrent = layers.iter().filter(|kind| is_recurrent(kind));
        let states = recurrent.map(|kind| arrays.by_ref().take(parts(kind)).collect());
        let states = states.collect();
        cache.restore(0, len, states).map_err(malformed)?;
    }
    let state = PromptState::share(&cache, 0, ids.len(), embedding)?;
    Ok((ids, state))
}

/// The names and shapes of the arrays of a row: first those of its full length, then those of the lengths that
/// recurrent layers have recorded.
fn array_names(model: &LoadedModel, recorded: &[usize]) -> Result<Vec<(String, RowPart)>> {
    let layers = model.row_parts()?;
    let kinds = model.model().states();
    let mut names = Vec::new();
    let mut add = |suffix: &str, takes: &dyn Fn(&LayerKind) -> bool| {
        for (layer, parts) in layers.iter().enumerate() {
            let parts = parts.iter().filter(|_| takes(&kinds[layer]));
            names.extend(parts.map(|part| {
                let name = array_name(layer, part.name) + suffix;
                (name, part.clone())
            }));
        }
    };
    add("", &|_| true);
    for len in recorded {
        add(&format!("@{len}"), &is_recurrent);
    }
    Ok(names)
}

/// The properties of a model on which a prompt cache depends.
pub(crate) fn fingerprint(model: &LoadedModel) -> Result<BTreeMap<String, String>> {
    let (info, sizes) = (model.info(), model.model().geometry());
    let layers = model.model().states().iter();
    let layers: Vec<String> = layers.map(LayerKind::to_string).collect();
    let context = model.options().context_len;
    let context = context.map_or("unlimited".to_owned(), |n| n.to_string());
    let kv = model.options().kv_quantization;
    let kv = kv.map_or(UNQUANTIZED.to_owned(), |scheme| scheme.to_string());
    let mut digest = Digest(FNV_OFFSET);
    model
        .model()
        .visit(&mut mlx_nn::Path::default(), &mut digest)?;
    Ok([
        ("architecture", info.model_type.clone()),
        ("layers", layers.join(", ")),
        ("kv_heads", of_layers(sizes, |kv| kv.heads)),
        ("head_dim", of_layers(sizes, |kv| kv.key_dim)),
        ("dtype", info.dtype.to_string()),
        ("context_len", context),
        (KV, kv),
        ("weights", format!("{:016x}", digest.0)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into())
}

/// A size of the layers with keys and values. It is written once if all layers have the same.
fn of_layers(geometry: &Geometry, size: impl Fn(&KvShape) -> i32) -> String {
    let mut sizes: Vec<i32> = geometry.kv().iter().flatten().map(size).collect();
    if sizes.windows(2).all(|pair| pair[0] == pair[1]) {
        sizes.truncate(1);
    }
    let sizes: Vec<String> = sizes.iter().map(i32::to_string).collect();
    sizes.join(", ")
}

/// The lengths that the metadata name, in increasing order.
pub(crate) fn lengths(text: &str) -> Result<Vec<usize>> {
    let lengths = text.split_whitespace().map(str::parse);
    let lengths: std::result::Result<Vec<usize>, _> = lengths.collect();
    match lengths {
        Ok(lengths) if lengths.is_sorted_by(|a, b| a < b) => Ok(lengths),
        _ => Err(Error::format(format!(
            "metadata: {RECORDED} {text:?} is no list of lengths in increasing order"
        ))),
    }
}

/// An array of the row's state. An array that grows may have any number of slots.
fn read_part(file: &Safetensors, name: &str, part: &RowPart) -> Result<Array> {
    let (dtype, shape) = file.info(name)?;
    match part.fits(dtype, shape) {
        true => Ok(file.array(name)?),
        false => Err(Error::format(format!(
            "tensor {name:?} is {dtype} {shape:?}; expected {part}"
        ))),
    }
}

/// FNV-1a over names, shapes and some numbers of all parameters, including adapters. Models that were trained
/// differently have different digests, and the cost is small for large models too.
struct Digest(u64);

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
    }
}

impl Visit for Digest {
    fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> mlx_core::Result<()> {
        let value = param.value();
        self.add(format!("{}{:?}{}", path.as_str(), value.shape(), value.dtype()).as_bytes());
        let step = value.size().div_ceil(SAMPLE).max(1);
        let places: Vec<u32> = (0..value.size()).step_by(step).map(|n| n as u32).collect();
        let places = Array::from_slice(&places, &[places.len() as i32])?;
        let sample = value.reshape(&[-1])?.take(&places, 0)?;
        match value.dtype() {
            DType::U32 => self.add(&bytes(sample.to_vec::<u32>()?, u32::to_le_bytes)),
            _ => self.add(&bytes(
                sample.astype(DType::F32)?.to_vec::<f32>()?,
                f32::to_le_bytes,
            )),
        }
        Ok(())
    }
}

fn bytes<T>(numbers: Vec<T>, bytes: fn(T) -> [u8; 4]) -> Vec<u8> {
    numbers.into_iter().flat_map(bytes).collect()
}

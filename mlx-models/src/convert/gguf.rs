//! Checkpoints are written in GGUF, as llama.cpp's converter writes them.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::gguf::{TensorType, Value as Stored, save_as};
use mlx_core::{Array, DType, Error, ErrorKind, Result};
use mlx_nn::{LayerKind, Param, Visit, VisitMut};
use serde_json::{Map, Value};

use super::tensors::{Schemes, WrittenTensors};
use super::{Converted, Progress, non_finite};
use crate::checkpoint::Weights;
use crate::checkpoint::gguf::{self, GgufSizes, describe};
use crate::model::{Model, ModelTask};
use crate::registry::assemble::{empty, filled};
use crate::registry::{LoadOptions, Registry};

/// The type of the matrices in a file that [`convert_to_gguf`] writes. Vectors, norms and routers
/// are F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// 16 bits with the range of F32.
    Bf16,
    /// 8.5 bits: blocks of 32 codes of 8 bits with a scale.
    Q8_0,
    /// 4.5 bits: blocks of 32 codes of 4 bits with a scale. The output head, or the embedding that
    /// is the head too, is Q8_0.
    Q4_0,
}

impl GgufType {
    /// Every type.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0];

    /// The name for users: that of `llama-quantize`, in small letters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    const fn tensor(self) -> TensorType {
        match self {
            Self::F32 => TensorType::F32,
            Self::F16 => TensorType::F16,
            Self::Bf16 => TensorType::BF16,
            Self::Q8_0 => TensorType::Q8_0,
            Self::Q4_0 => TensorType::Q4_0,
        }
    }

    /// `general.file_type`: llama.cpp's `LLAMA_FTYPE`.
    const fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// The type of a matrix whose rows have `columns` elements. Rows that are no whole number of
    /// blocks are F16.
    fn of(self, is_head: bool, columns: i32) -> TensorType {
        let kind = match (self, is_head) {
            (Self::Q4_0, true) => TensorType::Q8_0,
            _ => self.tensor(),
        };
        match (columns as usize).is_multiple_of(kind.block()) {
            true => kind,
            false => TensorType::F16,
        }
    }
}

/// Writes a checkpoint, given by its parsed config.json and its opened files, as the file `path` in
/// GGUF. `text` gets the number of rows of the embedding and returns the metadata of the tokenizer.
/// `label` names the source in errors.
///
/// Then the file is read again, and the model that it describes computes logits with the source's
/// own weights. They must be the source's: a setting of config.json that GGUF has no key for is an
/// error, not another model.
///
/// # Errors
/// The checkpoint does not load, its weights are packed, its type or a setting has no counterpart
/// in GGUF ([`gguf_written_types`](crate::gguf_written_types)), a weight is beyond the range of the
/// type, `text` or `progress` fails, or the file cannot be written.
pub fn convert_to_gguf(
    label: &str,
    config: Value,
    weights: impl Into<Weights>,
    path: &Path,
    kind: GgufType,
    text: impl FnOnce(usize) -> Result<BTreeMap<String, Stored>>,
    progress: Progress<'_>,
) -> Result<Converted> {
    let unsupported = |what: String| Error::new(ErrorKind::Unsupported, format!("{label}: {what}"));
    let registry = Registry::default();
    let weights = weights.into();
    let non_finite = non_finite(&weights)?;
    let mut load = LoadOptions::default();
    let (assembled, _) = filled(&registry, label, config.clone(), weights, &mut load)?;
    let model = assembled.model;
    let refused = match ModelTask::of(model.as_ref()) {
        ModelTask::Generate => None,
        ModelTask::Headless => Some("a model without an output head (lm_head.weight)"),
        ModelTask::Embed | ModelTask::Classify(_) => Some("an encoder"),
    };
    if let Some(what) = refused {
        return Err(unsupported(format!(
            "{what} cannot be written in GGUF; models that generate text can"
        )));
    }
    if let Some((_, scheme)) = Schemes::of(model.as_ref())?.first() {
        return Err(unsupported(format!(
            "already quantised ({scheme}), and packing it again would round twice; convert the original, or unpack this \
             one first"
        )));
    }
    let object = match &config {
        Value::Object(object) => object,
        _ => &Map::new(),
    };
    let object = match object.get("text_config") {
        Some(Value::Object(text)) => text,
        _ => object,
    };
    let tensors = WrittenTensors::of(model.as_ref(), "", None)?;
    let sizes = sizes(model.as_ref(), &tensors.arrays);
    let described = describe(label, assembled.model_type, object, &sizes)?;
    let mut written = Vec::with_capacity(tensors.arrays.len());
    for (name, factors) in &described.factors {
        let array = Array::from_slice(factors, &[factors.len() as i32])?;
        written.push(((*name).to_owned(), array, TensorType::F32));
    }
    written.extend(matrices(
        label,
        model.as_ref(),
        &described,
        &tensors.arrays,
        kind,
    )?);
    let mut metadata = described.metadata;
    metadata.insert("general.type".to_owned(), "model".into());
    metadata.insert("general.file_type".to_owned(), kind.file_type().into());
    if kind.tensor().dtype().is_none() {
        metadata.insert("general.quantization_version".to_owned(), 2u32.into());
    }
    metadata.extend(text(sizes.vocab as usize)?);
    let bytes = |(_, array, kind): &(String, Array, TensorType)| {
        (array.size() / kind.block() * kind.block_bytes()) as u64
    };
    let converted = Converted {
        files: path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .into_iter()
            .collect(),
        bytes: written.iter().map(bytes).sum(),
        parameters: tensors.parameters,
        packed: written
            .iter()
            .filter(|(_, _, kind)| kind.dtype().is_none())
            .count(),
        left_dense: Vec::new(),
        non_finite,
        vanishing: Vec::new(),
    };
    drop(tensors);
    let total = converted.bytes;
    save_as(path, written, &metadata, &mut |done| progress(done, total))?;
    check(&registry, label, model.as_ref(), path)?;
    Ok(converted)
}

/// The tensors of the file with their types, from those of a checkpoint in MLX's dialect.
fn matrices(
    label: &str,
    model: &dyn Model,
    described: &gguf::Described,
    arrays: &[(String, Array)],
    kind: GgufType,
) -> Result<Vec<(String, Array, TensorType)>> {
    let unsupported = |what: String| Error::new(ErrorKind::Unsupported, format!("{label}: {what}"));
    let is_tied = !arrays.iter().any(|(name, _)| name == "lm_head.weight");
    let mut written = Vec::with_capacity(arrays.len());
    let parameters = Parameters::of(model)?;
    let mut named = Vec::with_capacity(arrays.len());
    for (name, array) in arrays {
        let missing = || {
            unsupported(format!(
                "{name} has no counterpart in GGUF for models of this type"
            ))
        };
        if let Some(tensor) = described.tensor(name, array)? {
            named.push(tensor);
            continue;
        }
        // GGUF may have a tensor for each of the parameters of which MLX's files make one.
        let parts = parameters.of_written(model, name);
        if parts.is_empty() {
            return Err(missing());
        }
        for (path, array) in parts {
            named.push(described.tensor(path, array)?.ok_or_else(missing)?);
        }
    }
    for tensor in named {
        let is_head = tensor.is_head && (is_tied || tensor.name.starts_with("output."));
        let columns = tensor.array.shape().last().copied().unwrap_or(1);
        let kind = match tensor.wide {
            true => TensorType::F32,
            false => kind.of(is_head, columns),
        };
        written.push((tensor.name, tensor.array, kind));
    }
    Ok(written)
}

fn sizes(model: &dyn Model, tensors: &[(String, Array)]) -> GgufSizes {
    let geometry = model.geometry();
    let layers = geometry.layers();
    let rows = |layer: usize| {
        let name = format!("model.layers.{layer}.mlp.down_proj.weight");
        let found = tensors.iter().find(|(found, _)| *found == name);
        found.and_then(|(_, array)| array.shape().last().copied())
    };
    GgufSizes {
        vocab: geometry.vocab,
        hidden: geometry.hidden,
        context: geometry.max_positions,
        heads: layers
            .iter()
            .map(|layer| (layer.heads, layer.kv.map_or(0, |kv| kv.heads)))
            .collect(),
        head_dim: layers
            .iter()
            .find_map(|layer| layer.kv)
            .map_or(0, |kv| kv.key_dim),
        windows: layers
            .iter()
            .map(|layer| match layer.states.first() {
                Some(LayerKind::Window(window)) => Some(*window),
                _ => None,
            })
            .collect(),
        feed_forward: (0..layers.len())
            .map(|layer| rows(layer).unwrap_or(0))
            .collect(),
    }
}

/// Tokens that the written model is compared on.
const COMPARED: u32 = 24;

/// Compares the model that the file describes with the source, both with the source's weights.
fn check(registry: &Registry, label: &str, model: &dyn Model, path: &Path) -> Result<()> {
    let differs = |what: String| {
        Error::new(
            ErrorKind::Unsupported,
            format!("{label}: GGUF has no keys for all that config.json says: {what}"),
        )
    };
    let (mut config, _) = gguf::open(&[path.to_owned()])?;
    if let Value::Object(config) = &mut config {
        config.shift_remove("quantization");
    }
    let mut other = empty(registry, label, config)?.model;
    let (layers, of_file) = (model.geometry().layers(), other.geometry().layers());
    if let Some(layer) = (0..layers.len()).find(|&at| of_file.get(at) != layers.get(at)) {
        return Err(differs(format!(
            "layer {layer} would have the state {:?} instead of {:?}",
            of_file.get(layer).map(|layer| &layer.states),
            layers[layer].states
        )));
    }
    share(model, other.as_mut()).map_err(|error| differs(error.to_string()))?;
    let vocab = model.geometry().vocab as u32;
    let tokens: Vec<u32> = (0..COMPARED).map(|at| (at * 7919 + 17) % vocab).collect();
    let tokens = Array::from_slice(&tokens, &[1, COMPARED as i32])?;
    let logits = |model: &dyn Model| -> Result<Array> {
        let logits = model.forward(&tokens, &mut model.new_cache(1))?;
        logits.astype(DType::F32)
    };
    let (expected, found) = (logits(model)?, logits(other.as_ref())?);
    let off: f32 = expected.subtract(&found)?.abs()?.max_all()?.item()?;
    let largest: f32 = expected.abs()?.max_all()?.item()?;
    // Factors of a rope are F32 in the file and F64 in config.json, which moves roundings to 16
    // bits.
    let tolerance = match expected_dtype(model)? {
        DType::F32 => 1e-4,
        _ => 0.03,
    };
    // NaN is a difference.
    if off <= tolerance * largest.max(1.0) {
        return Ok(());
    }
    Err(differs(format!(
        "logits up to {largest} would differ by up to {off}"
    )))
}

/// The dtype of the first floating-point parameter.
fn expected_dtype(model: &dyn Model) -> Result<DType> {
    let found = Parameters::of(model)?;
    let mut dtypes = found.0.values().map(Array::dtype);
    Ok(dtypes.find(|dtype| dtype.is_float()).unwrap_or(DType::F32))
}

/// The parameters of a model by their names.
#[derive(Default)]
struct Parameters(BTreeMap<String, Array>);

impl Parameters {
    fn of(model: &dyn Model) -> Result<Self> {
        let mut found = Self::default();
        model.visit(&mut mlx_nn::Path::default(), &mut found)?;
        Ok(found)
    }

    /// The parameters of which the tensor `name` of a file in MLX's dialect is made.
    fn of_written(&self, model: &dyn Model, name: &str) -> Vec<(&String, &Array)> {
        let inverse = model.names().inverse();
        let is_part = |path: &str| {
            let pieces = inverse.pieces(path).unwrap_or_default();
            pieces.iter().any(|piece| piece.name() == name)
        };
        self.0.iter().filter(|(path, _)| is_part(path)).collect()
    }
}

impl Visit for Parameters {
    fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> Result<()> {
        self.0
            .insert(path.as_str().to_owned(), param.value().clone());
        Ok(())
    }
}

/// Gives `other` the parameters of `model`.
fn share(model: &dyn Model, other: &mut dyn Model) -> Result<()> {
    struct Set(BTreeMap<String, Array>);
    impl VisitMut for Set {
        fn param(&mut self, path: &mlx_nn::Path, param: &mut Param) -> Result<()> {
            let name = path.as_str();
            let value = self.0.remove(name);
            let value = value.filter(|value| value.shape() == param.shape());
            match value {
                Some(value) => param.set(value),
                None => {
                    let shape = param.shape();
                    let message = format!("{name} {shape:?} would be a parameter");
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
            }
            Ok(())
        }
    }
    let mut set = Set(Parameters::of(model)?.0);
    other.visit_mut(&mut mlx_nn::Path::default(), &mut set)?;
    match set.0.into_keys().next() {
        None => Ok(()),
        Some(name) => {
            let message = format!("{name} would be no parameter");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

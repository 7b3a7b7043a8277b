//! From `config.json` and opened files to a model: the family is found, built, and filled.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, Result, Safetensors};
use mlx_nn::{Checkpoint, FillOptions, Path, Rename, Visit, fill};
use serde_json::Value;

use crate::config::Config;
use crate::config::quantization::Quantization;
use crate::head::HeadTensors;
use crate::registry::{self, Source};
use crate::{LoadOptions, Loaded, Model, ModelInfo, weights};

/// A model whose parameters are filled, and not read: on the CPU they refer to the files.
pub(crate) struct Assembled {
    pub model: Box<dyn Model>,
    pub model_type: &'static str,
    /// Of the text model.
    pub config: Config,
    /// Whether the text model's config.json is inside that of a multimodal checkpoint.
    pub nested: bool,
    pub quantization: Quantization,
}

/// The model of a config, without values.
pub(crate) fn empty(label: &str, config: Value) -> Result<Assembled> {
    assemble(label, config, &[]).map(|(assembled, _)| assembled)
}

/// The model of a config, filled from files.
pub(crate) fn filled(
    label: &str,
    config: Value,
    files: Vec<Safetensors>,
    options: &mut LoadOptions<'_>,
) -> Result<Assembled> {
    let (mut assembled, renames) = assemble(label, config, &files)?;
    let checkpoint = Checkpoint::new(label, files, |name| {
        renames.get(name).cloned().unwrap_or(Rename::Drop)
    })?;
    let total = checkpoint.names().count();
    let quantization = &assembled.quantization;
    fill(
        assembled.model.as_mut(),
        &checkpoint,
        FillOptions {
            dtype: options.dtype,
            scheme: &|path| Ok(quantization.scheme(path)),
            progress: &mut |done| {
                if let Some(progress) = &mut options.progress {
                    progress(done, total);
                }
            },
        },
    )?;
    Ok(assembled)
}

/// What becomes of each tensor, by its published name.
type Renames = BTreeMap<String, Rename>;

/// Builds the model, and tells how tensors are called in its files.
fn assemble(label: &str, config: Value, files: &[Safetensors]) -> Result<(Assembled, Renames)> {
    let outer = Config::new(&format!("{label}: config.json"), config)?;
    // Multimodal checkpoints describe their text model inside; some keys stay outside.
    let text = outer.object("text_config")?;
    let published = files.iter().flat_map(Safetensors::names);
    let (model_type, family) = registry::find(&outer, published)?;
    let tied = outer.or("tie_word_embeddings", family.tied)?;
    let nested = text.is_some();
    let quantization_of = Config::clone(&outer);
    let mut config = text.unwrap_or(outer);
    let plain = |name: &str| match weights::rename(name, nested) {
        Some(name) => (family.rename)(&config, &name),
        None => Rename::Drop,
    };
    let head = match tied {
        true => HeadTensors::find(files, &plain)?,
        false => HeadTensors::Own,
    };
    let mut renames = Renames::new();
    for name in files.iter().flat_map(Safetensors::names) {
        let rename = match plain(name) {
            Rename::To(name) => head.rename(name).map_or(Rename::Drop, Rename::To),
            other => other,
        };
        renames.insert(name.to_owned(), rename);
    }
    config.set("tie_word_embeddings", (head != HeadTensors::Own).into());
    let quantization = Quantization::read(&quantization_of, |path| {
        weights::rename(path, nested).and_then(|path| head.rename(path))
    })?;
    let tensors = renames.values().filter_map(Rename::name);
    let model = (family.build)(&Source {
        config: &config,
        nested,
        tensors: &tensors.map(str::to_owned).collect(),
    })?;
    let assembled = Assembled {
        model,
        model_type,
        nested,
        config,
        quantization,
    };
    Ok((assembled, renames))
}

impl Assembled {
    /// Reads the values, and tells about them.
    pub(crate) fn finish(self, label: &str) -> Result<Loaded> {
        let Self {
            model,
            model_type,
            config,
            quantization,
            ..
        } = self;
        let mut weigh = Weigh::default();
        model.visit(&mut Path::default(), &mut weigh)?;
        mlx_core::eval(&weigh.arrays)?;
        let geometry = model.geometry();
        let info = ModelInfo {
            model_type: model_type.to_owned(),
            vocab: geometry.vocab,
            max_positions: geometry.max_positions,
            layers: geometry.layers.clone(),
            hidden: geometry.hidden,
            kv_heads: geometry.kv_heads,
            head_dim: geometry.head_dim,
            n_parameters: weigh.n_parameters,
            weight_bytes: weigh.bytes,
            quantization: quantization.default_scheme(),
            dtype: weigh.dtype.unwrap_or(DType::F32),
            unread_keys: config.unread(),
        };
        for key in &info.unread_keys {
            tracing::warn!(
                "{label}: config.json: {key} is not known to this version and has no effect"
            );
        }
        Ok(Loaded { model, info })
    }
}

/// Counts parameters and bytes, and collects the arrays.
#[derive(Default)]
struct Weigh {
    arrays: Vec<Array>,
    n_parameters: usize,
    bytes: usize,
    dtype: Option<DType>,
}

impl Visit for Weigh {
    fn weight(&mut self, _path: &Path, weight: &mlx_nn::Weight) -> Result<()> {
        let elements = |shape: &[i32]| shape.iter().map(|&n| n as usize).product::<usize>();
        if let mlx_nn::Weight::Quantized { packed, .. } = weight {
            // `param` counts the packed words; the rest of the matrix is added here.
            self.n_parameters += elements(&weight.shape()) - elements(packed.shape());
        }
        Ok(())
    }

    fn param(&mut self, path: &Path, param: &mlx_nn::Param) -> Result<()> {
        let value = param.value();
        self.bytes += value.nbytes();
        let name = path.as_str();
        if !name.ends_with(".scales") && !name.ends_with(".biases") {
            self.n_parameters += value.size();
        }
        if value.dtype().is_float() {
            self.dtype = self.dtype.or(Some(value.dtype()));
        }
        self.arrays.push(value.clone());
        Ok(())
    }

    fn derived(&mut self, array: &Array) -> Result<()> {
        self.arrays.push(array.clone());
        Ok(())
    }
}

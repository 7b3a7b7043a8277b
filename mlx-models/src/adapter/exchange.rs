//! Adapters of mlx-lm become those of PEFT, and back. Both hold the same matrices, in one format
//! transposed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mlx_core::safetensors::save;
use mlx_core::{Array, Error, ErrorKind, Result, Safetensors, zeros};
use mlx_nn::Layout;
use serde_json::{Map, Value, json};

use super::peft::{self, Settings};
use super::{
    AdapterConfig, AdapterKind, CONFIG, Layouts, WEIGHTS, load_lazily, report, shortest, write,
};
use crate::checkpoint::weights::read_json;
use crate::model::Model;

/// A format of adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterFormat {
    /// mlx-lm and this project: `adapters.safetensors`.
    MlxLm,
    /// PEFT: `adapter_model.safetensors`.
    Peft,
}

impl AdapterFormat {
    /// The name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MlxLm => "mlx-lm",
            Self::Peft => "PEFT",
        }
    }
}

/// One layer's arrays in mlx-lm's form: A is `[in, rank]`, B `[rank, out]`, m `[out]`.
#[derive(Default)]
struct Parts(BTreeMap<&'static str, Array>);

/// An adapter in either format.
struct Read {
    kind: AdapterKind,
    scale: f32,
    dropout: f64,
    layers: BTreeMap<String, Parts>,
}

/// Writes the adapter in the folder `from`, which is one of `model`, in the other format into the
/// folder `to`, and returns that format. LoRA, rsLoRA and DoRA of linear layers and of embeddings
/// keep every number; layers with smaller ranks than others get rows and columns of zeros. `base`
/// is the model's name for PEFT's `base_model_name_or_path`. `model` has the adapter afterwards.
///
/// # Errors
/// The folder has no adapter of this model, or one whose layers the other format has no names for:
/// a full fine-tuning, stacked experts in PEFT, matrices that published checkpoints store in
/// another form. A file cannot be written.
pub fn convert(
    from: &Path,
    model: &mut dyn Model,
    base: Option<&str>,
    to: &Path,
) -> Result<AdapterFormat> {
    let label = from.display().to_string();
    let settings = read_json(from, CONFIG)?;
    let is_peft = settings.get("peft_type").is_some();
    // What the reader refuses is refused here too.
    load_lazily(from, model)?;
    let adapter = match is_peft {
        true => of_peft(&label, from, &settings)?,
        false => of_mlx(&label, from, &settings)?,
    };
    adapter.check(&label, model)?;
    let rank = adapter.rank();
    let adapter = adapter.padded(rank)?;
    let written = match is_peft {
        true => {
            write_mlx(&adapter, rank, model, to)?;
            AdapterFormat::MlxLm
        }
        false => {
            write_peft(&adapter, rank, base, model, to)?;
            AdapterFormat::Peft
        }
    };
    // The reader accepts what was written.
    load_lazily(to, model)?;
    Ok(written)
}

fn write_mlx(adapter: &Read, rank: i32, model: &dyn Model, dir: &Path) -> Result<()> {
    let mut arrays: Vec<(String, Array)> = Vec::new();
    for (layer, parts) in &adapter.layers {
        for (part, array) in &parts.0 {
            arrays.push((format!("{layer}.{part}"), array.contiguous()?));
        }
    }
    let config = AdapterConfig {
        kind: adapter.kind,
        rank,
        scale: adapter.scale,
        dropout: adapter.dropout as f32,
        num_layers: model.geometry().layers().len() as i64,
        keys: adapter.layers.keys().cloned().collect(),
        facts: Map::new(),
    };
    let arrays = arrays.iter().map(|(name, array)| (name.as_str(), array));
    write(dir, &config, arrays)
}

fn of_mlx(label: &str, dir: &Path, config: &Value) -> Result<Read> {
    let kind = match config.get("fine_tune_type").and_then(Value::as_str) {
        None | Some("lora") => AdapterKind::Lora,
        Some("dora") => AdapterKind::Dora,
        Some(_) => {
            let message = format!("{label}: PEFT has no files for a full fine-tuning");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    };
    let parameters = &config["lora_parameters"];
    let number = |key: &str| parameters[key].as_f64().unwrap_or(0.0);
    let mut layers: BTreeMap<String, Parts> = BTreeMap::new();
    let file = Safetensors::open(dir.join(WEIGHTS))?;
    for name in file.names() {
        // The reader has refused other names.
        let part = ["lora_a", "lora_b", "m"].into_iter().find_map(|part| {
            let layer = name.strip_suffix(part)?.strip_suffix('.')?;
            Some((layer, part))
        });
        if let Some((layer, part)) = part {
            let parts = layers.entry(layer.to_owned()).or_default();
            parts.0.insert(part, file.array(name)?);
        }
    }
    Ok(Read {
        kind,
        scale: number("scale") as f32,
        dropout: number("dropout"),
        layers,
    })
}

fn of_peft(label: &str, dir: &Path, config: &Value) -> Result<Read> {
    let settings = Settings::read(label, config)?;
    if !settings.parameters().is_empty() {
        let message =
            format!("{label}: target_parameters: mlx-lm and PEFT have experts in different forms");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let file = Safetensors::open(dir.join(peft::WEIGHTS))?;
    let mut layers: BTreeMap<String, Parts> = BTreeMap::new();
    for name in file.names() {
        let Some((layer, part)) = peft::split(name) else {
            // An embedding's table, which the reader has compared with the model's.
            continue;
        };
        let array = file.array(name)?;
        let array = if array.ndim() == 2 { array.t()? } else { array };
        let parts = layers.entry(layer.to_owned()).or_default();
        parts.0.insert(part, array);
    }
    // mlx-lm has one scale; that of a layer with another rank or alpha goes into B.
    let scales: Vec<f32> = layers
        .keys()
        .map(|layer| settings.own_scale(layer))
        .collect();
    let larger = |a: f32, b: f32| if b.abs() > a.abs() { b } else { a };
    let scale = scales.iter().copied().fold(0.0, larger);
    for (parts, own) in layers.values_mut().zip(scales) {
        if let (true, Some(b)) = (own != scale, parts.0.get_mut("lora_b")) {
            *b = b.multiply(own / scale)?;
        }
    }
    Ok(Read {
        kind: settings.kind,
        scale,
        dropout: settings.dropout,
        layers,
    })
}

impl Read {
    /// The largest rank.
    fn rank(&self) -> i32 {
        let ranks = self.layers.values().filter_map(|parts| {
            let a = parts.0.get("lora_a")?;
            a.shape().last().copied()
        });
        ranks.max().unwrap_or(0)
    }

    /// Refuses layers whose name in published checkpoints is not that in mlx-lm's, and stacks of
    /// experts.
    fn check(&self, label: &str, model: &dyn Model) -> Result<()> {
        let names = model.names();
        let (published, written, inverse) = (names.published(), names.written(), names.inverse());
        let layouts = Layouts::of(model)?;
        let (mut faults, mut has_embedding) = (Vec::new(), false);
        for layer in self.layers.keys() {
            let places = |rules: &mlx_nn::Rules| -> Vec<String> {
                let pieces = rules.modules(layer).unwrap_or_default();
                pieces.iter().map(|piece| piece.name().to_owned()).collect()
            };
            let places_in = places(&written);
            let is = |layout| {
                places_in
                    .iter()
                    .any(|place| layouts.0.get(place) == Some(&layout))
            };
            has_embedding |= is(Layout::Embedding);
            let back = places_in.first().map(|place| {
                let pieces = inverse.modules(place).unwrap_or_default();
                pieces.first().map(|piece| piece.name().to_owned())
            });
            if places(&published) != places_in || back.flatten().as_ref() != Some(layer) {
                faults.push(format!(
                    "{layer}: PEFT and mlx-lm have it in different forms"
                ));
            } else if is(Layout::Experts) {
                faults.push(format!("{layer}: PEFT has no adapters of stacked experts"));
            }
        }
        if has_embedding {
            let checked = peft::embedding(model, self.kind);
            checked
                .map_err(|what| Error::new(ErrorKind::Unsupported, format!("{label}: {what}")))?;
        }
        report(label, "tensors of the adapter", &faults)
    }

    /// The adapter with zeros up to this rank.
    fn padded(mut self, rank: i32) -> Result<Self> {
        for parts in self.layers.values_mut() {
            for (part, axis) in [("lora_a", 1), ("lora_b", 0)] {
                let Some(array) = parts.0.get_mut(part) else {
                    continue;
                };
                let mut shape = array.shape().to_vec();
                let missing = rank - shape[axis];
                if missing > 0 {
                    shape[axis] = missing;
                    let zeros = zeros(&shape, array.dtype())?;
                    *array = Array::cat(&[&*array, &zeros], axis as i32)?;
                }
            }
        }
        Ok(self)
    }
}

/// PEFT's names of the modules: `self_attn.q_proj` if every layer's has an adapter, else whole
/// paths.
fn targets(adapter: &Read, layers: usize) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let within = |path: &str| -> Option<usize> {
        let rest = path.strip_prefix("model.layers.")?;
        Some(path.len() - rest.split_once('.')?.1.len())
    };
    for path in adapter.layers.keys() {
        if let Some(at) = within(path) {
            *counts.entry(&path[at..]).or_default() += 1;
        }
    }
    let name = |path: &String| match within(path) {
        Some(at) if counts.get(&path[at..]) == Some(&layers) => path[at..].to_owned(),
        _ => path.clone(),
    };
    let names: BTreeSet<String> = adapter.layers.keys().map(name).collect();
    names.into_iter().collect()
}

fn write_peft(
    adapter: &Read,
    rank: i32,
    base: Option<&str>,
    model: &dyn Model,
    dir: &Path,
) -> Result<()> {
    let layouts = Layouts::of(model)?;
    let rules = model.names().published();
    let mut arrays = Vec::new();
    for (layer, parts) in &adapter.layers {
        let pieces = rules.modules(layer).unwrap_or_default();
        let layout = pieces.first().and_then(|piece| layouts.0.get(piece.name()));
        let is_embedding = layout == Some(&Layout::Embedding);
        for (part, array) in &parts.0 {
            let theirs = match (*part, is_embedding) {
                ("lora_a", false) => "lora_A.weight",
                ("lora_b", false) => "lora_B.weight",
                ("lora_a", true) => "lora_embedding_A",
                ("lora_b", true) => "lora_embedding_B",
                _ => "lora_magnitude_vector",
            };
            let array = if array.ndim() == 2 {
                array.t()?
            } else {
                array.clone()
            };
            arrays.push((
                format!("base_model.model.{layer}.{theirs}"),
                array.contiguous()?,
            ));
        }
    }
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": shortest(adapter.scale * rank as f32),
        "lora_dropout": shortest(adapter.dropout as f32),
        "target_modules": targets(adapter, model.geometry().layers().len()),
        "use_dora": adapter.kind == AdapterKind::Dora,
        "use_rslora": false,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
    });
    std::fs::create_dir_all(dir)?;
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    save(
        dir.join(peft::WEIGHTS),
        arrays.iter().map(|(name, array)| (name.as_str(), array)),
        &metadata,
    )?;
    let text = serde_json::to_string_pretty(&config).map_err(std::io::Error::from)?;
    std::fs::write(dir.join(CONFIG), text + "\n")?;
    Ok(())
}

//! Adapters as PEFT writes them: `base_model.model.PATH.lora_A.weight`, `[rank, in]`, and
//! `PATH.lora_embedding_A`, `[rank, V]`.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::{Array, DType, Error, ErrorKind, Result, Safetensors};
use mlx_nn::{AdaptableLayer, Layout, Module, Path as Name, Piece, Rules, Visit, Weight};
use serde_json::Value;

use super::{Adapted, AdapterKind, CONFIG, Found, Layouts, made, report, spread};
use crate::checkpoint::names::joined_expert_names;
use crate::model::Model;

mod parameters;
mod settings;

pub(super) use settings::Settings;

pub(super) const WEIGHTS: &str = "adapter_model.safetensors";

/// Reads the adapter in `dir` for `model`. `config` is its `adapter_config.json`.
pub(super) fn read(dir: &Path, config: &Value, model: &dyn Model) -> Result<Found> {
    let label = dir.display().to_string();
    let fail = |message: String| {
        Error::new(
            ErrorKind::Unsupported,
            format!("{label}: {CONFIG}: {message}"),
        )
    };
    let settings = Settings::read(&label, config)?;
    let rules = model.names().published().and(&joined_expert_names());
    let layouts = Layouts::of(model)?;
    let file = Safetensors::open(dir.join(WEIGHTS))?;
    let mut tensors = BTreeMap::new();
    let mut faults = Vec::new();
    for published in file.names() {
        // Beside an adapted embedding, PEFT writes the table itself, which training does not change.
        if let Some(layer) = published.strip_suffix(".base_layer.weight") {
            unchanged(layer, &file.array(published)?, &rules, model).map_err(&fail)?;
            continue;
        }
        let Some((layer, part)) = split(published) else {
            faults.push(format!("{published}: not a tensor of a LoRA adapter"));
            continue;
        };
        let is_there = |name: &str| layouts.of_tensor(&rules, name).is_some();
        let parameter = match parameters::of(&settings, layer, is_there) {
            Ok(parameter) => parameter,
            Err(fault) => {
                faults.push(format!("{published}: {fault}"));
                continue;
            }
        };
        if parameter.is_none() && !settings.selects(layer) {
            faults.push(format!("{published}: {CONFIG} does not choose this layer"));
            continue;
        }
        let array = file.array(published)?;
        let adapted = parameter.as_deref().unwrap_or(layer);
        let rank = settings.rank(adapted);
        let experts = parameter
            .as_deref()
            .filter(|name| layouts.of_tensor(&rules, name) == Some(Layout::Experts));
        let array = match experts {
            None => array,
            Some(_) => match parameters::of_experts(part, &array, rank)? {
                Some(array) => array,
                None => {
                    let shape = array.shape();
                    faults.push(format!(
                        "{published}: {shape:?} is not of the rank {rank} that {CONFIG} gives"
                    ));
                    continue;
                }
            },
        };
        let ranked = match part {
            "lora_a" if experts.is_none() => array.shape().first(),
            "lora_b" => array.shape().last(),
            _ => None,
        };
        if ranked.is_some_and(|&found| i64::from(found) != rank) {
            let shape = array.shape();
            faults.push(format!(
                "{published}: {shape:?} is not of the rank {rank} that {CONFIG} gives"
            ));
            continue;
        }
        // PEFT's matrices are transposed.
        let array = if array.ndim() == 2 { array.t()? } else { array };
        // Factors that differ from module to module become part of B.
        let array = match (part, settings.scale(1)) {
            ("lora_b", None) => array
                .astype(DType::F32)?
                .multiply(settings.own_scale(adapted))?,
            _ => array,
        };
        let place = match &parameter {
            Some(name) => Adapted::Tensor(name),
            None => Adapted::Module(layer),
        };
        if let Err(fault) = spread(&rules, place, part, &array, &mut tensors)? {
            faults.push(format!("{published}: {fault}"));
        }
    }
    report(&label, "tensors of the adapter", &faults)?;
    if file.names().any(|name| name.ends_with(".lora_embedding_A")) {
        embedding(model, settings.kind).map_err(&fail)?;
    }
    made(
        &label,
        model,
        tensors,
        &|rank| settings.scale(rank).unwrap_or(1.0),
        settings.dropout as f32,
        settings.kind,
    )
}

fn bare(published: &str) -> &str {
    let bare = published.strip_prefix("base_model.model.");
    bare.unwrap_or(published)
}

/// Refuses adapters of embeddings for which PEFT computes something that a [`Lora`](mlx_nn::Lora) cannot.
pub(super) fn embedding(module: &dyn Module, kind: AdapterKind) -> Result<(), String> {
    struct OwnHead(bool);
    impl Visit for OwnHead {
        fn adaptable(&mut self, path: &Name, layer: AdaptableLayer<'_>) -> Result<()> {
            self.0 |= layer.layout == Layout::Linear && path.as_str() == "lm_head";
            Ok(())
        }
    }
    if kind == AdapterKind::Dora {
        return Err(
            "use_dora: PEFT's magnitudes of an embedding are those of its columns, here and in mlx-lm \
             those of its rows; merge the adapter with PEFT, or train one without DoRA"
                .to_owned(),
        );
    }
    let mut head = OwnHead(false);
    let visited = module.visit(&mut Name::default(), &mut head);
    visited.map_err(|error| error.to_string())?;
    if !head.0 {
        return Err(
            "the adapter of an embedding leaves a tied head alone in PEFT, here and in mlx-lm it is the \
             head's too; untie the head and merge the adapter with PEFT"
                .to_owned(),
        );
    }
    Ok(())
}

/// Refuses an embedding's table that differs from the model's. If the model's table is quantised,
/// only the shapes are compared.
fn unchanged(layer: &str, table: &Array, rules: &Rules, module: &dyn Module) -> Result<(), String> {
    struct Find<'a> {
        name: String,
        table: &'a Array,
        same: bool,
    }
    impl Visit for Find<'_> {
        fn weight(&mut self, path: &Name, weight: &Weight) -> Result<()> {
            if path.as_str() == self.name && weight.shape() == self.table.shape() {
                self.same = match weight {
                    Weight::Quantized { .. } => true,
                    Weight::Dense(own) => {
                        let table = self.table.astype(own.value().dtype())?;
                        own.value().array_equal(&table)?.item::<bool>()?
                    }
                };
            }
            Ok(())
        }
    }
    let layer = bare(layer);
    let pieces = rules.modules(layer).unwrap_or_default();
    let mut find = Find {
        name: pieces.first().map_or(layer, Piece::name).to_owned(),
        table,
        same: false,
    };
    let visited = module.visit(&mut Name::default(), &mut find);
    visited.map_err(|error| error.to_string())?;
    if find.same {
        return Ok(());
    }
    Err(format!(
        "{layer}.base_layer.weight {:?} is not the model's {layer}; merge the adapter with PEFT",
        table.shape()
    ))
}

/// The path of a tensor's module in PEFT, and mlx-lm's name of the tensor's part (`lora_a`, for
/// instance).
pub(super) fn split(published: &str) -> Option<(&str, &'static str)> {
    let parts = [
        (".lora_A.weight", "lora_a"),
        (".lora_B.weight", "lora_b"),
        (".lora_embedding_A", "lora_a"),
        (".lora_embedding_B", "lora_b"),
        (".lora_magnitude_vector.weight", "m"),
        (".lora_magnitude_vector", "m"),
    ];
    let bare = bare(published);
    parts
        .iter()
        .find_map(|(theirs, ours)| Some((bare.strip_suffix(theirs)?, *ours)))
}

//! Adapters as PEFT writes them: `base_model.model.PATH.lora_A.weight`, `[rank, in]`, and
//! `PATH.lora_embedding_A`, `[rank, V]`.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::{Array, Error, ErrorKind, Result, Safetensors};
use mlx_nn::{Layout, Module, Path as Name, Visit, Weight};
use serde_json::Value;

use super::{Adapter, AdapterKind, CONFIG, put};
use crate::weights::rename;

const WEIGHTS: &str = "adapter_model.safetensors";

/// Settings that change what an adapter computes and are not known here, with the value that says
/// that they are not used.
fn is_unused(key: &str, value: &Value) -> bool {
    match key {
        "bias" => value == "none",
        "alpha_pattern"
        | "rank_pattern"
        | "modules_to_save"
        | "layer_replication"
        | "trainable_token_indices"
        | "target_parameters"
        | "exclude_modules" => {
            // Ranks are told by the tensors; excluded layers have none.
            key == "rank_pattern"
                || key == "exclude_modules"
                || value.is_null()
                || value.as_object().is_some_and(serde_json::Map::is_empty)
                || value.as_array().is_some_and(Vec::is_empty)
        }
        "fan_in_fan_out" | "use_qalora" | "lora_bias" | "use_bdlora" => {
            !value.as_bool().unwrap_or(false)
        }
        _ => true,
    }
}

pub(super) fn load(dir: &Path, config: &Value, module: &mut dyn Module) -> Result<Adapter> {
    let label = dir.display().to_string();
    let fail = |message: String| {
        Error::new(
            ErrorKind::Unsupported,
            format!("{label}: {CONFIG}: {message}"),
        )
    };
    if config["peft_type"] != "LORA" {
        let found = &config["peft_type"];
        return Err(fail(format!(
            "peft_type {found} is not supported; known: \"LORA\""
        )));
    }
    for (key, value) in config.as_object().into_iter().flatten() {
        if !is_unused(key, value) {
            return Err(fail(format!("{key}: {value} is not supported")));
        }
    }
    let number = |key: &str| {
        let found = &config[key];
        let number = found.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| fail(format!("{key}: expected a number, found {found}")))
    };
    let alpha = number("lora_alpha")?;
    let dropout = match &config["lora_dropout"] {
        Value::Null => 0.0,
        _ => number("lora_dropout")?,
    };
    // rsLoRA (Kalajdzievski, arXiv:2312.03732) divides by the root of the rank.
    let by_root = config["use_rslora"] == true;
    let scale = move |rank: i32| {
        let rank = f64::from(rank);
        (alpha / if by_root { rank.sqrt() } else { rank }) as f32
    };
    let kind = if config["use_dora"] == true {
        AdapterKind::Dora
    } else {
        AdapterKind::Lora
    };
    let file = Safetensors::open(dir.join(WEIGHTS))?;
    let mut tensors = BTreeMap::new();
    for published in file.names() {
        // Beside an adapted embedding PEFT writes the table itself, which training leaves alone.
        if let Some(layer) = published.strip_suffix(".base_layer.weight") {
            unchanged(layer, &file.array(published)?, module).map_err(&fail)?;
            continue;
        }
        let (name, array) = translated(published, file.array(published)?)?;
        tensors.insert(name, array);
    }
    if file.names().any(|name| name.ends_with(".lora_embedding_A")) {
        embedding(module, kind).map_err(&fail)?;
    }
    put(&label, module, tensors, &scale, dropout as f32, kind)
}

fn bare(published: &str) -> &str {
    let bare = published.strip_prefix("base_model.model.");
    bare.unwrap_or(published)
}

/// Refuses adapters of embeddings that compute something else in PEFT than a [`Lora`](mlx_nn::Lora) can.
fn embedding(module: &dyn Module, kind: AdapterKind) -> Result<(), String> {
    struct OwnHead(bool);
    impl Visit for OwnHead {
        fn adaptable(&mut self, path: &Name, layout: Layout) -> Result<()> {
            self.0 |= layout == Layout::Linear && path.as_str() == "lm_head";
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

/// Refuses a table that is not the model's own. Of a quantised one only the shape can be compared.
fn unchanged(layer: &str, table: &Array, module: &dyn Module) -> Result<(), String> {
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
                        own.value().array_equal(&table, false)?.item::<bool>()?
                    }
                };
            }
            Ok(())
        }
    }
    let layer = bare(layer);
    let mut find = Find {
        name: rename(layer, false).unwrap_or_else(|| layer.to_owned()),
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

/// Our name, and A and B as we lay them out: PEFT's transposed.
fn translated(published: &str, array: Array) -> Result<(String, Array)> {
    let bare = bare(published);
    let parts = [
        (".lora_A.weight", ".lora_a"),
        (".lora_B.weight", ".lora_b"),
        (".lora_embedding_A", ".lora_a"),
        (".lora_embedding_B", ".lora_b"),
        (".lora_magnitude_vector.weight", ".m"),
        (".lora_magnitude_vector", ".m"),
    ];
    let known = parts
        .iter()
        .find_map(|(theirs, ours)| Some((bare.strip_suffix(theirs)?, *ours)));
    let Some((layer, ours)) = known else {
        return Ok((bare.to_owned(), array));
    };
    let layer = rename(layer, false).unwrap_or_else(|| layer.to_owned());
    let array = if array.ndim() == 2 { array.t()? } else { array };
    Ok((format!("{layer}{ours}"), array))
}

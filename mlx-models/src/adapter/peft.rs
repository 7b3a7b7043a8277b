//! Adapters as PEFT writes them: `base_model.model.PATH.lora_A.weight`, `[rank, in]`.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::{Array, Error, ErrorKind, Result, Safetensors};
use mlx_nn::Module;
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
        let (name, array) = translated(published, file.array(published)?)?;
        tensors.insert(name, array);
    }
    put(&label, module, tensors, &scale, dropout as f32, kind)
}

/// Our name, and A and B as we lay them out: PEFT's transposed.
fn translated(published: &str, array: Array) -> Result<(String, Array)> {
    let bare = published
        .strip_prefix("base_model.model.")
        .unwrap_or(published);
    let parts = [
        (".lora_A.weight", ".lora_a"),
        (".lora_B.weight", ".lora_b"),
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

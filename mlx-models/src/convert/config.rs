//! Changes of a config.json that follow from those of the weights.

use mlx_core::{DType, Scheme};
use serde_json::{Map, Value, json};

use super::tensors::WrittenTensors;
use crate::config::keys::TIED;
use crate::config::quantization::TERNARY;
use crate::draft_heads::mtp::NORM_OFFSET;
use crate::registry::Registry;

/// A scheme in the form of config.json.
pub(super) fn settings(scheme: Scheme) -> Map<String, Value> {
    let Value::Object(map) = json!({
        "group_size": scheme.group_size,
        "bits": scheme.bits,
        "mode": scheme.mode.name(),
    }) else {
        unreachable!("an object is written above");
    };
    map
}

/// Removes the keys that describe how weights are packed.
pub(super) fn remove_quantization(config: &mut Map<String, Value>) {
    for key in ["quantization", "quantization_config"] {
        config.shift_remove(key);
        if let Some(Value::Object(text)) = config.get_mut("text_config") {
            text.shift_remove(key);
        }
    }
}

/// Whether the config describes how weights are packed in memory. The entries of gpt-oss and BitNet
/// do, those of other programs do not: their weights are read into MLX's schemes.
pub(super) fn describes_packing(config: &Map<String, Value>) -> bool {
    let text = config.get("text_config").and_then(Value::as_object);
    let mut all = [Some(config), text].into_iter().flatten();
    let entry = all.find_map(|config| config.get("quantization_config"));
    config.contains_key("quantization")
        || entry.is_some_and(|entry| match entry.get("quant_method") {
            None => true,
            Some(method) => method == "mxfp4" || method == TERNARY,
        })
}

/// Writes how weights are packed, under the keys of MLX programs and of transformers.
pub(super) fn write_quantization(config: &mut Map<String, Value>, entry: Map<String, Value>) {
    config.insert("quantization".to_owned(), Value::Object(entry.clone()));
    config.insert("quantization_config".to_owned(), Value::Object(entry));
}

/// Adapts config.json to the weights: it names their dtype, and no vision tower. The base of the ropes is also written
/// where mlx-lm reads it.
pub(super) fn describe(config: &mut Map<String, Value>, dtype: Option<DType>, nested: bool) {
    config.shift_remove("_name_or_path");
    if nested {
        config.shift_remove("vision_config");
    }
    write_rope_base(config);
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        write_rope_base(text);
    }
    let name = match dtype {
        Some(DType::F32) => "float32",
        Some(DType::BF16) => "bfloat16",
        Some(DType::F16) => "float16",
        _ => return,
    };
    let set = |object: &mut Map<String, Value>| {
        for key in ["torch_dtype", "dtype"] {
            if let Some(value) = object.get_mut(key) {
                *value = json!(name);
            }
        }
    };
    set(config);
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        set(text);
    }
}

/// Copies the base of the ropes to `rope_theta` if only `rope_parameters` has it. mlx-lm reads `rope_theta` alone in many
/// families, and takes 10,000 without it. Ropes that differ between layers have no common base.
fn write_rope_base(config: &mut Map<String, Value>) {
    const BASE: &str = "rope_theta";
    let parameters = config.get("rope_parameters").and_then(Value::as_object);
    if let Some(base) = parameters.and_then(|own| own.get(BASE)).cloned()
        && base.is_number()
        && config.get(BASE).is_none_or(Value::is_null)
    {
        config.insert(BASE.to_owned(), base);
    }
}

/// Corrects the config of a model that has a head of its own although its config ties the head.
/// Other readers would drop the head.
pub(super) fn untie(
    config: &mut Map<String, Value>,
    tensors: &WrittenTensors<'_>,
    registry: &Registry,
) {
    let own = format!("{}lm_head.weight", tensors.prefix);
    if !tensors.arrays.iter().any(|(name, _)| *name == own) || !registry.ties(config) {
        return;
    }
    config.insert(TIED.to_owned(), json!(false));
    if let Some(Value::Object(text)) = config.get_mut("text_config")
        && text.contains_key(TIED)
    {
        text.insert(TIED.to_owned(), json!(false));
    }
}

/// Records that the norms of a head are stored in the model's form, so that a reader does not have
/// to infer it from the numbers.
pub(super) fn write_head(config: &mut Map<String, Value>, tensors: &WrittenTensors<'_>) {
    if tensors.head.is_some() {
        let config = match config.get_mut("text_config") {
            Some(Value::Object(text)) => text,
            _ => config,
        };
        config.insert(NORM_OFFSET.to_owned(), json!(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rope_theta` of a config after [`describe`].
    fn written(config: Value) -> Option<Value> {
        let Value::Object(mut config) = config else {
            unreachable!("the tests give objects");
        };
        describe(&mut config, None, false);
        config.remove("rope_theta")
    }

    #[test]
    fn the_base_of_ropes_is_where_mlx_lm_reads_it() {
        let parameters = json!({"rope_type": "default", "rope_theta": 100_000.0});
        let config = json!({"rope_parameters": parameters});
        assert_eq!(written(config), Some(json!(100_000.0)));
        let config = json!({"rope_theta": 5.0, "rope_parameters": parameters});
        assert_eq!(written(config), Some(json!(5.0)));
        let config = json!({"rope_parameters": {"full_attention": parameters}});
        assert_eq!(written(config), None);
        let config = json!({"rope_theta": null, "rope_parameters": parameters});
        assert_eq!(written(config), Some(json!(100_000.0)));
        assert_eq!(written(json!({})), None);
        let mut nested = json!({"text_config": {"rope_parameters": parameters}});
        describe(nested.as_object_mut().unwrap(), None, true);
        assert_eq!(nested["text_config"]["rope_theta"], json!(100_000.0));
        assert_eq!(nested.get("rope_theta"), None);
    }
}

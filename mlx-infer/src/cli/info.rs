//! `mlx-infer info`.

use clap::Args;
use mlx_core::Scheme;
use mlx_infer::convert::non_finite;
use mlx_infer::{LoadedModel, ModelInfo};
use mlx_models::ModelTask;
use mlx_nn::{KvShape, LayerKind, StateCost};
use serde_json::{Value, json};

use super::{Result, args, fit, memory, output};

mod parts;

/// The context length for the memory estimate if neither the model nor the user gives one.
pub(super) const DEFAULT_CONTEXT: usize = 4096;

#[derive(Args)]
pub(super) struct InfoArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    /// Instead, describe what each of this many ranks would hold, without loading the model
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl InfoArgs {
    pub(super) fn run(self) -> Result {
        if let Some(n) = self.ranks {
            let document = parts::describe(&self.load, n)?;
            return match self.json {
                true => output::print_json(&document),
                false => output::print(&parts::table(&document)),
            };
        }
        let free = memory::free();
        let model = self.load.load()?;
        let files = self.load.files()?;
        let mut document = describe(&model, &files.describe());
        let found = non_finite(&files)?;
        let context = document["memory"]["cache_context"].as_u64().unwrap_or(0) as usize;
        document["fit"] = json!(fit::describe(&model, free, context)?);
        document["non_finite"] = json!(found.as_ref().map(output::non_finite_json));
        if self.json {
            output::print_json(&document)
        } else {
            output::print(&table(&document))
        }
    }
}

/// The state of a layer.
#[derive(PartialEq)]
struct Cache {
    kind: &'static str,
    kv: Option<KvShape>,
    cost: StateCost,
}

impl Cache {
    fn describe(&self, layers: usize) -> Value {
        json!({
            "layers": layers,
            "kind": self.kind,
            "positions": self.cost.limit,
            "kv_heads": self.kv.map(|kv| kv.heads),
            "head_dim": self.kv.map(|kv| kv.key_dim),
            "bytes_per_row": self.cost.row_bytes,
            "bytes_per_position": self.cost.position_bytes,
        })
    }
}

fn describe(model: &LoadedModel, name: &str) -> Value {
    let info: &ModelInfo = model.info();
    let ring = model.options().context_len;
    let context = info.max_positions.unwrap_or(DEFAULT_CONTEXT);
    let costs = model.state_costs();
    let sum = |bytes: &dyn Fn(&StateCost) -> usize| costs.iter().map(bytes).sum::<usize>();
    let cache_bytes = sum(&|cost| cost.bytes(context));
    let mut caches: Vec<(Cache, usize)> = Vec::new();
    for ((kind, &cost), &kv) in info.layers.iter().zip(&costs).zip(info.geometry.kv()) {
        let kind = match (kind, cost.limit) {
            (LayerKind::Recurrent(_), _) => "recurrent",
            (LayerKind::Latent, None) => "compressed",
            (LayerKind::Latent, Some(_)) | (LayerKind::LatentWindow { .. }, _) => "compressed ring",
            (_, None) => "growing",
            (_, Some(_)) => "ring",
        };
        let cache = Cache { kind, kv, cost };
        match caches.iter_mut().find(|(found, _)| *found == cache) {
            Some((_, n)) => *n += 1,
            None => caches.push((cache, 1)),
        }
    }
    let caches: Vec<Value> = caches.iter().map(|(cache, n)| cache.describe(*n)).collect();
    let described = |scheme: Option<Scheme>| {
        scheme.map(|scheme| {
            json!({"mode": scheme.mode.to_string(), "bits": scheme.bits, "group_size": scheme.group_size})
        })
    };
    json!({
        "model": name,
        "architecture": info.model_type,
        "task": match info.task {
            ModelTask::Generate => "generate",
            ModelTask::Embed => "embed",
            ModelTask::Headless => "embed, without an output head",
            ModelTask::Classify(_) => "classify",
        },
        "parameters": info.n_parameters,
        "dtype": info.dtype.to_string(),
        "quantization": described(info.quantization),
        "stored": info.stored,
        "mtp": info.head.as_ref().map(|head| json!({
            "parameters": head.n_parameters,
            "bytes": head.bytes,
            "quantization": described(head.quantization),
        })),
        "layers": info.geometry.layers().len(),
        "hidden": info.hidden,
        "vocab": info.vocab,
        "kv_heads": of_layers(info, |kv| kv.heads),
        "head_dim": of_layers(info, |kv| kv.key_dim),
        "context": info.max_positions,
        "context_len": ring,
        "kv_quantization": described(model.options().kv_quantization),
        "caches": caches,
        "memory": {
            "weight_bytes": info.weight_bytes,
            "cache_bytes_per_row": sum(&|cost| cost.row_bytes),
            "cache_bytes_per_position": sum(&|cost| cost.position_bytes),
            "cache_bytes": cache_bytes,
            "cache_context": context,
            "total_bytes": info.weight_bytes + cache_bytes,
        },
        "eos_ids": model.eos_ids(),
        "tokenizer": model.tokenizer().ok().map(|tokenizer| json!({"vocab": tokenizer.vocab_size(), "bos_id": tokenizer.bos_id()})),
        "chat_template": model.chat_template().ok().map(|template| if template.is_built_in() { "built-in" } else { "own" }),
        "unread_config_keys": info.unread_keys,
    })
}

/// A size of every layer's keys and values (null without attention): one number if all layers have the same.
fn of_layers(info: &ModelInfo, size: impl Fn(&KvShape) -> i32) -> Value {
    let layers = info.geometry.layers().iter();
    let sizes: Vec<Option<i32>> = layers.map(|layer| layer.kv.as_ref().map(&size)).collect();
    match sizes.first() {
        Some(first) if sizes.iter().all(|size| size == first) => json!(first),
        _ => json!(sizes),
    }
}

/// A value as text, without JSON's quotation marks.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn table(document: &Value) -> String {
    let bytes = |value: &Value| output::bytes(value.as_u64().unwrap_or(0) as usize);
    let mut rows: Vec<(&str, String)> = ["model", "architecture", "task", "parameters", "dtype"]
        .into_iter()
        .map(|key| (key, text(&document[key])))
        .collect();
    let named = |scheme: &Value| match scheme {
        Value::Null => "none".to_owned(),
        scheme => format!(
            "{}, {} bits, groups of {}",
            text(&scheme["mode"]),
            scheme["bits"],
            scheme["group_size"]
        ),
    };
    let scheme = |key| named(&document[key]);
    rows.push(("quantisation", scheme("quantization")));
    if let head @ Value::Object(_) = &document["mtp"] {
        let packing = match &head["quantization"] {
            Value::Null => "dense".to_owned(),
            scheme => named(scheme),
        };
        let (parameters, size) = (text(&head["parameters"]), bytes(&head["bytes"]));
        rows.push((
            "mtp head",
            format!("{parameters} parameters, {size}, {packing}"),
        ));
    }
    if let Value::String(stored) = &document["stored"] {
        rows.push(("files have", stored.clone()));
    }
    for key in ["layers", "hidden", "vocab", "context"] {
        rows.push((key, text(&document[key])));
    }
    for cache in document["caches"].as_array().into_iter().flatten() {
        let positions = match &cache["positions"] {
            Value::Null => String::new(),
            n => format!(" of {n} positions"),
        };
        let heads = match &cache["kv_heads"] {
            Value::Null => String::new(),
            n => format!(", {n} heads of {}", cache["head_dim"]),
        };
        rows.push((
            "caches",
            format!(
                "{} layers, {}{positions}{heads}",
                cache["layers"],
                text(&cache["kind"])
            ),
        ));
    }
    rows.push((
        "keys, values",
        match &document["kv_quantization"] {
            Value::Null => text(&document["dtype"]),
            _ => scheme("kv_quantization"),
        },
    ));
    let memory = &document["memory"];
    rows.push(("weights", bytes(&memory["weight_bytes"])));
    if let found @ Value::Object(_) = &document["non_finite"] {
        let said = format!(
            "{} elements of {} tensors, first in {}",
            found["elements"],
            found["tensors"],
            text(&found["first"])
        );
        rows.push(("NaN, infinite", said));
    }
    let context = &memory["cache_context"];
    rows.push((
        "caches need",
        format!("{} at {context} tokens", bytes(&memory["cache_bytes"])),
    ));
    rows.push(("memory needed", bytes(&memory["total_bytes"])));
    if let fit @ Value::Object(_) = &document["fit"] {
        if let free @ Value::Number(_) = &fit["free_bytes"] {
            rows.push(("memory free", bytes(free)));
        }
        for fits in fit["rows"].as_array().into_iter().flatten() {
            let said = format!("{} rows of {} tokens", fits["rows"], fits["context"]);
            rows.push(("fits", said));
        }
    }
    rows.push(("end tokens", text(&document["eos_ids"])));
    rows.push(("chat template", text(&document["chat_template"])));
    let unread = &document["unread_config_keys"];
    if unread.as_array().is_some_and(|keys| !keys.is_empty()) {
        rows.push(("not understood", text(unread)));
    }
    rows.iter()
        .map(|(name, value)| format!("{name:<15} {value}\n"))
        .collect()
}

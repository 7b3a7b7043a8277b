//! From a model's config.json to the metadata of its architecture: the inverse of
//! [`Metadata`](super::config::Metadata).

use std::collections::BTreeMap;

use mlx_core::gguf::Value as Stored;
use mlx_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use super::architectures::{self, Architecture};

/// The `model_type`s that are written, and the architecture of each.
pub(super) const WRITTEN: &[(&str, &str)] = &[
    ("llama", "llama"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("arcee", "arcee"),
    ("smollm3", "smollm3"),
    ("qwen2", "qwen2"),
    ("qwen2_moe", "qwen2moe"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("gemma", "gemma"),
    ("gemma2", "gemma2"),
    ("gemma3", "gemma3"),
    ("gemma3_text", "gemma3"),
    ("phi3", "phi3"),
    ("starcoder2", "starcoder2"),
    ("stablelm", "stablelm"),
    ("cohere", "command-r"),
    ("cohere2", "cohere2"),
    ("olmo", "olmo"),
    ("olmo2", "olmo2"),
    ("olmo3", "olmo2"),
    ("olmoe", "olmoe"),
    ("granite", "granite"),
    ("granitemoe", "granitemoe"),
    ("seed_oss", "seed_oss"),
    ("exaone4", "exaone4"),
    ("ernie4_5", "ernie4_5"),
    ("glm", "chatglm"),
    ("glm4", "glm4"),
    ("lfm2", "lfm2"),
];

/// Keys whose values are F32, without those of the rope.
const FLOATS: [&str; 9] = [
    "attention.scale",
    "attention.clamp_kqv",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "expert_weights_scale",
    "rope.freq_base_swa",
];

/// Kinds of ropes by the type of the layer, in configs of transformers 5.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// The sizes of a model as it was built.
pub(crate) struct GgufSizes {
    pub vocab: i32,
    pub hidden: i32,
    pub context: Option<usize>,
    /// Query heads and KV heads of each layer; 0 in a layer without attention.
    pub heads: Vec<(i32, i32)>,
    pub head_dim: i32,
    /// The window of each layer that has one.
    pub windows: Vec<Option<usize>>,
    /// Features inside the MLP of each layer; 0 in a layer of experts.
    pub feed_forward: Vec<i32>,
}

/// The metadata of a model, and what its tensors need.
pub(crate) struct Described {
    pub(super) architecture: &'static Architecture,
    /// Query heads and KV heads.
    pub(super) heads: (i32, i32),
    /// All keys of the architecture, and `general.architecture`.
    pub metadata: BTreeMap<String, Stored>,
    /// Tensors of the rope.
    pub factors: Vec<(&'static str, Vec<f32>)>,
}

/// The metadata of a model of this type; `config` is its config.json, or the `text_config` of one.
///
/// # Errors
/// The type has no architecture, or the config says something that the architecture has no key for.
pub(crate) fn describe(
    label: &str,
    model_type: &str,
    config: &Map<String, Value>,
    sizes: &GgufSizes,
) -> Result<Described> {
    let unsupported = |what: String| Error::new(ErrorKind::Unsupported, format!("{label}: {what}"));
    let row = WRITTEN.iter().find(|(name, _)| *name == model_type);
    let row = row.and_then(|(_, name)| architectures::ALL.iter().find(|row| row.name == *name));
    let architecture = row.ok_or_else(|| {
        let known: Vec<&str> = WRITTEN.iter().map(|(name, _)| *name).collect();
        unsupported(format!(
            "models of type {model_type} cannot be written in GGUF; those that can: {}",
            known.join(", ")
        ))
    })?;
    let heads = sizes.heads.iter().find(|(heads, _)| *heads > 0);
    let (queries, keys) = heads.copied().unwrap_or_default();
    let mut writer = Writer {
        architecture,
        config: with_old_ropes(config),
        metadata: BTreeMap::new(),
        factors: Vec::new(),
    };
    writer.sizes(sizes, queries).map_err(&unsupported)?;
    writer.keys().map_err(&unsupported)?;
    writer.rope(sizes.head_dim).map_err(&unsupported)?;
    let mut metadata: BTreeMap<String, Stored> = writer
        .metadata
        .into_iter()
        .map(|(key, value)| (format!("{}.{key}", architecture.name), value))
        .collect();
    metadata.insert("general.architecture".to_owned(), architecture.name.into());
    Ok(Described {
        architecture,
        heads: (queries, keys),
        metadata,
        factors: writer.factors,
    })
}

/// The config with `rope_parameters` in the keys that came before them.
fn with_old_ropes(config: &Map<String, Value>) -> Map<String, Value> {
    let mut config = config.clone();
    let Some(Value::Object(parameters)) = config.shift_remove("rope_parameters") else {
        return config;
    };
    let mut put = |entry: &Map<String, Value>, theta: &str, with_scaling: bool| {
        for (from, to) in [
            ("rope_theta", theta),
            ("partial_rotary_factor", "partial_rotary_factor"),
        ] {
            if let (Some(value), false) = (entry.get(from), config.contains_key(to)) {
                config.insert(to.to_owned(), value.clone());
            }
        }
        let kind = entry.get("rope_type").and_then(Value::as_str);
        if with_scaling && kind.is_some_and(|kind| kind != "default") {
            config.insert("rope_scaling".to_owned(), Value::Object(entry.clone()));
        }
    };
    match (parameters.get(FULL), parameters.get(SLIDING)) {
        (Some(Value::Object(full)), sliding) => {
            put(full, "rope_theta", true);
            if let Some(Value::Object(sliding)) = sliding {
                put(sliding, "rope_local_base_freq", false);
            }
        }
        _ => put(&parameters, "rope_theta", true),
    }
    config
}

struct Writer {
    architecture: &'static Architecture,
    config: Map<String, Value>,
    metadata: BTreeMap<String, Stored>,
    factors: Vec<(&'static str, Vec<f32>)>,
}

impl Writer {
    fn put(&mut self, key: &str, value: impl Into<Stored>) {
        self.metadata.insert(key.to_owned(), value.into());
    }

    /// A number for all layers, or one for each.
    fn put_layers(&mut self, key: &str, numbers: &[i32]) {
        match numbers.split_first() {
            Some((&first, rest)) if rest.iter().all(|&number| number == first) => {
                self.put(key, first as u32);
            }
            _ => self.put(key, numbers.to_vec()),
        }
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.config.get(key).and_then(Value::as_f64)
    }

    /// Whether files of the architecture have a key.
    fn has(&self, key: &str) -> bool {
        self.architecture.keys.iter().any(|(own, _)| *own == key)
    }

    fn sizes(&mut self, sizes: &GgufSizes, queries: i32) -> Result<(), String> {
        self.put("block_count", sizes.heads.len() as u32);
        self.put("embedding_length", sizes.hidden as u32);
        self.put("vocab_size", sizes.vocab as u32);
        if let Some(context) = sizes.context {
            self.put("context_length", context as u32);
        }
        self.put("attention.head_count", queries as u32);
        let keys: Vec<i32> = sizes.heads.iter().map(|(_, keys)| *keys).collect();
        self.put_layers("attention.head_count_kv", &keys);
        self.put("attention.key_length", sizes.head_dim as u32);
        self.put("attention.value_length", sizes.head_dim as u32);
        match sizes.feed_forward.iter().any(|&size| size > 0) {
            true => {
                let of_experts = self.number("intermediate_size").unwrap_or(0.0) as i32;
                let inside = |&size: &i32| if size > 0 { size } else { of_experts };
                let all: Vec<i32> = sizes.feed_forward.iter().map(inside).collect();
                self.put_layers("feed_forward_length", &all);
            }
            false => {
                if let Some(size) = self.number("intermediate_size") {
                    self.put("feed_forward_length", size as u32);
                }
            }
        }
        let mut windows = sizes.windows.iter().flatten();
        if let Some(&window) = windows.next() {
            if !self.has("attention.sliding_window") {
                return Err(format!(
                    "layers have a window of {window} positions, for which architecture {} has no key",
                    self.architecture.name
                ));
            }
            self.put("attention.sliding_window", window as u32);
            // llama.cpp has the pattern of the first two Gemmas with windows itself.
            if !self.architecture.name.starts_with("gemma") {
                let windows: Vec<bool> = sizes.windows.iter().map(Option::is_some).collect();
                self.put("attention.sliding_window_pattern", windows);
            }
        } else if self.architecture.name == "phi3" {
            self.put("attention.sliding_window", 0u32);
        }
        Ok(())
    }

    /// The keys of the architecture's table that follow from no size.
    fn keys(&mut self) -> Result<(), String> {
        let architecture = self.architecture;
        for &(key, from) in architecture.keys {
            if self.metadata.contains_key(key) || key == "attention.sliding_window" {
                continue;
            }
            let value = match self.config.get(from) {
                None | Some(Value::Null) => continue,
                Some(value) => value.clone(),
            };
            let wrong = || format!("config.json: {from}: {value} is not supported");
            let stored: Stored = match &value {
                Value::Bool(value) => (*value).into(),
                Value::Number(number) if FLOATS.contains(&key) => {
                    (number.as_f64().ok_or_else(wrong)? as f32).into()
                }
                Value::Number(number) => {
                    let number = number
                        .as_u64()
                        .and_then(|number| u32::try_from(number).ok());
                    number.ok_or_else(wrong)?.into()
                }
                _ => return Err(wrong()),
            };
            self.put(key, stored);
        }
        if !architecture.eps.is_empty() {
            let eps = self.number(architecture.eps);
            let eps = eps.or((architecture.name == "gemma3").then_some(1e-6));
            let eps = eps.ok_or_else(|| format!("config.json: {} is missing", architecture.eps))?;
            let is_rms = ["rms_norm_eps", "norm_eps"].contains(&architecture.eps);
            let key = if is_rms {
                "layer_norm_rms_epsilon"
            } else {
                "layer_norm_epsilon"
            };
            self.put(&format!("attention.{key}"), eps as f32);
        } else {
            // OLMo's norms have no weights, and llama.cpp's reader wants a number.
            self.put("attention.layer_norm_epsilon", 1e-5f32);
        }
        Ok(())
    }

    fn rope(&mut self, head_dim: i32) -> Result<(), String> {
        let is_gemma3 = self.architecture.name == "gemma3";
        let theta = self.number("rope_theta");
        let theta = theta.or(is_gemma3.then_some(1e6)).unwrap_or(1e4);
        self.put("rope.freq_base", theta as f32);
        if is_gemma3 && !self.metadata.contains_key("rope.freq_base_swa") {
            self.put("rope.freq_base_swa", 1e4f32);
        }
        let partial = self.number("partial_rotary_factor").unwrap_or(1.0);
        let dims = (f64::from(head_dim) * partial) as i32;
        self.put("rope.dimension_count", dims as u32);
        let Some(Value::Object(entry)) = self.config.get("rope_scaling").cloned() else {
            return Ok(());
        };
        let kind = entry.get("rope_type").or_else(|| entry.get("type"));
        let kind = kind.and_then(Value::as_str).unwrap_or("default");
        let number = |key: &str| entry.get(key).and_then(Value::as_f64);
        let needed = |key: &str| {
            number(key).ok_or_else(|| format!("config.json: rope_scaling.{key} is missing"))
        };
        match kind {
            "default" => {}
            "linear" => {
                self.put("rope.scaling.type", "linear");
                self.put("rope.scaling.factor", needed("factor")? as f32);
            }
            "yarn" => {
                if let Some(key) = ["mscale", "mscale_all_dim", "truncate"]
                    .iter()
                    .find(|key| entry.get(**key).is_some_and(|value| !value.is_null()))
                {
                    return Err(format!(
                        "config.json: rope_scaling.{key} has no counterpart in GGUF"
                    ));
                }
                let original = number("original_max_position_embeddings")
                    .or_else(|| self.number("original_max_position_embeddings"))
                    .or_else(|| self.number("max_position_embeddings"));
                self.put("rope.scaling.type", "yarn");
                self.put("rope.scaling.factor", needed("factor")? as f32);
                if let Some(original) = original {
                    self.put("rope.scaling.original_context_length", original as u32);
                }
                for (from, key) in [
                    ("attention_factor", "yarn_attn_factor"),
                    ("beta_fast", "yarn_beta_fast"),
                    ("beta_slow", "yarn_beta_slow"),
                ] {
                    if let Some(value) = number(from) {
                        self.put(&format!("rope.scaling.{key}"), value as f32);
                    }
                }
            }
            "llama3" => {
                let factors = llama3(
                    theta,
                    dims,
                    needed("factor")?,
                    needed("low_freq_factor")?,
                    needed("high_freq_factor")?,
                    needed("original_max_position_embeddings")?,
                );
                self.factors.push(("rope_freqs.weight", factors));
            }
            "longrope" | "su" if self.architecture.name == "phi3" => self.longrope(&entry, dims)?,
            other => {
                return Err(format!(
                    "config.json: a rope of type {} cannot be written in GGUF for architecture {}",
                    json!(other),
                    self.architecture.name
                ));
            }
        }
        Ok(())
    }

    /// The factors of Phi 3, for short and long texts.
    fn longrope(&mut self, entry: &Map<String, Value>, dims: i32) -> Result<(), String> {
        let list = |key: &str| -> Result<Vec<f32>, String> {
            let list = entry.get(key).and_then(Value::as_array);
            let numbers = list.into_iter().flatten().map(Value::as_f64);
            let numbers: Option<Vec<f32>> = numbers.map(|number| Some(number? as f32)).collect();
            let numbers = numbers.filter(|list| list.len() as i32 == dims / 2);
            numbers.ok_or_else(|| {
                format!(
                    "config.json: rope_scaling.{key} must be {} numbers",
                    dims / 2
                )
            })
        };
        let of_config = |key: &str| {
            let found = self.number(key);
            found.ok_or_else(|| format!("config.json: {key} is missing"))
        };
        let original = of_config("original_max_position_embeddings")?;
        let stretch = of_config("max_position_embeddings")? / original;
        let amplitude = match entry.get("attention_factor").and_then(Value::as_f64) {
            Some(given) => given,
            None if stretch > 1.0 => (1.0 + stretch.ln() / original.ln()).sqrt(),
            None => 1.0,
        };
        self.factors
            .push(("rope_factors_long.weight", list("long_factor")?));
        self.factors
            .push(("rope_factors_short.weight", list("short_factor")?));
        self.put("rope.scaling.original_context_length", original as u32);
        self.put("rope.scaling.attn_factor", amplitude as f32);
        Ok(())
    }
}

/// The factors of Llama 3's scaling, one for each frequency: `_compute_llama3_parameters` of
/// transformers, as quotients of the frequencies.
fn llama3(theta: f64, dims: i32, factor: f64, low: f64, high: f64, original: f64) -> Vec<f32> {
    let one = |at: i32| {
        let wavelength = std::f64::consts::TAU * theta.powf(f64::from(2 * at) / f64::from(dims));
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor as f32
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        }
    };
    (0..dims / 2).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::architectures::KEYS;
    use super::*;

    #[test]
    fn every_row_is_known_and_every_common_key_is_written() {
        let sizes = GgufSizes {
            vocab: 8,
            hidden: 16,
            context: Some(32),
            heads: vec![(2, 1); 2],
            head_dim: 8,
            windows: vec![None; 2],
            feed_forward: vec![24; 2],
        };
        for (model_type, name) in WRITTEN {
            let row = architectures::ALL
                .iter()
                .find(|row| row.name == *name)
                .unwrap();
            let mut config = Map::new();
            config.insert(row.eps.to_owned(), json!(1e-5));
            let described = describe("m", model_type, &config, &sizes).unwrap();
            for (key, _) in KEYS {
                let key = format!("{name}.{key}");
                assert!(described.metadata.contains_key(&key), "{model_type}: {key}");
            }
        }
        let error = describe("m", "mamba", &Map::new(), &sizes).err().unwrap();
        let expected = "m: models of type mamba cannot be written in GGUF; those that can: llama, ";
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    #[test]
    fn factors_of_llama_3() {
        // The quotients that transformers 5.24 computes for Llama 3.2's settings.
        let factors = llama3(5e5, 64, 32.0, 1.0, 4.0, 8192.0);
        assert_eq!(factors.len(), 32);
        assert_eq!((factors[0], factors[31]), (1.0, 32.0));
        assert!(factors.is_sorted());
    }
}

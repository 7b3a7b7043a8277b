//! From metadata to the config.json of a family.

use std::cell::RefCell;
use std::collections::BTreeSet;

use mlx_core::gguf::{FromValue, Gguf, List, Value as Stored};
use mlx_core::{DType, Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use super::architectures::{self, Architecture, KEYS, SILENT};

/// The key of the config for heads for multi-token prediction, which are not read.
pub(super) const HEADS: &str = "num_nextn_predict_layers";

/// The metadata of a model, and the names of its tensors.
pub(super) struct Metadata<'a> {
    /// The first file, which has the metadata.
    file: &'a Gguf,
    files: Vec<&'a Gguf>,
    names: BTreeSet<&'a str>,
    architecture: &'static Architecture,
    /// The keys that were read.
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Metadata<'a> {
    /// The metadata of the first of a model's files.
    ///
    /// # Errors
    /// The architecture is not given or not known.
    pub(super) fn of(files: &[&'a Gguf]) -> Result<Self> {
        let file = files[0];
        let name: &str = file.value("general.architecture")?;
        let mut rows = architectures::ALL.iter();
        let architecture = rows.find(|row| row.name == name).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{}: general.architecture {name:?} is not supported; supported: {}",
                    file.label(),
                    architectures::names()
                ),
            )
        })?;
        Ok(Self {
            file,
            files: files.to_vec(),
            names: files.iter().flat_map(|file| file.names()).collect(),
            architecture,
            read: RefCell::default(),
        })
    }

    pub(super) fn architecture(&self) -> &'static Architecture {
        self.architecture
    }

    /// The value of a key of the architecture.
    pub(super) fn find<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.read.borrow_mut().insert(key.to_owned());
        self.file.find(&self.full(key))
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    fn value(&self, key: &str) -> Option<&'a Stored> {
        self.read.borrow_mut().insert(key.to_owned());
        self.file.metadata().get(&self.full(key))
    }

    /// Whether any layer has the tensor.
    pub(super) fn has(&self, part: &str) -> bool {
        let mut names = self.names.iter().filter_map(|name| in_layer(name));
        names.any(|(_, found)| found == part)
    }

    fn error(&self, what: String) -> Error {
        Error::new(ErrorKind::Format, format!("{}: {what}", self.file.label()))
    }

    /// The config.json of the family, without the schemes of packed weights.
    ///
    /// # Errors
    /// A key is missing or has a value of another kind.
    pub(super) fn config(&self) -> Result<Map<String, Value>> {
        let row = self.architecture;
        let mut config = Map::new();
        config.insert("model_type".to_owned(), json!(row.model_type));
        for (key, literal) in row.fixed {
            let value =
                serde_json::from_str(literal).map_err(|error| self.error(error.to_string()))?;
            config.insert((*key).to_owned(), value);
        }
        for &(key, to) in KEYS.iter().chain(row.keys) {
            if let Some(value) = self.value(key) {
                config.insert(to.to_owned(), self.json(key, value)?);
            }
        }
        for &key in &["embedding_length", "block_count", "attention.head_count"] {
            if self.value(key).is_none() {
                return Err(self.error(format!("no key {:?}", self.full(key))));
            }
        }
        for key in ["layer_norm_rms_epsilon", "layer_norm_epsilon"] {
            let key = format!("attention.{key}");
            if let (Some(value), false) = (self.value(&key), row.eps.is_empty()) {
                config.insert(row.eps.to_owned(), self.json(&key, value)?);
            }
        }
        // Heads for multi-token prediction are layers after the last.
        if let Some(heads @ 1..) = self.find::<i64>("nextn_predict_layers")? {
            let layers = config.get("num_hidden_layers").and_then(Value::as_i64);
            let layers = layers.map(|layers| layers.saturating_sub(heads));
            config.insert("num_hidden_layers".to_owned(), json!(layers));
            config.insert(HEADS.to_owned(), json!(0));
        }
        // Some files have four times the hidden size, whatever the tensors have.
        if let Some(size) = self.columns("ffn_down.weight")? {
            config.insert("intermediate_size".to_owned(), json!(size));
        }
        for &(part, key) in row.flags {
            config.insert(key.to_owned(), json!(self.has(part)));
        }
        let (_, shape) = self.holder("token_embd.weight").info("token_embd.weight")?;
        config.insert("vocab_size".to_owned(), json!(shape.first()));
        let tied = !self.names.contains("output.weight");
        config.insert("tie_word_embeddings".to_owned(), json!(tied));
        self.rope(&mut config)?;
        self.layer_types(&mut config)?;
        (row.more)(self, &mut config)?;
        self.warn();
        Ok(config)
    }

    /// The file that has a tensor; the first if none has it.
    fn holder(&self, name: &str) -> &'a Gguf {
        let mut files = self.files.iter().copied();
        files.find(|file| file.contains(name)).unwrap_or(self.file)
    }

    /// The shape of a tensor in a layer that has it.
    fn shape(&self, part: &str) -> Result<Option<&'a [i32]>> {
        let is_part = |name: &&&str| in_layer(name).is_some_and(|(_, found)| found == part);
        match self.names.iter().find(is_part) {
            None => Ok(None),
            Some(name) => Ok(Some(self.holder(name).info(name)?.1)),
        }
    }

    /// The length of the rows of a matrix.
    fn columns(&self, part: &str) -> Result<Option<i32>> {
        Ok(self.shape(part)?.and_then(|shape| shape.last().copied()))
    }

    /// The number of rows of a matrix.
    fn rows(&self, part: &str) -> Result<Option<i32>> {
        Ok(self.shape(part)?.and_then(|shape| shape.first().copied()))
    }

    /// A value as config.json has it.
    fn json(&self, key: &str, value: &Stored) -> Result<Value> {
        let wrong = || self.error(format!("key {:?} is {}", self.full(key), value.kind()));
        let integer = |value: &Stored| i64::from_value(value).map(Value::from);
        Ok(match value {
            Stored::F32(value) => json!(shortest(*value)),
            Stored::F64(value) => json!(value),
            Stored::Bool(value) => json!(value),
            Stored::Text(value) => json!(value),
            // A number for each layer; most files have one for all.
            Stored::List(list) => {
                let list: Vec<Value> = match list {
                    List::U32(list) => list.iter().map(|&value| json!(value)).collect(),
                    List::I32(list) => list.iter().map(|&value| json!(value)).collect(),
                    List::F32(list) => list.iter().map(|&value| json!(shortest(value))).collect(),
                    List::Bool(list) => list.iter().map(|&value| json!(value)).collect(),
                    _ => return Err(wrong()),
                };
                match list.split_first() {
                    Some((first, rest)) if rest.iter().all(|value| value == first) => first.clone(),
                    _ => json!(list),
                }
            }
            other => integer(other).ok_or_else(wrong)?,
        })
    }

    /// The rope's part of the head, and its scaling.
    fn rope(&self, config: &mut Map<String, Value>) -> Result<()> {
        let heads: Option<i64> = config.get("num_attention_heads").and_then(Value::as_i64);
        let hidden: Option<i64> = config.get("hidden_size").and_then(Value::as_i64);
        let (Some(heads), Some(hidden)) = (heads.filter(|&n| n > 0), hidden) else {
            return Ok(());
        };
        let own = config.get("head_dim").and_then(Value::as_i64);
        let of_rows = self
            .rows("attn_q.weight")?
            .map(|rows| i64::from(rows) / heads);
        let head_dim = own.or(of_rows).unwrap_or(hidden / heads);
        // Families have defaults of their own for a missing head size.
        let is_usual =
            head_dim == hidden / heads && !self.architecture.model_type.starts_with("glm");
        if own.is_none() && !is_usual {
            config.insert("head_dim".to_owned(), json!(head_dim));
        }
        if let Some(dims) = self.find::<i64>("rope.dimension_count")?
            && dims != head_dim
            && dims > 0
            && head_dim > 0
        {
            let partial = dims as f64 / head_dim as f64;
            config.insert("partial_rotary_factor".to_owned(), json!(partial));
        }
        if let Some(scaling) = self.scaling(config)? {
            config.insert("rope_scaling".to_owned(), scaling);
        }
        Ok(())
    }

    fn scaling(&self, config: &mut Map<String, Value>) -> Result<Option<Value>> {
        let kind: Option<&str> = self.find("rope.scaling.type")?;
        let factor = self.find::<f32>("rope.scaling.factor")?.map(shortest);
        // An older name of the factor.
        let factor = factor.or(self.find::<f32>("rope.scale_linear")?.map(shortest));
        let original = self.find::<u32>("rope.scaling.original_context_length")?;
        let long_amplitude = self.find::<f32>("rope.scaling.attn_factor")?.map(shortest);
        let amplitude = self
            .find::<f32>("rope.scaling.yarn_attn_factor")?
            .map(shortest);
        let fast = self
            .find::<f32>("rope.scaling.yarn_beta_fast")?
            .map(shortest);
        let slow = self
            .find::<f32>("rope.scaling.yarn_beta_slow")?
            .map(shortest);
        let [all, long, short] =
            ["freqs", "factors_long", "factors_short"].map(|name| self.factors(name));
        let context = config.get("max_position_embeddings").cloned();
        if let (Some(long), Some(short)) = (long?, short?) {
            let mut scaling =
                json!({"rope_type": "longrope", "long_factor": long, "short_factor": short});
            if let Some(amplitude) = long_amplitude {
                scaling["attention_factor"] = json!(amplitude);
            }
            if let Some(original) = original {
                scaling["original_max_position_embeddings"] = json!(original);
                // Phi-3 has the key outside.
                config.insert(
                    "original_max_position_embeddings".to_owned(),
                    json!(original),
                );
            }
            return Ok(Some(scaling));
        }
        // Llama 3's scaling is stored as its result, a factor for each frequency.
        if let Some(all) = all? {
            return Ok(Some(json!({
                "rope_type": "longrope", "long_factor": all, "short_factor": all, "attention_factor": 1.0,
                "original_max_position_embeddings": context,
            })));
        }
        match kind {
            None | Some("none") => {
                if let Some(original) = original {
                    config.insert(
                        "original_max_position_embeddings".to_owned(),
                        json!(original),
                    );
                }
                Ok(factor
                    .filter(|&factor| kind.is_none() && factor != 1.0)
                    .map(|factor| json!({"rope_type": "linear", "factor": factor})))
            }
            Some("linear") => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
            Some("yarn") => {
                let mut scaling = json!({"rope_type": "yarn", "factor": factor});
                let parts = [
                    ("attention_factor", amplitude),
                    ("beta_fast", fast),
                    ("beta_slow", slow),
                    ("original_max_position_embeddings", original.map(f64::from)),
                ];
                for (key, value) in parts {
                    if let Some(value) = value {
                        scaling[key] = json!(value);
                    }
                }
                Ok(Some(scaling))
            }
            Some(other) => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{}: key {:?} is {other:?}; supported: none, linear, yarn, and tensors with factors",
                    self.file.label(),
                    self.full("rope.scaling.type")
                ),
            )),
        }
    }

    /// The numbers of a tensor `rope_NAME.weight`.
    fn factors(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let name = format!("rope_{name}.weight");
        let file = self.holder(&name);
        if !file.contains(&name) {
            return Ok(None);
        }
        let factors: Vec<f32> = file.array(&name)?.astype(DType::F32)?.to_vec()?;
        Ok(Some(factors.into_iter().map(shortest).collect()))
    }

    /// `layer_types` from the list of layers with a window.
    fn layer_types(&self, config: &mut Map<String, Value>) -> Result<()> {
        const KEY: &str = "attention.sliding_window_pattern";
        match self.value(KEY) {
            None => {}
            Some(Stored::List(List::Bool(windows))) => {
                let kind = |&window| match window {
                    true => "sliding_attention",
                    false => "full_attention",
                };
                let kinds: Vec<&str> = windows.iter().map(kind).collect();
                config.insert("layer_types".to_owned(), json!(kinds));
            }
            Some(value) => {
                config.insert("sliding_window_pattern".to_owned(), self.json(KEY, value)?);
            }
        }
        Ok(())
    }

    /// Warns of keys of the architecture that were not read.
    fn warn(&self) {
        let prefix = format!("{}.", self.architecture.name);
        let read = self.read.borrow();
        for key in self.file.metadata().keys() {
            let Some(own) = key.strip_prefix(&prefix) else {
                continue;
            };
            if !read.contains(own) && !SILENT.contains(&own) {
                tracing::warn!(
                    "{}: key {key:?} is not known to this version and has no effect",
                    self.file.label()
                );
            }
        }
    }

    /// Gemma's `query_pre_attn_scalar`, which files lack: the head size, but in the model of so many layers the
    /// hidden size by the number of heads (27B).
    pub(super) fn gemma_scale(&self, config: &mut Map<String, Value>, layers: i64) -> Result<()> {
        let number = |key: &str| config.get(key).and_then(Value::as_i64);
        let scalar = match (number("hidden_size"), number("num_attention_heads")) {
            (Some(hidden), Some(heads))
                if number("num_hidden_layers") == Some(layers) && heads > 0 =>
            {
                Some(hidden / heads)
            }
            _ => number("head_dim"),
        };
        if let Some(scalar) = scalar {
            config.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
        }
        Ok(())
    }

    /// Phi-4 has no window, and says so by the window 0.
    pub(super) fn phi3_window(&self, config: &mut Map<String, Value>) -> Result<()> {
        if config.get("sliding_window").and_then(Value::as_i64) == Some(0) {
            config.insert("sliding_window".to_owned(), Value::Null);
        }
        Ok(())
    }

    /// OLMo 3 is OLMo 2 with windows.
    pub(super) fn olmo3(&self, config: &mut Map<String, Value>) -> Result<()> {
        self.find::<f32>("rope.freq_base_swa")?;
        if config.contains_key("sliding_window") {
            config.insert("model_type".to_owned(), json!("olmo3"));
        }
        Ok(())
    }

    /// The sizes of latent attention, and V2 or V3: V3 chooses experts by a sigmoid.
    pub(super) fn deepseek(&self, config: &mut Map<String, Value>) -> Result<()> {
        const SIGMOID: u32 = 2;
        let missing = |key: &str| self.error(format!("no key {:?}", self.full(key)));
        let size = |key: &str| self.find::<i64>(key);
        let rope = size("rope.dimension_count")?.ok_or_else(|| missing("rope.dimension_count"))?;
        // Older files have the sizes of the heads at other keys.
        let key = size("attention.key_length_mla")?.or(size("attention.key_length")?);
        let key = key.ok_or_else(|| missing("attention.key_length"))?;
        let value = size("attention.value_length_mla")?.or(size("attention.value_length")?);
        let value = value.ok_or_else(|| missing("attention.value_length"))?;
        let rank =
            size("attention.kv_lora_rank")?.ok_or_else(|| missing("attention.kv_lora_rank"))?;
        let is_v3 = self.find::<u32>("expert_gating_func")? == Some(SIGMOID)
            || self.has("exp_probs_b.bias");
        let heads = config.get("num_attention_heads").cloned();
        config.remove("head_dim");
        config.remove("partial_rotary_factor");
        let sizes = [
            ("num_key_value_heads", json!(heads)),
            ("qk_rope_head_dim", json!(rope)),
            ("qk_nope_head_dim", json!(key.saturating_sub(rope))),
            ("v_head_dim", json!(value)),
            ("kv_lora_rank", json!(rank)),
            ("q_lora_rank", json!(size("attention.q_lora_rank")?)),
        ];
        for (key, value) in sizes {
            config.insert(key.to_owned(), value);
        }
        let groups = config.get("n_group").and_then(Value::as_i64);
        if is_v3 {
            config.insert("model_type".to_owned(), json!("deepseek_v3"));
        } else {
            let method = match groups {
                Some(2..) => "group_limited_greedy",
                _ => "greedy",
            };
            config.insert("topk_method".to_owned(), json!(method));
        }
        if let Some(all) = self.find::<f32>("rope.scaling.yarn_log_multiplier")?
            && let Some(Value::Object(rope)) = config.get_mut("rope_scaling")
        {
            // The file has a tenth of it.
            let all = (f64::from(all) * 1e7).round() / 1e6;
            rope.insert("mscale".to_owned(), json!(all));
            rope.insert("mscale_all_dim".to_owned(), json!(all));
        }
        Ok(())
    }

    /// Ministral 3: the growth of queries is in the rope's entry of the config.
    pub(super) fn ministral(&self, config: &mut Map<String, Value>) -> Result<()> {
        let growth = self
            .find::<f32>("attention.temperature_scale")?
            .map(shortest);
        let scale = self
            .find::<f32>("rope.scaling.yarn_log_multiplier")?
            .map(shortest);
        if let Some(growth) = growth.filter(|&growth| growth != 0.0) {
            config.insert("model_type".to_owned(), json!("ministral3"));
            if let Some(Value::Object(rope)) = config.get_mut("rope_scaling") {
                rope.insert("llama_4_scaling_beta".to_owned(), json!(growth));
                let scale = scale.unwrap_or(1.0);
                rope.insert("mscale".to_owned(), json!(scale));
                rope.insert("mscale_all_dim".to_owned(), json!(scale));
            }
        }
        Ok(())
    }

    /// LFM 2: layers without KV heads are convolutions.
    pub(super) fn lfm2(&self, config: &mut Map<String, Value>) -> Result<()> {
        if let Some(Value::Array(counts)) = config.get("num_key_value_heads").cloned() {
            let counts: Vec<i64> = counts.iter().filter_map(Value::as_i64).collect();
            let kind = |&count: &i64| match count {
                0 => "conv",
                _ => "full_attention",
            };
            let kinds: Vec<&str> = counts.iter().map(kind).collect();
            config.insert("layer_types".to_owned(), json!(kinds));
            let heads = counts.iter().max();
            config.insert("num_key_value_heads".to_owned(), json!(heads));
        }
        Ok(())
    }

    /// MiniCPM's scales, of which files have the results.
    pub(super) fn minicpm(&self, config: &mut Map<String, Value>) -> Result<()> {
        let number = |key: &str| config.get(key).and_then(Value::as_f64);
        let (layers, hidden) = (number("num_hidden_layers"), number("hidden_size"));
        let residual = self.find::<f32>("residual_scale")?.map(shortest);
        let logits = self.find::<f32>("logit_scale")?.map(shortest);
        // llama.cpp's defaults are those of MiniCPM 1 and 2.
        config.entry("scale_emb").or_insert(json!(12.0));
        if let (Some(layers), Some(hidden)) = (layers, hidden) {
            let depth = residual.map_or(1.4, |residual| residual * layers.sqrt());
            let base = logits.map_or(256.0, |logits| hidden / logits);
            config.insert("scale_depth".to_owned(), json!(depth));
            config.insert("dim_model_base".to_owned(), json!(base));
        }
        Ok(())
    }
}

/// The number with the fewest digits that is this F32: 1e-6 rather than 9.999999974752427e-7.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

/// The number of the layer and the rest of a tensor's name.
pub(super) fn in_layer(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

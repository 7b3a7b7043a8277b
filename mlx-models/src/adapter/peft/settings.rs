//! PEFT's `adapter_config.json`: every key is read, is known to have no effect, or is refused by
//! name.

use mlx_core::{Error, ErrorKind, Result};
use regex::Regex;
use serde_json::Value;

use crate::adapter::{AdapterKind, CONFIG};

/// Keys that do not change the result of a saved adapter: information, settings of training, and settings that have an
/// effect only together with another key that is refused.
const HARMLESS: [&str; 14] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    // PEFT corrects this key itself for the modules that these models have.
    "fan_in_fan_out",
    "inference_mode",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
];

/// Keys that [`Settings`] reads.
const READ: [&str; 14] = [
    "bias",
    "exclude_modules",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "r",
    "rank_pattern",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
    "modules_to_save",
];

/// Initialisations that leave the base model unchanged, so that the file holds an ordinary adapter.
const PLAIN_STARTS: [&str; 4] = ["gaussian", "eva", "orthogonal", "mica"];

/// The settings of an adapter in PEFT's `adapter_config.json`.
pub(in crate::adapter) struct Settings {
    pub kind: AdapterKind,
    pub dropout: f64,
    alpha: f64,
    /// rsLoRA (Kalajdzievski, arXiv:2312.03732): alpha is divided by the root of the rank.
    by_root: bool,
    rank: i64,
    ranks: Vec<(Regex, i64)>,
    targets: Option<Modules>,
    excluded: Option<Modules>,
    layers: Option<Layers>,
}

/// A choice of modules by their paths.
enum Modules {
    /// A regular expression that must match the whole path.
    Pattern(Regex),
    /// Whole paths, or the last parts of paths.
    Names(Vec<String>),
}

impl Modules {
    fn contains(&self, path: &str) -> bool {
        match self {
            Self::Pattern(pattern) => pattern.is_match(path),
            Self::Names(names) => names.iter().any(|name| {
                path.strip_suffix(name.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }),
        }
    }
}

/// A choice of layers by their numbers, and the place of the number in a path.
struct Layers {
    numbers: Vec<i64>,
    places: Vec<Regex>,
}

impl Layers {
    fn contains(&self, path: &str) -> bool {
        let found = self.places.iter().find_map(|place| place.captures(path));
        let number = found.and_then(|found| found.get(1)?.as_str().parse().ok());
        number.is_some_and(|number: i64| self.numbers.contains(&number))
    }
}

impl Settings {
    /// Reads the settings; `label` names the folder in errors.
    pub fn read(label: &str, config: &Value) -> Result<Self> {
        let reader = Reader { label, config };
        let fail = |message: String| Err(reader.refuse(&message));
        if config["peft_type"] != "LORA" {
            let found = &config["peft_type"];
            return fail(format!(
                "peft_type {found} is not supported; known: \"LORA\""
            ));
        }
        for (key, value) in config.as_object().into_iter().flatten() {
            let known = HARMLESS.contains(&key.as_str()) || READ.contains(&key.as_str());
            if !known && !is_unset(value) {
                return fail(format!(
                    "{key}: {value} is not supported; only plain LoRA, rsLoRA and DoRA are"
                ));
            }
        }
        let start = &config["init_lora_weights"];
        match start {
            Value::Null | Value::Bool(_) => {}
            Value::String(name) if PLAIN_STARTS.contains(&name.as_str()) => {}
            _ => {
                return fail(format!(
                    "init_lora_weights: {start} is not supported: it changes the weights of the base \
                     model; merge the adapter with PEFT, or save it with \
                     path_initial_model_for_weight_conversion; known: true, false, {}",
                    PLAIN_STARTS.map(|name| format!("\"{name}\"")).join(", ")
                ));
            }
        }
        for (key, usual) in [("bias", "none"), ("task_type", "CAUSAL_LM")] {
            let value = &config[key];
            if !value.is_null() && value != usual {
                return fail(format!("{key}: {value} is not supported; known: {usual:?}"));
            }
        }
        if !is_unset(&config["modules_to_save"]) {
            let found = &config["modules_to_save"];
            return fail(format!("modules_to_save: {found} is not supported"));
        }
        Ok(Self {
            kind: if reader.flag("use_dora")? {
                AdapterKind::Dora
            } else {
                AdapterKind::Lora
            },
            dropout: reader.number("lora_dropout", 0.0)?,
            alpha: reader.number("lora_alpha", 8.0)?,
            by_root: reader.flag("use_rslora")?,
            rank: match &config["r"] {
                Value::Null => 8,
                rank => reader.integer("r", rank)?,
            },
            ranks: reader.ranks()?,
            targets: reader.modules("target_modules")?,
            excluded: reader.modules("exclude_modules")?,
            layers: reader.layers()?,
        })
    }

    /// Whether PEFT adapts the module at this path.
    pub fn selects(&self, path: &str) -> bool {
        !self.excluded.as_ref().is_some_and(|out| out.contains(path))
            && self.targets.as_ref().is_none_or(|in_| in_.contains(path))
            && self.layers.as_ref().is_none_or(|in_| in_.contains(path))
    }

    /// The rank of the adapter of the module at this path.
    pub fn rank(&self, path: &str) -> i64 {
        let own = self.ranks.iter().find(|(name, _)| name.is_match(path));
        own.map_or(self.rank, |(_, rank)| *rank)
    }

    /// The factor by which the product of A and B is multiplied.
    pub fn scale(&self, rank: i32) -> f32 {
        let rank = f64::from(rank);
        (self.alpha / if self.by_root { rank.sqrt() } else { rank }) as f32
    }
}

/// Whether this value leaves a setting unused.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

struct Reader<'a> {
    label: &'a str,
    config: &'a Value,
}

impl Reader<'_> {
    fn refuse(&self, message: &str) -> Error {
        let message = format!("{}: {CONFIG}: {message}", self.label);
        Error::new(ErrorKind::Unsupported, message)
    }

    fn wrong<T>(&self, key: &str, expected: &str, found: &Value) -> Result<T> {
        Err(self.refuse(&format!("{key}: expected {expected}, found {found}")))
    }

    fn flag(&self, key: &str) -> Result<bool> {
        match &self.config[key] {
            Value::Null => Ok(false),
            Value::Bool(flag) => Ok(*flag),
            found => self.wrong(key, "true or false", found),
        }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        match &self.config[key] {
            Value::Null => Ok(default),
            found => match found.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(number),
                None => self.wrong(key, "a number", found),
            },
        }
    }

    fn integer(&self, key: &str, found: &Value) -> Result<i64> {
        match found.as_i64() {
            Some(number) => Ok(number),
            None => self.wrong(key, "a whole number", found),
        }
    }

    /// One string, or a list of them.
    fn strings(&self, key: &str) -> Result<Vec<String>> {
        let found = &self.config[key];
        let texts = match found {
            Value::Null => Some(Vec::new()),
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(items) => items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect(),
            _ => None,
        };
        match texts {
            Some(texts) => Ok(texts),
            None => self.wrong(key, "a string or a list of strings", found),
        }
    }

    fn regex(&self, key: &str, pattern: &str) -> Result<Regex> {
        Regex::new(pattern).map_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim();
            self.refuse(&format!("{key}: {pattern:?} is not supported: {reason}"))
        })
    }

    fn modules(&self, key: &str) -> Result<Option<Modules>> {
        match &self.config[key] {
            Value::Null => Ok(None),
            Value::String(all) if all == "all-linear" => Ok(None),
            Value::String(pattern) => {
                let whole = self.regex(key, &format!("^(?:{pattern})$"))?;
                Ok(Some(Modules::Pattern(whole)))
            }
            _ => Ok(Some(Modules::Names(self.strings(key)?))
                .filter(|modules| !matches!(modules, Modules::Names(names) if names.is_empty()))),
        }
    }

    fn layers(&self) -> Result<Option<Layers>> {
        const KEY: &str = "layers_to_transform";
        let numbers = match &self.config[KEY] {
            Value::Null => return Ok(None),
            Value::Array(items) if items.is_empty() => return Ok(None),
            Value::Array(items) => items
                .iter()
                .map(|item| self.integer(KEY, item))
                .collect::<Result<Vec<_>>>()?,
            one => vec![self.integer(KEY, one)?],
        };
        let names = self.strings("layers_pattern")?;
        let places = if names.is_empty() {
            vec![self.regex(KEY, r"^.*?\.[^.]*\.(\d+)\.")?]
        } else {
            let place = |name: &String| {
                self.regex("layers_pattern", &format!(r"^(?:|.*?\.){name}\.(\d+)\."))
            };
            names.iter().map(place).collect::<Result<_>>()?
        };
        Ok(Some(Layers { numbers, places }))
    }

    fn ranks(&self) -> Result<Vec<(Regex, i64)>> {
        const KEY: &str = "rank_pattern";
        match &self.config[KEY] {
            Value::Null => Ok(Vec::new()),
            Value::Object(map) => map
                .iter()
                .map(|(name, rank)| {
                    let place = self.regex(KEY, &format!(r"^(?:.*\.)?(?:{name})$"))?;
                    Ok((place, self.integer(KEY, rank)?))
                })
                .collect(),
            found => self.wrong(KEY, "an object", found),
        }
    }
}

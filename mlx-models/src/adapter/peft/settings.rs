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
const READ: [&str; 16] = [
    "alpha_pattern",
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
    "target_parameters",
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
    alphas: Vec<(Regex, f64)>,
    /// rsLoRA (Kalajdzievski, arXiv:2312.03732): alpha is divided by the root of the rank.
    by_root: bool,
    rank: i64,
    ranks: Vec<(Regex, i64)>,
    targets: Option<Modules>,
    parameters: Vec<String>,
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
            Self::Names(names) => names.iter().any(|name| is_end(path, name)),
        }
    }
}

/// Whether a path is `name`, or ends with it after a point.
fn is_end(path: &str, name: &str) -> bool {
    let rest = path.strip_suffix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
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
            alphas: reader.patterns("alpha_pattern", |key, alpha| match alpha.as_f64() {
                Some(alpha) => Ok(alpha),
                None => reader.wrong(key, "a number", alpha),
            })?,
            by_root: reader.flag("use_rslora")?,
            rank: match &config["r"] {
                Value::Null => 8,
                rank => reader.integer("r", rank)?,
            },
            ranks: reader.patterns("rank_pattern", |key, rank| reader.integer(key, rank))?,
            targets: reader.modules("target_modules")?,
            parameters: reader.strings("target_parameters")?,
            excluded: reader.modules("exclude_modules")?,
            layers: reader.layers()?,
        })
    }

    /// Whether PEFT adapts the module at this path.
    pub fn selects(&self, path: &str) -> bool {
        !self.excluded.as_ref().is_some_and(|out| out.contains(path))
            && match &self.targets {
                None => self.in_layers(path),
                Some(Modules::Names(names)) if !names.iter().any(|name| name == path) => {
                    self.targets.as_ref().is_some_and(|in_| in_.contains(path))
                        && self.in_layers(path)
                }
                // Modules that a whole path or an expression names are chosen in every layer.
                Some(in_) => in_.contains(path),
            }
    }

    /// The parameters that are adapted apart from modules: whole names, or their last parts.
    pub fn parameters(&self) -> &[String] {
        &self.parameters
    }

    /// Whether PEFT adapts the parameter of this name.
    pub fn wraps(&self, name: &str) -> bool {
        let names = self.parameters.iter();
        names.map(String::as_str).any(|own| is_end(name, own))
    }

    fn in_layers(&self, path: &str) -> bool {
        self.layers.as_ref().is_none_or(|in_| in_.contains(path))
    }

    /// The rank of the adapter of the module at this path.
    pub fn rank(&self, path: &str) -> i64 {
        let own = self.ranks.iter().find(|(name, _)| name.is_match(path));
        own.map_or(self.rank, |(_, rank)| *rank)
    }

    /// The factor by which the product of A and B is multiplied, if all modules have the same alpha.
    pub fn scale(&self, rank: i32) -> Option<f32> {
        let is_shared = self.alphas.is_empty();
        is_shared.then(|| self.scaled(self.alpha, f64::from(rank)))
    }

    /// The factor by which the product of A and B of the module at this path is multiplied.
    pub fn own_scale(&self, path: &str) -> f32 {
        let own = self.alphas.iter().find(|(name, _)| name.is_match(path));
        let alpha = own.map_or(self.alpha, |(_, alpha)| *alpha);
        self.scaled(alpha, self.rank(path) as f64)
    }

    fn scaled(&self, alpha: f64, rank: f64) -> f32 {
        (alpha / if self.by_root { rank.sqrt() } else { rank }) as f32
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

    /// Values of the modules whose path, or the end of it after a point, matches an expression.
    fn patterns<T>(
        &self,
        key: &str,
        read: impl Fn(&str, &Value) -> Result<T>,
    ) -> Result<Vec<(Regex, T)>> {
        match &self.config[key] {
            Value::Null => Ok(Vec::new()),
            Value::Object(map) => map
                .iter()
                .map(|(name, value)| {
                    let place = self.regex(key, &format!(r"^(?:.*\.)?(?:{name})$"))?;
                    Ok((place, read(key, value)?))
                })
                .collect(),
            found => self.wrong(key, "an object", found),
        }
    }
}

//! Checkpoints whose matrices are -1, 0 and 1 with one scale each (BitNet b1.58): which matrices
//! are ternary, in which form they are stored, and how they are packed in memory.

use std::collections::BTreeMap;

use mlx_core::{Result, Scheme};
use mlx_nn::{Checkpoint, Module, Rule, Rules, TernaryForm, quantize, ternary_scheme};
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::config::quantization::TERNARY;

/// The ending of the name of a packed matrix's scale.
const SCALE: &str = ".weight_scale";

/// The ternary matrices of a checkpoint, by their published paths.
#[derive(Clone, Debug)]
pub(crate) struct Ternary {
    shapes: BTreeMap<String, [i32; 2]>,
    form: TernaryForm,
}

impl Ternary {
    /// Finds the ternary matrices that the config names. mlx-lm overwrites the config entry when it
    /// packs a BitNet; then the tensors decide.
    ///
    /// # Errors
    /// The stored form is not supported.
    pub(crate) fn find(c: &Config, tensors: &Checkpoint) -> Result<Option<Self>> {
        let Some(form) = form(c, tensors)? else {
            return Ok(None);
        };
        let dense = match form {
            TernaryForm::Packed { .. } => Vec::new(),
            TernaryForm::Dense => dense_modules(c)?,
        };
        let path = |name: &'_ str| match form {
            TernaryForm::Packed { .. } => name.strip_suffix(SCALE).map(str::to_owned),
            TernaryForm::Dense => {
                let path = name.strip_suffix(".weight")?;
                let linear = path.ends_with("_proj") || path == "lm_head";
                (linear && !dense.iter().any(|key| names(key, path))).then(|| path.to_owned())
            }
        };
        let mut shapes = BTreeMap::new();
        for path in tensors.names().filter_map(path) {
            if !path.contains("layers.") {
                return Err(c.unsupported(format!("{path} is ternary; only layers may be")));
            }
            // transformers multiplies the bias by the scale of the matrix.
            let scaled = form == TernaryForm::Packed { divides: false };
            if scaled && tensors.contains(&format!("{path}.bias")) {
                let message =
                    format!("{path}: a bias beside a packed ternary matrix is not supported");
                return Err(c.unsupported(message));
            }
            let shape = tensors.shape(&format!("{path}.weight"))?;
            let Some(&[rows, inputs]) = shape.as_deref() else {
                return Err(c.unsupported(format!("{path} is ternary, but no matrix: {shape:?}")));
            };
            ternary_scheme(inputs).map_err(|error| error.context(&path))?;
            let outputs = match form {
                TernaryForm::Packed { .. } => rows.checked_mul(4),
                TernaryForm::Dense => Some(rows),
            };
            let Some(outputs) = outputs else {
                return Err(
                    c.unsupported(format!("{path} is ternary and has too many rows: {rows}"))
                );
            };
            shapes.insert(path, [outputs, inputs]);
        }
        if shapes.is_empty() && tensors.names().next().is_some() {
            let ending = match form {
                TernaryForm::Packed { .. } => SCALE,
                TernaryForm::Dense => "_proj.weight",
            };
            return Err(c.error(format!(
                "quantization_config tells of ternary matrices, but no tensor ends with {ending}"
            )));
        }
        Ok(Some(Self { shapes, form }))
    }

    /// The rules that pack the matrices.
    pub(crate) fn rules(&self) -> Rules {
        let rule = |(path, shape): (&String, &[i32; 2])| Rule::ternary(path, *shape, self.form);
        self.shapes.iter().map(rule).into()
    }

    /// The schemes of the matrices by their paths in the model, to which `rules` maps the published paths.
    ///
    /// # Errors
    /// The same as those of [`find`](Self::find).
    pub(crate) fn schemes(&self, rules: &Rules) -> Result<BTreeMap<String, Scheme>> {
        let mut schemes = BTreeMap::new();
        for (path, [_, inputs]) in &self.shapes {
            for piece in rules.modules(path).unwrap_or_default() {
                schemes.insert(piece.name().to_owned(), ternary_scheme(*inputs)?);
            }
        }
        Ok(schemes)
    }
}

/// The value of `modules_to_not_convert`, by default the output head.
fn dense_modules(c: &Config) -> Result<Vec<String>> {
    let entry = c.object("quantization_config")?;
    let given = entry.map(|entry| entry.opt("modules_to_not_convert"));
    let given: Option<Vec<String>> = given.transpose()?.flatten();
    let given = given.unwrap_or_else(|| vec!["lm_head".to_owned()]);
    let is_pattern = |key: &&String| key.contains(['*', '\\', '[', '(', '|', '+', '?', '^', '$']);
    match given.iter().find(is_pattern) {
        None => Ok(given),
        Some(key) => Err(c.unsupported(format!(
            "modules_to_not_convert: the pattern {key:?} is not supported; known: names of modules"
        ))),
    }
}

/// Whether a key names the module at `path`, one around it, or the end of its path.
fn names(key: &str, path: &str) -> bool {
    let inside = path.strip_prefix(key);
    path.ends_with(key) || inside.is_some_and(|rest| rest.starts_with('.'))
}

/// The form of a checkpoint's ternary matrices, if it has any.
fn form(c: &Config, tensors: &Checkpoint) -> Result<Option<TernaryForm>> {
    let entry = c.object("quantization_config")?;
    let method = match &entry {
        Some(entry) => entry.opt::<String>("quant_method")?,
        None => None,
    };
    let Some(entry) = entry.filter(|_| method.as_deref() == Some(TERNARY)) else {
        let is_bitnet = c.opt::<String>("model_type")?.as_deref() == Some("bitnet");
        let is_packed = is_bitnet && tensors.names().any(|name| name.ends_with(SCALE));
        return Ok(is_packed.then_some(TernaryForm::Packed { divides: false }));
    };
    if entry.or("use_rms_norm", false)? {
        return Err(entry.unsupported("use_rms_norm is not supported"));
    }
    let class = entry.or("linear_class", "bitlinear".to_owned())?;
    let mode = entry.or("quantization_mode", "offline".to_owned())?;
    Ok(Some(match (class.as_str(), mode.as_str()) {
        ("bitlinear", _) => TernaryForm::Packed { divides: true },
        ("autobitlinear", "offline") => TernaryForm::Packed { divides: false },
        ("autobitlinear", "online") => TernaryForm::Dense,
        _ => {
            return Err(entry.unsupported(format!(
                "linear_class {class:?} with quantization_mode {mode:?} is not supported; known: bitlinear, and autobitlinear with \
                 offline or online"
            )));
        }
    }))
}

/// Sets the layers with ternary matrices to round their inputs.
///
/// # Errors
/// A ternary matrix belongs to a layer that cannot round its inputs.
pub(crate) fn round_inputs(
    label: &str,
    model: &mut dyn Module,
    schemes: &BTreeMap<String, Scheme>,
) -> Result<()> {
    let rounding = quantize::round_inputs(model, |path| schemes.contains_key(path))?;
    match schemes.keys().find(|path| !rounding.contains(path)) {
        None => Ok(()),
        Some(path) => {
            let message = format!("{label}: {path} is ternary, but no layer of one matrix");
            Err(mlx_core::Error::new(
                mlx_core::ErrorKind::Unsupported,
                message,
            ))
        }
    }
}

/// Adds the entry that describes [written](Rule::ternary) ternary matrices to config.json.
pub(crate) fn written(config: &mut Map<String, Value>) {
    let entry = json!({
        "linear_class": "autobitlinear",
        "quant_method": TERNARY,
        "quantization_mode": "offline",
    });
    let Value::Object(mut entry) = entry else {
        unreachable!("an object is written above");
    };
    const KEY: &str = "quantization_config";
    let before = config.get(KEY).and_then(Value::as_object);
    if let Some(kept) = before.and_then(|before| before.get("modules_to_not_convert")) {
        entry.insert("modules_to_not_convert".to_owned(), kept.clone());
    }
    // The entry of embeddings that mlx-lm has packed stays as it is.
    if !config.contains_key("quantization") {
        config.insert(KEY.to_owned(), Value::Object(entry));
    }
}

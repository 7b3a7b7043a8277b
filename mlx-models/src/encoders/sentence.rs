//! [`SentenceModules`]: what sentence-transformers puts after a model, from features of tokens to
//! an embedding of a text.

use std::path::Path;

use mlx_core::{Array, DType, Error, ErrorKind, Result, Safetensors, fast, files};
use mlx_nn::{Activation, Checkpoint, FillOptions, LayerNorm, Linear, Rules, fill_lazily, module};
use serde_json::Value;

use crate::config::Config;
use crate::model::encoder::Texts;

/// The list of modules, in a checkpoint's folder.
const LIST: &str = "modules.json";

/// How the features of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingMode {
    /// Those of the first token.
    First,
    /// The largest of each feature.
    Max,
    /// Their mean.
    Mean,
    /// Their sum, divided by the root of their number.
    MeanOfRoot,
    /// Their mean, weighted by their positions, which count from 1.
    Weighted,
    /// Those of the last token.
    Last,
}

/// Name, and key of older configs, of each mode.
const MODES: [(&str, &str, PoolingMode); 6] = [
    ("cls", "pooling_mode_cls_token", PoolingMode::First),
    ("max", "pooling_mode_max_tokens", PoolingMode::Max),
    ("mean", "pooling_mode_mean_tokens", PoolingMode::Mean),
    (
        "mean_sqrt_len_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        PoolingMode::MeanOfRoot,
    ),
    (
        "weightedmean",
        "pooling_mode_weightedmean_tokens",
        PoolingMode::Weighted,
    ),
    ("lasttoken", "pooling_mode_lasttoken", PoolingMode::Last),
];

/// `activation(linear(x))`, and `x` or its projection added to it if there is a residual.
#[derive(Clone)]
struct Dense {
    linear: Linear,
    residual: Option<Linear>,
    activation: Option<Activation>,
    adds_input: bool,
}
module!(Dense { linear, residual } plain { activation, adds_input });

#[derive(Clone)]
struct NormModule {
    norm: LayerNorm,
}
module!(NormModule { norm });

#[derive(Clone)]
enum After {
    Dense(Box<Dense>),
    Norm(Box<NormModule>),
    Normalize,
}

/// The modules after a model: pooling, dense layers, norms. Their arrays are F32.
///
/// The definitions are those of sentence-transformers (Reimers and Gurevych, arXiv:1908.10084).
#[derive(Clone)]
pub struct SentenceModules {
    modes: Vec<PoolingMode>,
    includes_prompt: bool,
    after: Vec<After>,
    dimension: i32,
}

impl SentenceModules {
    /// The modules of a checkpoint without `modules.json`: this pooling, and vectors of length 1.
    pub fn plain(mode: PoolingMode, hidden: i32) -> Self {
        Self {
            modes: vec![mode],
            includes_prompt: true,
            after: vec![After::Normalize],
            dimension: hidden,
        }
    }

    /// Reads the modules of the checkpoint in a folder, whose model has `hidden` features a token.
    /// `None` if there is no `modules.json`, or if it lists a model alone.
    ///
    /// # Errors
    /// A file is missing or malformed, or a module is not supported; the message names it.
    pub fn read(dir: &Path, hidden: i32) -> Result<Option<Self>> {
        let Some(list) = json(&dir.join(LIST))? else {
            return Ok(None);
        };
        let place = dir.join(LIST).display().to_string();
        let Value::Array(list) = list else {
            let message = format!("{place}: expected a list of modules");
            return Err(Error::new(ErrorKind::Format, message));
        };
        let mut modules = Self {
            modes: Vec::new(),
            includes_prompt: true,
            after: Vec::new(),
            dimension: hidden,
        };
        for (index, entry) in list.into_iter().enumerate() {
            let entry = Config::new(&format!("{place}: module {index}"), entry)?;
            modules.add(dir, &entry)?;
        }
        Ok((!modules.modes.is_empty()).then_some(modules))
    }

    fn add(&mut self, dir: &Path, entry: &Config) -> Result<()> {
        let kind: String = entry.required("type")?;
        let path: String = entry.or("path", String::new())?;
        let inside = Path::new(&path).components();
        if !inside
            .into_iter()
            .all(|part| matches!(part, std::path::Component::Normal(_)))
        {
            return Err(entry.error(format!("path {path:?} leaves the checkpoint")));
        }
        let name = kind.rsplit('.').next().unwrap_or(&kind);
        let own = dir.join(&path);
        if self.modes.is_empty() && !["Transformer", "Pooling", "LogitScore"].contains(&name) {
            return Err(entry.unsupported(format!(
                "type {kind:?} before Pooling is not supported; known: Transformer, Pooling"
            )));
        }
        match name {
            "Transformer" if path.is_empty() => {}
            "Transformer" => {
                return Err(entry.unsupported(format!(
                    "a Transformer in the folder {path:?} is not supported; expected it in the checkpoint's own folder"
                )));
            }
            // Of rerankers: read where they score pairs.
            "LogitScore" => {}
            "Pooling" => self.pool_as(&config(&own)?)?,
            "Dense" => {
                let dense = dense(&own, self.dimension)?;
                self.dimension = dense.linear.weight().shape()[0];
                self.after.push(After::Dense(Box::new(dense)));
            }
            "LayerNorm" => {
                let c = config(&own)?;
                let size = c.size("dimension", Some(self.dimension))?;
                let mut norm = NormModule {
                    norm: LayerNorm::empty(size, 1e-5, true)?,
                };
                fill(&own, &mut norm)?;
                self.after.push(After::Norm(Box::new(norm)));
            }
            "Normalize" => self.after.push(After::Normalize),
            _ => {
                return Err(entry.unsupported(format!(
                    "type {kind:?} is not supported; known: Transformer, Pooling, Dense, LayerNorm, Normalize"
                )));
            }
        }
        Ok(())
    }

    fn pool_as(&mut self, c: &Config) -> Result<()> {
        let names: Vec<String> = match c.value("pooling_mode") {
            Some(Value::String(name)) => vec![name.clone()],
            Some(_) => c.required("pooling_mode")?,
            None => {
                let mut names = Vec::new();
                for (name, key, _) in MODES {
                    if c.or(key, false)? {
                        names.push(name.to_owned());
                    }
                }
                if names.is_empty() {
                    names.push("mean".to_owned());
                }
                names
            }
        };
        for name in &names {
            let found = MODES.iter().find(|(known, ..)| known == name);
            let Some(&(.., mode)) = found else {
                let known = MODES.map(|(known, ..)| known).join(", ");
                return Err(c.unsupported(format!(
                    "pooling_mode {name:?} is not supported; known: {known}"
                )));
            };
            self.modes.push(mode);
        }
        self.includes_prompt = c.or("include_prompt", true)?;
        self.dimension *= names.len() as i32;
        Ok(())
    }

    /// The number of features of an embedding.
    pub fn dimension(&self) -> i32 {
        self.dimension
    }

    /// Whether the tokens of a prompt before the text count in pooling.
    pub fn includes_prompt(&self) -> bool {
        self.includes_prompt
    }

    /// Whether only the last token of a text is read.
    pub fn reads_last(&self) -> bool {
        self.modes == [PoolingMode::Last]
    }

    /// Whether embeddings have length 1.
    pub fn normalizes(&self) -> bool {
        matches!(self.after.last(), Some(After::Normalize))
    }

    /// The embeddings, F32 `[B, D]`, from the features `[T, E]` of all tokens. The first `prompt`
    /// tokens of each text are not pooled; it is 0 unless the modules leave
    /// [prompts](Self::includes_prompt) out.
    ///
    /// # Errors
    /// The shapes do not fit, or a text has no token after the prompt.
    pub fn embed(&self, features: &Array, texts: &Texts, prompt: usize) -> Result<Array> {
        let cut = texts.groups().iter().map(|group| group.len as usize).min();
        if cut.is_some_and(|len| len <= prompt) {
            let message = format!("a text has no token after the {prompt} tokens of the prompt");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let features = features.astype(DType::F32)?;
        let pooled = self
            .modes
            .iter()
            .map(|&mode| pool(mode, &features, texts, prompt));
        let pooled = pooled.collect::<Result<Vec<_>>>()?;
        self.finish(match pooled.as_slice() {
            [one] => one.clone(),
            many => mlx_core::ops::concat(&many.iter().collect::<Vec<_>>(), -1)?,
        })
    }

    /// The embeddings, F32 `[B, D]`, from pooled features `[B, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn finish(&self, pooled: Array) -> Result<Array> {
        let mut x = pooled.astype(DType::F32)?;
        for module in &self.after {
            x = match module {
                After::Dense(dense) => dense.forward(&x)?,
                After::Norm(module) => module.norm.forward(&x)?,
                After::Normalize => normalized(&x)?,
            };
        }
        Ok(x)
    }
}

impl std::fmt::Debug for SentenceModules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentenceModules")
            .field("modes", &self.modes)
            .field("dimension", &self.dimension)
            .finish_non_exhaustive()
    }
}

impl Dense {
    fn forward(&self, x: &Array) -> Result<Array> {
        let mut y = self.linear.forward(x)?;
        if let Some(activation) = self.activation {
            y = activation.forward(&y)?;
        }
        match (&self.residual, self.adds_input) {
            (Some(residual), _) => fast::add(&residual.forward(x)?, &y),
            (None, true) => fast::add(x, &y),
            (None, false) => Ok(y),
        }
    }
}

/// Vectors of length 1 along the last axis: `x / max(|x|, 1e-12)`.
pub(crate) fn normalized(x: &Array) -> Result<Array> {
    let length = x.square()?.sum(-1, true)?.sqrt()?;
    x.divide(length.maximum(1e-12)?)
}

/// One vector for each text, `[B, E]`, from the features `[T, E]`.
fn pool(mode: PoolingMode, features: &Array, texts: &Texts, prompt: usize) -> Result<Array> {
    let rest = |text: &Array| {
        let [_, len, _] = text.dims()?;
        text.slice_axis(1, prompt as i32, len)
    };
    match mode {
        PoolingMode::First => texts.pick(features, |_| prompt),
        PoolingMode::Last => texts.pick(features, |len| len - 1),
        PoolingMode::Max => texts.reduce(features, |text| rest(text)?.max(1, false)),
        PoolingMode::Mean => texts.reduce(features, |text| rest(text)?.mean(1, false)),
        PoolingMode::MeanOfRoot => texts.reduce(features, |text| {
            let text = rest(text)?;
            let [_, len, _] = text.dims()?;
            text.sum(1, false)?.divide((len as f32).sqrt())
        }),
        PoolingMode::Weighted => texts.reduce(features, |text| {
            let [_, len, _] = text.dims()?;
            let weights: Vec<f32> = (prompt as i32..len).map(|at| (at + 1) as f32).collect();
            let sum: f32 = weights.iter().sum();
            let weights = Array::from_slice(&weights, &[1, weights.len() as i32, 1])?;
            let weighted = rest(text)?.multiply(weights)?;
            weighted.sum(1, false)?.divide(sum)
        }),
    }
}

fn json(path: &Path) -> Result<Option<Value>> {
    let Some(bytes) = files::read_if_present(path, files::JSON_LIMIT)? else {
        return Ok(None);
    };
    let value = crate::config::parse(&bytes).map_err(|error| {
        let message = format!("{}: {error}", path.display());
        Error::new(ErrorKind::Format, message)
    })?;
    Ok(Some(value))
}

/// The config of a module in this folder.
fn config(folder: &Path) -> Result<Config> {
    let path = folder.join("config.json");
    let place = path.display().to_string();
    let missing = || Error::new(ErrorKind::Format, format!("{place} is missing"));
    Config::new(&place, json(&path)?.ok_or_else(missing)?)
}

/// A dense module, whose arrays are in its folder.
fn dense(folder: &Path, inputs: i32) -> Result<Dense> {
    let c = config(folder)?;
    for key in ["module_input_name", "module_output_name"] {
        let name = c.or(key, "sentence_embedding".to_owned())?;
        if name != "sentence_embedding" {
            return Err(c.unsupported(format!(
                "{key} {name:?} is not supported; known: sentence_embedding"
            )));
        }
    }
    let (found, outputs) = (c.size("in_features", None)?, c.size("out_features", None)?);
    if found != inputs {
        return Err(c.error(format!(
            "in_features is {found}, but embeddings have {inputs} features there"
        )));
    }
    let name = c.or(
        "activation_function",
        "torch.nn.modules.activation.Tanh".to_owned(),
    )?;
    let activation = match name.rsplit('.').next().unwrap_or(&name) {
        "Identity" => None,
        "Tanh" => Some(Activation::Tanh),
        "ReLU" => Some(Activation::Relu),
        "GELU" => Some(Activation::Gelu),
        "SiLU" => Some(Activation::Silu),
        "Sigmoid" => Some(Activation::Sigmoid),
        _ => {
            return Err(c.unsupported(format!(
                "activation_function {name:?} is not supported; known: Identity, Tanh, ReLU, GELU, SiLU, Sigmoid"
            )));
        }
    };
    let adds_input = c.or("use_residual", false)?;
    let residual = (adds_input && inputs != outputs).then(|| Linear::empty(inputs, outputs, false));
    let mut dense = Dense {
        linear: Linear::empty(inputs, outputs, c.or("bias", true)?)?,
        residual: residual.transpose()?,
        activation,
        adds_input,
    };
    fill(folder, &mut dense)?;
    Ok(dense)
}

/// Fills a module from the safetensors in its folder.
fn fill(folder: &Path, module: &mut dyn mlx_nn::Module) -> Result<()> {
    let path = folder.join("model.safetensors");
    let label = folder.display().to_string();
    let file = Safetensors::open(&path).map_err(|error| error.context(&label))?;
    let checkpoint = Checkpoint::new(&label, vec![file], &Rules::none())?;
    fill_lazily(
        module,
        &checkpoint,
        FillOptions {
            dtype: Some(DType::F32),
            scheme: &|_| Ok(None),
            progress: &mut |_| {},
        },
    )
}

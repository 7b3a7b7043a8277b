//! The settings of a run: flags, over those of a YAML file, over defaults. The file's keys are the
//! flags' names with underscores; mlx-lm's names are understood too.

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_infer::input::read_file;
use mlx_train::{Error, ErrorKind, Method, Result, Schedule};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::mlx_lm::{LoraParameters, LrSchedule, or_default};

/// The settings of a run; those without a default are required by name.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// Checkpoint folder, or the name of a model on the hub [default: the built-in model]
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    pub model: Option<PathBuf>,
    /// Folder with train.jsonl and, if wanted, valid.jsonl and test.jsonl; or one JSONL file
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Folder for results and checkpoints [default: adapters]
    #[arg(long, value_name = "DIR")]
    #[serde(alias = "adapter_path")]
    pub out: Option<PathBuf>,
    /// Settings in YAML; flags override them
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Continue from the last checkpoint in the output folder
    #[arg(long)]
    #[serde(skip)]
    pub resume: bool,
    /// Print events as JSON lines
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,

    /// Steps of the optimiser [default: 1000]
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Rows of a batch [default: 4]
    #[arg(long, value_name = "N")]
    pub batch_size: Option<usize>,
    /// Instead of --batch-size: rows of about one length with this many tokens together, padding included
    #[arg(long, value_name = "N", conflicts_with_all = ["batch_size", "pack"])]
    pub batch_tokens: Option<usize>,
    /// Batches whose gradients make one step [default: 1]
    #[arg(long, value_name = "N")]
    #[serde(alias = "grad_accumulation_steps")]
    pub accumulate: Option<usize>,
    /// Maximum length of an example; longer ones are truncated [default: 2048]
    #[arg(long, value_name = "TOKENS")]
    pub max_seq_length: Option<usize>,
    /// Fill rows with several documents, none of which attends to another
    #[arg(long)]
    #[serde(deserialize_with = "or_default")]
    pub pack: bool,
    /// Compute each layer again in the backward pass: less memory, a third more work
    #[arg(long)]
    #[serde(deserialize_with = "or_default")]
    pub grad_checkpoint: bool,
    /// Run the head on this many tokens of the vocabulary at a time, so that the logits of a whole batch are never in
    /// memory: less memory, one more product with the head [default: all at once]
    #[arg(long, value_name = "TOKENS")]
    pub ce_chunk: Option<i32>,
    /// Also train the head for multi-token prediction: its loss is added with this factor [default: 0.3]
    #[arg(long, value_name = "FACTOR", num_args = 0..=1, require_equals = true, default_missing_value = "0.3")]
    pub mtp: Option<f32>,
    /// Learn only the last message or the completion
    #[arg(long)]
    #[serde(deserialize_with = "or_default")]
    pub mask_prompt: bool,
    /// Seed of the order of examples, of dropout and of new adapters [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// sgd, adam, adamw, adamax, lion, adafactor, muon, rmsprop, adagrad or adadelta [default: adamw]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Further settings of optimisers, by the optimisers' names
    #[arg(skip)]
    #[serde(deserialize_with = "or_default")]
    pub optimizer_config: Map<String, Value>,
    /// The highest learning rate [default: 1e-5]
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f64>,
    /// Course of the rate after the warm-up: constant, linear or cosine, down to 0 [default: constant]
    #[arg(long, value_name = "KIND")]
    pub schedule: Option<String>,
    /// Steps in which the rate rises from 0 [default: 0]
    #[arg(long, value_name = "STEPS")]
    pub warmup: Option<u64>,
    /// Constant schedule: steps at the end in which the rate falls linearly to 0 [default: 0]
    #[arg(long, value_name = "STEPS")]
    pub cooldown: Option<u64>,
    /// mlx-lm's form of a schedule
    #[arg(skip)]
    pub lr_schedule: Option<LrSchedule>,
    /// Scale gradients down to this norm [default: no limit]
    #[arg(long, value_name = "NORM")]
    pub clip: Option<f32>,

    /// Train this many of the last layers; -1: all [default: 16, or all if there are fewer]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub num_layers: Option<i64>,
    /// Rank of adapters [default: 8]
    #[arg(long, value_name = "N")]
    pub rank: Option<i32>,
    /// Factor of the adapters' output: alpha / rank [default: 20]
    #[arg(long, value_name = "X")]
    pub scale: Option<f32>,
    /// Share of the adapters' inputs that training drops [default: 0]
    #[arg(long, value_name = "X")]
    pub dropout: Option<f32>,
    /// Adapted layers, such as self_attn.q_proj,mlp.*; * stands for any text [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub keys: Option<Vec<String>>,
    /// The type of adapters' matrices: f32, bf16 or f16 [default: f32]
    #[arg(long, value_name = "DTYPE")]
    pub adapter_dtype: Option<String>,
    /// Adapters with magnitudes
    #[arg(long)]
    #[serde(deserialize_with = "or_default")]
    pub dora: bool,
    /// mlx-lm's form of the four settings above
    #[arg(skip)]
    pub lora_parameters: Option<LoraParameters>,
    /// Full training: parameters to train, such as *.mlp.*,*norm.weight [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub trainable: Option<Vec<String>>,
    /// Convert floating-point weights: f32, bf16 or f16 [default: as stored]
    #[arg(long, value_name = "DTYPE")]
    pub dtype: Option<String>,
    /// Expand blocks of GGUF that have no exact packed form (Q2_K, Q6_K)
    #[arg(long)]
    #[serde(deserialize_with = "or_default")]
    pub expand: bool,

    /// Evaluate every so many steps [default: 200]
    #[arg(long, value_name = "STEPS")]
    #[serde(alias = "steps_per_eval")]
    pub eval_every: Option<u64>,
    /// Number of batches of an evaluation; -1: all [default: 25]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[serde(alias = "val_batches")]
    pub eval_batches: Option<i64>,
    /// Save every so many steps [default: 100]
    #[arg(long, value_name = "STEPS")]
    pub save_every: Option<u64>,
    /// Report every so many steps [default: 10]
    #[arg(long, value_name = "STEPS")]
    #[serde(alias = "steps_per_report")]
    pub report_every: Option<u64>,
    /// Stop after this many evaluations without a lower loss
    #[arg(long, value_name = "N")]
    pub patience: Option<u32>,

    /// mlx-lm: whether to train, which the command decides here
    #[arg(skip)]
    pub train: Option<bool>,
    /// mlx-lm: the command, or `dora`
    #[arg(skip)]
    pub fine_tune_type: Option<String>,
    /// mlx-lm: number of batches, of which `accumulate` make a step
    #[arg(skip)]
    pub iters: Option<u64>,
    /// mlx-lm: whether test.jsonl is evaluated at the end [default: if it exists]
    #[arg(skip)]
    pub test: Option<bool>,
    /// mlx-lm: number of batches of that evaluation; -1: all
    #[arg(skip)]
    pub test_batches: Option<i64>,
    /// mlx-lm: refused, like the next two
    #[arg(skip)]
    pub resume_adapter_file: Option<IgnoredAny>,
    #[arg(skip)]
    pub report_to: Option<IgnoredAny>,
    #[arg(skip)]
    pub hf_dataset: Option<IgnoredAny>,
    /// mlx-lm: other keys of the data's lines, refused
    #[arg(skip)]
    pub prompt_feature: Option<String>,
    #[arg(skip)]
    pub completion_feature: Option<String>,
    #[arg(skip)]
    pub chat_feature: Option<String>,
    #[arg(skip)]
    pub text_feature: Option<String>,
    /// mlx-lm: no effect here, like the next three
    #[arg(skip)]
    pub project_name: Option<IgnoredAny>,
    #[arg(skip)]
    pub trust_remote_code: Option<IgnoredAny>,
    #[arg(skip)]
    pub clear_cache_threshold: Option<IgnoredAny>,
    #[arg(skip)]
    #[serde(rename = "config")]
    pub file: Option<IgnoredAny>,
}

/// The maximum size of a settings file in bytes.
const MAX_BYTES: usize = 64 << 10;
/// The maximum nesting of its brackets. A parser's work grows with the square of the depth.
const MAX_DEPTH: usize = 64;

/// The text of a settings file, which must be short and not deeply nested.
fn read(path: &Path) -> Result<String> {
    let text = read_file(path, MAX_BYTES)?;
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let message = format!("{}: nested deeper than {MAX_DEPTH}", path.display());
            return Err(Error::new(ErrorKind::Format, message));
        }
    }
    Ok(text)
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Argument, message)
}

impl Settings {
    /// These settings, completed by those of the file. `lora` is whether the command is `lora`.
    pub(super) fn with_file(self, lora: bool) -> Result<Self> {
        let Some(path) = &self.config else {
            return Ok(self);
        };
        let fail = |error: &dyn std::fmt::Display| {
            let message = format!("{}: {error}", path.display());
            Error::new(ErrorKind::Format, message)
        };
        let text = read(path)?;
        let file: Self = serde_yaml_ng::from_str(&text).map_err(|error| fail(&error))?;
        let file = file.with_mlx_lm(lora).map_err(|error| fail(&error))?;
        if file.steps.is_some() && file.iters.is_some() {
            return Err(fail(&"steps and iters contradict each other"));
        }
        let accumulate = self.accumulate.or(file.accumulate);
        let iters = file.iters.filter(|_| self.steps.is_none());
        let steps = iters.map(|iters| Self::steps_of(iters, accumulate.unwrap_or(1)));
        let steps = steps.transpose().map_err(|error| fail(&error))?;
        let lora = file.lora_parameters.as_ref();
        Ok(Self {
            model: self.model.or(file.model),
            data: self.data.or(file.data),
            out: self.out.or(file.out),
            config: self.config,
            resume: self.resume,
            json: self.json,
            steps: self.steps.or(file.steps).or(steps),
            batch_size: self.batch_size.or(file.batch_size),
            batch_tokens: self.batch_tokens.or(file.batch_tokens),
            accumulate,
            max_seq_length: self.max_seq_length.or(file.max_seq_length),
            pack: self.pack || file.pack,
            grad_checkpoint: self.grad_checkpoint || file.grad_checkpoint,
            ce_chunk: self.ce_chunk.or(file.ce_chunk),
            mtp: self.mtp.or(file.mtp),
            mask_prompt: self.mask_prompt || file.mask_prompt,
            seed: self.seed.or(file.seed),
            optimizer: self.optimizer.or(file.optimizer),
            optimizer_config: file.optimizer_config,
            learning_rate: self.learning_rate.or(file.learning_rate),
            schedule: self.schedule.or(file.schedule),
            warmup: self.warmup.or(file.warmup),
            cooldown: self.cooldown.or(file.cooldown),
            lr_schedule: file.lr_schedule,
            clip: self.clip.or(file.clip),
            num_layers: self.num_layers.or(file.num_layers),
            rank: self.rank.or(file.rank).or(lora.and_then(|lora| lora.rank)),
            scale: self
                .scale
                .or(file.scale)
                .or(lora.and_then(|lora| lora.scale)),
            dropout: self
                .dropout
                .or(file.dropout)
                .or(lora.and_then(|lora| lora.dropout)),
            keys: self
                .keys
                .or(file.keys)
                .or(lora.and_then(|lora| lora.keys.clone())),
            adapter_dtype: self.adapter_dtype.or(file.adapter_dtype),
            dora: self.dora || file.dora,
            trainable: self.trainable.or(file.trainable),
            dtype: self.dtype.or(file.dtype),
            expand: self.expand || file.expand,
            eval_every: self.eval_every.or(file.eval_every),
            eval_batches: self.eval_batches.or(file.eval_batches),
            save_every: self.save_every.or(file.save_every),
            report_every: self.report_every.or(file.report_every),
            patience: self.patience.or(file.patience),
            test: file.test,
            test_batches: file.test_batches,
            ..Self::default()
        })
    }

    /// The optimiser's method.
    pub(super) fn method(&self) -> Result<Method> {
        let name = self.optimizer.as_deref().unwrap_or("adamw").to_lowercase();
        let mut fields = match self.optimizer_config.get(&name) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(fields)) => fields.clone(),
            Some(other) => {
                return Err(wrong(format!(
                    "optimizer_config.{name}: expected settings, found {other}"
                )));
            }
        };
        fields.insert("name".to_owned(), name.as_str().into());
        serde_json::from_value(Value::Object(fields))
            .map_err(|error| wrong(format!("optimizer {name}: {error}")))
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.unwrap_or(1000)
    }

    /// The learning rates.
    pub(super) fn schedule(&self) -> Result<Schedule> {
        if let Some(given) = &self.lr_schedule {
            if self.schedule.is_some() || self.warmup.is_some() || self.cooldown.is_some() {
                let message = "lr_schedule and schedule, warmup or cooldown contradict each other";
                return Err(wrong(message.to_owned()));
            }
            return given.schedule();
        }
        let rate = self.learning_rate.unwrap_or(1e-5);
        let warmup = self.warmup.unwrap_or(0);
        let rest = self.steps().saturating_sub(warmup);
        let cooldown = self.cooldown.unwrap_or(0);
        let after = match self.schedule.as_deref().unwrap_or("constant") {
            "constant" if cooldown > rest => {
                return Err(wrong(format!(
                    "cooldown must be at most the {rest} steps after the warm-up, given {cooldown}"
                )));
            }
            "constant" => Schedule::constant(rate).with_cooldown(rest, cooldown),
            other if cooldown > 0 => {
                return Err(wrong(format!(
                    "cooldown is for the constant schedule; {other} falls by itself"
                )));
            }
            "linear" => Schedule::linear(rate, 0.0, rest),
            "cosine" => Schedule::cosine(rate, 0.0, rest),
            other => {
                return Err(wrong(format!(
                    "schedule {other:?} is not known; known: constant, linear, cosine"
                )));
            }
        };
        Ok(after.with_warmup(warmup, 0.0))
    }
}

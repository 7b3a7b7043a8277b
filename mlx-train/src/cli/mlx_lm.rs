//! The keys of mlx-lm's settings files (`lora.py` of mlx-lm 0.32) that have no flag here: their meaning for
//! `mlx-train`, and which keys are refused.
//!
//! A key without a value (`null`) counts as not given, as in mlx-lm.

use mlx_train::{Error, ErrorKind, Result, Schedule};
use serde::{Deserialize, Deserializer};

use super::settings::Settings;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoraParameters {
    pub rank: Option<i32>,
    pub scale: Option<f32>,
    pub dropout: Option<f32>,
    pub keys: Option<Vec<String>>,
    alpha: Option<f32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LrSchedule {
    name: String,
    arguments: Vec<f64>,
    #[serde(default, deserialize_with = "or_default")]
    warmup: u64,
    #[serde(default, deserialize_with = "or_default")]
    warmup_init: f64,
}

/// A value, or the default for `null`.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> std::result::Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Argument, message)
}

impl Settings {
    /// Applies mlx-lm's keys to the settings of a file. `lora` is whether the command is `lora`.
    pub(super) fn with_mlx_lm(mut self, lora: bool) -> Result<Self> {
        if self.train == Some(false) {
            return Err(wrong(
                "train: false: this command trains; mlx-train eval evaluates",
            ));
        }
        match (self.fine_tune_type.as_deref(), lora) {
            (None, _) | (Some("lora"), true) | (Some("full"), false) => {}
            (Some("dora"), true) => self.dora = true,
            (Some(kind @ ("lora" | "dora")), false) => {
                return Err(wrong(format!(
                    "fine_tune_type: {kind} is trained by mlx-train lora"
                )));
            }
            (Some("full"), true) => {
                return Err(wrong("fine_tune_type: full is trained by mlx-train full"));
            }
            (Some(kind), _) => {
                return Err(wrong(format!(
                    "fine_tune_type: {kind:?} is not known; known: lora, dora, full"
                )));
            }
        }
        for (key, is_given, instead) in [
            (
                "resume_adapter_file",
                self.resume_adapter_file.is_some(),
                "training begins with a new adapter; --resume goes on from a run's own checkpoints",
            ),
            (
                "report_to",
                self.report_to.is_some(),
                "reports to services are not supported; metrics.jsonl in the output folder has every step",
            ),
            (
                "hf_dataset",
                self.hf_dataset.is_some(),
                "data sets are not fetched; data names a folder or a file of JSON lines",
            ),
            (
                "lora_parameters.alpha",
                self.lora_parameters
                    .as_ref()
                    .is_some_and(|lora| lora.alpha.is_some()),
                "give scale, which is alpha / rank",
            ),
        ] {
            if is_given {
                return Err(wrong(format!("{key}: {instead}")));
            }
        }
        for (key, given, name) in [
            ("prompt_feature", &self.prompt_feature, "prompt"),
            ("completion_feature", &self.completion_feature, "completion"),
            ("chat_feature", &self.chat_feature, "messages"),
            ("text_feature", &self.text_feature, "text"),
        ] {
            if given.as_deref().is_some_and(|given| given != name) {
                return Err(wrong(format!(
                    "{key}: other names are not supported; the lines of the data have the key {name}"
                )));
            }
        }
        Ok(self)
    }

    /// The number of steps for mlx-lm's `iters`, which counts batches: `accumulate` batches make a step.
    pub(super) fn steps_of(iters: u64, accumulate: usize) -> Result<u64> {
        match iters / (accumulate as u64).max(1) {
            0 => Err(wrong(format!(
                "iters: {iters} batches make no step of {accumulate} batches"
            ))),
            steps => Ok(steps),
        }
    }
}

impl LrSchedule {
    /// The same rates as mlx-lm's `build_schedule`.
    pub(super) fn schedule(&self) -> Result<Schedule> {
        let steps = |steps: f64| steps.max(0.0) as u64;
        let (from, after) = match (self.name.as_str(), self.arguments.as_slice()) {
            ("cosine_decay", &[from, n]) => (from, Schedule::cosine(from, 0.0, steps(n))),
            ("cosine_decay", &[from, n, to]) => (from, Schedule::cosine(from, to, steps(n))),
            ("linear_schedule", &[from, to, n]) => (from, Schedule::linear(from, to, steps(n))),
            ("exponential_decay", &[from, decay]) => (from, Schedule::exponential(from, decay)),
            ("step_decay", &[from, decay, every]) => {
                (from, Schedule::step(from, decay, steps(every)))
            }
            (
                name @ ("cosine_decay" | "linear_schedule" | "exponential_decay" | "step_decay"),
                found,
            ) => {
                return Err(wrong(format!(
                    "lr_schedule {name}: arguments {found:?} do not fit"
                )));
            }
            (name, _) => {
                return Err(wrong(format!(
                    "lr_schedule {name:?} is not known; known: cosine_decay, linear_schedule, \
                     exponential_decay, step_decay"
                )));
            }
        };
        if self.warmup == 0 {
            return Ok(after);
        }
        Ok(Schedule::Joined {
            first: Box::new(Schedule::linear(self.warmup_init, from, self.warmup)),
            // The highest rate is used twice: at the end of the warm-up and at the start of the schedule.
            steps: self.warmup.saturating_add(1),
            then: Box::new(after),
        })
    }
}

//! Training on the GPU: the goldens of `mlx-train`, and steps of LoRA beside `mlx_lm.lora`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::checkpoint::Model;
use super::program;
use super::{Bench, Case};
use crate::bench::record::Section;
use crate::bench::scripts;
use crate::bench::stats::{digits, head};
use crate::python;

/// Rows of a batch, and the tokens that each learns. `mlx_lm.lora` has four rows by default.
const BATCH: (usize, usize) = (4, 512);
/// Steps of a run. The first ones compile and allocate, and do not count.
const STEPS: usize = 8;
const WARM: usize = 3;
/// Layers with adapters, counted from the last: the default of both sides.
const LAYERS: usize = 16;
/// The longest that each side may take. MLX compiles kernels for mlx-lm's gradients.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_OF_MLX_LM: Duration = Duration::from_secs(150);

/// A step, in the fields that both sides report.
#[derive(Deserialize)]
struct Step {
    loss: f64,
    tokens: usize,
    seconds: f64,
    peak_bytes: u64,
}

/// The steps of one side.
#[derive(Debug, PartialEq, Serialize)]
struct Run {
    first_loss: f64,
    last_loss: f64,
    tokens_per_s: f64,
    peak_gb: f64,
}

/// The results of both sides for a checkpoint.
struct Trained {
    name: String,
    ours: Run,
    /// An error is the reason why there are no steps.
    mlx_lm: Result<Run, String>,
}

/// The results.
pub struct Training {
    all: Vec<Trained>,
}

impl Bench<'_> {
    /// Steps of LoRA on the checkpoints that are measured.
    pub fn training(&mut self) -> Result<Training> {
        let mut all = Vec::new();
        for &case in self.cases.iter().filter(|case| case.model != Model::Llama3) {
            if let Some(train) = &self.programs.train {
                eprintln!("training {}", case.name());
                all.push(self.trained(train, case)?);
            }
        }
        Ok(Training { all })
    }

    fn trained(&self, train: &Path, case: Case) -> Result<Trained> {
        let folder = case.folder(&self.work)?;
        let data = data(&self.work, case.model)?;
        let out = self.work.join("trained");
        let run = |mut command: Command, limit: Duration, steps: &str, out_flag: &str| {
            if out.exists() {
                fs::remove_dir_all(&out)
                    .with_context(|| format!("cannot empty {}", out.display()))?;
            }
            command.arg("--model").arg(&folder).arg("--data").arg(&data);
            command.args(["--num-layers", &LAYERS.to_string()]);
            command.args(["--batch-size", &BATCH.0.to_string()]);
            command.args(["--max-seq-length", &(BATCH.1 + 1).to_string()]);
            command.args(["--optimizer", "adamw", "--learning-rate", "1e-5"]);
            command
                .args([steps, &STEPS.to_string()])
                .arg(out_flag)
                .arg(&out);
            let run = program::run(&mut command, limit)?;
            let seconds = limit.as_secs();
            ensure!(!run.timed_out, "no end within {seconds} s");
            let last = run.lines.last().map_or("no output", String::as_str);
            ensure!(run.succeeded, "training {}: {last}", case.name());
            read(&run.lines)
        };
        let mut ours = Command::new(train);
        ours.args(["lora", "--json", "--save-every", "1000"]);
        let ours = run(ours, LIMIT, "--steps", "--out")?;
        let mlx_lm = match &self.shared.python {
            None => Err("not there".to_owned()),
            Some(python) => {
                let mut command = python::command(python);
                command
                    .arg(scripts().join("mlx_lm_train.py"))
                    .args(["lora", "gpu"]);
                run(command, LIMIT_OF_MLX_LM, "--iters", "--adapter-path")
                    .map_err(|error| error.to_string())
            }
        };
        Ok(Trained {
            name: case.name(),
            ours,
            mlx_lm,
        })
    }
}

/// Rows of tokens: the checkpoints have no tokenizer.
fn data(work: &Path, model: Model) -> Result<PathBuf> {
    let folder = work.join("training-data").join(model.name());
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let row = |row: usize| {
        let tokens: Vec<usize> = (0..=BATCH.1)
            .map(|at| 3 + (at * at + 7 * at * row + row) % 30_000)
            .collect();
        json!({"tokens": tokens}).to_string() + "\n"
    };
    let lines: String = (0..BATCH.0).map(row).collect();
    let file = folder.join("train.jsonl");
    fs::write(&file, lines).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(folder)
}

/// The steps among the lines of a run.
fn read(lines: &[String]) -> Result<Run> {
    let mut steps: Vec<Step> = Vec::new();
    for line in lines.iter().filter(|line| line.starts_with('{')) {
        let line: Value =
            serde_json::from_str(line).with_context(|| format!("a line of training: {line}"))?;
        if line["event"] == "step" {
            steps.push(serde_json::from_value(line).context("a step of training")?);
        }
    }
    ensure!(
        steps.len() == STEPS,
        "{STEPS} steps were asked for, {} reported",
        steps.len()
    );
    let counted = &steps[WARM..];
    let seconds: f64 = counted.iter().map(|step| step.seconds).sum();
    let tokens: usize = counted.iter().map(|step| step.tokens).sum();
    let peak = steps.iter().map(|step| step.peak_bytes).max().unwrap_or(0);
    Ok(Run {
        first_loss: steps[0].loss,
        last_loss: steps[STEPS - 1].loss,
        tokens_per_s: tokens as f64 / seconds,
        peak_gb: peak as f64 / 1e9,
    })
}

impl Training {
    /// The results as a section of the record.
    pub fn section(&self) -> Section {
        let mut text = format!(
            "Training: {STEPS} steps of LoRA (rank 8 on all linear layers of the last {LAYERS}, AdamW) on one batch of {} rows that learn {} tokens each; the first \
             {WARM} do not count.\n\n",
            BATCH.0, BATCH.1
        );
        let numbers = [
            "tokens/s",
            "peak GB",
            "first loss",
            "last loss",
            "mlx-lm: tokens/s",
            "peak GB",
            "first loss",
        ];
        text += &head(
            [("checkpoint", false)]
                .into_iter()
                .chain(numbers.map(|name| (name, true))),
        );
        for Trained { name, ours, mlx_lm } in &self.all {
            let other = match mlx_lm {
                Err(reason) => format!("{reason} | | "),
                Ok(run) => format!(
                    "{} | {:.2} | {:.4}",
                    digits(run.tokens_per_s),
                    run.peak_gb,
                    run.first_loss
                ),
            };
            let _ = writeln!(
                text,
                "| {name} | {} | {:.2} | {:.4} | {:.4} | {other} |",
                digits(ours.tokens_per_s),
                ours.peak_gb,
                ours.first_loss,
                ours.last_loss
            );
        }
        let json = self.all.iter().map(
            |of| json!({"checkpoint": of.name, "ours": of.ours, "mlx_lm": of.mlx_lm.as_ref().ok()}),
        );
        Section {
            name: "training",
            json: json.collect::<Value>(),
            text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Vec<String> {
        let step = |at: usize| {
            format!(
                r#"{{"event": "step", "loss": {}, "tokens": 2048, "seconds": {}, "peak_bytes": 3000000000, "rate": 1e-5}}"#,
                9 - at,
                if at < WARM { 9.0 } else { 0.1 }
            )
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn the_first_steps_do_not_count() {
        let mut all = lines(STEPS);
        all.insert(0, "a note".to_owned());
        all.push(r#"{"event": "saved", "path": "x"}"#.to_owned());
        let run = read(&all).unwrap();
        assert_eq!(
            (run.first_loss, run.last_loss, run.peak_gb),
            (9.0, 2.0, 3.0)
        );
        assert!((run.tokens_per_s - 20_480.0).abs() < 1e-6, "{run:?}");
        assert!(read(&lines(STEPS - 1)).is_err());
    }

    #[test]
    fn a_side_that_is_not_there_is_named() {
        let run = || read(&lines(STEPS)).unwrap();
        let trained = |mlx_lm| Trained {
            name: "gemma3-1b q4".to_owned(),
            ours: run(),
            mlx_lm,
        };
        let of = |all| Training { all }.section();
        let text = of(vec![trained(Err("not there".to_owned()))]).text;
        assert!(
            text.ends_with("| gemma3-1b q4 | 20480 | 3.00 | 9.0000 | 2.0000 | not there | |  |\n"),
            "{text}"
        );
        let section = of(vec![trained(Ok(run()))]);
        assert_eq!(section.json[0]["mlx_lm"]["peak_gb"], 3.0);
    }
}

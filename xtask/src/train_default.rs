//! `train-default`: makes the built-in model from seeds. The scripts of `xtask/default-model` make
//! corpus and tokenizer, and `mlx-train` the weights. It reports the accuracy of `mlx-infer` with
//! the model.
//!
//! An interrupted run continues where it stopped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use wait4::Wait4;

use crate::{cargo, golden, python};

/// The fraction of the steps in which the learning rate falls to zero.
pub(crate) const COOL_DOWN: f64 = 0.6;
/// The files of a checkpoint.
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Arguments of `train-default`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Working folder [default: default-model in the build folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Steps of the optimiser
    #[arg(long, value_name = "N", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(200..))]
    steps: u64,
    /// Seed of corpus, weights and order
    #[arg(long, value_name = "N", default_value_t = 20)]
    seed: u64,
    /// Replace the built-in model, its figures and its goldens by the new ones, unless its accuracy is lower
    #[arg(long)]
    install: bool,
    /// A Python that has the packages, instead of installing them (for --install also those of the goldens)
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// Makes the model, step by step.
pub fn run(arguments: &Arguments) -> Result<()> {
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => cargo::build_directory()?.join("default-model"),
    };
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let made = Making {
        python: match &arguments.python {
            Some(python) => python.clone(),
            None => python::environment(&out.join("python"), &scripts().join("requirements.txt"))?,
        },
        out,
        steps: arguments.steps,
        seed: arguments.seed,
    };
    cargo::run(&mut cargo::command([
        "build",
        "--release",
        "--package",
        "mlx-train",
        "--package",
        "mlx-infer",
    ]))?;
    made.prepare()?;
    made.train()?;
    made.judge()?;
    if arguments.install {
        made.install()?;
        golden::default_model(arguments.python.as_deref())?;
    }
    Ok(())
}

struct Making {
    python: PathBuf,
    out: PathBuf,
    steps: u64,
    seed: u64,
}

impl Making {
    /// Makes corpus, tokenizer, configuration and questions.
    fn prepare(&self) -> Result<()> {
        // This file is written last: after an interrupted run the folder is without it.
        let stamp = self.out.join("prepared.json");
        let wanted = json!({"steps": self.steps, "seed": self.seed});
        if let Ok(found) = fs::read_to_string(&stamp) {
            if serde_json::from_str::<Value>(&found).is_ok_and(|found| found == wanted) {
                return Ok(());
            }
            bail!(
                "{} holds a run of {found}, not of {wanted}: choose another --out, or remove it",
                self.out.display()
            );
        }
        timed(
            "corpus and tokenizer",
            python::command(&self.python)
                .arg(scripts().join("prepare.py"))
                .arg(&self.out)
                .args(["--seed", &self.seed.to_string()]),
        )?;
        fs::write(&stamp, wanted.to_string())
            .with_context(|| format!("cannot write {}", stamp.display()))
    }

    /// Trains the weights.
    fn train(&self) -> Result<()> {
        let (initial, run, model) = (self.at("initial"), self.at("run"), self.at("model"));
        let seed = self.seed.to_string();
        let train = || program("mlx-train");
        if !initial.join("config.json").exists() {
            python::fresh(&initial)?;
            timed(
                "initial weights",
                train()?
                    .arg("init")
                    .arg("--model")
                    .arg(self.at("start"))
                    .args(["--seed", &seed, "--out"])
                    .arg(&initial),
            )?;
        }
        let cool_down = (self.steps as f64 * COOL_DOWN) as u64;
        let mut command = train()?;
        command
            .arg("full")
            .arg("--model")
            .arg(&initial)
            .arg("--data")
            .arg(self.at("train.jsonl"))
            .arg("--config")
            .arg(scripts().join("train.yaml"))
            .args(["--seed", &seed])
            .args(["--steps", &self.steps.to_string()])
            .args(["--cooldown", &cool_down.to_string()])
            .arg("--out")
            .arg(&run);
        if is_begun(&run) {
            command.arg("--resume");
        }
        timed("training", &mut command)?;
        python::fresh(&model)?;
        timed(
            "bf16 weights",
            train()?
                .arg("fuse")
                .arg("--model")
                .arg(&initial)
                .arg("--adapter")
                .arg(&run)
                .args(["--dtype", "bf16", "--out"])
                .arg(&model),
        )
    }

    /// Measures the accuracy, and draws the loss curve.
    fn judge(&self) -> Result<()> {
        let answers = self.at("answers.jsonl");
        let file = File::create(&answers)
            .with_context(|| format!("cannot write {}", answers.display()))?;
        timed(
            "answers",
            program("mlx-infer")?
                .arg("batch")
                .arg("--model")
                .arg(self.at("model"))
                .args(["--dtype", "f32", "--max-tokens", "64", "--input"])
                .arg(self.at("questions.jsonl"))
                .stdout(file),
        )?;
        cargo::run(
            python::command(&self.python)
                .arg(scripts().join("judge.py"))
                .arg(&answers)
                .arg("--report")
                .arg(self.at("report.json")),
        )?;
        cargo::run(
            python::command(&self.python)
                .arg(scripts().join("curve.py"))
                .arg(self.at("run").join("metrics.jsonl"))
                .arg(self.at("training.json"))
                .arg(self.at("loss.svg")),
        )
    }

    /// Makes the model the built-in one if its accuracy is not lower.
    fn install(&self) -> Result<()> {
        let committed = scripts().join("report.json");
        let report = self.at("report.json");
        let (before, now) = (accuracies(&committed)?, accuracies(&report)?);
        for (task, before) in &before {
            let now = now.get(task).copied().unwrap_or(0.0);
            if now < *before {
                bail!(
                    "not installed: {task} is {:.2} %, with the built-in model {:.2} %",
                    100.0 * now,
                    100.0 * before
                );
            }
        }
        let assets = cargo::repository().join("mlx-infer/assets/default-model");
        for name in FILES {
            copy(&self.at("model").join(name), &assets.join(name))?;
        }
        copy(&report, &committed)?;
        copy(&self.at("training.json"), &scripts().join("training.json"))?;
        copy(&self.at("loss.svg"), &scripts().join("loss.svg"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

/// The fraction of right answers to the questions of each task.
fn accuracies(report: &Path) -> Result<BTreeMap<String, f64>> {
    let text = fs::read(report).with_context(|| format!("cannot read {}", report.display()))?;
    let report: Value = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not JSON", report.display()))?;
    let counts = report["counts"].as_object();
    let counts = counts.context("a report has counts")?;
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (name, count) in counts {
        let (task, split) = name.split_once(' ').unwrap_or((name, ""));
        if split == "all" {
            continue;
        }
        let number = |key: &str| count[key].as_f64().context("counts are numbers");
        let sum = sums.entry(task.to_owned()).or_default();
        sum.0 += number("right")?;
        sum.1 += number("of")?;
    }
    let shares = sums.into_iter();
    Ok(shares
        .map(|(task, (right, of))| (task, right / of))
        .collect())
}

/// Whether a run has written a checkpoint.
pub(crate) fn is_begun(run: &Path) -> bool {
    fs::read_dir(run.join("checkpoints"))
        .is_ok_and(|entries| entries.flatten().any(|entry| is_number(&entry.path())))
}

/// The step of a checkpoint's folder; `None` for other folders.
fn is_number(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.parse::<u64>().is_ok())
}

/// Runs a command, and prints its time.
pub(crate) fn timed(what: &str, command: &mut Command) -> Result<()> {
    eprintln!("{what}");
    let started = std::time::Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let used = child.wait4().context("cannot wait for the command")?;
    if !used.status.success() {
        bail!("{what}: {}", used.status);
    }
    let seconds = |time: Duration| time.as_secs_f64();
    eprintln!(
        "{what}: {:.0} s, {:.0} s of processor time",
        seconds(started.elapsed()),
        seconds(used.rusage.utime) + seconds(used.rusage.stime)
    );
    Ok(())
}

/// A program of the workspace that `cargo build --release` built.
pub(crate) fn program(name: &str) -> Result<Command> {
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let folder = cargo::target_directory()?.join("release");
    Ok(Command::new(folder.join(file)))
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(|_| ())
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

pub(crate) fn scripts() -> PathBuf {
    cargo::repository().join("xtask").join("default-model")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_is_summed_over_the_splits_of_a_task() {
        let report = tempfile::NamedTempFile::new().unwrap();
        let count = |right: u32, of: u32| json!({"right": right, "of": of});
        let counts = json!({"counts": {
            "classify word": count(9, 10), "classify template": count(10, 30),
            "classify all": count(40, 40), "complete plain": count(3, 4)}});
        fs::write(report.path(), counts.to_string()).unwrap();
        let found = accuracies(report.path()).unwrap();
        let expected = [("classify", 0.475), ("complete", 0.75)];
        let expected = expected.map(|(task, share)| (task.to_owned(), share));
        assert_eq!(found, BTreeMap::from(expected));
    }
}

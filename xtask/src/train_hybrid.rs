//! `train-hybrid`: makes a small Qwen3.5 with a head for multi-token prediction, from the corpus and with the tokenizer
//! of the built-in model. Tests use it because its head is trained: drafts are accepted at a realistic rate.
//!
//! An interrupted run continues where it stopped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::train_default::{COOL_DOWN, copy, is_begun, program, scripts, timed};
use crate::{cargo, python};

/// The files of the checkpoint.
const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "mtp.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Arguments of `train-hybrid`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Working folder [default: hybrid-model in the build folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Steps of the optimiser
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(100..))]
    steps: u64,
    /// Seed of corpus, weights and order
    #[arg(long, value_name = "N", default_value_t = 20)]
    seed: u64,
    /// Install the model into testdata
    #[arg(long)]
    install: bool,
    /// A Python that has the packages, instead of installing them
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// Makes the model, step by step.
pub fn run(arguments: &Arguments) -> Result<()> {
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => cargo::build_directory()?.join("hybrid-model"),
    };
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let python = match &arguments.python {
        Some(python) => python.clone(),
        None => python::environment(&out.join("python"), &scripts().join("requirements.txt"))?,
    };
    cargo::run(&mut cargo::command([
        "build",
        "--release",
        "--package",
        "mlx-train",
    ]))?;
    let seed = arguments.seed.to_string();
    // This file is written last: after an interrupted run it is missing.
    let config = out.join("start").join("hybrid.json");
    if !config.exists() {
        timed(
            "corpus and tokenizer",
            python::command(&python)
                .arg(scripts().join("prepare.py"))
                .arg(&out)
                .args(["--seed", &seed]),
        )?;
        cargo::run(
            python::command(&python)
                .arg(scripts().join("hybrid.py"))
                .arg(out.join("start")),
        )?;
        copy(&out.join("start").join("config.json"), &config)?;
    }
    train(&out, arguments.steps, &seed)?;
    if arguments.install {
        let folder = cargo::repository().join("testdata").join("hybrid-model");
        fs::create_dir_all(&folder)?;
        for name in FILES {
            copy(&out.join("model").join(name), &folder.join(name))?;
        }
    }
    Ok(())
}

/// Trains the weights.
fn train(out: &Path, steps: u64, seed: &str) -> Result<()> {
    let (initial, run, model) = (out.join("initial"), out.join("run"), out.join("model"));
    if !initial.join("config.json").exists() {
        python::fresh(&initial)?;
        timed(
            "initial weights",
            program("mlx-train")?
                .arg("init")
                .arg("--model")
                .arg(out.join("start"))
                .args(["--seed", seed, "--out"])
                .arg(&initial),
        )?;
    }
    let cool_down = (steps as f64 * COOL_DOWN) as u64;
    let mut command = program("mlx-train")?;
    command
        .arg("full")
        .arg("--model")
        .arg(&initial)
        .arg("--data")
        .arg(out.join("train.jsonl"))
        .arg("--config")
        .arg(scripts().join("hybrid.yaml"))
        .args(["--seed", seed])
        .args(["--steps", &steps.to_string()])
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
        program("mlx-train")?
            .arg("fuse")
            .arg("--model")
            .arg(&initial)
            .arg("--adapter")
            .arg(&run)
            .args(["--dtype", "bf16", "--out"])
            .arg(&model),
    )
}

//! `golden`: writes the reference results under `testdata` again, or checks that they would be the same.
//!
//! The scripts are Python, like the references. They run in a separate environment below the target folder, with the
//! versions of `xtask/golden/requirements.txt`. Every golden names its versions.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;

use crate::{cargo, python};

/// Arguments of `golden`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The parts to write; all when none is named
    parts: Vec<Part>,
    /// Write elsewhere, and compare with what is committed
    #[arg(long)]
    check: bool,
    /// A Python that has the pinned packages, instead of installing them (torch is large)
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// A folder of `testdata` and the scripts that fill it, in order. Each script takes the folder as its argument.
#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// Tiny checkpoints: logits and greedy tokens of transformers and mlx-lm
    Models,
    /// Drafters that read a model of `models`: what they draft, by transformers and modules of the script
    Drafters,
    /// Operations of mlx-core: results of MLX, compared with NumPy's
    Ops,
    /// Files of NumPy, MLX and the package gguf, and the arrays that these read from them
    Files,
    /// The public names of Python's MLX
    Names,
    /// Tiny tokenizers and chat templates: ids, texts and prompts of transformers
    Text,
    /// Training: losses, gradients and optimisers of torch and peft
    Train,
    /// Layers, losses, optimisers and initialisers of mlx-nn: what mlx.nn computes
    Nn,
    /// Conversions: tiny checkpoints converted by mlx-lm
    Convert,
    /// Encoders and modules of sentence-transformers: embeddings and relevances
    Embed,
    /// Models in GGUF: logits and tokens of transformers with their values
    Gguf,
    /// The built-in model: tokens and answers of transformers
    DefaultModel,
}

impl Part {
    fn folder(self) -> &'static str {
        match self {
            Part::Models => "models",
            Part::Drafters => "drafters",
            Part::Ops => "ops",
            Part::Files => "files",
            Part::Names => "names",
            Part::Text => "text",
            Part::Train => "train",
            Part::Nn => "nn",
            Part::Convert => "convert",
            Part::Embed => "embed",
            Part::Gguf => "gguf",
            Part::DefaultModel => "default-model",
        }
    }

    fn scripts(self) -> &'static [&'static str] {
        match self {
            Part::Models => &[
                "models.py",
                "config_keys.py",
                "quantized.py",
                "agreement.py",
            ],
            Part::Drafters => &["drafters.py"],
            Part::Ops => &["ops.py"],
            Part::Files => &["files.py"],
            Part::Names => &["names.py"],
            Part::Text => &["text.py"],
            Part::Train => &["train.py"],
            Part::Nn => &["nn.py"],
            Part::Convert => &["convert.py"],
            Part::Embed => &["embed.py"],
            Part::Gguf => &["gguf_models.py"],
            Part::DefaultModel => &["../default-model/reference.py"],
        }
    }
}

/// Checks the environment's versions, and runs the scripts of the parts.
pub fn run(arguments: &Arguments) -> Result<()> {
    let work = cargo::build_directory()?.join("golden");
    let python = match &arguments.python {
        Some(python) => python.clone(),
        None => python::environment(&work, &scripts().join("requirements.txt"))?,
    };
    let parts = match arguments.parts.as_slice() {
        [] => Part::value_variants(),
        named => named,
    };
    script(&python, "versions.py", &[])?;
    for part in parts {
        let committed = cargo::repository().join("testdata").join(part.folder());
        let out = if arguments.check {
            python::fresh(&work.join("fresh").join(part.folder()))?
        } else {
            committed.clone()
        };
        for name in part.scripts() {
            script(&python, name, &[&out])?;
        }
        if arguments.check {
            script(&python, "check.py", &[&out, &committed])?;
        }
    }
    Ok(())
}

/// Writes the goldens of the built-in model.
pub fn default_model(python: Option<&Path>) -> Result<()> {
    run(&Arguments {
        parts: vec![Part::DefaultModel],
        check: false,
        python: python.map(Path::to_owned),
    })
}

/// Runs one of the scripts.
fn script(python: &Path, name: &str, arguments: &[&Path]) -> Result<()> {
    cargo::run(
        python::command(python)
            .arg(scripts().join(name))
            .args(arguments),
    )
}

fn scripts() -> PathBuf {
    cargo::repository().join("xtask").join("golden")
}

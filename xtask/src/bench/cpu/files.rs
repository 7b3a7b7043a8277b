//! The checkpoints of `bench cpu`, and the commands that load them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::work::Start;
use super::{Arguments, Format, Isa, Model, Peer};
use crate::bench::roofline::Shape;
use crate::bench::{Shared, scripts, work};
use crate::{cargo, python};

/// The folders.
pub struct Files {
    python: PathBuf,
    llama_python: Option<PathBuf>,
    isa: Option<Isa>,
    peers: Vec<Peer>,
    layers: u16,
    folder: PathBuf,
}

impl Files {
    /// Finds the Python environments, or installs them.
    pub fn new(shared: &Shared, arguments: &Arguments) -> Result<Self> {
        let work = work()?;
        let wants_llama = arguments.peers.contains(&Peer::LlamaCpp);
        let llama_python = match &arguments.llama_python {
            Some(python) => Some(python.clone()),
            None if wants_llama => {
                eprintln!("llama.cpp is built once for this machine, which takes minutes");
                let requirements = scripts().join("requirements-llama.txt");
                Some(python::environment(&work.join("llama"), &requirements)?)
            }
            None => None,
        };
        Ok(Self {
            python: shared.python()?,
            llama_python,
            isa: arguments.isa,
            peers: arguments.peers.clone(),
            layers: arguments.layers.unwrap_or(0),
            folder: work.join("cpu"),
        })
    }

    /// The folder of a shape: `bf16`, `q8` and `q4` as MLX has them, and the same as files of GGUF.
    fn model(&self, model: Model) -> PathBuf {
        let layers = match self.layers {
            0 => String::new(),
            n => format!("-{n}"),
        };
        self.folder.join(format!("{}{layers}", model.name()))
    }

    /// Writes the files that are missing.
    pub fn prepare(&self, model: Model) -> Result<()> {
        let folder = self.model(model);
        let mut checkpoint = python::command(&self.python);
        checkpoint
            .arg(scripts().join("cpu_checkpoint.py"))
            .arg(model.name())
            .arg(&folder)
            .arg(self.layers.to_string());
        once(
            &folder,
            &["cpu_checkpoint.py", "checkpoint.py"],
            &mut checkpoint,
        )?;
        if let Some(llama) = &self.llama_python {
            let out = folder.join("gguf");
            let mut gguf = python::command(llama);
            gguf.arg(scripts().join("gguf_checkpoint.py"))
                .arg(folder.join("bf16"))
                .arg(&out);
            once(&out, &["gguf_checkpoint.py"], &mut gguf)?;
        }
        Ok(())
    }

    /// A command for each side; this project's is the first.
    pub fn commands(
        &self,
        binary: &Path,
        model: Model,
        format: Format,
        threads: usize,
    ) -> Vec<Start> {
        let folder = self.model(model);
        let checkpoint = folder.join(format.name());
        let mut commands: Vec<Start> = Vec::new();
        let (ours, binary, isa) = (checkpoint.clone(), binary.to_owned(), self.isa);
        commands.push((
            "ours",
            Box::new(move || {
                let mut command = Command::new(&binary);
                command
                    .arg(&ours)
                    .env("MLX_CPU_THREADS", threads.to_string())
                    .envs(isa.map(|isa| ("MLX_CPU_ISA", isa.name())));
                command
            }),
        ));
        for &peer in &self.peers {
            let (script, python, model) = match peer {
                Peer::LlamaCpp => (
                    "llama_cpp_session.py",
                    self.llama_python.clone(),
                    folder.join("gguf").join(format!("{}.gguf", format.name())),
                ),
                Peer::MlxLm => (
                    "mlx_lm_session.py",
                    Some(self.python.clone()),
                    checkpoint.clone(),
                ),
            };
            let Some(python) = python else { continue };
            commands.push((
                peer.name(),
                Box::new(move || {
                    let mut command = python::command(&python);
                    command.arg(scripts().join(script)).arg(&model);
                    command.arg(threads.to_string());
                    command
                }),
            ));
        }
        commands
    }

    /// The sizes in this project's checkpoint.
    pub fn shape(&self, model: Model, format: Format) -> Result<Shape> {
        let folder = self.model(model).join(format.name());
        let mut bytes = 0;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|e| e == "safetensors") {
                bytes += entry.metadata()?.len();
            }
        }
        let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
        Shape::of(&config, bytes).with_context(|| folder.display().to_string())
    }
}

/// Runs a command that fills `folder`, unless it has run with these scripts.
fn once(folder: &Path, names: &[&str], command: &mut Command) -> Result<()> {
    let mut source = Vec::new();
    for name in names {
        source.extend(fs::read(scripts().join(name))?);
    }
    // Written last: a folder whose writing was interrupted has no such file.
    let stamp = folder.join("written-by");
    if fs::read(&stamp).is_ok_and(|written| written == source) {
        return Ok(());
    }
    eprintln!("writing {}", folder.display());
    python::fresh(folder)?;
    cargo::run(command)?;
    fs::write(&stamp, source)?;
    Ok(())
}

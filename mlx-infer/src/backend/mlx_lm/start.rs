//! The start of a bridge, and the load of a model there.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::MlxLmOptions;
use super::child::Child;
use super::protocol::{BridgeAnswer, BridgeCommand, BridgeLoaded, python_name};
use super::python;
use super::session::WAIT;
use crate::error::{Error, ErrorKind, Result};
use crate::request::generation::GenerateOptions;
use crate::text::files::Files;

/// The settings with which a bridge is started.
pub(super) struct BridgeStart {
    files: Files,
    options: MlxLmOptions,
}

/// A temporary folder with the files of the built-in checkpoint. Dropping it removes it.
pub(super) struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl BridgeStart {
    pub(super) fn new(files: &Files, options: &MlxLmOptions) -> Self {
        Self {
            files: files.clone(),
            options: options.clone(),
        }
    }

    /// How long loading may take, and how long the bridge may send nothing while it computes.
    pub(super) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Starts a bridge, which then loads the model.
    pub(super) fn begin(&self) -> Result<(Child, Option<Folder>)> {
        let (path, folder) = match self.files.path() {
            Some(path) => (path.to_owned(), None),
            None => {
                let folder = unpack(&self.files)?;
                (folder.0.clone(), Some(folder))
            }
        };
        let child = Child::start(&python::choose(self.options.python.as_deref()))?;
        child.send(&BridgeCommand::Load {
            model: &absolute(&path),
            adapter: self.options.adapter.as_deref().map(absolute).as_deref(),
            dtype: self.dtype(),
            chunk: GenerateOptions::default().prefill_chunk,
        });
        Ok((child, folder))
    }

    /// The built-in model is stored in bf16 and computed in f32, as by the native back end on CPUs.
    fn dtype(&self) -> Option<&'static str> {
        let is_built_in = matches!(self.files, Files::Embedded { .. });
        let given = self.options.dtype.map(python_name);
        given.or(is_built_in.then_some("float32"))
    }

    /// Starts a bridge and waits until the model is loaded.
    pub(super) fn run(&self) -> Result<(Child, BridgeLoaded)> {
        let began = Instant::now();
        let (mut child, _folder) = self.begin()?;
        loop {
            match child.receive(WAIT)? {
                Some(BridgeAnswer::Loaded(loaded)) => return Ok((child, loaded)),
                Some(BridgeAnswer::Error { message, .. }) => return Err(refused(&message)),
                Some(BridgeAnswer::Step(_)) => {
                    return Err(child.failed("a step came before the model was loaded"));
                }
                None if began.elapsed() > self.options.timeout => return Err(self.too_slow(&child)),
                None => {}
            }
        }
    }

    pub(super) fn too_slow(&self, child: &Child) -> Error {
        let seconds = self.options.timeout.as_secs_f64();
        child.failed(&format!("the model was not loaded within {seconds} s"))
    }
}

/// The error for a model that was not loaded.
pub(super) fn refused(message: &str) -> Error {
    let help = match message.contains("No module named 'mlx_lm'") {
        true => {
            "; pip install mlx-lm, or name a Python that has it with --python or MLX_INFER_PYTHON"
        }
        false => "",
    };
    Error::new(
        ErrorKind::Unsupported,
        format!("mlx_lm cannot load the model: {message}{help}"),
    )
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Writes files that are in memory into a folder of their own.
fn unpack(files: &Files) -> Result<Folder> {
    let failed = |error| {
        let message = format!("cannot unpack {}", files.describe());
        Error::new(ErrorKind::Io, message).with_source(error)
    };
    let folder = new_folder().map_err(failed)?;
    for name in files.list()? {
        let path = folder.0.join(&name);
        let inside = path.parent().unwrap_or(&folder.0);
        let bytes = files.read(&name)?.unwrap_or_default();
        std::fs::create_dir_all(inside).map_err(failed)?;
        std::fs::write(&path, bytes).map_err(failed)?;
    }
    Ok(folder)
}

fn new_folder() -> std::io::Result<Folder> {
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let name = format!("mlx-infer-{}-{}", std::process::id(), since.as_nanos());
    let path = std::env::temp_dir().join(name);
    // Fails if there is anything of this name.
    std::fs::create_dir(&path)?;
    Ok(Folder(path))
}

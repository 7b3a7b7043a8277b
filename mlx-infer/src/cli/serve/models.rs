//! The models of `mlx-infer serve`: `--model`, `--models-dir` and the flags of several models, and
//! the lines about them on stderr.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use clap::Args;
use mlx_infer::serve::{KeepAlive, PoolEvent, PoolOptions, PooledModel};
use mlx_infer::{BackEnd, Error, ErrorKind, Files, Limits, ModelInfo, Speculative, console};

use crate::cli::drafters::Drafters;
use crate::cli::{Failure, Result, args, backend, memory, output};

/// Which models are served, and which of them are in memory.
#[derive(Args)]
pub(super) struct ModelArgs {
    /// Checkpoint folder, or the name of a model on the hub. If it is given several times, each
    /// model is loaded when a request names it [default: the built-in model]
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    model: Vec<PathBuf>,
    /// Name of the model in requests [default: the model's own name]. May be given several times:
    /// with one model answers have the first, with several --model the n-th is that of the n-th
    /// model
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Folder of models, which are loaded when requests name them: folders with a config.json,
    /// folders of such folders (org/name), and GGUF files
    #[arg(long, value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// Most bytes of weights in memory, with several models; the least recently used models are
    /// unloaded [default: three quarters of the memory that is free at the start]
    #[arg(long, value_name = "BYTES")]
    models_bytes: Option<usize>,
    /// How long a model stays in memory after its last request, with several models: 5m, 1h30m, 90
    /// (seconds), or -1 for until its memory is needed [default: -1]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    keep_alive: Option<KeepAlive>,
    /// Name of a model that is loaded at the start and not unloaded, with several models; may be
    /// given several times
    #[arg(long, value_name = "NAME")]
    pin: Vec<String>,
}

/// How each model is loaded.
#[derive(Clone)]
pub(super) struct Loading {
    pub(super) flags: args::LoadFlags,
    pub(super) backend: backend::BackendArgs,
    pub(super) drafters: Drafters,
    pub(super) speculative: Speculative,
    /// Bytes that were asked for by the names of flags, beside the weights.
    pub(super) asked: [(&'static str, Option<usize>); 2],
}

/// What is told about the models.
type OnEvent = Box<dyn Fn(&PoolEvent<'_>) + Send + Sync>;

/// The time after which the command prints what its start waits for.
const PATIENCE: Duration = Duration::from_secs(1);

impl ModelArgs {
    /// Whether models are loaded when requests name them.
    pub(super) fn are_several(&self) -> bool {
        self.model.len() > 1 || self.models_dir.is_some()
    }

    pub(super) fn options(&self) -> PoolOptions {
        let on_demand = self.are_several();
        let three_quarters = || memory::free().map(|free| free / 4 * 3);
        let bytes = self.models_bytes.or_else(three_quarters);
        PoolOptions {
            on_demand,
            bytes: bytes.filter(|_| on_demand),
            keep_alive: self.keep_alive.unwrap_or(KeepAlive::Forever),
            ..Default::default()
        }
    }

    /// The models. The files of several are looked up now, so that no request downloads any.
    pub(super) fn open(&self, loading: &Loading) -> Result<Vec<PooledModel>> {
        if !self.are_several() {
            return self.one(loading).map(|model| vec![model]);
        }
        if !self.name.is_empty() && self.name.len() != self.model.len() {
            return Err(Failure::Usage(format!(
                "name: expected one for each --model, given {} for {}",
                self.name.len(),
                self.model.len()
            )));
        }
        let mut models = Vec::new();
        for (at, path) in self.model.iter().enumerate() {
            let base = args::Base::of(Some(path.clone()), loading.flags.clone());
            let name = self.name.get(at).cloned();
            let name = name.unwrap_or_else(|| args::name_of(Some(path)));
            let files = base.files()?;
            models.push(pooled(vec![name], base, loading).with_files(files));
        }
        for (name, path) in self
            .models_dir
            .as_deref()
            .map(found)
            .transpose()?
            .unwrap_or_default()
        {
            let base = args::Base::of(Some(path.clone()), loading.flags.clone());
            match Files::directory(&path) {
                Ok(files) => models.push(pooled(vec![name], base, loading).with_files(files)),
                Err(error) => console::note(&format!("warning: {name} is left out: {error}")),
            }
        }
        for pin in &self.pin {
            let mut known = models.iter_mut();
            let Some(model) = known.find(|model| model.names.contains(pin)) else {
                return Err(Failure::Usage(format!("pin: there is no model {pin:?}")));
            };
            model.is_pinned = true;
        }
        Ok(models)
    }

    /// The only model, loaded on this thread.
    pub(super) fn load_one(&self, loading: &Loading) -> Result<BackEnd> {
        let base = args::Base::of(self.model.first().cloned(), loading.flags.clone());
        let Loading {
            backend,
            drafters,
            speculative,
            ..
        } = loading;
        base.load_for_requests(backend, drafters, *speculative, &mut |_, _| ())
    }

    fn one(&self, loading: &Loading) -> Result<PooledModel> {
        for (name, is_given) in [
            ("models-bytes", self.models_bytes.is_some()),
            ("keep-alive", self.keep_alive.is_some()),
            ("pin", !self.pin.is_empty()),
        ] {
            if is_given {
                return Err(Failure::Usage(format!(
                    "--{name} is for several models: give --model more than once, or --models-dir"
                )));
            }
        }
        let path = self.model.first();
        let names = match self.name.is_empty() {
            true => vec![args::name_of(path.map(PathBuf::as_path))],
            false => self.name.clone(),
        };
        let base = args::Base::of(path.cloned(), loading.flags.clone());
        Ok(pooled(names, base, loading))
    }
}

fn pooled(names: Vec<String>, base: args::Base, loading: &Loading) -> PooledModel {
    let Loading {
        backend,
        drafters,
        speculative,
        asked,
        ..
    } = loading.clone();
    PooledModel::new(names, move |on_progress| {
        let fits = match backend.is_native() {
            true => base.check_fit(&asked),
            false => Ok(()),
        };
        let model = fits
            .and_then(|()| base.load_for_requests(&backend, &drafters, speculative, on_progress));
        model.map_err(|failure| match failure {
            Failure::Failed(error) => error,
            Failure::Usage(message) => Error::new(ErrorKind::Argument, message),
        })
    })
}

/// The models in a folder, with their names: its folders and GGUF files, and those in folders that
/// are no models themselves.
fn found(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut models = Vec::new();
    for (name, path) in entries(dir)? {
        if let Some(name) = model_name(&name, &path) {
            models.push((name, path));
        } else if path.is_dir() {
            for (inner, path) in entries(&path)? {
                if let Some(inner) = model_name(&inner, &path) {
                    models.push((format!("{name}/{inner}"), path));
                }
            }
        }
    }
    match models.is_empty() {
        true => Err(Failure::Usage(format!(
            "models-dir: {} has no models: no folder in it has a config.json, and no file is in GGUF",
            dir.display()
        ))),
        false => Ok(models),
    }
}

/// Name and path of what is in a folder, in the order of the names. Hidden names are left out.
fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let cannot = |error| {
        let message = format!("cannot read {}", dir.display());
        Failure::from(Error::new(ErrorKind::Io, message).with_source(error))
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with('.') {
            found.push((name.into_owned(), path));
        }
    }
    found.sort();
    Ok(found)
}

/// The name of a model; `None` if there is no model. A file with a later part of a model in GGUF is
/// none, and neither is one with the tower of a model that reads images.
fn model_name(name: &str, path: &Path) -> Option<String> {
    if path.is_dir() {
        let is_gguf = || matches!(mlx_core::gguf::find(path), Ok(Some(_)));
        return (path.join("config.json").is_file() || is_gguf()).then(|| name.to_owned());
    }
    if name.starts_with("mmproj") {
        return None;
    }
    match mlx_core::gguf::find(path) {
        Ok(Some(parts)) if parts[0] == path => {
            Some(path.file_stem()?.to_string_lossy().into_owned())
        }
        _ => None,
    }
}

/// The lines about a server with one model.
pub(super) fn of_one(model: &PooledModel, prefix_bytes: usize) -> OnEvent {
    let name = model.names[0].clone();
    // Without a sender the wait for `is_ready` ends at once.
    let (ready, is_ready) = mpsc::channel::<()>();
    let waiting = format!("loading {name}: until it is ready, requests are refused with 503");
    let patience = std::thread::spawn(move || {
        if is_ready.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            console::note(&waiting);
        }
    });
    let start = Mutex::new(Some((ready, patience)));
    let kept = match prefix_bytes {
        0 => "no prefixes are kept".to_owned(),
        bytes => format!("up to {} MiB of kept prefixes", bytes.div_ceil(1 << 20)),
    };
    Box::new(move |event| match event {
        PoolEvent::Ready { info, limits, .. } => {
            let start = start.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((ready, patience)) = start {
                drop(ready);
                // If that thread prints a line, it must come before the next one.
                let _ = patience.join();
            }
            console::note(&format!(
                "ready: {name} ({}), {}{}, {kept}",
                info.model_type,
                context(info),
                caches(limits)
            ));
        }
        PoolEvent::Unloaded { why, .. } => console::note(&format!("unloaded {name}: {why}")),
        _ => {}
    })
}

/// The lines about a server with several models.
pub(super) fn of_several(models: &[PooledModel]) -> OnEvent {
    let names: Vec<&str> = models.iter().map(|model| &*model.names[0]).collect();
    console::note(&format!(
        "{} models, loaded when requests name them: {}",
        names.len(),
        names.join(", ")
    ));
    Box::new(|event| {
        console::note(&match event {
            PoolEvent::Loading { name, bytes } => {
                format!("loading {name} ({})", output::bytes(*bytes))
            }
            PoolEvent::Ready {
                name,
                info,
                limits,
                time,
            } => format!(
                "ready: {name} ({}), {}{}, in {:.1} s",
                info.model_type,
                context(info),
                caches(limits),
                time.as_secs_f64()
            ),
            PoolEvent::Failed { name, error } => format!("{name} cannot be loaded: {error}"),
            PoolEvent::Unloaded { name, why } => format!("unloaded {name}: {why}"),
            _ => return,
        });
    })
}

/// The memory for the caches of rows, if it is limited.
fn caches(limits: &Limits) -> String {
    limits.cache_bytes.map_or_else(String::new, |bytes| {
        format!(", {} for the caches of rows", output::bytes(bytes))
    })
}

fn context(info: &ModelInfo) -> String {
    match info.max_positions {
        Some(max) => format!("a context of {max} tokens"),
        None => "a context without limit".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_models_are_searched() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{}").unwrap();
        };
        for path in [
            "b/config.json",
            "org/a/config.json",
            "org/notes.txt",
            "adapter/adapter_config.json",
            ".hidden/config.json",
            "small.gguf",
            "mmproj-small.gguf",
            "folder/one.gguf",
        ] {
            write(path);
        }
        let names: Vec<String> = found(dir.path())
            .ok()
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["b", "folder", "org/a", "small"]);
        let empty = tempfile::tempdir().unwrap();
        assert!(
            matches!(found(empty.path()), Err(Failure::Usage(message)) if message.contains("has no models"))
        );
        assert!(matches!(
            found(&empty.path().join("none")),
            Err(Failure::Failed(_))
        ));
    }
}

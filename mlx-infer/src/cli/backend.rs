//! `--backend` and its flags, and `mlx-infer backends`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use mlx_infer::{
    BackEnd, Error, ErrorKind, Files, GenerateOptions, MlxLm, MlxLmOptions, backends, console,
};
use mlx_models::Registry;
use serde_json::{Value, json};

use super::{Failure, Result, args, output};

/// The choice of the back end.
#[derive(Args, Clone)]
pub(super) struct BackendArgs {
    /// Back end: this program, or Python's mlx_lm in a separate process, which has families that this version lacks
    #[arg(long, value_name = "NAME", default_value = "native")]
    backend: Name,
    /// Python, or a virtual environment, that has mlx_lm [default: MLX_INFER_PYTHON, the active environment, python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Seconds that mlx_lm may take to load the model, and may send nothing while it computes [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    backend_timeout: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Name {
    Native,
    MlxLm,
}

impl BackendArgs {
    /// Whether it is the back end of this program.
    pub(super) fn is_native(&self) -> bool {
        self.backend == Name::Native
    }

    /// Checks the flags, before the model is loaded.
    pub(super) fn check(&self, options: &GenerateOptions) -> Result {
        if !self.is_native() {
            let checked = MlxLm::check_options(options);
            return checked.map_err(|error| Failure::Usage(error.to_string()));
        }
        for (name, is_given) in [
            ("python", self.python.is_some()),
            ("backend-timeout", self.backend_timeout.is_some()),
        ] {
            if is_given {
                return Err(Failure::Usage(format!("--{name} is for --backend mlx-lm")));
            }
        }
        Ok(())
    }

    /// Checks flags, given as the name of each and whether it is given.
    ///
    /// # Errors
    /// A flag is given that the back end does not support.
    pub(super) fn refuse(&self, flags: &[(&str, bool)]) -> Result {
        match flags.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) if !self.is_native() => Err(Failure::Usage(format!(
                "--{name} is not supported with --backend mlx-lm"
            ))),
            _ => Ok(()),
        }
    }

    /// Loads the model of `base`, with an adapter if there is one. `native` loads it in this process.
    pub(super) fn load(
        &self,
        base: &args::Base,
        adapter: Option<PathBuf>,
        native: impl FnOnce() -> Result<mlx_infer::LoadedModel>,
    ) -> Result<BackEnd> {
        if self.is_native() {
            let loaded = native().map_err(|failure| self.with_fallback(failure, base));
            return loaded.map(BackEnd::from);
        }
        self.refuse(&base.native_only())?;
        let default = MlxLmOptions::default();
        let options = MlxLmOptions {
            python: self.python.clone(),
            adapter,
            dtype: base.dtype(),
            timeout: self
                .backend_timeout
                .map_or(default.timeout, Duration::from_secs),
        };
        let model = MlxLm::load(base.files()?, options)?;
        console::note(&format!("back end: mlx_lm {}", model.version()));
        Ok(BackEnd::from(model))
    }

    /// If the error is that the family is unknown, adds how mlx_lm could load the model.
    fn with_fallback(&self, failure: Failure, base: &args::Base) -> Failure {
        match failure {
            Failure::Failed(error) if error.kind() == ErrorKind::Unsupported => {
                let is_unknown = base.files().is_ok_and(|files| has_unknown_family(&files));
                let fallback = if is_unknown {
                    fallback()
                } else {
                    String::new()
                };
                Failure::Failed(Error::new(error.kind(), format!("{error}{fallback}")))
            }
            other => other,
        }
    }
}

fn has_unknown_family(files: &Files) -> bool {
    let config = files.json("config.json").ok().flatten();
    let name = config.as_ref().and_then(|config| config.get("model_type"));
    let name = name.and_then(Value::as_str);
    name.is_some_and(|name| Registry::default().family(name).is_none())
}

fn fallback() -> String {
    let all = backends(None);
    let other = all.iter().find(|backend| backend.program.is_some());
    match other.map(|backend| &backend.version) {
        Some(Ok(version)) => {
            format!("; mlx_lm {version} is installed and may load it: --backend mlx-lm")
        }
        Some(Err(why)) => format!("; mlx_lm may load it, with --backend mlx-lm, but {why}"),
        None => String::new(),
    }
}

/// `mlx-infer backends`.
#[derive(Args)]
pub(super) struct Backends {
    /// Python, or a virtual environment, in which to look for mlx_lm [default: MLX_INFER_PYTHON, the active
    /// environment, python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Print one JSON document: a list of name, about, available, version, program, missing
    #[arg(long)]
    json: bool,
}

impl Backends {
    pub(super) fn run(self) -> Result {
        let all = backends(self.python.as_deref());
        if self.json {
            let documents = all.iter().map(|backend| {
                json!({
                    "name": backend.name,
                    "about": backend.about,
                    "available": backend.version.is_ok(),
                    "version": backend.version.as_ref().ok(),
                    "program": backend.program,
                    "missing": backend.version.as_ref().err(),
                })
            });
            return output::print_json(&documents.collect());
        }
        let lines = all.iter().map(|backend| {
            let state = match &backend.version {
                Ok(version) => version.clone(),
                Err(why) => format!("not available: {why}"),
            };
            let program = backend.program.as_ref();
            let program = program.filter(|_| backend.version.is_ok());
            let program =
                program.map_or_else(String::new, |program| format!(", {}", program.display()));
            format!("{:<8} {state} ({}{program})\n", backend.name, backend.about)
        });
        output::print(&lines.collect::<String>())
    }
}

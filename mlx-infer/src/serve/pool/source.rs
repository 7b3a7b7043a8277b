//! The models of a pool as they are given to a server: names, files, and how each is loaded.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use mlx_models::ModelInfo;

use super::About;
use crate::backend::BackEnd;
use crate::error::{Error, ErrorKind, Result};
use crate::request::limits::Limits;
use crate::serve::http::metrics::ServerMetrics;
use crate::serve::keep_alive::KeepAlive;
use crate::text::files::Files;

/// Gets the number of parameters that were read, and their total.
type OnProgress<'p> = dyn FnMut(usize, usize) + 'p;
/// Loads a model once.
type LoadOnce = Box<dyn FnOnce(&mut OnProgress<'_>) -> Result<BackEnd> + Send>;
/// Loads a model each time that it is needed.
type LoadAgain = Arc<dyn Fn(&mut OnProgress<'_>) -> Result<BackEnd> + Send + Sync>;
/// Is told what happens to the models.
pub(super) type OnPoolEvent = dyn Fn(&PoolEvent<'_>) + Send + Sync;

/// A model of a [`Server`](super::super::Server) that has several.
///
/// ```
/// use mlx_infer::serve::PooledModel;
/// use mlx_infer::{LoadOptions, LoadedModel};
///
/// let files = mlx_infer::default_model_files();
/// let again = files.clone();
/// let model = PooledModel::new(["tiny"], move |progress| {
///     LoadedModel::load_files(again.clone(), LoadOptions::default(), progress)
/// });
/// let model = model.with_files(files);
/// assert!(!model.is_pinned);
/// ```
pub struct PooledModel {
    /// The names that requests may give; answers contain the one that was given.
    pub names: Vec<String>,
    /// Whether it is loaded at the start and never unloaded.
    pub is_pinned: bool,
    files: Option<Files>,
    load: Loader,
}

/// How a model is loaded.
enum Loader {
    Once(Mutex<Option<LoadOnce>>),
    Again(LoadAgain),
}

impl PooledModel {
    /// A model that `load` reads, on a thread of its own, each time that it is needed. `load`
    /// reports the number of parameters that were read, and their total.
    pub fn new<M: Into<BackEnd>>(
        names: impl IntoIterator<Item = impl Into<String>>,
        load: impl Fn(&mut dyn FnMut(usize, usize)) -> Result<M> + Send + Sync + 'static,
    ) -> Self {
        Self {
            names: names.into_iter().map(Into::into).collect(),
            is_pinned: false,
            files: None,
            load: Loader::Again(Arc::new(move |progress| load(progress).map(Into::into))),
        }
    }

    /// The same with the files that `load` reads. They say how many bytes the weights have and what
    /// the model is, before it is loaded. Models of the same folder become one with the names of
    /// all.
    #[must_use]
    pub fn with_files(self, files: Files) -> Self {
        Self {
            files: Some(files),
            ..self
        }
    }

    /// A model that can be loaded once.
    pub(in super::super) fn once<M: Into<BackEnd>>(
        names: Vec<String>,
        load: impl FnOnce() -> Result<M> + Send + 'static,
    ) -> Self {
        let load: LoadOnce = Box::new(move |_| load().map(Into::into));
        Self {
            names,
            is_pinned: true,
            files: None,
            load: Loader::Once(Mutex::new(Some(load))),
        }
    }
}

/// Which models of a [`Server`](super::super::Server) are in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Whether models are loaded when requests name them, and requests wait for that. Otherwise
    /// there is one model, which is loaded at the start.
    pub on_demand: bool,
    /// The most bytes of weights in memory at a time; `None` for no limit. Caches of requests and
    /// stored prefixes are not counted: each model has the limits of
    /// [`EngineOptions`](crate::EngineOptions).
    pub bytes: Option<usize>,
    /// How long a model stays in memory after its last request.
    pub keep_alive: KeepAlive,
    /// How long a request waits for room, while the models in memory have requests.
    pub patience: Duration,
}

impl Default for PoolOptions {
    /// Models are loaded on demand, and unloaded only by requests that ask for it.
    fn default() -> Self {
        Self {
            on_demand: true,
            bytes: None,
            keep_alive: KeepAlive::Forever,
            patience: Duration::from_secs(300),
        }
    }
}

/// What happens to a model of a pool.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolEvent<'e> {
    /// It is being loaded.
    Loading {
        /// Its first name.
        name: &'e str,
        /// The bytes of its weights, or of its files if it was never loaded.
        bytes: usize,
    },
    /// It is in memory.
    Ready {
        /// Its first name.
        name: &'e str,
        /// Information about it.
        info: &'e ModelInfo,
        /// The limits of its engine.
        limits: &'e Limits,
        /// How long loading took.
        time: Duration,
    },
    /// It cannot be loaded. Another request for it tries again.
    Failed {
        /// Its first name.
        name: &'e str,
        /// The error of its loader.
        error: &'e Error,
    },
    /// Its memory is free.
    Unloaded {
        /// Its first name.
        name: &'e str,
        /// The reason.
        why: &'e str,
    },
}

/// A model of a pool.
pub(in super::super) struct PoolModel {
    pub(super) names: Vec<String>,
    pub(super) is_pinned: bool,
    pub(in super::super) metrics: ServerMetrics,
    files: Option<Files>,
    load: Loader,
    /// What its files say, once they were read.
    about: OnceLock<Arc<About>>,
    file_bytes: OnceLock<usize>,
}

impl PoolModel {
    /// The function that loads the model.
    ///
    /// # Errors
    /// The model was loaded before, and can be loaded once.
    pub(super) fn loader(&self) -> Result<LoadOnce> {
        match &self.load {
            Loader::Again(load) => {
                let load = load.clone();
                Ok(Box::new(move |progress| load(progress)))
            }
            Loader::Once(load) => {
                let mut load = load.lock().unwrap_or_else(PoisonError::into_inner);
                load.take().ok_or_else(|| {
                    Error::new(ErrorKind::Unsupported, "the model cannot be loaded again")
                })
            }
        }
    }

    /// Whether the model can be loaded again.
    pub(super) fn is_loadable(&self) -> bool {
        matches!(self.load, Loader::Again(_))
    }

    /// The bytes of its weights in files; 0 if they cannot be read, which loading reports.
    pub(super) fn file_bytes(&self) -> usize {
        let known = self.file_bytes.get().copied();
        known.unwrap_or_else(|| match self.files.as_ref().map_or(0, weight_bytes) {
            0 => 0,
            bytes => *self.file_bytes.get_or_init(|| bytes),
        })
    }

    /// The facts in its files.
    pub(super) fn about(&self) -> Arc<About> {
        let about = || match &self.files {
            Some(files) => About::of_files(files, self.file_bytes()),
            None => About::default(),
        };
        self.about.get_or_init(|| Arc::new(about())).clone()
    }

    /// An error text without the model's folder.
    pub(super) fn without_folder(&self, message: &str) -> String {
        let path = self.files.as_ref().and_then(Files::path);
        path.map_or_else(
            || message.to_owned(),
            |path| message.replace(&*path.to_string_lossy(), &self.names[0]),
        )
    }
}

/// The bytes of the files with a model's weights. As in loading, `model.safetensors` stands for all
/// of them, and `consolidated` files are a second copy of the others.
fn weight_bytes(files: &Files) -> usize {
    let of = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len() as usize);
    let Some(path) = files.path() else {
        return files.embedded_bytes();
    };
    if path.is_file() {
        return of(path);
    }
    let single = path.join("model.safetensors");
    if single.is_file() {
        return of(&single);
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_weights = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_named = |end: &str| name.ends_with(end) && !name.starts_with("consolidated");
        is_named(".safetensors") || is_named(".gguf")
    };
    let paths = entries.map(|entry| entry.path()).filter(is_weights);
    paths.map(|path| of(&path)).sum()
}

/// The models of a server. Those with the same folder become one with the names of all.
///
/// # Errors
/// There is no model, or a name is empty or stands for two models.
pub(super) fn merged(models: Vec<PooledModel>) -> Result<Vec<PoolModel>> {
    let folder = |files: &Option<Files>| {
        let path = files.as_ref()?.path()?;
        std::fs::canonicalize(path).ok()
    };
    let mut merged: Vec<(Option<PathBuf>, PoolModel)> = Vec::new();
    for model in models {
        let PooledModel {
            names,
            is_pinned,
            files,
            load,
        } = model;
        let path = folder(&files);
        let same = merged
            .iter_mut()
            .find(|(known, _)| path.is_some() && *known == path);
        if let Some((_, known)) = same {
            known.names.extend(names);
            known.is_pinned |= is_pinned;
            continue;
        }
        let model = PoolModel {
            names,
            is_pinned,
            metrics: ServerMetrics::default(),
            files,
            load,
            about: OnceLock::new(),
            file_bytes: OnceLock::new(),
        };
        merged.push((path, model));
    }
    let mut models: Vec<PoolModel> = merged.into_iter().map(|(_, model)| model).collect();
    if models.is_empty() {
        return Err(Error::argument("there is no model to serve"));
    }
    for model in &mut models {
        // A model under the same name twice is one.
        let mut seen = std::collections::BTreeSet::new();
        model.names.retain(|name| seen.insert(name.clone()));
        if model.names.is_empty() || model.names.iter().any(String::is_empty) {
            return Err(Error::argument("a model needs a name that is not empty"));
        }
    }
    for (at, model) in models.iter().enumerate() {
        for name in &model.names {
            if models[..at].iter().any(|other| other.names.contains(name)) {
                return Err(Error::argument(format!(
                    "two models have the name {name:?}; expected one name for each"
                )));
            }
        }
    }
    Ok(models)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LoadedModel;

    fn model(name: &str, path: &Path) -> PooledModel {
        let files = Files::directory(path).unwrap();
        PooledModel::new([name], |_| {
            Err::<LoadedModel, _>(Error::argument("not here"))
        })
        .with_files(files)
    }

    #[test]
    fn models_of_one_folder_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        let names = |models: Vec<PooledModel>| -> std::result::Result<Vec<Vec<String>>, String> {
            let models = merged(models).map_err(|error| error.to_string())?;
            Ok(models.into_iter().map(|model| model.names).collect())
        };
        let same = a.join("../a");
        assert_eq!(
            names(vec![
                model("x", &a),
                model("y", &b),
                model("z", &same),
                model("x", &a)
            ]),
            Ok(vec![
                vec!["x".to_owned(), "z".to_owned()],
                vec!["y".to_owned()]
            ])
        );
        let refused = names(vec![model("x", &a), model("x", &b)]).unwrap_err();
        assert!(
            refused.starts_with("two models have the name \"x\""),
            "{refused}"
        );
        assert!(names(Vec::new()).is_err() && names(vec![model("", &a)]).is_err());
    }

    #[test]
    fn the_files_of_weights_are_weighed() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::directory(folder.path()).unwrap();
        let write = |name: &str, bytes: usize| {
            std::fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        };
        write("model-00001-of-00002.safetensors", 5);
        write("model-00002-of-00002.safetensors", 7);
        write("consolidated.safetensors", 12);
        write("tokenizer.json", 100);
        assert_eq!(weight_bytes(&files), 12);
        write("model.safetensors", 3);
        assert_eq!(weight_bytes(&files), 3);
        let given = Files::given("mine", [("model.safetensors", vec![0; 9])]);
        assert_eq!(weight_bytes(&given), 9);
    }
}

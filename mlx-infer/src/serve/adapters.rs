//! The adapters of a server with one model, some of which come and go while it runs.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use serde::Deserialize;

use super::pool::Pool;
use super::settings::DEFAULT;
use super::state::{App, Asked, Shared};
use crate::engine::listed;
use crate::error::Error;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;

/// The adapters of the model, which are loaded again whenever the model is.
pub(super) struct ServedAdapters {
    known: Mutex<Known>,
    /// Held while an adapter is loaded.
    loading: tokio::sync::Mutex<()>,
}

struct Known {
    adapters: Vec<ServedAdapter>,
    next_id: usize,
}

/// An adapter that requests may name.
#[derive(Clone, Debug)]
pub(super) struct ServedAdapter {
    /// Its number on llama.cpp's routes. No later adapter gets it again.
    pub(super) id: usize,
    pub(super) name: String,
    pub(super) dir: PathBuf,
    /// Its scale in requests that choose no adapter.
    pub(super) scale: f32,
}

/// An adapter and its scale, in llama.cpp's form.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ScaledAdapter {
    id: Option<usize>,
    name: Option<String>,
    scale: f32,
}

impl ServedAdapters {
    pub(super) fn new(at_start: &[(String, PathBuf)]) -> Self {
        let adapters = at_start.iter().enumerate();
        let adapters = adapters.map(|(id, (name, dir))| ServedAdapter {
            id,
            name: name.clone(),
            dir: dir.clone(),
            scale: 0.0,
        });
        Self {
            known: Mutex::new(Known {
                adapters: adapters.collect(),
                next_id: at_start.len(),
            }),
            loading: tokio::sync::Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All adapters, in the order of their numbers.
    pub(super) fn list(&self) -> Vec<ServedAdapter> {
        self.known().adapters.clone()
    }

    /// The names and folders, for an engine that starts.
    pub(super) fn folders(&self) -> Vec<(String, PathBuf)> {
        let list = self.list().into_iter();
        list.map(|adapter| (adapter.name, adapter.dir)).collect()
    }

    /// The names.
    pub(super) fn names(&self) -> Vec<String> {
        let list = self.list().into_iter();
        list.map(|adapter| adapter.name).collect()
    }

    /// Sets the scales for requests that choose no adapter: those that are not listed get 0.
    ///
    /// # Errors
    /// There is no such adapter, a scale is not finite, or several adapters have one other than 0.
    pub(super) fn set_scales(&self, scales: &[ScaledAdapter]) -> Result<(), ApiError> {
        let mut known = self.known();
        let chosen = chosen(&known.adapters, scales)?;
        for adapter in &mut known.adapters {
            let own = chosen.as_ref().filter(|(name, _)| *name == adapter.name);
            adapter.scale = own.map_or(0.0, |(_, scale)| *scale);
        }
        Ok(())
    }
}

/// The one adapter of a list that has a scale other than 0.
fn chosen(
    known: &[ServedAdapter],
    scales: &[ScaledAdapter],
) -> Result<Option<(String, f32)>, ApiError> {
    let bad = |message: String| ApiError::bad("lora", message);
    let mut chosen: Option<(String, f32)> = None;
    for given in scales {
        let found = known.iter().find(|adapter| match (given.id, &given.name) {
            (Some(id), None) => adapter.id == id,
            (None, Some(name)) => adapter.name == *name,
            _ => false,
        });
        let Some(adapter) = found else {
            let ids = known.iter();
            let ids = ids.map(|adapter| format!("{} ({:?})", adapter.id, adapter.name));
            return Err(bad(format!(
                "lora: expected the id or the name of an adapter, found {}; there are: {}",
                match (given.id, &given.name) {
                    (Some(_), Some(_)) => "both".to_owned(),
                    (Some(id), None) => format!("the id {id}"),
                    (None, Some(name)) => format!("the name {name:?}"),
                    (None, None) => "neither".to_owned(),
                },
                listed(ids)
            )));
        };
        if !given.scale.is_finite() {
            return Err(bad(format!(
                "lora: scale must be finite, given {}",
                given.scale
            )));
        }
        if given.scale == 0.0 {
            continue;
        }
        if let Some((other, _)) = &chosen {
            return Err(bad(format!(
                "lora: a request has at most one adapter with a scale other than 0, given {other:?} and {:?}",
                adapter.name
            )));
        }
        chosen = Some((adapter.name.clone(), given.scale));
    }
    Ok(chosen)
}

impl App {
    /// Takes llama.cpp's `lora` from a body, and chooses the request's adapter.
    ///
    /// # Errors
    /// It is no list of adapters with scales, names unknown or several adapters, or another one than `model` does.
    pub(super) fn choose_adapter(
        &self,
        asked: &mut Asked,
        fields: &mut Fields,
    ) -> Result<(), ApiError> {
        let given: Option<Vec<ScaledAdapter>> = fields.take("lora")?;
        let known = self.pool.adapters().list();
        let Some(given) = given else {
            // Requests that name the model itself have the scales that are set for all.
            let default = known.iter().find(|adapter| adapter.scale != 0.0);
            if let (None, Some(adapter)) = (&asked.adapter, default) {
                (asked.adapter, asked.adapter_scale) = (Some(adapter.name.clone()), adapter.scale);
            }
            return Ok(());
        };
        let chosen = chosen(&known, &given)?;
        match (&asked.adapter, chosen) {
            (Some(name), Some((other, _))) if *name != other => {
                let message =
                    format!("lora: the request names {other:?}, and its model is {name:?}");
                Err(ApiError::bad("lora", message))
            }
            (_, Some((name, scale))) => {
                (asked.adapter, asked.adapter_scale) = (Some(name), scale);
                Ok(())
            }
            (_, None) => {
                if !given.is_empty() {
                    asked.adapter = None;
                }
                Ok(())
            }
        }
    }
}

/// The folder of an adapter that a client names: a path in the server's folder of adapters.
///
/// # Errors
/// Status 403: the server has no such folder, or the path leads out of it. Status 404: there is no folder.
pub(super) fn folder_of(root: Option<&Path>, path: &str) -> Result<PathBuf, ApiError> {
    let refused =
        |status, message: String| Err(ApiError::new(status, message).with_param("lora_path"));
    let Some(root) = root else {
        return refused(
            StatusCode::FORBIDDEN,
            "the server loads no adapters on request: it was started without --adapters-dir"
                .to_owned(),
        );
    };
    let resolved = root.canonicalize().and_then(|root| {
        let dir = root.join(path).canonicalize()?;
        Ok((root, dir))
    });
    match resolved {
        Ok((root, dir)) if dir.starts_with(&root) && dir != root && dir.is_dir() => Ok(dir),
        Ok((root, dir)) if dir.starts_with(&root) => refused(
            StatusCode::NOT_FOUND,
            format!("{path:?} is not the folder of an adapter"),
        ),
        // Whether a file outside of the folder exists is not told.
        Err(_) if Path::new(path).is_relative() && !path.contains("..") => refused(
            StatusCode::NOT_FOUND,
            format!("there is no folder {path:?} in the server's folder of adapters"),
        ),
        _ => refused(
            StatusCode::FORBIDDEN,
            format!("{path:?} is not in the server's folder of adapters"),
        ),
    }
}

/// Loads an adapter beside the model, and returns when requests may name it. If the client leaves, it is loaded
/// nevertheless.
///
/// # Errors
/// The server has several models, the name is taken, the model is not in memory and cannot be loaded, or the folder has
/// no adapter for it.
pub(super) async fn load(app: &Shared, name: String, dir: PathBuf) -> Result<(), ApiError> {
    let pool = one_model(app)?;
    if name.is_empty() || name.contains(char::is_control) {
        let message = "lora_name must not be empty or have control characters";
        return Err(ApiError::bad("lora_name", message));
    }
    if name == DEFAULT {
        let message = format!("lora_name: {DEFAULT:?} stands for the model");
        return Err(ApiError::bad("lora_name", message));
    }
    let app = app.clone();
    let load = tokio::spawn(async move {
        let adapters = pool.adapters();
        let _one_at_a_time = adapters.loading.lock().await;
        if app.names().contains(&name) {
            let message = format!("lora_name: there is a model or an adapter {name:?} already");
            return Err(ApiError::bad("lora_name", message));
        }
        let served = app.first().await?;
        let (own, from) = (name.clone(), dir.clone());
        let loaded =
            tokio::task::spawn_blocking(move || served.model.engine.load_adapter(&own, &from))
                .await;
        let loaded = loaded.map_err(|_| ApiError::internal())?;
        loaded.map_err(|error| {
            // Clients need not know where the server's folders are.
            let folder = dir.file_name().unwrap_or_default().to_string_lossy();
            let message = error.to_string().replace(&*dir.to_string_lossy(), &folder);
            ApiError::from(Error::new(error.kind(), message)).with_param("lora_path")
        })?;
        let mut known = adapters.known();
        let id = known.next_id;
        known.next_id += 1;
        known.adapters.push(ServedAdapter {
            id,
            name,
            dir,
            scale: 0.0,
        });
        Ok(())
    });
    load.await.map_err(|_| ApiError::internal())?
}

/// Refuses new requests for an adapter at once, and returns when those in progress have ended and its memory is free.
///
/// # Errors
/// Status 404: there is no such adapter. It has parameters of the model itself.
pub(super) async fn unload(app: &Shared, name: String) -> Result<(), ApiError> {
    let pool = one_model(app)?;
    let unload = tokio::spawn(async move {
        let adapters = pool.adapters();
        let removed = {
            let mut known = adapters.known();
            let found = known.adapters.iter().position(|own| own.name == name);
            let at = found.ok_or_else(|| {
                let own = known.adapters.iter().map(|own| own.name.clone());
                let message = format!("there is no adapter {name:?}; there are: {}", listed(own));
                ApiError::new(StatusCode::NOT_FOUND, message).with_param("lora_name")
            })?;
            known.adapters.remove(at)
        };
        let Some(lease) = pool.try_acquire(0, None).ok().flatten() else {
            // It is not loaded again with the model.
            return Ok(());
        };
        let freed = tokio::task::spawn_blocking(move || lease.engine.unload_adapter(&name)).await;
        let freed = freed.map_err(|_| ApiError::internal())?;
        freed.map_err(|error| {
            let mut known = adapters.known();
            known.adapters.push(removed);
            known.adapters.sort_by_key(|own| own.id);
            ApiError::from(error).with_param("lora_name")
        })
    });
    unload.await.map_err(|_| ApiError::internal())?
}

fn one_model(app: &Shared) -> Result<std::sync::Arc<Pool>, ApiError> {
    match app.pool.len() {
        1 => Ok(app.pool.clone()),
        models => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            format!("adapters are for a server with one model, this one has {models}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_in_the_folder_of_adapters() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("adapters");
        std::fs::create_dir_all(own.join("sport/news")).unwrap();
        std::fs::create_dir_all(root.path().join("secret")).unwrap();
        std::fs::write(own.join("file"), "x").unwrap();
        let status =
            |root: Option<&Path>, path: &str| folder_of(root, path).map_err(|error| error.status);
        let found = status(Some(&own), "sport/news").unwrap();
        assert!(found.ends_with("sport/news"));
        let absolute = found.to_str().unwrap();
        assert_eq!(status(Some(&own), absolute).unwrap(), found);
        for (path, expected) in [
            ("../secret", StatusCode::FORBIDDEN),
            ("sport/../../secret", StatusCode::FORBIDDEN),
            ("../absent", StatusCode::FORBIDDEN),
            ("/etc", StatusCode::FORBIDDEN),
            ("/absent", StatusCode::FORBIDDEN),
            ("absent", StatusCode::NOT_FOUND),
            ("file", StatusCode::NOT_FOUND),
            ("", StatusCode::NOT_FOUND),
        ] {
            assert_eq!(status(Some(&own), path), Err(expected), "{path}");
        }
        assert_eq!(status(None, "sport"), Err(StatusCode::FORBIDDEN));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(root.path().join("secret"), own.join("link")).unwrap();
            assert_eq!(status(Some(&own), "link"), Err(StatusCode::FORBIDDEN));
        }
    }
}

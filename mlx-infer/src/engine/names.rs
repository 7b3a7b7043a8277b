//! The names of an engine's adapters.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Engine;
use super::handle::gone;
use super::thread::EngineCommand;
use crate::error::{Error, Result};
use crate::model::adapters::{HeldAdapter, LoadedAdapter, check_scale};

/// What the name of an adapter stands for.
#[derive(Clone, Debug)]
pub(crate) enum NamedAdapter {
    /// Corrections, which rows have.
    Rows(Arc<LoadedAdapter>),
    /// The model with this index, a copy with the adapter.
    Model(usize),
}

/// The names of adapters that requests may give.
#[derive(Debug)]
pub(super) struct AdapterNames {
    known: Mutex<Vec<(String, NamedAdapter)>>,
    /// Held while an adapter is loaded: one at a time.
    loading: Mutex<()>,
}

impl AdapterNames {
    pub(super) fn new(known: Vec<(String, NamedAdapter)>) -> Self {
        Self {
            known: Mutex::new(known),
            loading: Mutex::new(()),
        }
    }

    fn known(&self) -> MutexGuard<'_, Vec<(String, NamedAdapter)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of a model, and the adapter of its rows.
    ///
    /// # Errors
    /// There is no such adapter, or it does not support the scale.
    pub(super) fn find(
        &self,
        adapter: Option<&str>,
        scale: f32,
    ) -> Result<(usize, Option<HeldAdapter>)> {
        let Some(name) = adapter else {
            return Ok((0, None));
        };
        let known = self.known();
        let found = known.iter().find(|(known, _)| known == name);
        match found {
            Some((_, NamedAdapter::Rows(adapter))) => {
                let held = HeldAdapter::new(adapter.clone(), scale);
                Ok((0, held.map_err(|error| of(name, &error))?))
            }
            Some((_, NamedAdapter::Model(index))) => {
                check_scale(scale).map_err(|error| of(name, &error))?;
                match scale {
                    1.0 => Ok((*index, None)),
                    0.0 => Ok((0, None)),
                    _ => Err(Error::argument(format!(
                        "adapter {name:?} has steps of its own, so its scale must be 1 or 0, given {scale}"
                    ))),
                }
            }
            None => Err(unknown(name, &known)),
        }
    }
}

fn of(name: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("adapter {name:?}: {error}"))
}

fn unknown(name: &str, known: &[(String, NamedAdapter)]) -> Error {
    let known = known.iter().map(|(name, _)| name.clone());
    Error::argument(format!(
        "there is no adapter {name:?}; there are: {}",
        listed(known)
    ))
}

/// The names of adapters in an error.
pub(crate) fn listed(names: impl Iterator<Item = String>) -> String {
    match names.collect::<Vec<_>>() {
        names if names.is_empty() => "none".to_owned(),
        names => names.join(", "),
    }
}

impl Engine {
    /// The names of the adapters that requests may choose.
    pub fn adapters(&self) -> Vec<String> {
        let known = self.adapters.known();
        known.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Loads an adapter of mlx-train, mlx-lm or PEFT (LoRA or DoRA) beside the model, and returns when requests may
    /// choose it. Rows of different adapters are computed in one step. The engine's thread reads the folder between two
    /// steps of the rows. At most [`MAX_ADAPTERS`](crate::MAX_ADAPTERS) adapters of a rank of at most
    /// [`MAX_ADAPTER_RANK`](crate::MAX_ADAPTER_RANK) are in memory.
    ///
    /// ```no_run
    /// # fn main() -> mlx_infer::Result<()> {
    /// use std::path::Path;
    /// use mlx_infer::{Engine, EngineOptions, GenerateOptions, LoadOptions, LoadedModel, Request};
    /// let load = || LoadedModel::load("base", LoadOptions::default());
    /// let engine = Engine::start(load, EngineOptions::default())?;
    /// engine.load_adapter("sport", Path::new("adapters/sport"))?;
    /// let request = Request::new("The final", GenerateOptions::default()).with_adapter("sport");
    /// println!("{}", engine.submit(request)?.wait().text.unwrap_or_default());
    /// engine.unload_adapter("sport")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The name is empty or taken; the folder holds no such adapter, or one of another model: the message names the
    /// tensors; there are too many; the model is of another back end; the engine has ended.
    pub fn load_adapter(&self, name: &str, dir: &Path) -> Result<()> {
        self.frontend.check_native()?;
        if name.is_empty() {
            return Err(Error::argument("the name of an adapter must not be empty"));
        }
        let loading = self.adapters.loading.lock();
        let _one_at_a_time = loading.unwrap_or_else(PoisonError::into_inner);
        if self.adapters.known().iter().any(|(known, _)| known == name) {
            return Err(Error::argument(format!(
                "there is an adapter {name:?} already; unload it first"
            )));
        }
        let (done, loaded) = channel();
        let dir = dir.to_owned();
        let command = EngineCommand::LoadAdapter { dir, done };
        self.commands.send(command).map_err(|_| gone())?;
        let adapter = loaded.recv().map_err(|_| gone())??;
        let named = (name.to_owned(), NamedAdapter::Rows(adapter));
        self.adapters.known().push(named);
        Ok(())
    }

    /// Refuses new requests for an adapter at once, waits for those in progress, and frees the adapter's memory.
    ///
    /// # Errors
    /// There is no such adapter, it has [steps of its own](crate::EngineOptions::adapters), or the engine has ended.
    pub fn unload_adapter(&self, name: &str) -> Result<()> {
        let number = {
            let mut known = self.adapters.known();
            let found = known.iter().position(|(known, _)| known == name);
            let at = found.ok_or_else(|| unknown(name, &known))?;
            let NamedAdapter::Rows(adapter) = &known[at].1 else {
                return Err(Error::unsupported(format!(
                    "adapter {name:?} has steps of its own, and cannot be unloaded"
                )));
            };
            let number = adapter.number();
            known.remove(at);
            number
        };
        let (done, freed) = channel();
        let command = EngineCommand::UnloadAdapter { number, done };
        self.commands.send(command).map_err(|_| gone())?;
        freed.recv().map_err(|_| gone())
    }
}

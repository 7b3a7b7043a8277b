//! An [`Engine`] of any back end.

use std::path::PathBuf;
use std::sync::Arc;

use super::{BackEnd, MlxLm};
use crate::engine::thread::Inbox;
use crate::engine::{Engine, EngineModel, EngineOptions, Native};
use crate::error::{Error, ErrorKind, Result};
use crate::model::frontend::Frontend;
use crate::request::limits::Limits;
use crate::tasks::work::TextWork;

impl Engine {
    /// Starts a thread, loads a model on it, and returns when the model is loaded. The model is a
    /// [`LoadedModel`](crate::LoadedModel), or one of another [`BackEnd`].
    ///
    /// # Errors
    /// The errors of `load`; a limit is 0; the back end does not support an option.
    pub fn start<M: Into<BackEnd>>(
        load: impl FnOnce() -> Result<M> + Send + 'static,
        options: EngineOptions,
    ) -> Result<Self> {
        Self::begin(
            |adapters, limits| prepare(load()?.into(), adapters, limits),
            options,
        )
    }
}

/// Computes with a model that several ranks share, on any rank but the first, what the engine of the first rank computes.
/// Returns when that engine ends. `options` are those of the engine.
///
/// # Errors
/// An adapter does not fit the model, another rank has died, or the model is of another back end.
pub fn follow_engine(model: impl Into<BackEnd>, options: &EngineOptions) -> Result<()> {
    match model.into() {
        BackEnd::Native(model) => {
            Native::new(*model, &options.adapters)?.follow(&options.limits, TextWork::read)
        }
        BackEnd::MlxLm(_) => {
            let message = "models of the back end mlx-lm cannot be shared by several ranks";
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// The model in the form that the engine's thread uses.
fn prepare(
    model: BackEnd,
    adapters: &[(String, PathBuf)],
    limits: &Limits,
) -> Result<Box<dyn EngineModel>> {
    match model {
        BackEnd::Native(model) => Ok(Box::new(Native::new(*model, adapters)?)),
        BackEnd::MlxLm(model) => {
            model.check_engine(adapters, limits)?;
            Ok(model)
        }
    }
}

impl EngineModel for MlxLm {
    fn frontend(&self) -> &Arc<Frontend> {
        self.frontend()
    }

    fn limits(&self, limits: &Limits) -> Result<Limits> {
        Ok(limits.clone())
    }

    fn serve(self: Box<Self>, limits: Limits, inbox: &Inbox) {
        let session = self.into_session(limits.rows);
        inbox.serve(vec![session], &[], Default::default());
    }
}

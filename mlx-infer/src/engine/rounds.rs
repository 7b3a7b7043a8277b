//! The rounds of an engine on several ranks: before each, the first rank tells the others which requests have arrived.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use mlx_nn::shard::Ranks;
use serde::{Deserialize, Serialize};

use super::decode::Decode;
use super::ranks::{agreed, check, part, ranks_lost};
use super::sequence::random_seed;
use super::thread::EngineCommand;
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::checked::Checked;
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::{GenerateOptions, Prompt};

/// How often an idle first rank looks whether the others are there.
pub(super) const BEAT: Duration = Duration::from_millis(100);

/// What the other ranks must know before a part of the work.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Round {
    arrived: Vec<Arrived>,
    /// Whether the engine ends after this.
    ends: bool,
}

/// A request that was checked.
#[derive(Serialize, Deserialize)]
struct Arrived {
    /// The index of its model.
    model: usize,
    ids: Vec<u32>,
    options: GenerateOptions,
    is_background: bool,
}

impl Round {
    /// The requests among `commands`. What the other ranks cannot compute is refused and taken out. A request without a
    /// seed gets one.
    pub(super) fn of(commands: &mut Vec<EngineCommand>) -> Self {
        let mut round = Self::default();
        commands.retain_mut(|command| match command {
            EngineCommand::Submit {
                model,
                request,
                outlet,
                ..
            } => {
                let what = match request.as_ref() {
                    Checked {
                        processor: Some(_), ..
                    } => Some("a processor"),
                    Checked {
                        adapter: Some(_), ..
                    } => Some("an adapter"),
                    _ => None,
                };
                if let Some(what) = what {
                    let message =
                        format!("a request with {what} cannot be computed on several ranks");
                    let _ = outlet.put(Err(Error::new(ErrorKind::Unsupported, message)));
                    return false;
                }
                request
                    .options
                    .sampling
                    .seed
                    .get_or_insert_with(random_seed);
                round.arrived.push(Arrived {
                    model: *model,
                    ids: request.ids.clone(),
                    options: request.options.clone(),
                    is_background: request.is_background,
                });
                true
            }
            // Its caller gets an error, because it ends without a result.
            EngineCommand::Run(..) => false,
            EngineCommand::LoadAdapter { done, .. } => {
                let message = "adapters cannot be loaded on several ranks";
                let _ = done.send(Err(Error::new(ErrorKind::Unsupported, message)));
                false
            }
            EngineCommand::UnloadAdapter { .. } | EngineCommand::Finish | EngineCommand::Wake => {
                true
            }
        });
        round
    }

    /// Tells the other ranks, if there is something to tell them: they wait for it before each part of the work.
    ///
    /// # Errors
    /// Another rank has died.
    pub(super) fn tell(self, ranks: Ranks, is_idle: bool) -> Result<()> {
        match is_idle && self.arrived.is_empty() {
            true => check(),
            false => agreed(ranks, self).map(drop),
        }
    }

    /// Ends the other ranks, unless one has died.
    pub(super) fn end(ranks: Ranks) {
        let last = Self {
            arrived: Vec::new(),
            ends: true,
        };
        if agreed(ranks, last).is_ok() {
            part(ranks);
        }
    }
}

/// Computes what the first rank computes, until it ends.
///
/// # Errors
/// Another rank has died, or this rank cannot compute a request that the first one has accepted.
pub(super) fn follow<D: Decode<'static>>(
    mut workers: Vec<D>,
    models: &[LoadedModel],
    ranks: Ranks,
) -> Result<()> {
    loop {
        let round = agreed(ranks, Round::default())?;
        for arrived in round.arrived {
            let model = models
                .get(arrived.model)
                .zip(workers.get_mut(arrived.model));
            let Some((model, worker)) = model else {
                let message = format!("rank {} has no model {}", ranks.rank(), arrived.model);
                return Err(Error::new(ErrorKind::Compute, message));
            };
            let request = Request::new(Prompt::Tokens(arrived.ids), arrived.options);
            let mut checked = model.frontend().checked(request)?;
            checked.is_background = arrived.is_background;
            let now = Instant::now();
            worker.submit(
                checked,
                now,
                CancelToken::new(),
                None,
                Box::new(|_| ControlFlow::Continue(())),
            );
        }
        if round.ends {
            part(ranks);
            return Ok(());
        }
        let busy = workers.iter_mut().filter(|worker| !worker.is_idle());
        busy.for_each(D::advance);
        if let Some(reason) = ranks_lost() {
            return Err(Error::new(ErrorKind::Compute, reason));
        }
    }
}

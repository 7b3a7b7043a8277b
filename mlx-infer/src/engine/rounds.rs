//! The rounds of an engine on several ranks: before each, the first rank tells the others what has arrived.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use mlx_nn::shard::Ranks;
use serde::{Deserialize, Serialize};

use super::decode::Decode;
use super::jobs::{Begin, Job};
use super::ranks::{agreed, check, part, ranks_lost};
use super::sequence::random_seed;
use super::state::Sink;
use super::thread::{EngineCommand, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::adapters::{AdapterTable, HeldAdapter};
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::{GenerateOptions, Prompt};

/// How often an idle first rank looks whether the others are there.
pub(super) const BEAT: Duration = Duration::from_millis(100);

/// Makes a job of what the first rank tells of it. The job computes the same pieces as on the first rank.
pub(crate) type ReadJob = fn(&str) -> Result<Begin<LoadedModel>>;

/// What the other ranks must know before a part of the work.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Round {
    /// In the order of the first rank.
    arrived: Vec<Arrived>,
    /// The numbers of jobs for which no caller waits.
    left: Vec<u64>,
    /// Whether the engine ends after this.
    ends: bool,
}

/// What callers ask for, as plain data.
#[derive(Serialize, Deserialize)]
enum Arrived {
    /// A request that was checked.
    Request {
        /// The index of its model.
        model: usize,
        ids: Vec<u32>,
        options: Box<GenerateOptions>,
        is_background: bool,
        adapter: Option<ToldAdapter>,
    },
    Job {
        model: usize,
        work: String,
        adapter: Option<ToldAdapter>,
    },
    LoadAdapter(PathBuf),
    UnloadAdapter(usize),
}

/// The index of an adapter, and its scale.
type ToldAdapter = (usize, f32);

fn told(held: &HeldAdapter) -> ToldAdapter {
    let row = held.row();
    (row.number, row.scale)
}

impl Round {
    /// What is in `commands`. What the other ranks cannot compute is refused and taken out. A request without a seed gets
    /// one. `left` are the numbers of jobs for which no caller waits.
    pub(super) fn of(commands: &mut Vec<EngineCommand>, left: Vec<u64>) -> Self {
        let mut arrived = Vec::new();
        commands.retain_mut(|command| match command {
            EngineCommand::Submit {
                model,
                request,
                outlet,
                ..
            } => {
                if request.processor.is_some() {
                    let message = "a request with a processor cannot be computed on several ranks, because a processor \
                                   is code of one process";
                    let _ = outlet.put(Err(Error::new(ErrorKind::Unsupported, message)));
                    return false;
                }
                let seed = &mut request.options.sampling.seed;
                seed.get_or_insert_with(random_seed);
                arrived.push(Arrived::Request {
                    model: *model,
                    ids: request.ids.clone(),
                    options: Box::new(request.options.clone()),
                    is_background: request.is_background,
                    adapter: request.held.as_ref().map(told),
                });
                true
            }
            EngineCommand::Run(model, job) => {
                // The engine has refused jobs that the others do not know.
                let Some(work) = job.told.take() else {
                    return false;
                };
                arrived.push(Arrived::Job {
                    model: *model,
                    work,
                    adapter: job.held.as_ref().map(told),
                });
                true
            }
            EngineCommand::LoadAdapter { dir, .. } => {
                arrived.push(Arrived::LoadAdapter(dir.clone()));
                true
            }
            EngineCommand::UnloadAdapter { number, .. } => {
                arrived.push(Arrived::UnloadAdapter(*number));
                true
            }
            EngineCommand::Finish | EngineCommand::Wake => true,
        });
        Self {
            arrived,
            left,
            ends: false,
        }
    }

    /// Tells the other ranks, if there is something to tell them: they wait for it before each part of the work.
    ///
    /// # Errors
    /// Another rank has died.
    pub(super) fn tell(self, ranks: Ranks, is_idle: bool) -> Result<()> {
        match is_idle && self.arrived.is_empty() && self.left.is_empty() {
            true => check(),
            false => agreed(ranks, self).map(drop),
        }
    }

    /// Ends the other ranks, unless one has died.
    pub(super) fn end(ranks: Ranks) {
        let last = Self {
            ends: true,
            ..Self::default()
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
    workers: Vec<D>,
    models: &[LoadedModel],
    table: AdapterTable,
    (ranks, read): (Ranks, ReadJob),
) -> Result<()> {
    let mut work = Work::new(workers, table, ranks);
    loop {
        let round = agreed(ranks, Round::default())?;
        for arrived in round.arrived {
            work.arrive(arrived, models, read)?;
        }
        work.jobs().remove(&round.left);
        if round.ends {
            part(ranks);
            return Ok(());
        }
        work.advance(models);
        if let Some(reason) = ranks_lost() {
            return Err(Error::new(ErrorKind::Compute, reason));
        }
    }
}

impl<D: Decode<'static>> Work<D> {
    /// Takes what has arrived at the first rank.
    fn arrive(&mut self, arrived: Arrived, models: &[LoadedModel], read: ReadJob) -> Result<()> {
        match arrived {
            Arrived::Request {
                model,
                ids,
                options,
                is_background,
                adapter,
            } => {
                let request = Request::new(Prompt::Tokens(ids), *options);
                let mut checked = of_place(models, model)?.frontend().checked(request)?;
                checked.is_background = is_background;
                checked.held = self.held(adapter)?;
                let sink: Sink<'static> = Box::new(|_| ControlFlow::Continue(()));
                let asked = (Instant::now(), CancelToken::new());
                self.submit(model, checked, asked, None, sink);
            }
            Arrived::Job {
                model,
                work,
                adapter,
            } => {
                of_place(models, model)?;
                let job = Job {
                    begin: read(&work)?,
                    held: self.held(adapter)?,
                    left: CancelToken::new(),
                    told: None,
                };
                self.jobs().push(model, job);
            }
            Arrived::LoadAdapter(dir) => {
                let done = channel().0;
                self.take(EngineCommand::LoadAdapter { dir, done });
            }
            Arrived::UnloadAdapter(number) => {
                let done = channel().0;
                self.take(EngineCommand::UnloadAdapter { number, done });
            }
        }
        Ok(())
    }

    fn held(&self, adapter: Option<ToldAdapter>) -> Result<Option<HeldAdapter>> {
        match adapter {
            Some((number, scale)) => self.table().held(number, scale),
            None => Ok(None),
        }
    }
}

fn of_place(models: &[LoadedModel], place: usize) -> Result<&LoadedModel> {
    models.get(place).ok_or_else(|| {
        let message = format!("this rank has no model {place}");
        Error::new(ErrorKind::Compute, message)
    })
}

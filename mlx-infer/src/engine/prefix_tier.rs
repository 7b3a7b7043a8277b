//! Stored prefixes outside the pages of the rows, in one or two tiers: in the memory of the host,
//! which is larger than that of a GPU, and in files, which survive a restart.
//!
//! A prefix that is stored in pages is also written to each tier, and a prompt of which a tier has
//! more tokens than the pages waits until they are read, while other rows decode. Two threads of a
//! tier write and read; the engine's thread does not touch the disk.
//!
//! A segment has only what its prefix adds to the longest stored one ([`index`]). Its name has a
//! checksum of its bytes ([`folder`]), which is compared before anything in it is used: a damaged
//! or foreign segment is a warning, and the prompt is computed. A place that cannot be written turns
//! its tier off. Where segments lie is all in which the tiers differ ([`store`]).

mod checksum;
mod folder;
mod identity;
mod index;
mod segment;
mod store;
#[cfg(test)]
mod tests;
mod threads;
pub(crate) mod tiered;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mlx_core::{Frozen, Safetensors};

use self::folder::{FileName, FileStore};
use self::index::{FoundSegment, Index, Shortening};
use self::store::{HostStore, SegmentStore};
use crate::engine::load::PrefixDirLoad;
use crate::engine::prefixes::Announced;
use crate::engine::prompt_cache::{Embedding, PromptState, file};
use crate::error::Result;
use crate::model::{LoadedModel, is_recurrent};
use crate::request::limits::Limits;

/// The longest wait for files that are not yet written when an engine ends.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that may wait to be written, if prefixes in memory may take less.
const LEAST_QUEUED: usize = 64 << 20;

/// A place of a model's prefixes, and the threads that write and read there.
pub(crate) struct PrefixTier {
    shared: Arc<Shared>,
    tasks: Option<Sender<Task>>,
    loads: Option<Sender<u64>>,
    loaded: Receiver<Loaded>,
    /// Disconnected when all is written.
    written: Receiver<()>,
    /// The most bytes of prefixes in memory. About as many may wait to be written.
    most_bytes: usize,
    hits: usize,
    tokens: usize,
}

/// What the engine's thread and the other two share.
struct Shared {
    store: Box<dyn SegmentStore>,
    fingerprint: u64,
    /// The names of the arrays that are divided among segments.
    growing: Vec<String>,
    index: Mutex<Index>,
    queued: AtomicUsize,
    errors: AtomicUsize,
    is_off: AtomicBool,
}

/// A prefix to be written.
struct Prefix {
    ids: Vec<u32>,
    is_long: bool,
    written: usize,
    recorded: Vec<usize>,
    arrays: Vec<(String, Frozen)>,
    bytes: usize,
}

/// The work of the thread that writes.
enum Task {
    Write(Prefix),
    /// Marks the longest stored part of a prefix as used.
    Use {
        ids: Vec<u32>,
        is_long: bool,
    },
}

/// What was read for a key.
struct Loaded {
    key: u64,
    /// The last segment's file, and the bytes of the whole prefix. `None` if it cannot be used.
    image: Option<(FileName, Arc<[u8]>)>,
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        // A panic leaves the index as it was, or without some entries.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Acquire)
    }

    /// Turns the tier off, with a warning.
    fn turn_off(&self, error: &dyn std::fmt::Display) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        if !self.is_off.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                "prefixes are no longer written to {} and read from it: {error}",
                self.store.place()
            );
        }
    }

    /// Never uses a file again, with a warning.
    fn refuse(&self, name: FileName, error: &dyn std::fmt::Display) {
        if self.index().refuse(name) {
            self.errors.fetch_add(1, Ordering::Relaxed);
            let place = self.store.place_of(name);
            tracing::warn!("{place}: {error}; the prefix is computed");
        }
    }
}

impl PrefixTier {
    /// The tiers that the limits name, for a model: the fastest first.
    pub(crate) fn of(model: &LoadedModel, limits: &Limits) -> Vec<Self> {
        let most_bytes = limits.prefix_bytes;
        let host = (limits.prefix_host_bytes > 0).then(|| {
            // No other model's segments are there.
            let host = HostStore::new(limits.prefix_host_bytes as u64);
            Self::open(model, Box::new(host), Ok(0), most_bytes)
        });
        let files = limits.prefix_dir.as_ref().map(|dir| {
            let fingerprint = identity::of(model);
            let own = fingerprint.as_ref().copied().unwrap_or_default();
            let folder = FileStore::new(&dir.path, own, dir.bytes);
            Self::open(model, Box::new(folder), fingerprint, most_bytes)
        });
        host.into_iter().chain(files).collect()
    }

    /// Opens a store for a model. `most_bytes` limits the bytes of prefixes in pages. If the store
    /// cannot be used, or the model has no fingerprint, there is a warning, and nothing is stored.
    fn open(
        model: &LoadedModel,
        store: Box<dyn SegmentStore>,
        fingerprint: Result<u64>,
        most_bytes: usize,
    ) -> Self {
        let states = model.model().states();
        let options = model.cache_options();
        let shortening = Shortening {
            window: states.iter().filter_map(|kind| kind.window(&options)).min(),
            slack: options.slack,
            is_recurrent: states.iter().any(is_recurrent),
        };
        let identity = fingerprint.and_then(|id| Ok((id, file::growing(model)?)));
        let (identity, failed) = match identity {
            Ok(identity) => (identity, None),
            Err(error) => (Default::default(), Some(error)),
        };
        let (fingerprint, growing) = identity;
        let shared = Arc::new(Shared {
            store,
            fingerprint,
            growing,
            index: Mutex::new(Index::new(shortening)),
            queued: AtomicUsize::new(0),
            errors: AtomicUsize::new(0),
            is_off: AtomicBool::new(false),
        });
        let opened = match failed {
            Some(error) => Err(error.to_string()),
            None => threads::prepare(&shared).map_err(|error| error.to_string()),
        };
        if let Err(error) = opened {
            shared.turn_off(&error);
        }
        let (tasks, queue) = channel();
        let (loads, wanted) = channel();
        let (answers, loaded) = channel();
        let (done, written) = channel();
        if !shared.is_off() {
            let (writer, reader) = (shared.clone(), shared.clone());
            let spawned = thread::Builder::new()
                .name("mlx-prefix-writer".to_owned())
                .spawn(move || {
                    threads::write(&writer, &queue);
                    drop(done);
                })
                .and_then(|_| {
                    let name = "mlx-prefix-reader".to_owned();
                    let reader = move || threads::read(&reader, &wanted, &answers);
                    thread::Builder::new().name(name).spawn(reader)
                });
            if let Err(error) = spawned {
                shared.turn_off(&error);
            }
        }
        Self {
            shared,
            tasks: Some(tasks),
            loads: Some(loads),
            loaded,
            written,
            most_bytes,
            hits: 0,
            tokens: 0,
        }
    }

    /// Whether its prefixes survive a restart.
    fn survives(&self) -> bool {
        self.shared.store.survives()
    }

    /// The prefix in the tier of which the most first tokens of a prompt can be used.
    fn find(&self, ids: &[u32], embedding: Embedding) -> Option<FoundSegment> {
        let is_long = match embedding {
            _ if self.shared.is_off() => return None,
            Embedding::Short => false,
            Embedding::Long => true,
            Embedding::Own => return None,
        };
        // The last token is always computed, because its logits are needed.
        let most = ids.len().checked_sub(1)?;
        let index = self.shared.index();
        let found = index.longest(ids, most, is_long)?;
        let chain = index.chain(found.key)?;
        // A prefix that memory cannot hold would be read in vain.
        let bytes: u64 = chain.iter().map(|segment| segment.bytes).sum();
        (bytes <= self.most_bytes as u64).then_some(found)
    }

    /// Begins to read the prefix of a key. Returns whether an answer will come.
    fn begin(&self, key: u64) -> bool {
        let is_sent = |loads: &Sender<u64>| loads.send(key).is_ok();
        self.loads.as_ref().is_some_and(is_sent)
    }

    /// The next prefix that was read. If none comes in this time, the error tells whether none will
    /// ever come.
    fn next(&self, wait: Duration) -> std::result::Result<Loaded, RecvTimeoutError> {
        self.loaded.recv_timeout(wait)
    }

    /// The tokens and states of a prefix that was read; `None` if it does not fit the model, with a
    /// warning.
    fn state(
        &self,
        model: &LoadedModel,
        name: FileName,
        image: Arc<[u8]>,
    ) -> Option<(Vec<u32>, PromptState)> {
        let state = Safetensors::from_bytes(image).map_err(Into::into);
        match state.and_then(|file| file::state(model, &file)) {
            Ok(state) => Some(state),
            Err(error) => {
                self.shared.refuse(name, &error);
                None
            }
        }
    }

    /// Counts a prompt of which `tokens` tokens came from the tier.
    fn hit(&mut self, tokens: usize) {
        self.hits += 1;
        self.tokens += tokens;
    }

    /// Queues a prefix to be written, unless too much is queued already; or to be marked as used, if
    /// it is not new.
    fn keep(&self, model: &LoadedModel, prefix: &Announced) {
        let Announced {
            ids,
            embedding,
            state,
        } = prefix;
        let ids = ids.clone();
        let is_long = match embedding {
            _ if self.shared.is_off() => return,
            Embedding::Short => false,
            Embedding::Long => true,
            Embedding::Own => return,
        };
        let task = match state {
            None => Task::Use { ids, is_long },
            Some(state) => {
                let (bytes, queued) = (state.nbytes(), self.shared.queued.load(Ordering::Acquire));
                if queued > 0 && queued + bytes > self.most_bytes.max(LEAST_QUEUED) {
                    return;
                }
                let Ok(arrays) = frozen(model, state) else {
                    return;
                };
                self.shared.queued.fetch_add(bytes, Ordering::AcqRel);
                Task::Write(Prefix {
                    ids,
                    is_long,
                    written: state.cache().written(0),
                    recorded: state.cache().recorded(0),
                    arrays,
                    bytes,
                })
            }
        };
        if let Some(tasks) = &self.tasks {
            // Without a receiver the tier is off.
            let _ = tasks.send(task);
        }
    }

    /// Counters.
    fn load(&self) -> PrefixDirLoad {
        let [files, bytes] = self.shared.index().sizes();
        PrefixDirLoad {
            hits: self.hits,
            tokens: self.tokens,
            files,
            bytes,
            errors: self.shared.errors.load(Ordering::Relaxed),
        }
    }
}

/// The arrays of a state, for another thread.
fn frozen(model: &LoadedModel, state: &PromptState) -> Result<Vec<(String, Frozen)>> {
    let arrays = file::arrays(model, state)?;
    let frozen = arrays.into_iter();
    let frozen = frozen.map(|(name, array)| Ok((name, array.freeze()?)));
    frozen.collect()
}

impl Drop for PrefixTier {
    /// Waits until all prefixes that survive are written, but not for ever.
    fn drop(&mut self) {
        self.tasks.take();
        self.loads.take();
        match self.survives() {
            true => drop(self.written.recv_timeout(PATIENCE)),
            false => self.shared.is_off.store(true, Ordering::Release),
        }
    }
}

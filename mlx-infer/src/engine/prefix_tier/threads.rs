//! The thread that writes files and the thread that reads them.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use mlx_core::{DType, Frozen};

use super::checksum::checksum;
use super::folder::FileName;
use super::index::{Segment, key};
use super::segment::{self, Facts, Tensor};
use super::{Loaded, Prefix, Shared, Task};
use crate::engine::prompt_cache::file::TOKENS;

/// How often files of other processes are looked for.
const RESCAN: Duration = Duration::from_secs(10);

/// Makes the store ready, and reads the heads of its segments.
pub(super) fn prepare(shared: &Shared) -> io::Result<()> {
    shared.store.open()?;
    scan(shared)
}

/// Reads the heads of segments that are new, and forgets those that are gone.
fn scan(shared: &Shared) -> io::Result<()> {
    let names = shared.store.names()?;
    let all: HashSet<FileName> = names.iter().map(|(name, _)| *name).collect();
    shared.index().keep(&all);
    for (name, bytes) in names {
        if shared.index().knows(name) {
            continue;
        }
        match head(shared, name, bytes) {
            Ok(segment) => shared.index().insert(segment),
            // Another process has removed it.
            Err(_) if !shared.store.has(name) => {}
            Err(error) => shared.refuse(name, &error),
        }
    }
    Ok(())
}

/// The head of a segment. Its checksum is not compared: that needs all of its bytes.
fn head(shared: &Shared, name: FileName, bytes: u64) -> Result<Segment, String> {
    let file = shared.store.head(name);
    let file = file.map_err(|error| error.to_string())?;
    let tokens = file.array(TOKENS).and_then(|tokens| tokens.to_vec::<u32>());
    let tokens = tokens.map_err(|error| error.to_string())?;
    segment::describe(name, bytes, shared.fingerprint, file.metadata(), tokens)
}

/// Writes prefixes until the engine ends and all are written.
pub(super) fn write(shared: &Shared, tasks: &Receiver<Task>) {
    loop {
        let done = match tasks.recv_timeout(RESCAN) {
            Ok(Task::Use { ids, is_long }) => {
                let found = shared.index().longest(&ids, ids.len(), is_long);
                if let Some(found) = found {
                    touch(shared, found.key);
                }
                Ok(())
            }
            Ok(Task::Write(prefix)) => {
                let bytes = prefix.bytes;
                let done = match shared.is_off() {
                    true => Ok(()),
                    false => write_one(shared, prefix),
                };
                shared.queued.fetch_sub(bytes, Ordering::AcqRel);
                done
            }
            Err(RecvTimeoutError::Timeout) if shared.is_off() => Ok(()),
            Err(RecvTimeoutError::Timeout) => scan(shared),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Err(error) = done {
            shared.turn_off(&error);
        }
    }
}

fn write_one(shared: &Shared, prefix: Prefix) -> io::Result<()> {
    let Prefix {
        ids,
        is_long,
        written,
        recorded,
        arrays,
        ..
    } = prefix;
    let own = key(&ids, is_long);
    let (is_known, parent) = {
        let index = shared.index();
        let parent = index.parent(&ids, is_long);
        let parent = parent.map(|parent| (parent.name.key, parent.ids.len()));
        (index.chain(own).is_some(), parent)
    };
    if is_known {
        touch(shared, own);
        return Ok(());
    }
    let start = parent.map_or(0, |(_, len)| len);
    let facts = Facts {
        model: shared.fingerprint,
        ids: &ids,
        start,
        parent: parent.map(|(key, _)| key),
        is_long,
        written,
        recorded: &recorded,
    };
    let mut tensors = BTreeMap::new();
    for (name, array) in arrays {
        let grows = shared.growing.contains(&name);
        let tensor = tensor(&array, if grows { start } else { 0 }).map_err(io::Error::other)?;
        tensors.insert(name, tensor);
    }
    let file = segment::file(&facts, tensors);
    let bytes = file.len() as u64;
    if !shared.store.make_room(bytes)? {
        let place = shared.store.place();
        tracing::debug!("a prefix of {bytes} bytes is larger than the limit of {place}");
        return Ok(());
    }
    let name = FileName {
        key: own,
        sum: checksum(&file),
    };
    let parent = facts.parent;
    shared.store.save(name, file)?;
    // Another process may have written meanwhile, and room may have been made at the parent's cost.
    shared.store.make_room(0)?;
    forget_removed(shared)?;
    shared.index().insert(Segment {
        name,
        bytes,
        start,
        parent,
        is_long,
        written,
        recorded,
        ids,
    });
    touch(shared, own);
    Ok(())
}

/// Forgets the segments that are gone.
fn forget_removed(shared: &Shared) -> io::Result<()> {
    let names = shared.store.names()?;
    let names = names.into_iter().map(|(name, _)| name).collect();
    shared.index().keep(&names);
    Ok(())
}

/// An array's bytes, where it grows from position `start` on.
fn tensor(array: &Frozen, start: usize) -> Result<Tensor<'static>, String> {
    let shape: Vec<usize> = array.shape().iter().map(|&n| n as usize).collect();
    let dtype = array.dtype().to_string();
    let cut = |bytes: &[u8]| {
        let whole = Tensor {
            dtype,
            shape,
            bytes: bytes.into(),
        };
        match start {
            0 => Some(Tensor {
                bytes: whole.bytes.into_owned().into(),
                dtype: whole.dtype,
                shape: whole.shape,
            }),
            _ => whole.positions_from(start),
        }
    };
    let bytes = array.thaw().view(DType::U8);
    let tensor = bytes.and_then(|bytes| bytes.with_slice::<u8, _>(cut));
    let tensor = tensor.map_err(|error| error.to_string())?;
    tensor.ok_or_else(|| format!("an array has fewer than {start} positions"))
}

/// Marks the segments of a prefix as used now.
fn touch(shared: &Shared, key: u64) {
    let names: Vec<FileName> = {
        let index = shared.index();
        let chain = index.chain(key).unwrap_or_default();
        chain.iter().map(|segment| segment.name).collect()
    };
    shared.store.touch(&names);
}

/// Reads prefixes until the engine ends.
pub(super) fn read(shared: &Shared, keys: &Receiver<u64>, answers: &Sender<Loaded>) {
    while let Ok(key) = keys.recv() {
        let image = read_one(shared, key);
        if image.is_some() {
            touch(shared, key);
        }
        if answers.send(Loaded { key, image }).is_err() {
            return;
        }
    }
}

fn read_one(shared: &Shared, key: u64) -> Option<(FileName, Arc<[u8]>)> {
    let chain: Vec<Segment> = {
        let index = shared.index();
        index.chain(key)?.into_iter().cloned().collect()
    };
    let mut files = Vec::with_capacity(chain.len());
    for segment in &chain {
        match checked(shared, segment) {
            Ok(file) => files.push(file),
            Err(Fault::Gone) => {
                shared.index().remove(segment.name.key);
                return None;
            }
            Err(Fault::Damaged(what)) => {
                shared.refuse(segment.name, &what);
                return None;
            }
        }
    }
    let last = chain.last()?.name;
    // The file of a whole prefix is used as it is.
    if files.len() == 1 {
        return files.pop().map(|file| (last, file));
    }
    let grows = |name: &str| shared.growing.iter().any(|growing| growing == name);
    match segment::whole(&chain, &files, grows) {
        Ok(image) => Some((last, image)),
        Err(what) => {
            shared.refuse(last, &what);
            None
        }
    }
}

enum Fault {
    /// It was removed, perhaps by another process.
    Gone,
    Damaged(String),
}

/// The bytes of a segment, if they have its checksum.
fn checked(shared: &Shared, segment: &Segment) -> Result<Arc<[u8]>, Fault> {
    let file = shared.store.read(segment.name, segment.bytes);
    let file = file.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::Gone,
        _ => Fault::Damaged(format!("cannot be read: {error}")),
    })?;
    match checksum(&file) == segment.name.sum {
        true => Ok(file),
        false => Err(Fault::Damaged(format!(
            "its {} bytes do not have the checksum in its name",
            file.len()
        ))),
    }
}

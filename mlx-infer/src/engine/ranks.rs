//! What the ranks that share a model agree on. The first rank decides what depends on callers, on time or on chance, and
//! tells the others. So all ranks make the same plans, and their collectives have the same order.

use std::cell::RefCell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::time::Duration;

use mlx_core::Array;
use mlx_core::distributed::{Group, Loss, Messenger, all_gather, all_sum};
use mlx_nn::shard::{Ranks, with_group};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::scheduler::Id;
use super::state::Requests;
use crate::error::{Error, ErrorKind, Result};

/// The bytes of a collective's first part of a message, of which the first eight are its length.
const FIRST: usize = 512;
const LENGTH: usize = 8;
/// For how long a lost connection may stay unnoticed by the thread that computes. It may wait for a GPU whose sums miss the
/// other rank.
const HUNG: Duration = Duration::from_secs(3);

thread_local! {
    static MESSENGER: RefCell<Option<Messenger>> = const { RefCell::new(None) };
}

/// What the messenger has lost, for other threads. A process has one ring, and so one messenger.
static LOSS: OnceLock<Loss> = OnceLock::new();

/// Lets `messenger` carry the messages of this thread's rank. Without one they are collectives of the group of the layers.
pub(crate) fn set_messenger(messenger: Messenger) {
    LOSS.get_or_init(|| messenger.loss());
    MESSENGER.set(Some(messenger));
}

/// What the first rank knows of requests before a part of the work.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// A digest of all requests in progress and their tokens.
    progress: u64,
    /// Those that were cancelled.
    cancelled: Vec<Id>,
    /// Those whose callers have too many unread events.
    paused: Vec<Id>,
}

/// Lets the first rank decide which requests are cancelled or paused, if ranks share the model.
///
/// # Errors
/// Another rank has died, or this one has computed other tokens.
pub(super) fn agree(ranks: Ranks, requests: &mut Requests<'_>) -> Result<()> {
    if ranks.size() == 1 {
        return Ok(());
    }
    let mut own = Known {
        progress: progress(requests),
        cancelled: Vec::new(),
        paused: Vec::new(),
    };
    for (&id, request) in &*requests {
        if request.is_cancelled_here() {
            own.cancelled.push(id);
        }
        if request.is_paused_here() {
            own.paused.push(id);
        }
    }
    let here = own.progress;
    let known = agreed(ranks, own)?;
    if known.progress != here {
        let message = format!(
            "rank {} has computed other tokens than rank 0",
            ranks.rank()
        );
        return Err(lost(&message));
    }
    for (id, request) in requests {
        request.agreed = Some([known.cancelled.contains(id), known.paused.contains(id)]);
    }
    Ok(())
}

/// A digest of the requests in progress and of their tokens.
fn progress(requests: &Requests<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (id, request) in requests {
        let ids = request.sequence.history().ids();
        (id, ids.len(), ids.last()).hash(&mut hasher);
    }
    hasher.finish()
}

/// The value of `own` on the first rank, on every rank. All ranks call it at the same place. With a messenger the first rank
/// does not wait for the others.
///
/// # Errors
/// Another rank has died.
pub(crate) fn agreed<T: Serialize + DeserializeOwned>(ranks: Ranks, own: T) -> Result<T> {
    if ranks.size() == 1 {
        return Ok(own);
    }
    // A collective of the layers may have failed first.
    if let Some(reason) = with_group(|group| Ok(group.lost()))? {
        return Err(lost(&reason));
    }
    let is_first = ranks.rank() == 0;
    let message = match is_first {
        true => serde_json::to_vec(&own).map_err(|error| lost(&error))?,
        false => Vec::new(),
    };
    let message = MESSENGER.with_borrow(|messenger| match messenger {
        Some(messenger) if is_first => messenger.tell(&message).map(|()| Vec::new()),
        Some(messenger) => messenger.hear(),
        None => with_group(|group| broadcast(group, &message)),
    });
    let message = message.map_err(|error| lost(&error))?;
    if is_first {
        return Ok(own);
    }
    serde_json::from_slice(&message).map_err(|_| lost(&"they do not do the same"))
}

/// The `own` of every rank, in the order of the ranks. All ranks call it at the same place.
///
/// # Errors
/// Another rank has died.
pub(crate) fn gathered(ranks: Ranks, own: &str) -> Result<Vec<String>> {
    if ranks.size() == 1 {
        return Ok(vec![own.to_owned()]);
    }
    let own = own.as_bytes();
    let all = MESSENGER.with_borrow(|messenger| match messenger {
        Some(messenger) => messenger.gather(own),
        None => with_group(|group| gather(group, own)),
    });
    let all = all.map_err(|error| lost(&error))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(all.into_iter().map(text).collect())
}

/// Whether the other ranks are there, for the first one while it has nothing to tell them.
///
/// # Errors
/// Another rank has died.
pub(super) fn check() -> Result<()> {
    let loss = MESSENGER.with_borrow(|messenger| messenger.as_ref()?.loss().get());
    match loss {
        Some((reason, _)) => Err(lost(&reason)),
        None => Ok(()),
    }
}

/// Waits until all ranks have computed what they have queued, before this one may end: a sum that is queued here may be one
/// that another rank waits for. All ranks call it at the same place.
pub(crate) fn settle(ranks: Ranks) {
    if ranks.size() > 1 {
        // A rank that has died is no fault any more.
        let _ = with_group(|group| sum(group, &[0; LENGTH]));
    }
}

/// Ends the messages of this rank.
pub(super) fn part(ranks: Ranks) {
    settle(ranks);
    drop(MESSENGER.take());
}

/// Why the ranks could not go on together, if that has happened.
static LOST: OnceLock<String> = OnceLock::new();

/// Why the ranks that share a model could not go on together, if that has happened. The program must end then: what they
/// compute is lost, and no other rank answers. A thread that still waits for a GPU cannot say so, and is not waited for
/// longer than three seconds.
///
/// ```
/// assert_eq!(mlx_infer::ranks_lost(), None);
/// ```
pub fn ranks_lost() -> Option<&'static str> {
    if LOST.get().is_none()
        && let Some((reason, since)) = LOSS.get().and_then(Loss::get)
        && since.elapsed() > HUNG
    {
        lost(&reason);
    }
    LOST.get().map(String::as_str)
}

/// The error of a rank that has lost the others.
pub(crate) fn lost(error: &impl fmt::Display) -> Error {
    let message = format!("the ranks that share the model cannot go on: {error}");
    let message = LOST.get_or_init(|| message);
    Error::new(ErrorKind::Compute, message)
}

/// The message of the first rank.
fn broadcast(group: &Group, message: &[u8]) -> mlx_core::Result<Vec<u8>> {
    let (inside, outside) = message.split_at(message.len().min(FIRST - LENGTH));
    let mut first = vec![0u8; FIRST];
    if group.rank() == 0 {
        first[..LENGTH].copy_from_slice(&(message.len() as u64).to_le_bytes());
        first[LENGTH..][..inside.len()].copy_from_slice(inside);
    }
    let first = sum(group, &first)?;
    let (length, inside) = first.split_at(LENGTH);
    let length = length
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    let mut all = inside[..length.min(inside.len())].to_vec();
    if length > all.len() {
        let mut rest = outside.to_vec();
        rest.resize(length - all.len(), 0);
        all.extend(sum(group, &rest)?);
    }
    Ok(all)
}

/// The message of each rank.
fn gather(group: &Group, own: &[u8]) -> mlx_core::Result<Vec<Vec<u8>>> {
    let length = Array::from_slice(&[own.len() as i32], &[1])?;
    let lengths = all_gather(&length, group)?.to_vec::<i32>()?;
    let most = lengths.iter().copied().max().unwrap_or(0).max(1);
    let mut padded = own.to_vec();
    padded.resize(most as usize, 0);
    let all = all_gather(&Array::from_slice(&padded, &[1, most])?, group)?;
    let all = all.to_vec::<u8>()?;
    let each = all.chunks(most as usize).zip(lengths);
    Ok(each
        .map(|(bytes, n)| bytes[..n as usize].to_vec())
        .collect())
}

/// The sum of the bytes of all ranks, of which one has values.
fn sum(group: &Group, bytes: &[u8]) -> mlx_core::Result<Vec<u8>> {
    let bytes = Array::from_slice(bytes, &[bytes.len() as i32])?;
    let sum = all_sum(&bytes, group)?;
    // The sum then takes the memory of the bytes, which is the host's.
    drop(bytes);
    sum.to_vec::<u8>()
}

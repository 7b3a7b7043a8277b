//! Memory for long requests: how many bytes of their bodies are in memory, and how many are parsed
//! and tokenised at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::serve::MAX_BODY;
use crate::serve::http::error::ApiError;

/// Bodies up to this size take a few milliseconds to tokenise. Longer ones are counted here.
const LONG: usize = 16 << 10;
/// Most bytes of long bodies in memory, including those that wait.
const BODIES: usize = 32 * MAX_BODY;
/// Most bytes of long bodies that are parsed and tokenised at a time. Tokenising takes about a
/// hundred times the size of a text in memory.
const WORK: usize = MAX_BODY;

/// The permits for long bodies of a server.
pub(crate) struct Room {
    bodies: Arc<Semaphore>,
    work: Arc<Semaphore>,
}

/// Whether a request's texts may take long to tokenise, and the permits that it holds until they
/// are tokenised. Dropping the last clone releases them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Long {
    is_long: bool,
    held: Option<Arc<Held>>,
}

/// The permits of a body, and those to parse and tokenise it.
#[derive(Debug)]
struct Held {
    body: OwnedSemaphorePermit,
    work: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            bodies: Arc::new(Semaphore::new(BODIES)),
            work: Arc::new(Semaphore::new(WORK)),
        }
    }
}

impl Room {
    /// Permits for a body, before it is read; `length` is `None` if the client does not announce
    /// it.
    ///
    /// # Errors
    /// Status 503: the bodies in memory leave no room for it.
    pub(crate) fn admit(
        &self,
        length: Option<usize>,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let length = length.unwrap_or(MAX_BODY);
        if length <= LONG {
            return Ok(None);
        }
        let permit = self.bodies.clone().try_acquire_many_owned(length as u32);
        permit.map(Some).map_err(|_| {
            let message = format!(
                "requests of {} MiB are under way, as many as there is room for",
                BODIES >> 20
            );
            ApiError::later(5, message)
        })
    }

    /// Waits until a body that has been read may be parsed and tokenised.
    pub(crate) async fn enter(
        &self,
        admitted: Option<OwnedSemaphorePermit>,
        length: usize,
    ) -> Long {
        let Some(mut body) = admitted.filter(|_| length > LONG) else {
            return Long::default();
        };
        drop(body.split(body.num_permits().saturating_sub(length)));
        let work = self
            .work
            .clone()
            .acquire_many_owned(length.min(WORK) as u32);
        // The semaphore is never closed.
        let held = work.await.ok().map(|work| Held {
            body,
            work: Mutex::new(Some(work)),
        });
        Long {
            is_long: true,
            held: held.map(Arc::new),
        }
    }

    /// Waits until a body that has rested may be tokenised.
    pub(crate) async fn go_on(&self, long: Long, length: usize) -> Long {
        let work = self.work.clone().acquire_many_owned(length as u32);
        if let (Some(held), Ok(work)) = (&long.held, work.await) {
            *held.work() = Some(work);
        }
        long
    }
}

impl Held {
    fn work(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Long {
    /// Releases the permits to tokenise, while the request waits for its model. Returns the number
    /// with which it [goes on](Room::go_on); `None` if the body is short.
    pub(crate) fn rest(&self) -> Option<usize> {
        let held = self.held.as_ref()?;
        *held.work() = None;
        Some(held.body.num_permits().min(WORK))
    }

    /// The same, for other work that takes long.
    #[must_use]
    pub(crate) fn or(mut self, is_long: bool) -> Self {
        self.is_long |= is_long;
        self
    }
}

/// Runs work such as tokenisation, then releases its permits. For long work the runtime moves the
/// other connections of this thread to another thread; short work is not worth that cost.
pub(crate) fn heavy<T>(long: Long, work: impl FnOnce() -> T) -> T {
    let result = match long.is_long {
        true => tokio::task::block_in_place(work),
        false => work(),
    };
    drop(long.held);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_bodies_are_counted_and_wait() {
        let room = Room::default();
        assert!(room.admit(Some(LONG)).unwrap().is_none());
        // The length was not announced, and the body turns out to be short.
        let body = room.admit(None).unwrap();
        assert_eq!(room.bodies.available_permits(), BODIES - MAX_BODY);
        assert!(!room.enter(body, LONG).await.is_long);
        assert_eq!(room.bodies.available_permits(), BODIES);
        let all: Vec<_> = (0..32)
            .map(|_| room.admit(Some(MAX_BODY)).unwrap())
            .collect();
        assert_eq!(room.admit(Some(LONG + 1)).unwrap_err().status.as_u16(), 503);
        let mut all = all.into_iter();
        let first = room.enter(all.next().unwrap(), MAX_BODY).await;
        let second = room.enter(all.next().unwrap(), MAX_BODY);
        let mut second = std::pin::pin!(second);
        let short = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(short, second.as_mut()).await.is_err());
        drop(first);
        let second = second.await;
        assert_eq!(room.work.available_permits(), 0);
        // A request that waits for its model lets others tokenise.
        let length = second.rest().unwrap();
        let third = room
            .enter(room.admit(Some(LONG + 1)).unwrap(), LONG + 1)
            .await;
        drop(third);
        let second = room.go_on(second, length).await;
        assert_eq!(room.work.available_permits(), 0);
        drop((second, all));
        assert_eq!(room.work.available_permits(), WORK);
        assert_eq!(room.bodies.available_permits(), BODIES);
    }
}

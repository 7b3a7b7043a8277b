//! The hold of a request on its model.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use super::Pool;
use crate::serve::http::error::ApiError;
use crate::serve::http::metrics::ServerMetrics;
use crate::serve::state::Loaded;

/// The hold of a request on its model, which stays in memory until the last clone is dropped.
#[derive(Clone)]
pub(in super::super) struct Lease(Arc<Inner>);

struct Inner {
    pool: Arc<Pool>,
    index: usize,
    loaded: Arc<Loaded>,
}

impl Lease {
    /// The caller has counted it.
    pub(super) fn new(pool: &Arc<Pool>, index: usize, loaded: Arc<Loaded>) -> Self {
        Self(Arc::new(Inner {
            pool: pool.clone(),
            index,
            loaded,
        }))
    }

    /// The counters of the model's requests.
    pub(in super::super) fn metrics(&self) -> &ServerMetrics {
        &self.0.pool.model(self.0.index).metrics
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.0.loaded
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.0.index).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        let slot = &mut state.slots[self.index];
        slot.leases -= 1;
        slot.used = Instant::now();
        let is_last = slot.leases == 0;
        drop(state);
        if is_last {
            self.pool.has_changed();
        }
    }
}

/// A request that waits for its model, which meanwhile is not unloaded.
pub(in super::super) struct Waiting {
    pool: Arc<Pool>,
    pub(super) index: usize,
    /// The first attempt to load the model whose failure is the request's.
    pub(super) attempt: u64,
}

impl Waiting {
    /// # Errors
    /// `most` requests wait already.
    pub(super) fn enter(pool: &Arc<Pool>, index: usize, most: usize) -> Result<Self, ApiError> {
        let mut state = pool.state();
        let slot = &mut state.slots[index];
        if slot.waiting >= most {
            let message = format!(
                "{most} requests wait for {}, as many as may wait",
                pool.name(index)
            );
            return Err(ApiError::later(5, message));
        }
        slot.waiting += 1;
        let attempt = match slot.phase {
            super::Phase::Loading => slot.loads,
            _ => slot.loads + 1,
        };
        Ok(Self {
            pool: pool.clone(),
            index,
            attempt,
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.pool.state().slots[self.index].waiting -= 1;
        self.pool.has_changed();
    }
}

//! Making groups. MLX keeps one for each back end to the end of the process.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use mlx_c_sys as sys;

use super::hosts::Hosts;
use super::{Backend, Group, Handle, peers, ring};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;

/// A back end that was started in this process, by one thread. MLX cannot start it again.
struct Started {
    backend: Backend,
    thread: ThreadId,
    failure: Option<Error>,
}

static STARTED: Mutex<Vec<Started>> = Mutex::new(Vec::new());

/// Whether MLX has the back end: it was built with it, and its library is found. [`Backend::Any`]: whether it has one.
///
/// ```
/// use mlx_core::distributed::{Backend, is_available};
///
/// assert!(is_available(Backend::Ring)?);
/// # Ok::<(), mlx_core::Error>(())
/// ```
///
/// # Errors
/// The library of MLX is missing.
pub fn is_available(backend: Backend) -> Result<bool> {
    crate::init()?;
    let name = ffi::cstring(backend.name())?;
    // SAFETY: a live C string.
    Ok(unsafe { sys::mlx_distributed_is_available(name.as_ptr()) })
}

/// The group of this process, as the environment configures it (see [the module](super)). If it does not, the group has this
/// process alone, or it is an error if `strict`. Waits up to a minute for the other ranks, see [`init_within`].
///
/// ```
/// use mlx_core::distributed::{Backend, init};
///
/// # fn main() -> mlx_core::Result<()> {
/// let group = init(false, Backend::Any)?;
/// println!("rank {} of {}", group.rank(), group.size());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`init_within`].
pub fn init(strict: bool, backend: Backend) -> Result<Group> {
    init_within(strict, backend, Duration::from_secs(60))
}

/// As [`init`], with a limit of the time for which a ring waits for the rank before this one to connect. To the rank after
/// this one MLX's ring tries to connect five times, for 31 seconds, whatever the limit is. Other back ends wait as their
/// libraries do.
///
/// # Errors
/// - `strict`, and the back end is not available or not configured.
/// - The configuration is wrong: a file that is missing or has another form, a rank that is not in it.
/// - Another rank does not connect. Then this process cannot make the group any more.
/// - Another thread has made the group.
pub fn init_within(strict: bool, backend: Backend, limit: Duration) -> Result<Group> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let candidates = [Backend::Nccl, Backend::Ring, Backend::Mpi, Backend::Jaccl];
    for one in candidates {
        if backend != one && backend != Backend::Any {
            continue;
        }
        if !is_available(one)? {
            if backend == one && strict {
                let message = format!("this build of MLX has no back end {}", one.name());
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            continue;
        }
        let is_strict = strict && backend == one;
        if let Some(group) = start(&mut started, one, is_strict, limit)? {
            return Ok(group);
        }
    }
    if strict {
        let message = match backend {
            Backend::Ring => "no ring is configured: MLX_RANK and MLX_HOSTFILE must be set, and \
                the file must name at least two ranks"
                .to_owned(),
            Backend::Any => "no back end is configured; see mlx_core::distributed".to_owned(),
            one => format!("the back end {} connects no other process", one.name()),
        };
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(Group::alone(backend))
}

/// `None` if the back end is not configured, or connects no other process.
fn start(
    started: &mut Vec<Started>,
    backend: Backend,
    strict: bool,
    limit: Duration,
) -> Result<Option<Group>> {
    let thread = thread::current().id();
    if let Some(before) = started.iter().find(|before| before.backend == backend) {
        if let Some(error) = &before.failure {
            return Err(error.clone());
        }
        if before.thread != thread {
            let message = format!("another thread has made the group of {}", backend.name());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        return connect(backend, strict).map(Some);
    }
    let group = match backend {
        Backend::Ring => match Hosts::of_environment()? {
            Some(hosts) if hosts.size() > 1 => start_ring(&hosts, limit),
            _ => return Ok(None),
        },
        _ => connect(backend, strict),
    };
    if group.as_ref().is_ok_and(|group| group.size == 1) {
        return Ok(None);
    }
    started.push(Started {
        backend,
        thread,
        failure: group.as_ref().err().cloned(),
    });
    group.map(Some)
}

fn connect(backend: Backend, strict: bool) -> Result<Group> {
    let name = ffi::cstring(backend.name())?;
    let mut handle = Handle::null();
    // SAFETY: fills a fresh handle, by a live C string.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlx_distributed_init(&mut handle.0, strict, name.as_ptr())
    })?;
    if backend == Backend::Ring {
        ring::pair(&mut handle)?;
    }
    let mut group = Group::of_handle(handle, backend);
    if backend == Backend::Nccl && group.size > 1 {
        peers::join(&mut group)?;
    }
    Ok(group)
}

fn start_ring(hosts: &Hosts, limit: Duration) -> Result<Group> {
    let (rank, size) = (hosts.rank, hosts.size());
    let left = (rank + size - 1) % size;
    let what = format!("rank {rank} of the ring of {size}");
    let is_late = AtomicBool::new(false);
    let (end, is_ended) = mpsc::channel::<()>();
    let group = thread::scope(|scope| {
        let is_late = &is_late;
        thread::Builder::new().spawn_scoped(scope, move || {
            // MLX waits without limit for the rank before this one. A connection of our own ends the wait.
            let mut ends = Vec::new();
            let mut wait = limit;
            while is_ended.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Timeout) {
                let own = hosts.addresses[rank].iter();
                let connections = own.filter_map(|address| TcpStream::connect(address).ok());
                let before = ends.len();
                ends.extend(connections);
                if ends.len() > before {
                    is_late.store(true, Ordering::Relaxed);
                }
                wait = Duration::from_millis(100);
            }
        })?;
        let _end = end;
        connect(Backend::Ring, true)
    });
    if is_late.into_inner() {
        let message = format!("{what}: rank {left} has not connected within {limit:?}");
        return Err(Error::new(ErrorKind::Eval, message));
    }
    let mut group = group.map_err(|error| error.context(&what))?;
    let watched = ring::watch(hosts).and_then(|()| ring::pair(&mut group.handle));
    watched.map_err(|error| error.context(&what))?;
    Ok(group)
}

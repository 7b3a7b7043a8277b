//! Several processes that compute together, on one machine or on several.
//!
//! A [`Group`] is what a back end of MLX connects: [`Backend::Ring`] over TCP, and MPI, NCCL or JACCL where MLX was built
//! with them. Each process has a rank in the group, from 0 to the size less one. The functions here are lazy like all
//! others. Every rank must evaluate the same collectives, with the same shapes and dtypes, in the same order: no back end
//! compares them, and a rank that leaves one out keeps the others waiting.
//!
//! | back end | started by | has |
//! |---|---|---|
//! | `Ring` | `MLX_RANK`, and `MLX_HOSTFILE`, a JSON list with the list of `"address:port"` of each rank | all but `split`; `send` and `recv` between neighbours |
//! | `Mpi` | `mpirun` | all but `sum_scatter` |
//! | `Nccl` | `MLX_RANK`, `MLX_WORLD_SIZE`, `NCCL_HOST_IP` and `NCCL_PORT` | all but `send` and `recv` |
//! | `Jaccl` | the variables that MLX's launcher sets | what MLX's has |
//!
//! # Streams and threads
//! A group belongs to the thread that made it. Its collectives run on that thread's default stream of the CPU (of the GPU
//! with NCCL), whatever [`Stream::scope`] says: two collectives at a time would mix their messages. What programs tell each
//! other besides goes through a [`Messenger`], which waits for no stream.
//!
//! In a ring of two, sums of floats and gathers of up to 2 MiB are one exchange of our own, whose thread sleeps while it
//! waits. All else is MLX's ring.
//!
//! On GPUs of one machine that can write to each other's memory, sums of floats and gathers of up to 2 MiB (of all ranks
//! together) are kernels of our own, which add in the order of the ranks. `MLX_CUDA_PEERS=off` leaves all to NCCL.
//!
//! # Ranks that fail
//! When a rank of a ring dies, its neighbours' collectives fail, and each failure closes the connections of its rank. So
//! all ranks that wait end with an error that names the neighbour, at once where a process ends, and after some twelve
//! seconds where a machine vanishes. The same happens when a rank cannot run a collective because its input has failed. A
//! rank that is alive and does not answer is a matter of [`Group::within`]. A ring that was lost stays lost: the program
//! must end. This holds on Linux; on other systems a collective that does not depend on the first failed one may wait
//! for ever.
//!
//! ```
//! use mlx_core::{array, distributed::{self, Backend}};
//!
//! # fn main() -> mlx_core::Result<()> {
//! // Alone, unless the environment says otherwise. A program for several processes is the same.
//! let group = distributed::init(false, Backend::Any)?;
//! let share = array![1.0, 2.0];
//! let sum = distributed::all_sum(&share, &group)?;
//! let all = distributed::all_gather(&share, &group)?;
//! assert_eq!(all.shape(), [2 * group.size() as i32]);
//! assert_eq!(sum.to_vec::<f32>()?, [1.0, 2.0].map(|x| x * group.size() as f32));
//! # Ok(())
//! # }
//! ```

mod hosts;
mod messenger;
mod peers;
mod ring;
mod start;

use std::sync::mpsc;
use std::time::Duration;

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, Arg, op};
use crate::into_shape::IntoShape;
use crate::memory::check_shape;
use crate::stream::{Device, Stream};
use crate::transforms::is_mapping;

pub use messenger::{Loss, Messenger};
pub use start::{init, init_within, is_available};

/// What connects the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The first that the environment configures, of NCCL (with a CUDA device), the ring, MPI and JACCL.
    #[default]
    Any,
    /// TCP connections, each rank with the next one. It computes on the CPU.
    Ring,
    /// The machine's MPI library.
    Mpi,
    /// NVIDIA's NCCL, between GPUs.
    Nccl,
    /// RDMA over Thunderbolt, on Macs.
    Jaccl,
}

impl Backend {
    /// The name in Python: `"ring"`.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Any => "any",
            Backend::Ring => "ring",
            Backend::Mpi => "mpi",
            Backend::Nccl => "nccl",
            Backend::Jaccl => "jaccl",
        }
    }
}

/// An owned `mlx_distributed_group` handle.
struct Handle(sys::mlx_distributed_group);

impl Handle {
    fn null() -> Self {
        Self(sys::mlx_distributed_group {
            ctx: std::ptr::null_mut(),
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.0.ctx.is_null() {
            // SAFETY: owned, non-null, freed once. The connections belong to MLX.
            unsafe { sys::mlx_distributed_group_free(self.0) };
        }
    }
}

impl Arg for Handle {
    type C = sys::mlx_distributed_group;
    fn c(&self) -> Self::C {
        self.0
    }
}

/// Processes that compute together, as one of them sees it. It belongs to the thread that made it.
pub struct Group {
    /// Null for a group of one, which needs no back end.
    handle: Handle,
    backend: Backend,
    rank: i32,
    size: i32,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "rank {} of {} ({})",
            self.rank,
            self.size,
            self.backend.name()
        )
    }
}

impl Group {
    /// The group of this process alone.
    fn alone(backend: Backend) -> Self {
        Self {
            handle: Handle::null(),
            backend,
            rank: 0,
            size: 1,
        }
    }

    fn of_handle(handle: Handle, backend: Backend) -> Self {
        // SAFETY: the handle is live; both are plain numbers of it.
        let (rank, size) = unsafe {
            (
                sys::mlx_distributed_group_rank(handle.0),
                sys::mlx_distributed_group_size(handle.0),
            )
        };
        Self {
            handle,
            backend,
            rank,
            size,
        }
    }

    /// The number of this process, from 0 to `size() - 1`.
    pub fn rank(&self) -> usize {
        usize::try_from(self.rank).unwrap_or_default()
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        usize::try_from(self.size).unwrap_or(1)
    }

    /// The back end that connects the processes; for a group of one, the one that was asked for.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Why small sums and gathers of a group of NCCL are not exchanges over the memory of the other GPUs; `None` if they are,
    /// and for other back ends.
    pub fn without_peers(&self) -> Option<&'static str> {
        match (self.backend, self.size) {
            (Backend::Nccl, 2..) => peers::fault(),
            _ => None,
        }
    }

    /// Splits the group: processes with the same `color` form a group, in the order of their `key`s, or of their ranks
    /// without keys.
    ///
    /// # Errors
    /// The back end cannot split: the ring cannot, nor can a group of one. `color` or `key` is negative.
    pub fn split(&self, color: i32, key: Option<i32>) -> Result<Group> {
        if self.size == 1 || self.backend == Backend::Ring {
            return Err(self.unsupported("split"));
        }
        if color < 0 || key.is_some_and(|key| key < 0) {
            let message =
                format!("split: color and key must not be negative, given {color} and {key:?}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut handle = Handle::null();
        // SAFETY: the group is live, and fills a fresh handle.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_distributed_group_split(&mut handle.0, self.handle.0, color, key.unwrap_or(-1))
        })?;
        Ok(Self::of_handle(handle, self.backend))
    }

    /// Why the group can do nothing more, if that is so. Only a ring reports it.
    pub fn lost(&self) -> Option<String> {
        (self.size > 1 && self.backend == Backend::Ring)
            .then(ring::lost)
            .flatten()
    }

    /// Runs `f`, which evaluates collectives. If it takes longer than `limit`, the connections of this rank are closed: `f`
    /// ends with an error that names this rank and the limit, and so do the other ranks that wait. The limit includes what
    /// this rank and the others compute meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mlx_core::{array, distributed::{self, Backend}, eval};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let group = distributed::init(false, Backend::Any)?;
    /// let sum = distributed::all_sum(&array![1.0], &group)?;
    /// group.within(Duration::from_secs(10), || eval([&sum]))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `f`. The back end is not the ring: others cannot be interrupted. There is no thread to measure time with.
    pub fn within<R>(&self, limit: Duration, f: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.size == 1 {
            return f();
        }
        if self.backend != Backend::Ring {
            return Err(self.unsupported("within"));
        }
        let (end, is_ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            std::thread::Builder::new().spawn_scoped(scope, move || {
                if is_ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                    ring::shut(&format!("no answer of the other ranks within {limit:?}"));
                }
            })?;
            // Dropped in every case, also if `f` panics.
            let _end = end;
            f()
        })
    }

    fn unsupported(&self, what: &str) -> Error {
        let message = match self.size {
            1 => format!("{what}: a group of one process has no other ranks"),
            _ => format!(
                "{what}: the back end {} does not have it",
                self.backend.name()
            ),
        };
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Runs `f` on the stream of the group, unless the ring was lost.
    fn scope(&self, what: &str, f: impl FnOnce() -> Result<Array>) -> Result<Array> {
        if let Some(reason) = self.lost() {
            let message = format!("{what}: the group was lost: {reason}");
            return Err(Error::new(ErrorKind::Eval, message));
        }
        let device = match self.backend {
            Backend::Nccl => Device::GPU,
            _ => Device::CPU,
        };
        let stream = Stream::default_of(device)?;
        match stream.is_current()? {
            true => f(),
            false => stream.scope(f),
        }
    }

    /// The number of another rank that this one can exchange arrays with.
    fn peer(&self, what: &str, rank: usize) -> Result<i32> {
        if self.size == 1 {
            return Err(self.unsupported(what));
        }
        let size = self.size();
        if rank >= size || rank == self.rank() {
            let message = format!(
                "{what}: expected another rank of {size}, given {rank} on rank {}",
                self.rank
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let (left, right) = self.neighbours();
        if self.backend == Backend::Ring && rank != left && rank != right {
            let message = format!(
                "{what}: in a ring, rank {} exchanges arrays with ranks {left} and {right}, given {rank}",
                self.rank
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.backend == Backend::Nccl {
            return Err(self.unsupported(what));
        }
        Ok(i32::try_from(rank).unwrap_or(i32::MAX))
    }

    /// The ranks before and after this one.
    fn neighbours(&self) -> (usize, usize) {
        let (rank, size) = (self.rank(), self.size());
        ((rank + size - 1) % size, (rank + 1) % size)
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// The group was lost. A collective that fails is an error of the evaluation.
        pub fn $name(x: &Array, group: &Group) -> Result<Array> {
            if group.size == 1 {
                return Ok(x.clone());
            }
            group.scope(stringify!($name), || op!($c(x, group.handle)))
        }
    )* };
}

reductions! {
    /// The sum of the ranks' `x`, of the shape and dtype of `x`, on every rank.
    ///
    /// The gradient is that of MLX: each rank's cotangent is that of its own result. For the gradient of a loss that is
    /// summed over the ranks, sum the gradients.
    all_sum = mlx_distributed_all_sum;
    /// The largest of the ranks' elements at each place, of the shape and dtype of `x`.
    all_max = mlx_distributed_all_max;
    /// The smallest of the ranks' elements at each place, of the shape and dtype of `x`.
    all_min = mlx_distributed_all_min;
}

/// The ranks' `x`, joined along the first axis in the order of the ranks; scalars become a vector, also in a group of one
/// (where Python's stays a scalar). Not inside `vmap`: MLX's form would join along a mapped axis.
///
/// The gradient is that of MLX: this rank's part of its own cotangent.
///
/// ```
/// use mlx_core::{array, distributed::{self, Backend}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let group = distributed::init(false, Backend::Any)?;
/// let rows = distributed::all_gather(&array![[1.0, 2.0]], &group)?;
/// assert_eq!(rows.shape(), [group.size() as i32, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The group was lost. The result has more elements than memory has bytes. A function of `vmap` is running.
pub fn all_gather(x: &Array, group: &Group) -> Result<Array> {
    if group.size == 1 {
        // MLX returns a scalar as it is, and ranks of a larger group get a vector.
        return match x.ndim() {
            0 => x.reshape([1]),
            _ => Ok(x.clone()),
        };
    }
    if is_mapping() {
        let message = "all_gather: it has no form for vmap; gather the mapped array outside";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mut shape = x.shape().to_vec();
    match shape.first_mut() {
        Some(first) => *first = first.checked_mul(group.size).unwrap_or(-1),
        None => shape.push(group.size),
    }
    check_shape(&shape, x.dtype())?;
    group.scope("all_gather", || {
        op!(mlx_distributed_all_gather(x, group.handle))
    })
}

/// This rank's part, along the first axis, of the sum of the ranks' `x`. A ring sums all of it and keeps the part.
///
/// # Errors
/// The first axis is missing or not divisible by the size of the group. The back end does not have it (MPI). The group
/// was lost.
pub fn sum_scatter(x: &Array, group: &Group) -> Result<Array> {
    let rows = match x.shape().first() {
        Some(&rows) if rows % group.size == 0 => rows / group.size,
        _ => {
            let message = format!(
                "sum_scatter: expected a first axis that is divisible by the {} ranks, found shape {:?}",
                group.size,
                x.shape()
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
    };
    match group.backend {
        _ if group.size == 1 => Ok(x.clone()),
        Backend::Ring => {
            let sum = all_sum(x, group)?;
            let start = rows * group.rank;
            sum.i(start..start + rows)
        }
        Backend::Mpi => Err(group.unsupported("sum_scatter")),
        _ => group.scope("sum_scatter", || {
            op!(mlx_distributed_sum_scatter(x, group.handle))
        }),
    }
}

/// Sends `x` to rank `to`, when the result, which is `x`, is evaluated. The other rank must evaluate a [`recv`] of the same
/// shape and dtype. A large message ends only when the other rank takes it: if all ranks of a ring send before they receive,
/// all wait.
///
/// # Errors
/// There is no such other rank. In a ring it is no neighbour. The back end does not have it (NCCL). The group was lost.
pub fn send(x: &Array, to: usize, group: &Group) -> Result<Array> {
    let to = group.peer("send", to)?;
    group.scope("send", || op!(mlx_distributed_send(x, to, group.handle)))
}

/// An array of `shape` and `dtype` that rank `from` sends.
///
/// # Errors
/// As [`send`]. A dimension is negative, or the array is too large.
pub fn recv(shape: impl IntoShape, dtype: DType, from: usize, group: &Group) -> Result<Array> {
    let from = group.peer("recv", from)?;
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    group.scope("recv", || {
        op!(mlx_distributed_recv([shape], dtype, from, group.handle))
    })
}

/// An array of the shape and dtype of `x` that rank `from` sends.
///
/// # Errors
/// As [`recv`].
pub fn recv_like(x: &Array, from: usize, group: &Group) -> Result<Array> {
    recv(x.shape(), x.dtype(), from, group)
}

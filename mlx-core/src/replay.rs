//! Computations that repeat, such as the decode steps of a batch.

use std::borrow::Borrow;

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{ErrorKind, Result};
use crate::eval::fail;
use crate::ffi::{self, Arg, vector::VectorArray};
use crate::inplace;
use crate::stream;

/// Queues computations that repeat, such as the decode steps of a batch.
///
/// On an NVIDIA GPU, a computation that has the operations, settings, shapes and large inputs of the one before is launched as one CUDA
/// graph; small inputs, and declared ones, may differ. Building the lazy graph is then all that the host does.
/// [`relaunch`](Self::relaunch) does not even need that.
/// A computation with other shapes or other large inputs is captured at once as another graph, if it has as many operations and inputs.
/// Everywhere else this is [`async_eval`](crate::async_eval()). `MLX_CUDA_REPLAY=off` makes it that on GPUs too.
///
/// ```
/// use mlx_core::{Array, Replay};
///
/// # fn main() -> mlx_core::Result<()> {
/// let mut steps = Replay::new()?;
/// let mut x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// for _ in 0..5 {
///     x = match steps.relaunch([&x], [] as [&Array; 0])? {
///         Some(mut outputs) => outputs.remove(0),
///         None => {
///             let y = x.multiply(2.0f32)?;
///             steps.async_eval([&y], [&x])?;
///             y
///         }
///     };
/// }
/// assert_eq!(x.to_vec::<f32>()?, [32.0, 64.0]);
/// # Ok(())
/// # }
/// ```
///
/// Arrays that a computation reads and does not change are kept alive until another computation replaces it, or this value is dropped.
#[derive(Debug)]
pub struct Replay {
    raw: sys::mlxrs_replay,
}

impl Replay {
    /// A value for which nothing has been queued yet.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out-parameter is a local variable.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_replay_new(&mut raw)
        })?;
        Ok(Self { raw })
    }

    /// Queues the computation of `arrays` and returns at once. The arrays that its operations write in
    /// place are computed too. Reading any other intermediate array computes it again. None of `arrays` may
    /// be a result of an operation that writes another of its results in place, such as the outputs of
    /// [`ragged_delta`](crate::fast::ragged_delta) over a pool of its own: give the result of a further
    /// operation.
    ///
    /// `inputs` are the arrays for which [`relaunch`](Self::relaunch) will be given others, of up to 64 MiB each. Those that the
    /// computation does not read do nothing. It does nothing if there are none.
    ///
    /// # Errors
    /// As [`async_eval`](crate::async_eval()).
    pub fn async_eval<A: Borrow<Array>, I: Borrow<Array>>(
        &mut self,
        arrays: impl IntoIterator<Item = A>,
        inputs: impl IntoIterator<Item = I>,
    ) -> Result<()> {
        let arrays: Vec<A> = arrays.into_iter().collect();
        let roots = || arrays.iter().map(Borrow::borrow);
        let vector = VectorArray::new(roots())?;
        let inputs = vector_of(inputs)?;
        // SAFETY: a live handle, which this thread made because the type is not Send, and live vectors of live arrays.
        ffi::call(ErrorKind::Eval, || unsafe {
            sys::mlxrs_replay_eval(self.raw, vector.c(), inputs.c())
        })
        .map_err(|error| fail(roots(), error))
    }

    /// Whether [`relaunch`](Self::relaunch) can launch the last computation, if its inputs fit.
    ///
    /// It can if the last computation was launched as a CUDA graph, all declared inputs were different evaluated arrays,
    /// and no other small input differs from one computation to the next. A single number, or an array, that was the same in the
    /// last two computations counts as one that does not differ.
    pub fn repeats(&self) -> bool {
        // SAFETY: a live handle.
        unsafe { sys::mlxrs_replay_repeats(self.raw) }
    }

    /// Queues the last computation with other `inputs`, in the order of [`async_eval`](Self::async_eval), and returns at once. No
    /// operation is built. Returns what the computation of its arrays would give, in the same order. `None`: it cannot be repeated, or an
    /// input is not evaluated or has another shape or type; then nothing is queued.
    ///
    /// The caller must ensure that building the computation again would give the same operations,
    /// with other values of `inputs` only.
    ///
    /// `written` are the arrays that the computation writes in place, under the handles that they have now. They hold its new
    /// results. If it writes the buffer of another array, it is not queued (`None`).
    ///
    /// # Errors
    /// As [`async_eval`](crate::async_eval()).
    pub fn relaunch<I: Borrow<Array>, W: Borrow<Array>>(
        &mut self,
        inputs: impl IntoIterator<Item = I>,
        written: impl IntoIterator<Item = W>,
    ) -> Result<Option<Vec<Array>>> {
        if !self.repeats() {
            return Ok(None);
        }
        let written: Vec<W> = written.into_iter().collect();
        let written = || written.iter().map(Borrow::borrow);
        let (inputs, arrays) = (vector_of(inputs)?, VectorArray::new(written())?);
        let mut outputs = VectorArray::null();
        // SAFETY: a live handle of this thread, live vectors of live arrays, and a local
        // out-parameter.
        ffi::call(ErrorKind::Eval, || unsafe {
            sys::mlxrs_replay_relaunch(outputs.as_mut_ptr(), self.raw, inputs.c(), arrays.c())
        })
        .map_err(|error| fail(std::iter::empty(), error))?;
        let outputs = outputs.to_vec()?;
        if !outputs.is_empty() {
            inplace::note_written(written());
        }
        Ok((!outputs.is_empty()).then_some(outputs))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and this is its last use.
        unsafe { sys::mlxrs_replay_free(self.raw) };
    }
}

/// The operations, settings, shapes and inputs behind lazy arrays, which [`Replay`] compares. For
/// tests of computations that repeat, on any device.
///
/// ```
/// use mlx_core::{DType, Graph, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let step = |x: f32| ones(&[2], DType::F32)?.multiply(x);
/// assert!(Graph::of([&step(2.0)?])?.is_same(&Graph::of([&step(3.0)?])?)?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Graph {
    raw: sys::mlxrs_graph,
}

impl Graph {
    /// The graph behind `arrays`. Its inputs are kept alive.
    ///
    /// # Errors
    /// An operation is not on the current stream.
    pub fn of<A: Borrow<Array>>(arrays: impl IntoIterator<Item = A>) -> Result<Self> {
        let (vector, stream) = (vector_of(arrays)?, stream::current()?);
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live vector of live arrays, a live stream, and a local out-parameter.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_graph_new(&mut raw, vector.c(), stream)
        })?;
        Ok(Self { raw })
    }

    /// Whether both have the same operations, settings and shapes.
    ///
    /// # Errors
    /// An operation cannot be compared.
    pub fn is_same(&self, other: &Self) -> Result<bool> {
        let mut same = false;
        // SAFETY: live handles, and a local out-parameter.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_graph_is_same(&mut same, self.raw, other.raw)
        })?;
        Ok(same)
    }

    /// The number of inputs that differ from those of the [same](Self::is_same) graph `before` although they are not among `inputs`.
    /// Inputs with the same memory do not differ, and neither do equal single numbers.
    ///
    /// # Errors
    /// The graphs have different numbers of inputs.
    pub fn other_inputs<A: Borrow<Array>>(
        &self,
        before: &Self,
        inputs: impl IntoIterator<Item = A>,
    ) -> Result<usize> {
        let inputs = vector_of(inputs)?;
        let mut count = 0;
        // SAFETY: live handles, a live vector of live arrays, and a local out-parameter.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_graph_other_inputs(&mut count, self.raw, before.raw, inputs.c())
        })?;
        Ok(count)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and this is its last use.
        unsafe { sys::mlxrs_graph_free(self.raw) };
    }
}

fn vector_of<A: Borrow<Array>>(arrays: impl IntoIterator<Item = A>) -> Result<VectorArray> {
    let arrays: Vec<A> = arrays.into_iter().collect();
    VectorArray::new(arrays.iter().map(Borrow::borrow))
}

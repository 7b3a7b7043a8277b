//! Evaluating the lazy graph.
//!
//! ```
//! use mlx_core::{DType, eval, ones};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = ones([2], DType::F32)?;
//! let (y, z) = (x.exp()?, x.sin()?); // nothing is computed yet
//! eval([&y, &z])?; // both are, in one go
//! # Ok(())
//! # }
//! ```

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, Arg, vector::VectorArray};
use crate::files::mapped;
use crate::{poison, stream};

/// What [`eval()`] computes: `&Array`; a list, map or iterator of arrays or references; or a tuple of two or three of
/// these. `Form` is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that can be evaluated",
    label = "neither `&Array` nor a list of arrays",
    note = "give `&x`, `[&x, &y]`, a slice or vector of arrays, a map of names to arrays, or a tuple of these"
)]
pub trait Arrays<Form> {
    /// An array, or a reference to one.
    type Item: AsRef<Array>;

    /// The arrays.
    fn list(self) -> Vec<Self::Item>;
}

/// The form of [`Arrays`] that is one array.
#[derive(Debug)]
pub enum Single {}
/// The form of [`Arrays`] that is a list.
#[derive(Debug)]
pub enum Listed {}
/// The form of [`Arrays`] that is a map of names to arrays.
#[derive(Debug)]
pub enum ByName {}

impl<'a> Arrays<Single> for &'a Array {
    type Item = &'a Array;

    fn list(self) -> Vec<&'a Array> {
        vec![self]
    }
}

impl<A: AsRef<Array>, I: IntoIterator<Item = A>> Arrays<Listed> for I {
    type Item = A;

    fn list(self) -> Vec<A> {
        self.into_iter().collect()
    }
}

impl<N, A: AsRef<Array>, I: IntoIterator<Item = (N, A)>> Arrays<ByName> for I {
    type Item = A;

    fn list(self) -> Vec<A> {
        self.into_iter().map(|(_, array)| array).collect()
    }
}

macro_rules! several {
    ($($name:ident $form:ident),*) => {
        impl<$($form, $name: Arrays<$form>),*> Arrays<($($form,)*)> for ($($name,)*) {
            type Item = Array;

            fn list(self) -> Vec<Array> {
                #[allow(non_snake_case)]
                let ($($name,)*) = self;
                let mut all = Vec::new();
                $(all.extend($name.list().iter().map(|array| array.as_ref().clone()));)*
                all
            }
        }
    };
}
several!(A F, B G);
several!(A F, B G, C H);

/// Computes `arrays` and waits for them.
///
/// ```
/// use mlx_core::{Array, DType::F32, eval};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (a, b) = (Array::ones(2, F32)?, Array::zeros(3, F32)?);
/// eval(&a)?;
/// eval([&a, &b])?;
/// eval(&[&a, &b])?;
/// eval((&a, &b))?;
/// eval(&vec![a, b])?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// - A kernel fails, or another one that was queued on the same stream failed.
/// - The file of an array of [`Safetensors`](crate::Safetensors) was truncated.
///
/// The error poisons the arrays that depend on the failed operation: reading or using one is an
/// error that repeats the reason. All other arrays keep their values, or stay lazy and are computed
/// when they are needed. So does an operation whose result got no memory: evaluating it again tries
/// again.
///
/// On systems other than Linux, MLX does not report which arrays a failure has reached. There it
/// poisons every array of this thread that is not known to be good. These are known to be good:
/// arrays made from data, arrays that were read or given to a successful `eval`, and, on a thread
/// with one stream, arrays that were already computed when a later operation used them.
///
/// Inside `vmap` and `compile` nothing can be evaluated.
pub fn eval<Form>(arrays: impl Arrays<Form>) -> Result<()> {
    let arrays = arrays.list();
    let roots = || arrays.iter().map(AsRef::as_ref);
    let is_ready = |array: &Array| array.made() == poison::DATA && poison::is_available(array);
    if !arrays.is_empty() && roots().all(is_ready) {
        return mapped::check();
    }
    let vector = VectorArray::new(roots())?;
    let started = roots().any(is_lazy);
    run(&vector, sys::mlx_eval)
        .and_then(|()| check(&vector))
        .map_err(|error| fail(roots(), error))?;
    poison::good(roots(), started);
    Ok(())
}

/// The number of operations, views included, that evaluating `arrays` would run. Each costs some microseconds of
/// bookkeeping, which dominates a decode step of a small model.
///
/// ```
/// use mlx_core::{DType, graph_size, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones(&[2], DType::F32)?;
/// let y = x.exp()?.sqrt()?;
/// assert!(graph_size([&y])? > graph_size([&x])?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// No memory for a handle.
pub fn graph_size<A: AsRef<Array>>(arrays: impl IntoIterator<Item = A>) -> Result<usize> {
    let arrays: Vec<A> = arrays.into_iter().collect();
    let vector = VectorArray::new(arrays.iter().map(AsRef::as_ref))?;
    let mut size = 0;
    // SAFETY: a live vector of live arrays, and a number to write to.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlxrs_graph_size(&mut size, vector.c())
    })?;
    Ok(size)
}

/// Queues the computation of `arrays` and returns at once.
///
/// ```
/// use mlx_core::{DType, async_eval, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let y = ones(&[2], DType::F32)?.exp()?;
/// async_eval([&y])?; // computed while the program goes on
/// assert_eq!(y.to_vec::<f32>()?.len(), 2); // waits for it
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`eval`]. A kernel's error is returned by the next call that waits for the stream.
pub fn async_eval<Form>(arrays: impl Arrays<Form>) -> Result<()> {
    let arrays = arrays.list();
    let roots = || arrays.iter().map(AsRef::as_ref);
    let vector = VectorArray::new(roots())?;
    run(&vector, sys::mlx_async_eval).map_err(|error| fail(roots(), error))
}

/// Calls `evaluate`, one of MLX's functions that evaluate arrays. If the thread uses several
/// streams, a CPU stream may read what an NVIDIA GPU computes; the arrays of the GPU are evaluated
/// first.
fn run(
    vector: &VectorArray,
    evaluate: unsafe extern "C" fn(sys::mlx_vector_array) -> i32,
) -> Result<()> {
    if poison::has_several_streams() {
        // SAFETY: a live vector of live arrays.
        ffi::call(ErrorKind::Eval, || unsafe {
            sys::mlxrs_eval_for_cpu(vector.c())
        })?;
    }
    // SAFETY: a live vector of live arrays, of which `evaluate` is a function.
    ffi::call(ErrorKind::Eval, || unsafe { evaluate(vector.c()) })
}

/// Fails if something that was waited for failed in a way that MLX does not report: a file was
/// truncated, or a kernel of a GPU got an index out of range. `waited` holds the arrays that were
/// waited for; if it is null, all work of the current stream was waited for.
fn check(waited: &VectorArray) -> Result<()> {
    mapped::check()?;
    let stream = stream::current()?;
    // SAFETY: a live vector or a null one, and a live stream.
    ffi::call(ErrorKind::Eval, || unsafe {
        sys::mlxrs_check_reports(waited.c(), stream)
    })
}

/// Whether the computation of the array has not been queued yet.
fn is_lazy(array: &Array) -> bool {
    let mut lazy = false;
    // SAFETY: the handle is live, the out-parameter is a local variable; on failure it counts as
    // started.
    unsafe { sys::mlxrs_array_has_primitive(&mut lazy, array.raw()) };
    lazy
}

/// The error to return for a failed evaluation of `roots`. It poisons the step, unless MLX refused the evaluation
/// before it queued anything.
pub(crate) fn fail<'a>(roots: impl Iterator<Item = &'a Array>, error: Error) -> Error {
    let text = error.to_string();
    let refusals = [
        "[eval] Attempting to eval",
        "[async_eval] Not allowed inside",
        "There is no Stream",
    ];
    let refused = refusals.iter().any(|refusal| text.starts_with(refusal));
    if refused {
        error
    } else {
        poison::failed(roots, error)
    }
}

/// Waits for everything queued on the current stream.
///
/// ```
/// use mlx_core::{DType, async_eval, ones, synchronize};
///
/// # fn main() -> mlx_core::Result<()> {
/// async_eval([ones(&[2], DType::F32)?.exp()?])?;
/// synchronize()?; // all work of the stream has ended
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A kernel failed; see [`eval`].
pub fn synchronize() -> Result<()> {
    let stream = stream::current()?;
    // SAFETY: the current stream is live.
    ffi::call(ErrorKind::Eval, || unsafe { sys::mlx_synchronize(stream) })
        .and_then(|()| check(&VectorArray::null()))
        .map_err(|error| poison::failed([], error))?;
    poison::good([], true);
    Ok(())
}

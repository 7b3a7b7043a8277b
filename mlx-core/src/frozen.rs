//! Evaluated arrays for other threads.

use std::fmt;

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::eval::eval;
use crate::{ffi, poison};

/// An evaluated array that holds only data, so that any thread may use it.
///
/// ```
/// # use mlx_core::{Array, Result};
/// # fn main() -> Result<()> {
/// let weights = Array::from_slice(&[1.0f32, 2.0], &[2])?.freeze()?;
/// let sum = std::thread::spawn(move || -> Result<f32> {
///     weights.thaw().add(1.0)?.sum(.., false)?.item()
/// });
/// assert_eq!(sum.join().unwrap()?, 5.0);
/// # Ok(())
/// # }
/// ```
pub struct Frozen(Array);

// SAFETY: the array is evaluated and waited for (`freeze` checks both), so it has no primitive, no
// inputs and no event; reading its description and data then changes nothing, and its reference
// counts are atomic. Its buffer is pinned, so that no operation and no update in place writes to it. The `Array` inside is
// never borrowed by a caller, and its time (see `poison`) is never written again.
unsafe impl Send for Frozen {}
// SAFETY: as above.
unsafe impl Sync for Frozen {}

impl Frozen {
    /// An array of the calling thread over the same data.
    pub fn thaw(&self) -> Array {
        self.0.clone()
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &[i32] {
        self.0.shape()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// Bytes of all elements, laid out densely.
    pub fn nbytes(&self) -> usize {
        self.0.nbytes()
    }
}

impl Clone for Frozen {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frozen({:?}, {})", self.shape(), self.dtype())
    }
}

/// # Other threads
///
/// ```
/// use mlx_core::{array};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![1.0f32, 2.0].freeze()?;
/// let sum = std::thread::spawn(move || x.thaw().sum_all()?.item::<f32>());
/// assert_eq!(sum.join().unwrap()?, 3.0);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// Evaluates the array for use on any thread.
    ///
    /// ```
    /// use mlx_core::{DType, ones};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let weight = ones(&[2], DType::F32)?.freeze()?;
    /// let thread = std::thread::spawn(move || weight.thaw().to_vec::<f32>());
    /// assert_eq!(thread.join().unwrap()?, [1.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The evaluation fails, or the array is being traced by a transform.
    pub fn freeze(self) -> Result<Frozen> {
        eval([&self])?;
        // SAFETY: the handle is live and evaluated.
        ffi::call(ErrorKind::Eval, || unsafe {
            sys::_mlx_array_wait(self.raw())
        })
        .map_err(|error| poison::failed([&self], error))?;
        let (mut available, mut lazy) = (false, true);
        // SAFETY: the handle is live; the out-parameter is a local variable.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::_mlx_array_is_available(&mut available, self.raw())
        })?;
        // SAFETY: as above.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_array_has_primitive(&mut lazy, self.raw())
        })?;
        if !available || lazy {
            let message = "cannot freeze an array that a transform is tracing";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut updated = false;
        // SAFETY: the handle is live; the out-parameter is a local variable. Waits for what still
        // writes.
        ffi::call(ErrorKind::Eval, || unsafe {
            sys::mlxrs_wait_for_updates(&mut updated, self.raw())
        })
        .map_err(|error| poison::failed([&self], error))?;
        // SAFETY: the handle is live. From here on nothing writes into the buffer, whatever array holds it.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_array_pin(self.raw())
        })?;
        Ok(Frozen(self.data()))
    }
}

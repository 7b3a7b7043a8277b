//! How arrays print.
//!
//! ```
//! use mlx_core::{PrintOptions, array};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = array![1.23456f32, 2.0];
//! assert_eq!(x.to_string(), "array([1.23456, 2], dtype=float32)");
//! assert_eq!(format!("{x:.2}"), "array([1.23, 2.00], dtype=float32)");
//! let options = PrintOptions { precision: Some(1) };
//! assert_eq!(options.scope(|| x.to_string()), "array([1.2, 2.0], dtype=float32)");
//! # Ok(())
//! # }
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

/// How arrays print. The default is MLX's.
#[doc(alias = "printoptions")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrintOptions {
    /// The digits of floating-point numbers after the point. `None`: six digits in all, without zeros at the end.
    pub precision: Option<u8>,
}

/// The precision for all threads, or -1, as MLX's formatter takes it.
static OF_ALL: AtomicI32 = AtomicI32::new(-1);

thread_local! {
    /// The options of the innermost scope.
    static OF_SCOPE: Cell<Option<PrintOptions>> = const { Cell::new(None) };
}

/// Sets how arrays print, on all threads that are not in a [`PrintOptions::scope`].
///
/// ```
/// use mlx_core::{PrintOptions, array, get_printoptions, set_printoptions};
///
/// # fn main() -> mlx_core::Result<()> {
/// set_printoptions(PrintOptions { precision: Some(3) });
/// assert_eq!(array![0.5f32].to_string(), "array([0.500], dtype=float32)");
/// assert_eq!(get_printoptions().precision, Some(3));
/// set_printoptions(PrintOptions::default());
/// # Ok(())
/// # }
/// ```
pub fn set_printoptions(options: PrintOptions) {
    OF_ALL.store(options.raw(), Ordering::Relaxed);
}

/// How arrays print on this thread: the options of the innermost [`PrintOptions::scope`], or those of
/// [`set_printoptions`].
pub fn get_printoptions() -> PrintOptions {
    OF_SCOPE.get().unwrap_or_else(|| PrintOptions {
        precision: u8::try_from(OF_ALL.load(Ordering::Relaxed)).ok(),
    })
}

impl PrintOptions {
    /// Runs `f`, during which this thread prints arrays by these options.
    ///
    /// ```
    /// use mlx_core::{PrintOptions, array};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let two = PrintOptions { precision: Some(2) };
    /// assert_eq!(two.scope(|| array![0.5f32].to_string()), "array([0.50], dtype=float32)");
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<R>(self, f: impl FnOnce() -> R) -> R {
        struct Before(Option<PrintOptions>);
        impl Drop for Before {
            fn drop(&mut self) {
                OF_SCOPE.set(self.0);
            }
        }
        let _before = Before(OF_SCOPE.replace(Some(self)));
        f()
    }

    /// The precision as MLX's formatter takes it.
    pub(crate) fn raw(self) -> i32 {
        self.precision.map_or(-1, i32::from)
    }
}

//! The operands of a CPU kernel.

use std::marker::PhantomData;

use mlx_c_sys as sys;

use crate::dtype::{DType, Element};

/// Shape and dtype of an operand.
///
/// ```
/// use mlx_core::{DType, kernel::Spec};
///
/// # fn main() -> mlx_core::Result<()> {
/// let spec = Spec::new(&[2, 3], DType::F32);
/// assert_eq!(spec.shape, [2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The size of each dimension.
    pub shape: Vec<i32>,
    /// The type of the elements.
    pub dtype: DType,
}

impl Spec {
    /// An operand of this shape and dtype.
    pub fn new(shape: &[i32], dtype: DType) -> Self {
        Self {
            shape: shape.to_vec(),
            dtype,
        }
    }
}

/// Pointer, length and type of a dense operand.
#[derive(Clone, Copy)]
struct RawView<'a> {
    data: *mut u8,
    len: usize,
    shape: &'a [i32],
    dtype: DType,
}

impl<'a> RawView<'a> {
    /// # Safety
    /// `view` must describe a live dense operand for `'a`.
    unsafe fn new(view: &'a sys::mlxrs_view) -> Option<Self> {
        let shape = match view.ndim {
            0 => &[],
            // SAFETY: `ndim` sizes stand there, as long as the view lives.
            ndim => unsafe { std::slice::from_raw_parts(view.shape, ndim) },
        };
        let dtype = DType::from_raw(view.dtype)?;
        Some(Self {
            data: view.data.cast(),
            len: view.size,
            shape,
            dtype,
        })
    }

    fn check<T: Element>(&self) -> Result<(), String> {
        if self.dtype != T::DTYPE {
            return Err(format!(
                "operand holds {}, asked for {}",
                self.dtype,
                T::DTYPE
            ));
        }
        if !self.data.cast::<T>().is_aligned() {
            return Err(format!(
                "operand of {} is not aligned to its elements",
                self.dtype
            ));
        }
        Ok(())
    }
}

/// An input of a kernel: read-only, dense, in row-major order.
pub struct View<'a> {
    raw: RawView<'a>,
    // The buffer is that of output 0 now, and may only be used through it.
    donated: bool,
}

// SAFETY: a view is shared, read-only access to memory that nothing writes while the kernel runs.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// # Safety
    /// `view` must describe a live dense operand for `'a`, which is not written unless `donated`.
    pub(super) unsafe fn new(view: &'a sys::mlxrs_view, donated: bool) -> Option<Self> {
        // SAFETY: the caller's promise.
        unsafe { RawView::new(view) }.map(|raw| Self { raw, donated })
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &'a [i32] {
        self.raw.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.raw.dtype
    }

    /// The elements.
    ///
    /// # Errors
    /// `T` is not the operand's dtype, or this is the input that
    /// [`donate_input`](super::CpuKernel::donate_input) named, whose elements are in output 0.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], String> {
        if self.donated {
            return Err("input is donated: its elements are in output 0".into());
        }
        self.raw.check::<T>()?;
        if self.raw.len == 0 {
            return Ok(&[]);
        }
        // SAFETY: dense, of dtype `T`, aligned, `len` elements, not written.
        Ok(unsafe { std::slice::from_raw_parts(self.raw.data.cast(), self.raw.len) })
    }
}

/// An output of a kernel: dense, in row-major order, zero at first.
pub struct ViewMut<'a> {
    raw: RawView<'a>,
    unique: PhantomData<&'a mut [u8]>,
}

// SAFETY: a mutable view is the only access to its memory.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: shared access to it gives shape and dtype only.
unsafe impl Sync for ViewMut<'_> {}

impl<'a> ViewMut<'a> {
    /// # Safety
    /// `view` must describe a live dense operand for `'a`, initialised, without another user.
    pub(super) unsafe fn new(view: &'a sys::mlxrs_view) -> Option<Self> {
        // SAFETY: the caller's promise.
        unsafe { RawView::new(view) }.map(|raw| Self {
            raw,
            unique: PhantomData,
        })
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &'a [i32] {
        self.raw.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.raw.dtype
    }

    /// The elements.
    ///
    /// # Errors
    /// `T` is not the operand's dtype.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], String> {
        self.raw.check::<T>()?;
        if self.raw.len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: dense, of dtype `T`, aligned, `len` initialised elements, in no other view.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.raw.data.cast(), self.raw.len) })
    }
}

//! The bytes of a file, and arrays over them.

use std::path::Path;
use std::sync::Arc;

use mlx_c_sys as sys;

use super::mapped::MappedFile;
use super::moved::Moved;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;
use crate::memory;
use crate::stream::Device;

/// The bytes of a file.
pub(crate) enum Source {
    Mapped(MappedFile),
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
}

impl Source {
    /// Maps an ordinary file. Also returns its name for messages.
    pub(crate) fn open(path: &Path) -> Result<(String, Self)> {
        let label = path.display().to_string();
        let io = |error: std::io::Error| Error::from(error).context(&label);
        let file = super::open_io(path, u64::MAX).map_err(io)?;
        let mapped = MappedFile::new(file, &label).map_err(io)?;
        Ok((label, Source::Mapped(mapped)))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(mapped) => mapped.bytes(),
            Source::Static(bytes) => bytes,
            Source::Shared(bytes) => bytes,
        }
    }

    /// Whether the byte at `start` has an address that is a multiple of `to`.
    pub(crate) fn is_aligned(&self, start: usize, to: usize) -> bool {
        self.bytes()[start..].as_ptr().addr().is_multiple_of(to)
    }
}

/// How the bytes of an array are interpreted: dense elements in row-major order, little-endian.
pub(crate) struct Layout<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [i32],
}

impl Layout<'_> {
    /// An array over the bytes from `start`.
    ///
    /// On the CPU back end it refers to the source, unless the bytes are not aligned to their elements, or fewer than
    /// eight bytes are before them. On CUDA and Metal the bytes are copied.
    ///
    /// # Errors
    /// The array exceeds [`memory::set_array_limit`], or the source ends before it; a file cannot be read; or a byte
    /// of a BOOL array is neither 0 nor 1.
    pub(crate) fn of_source(&self, source: &Arc<Source>, start: usize) -> Result<Array> {
        let bytes = self.check(source.bytes(), start)?;
        if start >= 8 && source.is_aligned(start, self.dtype.size()) {
            return self.place(bytes, source.clone());
        }
        let range = start..start + bytes.len();
        let (moved, begins) = Moved::new(source, std::slice::from_ref(&range))?;
        self.of_moved(Arc::new(moved), begins[0])
    }

    /// An array over bytes that were moved into aligned memory.
    pub(crate) fn of_moved(&self, moved: Arc<Moved>, begin: usize) -> Result<Array> {
        let bytes = self.check(moved.from(0), begin)?;
        self.place(bytes, moved.clone())
    }

    /// The bytes of the array, after all checks that MLX needs.
    fn check<'b>(&self, bytes: &'b [u8], start: usize) -> Result<&'b [u8]> {
        let len = memory::check_shape(self.shape, self.dtype)? * self.dtype.size();
        let found = bytes.get(start..).and_then(|rest| rest.get(..len));
        let bytes = found.ok_or_else(|| {
            let message = format!("{len} bytes at {start} exceed the {} bytes", bytes.len());
            Error::new(ErrorKind::Format, message)
        })?;
        if self.dtype == DType::Bool
            && let Some(byte) = bytes.iter().find(|&&byte| byte > 1)
        {
            let message = format!("byte {byte} where BOOL has 0 and 1");
            return Err(Error::new(ErrorKind::Format, message));
        }
        Ok(bytes)
    }

    /// An array over bytes of `owner` that [`check`](Self::check) returned and that are aligned.
    fn place<T: Send + Sync>(&self, bytes: &[u8], owner: Arc<T>) -> Result<Array> {
        if plain_memory()? {
            self.lend(bytes.as_ptr(), owner)
        } else {
            self.copy(bytes.as_ptr())
        }
    }

    /// An array over bytes that `owner` keeps alive and in place.
    fn lend<T: Send + Sync>(&self, data: *const u8, owner: Arc<T>) -> Result<Array> {
        unsafe extern "C" fn release<T>(payload: *mut std::ffi::c_void) {
            // SAFETY: the reference that `lend` gave away, returned once. Freeing bytes cannot panic.
            drop(unsafe { Arc::from_raw(payload.cast::<T>()) });
        }

        let payload = Arc::into_raw(owner).cast_mut().cast();
        ffi::array(|res| {
            // SAFETY: the bytes are as many as shape and dtype require (`check`), aligned, preceded
            // by eight of the same allocation (`of_source` asks for them, and `Moved` leaves them),
            // and live as long as their owner, of which the array gets a reference. MLX never
            // writes into foreign memory.
            unsafe {
                sys::mlxrs_array_from_foreign(
                    res,
                    data.cast(),
                    self.shape.as_ptr(),
                    self.shape.len(),
                    self.dtype.raw(),
                    payload,
                    Some(release::<T>),
                )
            }
        })
        .map(Array::data)
    }

    /// An array in MLX's own memory. `data` is aligned, and as long as shape and dtype require.
    fn copy(&self, data: *const u8) -> Result<Array> {
        ffi::array(|res| {
            // SAFETY: the conditions that this function states; the shim copies the bytes before it
            // returns.
            unsafe {
                sys::mlxrs_array_of_weights(
                    res,
                    data.cast(),
                    self.shape.as_ptr(),
                    self.shape.len(),
                    self.dtype.raw(),
                )
            }
        })
        .map(Array::data)
    }
}

/// Whether MLX's buffers are plain memory of the process, which is the case without a GPU back end.
pub(crate) fn plain_memory() -> Result<bool> {
    Device::GPU.is_available().map(|gpu| !gpu)
}

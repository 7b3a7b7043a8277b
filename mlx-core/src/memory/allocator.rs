//! Rust's own memory: an allocator for programs, and allocations that may fail.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Write};

/// A global allocator for programs: where the system has no memory, the program prints an error and ends with status 1.
///
/// Rust's default is to abort. Memory of arrays does not come from here; its error is
/// [`ErrorKind::Memory`](crate::ErrorKind::Memory). Code that needs memory in proportion to an input asks with
/// [`reserve`], which can fail.
/// ```
/// #[global_allocator]
/// static MEMORY: mlx_core::memory::Allocator = mlx_core::memory::Allocator::SYSTEM;
/// # fn main() {}
/// ```
pub struct Allocator<A = System>(A);

impl Allocator {
    /// The system's allocator.
    pub const SYSTEM: Self = Self(System);
}

impl<A> Allocator<A> {
    /// Another allocator.
    pub const fn new(inner: A) -> Self {
        Self(inner)
    }
}

thread_local! {
    /// Whether [`reserve`] is allocating. Has no destructor, so that it may be read while a thread ends.
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: all memory is the inner allocator's, with the layouts of the caller.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Allocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        checked(unsafe { self.0.alloc(layout) }, layout.size())
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        checked(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        checked(unsafe { self.0.realloc(memory, layout, size) }, size)
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(memory, layout) }
    }
}

fn checked(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() && !MAY_FAIL.get() {
        exhausted(bytes);
    }
    memory
}

/// Ends the program because there is no memory. It allocates nothing, and runs no exit handlers, because these might
/// allocate.
#[cold]
pub(crate) fn exhausted(bytes: usize) -> ! {
    // Formatting a number allocates nothing, and stderr has no buffer. If stderr cannot be written,
    // the exit status still shows the failure.
    let _ = writeln!(io::stderr(), "error: no memory for {bytes} bytes");
    // SAFETY: takes a number, and does not return.
    unsafe { libc::_exit(1) }
}

/// Makes room for `more` elements behind those of `vec`.
///
/// ```
/// use mlx_core::memory;
///
/// # fn main() -> mlx_core::Result<()> {
/// let mut bytes: Vec<u8> = Vec::new();
/// memory::reserve(&mut bytes, 1000)?;
/// assert!(bytes.capacity() >= 1000);
/// // No panic, and no abort, where the memory is missing.
/// assert!(memory::reserve(&mut bytes, usize::MAX).is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no memory, or the size overflows.
pub fn reserve<T>(vec: &mut Vec<T>, more: usize) -> io::Result<()> {
    let before = MAY_FAIL.replace(true);
    let reserved = vec.try_reserve_exact(more);
    MAY_FAIL.set(before);
    reserved.map_err(|_| {
        let bytes = more.saturating_mul(size_of::<T>());
        io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!("no memory for {bytes} bytes"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_an_error() {
        let mut vec = vec![1u32];
        let error = reserve(&mut vec, usize::MAX / 8).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(reserve(&mut vec, usize::MAX).is_err());
        reserve(&mut vec, 3).unwrap();
        assert_eq!((vec.len(), vec.capacity()), (1, 4));
        assert!(!MAY_FAIL.get());
    }
}

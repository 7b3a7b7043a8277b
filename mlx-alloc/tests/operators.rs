//! The operators of this program are those that libmlxc calls.
#![cfg(target_os = "linux")]

use std::ffi::c_void;
use std::hint::black_box;

use libmimalloc_sys::mi_is_in_heap_region;
use mlx_alloc as _;
use mlx_c_sys::{mlx_array_free, mlx_array_new_int};

#[test]
fn objects_of_mlx_come_from_mimalloc() {
    // SAFETY: an array that is made and freed here; its address is only compared.
    unsafe {
        let array = mlx_array_new_int(3);
        assert!(mi_is_in_heap_region(array.ctx));
        assert_eq!(mlx_array_free(array), 0);
    }
    let rust = Box::new(3);
    // SAFETY: as above.
    assert!(!unsafe { mi_is_in_heap_region((&raw const *rust).cast()) });
}

#[test]
fn memory_that_cannot_be_had_is_an_exception() {
    unsafe extern "C" {
        /// `operator new(size_t, const std::nothrow_t&)`, which catches what the others throw.
        #[link_name = "_ZnwmRKSt9nothrow_t"]
        fn new_or_null(size: usize, nothrow: *const u8) -> *mut c_void;
        /// `operator delete(void*)`.
        #[link_name = "_ZdlPv"]
        fn delete(memory: *mut c_void);
    }
    // SAFETY: the second argument is an object without contents, of which only the type counts; the memory is freed once.
    unsafe {
        // The compiler knows the function, and takes calls out whose memory nobody uses.
        assert!(black_box(new_or_null(1 << 60, &0)).is_null());
        let memory = black_box(new_or_null(24, &0));
        assert!(mi_is_in_heap_region(memory));
        delete(memory);
    }
}

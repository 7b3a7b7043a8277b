//! The operators of this program are those that libmlxc calls, and objects keep what is written to them, whoever destroys them.
#![cfg(target_os = "linux")]

use std::ffi::c_void;
use std::hint::black_box;
use std::slice::from_raw_parts_mut;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use mlx_alloc as _;
use mlx_c_sys::{mlx_array_free, mlx_array_new_int};

unsafe extern "C" {
    /// `operator new(size_t, const std::nothrow_t&)`, which catches what the others throw.
    #[link_name = "_ZnwmRKSt9nothrow_t"]
    fn new_or_null(size: usize, nothrow: *const u8) -> *mut c_void;
    /// `operator new(size_t, std::align_val_t)`.
    #[link_name = "_ZnwmSt11align_val_t"]
    fn new_aligned(size: usize, alignment: usize) -> *mut c_void;
    /// `operator delete(void*)`.
    #[link_name = "_ZdlPv"]
    fn delete(memory: *mut c_void);
    fn mlx_alloc_has(memory: *const c_void) -> bool;
}

#[test]
fn objects_of_mlx_come_from_the_pool() {
    // SAFETY: an array that is made and freed here; its address is only compared.
    unsafe {
        let array = mlx_array_new_int(3);
        assert!(mlx_alloc_has(array.ctx));
        assert_eq!(mlx_array_free(array), 0);
    }
    let rust = Box::new(3);
    // SAFETY: as above.
    assert!(!unsafe { mlx_alloc_has((&raw const *rust).cast()) });
}

#[test]
fn memory_that_cannot_be_had_is_an_exception() {
    // SAFETY: the second argument is an object without contents, of which only the type counts; the memory is freed once.
    unsafe {
        // The compiler knows the function, and takes calls out whose memory nobody uses.
        for size in [1 << 60, usize::MAX] {
            assert!(black_box(new_or_null(size, &0)).is_null());
        }
        let memory = black_box(new_or_null(24, &0));
        assert!(mlx_alloc_has(memory));
        delete(memory);
        delete(black_box(std::ptr::null_mut()));
    }
}

/// An object full of one byte.
struct Object {
    memory: *mut c_void,
    size: usize,
    byte: u8,
}

// SAFETY: nobody else has the memory, and any thread may destroy it.
unsafe impl Send for Object {}

impl Object {
    fn new(size: usize, alignment: Option<usize>, byte: u8) -> Self {
        // SAFETY: memory that is checked, and destroyed once.
        let memory = unsafe {
            match alignment {
                Some(alignment) => new_aligned(size, alignment),
                None => new_or_null(size, &0),
            }
        };
        assert!(!memory.is_null());
        assert!(memory.addr().is_multiple_of(alignment.unwrap_or(16)));
        // SAFETY: so many bytes were asked for.
        unsafe { memory.cast::<u8>().write_bytes(0, size) };
        let mut object = Self { memory, size, byte };
        object.bytes().fill(byte);
        object
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes were asked for, and zeroed by `new` before anybody reads them; nobody else has them.
        unsafe { from_raw_parts_mut(self.memory.cast(), self.size) }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let byte = self.byte;
        assert!(self.bytes().iter().all(|&found| found == byte));
        // SAFETY: destroyed once.
        unsafe { delete(self.memory) };
    }
}

/// Sends many objects of sizes in no order, and keeps some for itself.
fn make(seed: u64, to: &SyncSender<Object>) {
    let mut state = seed;
    let mut kept = Vec::new();
    for _ in 0..30_000 {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let pick = (state >> 33) as usize;
        let size = match pick % 16 {
            0 => pick / 16 % 20_000,
            1 | 2 => 0,
            _ => pick / 16 % 1100,
        };
        let alignment = (pick.is_multiple_of(29)).then(|| 16 << (pick / 29 % 9));
        let object = Object::new(size, alignment, pick as u8);
        if pick.is_multiple_of(5) {
            kept.push(object);
            if kept.len() > 700 {
                kept.drain(..350);
            }
        } else {
            to.send(object).expect("somebody destroys them");
        }
    }
}

#[test]
fn threads_destroy_what_others_make() {
    // Threads that make objects, that destroy them, and that come and go.
    for round in 0..3 {
        let (to, from) = sync_channel(2000);
        thread::scope(|scope| {
            for seed in 0..3 {
                let to = to.clone();
                scope.spawn(move || make(seed + 10 * round, &to));
            }
            drop(to);
            let mut last = None;
            for object in from {
                // One of them by a thread that does nothing else.
                if object.byte == 7 {
                    scope.spawn(move || drop(object));
                } else {
                    last = Some(object);
                }
            }
            drop(last);
        });
    }
}

//! Rust closures as functions that MLX calls.
//!
//! There are two kinds. A *lent* closure lives on the caller's stack: MLX calls it before the C function returns, and
//! its slot is emptied afterwards, so that a late call would be an error and not a use after free. A *kept* closure
//! belongs to MLX (inside a graph node or a compile cache), so it is `'static`. If its last reference is dropped on
//! another thread, the closure, which may hold arrays, is sent back to its own thread and dropped there.
//!
//! A panic or an error inside a closure is stashed, C++ gets a status, and [`call`](super::call) raises the failure
//! again when the C++ frames are gone.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mlx_c_sys as sys;

use super::vector::{self, VectorArray};
use super::{Stash, stash};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// A function from arrays to arrays that the caller lends for one C call.
pub(crate) type Lent<'a> = dyn FnMut(&[Array]) -> Result<Vec<Array>> + 'a;
/// A function from lists of arrays to arrays that MLX keeps. Plain functions get one list, custom pullbacks three (primals,
/// cotangents, outputs), custom pushforwards two (primals, tangents), custom maps one (inputs).
///
/// The numbers are the argument numbers for a pushforward. For a map they are the axes of the
/// inputs, which the function replaces by the axes of the outputs. Otherwise the list is empty.
pub(crate) type Kept = dyn Fn(&[Vec<Array>], &mut Vec<i32>) -> Result<Vec<Array>>;

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// A number for this thread that no other thread ever gets. It can be read until the thread has ended.
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if THREAD.get() == 0 {
        THREAD.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    THREAD.get()
}

/// Runs `f` for C++: the arrays go into `res`; a panic or an error is stashed and becomes 1.
///
/// # Safety
/// `res` must be null or live, and may be written by this call.
pub(crate) unsafe fn answer(
    res: *mut sys::mlx_vector_array,
    f: impl FnOnce() -> Result<Vec<Array>>,
) -> c_int {
    let run = || {
        let arrays = VectorArray::new(&f()?)?;
        // SAFETY: `res` is the caller's to fill and `arrays` is live; the handles are copied.
        super::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_vector_array_set(res, super::Arg::c(&arrays))
        })
    };
    guarded(run)
}

/// Runs `f`, stashing its panic or error: 0 is success.
pub(crate) fn guarded(f: impl FnOnce() -> Result<()>) -> c_int {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            stash(Stash::Error(error));
            1
        }
        Err(payload) => {
            stash(Stash::Panic(payload));
            1
        }
    }
}

/// Closures that C holds, by their handles: each is freed once, when it is dropped.
macro_rules! owned_closures {
    ($($(#[$doc:meta])* $name:ident: $raw:ident, $free:ident;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name(sys::$raw);

        impl $name {
            pub(crate) fn raw(&self) -> sys::$raw {
                self.0
            }

            /// Owns a handle that C has made. A null handle is an error of MLX.
            fn owning(raw: sys::$raw) -> Result<Self> {
                if raw.ctx.is_null() {
                    Err(super::take_error(ErrorKind::Mlx))
                } else {
                    Ok(Self(raw))
                }
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if !self.0.ctx.is_null() {
                    // SAFETY: owned, non-null, freed once.
                    unsafe { sys::$free(self.0) };
                }
            }
        }
    )*};
}

owned_closures! {
    /// An owned `mlx_closure`.
    Closure: mlx_closure, mlx_closure_free;
    /// An owned `mlx_closure_custom`: a derivative.
    CustomClosure: mlx_closure_custom, mlx_closure_custom_free;
    /// An owned `mlx_closure_custom_jvp`: a pushforward.
    PushforwardClosure: mlx_closure_custom_jvp, mlx_closure_custom_jvp_free;
    /// An owned `mlx_closure_custom_vmap`: a vectorised form.
    MapClosure: mlx_closure_custom_vmap, mlx_closure_custom_vmap_free;
}

impl Closure {
    /// Runs a C call that makes a closure out of others.
    pub(crate) fn make(f: impl FnOnce(*mut sys::mlx_closure) -> c_int) -> Result<Self> {
        let mut closure = Self(sys::mlx_closure {
            ctx: std::ptr::null_mut(),
        });
        super::call(ErrorKind::Mlx, || f(&mut closure.0))?;
        Ok(closure)
    }

    /// Gives `function` to MLX.
    pub(crate) fn keep(
        function: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    ) -> Result<Self> {
        let payload = keep(Box::new(move |lists, _| function(&lists[0])));
        // SAFETY: the trampoline and the destructor are the ones of this payload, which C++ owns
        // from here on.
        let raw =
            unsafe { sys::mlx_closure_new_func_payload(Some(call_kept), payload, Some(drop_kept)) };
        Self::owning(raw)
    }

    /// Calls the closure, which calls the Rust function in it, or traces it.
    pub(crate) fn call(&self, inputs: &[Array]) -> Result<Vec<Array>> {
        let inputs = VectorArray::new(inputs)?;
        super::arrays(|res| {
            // SAFETY: live closure and inputs, a fresh out-handle.
            unsafe { sys::mlx_closure_apply(res, self.0, super::Arg::c(&inputs)) }
        })
    }
}

impl CustomClosure {
    /// Gives `function` of (primals, cotangents, outputs) to MLX.
    pub(crate) fn keep(
        function: impl Fn(&[Array], &[Array], &[Array]) -> Result<Vec<Array>> + 'static,
    ) -> Result<Self> {
        let payload = keep(Box::new(move |lists, _| {
            function(&lists[0], &lists[1], &lists[2])
        }));
        // SAFETY: as in `Closure::keep`.
        let raw = unsafe {
            sys::mlx_closure_custom_new_func_payload(Some(call_custom), payload, Some(drop_kept))
        };
        Self::owning(raw)
    }
}

impl PushforwardClosure {
    /// A null handle, which C takes as no closure.
    pub(crate) fn none() -> Self {
        Self(sys::mlx_closure_custom_jvp {
            ctx: std::ptr::null_mut(),
        })
    }

    /// Gives `function` of (primals, tangents, numbers of the arguments that have one) to MLX.
    pub(crate) fn keep(
        function: impl Fn(&[Array], &[Array], &[i32]) -> Result<Vec<Array>> + 'static,
    ) -> Result<Self> {
        let payload = keep(Box::new(move |lists, numbers| {
            function(&lists[0], &lists[1], numbers)
        }));
        // SAFETY: as in `Closure::keep`.
        let raw = unsafe {
            sys::mlx_closure_custom_jvp_new_func_payload(Some(call_jvp), payload, Some(drop_kept))
        };
        Self::owning(raw)
    }
}

impl MapClosure {
    /// A null handle, which C takes as no closure.
    pub(crate) fn none() -> Self {
        Self(sys::mlx_closure_custom_vmap {
            ctx: std::ptr::null_mut(),
        })
    }

    /// Gives `function` to MLX. Its numbers are the axes of the inputs, which it replaces by the
    /// axes of the outputs. -1 stands for no axis.
    pub(crate) fn keep(
        function: impl Fn(&[Array], &mut Vec<i32>) -> Result<Vec<Array>> + 'static,
    ) -> Result<Self> {
        let payload = keep(Box::new(move |lists, axes| function(&lists[0], axes)));
        // SAFETY: as in `Closure::keep`.
        let raw = unsafe {
            sys::mlx_closure_custom_vmap_new_func_payload(Some(call_vmap), payload, Some(drop_kept))
        };
        Self::owning(raw)
    }
}

/// The slot through which C++ reaches a closure on the caller's stack.
struct Slot {
    thread: u64,
    function: Cell<Option<NonNull<Lent<'static>>>>,
}

/// Lends `function` to the C calls that `run` makes.
pub(crate) fn lend<R>(
    function: &mut Lent<'_>,
    run: impl FnOnce(&Closure) -> Result<R>,
) -> Result<R> {
    struct Empty(Arc<Slot>);
    impl Drop for Empty {
        fn drop(&mut self) {
            self.0.function.set(None);
        }
    }

    bury();
    // SAFETY: only the lifetime changes, and `Empty` takes the pointer back before `function` goes.
    let pointer: NonNull<Lent<'static>> = unsafe {
        std::mem::transmute::<NonNull<Lent<'_>>, NonNull<Lent<'static>>>(NonNull::from(function))
    };
    // Reference counted because MLX may keep the slot longer than the call, but not its content. The count is atomic
    // because MLX may drop its reference on any thread; the cell is only used on this thread.
    #[allow(clippy::arc_with_non_send_sync)]
    let slot = Arc::new(Slot {
        thread: thread_number(),
        function: Cell::new(Some(pointer)),
    });
    let empty = Empty(slot.clone());
    let payload = Arc::into_raw(slot).cast_mut().cast::<c_void>();
    // SAFETY: the trampoline and the destructor are the ones of this payload, which C++ owns.
    let raw =
        unsafe { sys::mlx_closure_new_func_payload(Some(call_lent), payload, Some(drop_lent)) };
    if raw.ctx.is_null() {
        return Err(super::take_error(ErrorKind::Mlx));
    }
    let closure = Closure(raw);
    let result = run(&closure);
    drop(empty);
    result
}

unsafe extern "C" fn call_lent(
    res: *mut sys::mlx_vector_array,
    inputs: sys::mlx_vector_array,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: C++ holds one of the slot's references while it calls.
    let slot = unsafe { &*payload.cast::<Slot>() };
    // SAFETY: C++ passes `res` to be filled.
    unsafe {
        answer(res, || {
            let late = || {
                Error::new(
                    ErrorKind::Closure,
                    "mlx called a closure that is running or gone",
                )
            };
            if slot.thread != thread_number() {
                return Err(late());
            }
            // Taken out while it runs, because a second call meanwhile would alias the `&mut`.
            let function = slot.function.take().ok_or_else(late)?;
            let inputs = vector::read(inputs)?;
            let result = catch_unwind(AssertUnwindSafe(|| (*function.as_ptr())(&inputs)));
            slot.function.set(Some(function));
            result.unwrap_or_else(|payload| std::panic::resume_unwind(payload))
        })
    }
}

unsafe extern "C" fn drop_lent(payload: *mut c_void) {
    // SAFETY: the reference that `lend` gave to C++, returned once.
    drop(unsafe { Arc::from_raw(payload.cast::<Slot>()) });
}

struct KeptPayload {
    thread: u64,
    function: Box<Kept>,
}

fn keep(function: Box<Kept>) -> *mut c_void {
    bury();
    Box::into_raw(Box::new(KeptPayload {
        thread: thread_number(),
        function,
    }))
    .cast()
}

unsafe fn call(
    res: *mut sys::mlx_vector_array,
    lists: &[sys::mlx_vector_array],
    numbers: &mut Vec<i32>,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: C++ owns the payload and holds it while it calls.
    let kept = unsafe { &*payload.cast::<KeptPayload>() };
    // SAFETY: C++ passes `res` to be filled.
    unsafe {
        answer(res, || {
            if kept.thread != thread_number() {
                let message = "mlx called a closure on another thread than the one that made it";
                return Err(Error::new(ErrorKind::Closure, message));
            }
            let lists = lists
                .iter()
                .map(|&list| vector::read(list))
                .collect::<Result<Vec<_>>>()?;
            (kept.function)(&lists, numbers)
        })
    }
}

unsafe extern "C" fn call_kept(
    res: *mut sys::mlx_vector_array,
    inputs: sys::mlx_vector_array,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: C++ passes on what `Closure::keep` gave it, and lends the vectors.
    unsafe { call(res, &[inputs], &mut Vec::new(), payload) }
}

unsafe extern "C" fn call_custom(
    res: *mut sys::mlx_vector_array,
    primals: sys::mlx_vector_array,
    cotangents: sys::mlx_vector_array,
    outputs: sys::mlx_vector_array,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: C++ passes on what `CustomClosure::keep` gave it, and lends the vectors.
    unsafe {
        call(
            res,
            &[primals, cotangents, outputs],
            &mut Vec::new(),
            payload,
        )
    }
}

/// The numbers that C++ lends.
///
/// # Safety
/// `numbers` must be good for `count` numbers, if there are any.
unsafe fn lent(numbers: *const c_int, count: usize) -> Vec<i32> {
    match count {
        0 => Vec::new(),
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(numbers, count) }.to_vec(),
    }
}

unsafe extern "C" fn call_jvp(
    res: *mut sys::mlx_vector_array,
    primals: sys::mlx_vector_array,
    tangents: sys::mlx_vector_array,
    argnums: *const c_int,
    n_argnums: usize,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: C++ passes on what `PushforwardClosure::keep` gave it, and lends the vectors and numbers.
    unsafe {
        let mut numbers = lent(argnums, n_argnums);
        call(res, &[primals, tangents], &mut numbers, payload)
    }
}

unsafe extern "C" fn call_vmap(
    res: *mut sys::mlx_vector_array,
    out_axes: *mut sys::mlx_vector_int,
    inputs: sys::mlx_vector_array,
    in_axes: *const c_int,
    n_axes: usize,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: C++ passes on what `MapClosure::keep` gave it, lends the vectors and numbers, and has an `out_axes` to fill.
    unsafe {
        let mut axes = lent(in_axes, n_axes);
        let status = call(res, &[inputs], &mut axes, payload);
        if status != 0 {
            return status;
        }
        guarded(|| {
            super::call(ErrorKind::Mlx, || {
                sys::mlx_vector_int_set_data(out_axes, axes.as_mut_ptr(), axes.len())
            })
        })
    }
}

unsafe extern "C" fn drop_kept(payload: *mut c_void) {
    // SAFETY: the box that `keep` gave to C++, returned once.
    let kept = unsafe { Box::from_raw(payload.cast::<KeptPayload>()) };
    if kept.thread == thread_number() {
        dismiss(kept);
    } else {
        GRAVES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Grave(kept));
    }
}

/// Drops a closure below C++ frames, which a panic must not cross. The payload of a panic is forgotten, because
/// dropping it could panic again.
fn dismiss(kept: Box<KeptPayload>) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(kept))) {
        std::mem::forget(payload);
    }
}

/// A closure whose last reference was dropped on a thread other than its own. It waits here to be
/// dropped on its own thread.
struct Grave(Box<KeptPayload>);

// SAFETY: the closure inside is neither called nor dropped before it is back on its own thread.
unsafe impl Send for Grave {}

static GRAVES: Mutex<Vec<Grave>> = Mutex::new(Vec::new());

/// Drops the closures of this thread that were returned to it. Closures of a thread that has ended are leaked: that is
/// safe, and dropping them here would not be.
fn bury() {
    let mine: Vec<Grave> = {
        let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
        if graves.is_empty() {
            return;
        }
        let me = thread_number();
        graves
            .extract_if(.., |grave| grave.0.thread == me)
            .collect()
    };
    // Outside the lock, because dropping a closure may call this function again.
    mine.into_iter().for_each(|grave| dismiss(grave.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Address(*mut c_void);
    // SAFETY: the payload is handed over, as C++ may do.
    unsafe impl Send for Address {}

    /// Reports the thread on which it is dropped.
    struct Witness(std::sync::mpsc::Sender<u64>);
    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.send(thread_number()).unwrap();
        }
    }

    #[test]
    fn a_closure_that_dies_elsewhere_is_dropped_at_home() {
        let (send, receive) = std::sync::mpsc::channel();
        let witness = Witness(send);
        let payload = Address(keep(Box::new(move |_, _| {
            let _ = &witness;
            Ok(Vec::new())
        })));
        let elsewhere = std::thread::spawn(move || {
            let payload = payload;
            // SAFETY: the payload is dropped once, here.
            unsafe { drop_kept(payload.0) };
            // Closures that this thread makes and drops do not touch the other thread's closure.
            drop(Closure::keep(|x| Ok(x.to_vec())).unwrap());
            thread_number()
        });
        let elsewhere = elsewhere.join().unwrap();
        assert!(receive.try_recv().is_err(), "not yet dropped");
        drop(Closure::keep(|x| Ok(x.to_vec())).unwrap());
        let home = receive.try_recv().unwrap();
        assert_eq!(home, thread_number());
        assert_ne!(home, elsewhere);
    }
}

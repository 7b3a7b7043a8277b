//! The boundary to C++: status codes become `Result`, handles become owned values.
//!
//! Every operation of the crate goes through [`op!`](crate::op), so that one place states the reasons why handles,
//! streams and errors are handled soundly:
//!
//! - input handles come from live Rust values, which own a non-null C++ object each;
//! - an out-parameter is a fresh null handle, wrapped as soon as the call succeeds;
//! - a failed call leaves its text in a thread-local slot, which is taken at once;
//! - a panic or error inside a Rust closure that C++ called is stashed and raised here.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int};

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::poison;
use crate::stream;

pub(crate) mod closure;
pub(crate) mod vector;

/// The failure of a Rust closure, kept while C++ unwinds its own frames.
pub(crate) enum Stash {
    Panic(Box<dyn Any + Send>),
    Error(Error),
}

thread_local! {
    static STASH: RefCell<Option<Stash>> = const { RefCell::new(None) };
}

/// Keeps the first panic or error of a callback for the Rust frame that called C++.
pub(crate) fn stash(value: Stash) {
    STASH.with_borrow_mut(|slot| {
        slot.get_or_insert(value);
    });
}

/// Runs one C call and turns its status into a `Result`.
pub(crate) fn call(kind: ErrorKind, f: impl FnOnce() -> c_int) -> Result<()> {
    // SAFETY: takes no arguments and touches a thread-local string only.
    unsafe { sys::mlxrs_error_clear() };
    if f() == 0 {
        return Ok(());
    }
    Err(take_error(kind))
}

/// The failure of the call that just returned. Resumes the panic of a callback, if that was the cause.
pub(crate) fn take_error(kind: ErrorKind) -> Error {
    match STASH.with_borrow_mut(Option::take) {
        Some(Stash::Panic(payload)) => std::panic::resume_unwind(payload),
        Some(Stash::Error(error)) => return error,
        None => {}
    }
    if let Err(text) = sys::load() {
        return Error::new(ErrorKind::Library, text);
    }
    // SAFETY: the pointer is null or a C string valid until the next clear on this thread, which comes after its copy.
    // The clear ensures that a later failure does not report this text.
    let text = unsafe {
        let text = sys::mlxrs_error_get();
        let text = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
        sys::mlxrs_error_clear();
        text
    };
    match text {
        Some(text) if text.contains("bad_alloc") => {
            Error::new(ErrorKind::Memory, "no memory for a node of the graph")
        }
        Some(text) if lacks_memory(&text) => Error::new(ErrorKind::Memory, text),
        Some(text) => Error::new(kind, text),
        None => Error::new(kind, "mlx failed without a message"),
    }
}

/// Whether a failure is a lack of memory, by the texts of this project's allocators, of MLX's, and
/// of CUDA's driver.
fn lacks_memory(text: &str) -> bool {
    let texts = ["no memory for ", "Unable to allocate ", "out of memory"];
    texts.iter().any(|lack| text.contains(lack))
}

/// Runs a C call that fills one array handle.
pub(crate) fn array(f: impl FnOnce(*mut sys::mlx_array) -> c_int) -> Result<Array> {
    let mut raw = sys::mlx_array {
        ctx: std::ptr::null_mut(),
    };
    let status = call(ErrorKind::Mlx, || f(&mut raw));
    // SAFETY: mlx-c allocated the handle for this call (or left it null), and it has no other
    // owner.
    let array = unsafe { Array::from_raw(raw) };
    status?;
    let array = array?;
    memory::check_array(&array)?;
    Ok(array)
}

/// How a Rust argument is passed to C. Implemented for the types that `op!` passes by value.
pub(crate) trait Arg {
    type C;
    fn c(&self) -> Self::C;
    /// Fails for an array of a poisoned step.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Arg for Array {
    type C = sys::mlx_array;
    fn c(&self) -> Self::C {
        self.raw()
    }
    fn check(&self) -> Result<()> {
        poison::check(self)?;
        self.dtype().check()
    }
}

impl<T: Arg + ?Sized> Arg for &T {
    type C = T::C;
    fn c(&self) -> Self::C {
        (**self).c()
    }
    fn check(&self) -> Result<()> {
        (**self).check()
    }
}

/// Optional arrays are null handles in C.
impl<A: std::borrow::Borrow<Array>> Arg for Option<A> {
    type C = sys::mlx_array;
    fn c(&self) -> Self::C {
        match self {
            Some(array) => array.borrow().raw(),
            None => sys::mlx_array {
                ctx: std::ptr::null_mut(),
            },
        }
    }
    fn check(&self) -> Result<()> {
        self.as_ref().map_or(Ok(()), |array| array.borrow().check())
    }
}

macro_rules! plain_args {
    ($($ty:ty),*) => { $( impl Arg for $ty { type C = $ty; fn c(&self) -> $ty { *self } } )* };
}
plain_args!(i32, u32, u64, usize, bool, f32, f64);

impl Arg for DType {
    type C = sys::mlx_dtype;
    fn c(&self) -> Self::C {
        self.raw()
    }
    /// Fails for F64 on a GPU: some of MLX's operations have no kernels for it there, and others are wrong.
    fn check(&self) -> Result<()> {
        if *self != DType::F64 || !stream::is_on_gpu()? {
            return Ok(());
        }
        let message =
            "F64 is not supported on a GPU: convert to F32, or compute on a stream of the CPU";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

impl Arg for CStr {
    type C = *const std::ffi::c_char;
    fn c(&self) -> Self::C {
        self.as_ptr()
    }
}

impl Arg for CString {
    type C = *const std::ffi::c_char;
    fn c(&self) -> Self::C {
        self.as_ptr()
    }
}

/// An optional number, as mlx-c passes it.
pub(crate) struct Opt<T>(pub Option<T>);

impl Arg for Opt<i32> {
    type C = sys::mlx_optional_int;
    fn c(&self) -> Self::C {
        sys::mlx_optional_int {
            value: self.0.unwrap_or(0),
            has_value: self.0.is_some(),
        }
    }
}

impl Arg for Opt<f32> {
    type C = sys::mlx_optional_float;
    fn c(&self) -> Self::C {
        sys::mlx_optional_float {
            value: self.0.unwrap_or(0.0),
            has_value: self.0.is_some(),
        }
    }
}

impl Arg for Opt<DType> {
    type C = sys::mlx_optional_dtype;
    fn c(&self) -> Self::C {
        let value = self.0.unwrap_or(DType::F32).raw();
        sys::mlx_optional_dtype {
            value,
            has_value: self.0.is_some(),
        }
    }
}

/// Text for C; a NUL inside is an error, not a truncation.
pub(crate) fn cstring(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| {
        Error::new(
            ErrorKind::Invalid,
            format!("text {text:?} contains a NUL byte"),
        )
    })
}

/// Calls the mlx-c function `$name(&mut res, args…, stream)` on the current stream and wraps `res`.
///
/// `[slice]` stands for C's pointer and length; everything else is an [`Arg`]. A word before the name says what the
/// function returns: `vector` for a vector of arrays, `pair` for two arrays. `bare` before those stands for a function
/// without a stream.
macro_rules! op {
    (bare vector $name:ident($($args:tt)*)) => { op!(@munch (arrays) () $name () $($args)* ,) };
    (bare $name:ident($($args:tt)*)) => { op!(@munch (array) () $name () $($args)* ,) };
    (vector $name:ident($($args:tt)*)) => { op!(@munch (arrays) (stream) $name () $($args)* ,) };
    (pair $name:ident($($args:tt)*)) => { op!(@munch (pair) (stream) $name () $($args)* ,) };
    ($name:ident($($args:tt)*)) => { op!(@munch (array) (stream) $name () $($args)* ,) };
    (@munch $out:tt $stream:tt $name:ident ($($done:tt)*) $(,)?) => {
        op!(@call $out $stream $name $($done)*)
    };
    (@munch $out:tt $stream:tt $name:ident ($($done:tt)*) [$slice:expr], $($rest:tt)*) => {
        op!(@munch $out $stream $name ($($done)* {slice $slice}) $($rest)*)
    };
    (@munch $out:tt $stream:tt $name:ident ($($done:tt)*) $arg:expr, $($rest:tt)*) => {
        op!(@munch $out $stream $name ($($done)* {plain $arg}) $($rest)*)
    };
    (@call $out:tt $stream:tt $name:ident $({$kind:ident $arg:expr})*) => {{
        $( op!(@check $kind $arg); )*
        op!(@emit $out $stream $name [] $({$kind $arg})*)
    }};
    (@check slice $arg:expr) => {};
    (@check plain $arg:expr) => { $crate::ffi::Arg::check(&$arg)?; };
    (@emit $out:tt $stream:tt $name:ident [$($c:tt)*] {slice $arg:expr} $($rest:tt)*) => {{
        let slice = &$arg[..];
        op!(@emit $out $stream $name [$($c)* (slice.as_ptr()), (slice.len()),] $($rest)*)
    }};
    (@emit $out:tt $stream:tt $name:ident [$($c:tt)*] {plain $arg:expr} $($rest:tt)*) => {{
        let arg = &$arg;
        op!(@emit $out $stream $name [$($c)* ($crate::ffi::Arg::c(arg)),] $($rest)*)
    }};
    (@emit (pair) (stream) $name:ident [$($c:tt)*]) => {{
        let stream = $crate::stream::current()?;
        // SAFETY: as below, with two fresh handles.
        $crate::ffi::pair(|a, b| unsafe { mlx_c_sys::$name(a, b, $($c)* stream) })
    }};
    (@emit ($out:ident) (stream) $name:ident [$($c:tt)*]) => {{
        let stream = $crate::stream::current()?;
        // SAFETY: the arguments borrow live values for the length of the call, handles are
        // non-null or optional, slices come with their own length, and `res` is a fresh handle.
        $crate::ffi::$out(|res| unsafe { mlx_c_sys::$name(res, $($c)* stream) })
    }};
    (@emit ($out:ident) () $name:ident [$($c:tt)*]) => {
        // SAFETY: as above, without a stream.
        $crate::ffi::$out(|res| unsafe { mlx_c_sys::$name(res, $($c)*) })
    };
}
pub(crate) use op;

/// Runs a C call that fills two array handles.
pub(crate) fn pair(
    f: impl FnOnce(*mut sys::mlx_array, *mut sys::mlx_array) -> c_int,
) -> Result<(Array, Array)> {
    let mut second = sys::mlx_array {
        ctx: std::ptr::null_mut(),
    };
    let first = array(|first| f(first, &mut second));
    // SAFETY: mlx-c allocated the handle for this call (or left it null), and it has no other
    // owner.
    let second = unsafe { Array::from_raw(second) };
    let first = first?;
    let second = second?;
    memory::check_array(&second)?;
    Ok((first, second))
}

/// Runs a C call that fills a vector of arrays.
pub(crate) fn arrays(f: impl FnOnce(*mut sys::mlx_vector_array) -> c_int) -> Result<Vec<Array>> {
    let mut vector = vector::VectorArray::null();
    call(ErrorKind::Mlx, || f(vector.as_mut_ptr()))?;
    let arrays = vector.to_vec()?;
    arrays.iter().try_for_each(memory::check_array)?;
    Ok(arrays)
}

/// The form of an operation on the current stream.
pub(crate) fn form(op: sys::mlxrs_op) -> Result<sys::mlxrs_form> {
    let stream = stream::current()?;
    let mut found = sys::MLXRS_FORM_PLAIN;
    call(ErrorKind::Mlx, || {
        // SAFETY: a live stream, and a number to write to.
        unsafe { sys::mlxrs_fast_form(&mut found, op, stream) }
    })?;
    Ok(found)
}

/// Begins or ends a section in which this thread builds plain forms.
pub(crate) fn plainly(begin: bool) {
    // SAFETY: changes a counter of this thread.
    unsafe { sys::mlxrs_fast_use_plain_forms(begin) }
}

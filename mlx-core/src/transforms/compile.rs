//! Compilation: a function is traced once and its graph reused.
//!
//! This saves building the graph again in Rust, computes common subexpressions once, and makes one kernel of a chain of
//! elementwise operations.
//!
//! On the CPU, MLX compiles those kernels by running a C++ compiler at run time, and keeps the
//! results in a folder of predictable name under the system's folder for temporary files. Another
//! user of the machine could put a library there first. So compilation is off by default where the
//! default device is the CPU; [`set_enabled`] turns it on. A [`Compiled`] that is off runs the
//! plain function and gives the same results.
//!
//! ```
//! use mlx_core::{Array, array, compile, transforms};
//!
//! # fn main() -> mlx_core::Result<()> {
//! transforms::compile::set_enabled(true);
//! let gelu = compile(|x: &Array| x.multiply(&x.multiply(1.702)?.sigmoid()?));
//! let y = gelu(&array![1.0f32, 2.0])?;
//! assert_eq!(y.shape(), [2]);
//! # Ok(())
//! # }
//! ```

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{ErrorKind, Result};
use crate::ffi;
use crate::ffi::Arg;
use crate::ffi::closure::Closure;
use crate::ffi::vector::VectorArray;
use crate::stream::{self, Device, DeviceKind};

/// A function that is compiled.
type Function = dyn Fn(&[Array]) -> Result<Vec<Array>>;

const BY_DEVICE: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

static ENABLED: AtomicU8 = AtomicU8::new(BY_DEVICE);

/// Turns compilation on or off for this process. On the CPU see the [module](self)'s warning.
#[doc(alias = "enable_compile")]
#[doc(alias = "disable_compile")]
pub fn set_enabled(enabled: bool) {
    ENABLED.store(if enabled { ON } else { OFF }, Ordering::Relaxed);
}

/// Whether calls of [`Compiled`] compile: the last value of [`set_enabled`], or whether the default device is a GPU.
///
/// # Errors
/// MLX cannot report its default device.
pub fn is_enabled() -> Result<bool> {
    match ENABLED.load(Ordering::Relaxed) {
        ON => Ok(true),
        OFF => Ok(false),
        _ => Ok(Device::default_device()?.kind == DeviceKind::Gpu),
    }
}

/// A function whose graph is traced once for each combination of input shapes and dtypes (and of
/// stream), then reused.
///
/// - **Captured arrays become constants**, held until the `Compiled` is dropped. Evaluate them
///   first: an unevaluated one is computed anew at every call. State that changes (a cache, an
///   offset, a random key) must be an argument and an output.
/// - The function cannot read values: it sees placeholders.
/// - **Shapeless** reuses one graph for all shapes with the same pattern: the same sizes are 1, and
///   the same sizes are equal. That is right for elementwise functions only.
///   Operations that cannot follow a new shape are an error, but shapes that the *function* worked
///   out (`x.reshape(&[x.dim(0)?, …])`) stay those of the first call, silently.
///   For each new shape the function builds its own graph once, so that its errors are found: the
///   kernels would read past an array that does not fit.
///   With inputs without elements the plain function runs, unless it refuses them.
/// - Under `vjp`, `jvp`, `value_and_grad` and `vmap` the plain function is differentiated.
pub struct Compiled {
    function: Rc<Function>,
    shapeless: bool,
    programs: RefCell<Vec<Rc<Program>>>,
}

impl Compiled {
    /// Wraps `f`. Nothing is traced before the first call.
    pub fn new<F>(f: F, shapeless: bool) -> Self
    where
        F: Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    {
        Self {
            function: Rc::new(f),
            shapeless,
            programs: RefCell::new(Vec::new()),
        }
    }

    /// Calls the function with `inputs`.
    ///
    /// # Errors
    /// The function fails, evaluates or reads an array; or, shapeless, an operation cannot follow a
    /// new shape. The next call traces again.
    pub fn call(&self, inputs: &[Array]) -> Result<Vec<Array>> {
        if !is_enabled()? {
            return (self.function)(inputs);
        }
        // A graph for all shapes may have fused kernels, which take an axis of size 0 for one of
        // size 1. The function itself refuses some arrays without elements for which the graph has
        // a result.
        let is_empty = inputs.iter().any(|input| input.size() == 0);
        if self.shapeless && is_empty {
            match (self.function)(inputs) {
                Err(error) if error.kind() == ErrorKind::Mlx => {}
                result => return result,
            }
        }
        let program = self.program(inputs, is_empty)?;
        if self.shapeless && !is_empty {
            program.check_shapes(inputs)?;
        }
        let result = program.closure.call(inputs);
        if result.is_err() {
            // MLX stores a trace before it runs it, so a trace that failed half-way would be used as a complete one.
            let mut programs = self.programs.borrow_mut();
            programs.retain(|other| !Rc::ptr_eq(other, &program));
        }
        result
    }

    /// The program for these inputs. Any that was traced on the stream serves inputs without elements.
    fn program(&self, inputs: &[Array], is_empty: bool) -> Result<Rc<Program>> {
        let stream = current_stream()?;
        let pattern = match self.shapeless {
            true => pattern_of(inputs),
            false => Vec::new(),
        };
        let fits = |program: &&Rc<Program>| {
            program.stream == stream && (is_empty || program.pattern == pattern)
        };
        if let Some(program) = self.programs.borrow().iter().find(fits) {
            return Ok(program.clone());
        }
        let program = Program::new(self.function.clone(), self.shapeless, stream, pattern)?;
        let program = Rc::new(program);
        self.programs.borrow_mut().push(program.clone());
        Ok(program)
    }
}

/// Which sizes of the inputs are 1 (0 here), and which are equal (to the n-th distinct size, here n
/// from 1 on). MLX uses nothing else of the sizes when it traces a function whose operations have
/// only these sizes.
fn pattern_of(inputs: &[Array]) -> Vec<usize> {
    let mut sizes: Vec<i32> = Vec::new();
    let mut pattern = Vec::new();
    for input in inputs {
        pattern.push(usize::MAX);
        for &size in input.shape() {
            let known = sizes.iter().position(|&known| known == size);
            pattern.push(match (size, known) {
                (1, _) => 0,
                (_, Some(at)) => at + 1,
                (_, None) => {
                    sizes.push(size);
                    sizes.len()
                }
            });
        }
    }
    pattern
}

/// The index of the current stream.
fn current_stream() -> Result<i32> {
    let stream = stream::current()?;
    let mut index = 0;
    // SAFETY: the current stream is live; the out-parameter is a local variable.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlxrs_stream_index(&mut index, stream)
    })?;
    Ok(index)
}

/// A compiled function in MLX's cache, under a number that this crate gives.
///
/// MLX itself stores functions under their address, which a later function may get: the cache would then return the old
/// graph. The numbers of this crate are never used twice.
struct Program {
    id: usize,
    // A graph runs on the stream on which it was traced.
    stream: i32,
    pattern: Vec<usize>,
    function: Rc<Function>,
    // Shapes, one after the other, for which the function builds a graph. The trace adds the first.
    shapes: RefCell<HashSet<Vec<i32>>>,
    closure: Closure,
    cache: sys::mlx_compile_cache,
}

impl Program {
    fn new(
        function: Rc<Function>,
        shapeless: bool,
        stream: i32,
        pattern: Vec<usize>,
    ) -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(1);

        let traced = function.clone();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let plain = Closure::keep(move |inputs| {
            let outputs = traced(inputs)?;
            if !shapeless {
                return Ok(outputs);
            }
            let outputs = VectorArray::new(&outputs)?;
            // SAFETY: a live vector and a fresh out-handle.
            ffi::arrays(|res| unsafe { sys::mlxrs_for_all_shapes(res, outputs.c()) })
        })?;
        let closure = Closure::make(|res| {
            // SAFETY: a live closure, no constants, a fresh out-handle.
            unsafe { sys::mlx_detail_compile(res, plain.raw(), id, shapeless, std::ptr::null(), 0) }
        })?;
        let mut cache = sys::mlx_compile_cache {
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: a fresh out-handle. The cache is the one of this thread, where we stay.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_detail_compile_cache(&mut cache)
        })?;
        Ok(Self {
            id,
            stream,
            pattern,
            function,
            shapes: RefCell::default(),
            closure,
            cache,
        })
    }

    /// Fails if the function does for inputs of these shapes.
    fn check_shapes(&self, inputs: &[Array]) -> Result<()> {
        const MOST: usize = 4096;

        let shapes: Vec<i32> = inputs.iter().flat_map(Array::shape).copied().collect();
        let (is_traced, is_known) = {
            let known = self.shapes.borrow();
            (!known.is_empty(), known.contains(&shapes))
        };
        if is_known {
            return Ok(());
        }
        if is_traced {
            (self.function)(inputs)?;
        }
        let mut known = self.shapes.borrow_mut();
        if known.len() == MOST {
            known.clear();
        }
        known.insert(shapes);
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: a live handle to (a weak reference to) the cache, freed once. A failure only leaves an entry in the
        // cache that is never used again.
        unsafe {
            sys::mlx_detail_compile_erase(self.cache, self.id);
            sys::mlx_compile_cache_free(self.cache);
        }
    }
}

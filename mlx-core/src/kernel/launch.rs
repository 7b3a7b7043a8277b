//! Launching Metal and CUDA kernels.

use std::ffi::CString;

use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;
use crate::memory;

/// A value that a kernel's source sees as a compile-time constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateArg {
    /// An integer constant.
    Int(i32),
    /// A boolean constant.
    Bool(bool),
    /// A type.
    DType(DType),
}

/// One launch of a kernel.
///
/// ```
/// use mlx_core::{DType, kernel::{LaunchConfig, TemplateArg}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let launch = LaunchConfig {
///     grid: [1024, 1, 1],
///     thread_group: [256, 1, 1],
///     outputs: vec![(vec![1024], DType::F32)],
///     template: vec![("T".to_owned(), TemplateArg::DType(DType::F32))],
///     init_value: None,
/// };
/// assert_eq!(launch.grid[0] / launch.thread_group[0], 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct LaunchConfig {
    /// Threads in all, along x, y, z.
    pub grid: [i32; 3],
    /// Threads of one group (Metal) or block (CUDA), along x, y, z.
    pub thread_group: [i32; 3],
    /// Shape and dtype of each output, in the order of the kernel's output names.
    pub outputs: Vec<(Vec<i32>, DType)>,
    /// Named constants.
    pub template: Vec<(String, TemplateArg)>,
    /// The value of all elements of the outputs before the kernel runs; undefined if `None`.
    pub init_value: Option<f32>,
}

impl LaunchConfig {
    /// Checks what the back ends do not check.
    pub(super) fn check(&self, kernel: &str, outputs: usize) -> Result<Vec<CString>> {
        let wrong =
            |what: String| Error::new(ErrorKind::Invalid, format!("kernel {kernel}: {what}"));
        for (name, sizes) in [("grid", self.grid), ("thread group", self.thread_group)] {
            if sizes.iter().any(|&size| size < 1) {
                return Err(wrong(format!(
                    "{name} sizes must be at least 1, given {sizes:?}"
                )));
            }
        }
        if self.outputs.len() != outputs {
            let given = self.outputs.len();
            return Err(wrong(format!(
                "it has {outputs} outputs, given shapes for {given}"
            )));
        }
        for (shape, dtype) in &self.outputs {
            memory::check_shape(shape, *dtype)
                .map_err(|error| error.context(format!("kernel {kernel}")))?;
        }
        self.template
            .iter()
            .map(|(name, _)| ffi::cstring(name))
            .collect()
    }
}

/// The functions of one back end: mlx-c has the same functions for both under two names.
macro_rules! source_kernel {
    (
        $(#[$doc:meta])*
        $name:ident, $backend:literal, $available:ident, $last:ident: $last_ty:ty,
        $raw:ident, $new:ident, $free:ident, $apply:ident,
        $config:ident, $config_new:ident, $config_free:ident, $add_output:ident, $grid:ident,
        $group:ident, $init:ident, $add_dtype:ident, $add_int:ident, $add_bool:ident
    ) => {
        $(#[$doc])*
        pub struct $name {
            raw: sys::$raw,
            name: String,
            inputs: usize,
            outputs: usize,
        }

        impl $name {
            fn build(
                name: &str,
                inputs: &[&str],
                outputs: &[&str],
                source: &str,
                header: &str,
                dense: bool,
                $last: $last_ty,
            ) -> Result<Self> {
                let mut available = false;
                // SAFETY: the out-parameter is a local variable.
                ffi::call(ErrorKind::Mlx, || unsafe { sys::$available(&mut available) })?;
                if !available {
                    let message = format!(
                        "kernel {name} needs the {} back end, which this build or machine does not have",
                        $backend
                    );
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                let (text, source, header) =
                    (ffi::cstring(name)?, ffi::cstring(source)?, ffi::cstring(header)?);
                let (input_names, output_names) =
                    (ffi::vector::Strings::new(inputs)?, ffi::vector::Strings::new(outputs)?);
                // SAFETY: live C strings and vectors, which MLX copies.
                let raw = unsafe {
                    sys::$new(
                        text.as_ptr(),
                        input_names.raw(),
                        output_names.raw(),
                        source.as_ptr(),
                        header.as_ptr(),
                        dense,
                        $last,
                    )
                };
                if raw.ctx.is_null() {
                    return Err(ffi::take_error(ErrorKind::Mlx));
                }
                Ok(Self { raw, name: name.to_owned(), inputs: inputs.len(), outputs: outputs.len() })
            }

            /// The outputs for `inputs`, to be computed when they are evaluated.
            ///
            /// # Errors
            /// The numbers of inputs, outputs or threads do not fit. Errors in the source come when
            /// the outputs are evaluated.
            pub fn apply(&self, inputs: &[&Array], launch: &LaunchConfig) -> Result<Vec<Array>> {
                if inputs.len() != self.inputs {
                    let (name, expected, given) = (&self.name, self.inputs, inputs.len());
                    let message = format!("kernel {name} has {expected} inputs, given {given}");
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                let names = launch.check(&self.name, self.outputs)?;
                let config = Config::new(launch, &names)?;
                let inputs = VectorArray::new(inputs.iter().copied())?;
                let stream = stream::current()?;
                ffi::arrays(|res| {
                    // SAFETY: live handles, a fresh out-handle.
                    unsafe { sys::$apply(res, self.raw, inputs.c(), config.0, stream) }
                })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: owned and non-null, freed once.
                unsafe { sys::$free(self.raw) };
            }
        }

        struct Config(sys::$config);

        impl Config {
            fn new(launch: &LaunchConfig, names: &[CString]) -> Result<Self> {
                // SAFETY: takes nothing; a fresh handle comes back.
                let config = Self(unsafe { sys::$config_new() });
                if config.0.ctx.is_null() {
                    return Err(ffi::take_error(ErrorKind::Mlx));
                }
                let call = |status: &dyn Fn() -> i32| ffi::call(ErrorKind::Mlx, status);
                let ([x, y, z], [i, j, k]) = (launch.grid, launch.thread_group);
                // SAFETY: here and below: a live config, plain values, slices with their lengths,
                // live C strings that MLX copies.
                call(&|| unsafe { sys::$grid(config.0, x, y, z) })?;
                // SAFETY: see above.
                call(&|| unsafe { sys::$group(config.0, i, j, k) })?;
                for (shape, dtype) in &launch.outputs {
                    // SAFETY: see above.
                    call(&|| unsafe {
                        sys::$add_output(config.0, shape.as_ptr(), shape.len(), dtype.raw())
                    })?;
                }
                if let Some(value) = launch.init_value {
                    // SAFETY: see above.
                    call(&|| unsafe { sys::$init(config.0, value) })?;
                }
                for (name, (_, arg)) in names.iter().zip(&launch.template) {
                    // SAFETY: see above.
                    call(&|| unsafe {
                        match *arg {
                            TemplateArg::Int(value) => sys::$add_int(config.0, name.as_ptr(), value),
                            TemplateArg::Bool(value) => sys::$add_bool(config.0, name.as_ptr(), value),
                            TemplateArg::DType(dtype) => {
                                sys::$add_dtype(config.0, name.as_ptr(), dtype.raw())
                            }
                        }
                    })?;
                }
                Ok(config)
            }
        }

        impl Drop for Config {
            fn drop(&mut self) {
                if !self.0.ctx.is_null() {
                    // SAFETY: owned, non-null, freed once.
                    unsafe { sys::$config_free(self.0) };
                }
            }
        }
    };
}
pub(super) use source_kernel;

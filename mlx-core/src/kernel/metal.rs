//! Kernels in Metal Shading Language.

use std::ffi::CString;

use mlx_c_sys as sys;

use super::launch::{LaunchConfig, TemplateArg, source_kernel};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::vector::VectorArray;
use crate::ffi::{self, Arg};
use crate::stream;

source_kernel! {
    #[doc(alias = "metal_kernel")]
    /// A kernel in Metal Shading Language, given as the body of its function.
    ///
    /// The body sees its inputs and outputs as pointers under their names; the shape, strides and
    /// number of dimensions of input `x` as `x_shape`, `x_strides`, `x_ndim` where it names them;
    /// and the attributes of Metal (`thread_position_in_grid` …) where it names those.
    MetalKernel, "Metal", mlx_metal_is_available, atomic_outputs: bool,
    mlx_fast_metal_kernel, mlx_fast_metal_kernel_new, mlx_fast_metal_kernel_free, mlx_fast_metal_kernel_apply,
    mlx_fast_metal_kernel_config, mlx_fast_metal_kernel_config_new, mlx_fast_metal_kernel_config_free,
    mlx_fast_metal_kernel_config_add_output_arg, mlx_fast_metal_kernel_config_set_grid,
    mlx_fast_metal_kernel_config_set_thread_group, mlx_fast_metal_kernel_config_set_init_value,
    mlx_fast_metal_kernel_config_add_template_arg_dtype, mlx_fast_metal_kernel_config_add_template_arg_int,
    mlx_fast_metal_kernel_config_add_template_arg_bool
}

impl MetalKernel {
    /// A kernel from the body of its function. `header` (includes, helper functions) stands before
    /// it. Inputs are made dense first. Give every kernel a name of its own.
    ///
    /// ```
    /// use mlx_core::{DType, Device, ErrorKind, kernel::{LaunchConfig, MetalKernel}, ones};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let source = "uint i = thread_position_in_grid.x; y[i] = metal::exp(x[i]);";
    /// let kernel = match MetalKernel::new("my_exp", &["x"], &["y"], source, "") {
    ///     Ok(kernel) => kernel,
    ///     Err(error) => {
    ///         assert_eq!(error.kind(), ErrorKind::Unsupported); // no Metal here
    ///         return Ok(());
    ///     }
    /// };
    /// let launch = LaunchConfig {
    ///     grid: [4, 1, 1],
    ///     thread_group: [4, 1, 1],
    ///     outputs: vec![(vec![4], DType::F32)],
    ///     template: vec![],
    ///     init_value: None,
    /// };
    /// let y = kernel.apply(&[&ones(&[4], DType::F32)?], &launch)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) without the Metal back end; a NUL byte in a text.
    pub fn new(
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        source: &str,
        header: &str,
    ) -> Result<Self> {
        Self::build(name, inputs, outputs, source, header, true, false)
    }

    /// As [`new`](Self::new), with outputs that are `device atomic<T>*`.
    ///
    /// # Errors
    /// The same as those of [`new`](Self::new).
    pub fn with_atomic_outputs(
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        source: &str,
        header: &str,
    ) -> Result<Self> {
        Self::build(name, inputs, outputs, source, header, true, true)
    }
}

/// Begins to record the work of the GPU into a file that Xcode reads; [`stop_capture`] ends it. The name of the file ends with
/// `.gputrace`, no such file may exist, and the variable `MTL_CAPTURE_ENABLED` of the environment must be 1.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) without the Metal back end; a NUL byte in the path; Metal cannot record there.
pub fn start_capture(path: impl AsRef<std::path::Path>) -> Result<()> {
    require_metal("start_capture")?;
    let path = ffi::cstring(&path.as_ref().to_string_lossy())?;
    // SAFETY: a live C string.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlx_metal_start_capture(path.as_ptr())
    })
}

/// Ends what [`start_capture`] began.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) without the Metal back end.
pub fn stop_capture() -> Result<()> {
    require_metal("stop_capture")?;
    // SAFETY: takes nothing.
    ffi::call(ErrorKind::Mlx, || unsafe { sys::mlx_metal_stop_capture() })
}

fn require_metal(what: &str) -> Result<()> {
    let mut available = false;
    // SAFETY: the out-parameter is a local variable.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlx_metal_is_available(&mut available)
    })?;
    if available {
        return Ok(());
    }
    let message =
        format!("{what} needs the Metal back end, which this build or machine does not have");
    Err(Error::new(ErrorKind::Unsupported, message))
}

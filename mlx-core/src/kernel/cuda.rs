//! Kernels in CUDA C++.

use std::ffi::CString;

use mlx_c_sys as sys;

use super::launch::{LaunchConfig, TemplateArg, source_kernel};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::vector::VectorArray;
use crate::ffi::{self, Arg};
use crate::stream;

source_kernel! {
    #[doc(alias = "cuda_kernel")]
    /// A kernel in CUDA C++, given as the body of its function; compiled by NVRTC at its first use.
    ///
    /// The body sees its inputs (`const T*`) and outputs (`T*`) under their names, and the shape,
    /// strides and number of dimensions of input `x` as `x_shape`, `x_strides`, `x_ndim` where it
    /// names them.
    CudaKernel, "CUDA", mlx_cuda_is_available, shared_memory: i32,
    mlx_fast_cuda_kernel, mlx_fast_cuda_kernel_new, mlx_fast_cuda_kernel_free, mlx_fast_cuda_kernel_apply,
    mlx_fast_cuda_kernel_config, mlx_fast_cuda_kernel_config_new, mlx_fast_cuda_kernel_config_free,
    mlx_fast_cuda_kernel_config_add_output_arg, mlx_fast_cuda_kernel_config_set_grid,
    mlx_fast_cuda_kernel_config_set_thread_group, mlx_fast_cuda_kernel_config_set_init_value,
    mlx_fast_cuda_kernel_config_add_template_arg_dtype, mlx_fast_cuda_kernel_config_add_template_arg_int,
    mlx_fast_cuda_kernel_config_add_template_arg_bool
}

impl CudaKernel {
    /// A kernel from the body of its function. `header` (includes, device functions) stands before
    /// it; `shared_memory` is the dynamic shared memory of a block, in bytes. Inputs are made dense
    /// first. Give every kernel a name of its own.
    ///
    /// ```
    /// use mlx_core::{DType, ErrorKind, kernel::{CudaKernel, LaunchConfig}, ones};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let source = "int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = expf(x[i]);";
    /// let kernel = match CudaKernel::new("my_exp", &["x"], &["y"], source, "", 0) {
    ///     Ok(kernel) => kernel,
    ///     Err(error) => {
    ///         assert_eq!(error.kind(), ErrorKind::Unsupported); // no CUDA here
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
    /// [`Unsupported`](ErrorKind::Unsupported) without the CUDA back end; a NUL byte in a text;
    /// negative `shared_memory`.
    pub fn new(
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        source: &str,
        header: &str,
        shared_memory: i32,
    ) -> Result<Self> {
        if shared_memory < 0 {
            let message = format!("kernel {name}: shared memory of {shared_memory} bytes");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Self::build(name, inputs, outputs, source, header, true, shared_memory)
    }
}

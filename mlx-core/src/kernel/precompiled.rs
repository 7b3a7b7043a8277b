//! CUDA kernels that are compiled already.

use mlx_c_sys as sys;

use super::launch::LaunchConfig;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::vector::VectorArray;
use crate::ffi::{self, Arg};
use crate::{poison, stream};

/// A number that a compiled kernel gets by value, behind its arrays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarArg {
    /// A C++ `bool`.
    Bool(bool),
    /// A C++ `int`.
    Int(i32),
    /// A C++ `float`.
    Float(f32),
}

/// Runs a CUDA kernel that is compiled already: `binary` is a cubin or PTX text for the GPU of the machine, in which `name`
/// is the name of the kernel as the compiler writes it (declare it `extern "C"`).
///
/// The arguments of the kernel are pointers to `inputs`, which are made dense first, pointers to the outputs of `launch`, and
/// `scalars`. `shared_memory` is the dynamic shared memory of a block, in bytes. The kernel runs when its outputs are
/// evaluated; it is not checked that it fits its arguments.
///
/// ```
/// use mlx_core::kernel::{LaunchConfig, ScalarArg, precompiled_cuda_kernel};
/// use mlx_core::{DType, ErrorKind, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// // extern "C" __global__ void scale(const float* x, float* y, float by) { y[threadIdx.x] = by * x[threadIdx.x]; }
/// let ptx = b"the text that `nvcc --ptx` writes";
/// let launch = LaunchConfig {
///     grid: [4, 1, 1],
///     thread_group: [4, 1, 1],
///     outputs: vec![(vec![4], DType::F32)],
///     ..LaunchConfig::default()
/// };
/// let x = ones([4], DType::F32)?;
/// match precompiled_cuda_kernel("scale", ptx, &[&x], &launch, &[ScalarArg::Float(2.0)], 0) {
///     Ok(outputs) => assert_eq!(outputs[0].shape(), [4]), // `outputs[0].eval()` runs the kernel
///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported), // no CUDA here
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) without the CUDA back end or on a stream of the CPU. A size of `launch` that is
/// not positive, no outputs, constants in `launch.template`, negative `shared_memory`, an empty `binary`, a NUL byte in
/// `name`. Errors in the binary come when the outputs are evaluated.
pub fn precompiled_cuda_kernel(
    name: &str,
    binary: &[u8],
    inputs: &[&Array],
    launch: &LaunchConfig,
    scalars: &[ScalarArg],
    shared_memory: i32,
) -> Result<Vec<Array>> {
    let mut available = false;
    // SAFETY: the out-parameter is a local variable.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlx_cuda_is_available(&mut available)
    })?;
    if !available {
        let message = format!(
            "kernel {name} needs the CUDA back end, which this build or machine does not have"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if !stream::is_on_gpu()? {
        let message =
            format!("kernel {name} needs a stream of the GPU, the current one is the CPU's");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    check(name, binary, launch, shared_memory)?;
    for input in inputs {
        poison::check(input)?;
    }
    let name = ffi::cstring(name)?;
    let scalars: Vec<sys::mlxrs_scalar> = scalars.iter().map(ScalarArg::raw).collect();
    let kernel = sys::mlxrs_precompiled {
        name: name.as_ptr(),
        binary: binary.as_ptr().cast(),
        binary_size: binary.len(),
        scalars: scalars.as_ptr(),
        nscalars: scalars.len(),
        grid: launch.grid,
        thread_group: launch.thread_group,
        shared_memory,
        init_value: launch
            .init_value
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref),
    };
    let inputs = VectorArray::new(inputs.iter().copied())?;
    let (shapes, ndims, dtypes) = outputs(launch);
    let stream = stream::current()?;
    ffi::arrays(|res| {
        // SAFETY: the description and the slices that it points to live for the call, which copies them; one shape, length
        // and dtype for each output; a fresh out-handle.
        unsafe {
            sys::mlxrs_precompiled_cuda_kernel(
                res,
                &kernel,
                inputs.c(),
                shapes.as_ptr(),
                ndims.as_ptr(),
                dtypes.as_ptr(),
                dtypes.len(),
                stream,
            )
        }
    })
}

/// The outputs of a launch, as C takes them.
fn outputs(launch: &LaunchConfig) -> (Vec<*const i32>, Vec<usize>, Vec<sys::mlx_dtype>) {
    let of = |(shape, dtype): &(Vec<i32>, DType)| (shape.as_ptr(), (shape.len(), dtype.raw()));
    let (shapes, rest): (_, Vec<_>) = launch.outputs.iter().map(of).unzip();
    let (ndims, dtypes) = rest.into_iter().unzip();
    (shapes, ndims, dtypes)
}

/// Checks what MLX does not check.
fn check(name: &str, binary: &[u8], launch: &LaunchConfig, shared_memory: i32) -> Result<()> {
    launch.check(name, launch.outputs.len())?;
    let what = if launch.outputs.is_empty() {
        "it needs at least one output".to_owned()
    } else if !launch.template.is_empty() {
        "a compiled kernel takes no template arguments: give them as scalars".to_owned()
    } else if shared_memory < 0 {
        format!("shared memory of {shared_memory} bytes")
    } else if binary.is_empty() {
        "its binary is empty".to_owned()
    } else {
        return Ok(());
    };
    let message = format!("kernel {name}: {what}");
    Err(Error::new(ErrorKind::Invalid, message))
}

impl ScalarArg {
    fn raw(&self) -> sys::mlxrs_scalar {
        let (kind, integer, real) = match *self {
            Self::Bool(value) => (sys::MLXRS_SCALAR_BOOL, i32::from(value), 0.0),
            Self::Int(value) => (sys::MLXRS_SCALAR_INT, value, 0.0),
            Self::Float(value) => (sys::MLXRS_SCALAR_FLOAT, 0, value),
        };
        sys::mlxrs_scalar {
            kind,
            integer,
            real,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mlx_does_not_check_is_refused() {
        let good = LaunchConfig {
            grid: [4, 1, 1],
            thread_group: [4, 1, 1],
            outputs: vec![(vec![4], DType::F32)],
            ..LaunchConfig::default()
        };
        assert!(check("k", b"ptx", &good, 0).is_ok());
        let message = |binary: &[u8], launch: &LaunchConfig, shared| {
            check("k", binary, launch, shared).unwrap_err().to_string()
        };
        assert_eq!(message(b"", &good, 0), "kernel k: its binary is empty");
        assert_eq!(
            message(b"ptx", &good, -1),
            "kernel k: shared memory of -1 bytes"
        );
        let mut launch = good.clone();
        launch.outputs.clear();
        assert!(message(b"ptx", &launch, 0).contains("at least one output"));
        launch = good.clone();
        launch.grid = [0, 1, 1];
        assert!(message(b"ptx", &launch, 0).contains("grid sizes"));
        launch = good;
        launch
            .template
            .push(("N".into(), super::super::TemplateArg::Int(1)));
        assert!(message(b"ptx", &launch, 0).contains("template"));
    }
}

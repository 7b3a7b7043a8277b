//! Kernels in source text: they compute where their back end exists, and are refused by name elsewhere.

use mlx_core::kernel::{CudaKernel, LaunchConfig, MetalKernel, ScalarArg, precompiled_cuda_kernel};
use mlx_core::{Array, DType, ErrorKind, Result};

/// `extern "C" __global__ void twice(const float* x, float* y, float by) { y[threadIdx.x] = by * x[threadIdx.x]; }`
const TWICE_PTX: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .entry twice(.param .u64 x, .param .u64 y, .param .f32 by)
{
    .reg .f32 %f<4>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [by];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd5, %r1, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.f32 %f2, [%rd6];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd7], %f3;
    ret;
}
";

#[test]
fn gpu_kernels_are_refused_by_name_without_their_back_end() -> Result<()> {
    let launch = LaunchConfig {
        grid: [4, 1, 1],
        thread_group: [4, 1, 1],
        outputs: vec![(vec![4], DType::F32)],
        ..LaunchConfig::default()
    };
    let x = Array::from_slice(&[0.0f32, 1.0, 2.0, 3.0], &[4])?;
    let metal = "uint i = thread_position_in_grid.x; y[i] = 2 * x[i];";
    let cuda = "int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = 2 * x[i];";
    let (scalars, ptx) = ([ScalarArg::Float(2.0)], TWICE_PTX.as_bytes());
    let results = [
        (
            "Metal",
            MetalKernel::new("twice", &["x"], &["y"], metal, "")
                .and_then(|k| k.apply(&[&x], &launch)),
        ),
        (
            "CUDA",
            CudaKernel::new("twice", &["x"], &["y"], cuda, "", 0)
                .and_then(|k| k.apply(&[&x], &launch)),
        ),
        (
            "CUDA",
            precompiled_cuda_kernel("twice", ptx, &[&x], &launch, &scalars, 0),
        ),
    ];
    for (backend, result) in results {
        match result {
            // A build with the back end must compute.
            Ok(outputs) => assert_eq!(outputs[0].to_vec::<f32>()?, [0.0, 2.0, 4.0, 6.0]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(
                    error
                        .to_string()
                        .contains(&format!("kernel twice needs the {backend} back end"))
                );
            }
        }
    }
    Ok(())
}

#[test]
fn captures_need_metal() {
    use mlx_core::kernel::{start_capture, stop_capture};
    if cfg!(target_os = "macos") {
        return;
    }
    for (name, result) in [
        ("start_capture", start_capture("work.gputrace")),
        ("stop_capture", stop_capture()),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().starts_with(name), "{error}");
    }
    assert!(!std::path::Path::new("work.gputrace").exists());
}

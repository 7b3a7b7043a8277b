//! Kernels in source text: they compute where their back end exists, and are refused by name elsewhere.

use mlx_core::kernel::{CudaKernel, LaunchConfig, MetalKernel};
use mlx_core::{Array, DType, ErrorKind, Result};

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

//! The products that a gate joins are never in memory as a whole. The test is alone in its process, whose memory it
//! counts.

#![cfg(not(target_os = "macos"))]

use mlx_core::fast::{self, Gate, Matrix};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Result, eval, memory};

#[test]
fn gated_products_are_not_in_memory() -> Result<()> {
    if std::env::var("MLX_CPU_KERNELS").as_deref() == Ok("off") {
        return Ok(());
    }
    let normal = |seed, shape: &[i32]| -> Result<Array> {
        let values = random::normal(&Key::new(seed)?, shape, DType::F32)?;
        let values = values.astype(DType::BF16)?;
        eval([&values])?;
        Ok(values)
    };
    let (x, a, b) = (
        normal(1, &[2048, 64])?,
        normal(2, &[4096, 64])?,
        normal(3, &[4096, 64])?,
    );
    let y = fast::gated_linear(Gate::Silu, &x, &Matrix::Dense(&a), &Matrix::Dense(&b))?;
    memory::reset_peak()?;
    let before = memory::active()?;
    eval([&y])?;
    let (more, bytes) = (memory::peak()? - before, 2 * 2048 * 4096);
    assert!(
        (bytes..bytes + bytes / 2).contains(&more),
        "{more} bytes for {bytes}"
    );
    Ok(())
}

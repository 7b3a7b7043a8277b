//! Calls as somebody writes them who knows Python's MLX, NumPy or candle and has not read the documentation.

use mlx_core::DType::F32;
use mlx_core::{Array, Result};

#[test]
fn shapes() -> Result<()> {
    let a = Array::from_slice(&[0.5f32; 24], (2, 3, 4))?;
    assert_eq!(a.reshape((6, 4))?.shape(), [6, 4]);
    assert_eq!(a.transpose(&[2, 0, 1])?.shape(), [4, 2, 3]);
    let m = Array::from_slice(&[0.5f32; 6], &[2, 3])?;
    assert_eq!(m.t()?.shape(), [3, 2]);
    assert_eq!(mlx_core::zeros(&[2, 3], F32)?.shape(), [2, 3]);
    Ok(())
}

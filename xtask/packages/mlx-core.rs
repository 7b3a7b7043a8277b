//! A program on `mlx-core` alone.

use mlx_core::{Array, Result};

fn main() -> Result<()> {
    let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    println!("{:?}", x.matmul(&x)?.to_vec::<f32>()?);
    Ok(())
}

//! Calls as somebody writes them who knows Python's MLX, NumPy or candle and has not read the documentation.

use mlx_core::DType::{F32, I32};
use mlx_core::{Array, Result, arange, eval};

#[test]
fn operators() -> Result<()> {
    let a = Array::from_slice(&[0.5f32, 1.5, 2.5, 3.5], (2, 2))?;
    let read = |array: Result<Array>| -> Result<Vec<f32>> { array?.to_vec::<f32>() };
    assert_eq!(read(&a + 1.0)?, [1.5, 2.5, 3.5, 4.5]);
    assert_eq!(read(&a - &a)?, [0.0; 4]);
    assert_eq!(read(2.0 * &a)?, [1.0, 3.0, 5.0, 7.0]);
    assert_eq!(read(1.0 - &a)?, [0.5, -0.5, -1.5, -2.5]);
    assert_eq!(read(-&a)?, [-0.5, -1.5, -2.5, -3.5]);
    assert_eq!(read(a.powf(2.0))?, [0.25, 2.25, 6.25, 12.25]);
    let v = Array::from(vec![1.0f32, -2.0]);
    let mask = v.gt(0.0)?;
    assert_eq!(v.eq(&v)?.to_vec::<bool>()?, [true, true]);
    assert_eq!(mask.to_vec::<bool>()?, [true, false]);
    assert!(mask.any(.., false)?.item::<bool>()?);
    Ok(())
}

#[test]
fn indices() -> Result<()> {
    let a = arange(0, 24, 1, I32)?.reshape((2, 3, 4))?;
    assert_eq!(a.i(0)?.shape(), [3, 4]);
    assert_eq!(a.i((0, 1..3))?.shape(), [2, 4]);
    assert_eq!(a.i((.., .., -1))?.to_vec::<i32>()?, [3, 7, 11, 15, 19, 23]);
    let v = Array::from(vec![10, 20, 30]);
    let n = Array::from(vec![2, 0]);
    assert_eq!(v.i(&n)?.to_vec::<i32>()?, [30, 10]);
    let mask = v.gt(15)?;
    assert_eq!(v.masked_select(&mask)?.to_vec::<i32>()?, [20, 30]);
    Ok(())
}

#[test]
fn making_and_reading() -> Result<()> {
    let v = Array::from(vec![1.0f32]);
    assert_eq!(v.shape(), [1]);
    let a = Array::zeros(&[2, 3], F32)?;
    assert_eq!(a.shape(), [2, 3]);
    assert_eq!(arange(0, 10, 1, I32)?.shape(), [10]);
    assert_eq!(a.zeros_like()?.shape(), [2, 3]);
    eval(&[&a, &v])?;
    a.eval()?;
    Ok(())
}

#[test]
fn shapes() -> Result<()> {
    let a = Array::from_slice(&[0.5f32; 24], (2, 3, 4))?;
    assert_eq!(a.reshape((6, 4))?.shape(), [6, 4]);
    assert_eq!(a.transpose(&[2, 0, 1])?.shape(), [4, 2, 3]);
    let m = Array::from_slice(&[0.5f32; 6], &[2, 3])?;
    assert_eq!(m.t()?.shape(), [3, 2]);
    Ok(())
}

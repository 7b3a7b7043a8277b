//! Calls that somebody who knows MLX's Python, NumPy or candle writes before reading the documentation, word for word:
//! those of defaults, draws and transforms.

use mlx_core::DType::{F32, I32};
use mlx_core::random::{self, Key};
use mlx_core::{
    Array, Result, compile, concatenate, conv2d, fast, fft, grad, linalg, quantize, value_and_grad,
    vmap, where_,
};

fn matrix() -> Result<Array> {
    Array::arange(0, 24, 1, F32)?.reshape((4, 6))
}

fn vector() -> Result<Array> {
    Array::from_slice(&[1.0f32, -2.0, 4.0], 3)
}

fn floats(array: &Array) -> Vec<f32> {
    array.to_vec().unwrap()
}

#[test]
fn arguments_with_a_default_are_left_out() -> Result<()> {
    let (a, v) = (matrix()?, vector()?);
    let m = a.clone();
    let mask = v.gt(0.0)?;
    assert_eq!(a.sum_all()?.item::<f32>()?, 276.0);
    assert_eq!(floats(&a.sum(1, false)?), [15.0, 51.0, 87.0, 123.0]);
    assert!(mask.any(.., false)?.item::<bool>()?);
    assert_eq!(floats(&a.softmax(-1)?.sum(-1, false)?), [1.0; 4]);
    assert_eq!(floats(&v.cumsum(0)?), [1.0, -1.0, 3.0]);
    assert_eq!(floats(&where_(&mask, &v, 0.0)?), [1.0, 0.0, 4.0]);
    assert_eq!(linalg::norm(&v)?.item::<f32>()?, 21f32.sqrt());
    assert_eq!(fft::fft(&v)?.real()?.to_vec::<f32>()?[0], 3.0);
    assert_eq!(m.t()?.shape(), [6, 4]);
    assert_eq!(m.pad(&[(1, 1), (1, 1)], 0.0)?.shape(), [6, 8]);
    assert_eq!(concatenate(&[&a, &a], 1)?.shape(), [4, 12]);
    assert_eq!(a.zeros_like()?.shape(), [4, 6]);
    assert_eq!(floats(&v.powf(2.0)?), [1.0, 4.0, 16.0]);
    assert_eq!(floats(&v.relu()?), [1.0, 0.0, 4.0]);
    let x = Array::ones((1, 5, 5, 2), F32)?;
    let w = Array::ones((3, 2, 2, 2), F32)?;
    let y = conv2d(&x, &w, (1, 1), (0, 0), (1, 1), 1)?;
    assert_eq!(
        (y.shape(), y.max_all()?.item::<f32>()?),
        (&[1, 4, 4, 3][..], 8.0)
    );
    let w = Array::ones((2, 64), F32)?;
    assert_eq!(quantize(&w, 64, 4)?.packed.shape(), [2, 8]);
    let v = Array::ones(6, F32)?;
    assert_eq!(fast::rms_norm(&a, &v, 1e-5)?.shape(), [4, 6]);
    let q = Array::ones((1, 2, 3, 4), F32)?;
    let turned = fast::rope(&q, 4, false, 10000.0, 1.0, 0)?;
    assert_eq!(
        floats(&turned)[..4],
        [1.0; 4],
        "the first position does not turn"
    );
    Ok(())
}

#[test]
fn draws_take_a_key_first() -> Result<()> {
    let key = Key::new(3)?;
    let [one, other] = key.split()?;
    assert_ne!(
        one.as_array().to_vec::<u32>()?,
        other.as_array().to_vec::<u32>()?
    );
    assert_eq!(random::normal(&key, &[2, 3], F32)?.shape(), [2, 3]);
    let drawn = random::uniform(&key, 0.0, 1.0, &[2], F32)?;
    assert!(floats(&drawn).iter().all(|x| (0.0..1.0).contains(x)));
    random::seed(5);
    let first = random::randint(None, 0, 1000, 4, I32)?.to_vec::<i32>()?;
    random::seed(5);
    assert_eq!(
        random::randint(None, 0, 1000, 4, I32)?.to_vec::<i32>()?,
        first
    );
    Ok(())
}

#[test]
fn transforms_take_closures_of_arrays() -> Result<()> {
    let (a, v) = (matrix()?, vector()?);
    let df = grad(|x: &Array| x.square()?.sum_all());
    assert_eq!(floats(&df(&v)?), [2.0, -4.0, 8.0]);
    let vdf = value_and_grad(|x: &Array, y: &Array| (x * y)?.sum_all());
    let (value, dx) = vdf(&v, &v)?;
    assert_eq!(
        (value.item::<f32>()?, floats(&dx)),
        (21.0, vec![1.0, -2.0, 4.0])
    );
    let f = vmap(|a: &Array, b: &Array| (a * b)?.sum_all());
    assert_eq!(f(&a, &a)?.shape(), [4]);
    assert_eq!(compile(|x: &Array| x * 2.0)(&a)?.shape(), [4, 6]);
    let g = compile(Array::gelu);
    assert_eq!(g(&a)?.shape(), [4, 6]);
    Ok(())
}

//! Calls of three lists that were written before the documentation was read, by somebody who knows MLX's Python, NumPy,
//! candle and mlx-rs: those that compile, word for word. The first list had 165 calls of this crate: 115 compiled at once,
//! 132 did since its short forms were added. Of the 82 of the second list 54 compiled at once, and 62 did since. Of the 201
//! of the third list 140 compiled at once, and 149 do today, as do four more of the first two lists: `a.cast(I32)`,
//! `a.as_type(F32)`, `a.flatten_from(0)`, `Device::gpu()`. What was mended for the third list is in the last tests.
//!
//! The others are refused, for these reasons:
//!
//! - `keepdims` stands in every call of a reduction, `a.mean(-1, false)`; `a.mean_all()` has no axis: `a.mean(-1)`,
//!   `a.mean((0, 1))`, `a.mean(1)?.sum_all()`, `a.max(1)`, `a.var(1)`, `a.std(0)`, `a.prod(0)`, `a.all(1)`, `a.median(0)`,
//!   `a.argmax(-1)`, `a.argmin(0)`, `a.logsumexp(-1)`, `logsumexp(&a, -1)`, `sum(&a, 0)`, `max(&a, 1)`, `argmax(&a, -1)`,
//!   `a.all()`, `mask.any(None)`, `sum(&a)`, `a.sum_axis(0)`.
//! - The first argument of a draw is the key, or `None` for the thread's next one, and the last is the dtype:
//!   `random::normal(&[2, 3])`, `random::normal((2, 3), F32)`, `random::uniform(0.0, 1.0, &[2, 3])`,
//!   `random::uniform(&key, (2, 3), F32)`, `random::randint(0, 10, &[5])`, `random::categorical(&a)`,
//!   `random::bernoulli(0.5, &[3])`, `random::permutation(10)`, `random::gumbel(&[3])`, `random::gumbel(&key, &[2])`,
//!   `Array::randn(0.0, 1.0, (2, 3))`.
//! - A function that makes an array takes its dtype, and `arange` its start and step: `Array::arange(0, 10, 2)`,
//!   `arange(10)`, `arange(0..10)`, `linspace(0.0, 1.0, 5)`, `Array::linspace(0.0, 1.0, 5)`, `zeros((2, 3))`,
//!   `Array::eye(3)`, `Array::full(&[2, 2], 7.0)`.
//! - The plain name takes what Python's call needs, and `NAME_with` the other arguments: `m.triu(1)`, `m.tril(0)`,
//!   `a.round(2)`, `a.allclose(&b, 1e-5, 1e-8)`, `linalg::norm(&a, 2.0, 1)`, `tensordot(&a, &b, 1)`, `tri(3, 3, 0, F32)`,
//!   `a.var(1, false, 0)`, `a.flatten(0, 1)`, `linalg::cholesky(&m, false)`, `fft::fft(&v, 8, -1)`,
//!   `random::split(&key, 2)`.
//! - The axis, or the value, stands in every call (`a.squeeze(..)`, `a.topk(2, -1)`, `a.pad(1, 0.0)`): `a.squeeze()`,
//!   `squeeze(&a)`, `concatenate(&[&a, &b])`, `a.pad(1)`, `pad(&a, &[(0, 0), (1, 1)])`, `a.topk(2)`, `transpose(&a)`,
//!   `argsort(&v)`.
//! - Python's name, or that of `DType`, is enough (`a.dtype().is_float()`, `get_active_memory()`, `F32`): `a.is_float()`,
//!   `memory::active_memory()`, `Dtype::Float32`, `m.inv()`, `a.T()`, `all_close(&a, &b, None, None, None)`,
//!   `load_npz(p)` for `load(p)`.
//! - The function takes all arguments of Python's: `fast::rope(&q, 8)`,
//!   `fast::scaled_dot_product_attention(&q, &k, &v, 0.5, None)`, which lacks the sinks.
//! - `quantize` gives a struct, because not all schemes have biases: `let (wq, scales, biases) = quantize(&w, 64, 4)?`.
//! - In NumPy `axis=()` means no axis: `a.sum(())`.
//! - `gather` is MLX's, and candle's is `take_along_axis`: `a.gather(&k, 1)`. `transpose` is MLX's, and candle's is
//!   `swapaxes`: `a.transpose(0, 1)`.
//! - Data may be computed later, and lie in a GPU: `a.to_vec::<f32>()` copies it, and `v.as_slice::<f32>()` cannot refer
//!   to it.
//! - Rows of different lengths are an error, so the conversion is `Array::try_from`:
//!   `Array::from(vec![vec![1.0f32, 2.0], vec![3.0, 4.0]])`.
//! - The function is in `mlx-nn`: `a.softplus()`.
//! - The function takes all arguments of Python's, and the method `t.conv1d(&c)` none of them: `conv1d(&t, &c, 1, 0)`.

use std::collections::HashMap;

use mlx_core::DType::*;
use mlx_core::*;

/// What the calls are made with.
struct Given {
    /// `[2, 3]`, floating point, as `b`.
    a: Array,
    b: Array,
    /// `[3]`
    v: Array,
    /// `[3, 3]`, symmetric and positive definite.
    m: Array,
    /// `[2]`, indices.
    n: Array,
    /// `[2, 3]`, indices along the last axis.
    k: Array,
    /// `[2, 3]`
    mask: Array,
    key: random::Key,
    weights: HashMap<String, Array>,
}

fn given() -> Result<Given> {
    let a = Array::from_slice(&[0.5f32, 1.5, 2.5, 3.5, 4.5, 5.5], (2, 3))?;
    Ok(Given {
        b: Array::from_slice(&[1.5f32, 1.0, 2.0, 3.5, 4.0, 5.0], (2, 3))?,
        v: Array::from(vec![1.0f32, 2.0, 3.0]),
        m: Array::from([[4.0f32, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]]),
        n: Array::from(vec![1, 0]),
        k: Array::from_slice(&[1, 2, 0, 2, 1, 0], (2, 3))?,
        mask: a.gt(2.0)?,
        key: random::key(1)?,
        weights: [("a".to_owned(), a.clone())].into(),
        a,
    })
}

#[test]
fn making() -> Result<()> {
    let Given { a, v, m, .. } = given()?;
    Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?.eval()?;
    Array::from_vec(vec![1i32, 2, 3, 4], (2, 2))?.eval()?;
    Array::full(&[2, 2], 7.0, F32)?.eval()?;
    Array::eye(3, F32)?.eval()?;
    arange(0.0, 1.0, 0.1, F32)?.eval()?;
    zeros((2, 3), F32)?.eval()?;
    ones(&[4], I32)?.eval()?;
    full((2, 2), 3.5, F32)?.eval()?;
    eye(4, F32)?.eval()?;
    identity(3, F32)?.eval()?;
    tri(3, F32)?.eval()?;
    diag(&v)?.eval()?;
    m.diagonal()?.eval()?;
    Array::scalar(3.0f32)?.eval()?;
    assert_eq!(Array::from([[1.0f32, 2.0], [3.0, 4.0]]).shape(), [2, 2]);
    assert_eq!(array![1.0, 2.0, 3.0].dtype(), F32);
    ones_like(&a)?.eval()?;
    full_like(&a, 2.0)?.eval()?;
    a.full_like(2.0)?.eval()?;
    meshgrid(&[&v, &v])?;
    Ok(())
}

#[test]
fn facts_and_reading() -> Result<()> {
    let Given { a, v, .. } = given()?;
    a.astype(F16)?.eval()?;
    a.to_dtype(BF16)?.eval()?;
    assert_eq!(a.shape(), [2, 3]);
    assert_eq!(a.ndim(), 2);
    assert_eq!(a.size(), 6);
    assert!(a.dtype() == F32);
    assert_eq!(a.dim(-1)?, 3);
    assert_eq!(a.nbytes(), 24);
    a.to_vec::<f32>()?;
    v.to_vec1::<f32>()?;
    a.sum_all()?.item::<f32>()?;
    assert_eq!(a.sum_all()?.to_scalar::<f32>()?, 18.0);
    assert!(format!("{a}").contains("dtype=float32"));
    assert!(a.shape() == [2, 3]);
    Ok(())
}

#[test]
fn arithmetic_and_operators() -> Result<()> {
    let Given {
        a,
        b,
        v,
        m,
        k,
        mask,
        ..
    } = given()?;
    ((&a + &b)? * 2.0)?.eval()?;
    (&a / 3)?.eval()?;
    a.add(&b)?.eval()?;
    a.sub(1.0)?.eval()?;
    a.mul(&v)?.eval()?;
    a.div(&b)?.eval()?;
    add(&a, &b)?.eval()?;
    multiply(&a, 2.0)?.eval()?;
    a.maximum(0.0)?.eval()?;
    minimum(&a, &b)?.eval()?;
    a.pow(3)?.eval()?;
    power(&a, 2)?.eval()?;
    a.abs()?.eval()?;
    a.exp()?.eval()?;
    a.log()?.eval()?;
    a.sqrt()?.eval()?;
    a.rsqrt()?.eval()?;
    a.square()?.eval()?;
    a.sin()?.cos()?.eval()?;
    a.neg()?.eval()?;
    a.clamp(0.0, 1.0)?.eval()?;
    a.clip(0.0, 1.0)?.eval()?;
    clip(&a, 0.0, 1.0)?.eval()?;
    a.floor()?.eval()?;
    a.sigmoid()?.eval()?;
    a.tanh()?.eval()?;
    a.erf()?.eval()?;
    a.sign()?.eval()?;
    a.isnan()?.any_all()?.eval()?;
    k.floor_divide(2)?.eval()?;
    k.remainder(2)?.eval()?;
    k.bitwise_and(1)?.eval()?;
    a.logaddexp(&b)?.eval()?;
    addmm(&a, &a, &m)?.eval()?;
    a.ge(1.0)?.eval()?;
    a.ne(&b)?.eval()?;
    mask.logical_not()?.eval()?;
    mask.logical_and(&mask)?.eval()?;
    array_equal(&a, &b)?.eval()?;
    Ok(())
}

#[test]
fn reductions() -> Result<()> {
    let Given { a, mask, .. } = given()?;
    a.sum(&[0, 1], true)?.eval()?;
    a.min_all()?.eval()?;
    mask.all_all()?.eval()?;
    a.cumprod(1)?.eval()?;
    a.mean_keepdim(1)?.eval()?;
    Ok(())
}

#[test]
fn shapes() -> Result<()> {
    let Given { a, b, .. } = given()?;
    a.reshape(&[3, 2])?.eval()?;
    a.reshape((-1,))?.eval()?;
    a.reshape(-1)?.eval()?;
    a.flatten()?.eval()?;
    a.unsqueeze(0)?.eval()?;
    a.expand_dims(0)?.eval()?;
    assert!(
        a.squeeze(0).is_err(),
        "the first dimension has two elements"
    );
    a.swapaxes(0, 1)?.eval()?;
    a.moveaxis(0, -1)?.eval()?;
    a.permute((1, 0))?.eval()?;
    a.transpose((1, 0))?.eval()?;
    a.broadcast_to(&[4, 2, 3])?.eval()?;
    stack(&[&a, &b], 0)?.eval()?;
    a.split(3, 1)?;
    a.chunk(3, 1)?;
    a.tile(&[2, 1])?.eval()?;
    a.repeat(2, 0)?.eval()?;
    a.roll(1, 0)?.eval()?;
    a.sort(-1)?.eval()?;
    a.argsort(-1)?.eval()?;
    Ok(())
}

#[test]
fn indexing() -> Result<()> {
    let Given {
        a, b, n, k, mask, ..
    } = given()?;
    a.i((.., 0))?.eval()?;
    a.i((0, 2))?.eval()?;
    a.i(-1)?.eval()?;
    a.i(1..)?.eval()?;
    a.take(&n, 0)?.eval()?;
    a.take_along_axis(&k, 1)?.eval()?;
    a.index_select(&n, 0)?.eval()?;
    a.narrow(1, 0, 2)?.eval()?;
    where_(&mask, &a, &b)?.eval()?;
    mask.where_(&a, 0.0)?.eval()?;
    a.set((0, ..), 5.0)?.eval()?;
    a.at(0).add(1.0)?.eval()?;
    Ok(())
}

#[test]
fn products_transforms_and_draws() -> Result<()> {
    let Given { a, v, m, key, .. } = given()?;
    a.matmul(&m)?.eval()?;
    matmul(&a, &m)?.eval()?;
    einsum("ij,jk->ik", &[&a, &m])?.eval()?;
    outer(&v, &v)?.eval()?;
    inner(&v, &v)?.eval()?;
    v.dot(&v)?.eval()?;
    linalg::inv(&m)?.eval()?;
    linalg::svd(&m)?;
    linalg::qr(&m)?;
    linalg::solve(&m, &v)?.eval()?;
    fft::rfft(&v)?.eval()?;
    fft::ifft(&fft::fft(&v)?)?.eval()?;
    random::key(42)?;
    random::split(&key)?;
    Ok(())
}

#[test]
fn files_and_transforms() -> Result<()> {
    let Given { a, b, weights, .. } = given()?;
    let folder = tempfile::tempdir().expect("a folder");
    let before = std::env::current_dir().expect("a current folder");
    std::env::set_current_dir(&folder).expect("the new folder");
    save("a.npy", &a)?;
    load("a.npy")?;
    assert!(
        load("a.npy")?
            .into_array()?
            .array_equal(&a)?
            .item::<bool>()?
    );
    save_safetensors("w.safetensors", &weights)?;
    assert!(
        load_safetensors("w.safetensors")?["a"]
            .array_equal(&a)?
            .item::<bool>()?
    );
    std::env::set_current_dir(before).expect("the old folder");
    value_and_grad(|w: &Array| w.square()?.mean_all())(&a)?;
    vmap(|r: &Array| r.sum_all())(&a)?.eval()?;
    eval([&a, &b])?;
    stop_gradient(&a)?.eval()?;
    Ok(())
}

#[test]
fn making_and_facts_again() -> Result<()> {
    let Given { a, .. } = given()?;
    assert_eq!(Array::from_iter(0..6).shape(), [6]);
    Array::zeros((2, 3), F32)?.eval()?;
    Array::ones(&[2], BF16)?.eval()?;
    zeros_like(&a)?.eval()?;
    assert_eq!(array![[true, false], [false, true]].dtype(), Bool);
    assert_eq!(a.dims2()?, (2, 3));
    assert_eq!(a.rank(), 2);
    assert_eq!(a.itemsize(), 4);
    a.to_vec2::<f32>()?;
    a.i((0, 0))?.item::<f32>()?;
    a.contiguous()?.eval()?;
    Ok(())
}

#[test]
fn arithmetic_again() -> Result<()> {
    let Given { a, b, v, mask, .. } = given()?;
    (&a - &v)?.eval()?;
    ((&a * &a)? - 1.0)?.eval()?;
    (-(&a + 1.0)?)?.eval()?;
    (&mask & &mask)?.eval()?;
    a.subtract(&b)?.eval()?;
    a.multiply(&b)?.eval()?;
    a.divide(2.0)?.eval()?;
    a.gt(&b)?.eval()?;
    a.le(0.5)?.eval()?;
    equal(&a, &b)?.eval()?;
    greater(&a, 0.0)?.eval()?;
    a.powi(2)?.eval()?;
    a.recip()?.eval()?;
    a.reciprocal()?.eval()?;
    a.log1p()?.eval()?;
    a.expm1()?.eval()?;
    a.log2()?.eval()?;
    a.minimum(&b)?.eval()?;
    a.arctan2(&b)?.eval()?;
    exp(&a)?.eval()?;
    sqrt(&a)?.log()?.eval()?;
    a.nan_to_num()?.eval()?;
    Ok(())
}

#[test]
fn reductions_shapes_and_indexing_again() -> Result<()> {
    let Given { a, b, n, .. } = given()?;
    mean(&a, -1, true)?.eval()?;
    a.max_keepdim(1)?.eval()?;
    a.sum_keepdim(1)?.eval()?;
    a.cummax(1)?.eval()?;
    a.std_all()?.eval()?;
    reshape(&a, (3, 2))?.eval()?;
    a.unflatten(0, (1, 2))?.eval()?;
    flatten(&a)?.eval()?;
    expand_dims(&a, 1)?.eval()?;
    a.broadcast_to((4, 2, 3))?.eval()?;
    Array::cat(&[&a, &b], 0)?.eval()?;
    Array::stack(&[&a, &b], 0)?.eval()?;
    split(&a, 3, 1)?;
    tile(&a, (2, 1))?.eval()?;
    sort(&a, -1)?.eval()?;
    a.i(&n)?.eval()?;
    a.i((&n, 1..))?.eval()?;
    a.i((NewAxis, .., 1))?.eval()?;
    take(&a, &n, 0)?.eval()?;
    Ok(())
}

#[test]
fn products_draws_and_transforms_again() -> Result<()> {
    let Given { a, b, m, key, .. } = given()?;
    kron(&m, &m)?.eval()?;
    trace(&m)?.eval()?;
    linalg::eigh(&m)?;
    linalg::cholesky(&m)?.eval()?;
    random::seed(7);
    random::normal(&key, (2, 3), F32)?.eval()?;
    grad(|w: &Array| w.sum_all())(&a)?.eval()?;
    compile(|x: &Array, y: &Array| x * y)(&a, &b)?.eval()?;
    jvp(|x: &Array| x.sin(), &a, &b)?;
    synchronize()?;
    Ok(())
}

fn floats(array: Result<Array>) -> Vec<f32> {
    array.unwrap().astype(F32).unwrap().to_vec().unwrap()
}

#[test]
fn other_names_compute_the_same() -> Result<()> {
    let Given {
        a, b, v, n, key, ..
    } = given()?;
    assert_eq!(floats(a.sub(&b)), floats(&a - &b));
    assert_eq!(floats(a.mul(&v)), floats(&a * &v));
    assert_eq!(floats(a.div(2)), floats(&a / 2));
    assert_eq!(floats(a.pow(3)), floats(a.power(3)));
    assert_eq!(floats(a.powi(-1)), floats(a.recip()));
    assert_eq!(floats(a.neg()), floats(-&a));
    assert_eq!(floats(a.clamp(1.0, 2)), floats(a.clip(1.0, 2)));
    assert_eq!(floats(a.permute((1, 0))), floats(a.t()));
    assert_eq!(floats(a.index_select(&n, -2)), floats(a.take(&n, 0)));
    assert_eq!(a.to_dtype(BF16)?.dtype(), BF16);
    assert_eq!(a.sum_keepdim(1)?.shape(), [2, 1]);
    assert_eq!(floats(a.mean_keepdim(..)), floats(a.mean(.., true)));
    assert_eq!(floats(a.max_keepdim(0)), floats(a.max(0, true)));
    assert_eq!(floats(a.min_keepdim([1])), floats(a.min(1, true)));
    let [one, two] = random::split(&key)?;
    let again = key.split()?;
    let bits = |key: &random::Key| key.as_array().to_vec::<u32>().unwrap();
    assert_eq!([bits(&one), bits(&two)], again.map(|key| bits(&key)));
    Ok(())
}

#[test]
fn tuples_name_axes_and_counts() -> Result<()> {
    let x = arange(0, 24, 1, F32)?.reshape((2, 3, 4))?;
    assert_eq!(x.transpose((2, 0, 1))?.shape(), [4, 2, 3]);
    assert_eq!(x.transpose(&[2, 0, 1])?.shape(), [4, 2, 3]);
    assert_eq!(x.transpose(vec![2, 0, 1])?.shape(), [4, 2, 3]);
    // All dimensions, as Python's `axes=None`.
    assert_eq!(x.transpose(..)?.shape(), [4, 3, 2]);
    assert_eq!(floats(x.sum((0, 2), false)), floats(x.sum([0, 2], false)));
    assert_eq!(floats(x.sum((-1,), false)), floats(x.sum(2, false)));
    assert_eq!(x.expand_dims((0, -1))?.shape(), [1, 2, 3, 4, 1]);
    assert_eq!(x.tile((2, 1, 3))?.shape(), [4, 3, 12]);
    assert_eq!(x.tile(2)?.shape(), [2, 3, 8]);
    assert!(x.sum((0, 0), false).is_err() && x.sum((0, 3), false).is_err());
    assert!(x.transpose((0, 1)).is_err() && x.transpose((0, 1, 1)).is_err());
    Ok(())
}

#[test]
fn pieces_of_an_axis() -> Result<()> {
    let x = arange(0, 10, 1, I32)?.reshape((2, 5))?;
    assert_eq!(x.narrow(1, 2, 3)?.to_vec2::<i32>()?, [[2, 3, 4], [7, 8, 9]]);
    assert_eq!(x.narrow(-1, 5, 0)?.shape(), [2, 0]);
    for (start, len) in [(-1, 1), (0, 6), (5, 1), (0, -1), (i32::MAX, i32::MAX)] {
        let error = x.narrow(1, start, len).unwrap_err().to_string();
        let expected = format!("within the 5 elements of axis 1, given ({start}, {len})");
        assert!(error.ends_with(&expected), "{error}");
    }
    assert!(x.narrow(2, 0, 1).is_err());

    let sizes = |parts, axis| -> Result<Vec<i32>> {
        let pieces = x.chunk(parts, axis)?;
        assert!(
            concatenate(&pieces, axis)?
                .array_equal(&x)?
                .item::<bool>()?
        );
        pieces.iter().map(|piece| piece.dim(axis)).collect()
    };
    // The sizes of `numpy.array_split`, which has empty pieces where candle has none.
    assert_eq!(sizes(1, 1)?, [5]);
    assert_eq!(sizes(2, 1)?, [3, 2]);
    assert_eq!(sizes(3, -1)?, [2, 2, 1]);
    assert_eq!(sizes(4, 1)?, [2, 1, 1, 1]);
    assert_eq!(sizes(9, 1)?, [1; 5]);
    assert_eq!(sizes(2, 0)?, [1, 1]);
    assert_eq!(zeros((0, 3), F32)?.chunk(4, 0)?.len(), 1);
    assert!(x.chunk(0, 1).is_err() && x.chunk(-1, 1).is_err() && x.chunk(1, 2).is_err());
    Ok(())
}

#[test]
fn dot_is_that_of_numpy() -> Result<()> {
    // 1, 2, 3, … in this shape.
    let of = |shape: &[i32]| -> Result<Array> {
        let size: i32 = shape.iter().product();
        arange(1, size + 1, 1, F32)?.reshape(shape)
    };
    // The shapes of both, and the shape and numbers of `numpy.dot`.
    type Case = (
        &'static [i32],
        &'static [i32],
        &'static [i32],
        &'static [f32],
    );
    let cases: [Case; 6] = [
        (&[], &[3], &[3], &[1.0, 2.0, 3.0]),
        (&[4], &[4], &[], &[30.0]),
        (&[2, 3], &[3], &[2], &[14.0, 32.0]),
        (&[3], &[3, 2], &[2], &[22.0, 28.0]),
        (&[2, 3], &[3, 2], &[2, 2], &[22.0, 28.0, 49.0, 64.0]),
        (
            &[2, 1, 3],
            &[2, 3, 2],
            &[2, 1, 2, 2],
            &[22.0, 28.0, 58.0, 64.0, 49.0, 64.0, 139.0, 154.0],
        ),
    ];
    for (a, b, shape, numbers) in cases {
        let dot = of(a)?.dot(&of(b)?)?;
        assert_eq!(dot.shape(), shape);
        assert_eq!(dot.to_vec::<f32>()?, numbers);
    }
    assert!(of(&[2, 3])?.dot(&of(&[2, 3])?).is_err());
    Ok(())
}

#[test]
fn arguments_are_given_in_several_ways() -> Result<()> {
    let Given {
        a, b, v, m, n, key, ..
    } = given()?;
    // Bounds.
    assert_eq!(floats(a.clip(Some(2.0), None)), floats(a.maximum(2.0)));
    assert_eq!(floats(a.clip(None, 1.0)), floats(a.minimum(1.0)));
    assert_eq!(floats(clip(&a, None, 1.0)), floats(a.minimum(1.0)));
    assert_eq!(floats(a.clip(&b, None)), floats(a.maximum(&b)));
    let error = a.clip(None, None).unwrap_err().to_string();
    assert!(error.contains("at least one number or array"), "{error}");
    // Axes.
    assert_eq!(floats(a.mean(None, false)), floats(a.mean_all()));
    assert_eq!(a.max(None, true)?.shape(), [1, 1]);
    assert_eq!(floats(a.sum(Some(-1), false)), floats(a.sum(1, false)));
    assert_eq!(floats(a.cumsum(None)), floats(a.cumsum(..)));
    assert_eq!(a.argmax(None, false)?.item::<u32>()?, 5);
    assert_eq!(a.transpose(None)?.shape(), [3, 2]);
    for axis in 0..a.ndim() {
        assert_eq!(a.sum(axis, false)?.ndim(), 1);
        assert_eq!(a.sort(axis)?.shape(), a.shape());
    }
    for far in [2, i64::from(u32::MAX), i64::MAX, -3, i64::MIN] {
        assert!(a.sum(far, false).is_err(), "{far}");
        assert!(a.cumsum(far).is_err(), "{far}");
    }
    // Numbers on the left.
    assert_eq!(floats(maximum(2.0, &a)), floats(a.maximum(2.0)));
    assert_eq!(floats(subtract(1, &a)), floats(1 - &a));
    assert_eq!(subtract(1, &a.astype(BF16)?)?.dtype(), BF16);
    assert_eq!(add(1, 2)?.item::<i32>()?, 3);
    // Lists of arrays.
    let pairs = || vec![a.clone(), b.clone()];
    for joined in [
        concatenate(pairs(), 0),
        concatenate([&a, &b], 0),
        concatenate(&pairs(), 0),
        Array::cat(pairs(), 0),
    ] {
        assert_eq!(joined?.shape(), [4, 3]);
    }
    assert_eq!(stack(pairs(), 0)?.shape(), [2, 2, 3]);
    assert_eq!(einsum("ij,jk->ik", [&a, &m])?.shape(), [2, 3]);
    assert_eq!(meshgrid([&v, &v])?.len(), 2);
    // Pieces and slots.
    let shapes = |pieces: Vec<Array>| -> Vec<i32> { pieces.iter().map(|x| x.shape()[1]).collect() };
    assert_eq!(shapes(a.split(3, 1)?), [1, 1, 1]);
    assert_eq!(shapes(a.split(&[1], 1)?), [1, 2]);
    assert_eq!(shapes(split(&a, vec![1, 1], 1)?), [1, 0, 2]);
    assert!(a.split(2, 1).is_err() && a.split(0, 1).is_err() && a.split([1], 2).is_err());
    assert_eq!(floats(a.take(-1, 0)), floats(a.i(1)));
    assert_eq!(a.take(1, ..)?.item::<f32>()?, 1.5);
    assert_eq!(a.take(n, 0)?.shape(), [2, 3]);
    for outside in [2, -3, 1 << 30] {
        let error = a.take(outside, 0).unwrap_err().to_string();
        assert!(error.contains("within the 2 elements of axis 0"), "{error}");
    }
    assert!(a.take(0.5, 0).is_err());
    // Numbers in random order.
    let mut order = random::permutation(&key, 10)?.to_vec::<u32>()?;
    order.sort();
    assert_eq!(order, (0..10).collect::<Vec<u32>>());
    assert_eq!(random::permutation(None, &a)?.shape(), [2, 3]);
    assert!(random::permutation(&key, -1).is_err());
    // Windows.
    let (image, w) = (ones((1, 5, 5, 2), F32)?, ones((3, 2, 2, 2), F32)?);
    let plain = conv2d(&image, &w, (1, 1), (0, 0), (1, 1), 1)?;
    assert_eq!(floats(conv2d(&image, &w, 1, 0, 1, 1)), floats(Ok(plain)));
    assert_eq!(conv2d(&image, &w, [2, 1], 1, 1, 1)?.shape(), [1, 3, 6, 3]);
    Ok(())
}

#[test]
fn what_is_evaluated_and_attended() -> Result<()> {
    let Given { a, b, weights, .. } = given()?;
    eval(&a)?;
    eval((&a, &b))?;
    eval(&weights)?;
    eval((&a, &weights, [&b, &a]))?;
    async_eval(&a)?;
    async_eval(vec![a, b])?;
    let (c, d) = (ones(2, F32)?.exp()?, ones(2, F32)?.sin()?);
    assert_eq!(graph_size([&c, &d])?, graph_size([&c])? + graph_size([&d])?);
    eval((&c, [&d]))?;
    assert_eq!(graph_size([&c, &d])?, 0);

    let x = random::normal(&random::key(3)?, (1, 2, 4, 8), F32)?;
    let attend = |mask| fast::scaled_dot_product_attention(&x, &x, &x, 0.5, mask, None);
    let causal = floats(attend(fast::Mask::Causal));
    let full = floats(attend(fast::Mask::None));
    assert_ne!(causal, full);
    let by_text = fast::scaled_dot_product_attention(&x, &x, &x, 0.5, "causal", None);
    assert_eq!(floats(by_text), causal);
    let without = fast::scaled_dot_product_attention(&x, &x, &x, 0.5, None, None);
    assert_eq!(floats(without), full);
    let mask = tri(4, Bool)?;
    let by_array = floats(fast::scaled_dot_product_attention(
        &x, &x, &x, 0.5, &mask, None,
    ));
    let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
    assert!(!by_array.iter().zip(&causal).any(far));
    let error = fast::scaled_dot_product_attention(&x, &x, &x, 0.5, "full", None).unwrap_err();
    assert!(error.to_string().contains("\"causal\""), "{error}");

    let w = random::normal(&random::key(4)?, (8, 64), F32)?;
    let Quantized {
        packed,
        scales,
        biases,
    } = quantize(&w, 64, 4)?;
    let some = dequantize(&packed, &scales, Some(biases.as_ref().unwrap()), 64, 4);
    let plain = dequantize(&packed, &scales, biases.as_ref().unwrap(), 64, 4);
    assert_eq!(floats(some), floats(plain));
    assert!(dequantize(&packed, &scales, None, 64, 4).is_err());
    Ok(())
}

#[test]
fn names_of_other_libraries_compute_the_same() -> Result<()> {
    let Given {
        a, b, m, mask, v, ..
    } = given()?;
    let half = (&a / 8.0)?;
    for (ours, theirs) in [
        (a.add(&b), a.broadcast_add(&b)),
        (a.subtract(&v), a.broadcast_sub(&v)),
        (a.multiply(&b), a.broadcast_mul(&b)),
        (a.divide(&b), a.broadcast_div(&b)),
        (mask.select(&a, &b), mask.where_cond(&a, &b)),
        ((&a * 2.0)? + 1.0, a.affine(2.0, 1.0)),
        (a.square(), a.sqr()),
        (a.log(), a.ln()),
        (a.abs(), a.absolute()),
        (a.gelu(), a.gelu_erf()),
        (a.stop_gradient(), a.detach()),
        (half.arcsin(), half.asin()),
        (half.arccos(), half.acos()),
        (half.arctan(), half.atan()),
        (half.arcsinh(), half.asinh()),
        (a.add(1.0)?.arccosh(), a.add(1.0)?.acosh()),
        (half.arctanh(), half.atanh()),
        (a.arctan2(&b), a.atan2(&b)),
        (a.i(0), a.get(0)),
        (a.i((.., 1)), a.index((.., 1))),
        (a.broadcast_to((2, 2, 3)), a.broadcast_as((2, 2, 3))),
        (a.flatten(), a.flatten_all()),
        (a.flatten(), a.ravel()),
        (a.transpose((1, 0)), a.transpose_axes(&[1, 0])),
        (a.astype(F16), a.cast(F16)),
        (a.astype(F16), a.as_type(F16)),
        (a.astype(F16), a.as_dtype(F16)),
        (a.var(1, true), a.var_keepdim(1)),
        (a.argmax(1, true), a.argmax_keepdim(1)),
        (a.argmin(-1, true), a.argmin_keepdim(-1)),
        (a.logsumexp(1, false), a.log_sum_exp(1)),
        (diag(&m), m.diag()),
        (tril(&m), m.tril()),
        (triu(&m), m.triu()),
        (a.pad(&[(0, 0), (1, 2)], 0.0), a.pad_with_zeros(1, 1, 2)),
    ] {
        let (ours, theirs) = (ours?, theirs?);
        assert_eq!(ours.shape(), theirs.shape());
        assert_eq!(ours.dtype(), theirs.dtype());
        assert_eq!(floats(Ok(ours)), floats(Ok(theirs)));
    }
    let x = ones((2, 3, 4), F32)?;
    assert_eq!(x.flatten_from(1)?.shape(), [2, 12]);
    assert_eq!(x.flatten_to(1)?.shape(), [6, 4]);
    assert_eq!(x.elem_count(), 24);
    assert_eq!([Device::cpu(), Device::gpu()], [Device::CPU, Device::GPU]);
    assert!(get_active_memory()? > 0);
    assert!(get_peak_memory()? >= get_active_memory()?);
    get_cache_memory()?;
    reset_peak_memory()?;
    Ok(())
}

//! Arrays of numbers in the source of a program, and conversions back to Rust's vectors.

use half::{bf16, f16};
use mlx_core::DType::{BF16, Bool, F16, F32, F64, I32, I64, U8};
use mlx_core::{Array, Error, ErrorKind, Result, arange, array, eval, linspace};

#[test]
fn numbers_and_nested_arrays() -> Result<()> {
    let x = array![[1, 2, 3], [4, 5, 6]];
    assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], I32));
    assert_eq!(x.to_vec::<i32>()?, [1, 2, 3, 4, 5, 6]);
    let deep = array![[[[0.5], [1.5]], [[2.5], [3.5]]]];
    assert_eq!((deep.shape(), deep.dtype()), (&[1, 2, 2, 1][..], F32));
    assert_eq!(deep.to_vec::<f32>()?, [0.5, 1.5, 2.5, 3.5]);
    let n = 3u8;
    assert_eq!(array![n, n + 1,].dtype(), U8);
    assert_eq!((array![].shape(), array![].dtype()), (&[0][..], F32));
    assert_eq!(array![true].dtype(), Bool);
    let rows: [[i64; 2]; 0] = [];
    assert_eq!(
        (Array::from(rows).shape(), Array::from(rows).dtype()),
        (&[0, 2][..], I64)
    );
    Ok(())
}

#[test]
fn from_numbers_vectors_and_slices() -> Result<()> {
    // As Python's `mx.array(3.0)`; `from_slice` keeps F64.
    assert_eq!(
        (Array::from(3.0).ndim(), Array::from(3.0).dtype()),
        (0, F32)
    );
    assert_eq!(Array::from(vec![1.0, 2.0]).dtype(), F32);
    assert_eq!(Array::from_slice(&[1.0, 2.0], 2)?.dtype(), F64);
    assert_eq!(Array::from(3).item::<i32>()?, 3);
    let vector = vec![1.0f32, 2.0];
    let slice: &[f32] = &vector;
    for array in [
        Array::from(vector.clone()),
        Array::from(&vector),
        Array::from(slice),
        Array::from(&[1.0f32, 2.0]),
        Array::from([1.0f32, 2.0]),
    ] {
        assert_eq!(
            (array.shape(), array.to_vec::<f32>()?),
            (&[2][..], vec![1.0, 2.0])
        );
    }
    assert_eq!(Array::from(vec![[1, 2], [3, 4], [5, 6]]).shape(), [3, 2]);
    assert_eq!(Array::from(Vec::<[i32; 2]>::new()).shape(), [0, 2]);
    let halves = vec![f16::from_f32(0.5), f16::from_f32(1.5)];
    assert_eq!(Array::from(halves.clone()).to_vec::<f16>()?, halves);
    assert_eq!(Array::from(halves).dtype(), F16);
    assert_eq!(array![bf16::from_f32(0.5)].dtype(), BF16);
    assert_eq!(Array::from(bf16::ONE).item::<bf16>()?, bf16::ONE);
    Ok(())
}

/// As a generic program writes it, whether the conversion can fail or not.
fn tried<T>(value: T) -> Result<Array>
where
    Array: TryFrom<T>,
    Error: From<<Array as TryFrom<T>>::Error>,
{
    Ok(Array::try_from(value)?)
}

#[test]
fn nested_vectors_may_be_ragged() -> Result<()> {
    let rows = Array::try_from(vec![vec![1, 2], vec![3, 4], vec![5, 6]])?;
    assert_eq!(rows.to_vec2::<i32>()?, [[1, 2], [3, 4], [5, 6]]);
    let planes = Array::try_from(vec![vec![vec![1.5f32], vec![2.5]]; 3])?;
    assert_eq!(planes.shape(), [3, 2, 1]);
    assert_eq!(
        planes.to_vec3::<f32>()?,
        vec![vec![vec![1.5], vec![2.5]]; 3]
    );
    assert_eq!(Array::try_from(Vec::<Vec<i32>>::new())?.shape(), [0, 0]);
    assert_eq!(tried([[1, 2], [3, 4]])?.shape(), [2, 2]);
    assert_eq!(tried(vec![vec![1], vec![2]])?.shape(), [2, 1]);
    for (error, expected) in [
        (
            Array::try_from(vec![vec![1, 2], vec![3]]).expect_err("ragged"),
            "row 1 has 1, those before have 2",
        ),
        (
            Array::try_from(vec![vec![vec![1]], vec![vec![1], vec![2]]]).expect_err("ragged"),
            "plane 1 has 2 rows, those before have 1",
        ),
        (
            Array::try_from(vec![vec![vec![1]], vec![vec![1, 2]]]).expect_err("ragged"),
            "plane 1: nested vectors must have one length: row 0 has 2",
        ),
    ] {
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.to_string().contains(expected), "{error}");
    }
    Ok(())
}

#[test]
fn functions_of_the_type() -> Result<()> {
    let a = Array::arange(0, 6, 1, I32)?.reshape((2, 3))?;
    assert_eq!(a.to_vec2::<i32>()?, [[0, 1, 2], [3, 4, 5]]);
    assert_eq!(
        (a.dims2()?, a.i((.., .., mlx_core::NewAxis))?.dims3()?),
        ((2, 3), (2, 3, 1))
    );
    assert_eq!(Array::zeros((1, 2, 3, 4), F32)?.dims4()?, (1, 2, 3, 4));
    assert!(a.dims3().is_err() && a.dims4().is_err() && a.to_vec3::<i32>().is_err());
    assert_eq!(
        a.to_vec2::<f32>().expect_err("of I32").kind(),
        ErrorKind::DType
    );
    assert_eq!(a.t()?.to_vec2::<i32>()?, [[0, 3], [1, 4], [2, 5]]);
    assert_eq!(
        Array::eye(2, F32)?.to_vec2::<f32>()?,
        [[1.0, 0.0], [0.0, 1.0]]
    );
    assert_eq!(Array::full((2,), 1.5, F32)?.to_vec::<f32>()?, [1.5, 1.5]);
    assert_eq!(Array::ones(2, I32)?.to_vec::<i32>()?, [1, 1]);
    assert_eq!(
        Array::linspace(0, 1, 3, F32)?.to_vec::<f32>()?,
        [0.0, 0.5, 1.0]
    );
    assert_eq!(Array::cat(&[&a, &a], 1)?.shape(), [2, 6]);
    assert_eq!(Array::stack(&[a.clone(), a.clone()], 0)?.shape(), [2, 2, 3]);
    assert_eq!(a.zeros_like()?.to_vec::<i32>()?, [0; 6]);
    assert_eq!(a.ones_like()?.to_vec::<i32>()?, [1; 6]);
    assert_eq!(a.full_like(4)?.to_vec::<i32>()?, [4; 6]);
    Ok(())
}

#[test]
fn ranges_of_numbers_of_any_type() -> Result<()> {
    let n = 3usize;
    assert_eq!(arange(0, n, 1, I32)?.to_vec::<i32>()?, [0, 1, 2]);
    assert_eq!(
        arange(1.5f32, 3.0, 0.5, F32)?.to_vec::<f32>()?,
        [1.5, 2.0, 2.5]
    );
    assert_eq!(arange(3i64, 0, -1, I64)?.to_vec::<i64>()?, [3, 2, 1]);
    assert_eq!(linspace(0.0, 1, 2, F32)?.to_vec::<f32>()?, [0.0, 1.0]);
    let error = arange(0, (1i64 << 53) + 1, 1i64 << 52, I64).expect_err("not exact");
    assert!(error.to_string().contains("at most 2^53"), "{error}");
    assert!(arange(i64::MAX, i64::MAX, 1, I64).is_err());
    Ok(())
}

#[test]
fn rows_one_after_another() -> Result<()> {
    let x = array![[1, 2], [3, 4], [5, 6]];
    let rows: Result<Vec<Array>> = x.iter().collect();
    let rows: Result<Vec<Vec<i32>>> = rows?.iter().map(|row| row.to_vec()).collect();
    assert_eq!(rows?, [[1, 2], [3, 4], [5, 6]]);
    let mut last = x.iter().rev();
    assert_eq!(
        (last.len(), last.next().unwrap()?.to_vec::<i32>()?),
        (3, vec![5, 6])
    );
    assert_eq!(last.len(), 2);
    let mut sum = 0;
    for number in &array![1, 2, 3] {
        sum += number?.item::<i32>()?;
    }
    assert_eq!(sum, 6);
    let scalar = Array::from(1);
    let mut items = scalar.iter();
    let error = items.next().expect("one item").expect_err("no dimension");
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(items.next().is_none());
    Ok(())
}

#[test]
fn evaluating_lists_of_any_kind() -> Result<()> {
    let (a, b) = (array![1.0], array![2.0]);
    let c = (&a + &b)?;
    eval([&a, &b, &c])?;
    eval(&[&a, &b])?;
    eval(&vec![a.clone(), b.clone()])?;
    eval(vec![a, b])?;
    eval(std::slice::from_ref(&c))?;
    c.eval()
}

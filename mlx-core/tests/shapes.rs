//! Everything that can be given as a shape gives the same one.

use mlx_core::{Array, DType, ErrorKind, IntoShape, Result, zeros};

fn sizes(shape: impl IntoShape) -> Result<Vec<i32>> {
    shape.sizes().map(|sizes| sizes.into_owned())
}

#[test]
fn every_form_of_a_shape() -> Result<()> {
    let (n, wide, narrow, signed) = (2usize, 3i64, 4u32, 5i32);
    let vector = vec![2, 3];
    let slice: &[i32] = &vector;
    for given in [
        sizes((2, 3))?,
        sizes((n, wide))?,
        sizes([2, 3])?,
        sizes(&[2, 3])?,
        sizes([n, n + 1])?,
        sizes(&[n, n + 1])?,
        sizes(slice)?,
        sizes(&slice)?,
        sizes(&[2usize, 3][..])?,
        sizes(&vector)?,
        sizes(vector.clone())?,
        sizes(std::borrow::Cow::Borrowed(slice))?,
    ] {
        assert_eq!(given, [2, 3]);
    }
    assert!(sizes(())?.is_empty());
    assert!(sizes([0i32; 0])?.is_empty());
    assert_eq!(sizes(7)?, [7]);
    assert_eq!(sizes(n)?, [2]);
    assert_eq!(sizes((7,))?, [7]);
    let all = (n, wide, narrow, signed, 6, 7, 8, 9);
    assert_eq!(sizes(all)?, [2, 3, 4, 5, 6, 7, 8, 9]);
    Ok(())
}

#[test]
fn shapes_of_functions() -> Result<()> {
    let n = 4usize;
    let x = zeros((2, n, 3), DType::F32)?;
    assert_eq!(x.reshape((-1, n))?.shape(), [6, 4]);
    assert_eq!(x.reshape(24usize)?.shape(), [24]);
    assert_eq!(x.unflatten(1, (2, -1))?.shape(), [2, 2, 2, 3]);
    assert_eq!(zeros((), DType::F32)?.broadcast_to([n, 2])?.shape(), [4, 2]);
    let data = [1i32, 2, 3, 4];
    assert_eq!(Array::from_slice(&data, data.len())?.shape(), [4]);
    assert_eq!(Array::from_slice(&data, (2, 2))?.shape(), [2, 2]);
    Ok(())
}

#[test]
fn sizes_that_no_dimension_has() {
    for error in [
        zeros(1usize << 31, DType::U8).expect_err("too large"),
        zeros((2, u32::MAX), DType::U8).expect_err("too large"),
        zeros([1i64 << 40], DType::U8).expect_err("too large"),
        zeros((2, -1), DType::U8).expect_err("negative"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
    }
    let error = zeros(1usize << 31, DType::U8).expect_err("too large");
    let expected = "a dimension of 2147483648 exceeds 2147483647";
    assert!(error.to_string().contains(expected), "{error}");
}

//! Arrays of the crate `ndarray`, both ways.
#![cfg(feature = "ndarray")]

use half::bf16;
use mlx_core::ndarray::{Array1, Array2, ArrayD, Axis, arr0, array, s};
use mlx_core::{Array, DType, ErrorKind, Result};

#[test]
fn both_ways() -> Result<()> {
    let matrix = array![[1, 2, 3], [4, 5, 6]];
    let x = Array::try_from(&matrix)?;
    assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], DType::I32));
    assert_eq!(x.to_vec::<i32>()?, [1, 2, 3, 4, 5, 6]);
    let back: Array2<i32> = (&x).try_into()?;
    assert_eq!(back, matrix);
    // A view in another order, and one with a step backwards.
    assert_eq!(
        Array::try_from(matrix.t())?.to_vec2::<i32>()?,
        [[1, 4], [2, 5], [3, 6]]
    );
    let view = matrix.slice(s![.., ..;-2]);
    assert_eq!(Array::try_from(view)?.to_vec2::<i32>()?, [[3, 1], [6, 4]]);
    let turned: ArrayD<i32> = (&x.t()?).try_into()?;
    assert_eq!(turned, matrix.t().into_dyn());
    let scalar = Array::try_from(arr0(bf16::ONE))?;
    assert_eq!((scalar.ndim(), scalar.item::<bf16>()?), (0, bf16::ONE));
    let empty = Array::try_from(Array2::<f32>::zeros((0, 3)))?;
    assert_eq!(empty.shape(), [0, 3]);
    let empty: Array2<f32> = (&empty).try_into()?;
    assert_eq!(empty.len_of(Axis(1)), 3);
    Ok(())
}

#[test]
fn refused() {
    let x = mlx_core::array![[1, 2], [3, 4]];
    let error = Array1::<i32>::try_from(&x).expect_err("two dimensions");
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.to_string().contains("[2, 2]"), "{error}");
    let error = Array2::<f32>::try_from(&x).expect_err("of I32");
    assert_eq!(error.kind(), ErrorKind::DType);
}

//! Inputs for which MLX itself would trap or would leave its result unwritten.

use mlx_core::{Array, DType, Result, async_eval, eval, linalg, ones, synchronize};

fn floats(shape: &[i32]) -> Array {
    ones(shape, DType::F32).unwrap()
}

fn ints(values: &[i32]) -> Array {
    Array::from_slice(values, &[values.len() as i32]).unwrap()
}

#[test]
fn integer_division_does_not_trap() {
    let (least, minus) = (ints(&[i32::MIN, 7, -7, 0]), ints(&[-1, 0, -1, 0]));
    assert_eq!(
        least.floor_divide(&minus).unwrap().to_vec::<i32>().unwrap(),
        [i32::MIN, 0, 7, 0]
    );
    assert_eq!(
        least.remainder(&minus).unwrap().to_vec::<i32>().unwrap(),
        [0, 7, 0, 0]
    );
    let (quotient, rest) = least.divmod(&minus).unwrap();
    assert_eq!(quotient.to_vec::<i32>().unwrap(), [i32::MIN, 7, 7, 0]);
    assert_eq!(rest.to_vec::<i32>().unwrap(), [0, 0, 0, 0]);
    let bytes = ints(&[9]).astype(DType::U8).unwrap();
    assert_eq!(bytes.divmod(0).unwrap().1.to_vec::<u8>().unwrap(), [0]);
    let error = bytes.divmod(256).unwrap_err().to_string();
    assert!(error.contains("256, is outside U8"), "{error}");
    let wide = least.astype(DType::I64).unwrap().add(i64::MIN).unwrap();
    assert_eq!(
        Array::scalar(i64::MIN)
            .unwrap()
            .floor_divide(-1)
            .unwrap()
            .item::<i64>()
            .unwrap(),
        i64::MIN
    );
    assert_eq!(wide.dtype(), DType::I64);
    assert_eq!(ints(&[2]).power(-1).unwrap().item::<i32>().unwrap(), 0);
}

#[test]
fn reductions_of_nothing_are_their_identity() {
    // Fills memory that MLX uses again, so that unwritten elements show.
    for _ in 0..50 {
        mlx_core::full(&[1], 77.0, DType::F32)
            .unwrap()
            .add(1.0)
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
    }
    let empty = floats(&[1, 2, 0]).transpose(&[2, 0, 1]).unwrap();
    assert_eq!(empty.sum(.., false).unwrap().item::<f32>().unwrap(), 0.0);
    assert_eq!(
        empty.prod([0, 2], false).unwrap().to_vec::<f32>().unwrap(),
        [1.0]
    );
    assert!(
        empty
            .mean(.., false)
            .unwrap()
            .item::<f32>()
            .unwrap()
            .is_nan()
    );
    assert!(empty.all(.., false).unwrap().item::<bool>().unwrap());
    assert!(!empty.any(.., false).unwrap().item::<bool>().unwrap());
    assert!(empty.array_equal(&empty).unwrap().item::<bool>().unwrap());
    assert!(
        !empty
            .array_equal(&floats(&[1]))
            .unwrap()
            .item::<bool>()
            .unwrap()
    );
    assert!(
        empty
            .allclose_with(&empty, 0.0, 0.0, false)
            .unwrap()
            .item::<bool>()
            .unwrap()
    );
    assert_eq!(
        linalg::norm_l2(&empty, 0, false)
            .unwrap()
            .to_vec::<f32>()
            .unwrap(),
        [0.0, 0.0]
    );
    assert_eq!(
        floats(&[2, 2])
            .trace_with(9, 0, 1, DType::F32)
            .unwrap()
            .item::<f32>()
            .unwrap(),
        0.0
    );
}

/// The stream is busy when the product is evaluated, so a use of freed memory would come after that memory's next use.
#[test]
fn products_without_elements_touch_no_memory() -> Result<()> {
    let busy = floats(&[400, 400]);
    let wide = floats(&[100, 128]);
    // Neither dense nor the transpose of a dense matrix: MLX makes a copy.
    let strided = wide.slice_strided(&[0, 0], &[100, 128], &[1, 2])?;
    eval([&busy, &strided])?;
    let none = mlx_core::zeros(&[0, 100], DType::F32)?;
    let products: [fn(&Array, &Array) -> Result<Array>; 3] = [
        |a, b| a.matmul(b),
        |a, b| floats(&[0, 64]).addmm(a, b),
        |a, b| a.gather_mm(b, None, None),
    ];
    for product in products {
        async_eval([busy.matmul(&busy)?])?;
        let empty = product(&none, &strided)?;
        async_eval([&empty])?;
        let next = Array::from_slice(&[5f32; 6400], &[6400])?;
        synchronize()?;
        assert_eq!(empty.shape(), [0, 64]);
        assert_eq!(next.to_vec::<f32>()?, [5.0; 6400]);
    }
    // A product over an inner axis without elements is a sum of nothing.
    let (a, b) = (
        mlx_core::zeros(&[2, 0], DType::F32)?,
        mlx_core::zeros(&[0, 3], DType::F32)?,
    );
    assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [0.0; 6]);
    assert_eq!(
        floats(&[2, 3])
            .addmm_with(&a, &b, 1.0, 2.0)?
            .to_vec::<f32>()?,
        [2.0; 6]
    );
    Ok(())
}

/// MLX computes one element from memory outside the input.
#[test]
fn a_kernel_longer_than_the_padded_input_is_refused() -> Result<()> {
    use mlx_core::ops::conv::{Conv, ConvGeneral, ConvTranspose};

    let refused = |result: Result<Array>, what: &str| {
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("must fit into the padded input"),
            "{what}: {error}"
        );
        assert!(error.contains(what), "{what}: {error}");
    };
    let stride = Conv {
        stride: [4],
        ..Conv::default()
    };
    refused(
        floats(&[1, 1, 2]).conv1d_with(&floats(&[1, 3, 2]), stride),
        "conv1d",
    );
    let stride = Conv {
        stride: [4, 1],
        ..Conv::default()
    };
    refused(
        floats(&[1, 1, 4, 2]).conv2d_with(&floats(&[1, 3, 2, 2]), stride),
        "conv2d",
    );
    let stride = Conv {
        stride: [3, 1, 1],
        padding: [0, 1, 0],
        ..Conv::default()
    };
    refused(
        floats(&[2, 0, 7, 9, 2]).conv3d_with(&floats(&[6, 2, 1, 5, 2]), stride),
        "conv3d",
    );
    let general = ConvGeneral {
        kernel_dilation: vec![5],
        padding_lo: vec![1],
        ..ConvGeneral::default()
    };
    refused(
        floats(&[1, 4, 2]).conv_general(&floats(&[1, 2, 2]), &general),
        "conv_general",
    );
    let cut = ConvTranspose {
        padding: [3],
        ..ConvTranspose::default()
    };
    refused(
        floats(&[1, 2, 2]).conv_transpose1d_with(&floats(&[1, 3, 2]), cut),
        "conv_transpose1d",
    );
    // The largest kernels that fit.
    let whole = floats(&[1, 3, 2]).conv1d(&floats(&[1, 3, 2]))?;
    assert_eq!((whole.shape(), whole.item::<f32>()?), (&[1, 1, 1][..], 6.0));
    let padded = Conv {
        padding: [1],
        ..Conv::default()
    };
    let whole = floats(&[1, 1, 2]).conv1d_with(&floats(&[1, 3, 2]), padded)?;
    assert_eq!((whole.shape(), whole.item::<f32>()?), (&[1, 1, 1][..], 2.0));
    let cut = ConvTranspose {
        padding: [1],
        ..ConvTranspose::default()
    };
    let one = floats(&[1, 1, 2]).conv_transpose1d_with(&floats(&[1, 3, 2]), cut)?;
    assert_eq!((one.shape(), one.item::<f32>()?), (&[1, 1, 1][..], 2.0));
    Ok(())
}

#[test]
fn noise_of_no_keys_is_empty() -> Result<()> {
    use mlx_core::random::{Key, bits};
    use mlx_core::transforms::vmap_with;

    let keys = Array::from_slice::<u32>(&[], &[0, 2])?;
    let noise = mlx_core::fast::gumbel(&keys, 3)?;
    assert_eq!((noise.shape(), noise.dtype()), (&[0, 3][..], DType::F32));
    assert!(noise.to_vec::<f32>()?.is_empty());
    assert!(mlx_core::fast::gumbel(&ones(&[0, 3], DType::U32)?, 3).is_err());
    let draw = |keys: &[Array]| Ok(vec![bits(&Key::from_array(keys[0].clone())?, &[3], 4)?]);
    let error = vmap_with(draw, &[keys], &[Some(0)], &[Some(0)]).unwrap_err();
    assert!(error.to_string().contains("which has size 0"), "{error}");
    Ok(())
}

#[test]
fn triangles_without_elements_need_no_memory() -> Result<()> {
    mlx_core::memory::reset_peak()?;
    for (n, m) in [(0, i32::MAX), (i32::MAX, 0)] {
        assert_eq!(mlx_core::tri_with(n, m, 0, DType::F32)?.shape(), [n, m]);
        assert!(
            mlx_core::tri_with(n, m, 0, DType::F32)?
                .to_vec::<f32>()?
                .is_empty()
        );
        let empty = mlx_core::zeros(&[n, m], DType::F32)?;
        for part in [mlx_core::tril(&empty)?, mlx_core::triu(&empty)?] {
            assert_eq!(part.shape(), [n, m]);
            assert!(part.to_vec::<f32>()?.is_empty());
        }
    }
    assert!(mlx_core::memory::peak()? < 1 << 20);
    Ok(())
}

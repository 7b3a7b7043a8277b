//! Quantised matrices: the existing schemes, the parts that fit together, and products compared with plain ones.

use mlx_core::fast::quantized_experts_linear;
use mlx_core::random::{self, Key};
use mlx_core::{
    Array, DType, Device, DeviceKind, ErrorKind, QuantMode, Quantized, Result, Scheme,
    dequantize_with, gather_qmm_with, ones, qqmm, quantize_with, quantized_matmul_with, zeros,
};

fn schemes() -> Vec<Scheme> {
    let affine = [1, 2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128].map(|group| (QuantMode::Affine, bits, group)));
    let others = [
        (QuantMode::Mxfp4, 4, 32),
        (QuantMode::Mxfp8, 8, 32),
        (QuantMode::Nvfp4, 4, 16),
    ];
    affine
        .chain(others)
        .map(|(mode, bits, group)| Scheme::new(group, bits, mode).unwrap())
        .collect()
}

fn normal(seed: u64, shape: &[i32]) -> Array {
    random::normal(&Key::new(seed).unwrap(), shape, DType::F32).unwrap()
}

fn largest(array: &Array) -> f32 {
    array
        .abs()
        .unwrap()
        .astype(DType::F32)
        .unwrap()
        .max(.., false)
        .unwrap()
        .item()
        .unwrap()
}

#[test]
fn modes_have_names() {
    for mode in QuantMode::ALL {
        assert_eq!(QuantMode::parse(mode.name()).unwrap(), mode);
        let default = Scheme::default_of(mode);
        assert_eq!(
            Scheme::new(default.group_size, default.bits, mode).unwrap(),
            default
        );
    }
    let error = QuantMode::parse("int4").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(
        error.to_string(),
        "quantization mode \"int4\" is unknown; known: affine, mxfp4, mxfp8, nvfp4"
    );
}

#[test]
fn unknown_schemes_are_refused() {
    for (mode, bits, group) in [
        (QuantMode::Affine, 7, 64),
        (QuantMode::Affine, 0, 64),
        (QuantMode::Affine, 4, 0),
        (QuantMode::Affine, 4, 16),
        (QuantMode::Affine, 4, -32),
        (QuantMode::Mxfp4, 4, 64),
        (QuantMode::Mxfp4, 8, 32),
        (QuantMode::Mxfp8, 4, 32),
        (QuantMode::Nvfp4, 4, 32),
    ] {
        assert_eq!(
            Scheme::new(group, bits, mode).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        // A scheme that was written by hand is checked where it is used.
        let scheme = Scheme {
            mode,
            bits,
            group_size: group,
        };
        assert_eq!(
            quantize_with(&ones(&[2, 128], DType::F32).unwrap(), scheme)
                .unwrap_err()
                .kind(),
            ErrorKind::Unsupported
        );
    }
    let error = Scheme::new(64, 7, QuantMode::Affine).unwrap_err();
    assert_eq!(
        error.to_string(),
        "affine quantization has bits [1, 2, 3, 4, 5, 6, 8], given 7"
    );
}

#[test]
fn nothing_quantises_to_nothing() -> Result<()> {
    for scheme in schemes() {
        for shape in [[0, 0], [3, 0], [0, 256]] {
            let parts = quantize_with(&zeros(&shape, DType::BF16)?, scheme)?;
            let words = shape[1] * scheme.bits / 32;
            let groups = [shape[0], shape[1] / scheme.group_size];
            assert_eq!(parts.packed.shape(), [shape[0], words], "{scheme}");
            assert_eq!(parts.scales.shape(), groups, "{scheme}");
            let affine = scheme.mode == QuantMode::Affine;
            let dtype = if affine { DType::BF16 } else { DType::U8 };
            assert_eq!(parts.scales.dtype(), dtype, "{scheme}");
            assert_eq!(parts.biases.is_some(), affine, "{scheme}");
            let packed = parts.packed.to_vec::<u32>()?;
            assert!(packed.is_empty(), "{scheme}");
        }
    }
    // A shape that does not fit is refused without elements as it is with elements.
    let scheme = Scheme::default_of(QuantMode::Affine);
    assert!(quantize_with(&zeros(&[0, 3], DType::BF16)?, scheme).is_err());
    assert!(quantize_with(&zeros(&[0, 64], DType::I32)?, scheme).is_err());
    assert!(quantize_with(&zeros(&[0], DType::BF16)?, scheme).is_err());
    Ok(())
}

#[test]
fn experts_of_no_rows_give_no_rows() -> Result<()> {
    let scheme = Scheme::new(32, 8, QuantMode::Affine)?;
    let w = quantize_with(&normal(1, &[4, 32, 64]), scheme)?;
    let at = Array::from_slice(&[1i32, 0, 2], &[3])?;
    for rows in [0, 2] {
        let x = normal(2, &[3, rows, 64]);
        let biases = w.biases.as_ref();
        let y = quantized_experts_linear(&x, &w.packed, &w.scales, biases, &at, scheme)?;
        assert_eq!(y.shape(), [3, rows, 32]);
        assert_eq!(y.to_vec::<f32>()?.len(), 3 * 32 * rows as usize);
    }
    Ok(())
}

#[test]
fn products_equal_those_of_the_matrix_that_is_meant() -> Result<()> {
    for scheme in schemes() {
        let w = normal(1, &[32, 128]);
        let Quantized {
            packed,
            scales,
            biases,
        } = quantize_with(&w, scheme)?;
        assert_eq!(packed.shape(), [32, 128 * scheme.bits / 32], "{scheme:?}");
        assert_eq!(scales.shape(), [32, 128 / scheme.group_size], "{scheme:?}");
        assert_eq!(biases.is_some(), scheme.mode == QuantMode::Affine);
        let meant = dequantize_with(&packed, &scales, biases.as_ref(), scheme, Some(DType::F32))?;
        // One bit is the coarsest, and its error is still below the largest weight.
        let bound = if scheme.bits == 1 {
            4.0
        } else {
            3.0 / f32::from(1u8 << (scheme.bits - 1).min(4)) + 0.3
        };
        assert!(largest(&meant.subtract(&w)?) < bound, "{scheme:?}");
        for rows in [1, 5, 9] {
            let x = normal(2, &[rows, 128]);
            let found = quantized_matmul_with(&x, &packed, &scales, biases.as_ref(), true, scheme)?;
            let expected = x.matmul(&meant.t()?)?;
            let error = largest(&found.subtract(&expected)?);
            assert!(error < 1e-4, "{scheme:?}, {rows} rows: {error}");
        }
        let x = normal(3, &[3, 32]);
        let found = quantized_matmul_with(&x, &packed, &scales, biases.as_ref(), false, scheme)?;
        assert!(
            largest(&found.subtract(&x.matmul(&meant)?)?) < 1e-4,
            "{scheme:?}, not transposed"
        );
    }
    Ok(())
}

#[test]
fn chosen_experts_equal_their_own_products() -> Result<()> {
    for scheme in schemes() {
        let experts = normal(4, &[3, 16, 128]);
        let Quantized {
            packed,
            scales,
            biases,
        } = quantize_with(&experts, scheme)?;
        let meant = dequantize_with(&packed, &scales, biases.as_ref(), scheme, Some(DType::F32))?;
        let x = normal(5, &[4, 1, 128]);
        let lhs = Array::from_slice(&[3u32, 0, 2, 2], &[4])?;
        let rhs = Array::from_slice(&[0u32, 1, 1, 2], &[4])?;
        let found = gather_qmm_with(
            &x,
            &packed,
            &scales,
            biases.as_ref(),
            Some(&lhs),
            Some(&rhs),
            true,
            scheme,
            true,
        )?;
        let expected = x
            .take(&lhs, 0)?
            .matmul(&meant.take(&rhs, 0)?.swapaxes(-1, -2)?)?;
        assert_eq!(found.shape(), [4, 1, 16]);
        assert!(largest(&found.subtract(&expected)?) < 1e-4, "{scheme:?}");
    }
    Ok(())
}

#[test]
fn parts_that_do_not_belong_together_are_refused() -> Result<()> {
    let scheme = Scheme::new(32, 4, QuantMode::Affine)?;
    let Quantized {
        packed,
        scales,
        biases,
    } = quantize_with(&normal(1, &[4, 64]), scheme)?;
    let biases = biases.unwrap();
    let x = normal(2, &[2, 64]);
    let mxfp4 = Scheme::new(32, 4, QuantMode::Mxfp4)?;
    let floats = |shape: &[i32]| zeros(shape, DType::F32).unwrap();
    let whole = |array: &Array| array.astype(DType::I32).unwrap();
    type Parts<'a> = (&'a str, Array, Array, Option<Array>, Scheme);
    let wrong: Vec<Parts> = vec![
        (
            "too few rows of scales",
            packed.clone(),
            floats(&[3, 2]),
            Some(floats(&[3, 2])),
            scheme,
        ),
        (
            "too few groups",
            packed.clone(),
            floats(&[4, 1]),
            Some(floats(&[4, 1])),
            scheme,
        ),
        (
            "too many groups",
            packed.clone(),
            floats(&[4, 3]),
            Some(floats(&[4, 3])),
            scheme,
        ),
        (
            "biases of another shape",
            packed.clone(),
            scales.clone(),
            Some(floats(&[4, 1])),
            scheme,
        ),
        ("no biases", packed.clone(), scales.clone(), None, scheme),
        (
            "biases too many",
            packed.clone(),
            zeros(&[4, 2], DType::U8)?,
            Some(biases.clone()),
            mxfp4,
        ),
        (
            "scales of floats",
            packed.clone(),
            scales.clone(),
            None,
            mxfp4,
        ),
        (
            "scales of integers",
            packed.clone(),
            whole(&scales),
            Some(biases.clone()),
            scheme,
        ),
        (
            "packed as I32",
            whole(&packed),
            scales.clone(),
            Some(biases.clone()),
            scheme,
        ),
        (
            "a scalar",
            Array::scalar(1u32)?,
            scales.clone(),
            Some(biases.clone()),
            scheme,
        ),
        (
            "other bits",
            packed.clone(),
            scales.clone(),
            Some(biases.clone()),
            Scheme::new(32, 8, QuantMode::Affine)?,
        ),
        (
            "other groups",
            packed.clone(),
            scales.clone(),
            Some(biases.clone()),
            Scheme::new(64, 4, QuantMode::Affine)?,
        ),
    ];
    for (name, packed, scales, biases, scheme) in &wrong {
        let biases = biases.as_ref();
        assert!(
            dequantize_with(packed, scales, biases, *scheme, None).is_err(),
            "dequantize: {name}"
        );
        assert!(
            quantized_matmul_with(&x, packed, scales, biases, true, *scheme).is_err(),
            "quantized_matmul: {name}"
        );
        let gathered =
            gather_qmm_with(&x, packed, scales, biases, None, None, true, *scheme, false);
        assert!(gathered.is_err(), "gather_qmm: {name}");
    }
    let narrow = normal(2, &[2, 32]);
    assert!(quantized_matmul_with(&narrow, &packed, &scales, Some(&biases), true, scheme).is_err());
    assert!(
        quantized_matmul_with(
            &Array::scalar(1f32)?,
            &packed,
            &scales,
            Some(&biases),
            true,
            scheme
        )
        .is_err()
    );
    assert!(quantize_with(&normal(1, &[4, 33]), scheme).is_err());
    assert!(quantize_with(&normal(1, &[64]), scheme).is_err());
    assert!(quantize_with(&ones(&[4, 64], DType::I32)?, scheme).is_err());
    let error = quantized_matmul_with(
        &x,
        &packed,
        &zeros(&[3, 2], DType::F32)?,
        Some(&biases),
        true,
        scheme,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "quantized_matmul: scales of shape [3, 2] do not belong to packed [4, 8] (affine, 4 bits, groups of 32)"
    );
    Ok(())
}

#[test]
fn both_sides_quantised() -> Result<()> {
    let (x, w) = (normal(1, &[1, 64]), normal(2, &[8, 64]));
    for mode in [QuantMode::Mxfp4, QuantMode::Mxfp8, QuantMode::Nvfp4] {
        let scheme = Scheme::default_of(mode);
        let coarse = |array: &Array| -> Result<Array> {
            let Quantized { packed, scales, .. } = quantize_with(array, scheme)?;
            dequantize_with(&packed, &scales, None, scheme, Some(DType::F32))
        };
        let expected = coarse(&x)?.matmul(&coarse(&w)?.t()?)?;
        let Quantized { packed, scales, .. } = quantize_with(&w, scheme)?;
        let found = qqmm(&x, &packed, Some(&scales), scheme)?;
        assert_eq!(found.shape(), [1, 8]);
        let error = largest(&found.subtract(&expected)?);
        assert!(error < 1e-3, "{mode}: {error}");
        let rows = normal(1, &[2, 64]);
        if Device::default_device()?.kind == DeviceKind::Cpu {
            assert_eq!(
                qqmm(&rows, &w, None, scheme).unwrap_err().kind(),
                ErrorKind::Unsupported
            );
        }
    }
    let affine = Scheme::default_of(QuantMode::Affine);
    assert_eq!(
        qqmm(&x, &w, None, affine).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    Ok(())
}

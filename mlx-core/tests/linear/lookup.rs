//! Rows of dense and packed matrices, unpacked.

use mlx_core::ops::quantize::{QuantMode, quantize_with};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result, fast};

use super::cases::{normal, schemes};
use super::{FLOATS, floats, kernels_are_off};

#[test]
fn rows_are_those_of_the_wide_matrix() -> Result<()> {
    let ids = Array::from_slice(&[3i32, -1, 0, 69, 3, -70], &[2, 3])?;
    let turned = ids.swapaxes(0, 1)?;
    for dtype in FLOATS {
        let wide = normal(5, &[70, 33], dtype)?;
        let found = fast::rows(&wide, &turned)?;
        assert_eq!((found.shape(), found.dtype()), (&[3, 2, 33][..], dtype));
        assert_eq!(floats(&found), floats(&wide.take(&turned, 0)?));
        let rounding = match dtype {
            DType::F16 => 2f32.powi(-11),
            DType::BF16 => 2f32.powi(-8),
            _ => 2f32.powi(-22),
        };
        for scheme in schemes() {
            let parts = quantize_with(&normal(6, &[70, 5 * 128], dtype)?, scheme)?;
            let (packed, scales, biases) = (&parts.packed, &parts.scales, parts.biases.as_ref());
            let exact = |a: &Array| match scheme.mode {
                QuantMode::Affine => a.astype(DType::F32),
                _ => Ok(a.clone()),
            };
            let (scales32, biases32) = (exact(scales)?, biases.map(exact).transpose()?);
            let expected = fast::plainly(|| {
                fast::quantized_rows(
                    packed,
                    &scales32,
                    biases32.as_ref(),
                    &ids,
                    scheme,
                    DType::F32,
                )
            })?;
            let found = fast::quantized_rows(packed, scales, biases, &ids, scheme, dtype)?;
            assert_eq!((found.shape(), found.dtype()), (&[2, 3, 640][..], dtype));
            let slack = if kernels_are_off() { 3.0 } else { 1.0 } * rounding;
            for (a, b) in floats(&found).iter().zip(floats(&expected)) {
                // The bias and the scaled code may each be larger than their sum.
                assert!(
                    (a - b).abs() <= slack * b.abs().max(4.0),
                    "{scheme} in {dtype}: {a} for {b}"
                );
            }
        }
    }
    // Many rows at a time, on all threads. In a table's gradient each row counts as often as it was read.
    let wide = normal(7, &[50, 64], DType::F32)?;
    let many: Vec<u32> = (0..3000).map(|i| i * i % 50).collect();
    let ids = Array::from_slice(&many, &[3000])?;
    assert_eq!(
        floats(&fast::rows(&wide, &ids)?),
        floats(&wide.take(&ids, 0)?)
    );
    let sum = |a: &[Array]| Ok(vec![fast::rows(&a[0], &ids)?.sum(.., false)?]);
    let found = floats(&grad_with(sum, std::slice::from_ref(&wide), &[0])?[0]);
    for (row, found) in found.chunks(64).enumerate() {
        let times = many.iter().filter(|&&id| id as usize == row).count() as f32;
        assert!(found.iter().all(|&x| x == times), "row {row}");
    }
    if !kernels_are_off() {
        for wrong in [50i32, -51] {
            let rows = fast::rows(&wide, &Array::from_slice(&[wrong], &[1])?)?;
            let error = rows.to_vec::<f32>().unwrap_err().to_string();
            let expected = format!("a row's number must be below 50, given {wrong}");
            assert!(error.contains(&expected), "{error}");
        }
    }
    Ok(())
}

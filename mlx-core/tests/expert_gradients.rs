//! Derivatives of products in which each row is multiplied by one of several matrices.

use mlx_core::ops::quantize::{QuantMode, Scheme, dequantize_with, quantize_with};
use mlx_core::random::{self, Key};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result, fast};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// Two experts for each of three rows; expert 3 gets no row.
const INDICES: [u32; 6] = [4, 0, 1, 4, 2, 0];

fn normal(seed: u64, shape: &[i32], dtype: DType) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32)?.astype(dtype)
}

fn assert_close(what: &str, found: &Array, expected: &Array) -> Result<()> {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let wide = |array: &Array| array.astype(DType::F32)?.to_vec::<f32>();
    let tolerance = if found.dtype() == DType::F32 {
        1e-4
    } else {
        3e-2
    };
    for (found, expected) in wide(found)?.iter().zip(wide(expected)?) {
        let off = (found - expected).abs();
        assert!(
            off <= tolerance * expected.abs().max(4.0),
            "{what}: {found}, expected {expected}"
        );
    }
    Ok(())
}

/// The sum of the products' outputs times `by`, by plain operations: each row is multiplied by a copy of its matrix.
fn plainly(x: &Array, w: &Array, indices: &Array, by: &Array) -> Result<Array> {
    let w = w.take(indices, 0)?.swapaxes(-1, -2)?;
    x.matmul(&w)?.multiply(by)?.sum(.., false)
}

#[test]
fn matrices_and_rows_have_the_gradients_of_plain_products() -> Result<()> {
    let indices = Array::from_slice(&INDICES, &[3, 2])?;
    for dtype in FLOATS {
        let w = normal(1, &[5, 24, 128], dtype)?;
        let by = normal(2, &[3, 2, 1, 24], dtype)?;
        // One row for several experts, and one row for each expert.
        for shape in [[3, 1, 1, 128], [3, 2, 1, 128]] {
            let x = normal(3, &shape, dtype)?;
            let fused = |a: &[Array]| {
                let y = fast::experts_linear(&a[0], &a[1], &indices)?;
                Ok(vec![y.multiply(&by)?.sum(.., false)?])
            };
            let plain = |a: &[Array]| Ok(vec![plainly(&a[0], &a[1], &indices, &by)?]);
            let found = grad_with(fused, &[x.clone(), w.clone()], &[0, 1])?;
            let wide = |array: &Array| array.astype(DType::F32);
            let expected = grad_with(plain, &[wide(&x)?, wide(&w)?], &[0, 1])?;
            for (what, (found, expected)) in ["x", "w"].iter().zip(found.iter().zip(&expected)) {
                assert_eq!(found.dtype(), dtype);
                assert_close(&format!("{what} {dtype} {shape:?}"), found, expected)?;
            }
            let idle = found[1].slice_axis(0, 3, 4)?.abs()?.max(.., false)?;
            assert_eq!(idle.astype(DType::F32)?.item::<f32>()?, 0.0);
        }
    }
    Ok(())
}

#[test]
fn rows_have_the_gradients_of_unpacked_matrices() -> Result<()> {
    let indices = Array::from_slice(&INDICES, &[3, 2])?;
    let (w, by) = (
        normal(1, &[5, 24, 128], DType::F32)?,
        normal(2, &[3, 2, 1, 24], DType::F32)?,
    );
    for mode in [QuantMode::Affine, QuantMode::Mxfp4, QuantMode::Mxfp8] {
        let scheme = Scheme::default_of(mode);
        let parts = quantize_with(&w, scheme)?;
        let biases = parts.biases.as_ref();
        let dense = dequantize_with(
            &parts.packed,
            &parts.scales,
            biases,
            scheme,
            Some(DType::F32),
        )?;
        let x = normal(3, &[3, 1, 1, 128], DType::F32)?;
        let packed = |a: &[Array]| {
            let (w, scales) = (&parts.packed, &parts.scales);
            let y = fast::quantized_experts_linear(&a[0], w, scales, biases, &indices, scheme)?;
            Ok(vec![y.multiply(&by)?.sum(.., false)?])
        };
        let plain = |a: &[Array]| Ok(vec![plainly(&a[0], &dense, &indices, &by)?]);
        let found = grad_with(packed, std::slice::from_ref(&x), &[0])?;
        let expected = grad_with(plain, &[x], &[0])?;
        assert_close(&format!("{scheme}"), &found[0], &expected[0])?;
    }
    Ok(())
}

/// A copy of the matrix for each row would take far more memory than the gradient of the matrices.
#[test]
fn rows_of_an_expert_are_added_as_they_are_multiplied() -> Result<()> {
    if std::env::var("MLX_CPU_KERNELS").as_deref() == Ok("off") {
        return Ok(());
    }
    let (w, x) = (
        normal(1, &[4, 64, 256], DType::F32)?,
        normal(2, &[1000, 1, 1, 256], DType::F32)?,
    );
    let indices = random::randint(&Key::new(3)?, 0, 4, &[1000, 2], DType::I32)?;
    mlx_core::eval([&w, &x, &indices])?;
    let of_w = |a: &[Array]| {
        Ok(vec![
            fast::experts_linear(&x, &a[0], &indices)?.sum(.., false)?,
        ])
    };
    mlx_core::memory::reset_peak()?;
    let before = mlx_core::memory::active()?;
    let found = grad_with(of_w, &[w], &[0])?;
    mlx_core::eval(&found)?;
    let peak = mlx_core::memory::peak()? - before;
    let rows = 2000 * 256 * 4;
    assert!(
        peak < 8 * rows,
        "{peak} bytes, a product of each row {}",
        64 * rows
    );
    Ok(())
}

//! Products and embeddings.

use mlx_core::fast::{self, Gate, plainly};
use mlx_core::ops::quantize::Scheme;
use mlx_core::{Array, DType, Result};

use super::{FOUR, HALVES, Weights, close, noise, on_gpu, same, schemes};

#[test]
fn products_of_every_coding() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for scheme in schemes().into_iter().map(Some).chain([None]) {
            for (m, n, k) in [
                (1, 48, 128),
                (3, 40, 384),
                (9, 64, 1152),
                (17, 33, 2176),
                (70, 16, 256),
                (200, 136, 1152),
            ] {
                let x = noise(1, &[m, k], dtype)?;
                let (a, b) = (
                    Weights::new(2, n, k, dtype, scheme)?,
                    Weights::new(3, n + 8, k, dtype, scheme)?,
                );
                let what = format!("{dtype} {scheme:?} {m} {n} {k}");
                let both = fast::linear_many(&x, &[a.matrix(), b.matrix()])?;
                close(&what, &both[0], &a.times(&x)?, tolerance)?;
                close(&what, &both[1], &b.times(&x)?, tolerance)?;
                let c = Weights::new(4, n, k, dtype, scheme)?;
                for gate in [Gate::Silu, Gate::GeluTanh] {
                    let y = fast::gated_linear(gate, &x, &a.matrix(), &c.matrix())?;
                    let wanted = plainly(|| fast::gated(gate, &a.times(&x)?, &c.times(&x)?))?;
                    close(&format!("{what} {gate:?}"), &y, &wanted, 2.0 * tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_row_is_the_same_in_every_batch() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    // The last is packed in another order.
    let eight = Scheme { bits: 8, ..FOUR };
    for scheme in [None, Some(FOUR), Some(eight)] {
        // The second is expanded in slices; the third has rows and columns beyond the last tile.
        for (n, k) in [(1152, 6912), (16640, 1152), (1000, 448)] {
            let w = Weights::new(2, n, k, DType::BF16, scheme)?;
            // More rows are computed by cuBLAS by default, except on Hopper.
            let off = std::env::var("MLX_CUDA_CUBLAS").as_deref() == Ok("off");
            let most = if off { 1200 } else { 128 };
            let x = noise(1, &[most, k], DType::BF16)?;
            let all = fast::linear_many(&x, &[w.matrix(), w.matrix()])?.remove(0);
            for m in [
                1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65, 96, 125, 200, 297, 560,
            ] {
                if m + 3 > most {
                    break;
                }
                let some =
                    fast::linear_many(&x.slice_axis(0, 3, 3 + m)?, &[w.matrix(), w.matrix()])?
                        .remove(1);
                same(
                    &format!("{scheme:?} {n} {k} {m}"),
                    &some,
                    &all.slice_axis(0, 3, 3 + m)?,
                )?;
            }
            let gated = |x: &Array| fast::gated_linear(Gate::GeluTanh, x, &w.matrix(), &w.matrix());
            let few = gated(&x.slice_axis(0, 3, 12)?)?;
            same("gated", &few, &gated(&x)?.slice_axis(0, 3, 12)?)?;
        }
    }
    Ok(())
}

#[test]
fn rows_of_an_embedding() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let ids = Array::from_slice(&[5u32, 0, 63, 5], &[2, 2])?;
    for (dtype, _) in HALVES {
        for scheme in schemes().into_iter().map(Some).chain([None]) {
            let w = Weights::new(2, 64, 384, dtype, scheme)?;
            let found = match &w.parts {
                (weight, None) => fast::rows(weight, &ids)?,
                (packed, Some((scales, biases, scheme))) => {
                    fast::quantized_rows(packed, scales, biases.as_ref(), &ids, *scheme, dtype)?
                }
            };
            same(
                &format!("{dtype} {scheme:?}"),
                &found,
                &w.wide.take(&ids, 0)?,
            )?;
        }
    }
    Ok(())
}

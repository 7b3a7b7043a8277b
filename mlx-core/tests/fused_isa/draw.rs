//! Draws of tokens, compared with the same by ordinary operations.

use std::sync::Arc;

use mlx_core::fast::{self, Draw, NO_TOKEN, plainly};
use mlx_core::{Array, DType, Result, random};

use super::{TYPES, normal};

/// No filter, each filter alone, all together, and the largest.
fn settings(key: u32) -> Vec<Draw> {
    let plain = Draw {
        temperature: 1.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        key: [key, 7],
    };
    let with = |temperature, top_p, min_p, top_k| Draw {
        temperature,
        top_p,
        min_p,
        top_k,
        ..plain
    };
    vec![
        plain,
        with(0.7, 0.9, 0.0, 0),
        with(1.5, 1.0, 0.05, 0),
        with(1.0, 1.0, 0.0, 40),
        with(0.8, 0.95, 0.01, 20),
        with(3.0, 0.999, 0.0, 5000),
        with(0.0, 0.5, 0.1, 3),
        with(0.01, 1.0, 0.0, 0),
        // The settings of greedy sampling.
        with(1.0, 1.0, 0.0, 1),
    ]
}

/// Runs in the settings of its process: `every_instruction_set_and_number_of_threads` starts it with many.
#[test]
fn draws() -> Result<()> {
    if super::kernels_are_off() {
        return Ok(());
    }
    let mut digest = 0u64;
    let sizes = [1, 2, 3, 31, 64, 129, 1000, 16_384, 16_387, 50_001];
    for (case, v) in (0u32..).zip(sizes) {
        for (dtype, factor) in TYPES.into_iter().flat_map(|t| [(t, 1.0f32), (t, 8.0)]) {
            let rows: Vec<Draw> = settings(case)
                .into_iter()
                .chain(settings(case + 100))
                .collect();
            let b = rows.len() as i32;
            let x = normal(u64::from(case), &[b, v], DType::F32)?.multiply(factor)?;
            let x = x.astype(dtype)?;
            let found = fast::draw(&x, &rows)?.checked.to_vec::<u32>()?;
            let expected = plainly(|| fast::draw(&x, &rows))?.checked.to_vec::<u32>()?;
            assert_eq!(found, expected, "{v} of {dtype}, times {factor}");
            // Neither the other rows nor the layout of the array change the result.
            let turned = x.swapaxes(0, 1)?.contiguous()?.swapaxes(0, 1)?;
            assert_eq!(
                fast::draw(&turned, &rows)?.checked.to_vec::<u32>()?,
                expected
            );
            let some = x.slice_axis(0, 3, 5)?;
            assert_eq!(
                fast::draw(&some, &rows[3..5])?.checked.to_vec::<u32>()?,
                expected[3..5]
            );
            for id in found {
                digest = (digest ^ u64::from(id)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}

/// Noise chooses among equal logits; among equal logits at the limit of `top_k`, the first ones are kept.
#[test]
fn equal_logits() -> Result<()> {
    for v in [5, 300, 40_000] {
        let x = Array::from_slice(&vec![2.5f32; v as usize], &[1, v])?;
        for key in 0..4 {
            for mut draw in settings(key) {
                let found = fast::draw(&x, &[draw])?.checked.to_vec::<u32>()?;
                assert_eq!(
                    found,
                    plainly(|| fast::draw(&x, &[draw]))?
                        .checked
                        .to_vec::<u32>()?
                );
                draw.top_k = 2;
                let found = fast::draw(&x, &[draw])?.checked.to_vec::<u32>()?;
                assert!(found[0] < 2, "{draw:?}: {found:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn rows_that_are_no_numbers_have_no_token() -> Result<()> {
    let (nan, low) = (f32::NAN, f32::NEG_INFINITY);
    let rows = [
        [0.0, 1.0, nan],
        [low, low, low],
        [low, 3.0, low],
        [0.0, f32::INFINITY, 1.0],
        [nan, nan, nan],
    ];
    let x = Array::from_slice(&rows.concat(), &[5, 3])?;
    for draw in settings(1) {
        let found = |drawn: fast::Drawn| drawn.checked.to_vec::<u32>();
        let kernel = found(fast::draw(&x, &[draw; 5])?)?;
        let plain = found(plainly(|| fast::draw(&x, &[draw; 5]))?)?;
        // MLX's own argmax takes NaN as the largest.
        let passed_by = draw.temperature == 0.0 && !super::kernels_are_off();
        let first = if passed_by { 1 } else { NO_TOKEN };
        assert_eq!(kernel, [first, NO_TOKEN, 1, NO_TOKEN, NO_TOKEN], "{draw:?}");
        let ids = fast::draw(&x, &[draw; 5])?.ids.to_vec::<u32>()?;
        assert_eq!(
            ids,
            [first, 0, 1, 0, 0].map(|id| if id == NO_TOKEN { 0 } else { id })
        );
        assert_eq!(
            plain,
            [NO_TOKEN, NO_TOKEN, 1, NO_TOKEN, NO_TOKEN],
            "{draw:?}"
        );
    }
    Ok(())
}

#[test]
fn noise_is_of_the_formula() -> Result<()> {
    let words = [3u32, 4];
    let keys = Array::from_slice(&words, &[1, 2])?;
    let found = fast::gumbel(&keys, 65)?.to_vec::<f32>()?;
    let key = random::Key::from_array(Array::from_slice(&words, &[2])?)?;
    let bits = random::bits(&key, &[65], 4)?.to_vec::<u32>()?;
    for (bits, found) in bits.into_iter().zip(found) {
        let u = (f64::from(bits) + 0.5) / 4_294_967_296.0;
        let exact = -(-(-u).ln_1p()).ln();
        assert!((f64::from(found) - exact).abs() < 1e-4, "{bits}: {found}");
    }
    let many = fast::gumbel(&keys, 1 << 20)?.to_vec::<f32>()?;
    assert!(many.iter().all(|g| g.is_finite()));
    // A standard Gumbel variable has the mean 0.5772 (Euler's constant) and the variance pi^2 / 6.
    let n = many.len() as f64;
    let mean = many.iter().map(|&g| f64::from(g)).sum::<f64>() / n;
    let square = |g: &f32| (f64::from(*g) - mean).powi(2);
    let variance = many.iter().map(square).sum::<f64>() / n;
    assert!(
        (mean - 0.5772).abs() < 0.01 && (variance - 1.6449).abs() < 0.03,
        "{mean} {variance}"
    );
    Ok(())
}

#[test]
fn what_cannot_be_drawn_from_is_refused() -> Result<()> {
    let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
    let good = settings(1)[0];
    let error = fast::draw(&x, &[good, good]).expect_err("there is one row");
    assert!(
        error.to_string().contains("settings for each row"),
        "{error}"
    );
    let whole = x.astype(DType::I32)?;
    let error = fast::draw(&whole, &[good]).expect_err("whole numbers");
    assert!(error.to_string().contains("floating point"), "{error}");
    for bad in [
        Draw {
            temperature: -1.0,
            ..good
        },
        Draw {
            temperature: f32::NAN,
            ..good
        },
        Draw {
            temperature: 1e-42,
            ..good
        },
        Draw { top_p: 0.0, ..good },
        Draw { top_p: 1.5, ..good },
        Draw {
            min_p: f32::NAN,
            ..good
        },
    ] {
        let error = fast::draw(&x, &[bad]).expect_err("out of range");
        assert!(error.to_string().contains("top_p in (0, 1]"), "{error}");
    }
    Ok(())
}

/// Forbidden tokens get minus infinity; NaN, infinity and rows without a mask are unchanged.
#[test]
fn masks_forbid_tokens() -> Result<()> {
    for dtype in TYPES {
        for v in [1i32, 31, 32, 33, 1000, 50_001] {
            let x = normal(v as u64, &[3, v], DType::F32)?;
            let mut values = x.to_vec::<f32>()?;
            let last = values.len() - 1;
            (values[0], values[last]) = (f32::NAN, f32::INFINITY);
            let x = Array::from_slice(&values, &[3, v])?.astype(dtype)?;
            let words = (v as usize).div_ceil(32);
            let mask = |seed: u32| -> Arc<[u32]> {
                let word = |at: usize| (at as u32 + seed).wrapping_mul(0x9e37_79b9);
                (0..words).map(word).collect()
            };
            let rows = [Some(mask(1)), None, Some(mask(2))];
            let bits = |x: &Array| -> Result<Vec<u32>> {
                let values = x.astype(DType::F32)?.to_vec::<f32>()?;
                Ok(values.iter().map(|value| value.to_bits()).collect())
            };
            let mut expected = bits(&x)?;
            for (at, bits) in expected.iter_mut().enumerate() {
                let (row, id) = (at / v as usize, at % v as usize);
                let is_allowed = |mask: &Arc<[u32]>| mask[id / 32] >> (id % 32) & 1 == 1;
                let value = f32::from_bits(*bits);
                let stays = value.is_nan() || value == f32::INFINITY;
                if !stays && !rows[row].as_ref().is_none_or(is_allowed) {
                    *bits = f32::NEG_INFINITY.to_bits();
                }
            }
            assert_eq!(bits(&fast::allow(&x, &rows)?)?, expected, "{v} of {dtype}");
            let plain = plainly(|| fast::allow(&x, &rows))?;
            assert_eq!(bits(&plain)?, expected, "{v} of {dtype}, plainly");
            // The logits themselves are unchanged.
            let turned = x.swapaxes(0, 1)?.contiguous()?.swapaxes(0, 1)?;
            assert_eq!(bits(&fast::allow(&turned, &rows)?)?, expected);
            assert_eq!(
                x.slice_axis(0, 1, 2)?
                    .isinf()?
                    .any(-1, false)?
                    .to_vec::<bool>()?,
                [false]
            );
        }
    }
    let x = normal(1, &[2, 33], DType::F32)?;
    let short: Arc<[u32]> = vec![0].into();
    for rows in [vec![None], vec![None, Some(short)]] {
        let error = fast::allow(&x, &rows)
            .expect_err("they do not fit")
            .to_string();
        assert!(error.starts_with("a mask of tokens needs"), "{error}");
    }
    Ok(())
}

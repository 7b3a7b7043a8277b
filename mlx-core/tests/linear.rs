//! Products with 16-bit and packed weights: right, and the same beside any other rows and on every instruction set.

use std::env;
use std::process::{Command, Output};

use mlx_core::fast;
use mlx_core::ops::quantize::{QuantMode, Scheme};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result};

#[path = "linear/cases.rs"]
mod cases;
#[path = "linear/experts.rs"]
mod experts;
#[path = "linear/gated.rs"]
mod gated;
#[path = "linear/lookup.rs"]
mod lookup;
#[path = "linear/together.rs"]
mod together;

use cases::{FEW, SOME, cases, dense, normal, packed};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Whether the process uses MLX's own operations, which round more often and have other errors for
/// indices.
fn kernels_are_off() -> bool {
    env::var("MLX_CPU_KERNELS").as_deref() == Ok("off")
}

fn floats(array: &Array) -> Vec<f32> {
    array.astype(DType::F32).unwrap().to_vec().unwrap()
}

/// Whether `found` is the product of a row of x and one of w, rounded once. `step` is the rounding step of x's largest
/// element, where x was rounded before.
fn is_product(found: f32, x: &[f32], w: &[f32], last_place: f64, step: f64) -> bool {
    let terms = x.iter().zip(w).map(|(a, b)| f64::from(a * b));
    let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
    let slack = last_place * f64::from(sum as f32).abs() + size * 2f64.powi(-21);
    let error = (f64::from(found) - sum).abs();
    if step == 0.0 {
        return error <= slack;
    }
    let largest = f64::from(x.iter().fold(0f32, |m, x| m.max(x.abs())));
    let norm = f64::from(w.iter().map(|w| w * w).sum::<f32>()).sqrt();
    error <= slack + step * largest * norm
}

/// Compares some elements of every case with the product in f64, and returns a digest of all results.
fn compare(rows: &[i32]) -> Result<u64> {
    // The same elements were compared in the run with fewer threads.
    let only_digest = env::var_os("ONLY_DIGEST").is_some();
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    for dtype in FLOATS {
        let last_place = match dtype {
            DType::F32 => 2f64.powi(-24),
            DType::F16 => 2f64.powi(-11),
            _ => 2f64.powi(-8),
        };
        for case in cases(dtype)? {
            let (n, k) = (case.wide.dim(0)? as usize, case.wide.dim(1)? as usize);
            let w = floats(&case.wide);
            let exact = case.exact.as_ref().map(floats);
            for &m in rows {
                let x = normal(4, &[m, k as i32], dtype)?;
                let y = (case.product)(&x)?;
                assert_eq!((y.shape(), y.dtype()), (&[m, n as i32][..], dtype));
                let (x, y) = (floats(&x), floats(&y));
                for (i, found) in y.iter().enumerate() {
                    digest = (digest ^ u64::from(found.to_bits())).wrapping_mul(0x100_0000_01b3);
                    // A stride that reaches every row and column.
                    if only_digest || i % 31 != 0 && m > 1 {
                        continue;
                    }
                    let row = &x[i / n * k..][..k];
                    let of = |w: &[f32], step| {
                        is_product(*found, row, &w[i % n * k..][..k], last_place, step)
                    };
                    // Five standard deviations of numbers that are rounded to 1/32639 of the largest.
                    let step = 5.0 / 32639.0 / 12f64.sqrt();
                    assert!(
                        of(&w, 0.0) || exact.as_ref().is_some_and(|w| of(w, step)),
                        "{}, {m} rows, element {i}: {found}",
                        case.name
                    );
                }
            }
        }
    }
    Ok(digest)
}

/// Numbers of rows for every shape of tiles. Runs in the settings of its process: `every_instruction_set` starts it
/// with many.
#[test]
fn products_are_right() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    println!("digest {:016x}", compare(&[1, 3, 6, 12, 19, 41, 57, 130])?);
    Ok(())
}

fn child(settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["products_are_right", "--exact", "--nocapture"]);
    if settings.iter().all(|(name, _)| *name != "ONLY_DIGEST") {
        command.arg("a_row_is_the_same_among_any_rows");
    }
    if settings.iter().any(|(name, _)| *name == "ONLY_DIGEST") {
        command.arg("gated::gated_products_are_those_of_three_nodes");
        command.arg("together::products_together_are_those_apart");
    }
    command.env_remove("MLX_CPU_KERNELS");
    command.envs(settings.iter().copied()).output().unwrap()
}

/// The instruction sets of this machine, as the error for a wrong name lists them.
fn isas() -> Vec<String> {
    let output = child(&[("MLX_CPU_ISA", "none")]);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let list = text.split("this machine has (").nth(1).unwrap();
    let list = list.split(')').next().unwrap();
    list.split(", ").map(str::to_owned).collect()
}

/// The children always use this crate's kernels, so a run with the kernels switched off would
/// repeat the run with them.
#[test]
#[cfg(not(target_os = "macos"))]
fn every_instruction_set() {
    if kernels_are_off() {
        return;
    }
    for isa in isas() {
        let of_threads = ["1", "3"].map(|threads| {
            let mut settings = vec![("MLX_CPU_ISA", isa.as_str()), ("MLX_CPU_THREADS", threads)];
            if threads != "1" {
                settings.push(("ONLY_DIGEST", "1"));
            }
            let output = child(&settings);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                output.status.success(),
                "{isa}: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            text.split("digest ").nth(1).unwrap()[..16].to_owned()
        });
        assert_eq!(of_threads[0], of_threads[1], "{isa}: threads show");
    }
}

/// Whether products in 16 bits use tiles, which few rows of x do not fill.
fn has_tiles() -> bool {
    if kernels_are_off() {
        return false;
    }
    let isa = env::var("MLX_CPU_ISA").ok();
    isa.or_else(|| isas().pop()).as_deref() == Some("amx")
}

#[test]
fn a_row_is_the_same_among_any_rows() -> Result<()> {
    let has_tiles = has_tiles();
    for dtype in FLOATS {
        for case in cases(dtype)? {
            let x = normal(5, &[130, case.wide.dim(1)?], dtype)?;
            let n = case.wide.dim(0)? as usize;
            let of = |from, to| Ok(floats(&(case.product)(&x.slice_axis(0, from, to)?)?));
            let all = of(0, 130)?;
            let by = |rows: i32| -> Result<Vec<f32>> {
                let parts = (0..130).step_by(rows as usize);
                let parts = parts.map(|i| of(i, (i + rows).min(130)));
                Ok(parts.collect::<Result<Vec<_>>>()?.concat())
            };
            // Up to FEW rows may have other bits than many rows, and up to SOME rows may again; in f16, for which there
            // are no tiles, only more than FEW may.
            let apart = case.is_apart_if_few || (has_tiles && case.exact.is_some());
            let few_too = dtype == DType::F16 && !case.is_apart_if_few;
            let (of_few, of_some) = match apart {
                true => (by(FEW)?, by(SOME)?),
                false => (Vec::new(), Vec::new()),
            };
            let spans = [(0, 1), (7, 9), (11, 14), (20, 60), (60, 64), (64, 118)];
            let between = [(3, 8), (12, 20), (129, 130), (77, 86), (100, 116), (57, 63)];
            for (from, to) in spans.into_iter().chain(between) {
                let found = of(from, to)?;
                let rows = to - from;
                let most = if has_tiles { SOME } else { FEW };
                let expected = if !apart || rows > most || (few_too && rows <= FEW) {
                    &all
                } else if rows > FEW {
                    &of_some
                } else {
                    &of_few
                };
                assert!(
                    found == expected[from as usize * n..to as usize * n],
                    "{}, rows {from} to {to}",
                    case.name
                );
            }
        }
    }
    Ok(())
}

/// So many rows, and vectors so long, that neither fits a CPU cache: the product is computed in parts, with partial
/// sums in memory between them.
#[test]
fn many_long_rows_are_those_of_fewer() -> Result<()> {
    // MLX's own operations do not compute in parts.
    let (m, n, part) = match kernels_are_off() {
        true => (122, 150, 20),
        false => (610, 150, 100),
    };
    let affine = |bits, group| Scheme::new(group, bits, QuantMode::Affine);
    for dtype in [DType::F32, DType::BF16] {
        let cases = [
            dense(dtype, n, 3100)?,
            dense(dtype, n, 1411)?,
            packed(affine(4, 64)?, dtype, n, 3136)?,
            packed(affine(4, 32)?, dtype, n, 3104)?,
            packed(affine(8, 128)?, dtype, n, 6400)?,
            packed(Scheme::default_of(QuantMode::Mxfp4), dtype, n, 2912)?,
        ];
        for case in cases {
            let x = normal(8, &[m, case.wide.dim(1)?], dtype)?;
            let all = floats(&(case.product)(&x)?);
            let parts = (0..m).step_by(part as usize).map(|from| {
                let some = x.slice_axis(0, from, (from + part).min(m))?;
                Ok(floats(&(case.product)(&some)?))
            });
            let parts = parts.collect::<Result<Vec<_>>>()?.concat();
            assert!(all == parts, "{}", case.name);
        }
    }
    Ok(())
}

#[test]
fn nothing_that_is_not_there_is_read() -> Result<()> {
    // A NaN behind the end of a row, or in a neighbouring row, does not change the result.
    let mut w = vec![1f32; 3 * 40];
    w[2 * 40..].fill(f32::NAN);
    for dtype in FLOATS {
        let wide = Array::from_slice(&w, &[3, 40])?.astype(dtype)?;
        let x = normal(6, &[2, 40], dtype)?;
        let y = floats(&fast::linear(&x, &wide)?);
        assert!(y[0].is_finite() && y[1].is_finite() && y[2].is_nan());
        let mut rows = floats(&x);
        rows[40..].fill(f32::NAN);
        let x = Array::from_slice(&rows, &[2, 40])?.astype(dtype)?;
        let y = floats(&fast::linear(&x, &wide)?);
        assert!(y[0].is_finite() && y[3].is_nan(), "{dtype}");
    }
    Ok(())
}

#[test]
fn views_are_read_where_they_are() -> Result<()> {
    for dtype in FLOATS {
        let (x, w) = (normal(7, &[96, 12], dtype)?, normal(8, &[96, 40], dtype)?);
        let dense = fast::linear(
            &x.swapaxes(0, 1)?.contiguous()?,
            &w.swapaxes(0, 1)?.contiguous()?,
        )?;
        let views = fast::linear(&x.swapaxes(0, 1)?, &w.swapaxes(0, 1)?)?;
        assert_eq!(floats(&dense), floats(&views));
        let empty = fast::linear(&normal(7, &[0, 96], dtype)?, &w.swapaxes(0, 1)?)?;
        assert_eq!(empty.shape(), [0, 40]);
    }
    Ok(())
}

#[test]
fn gradients_are_those_of_the_wide_product() -> Result<()> {
    for dtype in FLOATS {
        for case in [
            packed(Scheme::default_of(QuantMode::Affine), dtype, 20, 128)?,
            dense(dtype, 20, 128)?,
        ] {
            let x = normal(9, &[2, 3, 128], dtype)?;
            let loss = |y: Array| y.astype(DType::F32)?.square()?.sum(.., false);
            let found = grad_with(
                |a| Ok(vec![loss((case.product)(&a[0])?)?]),
                std::slice::from_ref(&x),
                &[0],
            )?;
            let wide = case.wide.astype(dtype)?;
            let plain = |a: &[Array]| {
                let x = a[0].astype(DType::F32)?;
                let y = fast::plainly(|| fast::linear(&x, &wide.astype(DType::F32)?))?;
                // Rounded like the product; the gradient passes straight through.
                Ok(vec![loss(y)?])
            };
            let expected = grad_with(plain, std::slice::from_ref(&x), &[0])?;
            assert_eq!(found[0].dtype(), dtype);
            let close = if dtype == DType::F32 { 1e-4 } else { 0.05 };
            let (found, expected) = (floats(&found[0]), floats(&expected[0]));
            let size = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
            for (a, b) in found.iter().zip(&expected) {
                assert!((a - b).abs() <= close * size, "{}: {a} for {b}", case.name);
            }
        }
        let (x, w) = (normal(9, &[5, 7], dtype)?, normal(10, &[4, 7], dtype)?);
        let sum = |a: &[Array]| Ok(vec![fast::linear(&a[0], &a[1])?.sum(.., false)?]);
        let of_w = grad_with(sum, &[x.clone(), w], &[1])?;
        let expected = x.sum(0, true)?.broadcast_to(&[4, 7])?;
        for (a, b) in floats(&of_w[0]).iter().zip(floats(&expected)) {
            assert!((a - b).abs() <= 0.05 * b.abs().max(1.0), "{a} for {b}");
        }
    }
    Ok(())
}

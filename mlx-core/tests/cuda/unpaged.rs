//! Flat steps of rows without pages: the kernels against the plain form, against the same rows in pages, and each row alone
//! against the same row in a batch. The last two are to the bit. Tokens of no row are NaN. Rows in pages see no positions
//! after their own, so those cases are compared with attention without a mask instead.

use mlx_core::fast::{self, Attention, Mask, plainly};
use mlx_core::{Array, DType, Result};

use super::paged::{
    ALL, Case, Kind, LATENTS, MASKS, PLAIN, SIZES, STEPS, added, is_one_node, numbers, rows, sized,
    step,
};
use super::{close, f32s, on_gpu, same};

const SPARE: i32 = 3;

fn check(case: Case, tokens: &[i32]) -> Result<()> {
    let of: Vec<(i32, i32)> = tokens.iter().map(|&tokens| (0, tokens)).collect();
    let all = rows(&of);
    let most = tokens.iter().copied().max();
    for (dtype, tolerance) in [(DType::BF16, 3e-2), (DType::F16, 4e-3)] {
        let what = format!("{case:?}, {tokens:?}, {dtype}");
        let batch = step(case, &all, dtype, SPARE, 5)?;
        let (found, plain) = (batch.ragged(most)?, plainly(|| batch.ragged(most))?);
        is_one_node(&what, &found, &plain)?;
        close(&what, &found, &plain, tolerance)?;
        same(
            &format!("{what}: another bound"),
            &found,
            &batch.ragged(None)?,
        )?;
        if case.ahead == 0 {
            same(&format!("{what}: in pages"), &found, &batch.run(most)?[0])?;
        }
        let mut first = 0;
        for (at, row) in all.iter().enumerate().filter(|(_, row)| row.tokens > 0) {
            let own = found.slice_axis(2, first, first + row.tokens)?;
            first += row.tokens;
            let alone = step(case, &[*row], dtype, 0, at as i32)?.ragged(Some(row.tokens))?;
            same(&format!("{what}: row {at} alone"), &own, &alone)?;
            if case.is_whole() {
                let [q, k, v] = numbers(case, *row, dtype)?;
                let options = Attention {
                    scale: (case.dim as f32).powf(-0.5),
                    soft_cap: None,
                    mask: Mask::None,
                    sinks: None,
                };
                let dense = fast::attention(&q, &k, &v, &options)?;
                same(&format!("{what}: row {at} without a mask"), &own, &dense)?;
            }
        }
        let rest = f32s(&found.slice_axis(2, first, first + SPARE)?)?;
        assert!(rest.iter().all(|&x| x == 0.0), "{what}: tokens of no row");
    }
    Ok(())
}

/// Checks the cases in steps for which there are different kernels: few queries, many rows, and prompts.
fn check_all(cases: impl IntoIterator<Item = Case>) -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let many: Vec<i32> = [1, 3, 24, 63, 64, 65, 0, 40, 5, 2].repeat(4);
    let steps: [&[i32]; 8] = [
        &[1],
        &[5],
        &[1; 40],
        &[24; 40],
        &many,
        &[1, 3, 24, 63, 64, 65, 200, 0, 700],
        &[700, 63, 64, 65, 3],
        &[1300, 2],
    ];
    for case in cases {
        for tokens in steps {
            check(case, tokens)?;
        }
    }
    Ok(())
}

#[test]
fn rows_of_any_width() -> Result<()> {
    check_all(SIZES.into_iter().chain([LATENTS]))
}

#[test]
fn windows_caps_and_sinks() -> Result<()> {
    let others = [
        Case {
            window: Some(40),
            soft_cap: Some(20.0),
            ..PLAIN
        },
        Case {
            window: Some(64),
            has_sinks: true,
            ..PLAIN
        },
        Case {
            window: Some(40),
            ..LATENTS
        },
    ];
    check_all(others)
}

#[test]
fn both_directions() -> Result<()> {
    let seen = [
        (None, i32::MAX),
        (Some(65), 64),
        (Some(40), 7),
        (Some(1), i32::MAX),
        (None, 1),
    ];
    let of = |case: Case| {
        seen.map(|(window, ahead)| Case {
            window,
            ahead,
            ..case
        })
    };
    let mut cases: Vec<Case> = SIZES.into_iter().chain([LATENTS]).flat_map(of).collect();
    // Heads of BERT.
    cases.extend(of(sized(12, 12, 64)));
    cases.extend(of(sized(12, 12, 32)));
    for added in MASKS {
        let case = Case { added, ..PLAIN };
        cases.extend([0, 1].map(|at| of(case)[at]));
    }
    cases.extend(of(Case {
        chunk: None,
        has_slopes: false,
        ..ALL
    }));
    check_all(cases)
}

#[test]
fn chunks() -> Result<()> {
    let mut cases: Vec<Case> = [5, 64, 100].map(|size| PLAIN.in_chunks(size)).into();
    cases.extend(SIZES[1..].iter().map(|case| case.in_chunks(100)));
    cases.push(LATENTS.in_chunks(100));
    check_all(cases)
}

#[test]
fn slopes() -> Result<()> {
    check_all(SIZES.into_iter().chain([LATENTS]).map(|case| Case {
        has_slopes: true,
        ..case
    }))
}

#[test]
fn masks() -> Result<()> {
    let of_latents = Case {
        added: added(Kind::Booleans, false, true),
        ..LATENTS
    };
    let cases = MASKS.map(|added| Case { added, ..PLAIN });
    check_all(cases.into_iter().chain([of_latents, ALL]))
}

/// The same numbers in another order of memory, `[.., b, a, ..]` for axes `a` and `b`.
fn turned(x: &Array, a: i32, b: i32) -> Result<Array> {
    x.swapaxes(a, b)?.contiguous()?.swapaxes(a, b)
}

/// Where queries, keys, values and masks are in memory does not show.
#[test]
fn strides_do_not_show() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let whole: &[(i32, i32)] = &[(0, 3), (0, 70), (0, 130)];
    let kinds = [
        (Kind::Booleans, false, true),
        (Kind::Booleans, true, true),
        (Kind::Numbers, true, false),
    ];
    for (kind, by_head, by_token) in kinds {
        let case = Case {
            added: added(kind, by_head, by_token),
            ..PLAIN
        };
        for of in STEPS.into_iter().chain([whole]) {
            let what = format!("{case:?}, {of:?}");
            let most = of.iter().map(|&(_, tokens)| tokens).max();
            let is_whole = of.iter().all(|&(held, _)| held == 0);
            let straight = step(case, &rows(of), DType::BF16, SPARE, 5)?;
            let found = straight.run(most)?;
            let [_, tokens, columns] = straight.mask.as_ref().unwrap().dims()?;
            for (a, b) in [(1, 2), (0, 2)] {
                let mut other = step(case, &rows(of), DType::BF16, SPARE, 5)?;
                other.queries = turned(&other.queries, 1, 2)?;
                other.new = [turned(&other.new[0], 1, 2)?, turned(&other.new[1], 1, 2)?];
                let mask = turned(other.mask.as_ref().unwrap(), a, b)?;
                // One mask for all heads is also that mask for each head.
                other.mask = Some(mask.broadcast_to(&[case.heads, tokens, columns])?);
                same(&what, &other.run(most)?[0], &found[0])?;
                if is_whole {
                    same(&what, &other.ragged(most)?, &found[0])?;
                }
            }
        }
    }
    Ok(())
}

/// A query from which booleans, or the lowest number, hide all keys gets the mean of the values up to its position.
#[test]
fn hidden_keys_leave_the_mean() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let whole: &[(i32, i32)] = &[(0, 1), (0, 3), (0, 90), (0, 200)];
    for of in STEPS.into_iter().chain([whole]) {
        let all = rows(of);
        let columns = of
            .iter()
            .map(|&(held, tokens)| held + tokens)
            .max()
            .unwrap();
        let most = of.iter().map(|&(_, tokens)| tokens).max();
        let (d, per) = (PLAIN.value_dim as usize, PLAIN.heads / PLAIN.kv_heads);
        // Results of one token after the other, each head by head.
        let mut means = Vec::new();
        for row in &all {
            let [_, _, values] = numbers(PLAIN, *row, DType::BF16)?;
            let (values, end) = (f32s(&values)?, (row.held + row.tokens) as usize);
            let mut sums = vec![0f64; PLAIN.kv_heads as usize * d];
            for position in 0..end {
                for (at, sum) in sums.iter_mut().enumerate() {
                    *sum += f64::from(values[(at / d * end + position) * d + at % d]);
                }
                if position < row.held as usize {
                    continue;
                }
                for head in 0..PLAIN.heads {
                    let own = &sums[(head / per) as usize * d..][..d];
                    means.extend(own.iter().map(|sum| (sum / (position + 1) as f64) as f32));
                }
            }
        }
        let tokens: i32 = all.iter().map(|row| row.tokens).sum();
        let means = Array::from_slice(&means, &[1, tokens, PLAIN.heads, PLAIN.value_dim])?;
        let means = means.swapaxes(1, 2)?;
        let n = columns as usize;
        let masks = [
            Array::from_slice(&vec![false; n], &[1, 1, columns])?,
            Array::from_slice(&vec![f32::MIN; n], &[1, 1, columns])?,
        ];
        for mask in masks {
            let what = format!("{of:?}, {}", mask.dtype());
            let mut batch = step(PLAIN, &all, DType::BF16, 0, 5)?;
            batch.mask = Some(mask);
            close(&what, &batch.run(most)?[0], &means, 3e-2)?;
            if of.iter().all(|&(held, _)| held == 0) {
                close(&what, &batch.ragged(most)?, &means, 3e-2)?;
            }
        }
    }
    Ok(())
}

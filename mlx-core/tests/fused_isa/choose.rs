//! The largest logit, the n largest, and the nucleus of rows, compared with a sort on the host.

use mlx_core::{Array, DType, Result, fast};

use super::{TYPES, normal};

/// Rows of `v` logits; with `ties`, many of them equal.
fn logits(seed: u64, rows: i32, v: i32, ties: bool, dtype: DType) -> Result<Array> {
    let x = normal(seed, &[rows, v], DType::F32)?.multiply(3.0f32)?;
    let x = if ties { x.round()? } else { x };
    x.astype(dtype)
}

/// The indices of a row, largest logit first, equal ones in the order of their indices.
fn order(row: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("numbers only"));
    order
}

/// Runs in the settings of its process: `every_instruction_set_and_number_of_threads` starts it with many.
#[test]
fn choices() -> Result<()> {
    if super::kernels_are_off() {
        return Ok(());
    }
    let mut digest = 0u64;
    for (case, (rows, v)) in [(1, 1), (3, 7), (2, 1000), (2, 16_384), (1, 50_001)]
        .into_iter()
        .enumerate()
    {
        for (ties, dtype) in [false, true].into_iter().zip(TYPES.into_iter().cycle()) {
            let x = logits(case as u64, rows, v, ties, dtype)?;
            let wide = x.astype(DType::F32)?;
            let values = wide.to_vec::<f32>()?;
            let of_rows: Vec<&[f32]> = values.chunks(v as usize).collect();
            let found = fast::argmax(&x)?.to_vec::<u32>()?;
            let expected: Vec<u32> = of_rows.iter().map(|row| order(row)[0] as u32).collect();
            assert_eq!(found, expected, "{rows} x {v}, {dtype}");

            let found = fast::logsumexp(&x)?;
            let exact = fast::plainly(|| fast::logsumexp(&wide))?;
            super::check(&found, &exact, 0.0, &mut 0, "logsumexp")?;

            for n in [1, 5.min(v), v.min(700)] {
                let (ids, best) = fast::top(&wide, n as usize)?;
                let expected: Vec<u32> = of_rows
                    .iter()
                    .flat_map(|row| order(row).into_iter().take(n as usize))
                    .map(|id| id as u32)
                    .collect();
                assert_eq!(ids.to_vec::<u32>()?, expected, "{n} of {rows} x {v}");
                let taken = wide.take_along_axis(&ids, -1)?;
                assert_eq!(best.to_vec::<f32>()?, taken.to_vec::<f32>()?);
            }
            for p in [0.01f32, 0.5, 0.9, 0.999] {
                let all = Array::from_slice(&vec![p; rows as usize], &[rows, 1])?;
                let found = fast::nucleus(&wide, &all)?.to_vec::<f32>()?;
                for (row, found) in of_rows.iter().zip(&found) {
                    // Weights are in single precision: for a sum this near to p, both choices are right.
                    let [most, least] = [-2e-7, 2e-7].map(|d| nucleus(row, f64::from(p) + d));
                    let what = format!("p {p} of {rows} x {v}, ties {ties}: {found}");
                    assert!(row.contains(found), "{what}");
                    assert!((least..=most).contains(found), "{what}");
                    if least == most {
                        digest =
                            (digest ^ u64::from(found.to_bits())).wrapping_mul(0x100_0000_01b3);
                    }
                }
            }
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}

fn nucleus(row: &[f32], p: f64) -> f32 {
    let order = order(row);
    let best = f64::from(row[order[0]]);
    let weight = |&id: &usize| (f64::from(row[id]) - best).exp();
    let wanted = p * row
        .iter()
        .map(|&x| (f64::from(x) - best).exp())
        .sum::<f64>();
    let mut before = 0.0;
    let mut least = row[order[0]];
    for id in &order {
        if before >= wanted {
            break;
        }
        least = row[*id];
        before += weight(id);
    }
    least
}

#[test]
fn what_is_no_number_is_not_chosen() -> Result<()> {
    if super::kernels_are_off() {
        return Ok(());
    }
    let x = Array::from_slice(&[f32::NAN, 2.0, f32::NEG_INFINITY, 3.0, f32::NAN], &[1, 5])?;
    assert_eq!(fast::argmax(&x)?.to_vec::<u32>()?, [3]);
    let (ids, _) = fast::top(&x, 2)?;
    assert_eq!(ids.to_vec::<u32>()?, [3, 1]);
    let half = Array::from_slice(&[0.9f32], &[1, 1])?;
    assert_eq!(fast::nucleus(&x, &half)?.to_vec::<f32>()?, [2.0]);
    let nothing = Array::from_slice(&[f32::NAN; 3], &[3])?;
    assert_eq!(fast::argmax(&nothing)?.to_vec::<u32>()?, [0]);
    Ok(())
}

#[test]
fn what_cannot_be_chosen_from_is_refused() -> Result<()> {
    let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
    for n in [0, 3] {
        let error = fast::top(&x, n).expect_err("there are two").to_string();
        assert!(error.contains("the largest of 2 numbers"), "{error}");
    }
    for bad in [Array::scalar(1.0f32)?, x.astype(DType::I32)?] {
        let error = fast::logsumexp(&bad).expect_err("no rows of floating point");
        assert!(
            error.to_string().contains("rows of floating point"),
            "{error}"
        );
    }
    let error = fast::nucleus(&x, &Array::scalar(0.5f32)?).expect_err("it is no column");
    assert!(error.to_string().contains("[B, V]"), "{error}");
    Ok(())
}

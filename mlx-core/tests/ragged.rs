//! Recurrent layers over ragged rows with a pool of states, compared with each row alone.

#[path = "ragged/batch.rs"]
mod batch;
#[path = "ragged/layers.rs"]
mod layers;
#[path = "recurrent/reference.rs"]
#[allow(
    dead_code,
    reason = "the definition in f64 is for the tests of dense rows"
)]
mod reference;

use mlx_core::fast::{self, Form, Op, SlotsAfter, StatePool, StateSlots, plainly};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, ErrorKind, Result, full, ops::concat};

use batch::{Batch, SLOTS, To, batches, ints, layers};
use layers::Layer;
use reference::{Rule, SIZES, Sizes, assert_near, bits, floats, normal};

fn is_fused() -> Result<bool> {
    Ok(fast::form(Op::Delta)? == Form::Cpu)
}

/// To the bit in this crate's kernels; the plain form is as near as that of dense rows.
#[test]
fn rows_are_those_alone() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (batch, tokens) in batches() {
            for (what, layer) in layers(tokens, dtype)? {
                let pool = layer.pool(SLOTS, 9)?;
                let (y, after) = batch.run(&layer, &pool)?;
                let expected = batch.expected(&layer, &pool)?;
                let what = format!("{what}, rows of {:?}", batch.widths);
                if is_fused()? {
                    assert_eq!(bits(&y)?, bits(&expected.0)?, "{what}");
                    assert_eq!(bits(&after)?, bits(&expected.1)?, "{what}");
                }
                let step = match dtype {
                    DType::F32 => 2e-5,
                    DType::F16 => 1e-3,
                    _ => 8e-3,
                };
                let found = plainly(|| batch.run(&layer, &pool))?;
                assert_eq!(
                    (found.0.dtype(), found.1.dtype()),
                    (y.dtype(), pool.dtype())
                );
                assert_near(&found.0, &floats(&expected.0)?, step, &what)?;
                assert_near(&found.1, &floats(&expected.1)?, 2e-5, &what)?;
            }
        }
    }
    Ok(())
}

/// NaN in slots that no row reads and in tokens of no row has no effect, nor have the numbers of slots.
#[test]
fn other_slots_and_tokens_have_no_effect() -> Result<()> {
    for (batch, tokens) in batches() {
        for (what, layer) in layers(tokens + 2, DType::F32)? {
            // `to` of tokens of no row is not read.
            let to = match &batch.to {
                To::Rows(to) => To::Rows(to.clone()),
                To::Tokens(to) => To::Tokens(to.iter().copied().chain([77, 0]).collect()),
            };
            let batch = Batch {
                widths: batch.widths.clone(),
                from: batch.from.clone(),
                to,
            };
            let pool = layer.pool(SLOTS, 9)?;
            let (y, after) = batch.run(&layer, &pool)?;
            let is_read = |slot: &i32| batch.from.contains(slot);
            let read: Vec<bool> = (0..SLOTS).map(|slot| is_read(&slot)).collect();
            let mut shape = vec![SLOTS];
            shape.resize(pool.ndim(), 1);
            let read = Array::from_slice(&read, &shape)?;
            let poisoned = read.select(&pool, f32::NAN)?.astype(pool.dtype())?;
            let used = *batch.starts().last().unwrap();
            let real: Vec<bool> = (0..tokens + 2).map(|token| token < used).collect();
            let real = Array::from_slice(&real, &[1, tokens + 2, 1])?;
            let other = layer.of_tokens();
            let other: Result<Vec<_>> = other.iter().map(|x| real.select(x, f32::NAN)).collect();
            let other = layer.with_tokens(&other?);
            let (found, found_after) = batch.run(&other, &poisoned)?;
            assert_near(&found, &floats(&y)?, 0.0, &what)?;
            let (plain, _) = plainly(|| batch.run(&other, &poisoned))?;
            assert_near(&plain, &floats(&y)?, 2e-5, &what)?;
            // Slots that are neither read nor written keep their NaN.
            let written: Vec<i32> = match &batch.to {
                To::Rows(to) => {
                    let rows = to
                        .iter()
                        .zip(&batch.widths)
                        .filter(|(_, width)| **width > 0);
                    rows.map(|(&slot, _)| slot).collect()
                }
                To::Tokens(to) => to[..used as usize].to_vec(),
            };
            for slot in 0..SLOTS {
                let part = |pool: &Array| pool.slice_axis(0, slot, slot + 1);
                let found = floats(&part(&found_after)?)?;
                if is_read(&slot) || written.contains(&slot) {
                    assert_near(&part(&found_after)?, &floats(&part(&after)?)?, 0.0, &what)?;
                } else {
                    assert!(found.iter().all(|x| x.is_nan()), "{what}, slot {slot}");
                }
            }

            let moved = |slot: i32| {
                if slot < 0 {
                    slot
                } else {
                    (slot * 2 + 5) % SLOTS
                }
            };
            let permuted: Vec<i32> = (0..SLOTS).collect();
            let back: Vec<i32> = permuted.iter().map(|&slot| moved(slot)).collect();
            let mut places = vec![0; SLOTS as usize];
            for (slot, &place) in back.iter().enumerate() {
                places[place as usize] = slot as i32;
            }
            let elsewhere = Batch {
                widths: batch.widths.clone(),
                from: batch.from.iter().map(|&slot| moved(slot)).collect(),
                to: match &batch.to {
                    To::Rows(to) => To::Rows(to.iter().map(|&slot| moved(slot)).collect()),
                    To::Tokens(to) => To::Tokens(to.iter().map(|&slot| moved(slot)).collect()),
                },
            };
            let (found, pool) = elsewhere.run(&layer, &pool.take(&ints(&places)?, 0)?)?;
            assert_eq!(bits(&found)?, bits(&y)?, "{what}");
            assert_eq!(
                bits(&pool.take(&ints(&back)?, 0)?)?,
                bits(&after)?,
                "{what}"
            );
        }
    }
    Ok(())
}

/// A prompt that is cut into steps, beside rows that decode, is the prompt in one step: to the bit in the kernels.
#[test]
fn steps_may_be_cut_anywhere() -> Result<()> {
    if !is_fused()? {
        return Ok(());
    }
    for (what, layer) in layers(60, DType::BF16)? {
        let pool = layer.pool(SLOTS, 9)?;
        let (whole, state) = layer.alone(0, 40, None)?;
        let (mut pool, mut ys, mut from) = (pool, Vec::new(), 0);
        for n in [1, 2, 16, 1, 3, 17] {
            // Tokens of the prompt, between rows of other tokens.
            let part = |x: &Array| {
                let (a, b) = (x.slice_axis(1, 40, 43)?, x.slice_axis(1, 43, 44)?);
                concat(&[&a, &x.slice_axis(1, from, from + n)?, &b], 1)
            };
            let parts = layer.of_tokens();
            let parts: Result<Vec<_>> = parts.iter().map(part).collect();
            let slot = if from == 0 { -1 } else { 5 };
            let batch = Batch {
                widths: vec![3, n, 1],
                from: vec![2, slot, 7],
                to: To::Rows(vec![2, 5, 7]),
            };
            let (y, after) = batch.run(&layer.with_tokens(&parts?), &pool)?;
            ys.push(y.slice_axis(1, 3, 3 + n)?);
            (pool, from) = (after, from + n);
        }
        assert_eq!(bits(&concat(&ys, 1)?)?, bits(&whole)?, "{what}");
        assert_eq!(bits(&pool.slice_axis(0, 5, 6)?)?, bits(&state)?, "{what}");
    }
    Ok(())
}

/// A pool of one's own is written in place; a shared one keeps its contents.
#[test]
fn own_pools_stay_where_they_are() -> Result<()> {
    for (what, layer) in layers(5, DType::F16)? {
        let (starts, from) = (ints(&[0, 3, 5])?, ints(&[2, -1])?);
        let to = ints(&[2, 4])?;
        let to = SlotsAfter::Rows(&to);
        let pool = layer.pool(SLOTS, 9)?;
        let before = bits(&pool)?;
        let states = StateSlots {
            pool: StatePool::Shared(&pool),
            from: &from,
            to,
        };
        let (y, copy) = layer.ragged(&starts, 3, Some(states))?;
        let (y, copy) = (bits(&y)?, copy.unwrap());
        assert_eq!(bits(&pool)?, before, "{what}");
        let address = pool.address()?;
        let states = StateSlots {
            pool: StatePool::Own(pool),
            from: &from,
            to,
        };
        let (own, pool) = layer.ragged(&starts, 3, Some(states))?;
        let pool = pool.unwrap();
        mlx_core::eval([&own, &pool])?;
        if is_fused()? {
            assert_eq!(pool.address()?, address, "{what}");
        }
        assert_eq!((bits(&own)?, bits(&pool)?), (y, bits(&copy)?), "{what}");
    }
    Ok(())
}

/// Without a pool each row begins with zeros, and derivatives are the sums of the rows' own.
#[test]
fn rows_without_states() -> Result<()> {
    let widths = [3, 0, 7, 1];
    let starts = ints(&[0, 3, 3, 10, 11])?;
    let small = |rule| Sizes {
        rule,
        k: 1,
        h: 2,
        d: 4,
        v: 3,
    };
    let mut all = vec![Layer::conv(13, 8, 4, true, DType::F32)?];
    for rule in [Rule::Delta, Rule::Channels, Rule::Scan] {
        all.push(Layer::rule(small(rule), 13, DType::F32)?);
    }
    for layer in &all {
        let alone = |layer: &Layer| -> Result<Array> {
            let (mut ys, mut from) = (Vec::new(), 0);
            for &n in widths.iter().filter(|&&n| n > 0) {
                ys.push(layer.alone(from, from + n, None)?.0);
                from += n;
            }
            concat(&ys, 1)
        };
        let (y, pool) = layer.ragged(&starts, 7, None)?;
        assert!(pool.is_none());
        let expected = alone(layer)?;
        let found = y.slice_axis(1, 0, 11)?;
        if is_fused()? {
            assert_eq!(bits(&found)?, bits(&expected)?);
        }
        assert!(floats(&y.slice_axis(1, 11, 13)?)?.iter().all(|&y| y == 0.0));
        let plain = plainly(|| layer.ragged(&starts, 7, None))?.0;
        assert_near(&plain.slice_axis(1, 0, 11)?, &floats(&expected)?, 2e-5, "y")?;

        let weights = normal(70, &[1, 13, y.shape()[2]])?;
        let inputs = layer.of_tokens();
        let which: Vec<usize> = (0..inputs.len()).collect();
        let ragged = |arrays: &[Array]| {
            let y = layer.with_tokens(arrays).ragged(&starts, 7, None)?.0;
            Ok(vec![y.multiply(&weights)?.sum(.., false)?])
        };
        let rows = |arrays: &[Array]| {
            let y = alone(&layer.with_tokens(arrays))?;
            let weights = weights.slice_axis(1, 0, 11)?;
            Ok(vec![y.multiply(&weights)?.sum(.., false)?])
        };
        let expected = grad_with(rows, &inputs, &which)?;
        let poison = |x: &Array| {
            concat(
                &[
                    &x.slice_axis(1, 0, 11)?,
                    &full(&[1, 2, x.shape()[2]], f32::NAN, DType::F32)?,
                ],
                1,
            )
        };
        let poisoned: Vec<Array> = inputs.iter().map(poison).collect::<Result<_>>()?;
        for found in [
            grad_with(ragged, &inputs, &which)?,
            grad_with(|arrays| plainly(|| ragged(arrays)), &inputs, &which)?,
            grad_with(ragged, &poisoned, &which)?,
        ] {
            for (found, expected) in found.iter().zip(&expected) {
                assert_near(found, &floats(expected)?, 2e-5, "derivative")?;
            }
        }
    }
    Ok(())
}

/// The text of the error for rows that break a rule, and whether it comes before the evaluation.
fn refused(layer: &Layer, starts: &[i32], longest: i32, from: &[i32], to: To) -> (String, bool) {
    let run = || -> Result<std::result::Result<(), String>> {
        let pool = layer.pool(SLOTS, 1)?;
        let (from, numbers) = (
            ints(from)?,
            match &to {
                To::Rows(to) | To::Tokens(to) => ints(to)?,
            },
        );
        let states = StateSlots {
            pool: StatePool::Own(pool),
            from: &from,
            to: match to {
                To::Rows(_) => SlotsAfter::Rows(&numbers),
                To::Tokens(_) => SlotsAfter::Tokens(&numbers),
            },
        };
        let (y, pool) = layer.ragged(&ints(starts)?, longest, Some(states))?;
        let error = y.eval().expect_err("the rules are broken").to_string();
        assert!(pool.unwrap().eval().is_err(), "the pool is poisoned too");
        Ok(Err(error))
    };
    match run() {
        Ok(Err(text)) => (text, false),
        Ok(Ok(())) => unreachable!(),
        Err(error) => (error.to_string(), true),
    }
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let conv = Layer::conv(6, 8, 4, false, DType::F32)?;
    let rule = Layer::rule(SIZES[1], 6, DType::F32)?;
    let rows = |to: &[i32]| To::Rows(to.to_vec());
    for layer in [&conv, &rule] {
        let before = |starts: &[i32], longest, from: &[i32], to: To, words: &str| {
            let (text, early) = refused(layer, starts, longest, from, to);
            assert!(early && text.contains(words), "{text}");
        };
        before(&[0], 1, &[], rows(&[]), "at least one row");
        before(
            &[0, 6],
            7,
            &[0],
            rows(&[0]),
            "longest row of 7 tokens, expected 1 ..= 6",
        );
        before(&[0, 6], 6, &[0, 1], rows(&[0]), "from is [2], expected [1]");
        before(&[0, 6], 6, &[0], rows(&[0, 1]), "to is [2], expected [1]");
        before(
            &[0, 6],
            6,
            &[0],
            To::Tokens(vec![0]),
            "to is [1], expected [6]",
        );
    }
    let starts = ints(&[0, 6])?;
    let states = |pool| StateSlots {
        pool: StatePool::Own(pool),
        from: &starts,
        to: SlotsAfter::Rows(&starts),
    };
    let error = rule.ragged(&starts, 6, Some(states(conv.pool(2, 1)?)));
    let error = error.expect_err("it is a pool of windows");
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(
        error
            .to_string()
            .contains("expected at least one slot of [4, 16, 16]")
    );
    let half = rule.pool(2, 1)?.astype(DType::F16)?;
    let error = rule.ragged(&starts, 6, Some(states(half))).unwrap_err();
    assert!(error.to_string().contains("the pool is F16, expected F32"));
    let one = Layer::conv(6, 8, 1, false, DType::F32)?;
    let error = one.ragged(&starts, 6, Some(states(conv.pool(2, 1)?)));
    assert!(error.unwrap_err().to_string().contains("J at least 2"));
    // A row longer than promised must not look computed in the plain form either.
    let y = plainly(|| rule.ragged(&starts, 4, None))?.0;
    assert!(floats(&y.slice_axis(1, 4, 6)?)?.iter().all(|y| y.is_nan()));
    Ok(())
}

/// The CPU kernels check rows and slots when they run.
#[test]
fn rows_and_slots_that_break_a_rule_fail_the_evaluation() -> Result<()> {
    if !is_fused()? {
        return Ok(());
    }
    let rows = |to: &[i32]| To::Rows(to.to_vec());
    for layer in [
        &Layer::conv(6, 8, 4, false, DType::F32)?,
        &Layer::rule(SIZES[1], 6, DType::F32)?,
    ] {
        let later = |starts: &[i32], longest, from: &[i32], to: To, words: &str| {
            let (text, early) = refused(layer, starts, longest, from, to);
            assert!(!early && text.contains(words), "{text}");
        };
        let go = [0, 1];
        later(&[1, 3, 6], 6, &go, rows(&go), "starts[0] is 1, expected 0");
        later(
            &[0, 3, 7],
            6,
            &go,
            rows(&go),
            "ends row 1 at token 7, expected 3 ..= 6",
        );
        later(&[0, 3, 2], 6, &go, rows(&go), "ends row 1 at token 2");
        later(&[0, 1, 6], 4, &go, rows(&go), "row 1 has 5 tokens");
        later(&[0, 3, 6], 6, &[0, 9], rows(&go), "from[1] is slot 9");
        later(&[0, 3, 6], 6, &[-2, 1], rows(&go), "from[0] is slot -2");
        later(&[0, 3, 6], 6, &go, rows(&[0, 9]), "to[1] is slot 9");
        later(
            &[0, 3, 6],
            6,
            &go,
            rows(&[1, 0]),
            "slot 1 is to be written by row 0",
        );
        later(
            &[0, 3, 6],
            6,
            &go,
            rows(&[4, 4]),
            "slot 4 is to be written by row 1",
        );
        later(
            &[0, 3, 6],
            6,
            &[2, 2],
            rows(&[2, 4]),
            "slot 2 is to be written by row 0",
        );
        let twice = To::Tokens(vec![5, 5, 0, 1, -1, -1]);
        later(
            &[0, 3, 6],
            6,
            &go,
            twice,
            "slot 5 is to be written by row 0",
        );
    }
    Ok(())
}

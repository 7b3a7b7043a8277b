//! Causal convolutions and the rules of linear attention, compared with plain loops in f64.

#[path = "recurrent/reference.rs"]
mod reference;

use mlx_core::fast::{self, Form, Op, plainly};
use mlx_core::transforms::{Compiled, grad_with};
use mlx_core::{Array, DType, Result, ops::concat};

use reference::{Inputs, Rule, SIZES, Sizes, assert_near, bits, floats, normal};

#[test]
fn rules_are_those_of_plain_loops() -> Result<()> {
    for (at, sizes) in SIZES.into_iter().enumerate() {
        for widths in [
            &[1][..],
            &[1, 1, 1],
            &[3, 0, 5],
            &[64],
            &[70, 1, 33],
            &[150],
        ] {
            let inputs = Inputs::new(sizes, widths, at as u64 * 10)?;
            let (y, state) = inputs.expected()?;
            for (form, found) in [
                ("fused", inputs.run()?),
                ("plain", plainly(|| inputs.run())?),
            ] {
                let what = format!("{form}, {sizes:?}, {widths:?}");
                assert_near(&found.0, &y, 2e-5, &what)?;
                assert_near(&found.1, &state, 2e-5, &format!("state, {what}"))?;
            }
        }
    }
    Ok(())
}

/// Nearly equal keys, with betas near 1 and no decay: the matrix to invert for a chunk is ill-conditioned.
#[test]
fn keys_that_repeat_are_right_in_both_forms() -> Result<()> {
    let mut inputs = Inputs::new(SIZES[3], &[130], 3)?;
    let one = inputs.arrays[0].slice_axis(1, 0, 1)?;
    let noise = inputs.arrays[0].multiply(0.01)?;
    inputs.arrays[0] = noise.add(&one)?;
    inputs.arrays[1] = inputs.arrays[1].multiply(0.0)?.add(-20.0)?;
    inputs.arrays[2] = inputs.arrays[2].multiply(0.0)?.add(6.0)?;
    let (y, state) = inputs.expected()?;
    for found in [inputs.run()?, plainly(|| inputs.run())?] {
        assert_near(&found.0, &y, 1e-4, "y")?;
        assert_near(&found.1, &state, 1e-4, "state")?;
    }
    Ok(())
}

/// Many tokens in one call give the same as single ones in turn, and a row gives the same as it
/// does alone: to the bit in this crate's kernels. The contents of padding have no effect.
#[test]
fn tokens_one_by_one_are_all_at_once() -> Result<()> {
    if fast::form(Op::Delta)? == Form::Plain {
        return Ok(());
    }
    for sizes in SIZES {
        let mut inputs = Inputs::new(sizes, &[37, 5, 0], 7)?;
        let (y, state) = inputs.run()?;
        let mut ys = Vec::new();
        let mut now = inputs.arrays[5].clone();
        let mut from = 0;
        for n in [1, 1, 2, 16, 1, 3, 13] {
            let (y, after) = inputs.part(from, from + n, &now)?.run()?;
            ys.push(y);
            (now, from) = (after, from + n);
        }
        assert_eq!(bits(&concat(&ys, 1)?)?, bits(&y)?, "{sizes:?}");
        assert_eq!(bits(&now)?, bits(&state)?, "{sizes:?}");
        assert_eq!(
            bits(&state.slice_axis(0, 2, 3)?)?,
            bits(&inputs.arrays[5].slice_axis(0, 2, 3)?)?
        );
        for row in 0..2 {
            let width = inputs.widths[row as usize];
            let mut alone = inputs.part(0, width, &inputs.arrays[5])?;
            alone.widths = vec![width];
            for at in (0..inputs.of_tokens()).chain([5]) {
                alone.arrays[at] = alone.arrays[at].slice_axis(0, row, row + 1)?;
            }
            let (found, after) = alone.run()?;
            let expected = y.slice_axis(0, row, row + 1)?.slice_axis(1, 0, width)?;
            assert_eq!(bits(&found)?, bits(&expected)?, "{sizes:?}");
            assert_eq!(bits(&after)?, bits(&state.slice_axis(0, row, row + 1)?)?);
        }
        let real = [37, 5, 0]
            .map(|n| (0..37).map(move |t| t < n))
            .into_iter()
            .flatten();
        let real = Array::from_slice(&real.collect::<Vec<bool>>(), &[3, 37, 1])?;
        for at in 0..inputs.of_tokens() {
            inputs.arrays[at] = real.select(&inputs.arrays[at], f32::NAN)?;
        }
        for found in [inputs.run()?, plainly(|| inputs.run())?] {
            assert_near(&found.0, &floats(&y)?, 2e-5, "with NaN as padding")?;
            assert_near(&found.1, &floats(&state)?, 2e-5, "with NaN as padding")?;
        }
    }
    Ok(())
}

/// Derivatives of the weighted sum of the outputs and of the state, compared with finite differences of the definition
/// in f64.
#[test]
fn derivatives_are_those_of_differences() {
    // With one head, decays have a bound.
    for (rule, h) in [Rule::Delta, Rule::Channels, Rule::Scan]
        .into_iter()
        .flat_map(|rule| [(rule, 2), (rule, 1)])
    {
        let sizes = Sizes {
            rule,
            k: 1,
            h,
            d: 4,
            v: 3,
        };
        check_derivatives(sizes).unwrap_or_else(|error| panic!("{rule:?}: {error}"));
    }
}

fn check_derivatives(sizes: Sizes) -> Result<()> {
    let inputs = Inputs::new(sizes, &[7, 3], 5)?;
    let (y, state) = inputs.expected()?;
    let (wy, ws) = (
        normal(50, &[y.len() as i32])?,
        normal(51, &[state.len() as i32])?,
    );
    let sum = |arrays: &[Array]| {
        let (y, state) = inputs.run_of(arrays)?;
        let y = y.reshape(&[-1])?.multiply(&wy)?.sum(.., false)?;
        Ok(vec![y.add(
            &state.reshape(&[-1])?.multiply(&ws)?.sum(.., false)?,
        )?])
    };
    let found = grad_with(sum, &inputs.arrays, &[0, 1, 2, 3, 4, 5])?;
    let (wy, ws) = (floats(&wy)?, floats(&ws)?);
    let value = |inputs: &Inputs| -> Result<f64> {
        let (y, state) = inputs.expected()?;
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        Ok(dot(&y, &wy) + dot(&state, &ws))
    };
    for (which, found) in found.iter().enumerate() {
        let found = floats(found)?;
        for at in (0..found.len()).step_by(3) {
            let moved = |by: f32| -> Result<(f64, f64)> {
                let mut other = Inputs::new(sizes, &[7, 3], 5)?;
                let mut numbers = other.arrays[which].to_vec::<f32>()?;
                numbers[at] += by;
                let shape = other.arrays[which].shape().to_vec();
                other.arrays[which] = Array::from_slice(&numbers, &shape)?;
                Ok((value(&other)?, f64::from(numbers[at])))
            };
            let (high, low) = (moved(1e-3)?, moved(-1e-3)?);
            let expected = (high.0 - low.0) / (high.1 - low.1);
            let off = (found[at] - expected).abs();
            assert!(
                off <= 1e-4 * expected.abs().max(1.0),
                "input {which}, element {at}: {} for {expected}",
                found[at]
            );
        }
    }
    Ok(())
}

#[test]
fn convolutions_are_those_of_plain_loops() -> Result<()> {
    for (b, l, c, count) in [
        (1, 1, 64, 4),
        (2, 5, 70, 4),
        (3, 40, 21, 3),
        (1, 9, 4100, 2),
        (2, 3, 8, 1),
        (1, 4, 8, 9),
    ] {
        let (x, taps) = (normal(1, &[b, l + count - 1, c])?, normal(2, &[count, c])?);
        let (xs, ws) = (floats(&x)?, floats(&taps)?);
        let [b, l, c, count] = [b, l, c, count].map(|n| n as usize);
        let bias = normal(3, &[c as i32])?;
        let bs = floats(&bias)?;
        let (mut expected, mut shifted) = (Vec::new(), Vec::new());
        for (row, t, channel) in (0..b * l * c).map(|i| (i / c / l, i / c % l, i % c)) {
            let at = |j: usize| xs[(row * (l + count - 1) + t + j) * c + channel];
            let sum: f64 = (0..count).map(|j| at(j) * ws[j * c + channel]).sum();
            expected.push(sum / (1.0 + (-sum).exp()));
            shifted.push(sum + bs[channel]);
        }
        let other = x.swapaxes(1, 2)?.contiguous()?.swapaxes(1, 2)?;
        for x in [&x, &other] {
            let what = format!("{b} x {l} x {c}, {count} taps");
            let without = || fast::causal_conv(x, &taps, Some(&bias), false);
            assert_near(&without()?, &shifted, 1e-5, &what)?;
            assert_near(&plainly(without)?, &shifted, 1e-5, &what)?;
            let found = fast::causal_conv(x, &taps, None, true)?;
            assert_near(&found, &expected, 1e-5, &what)?;
            assert_near(
                &plainly(|| fast::causal_conv(x, &taps, None, true))?,
                &expected,
                1e-5,
                &what,
            )?;
        }
        if l > 1 && fast::form(Op::Conv)? == Form::Cpu {
            let whole = fast::causal_conv(&x, &taps, None, true)?;
            for t in 0..l as i32 {
                let one =
                    fast::causal_conv(&x.slice_axis(1, t, t + count as i32)?, &taps, None, true)?;
                assert_eq!(bits(&one)?, bits(&whole.slice_axis(1, t, t + 1)?)?);
            }
        }
    }
    let args = [
        normal(1, &[2, 8, 5])?,
        normal(2, &[4, 5])?,
        normal(3, &[5])?,
    ];
    let sum = |a: &[Array]| {
        let y = fast::causal_conv(&a[0], &a[1], Some(&a[2]), true)?;
        Ok(vec![y.square()?.sum(.., false)?])
    };
    let (found, expected) = (
        grad_with(sum, &args, &[0, 1, 2])?,
        grad_with(|a| plainly(|| sum(a)), &args, &[0, 1, 2])?,
    );
    for (found, expected) in found.iter().zip(&expected) {
        assert_near(
            found,
            &floats(expected)?,
            2e-5,
            "derivative of the convolution",
        )?;
    }
    Ok(())
}

/// 16-bit inputs give the same as the same numbers in F32, rounded once; a compiled graph gives the same as the graph.
#[test]
fn types_and_graphs() -> Result<()> {
    let inputs = Inputs::new(SIZES[1], &[5, 3], 9)?;
    for dtype in [DType::F16, DType::BF16] {
        let mut rounded = Inputs::new(SIZES[1], &[5, 3], 9)?;
        for array in &mut rounded.arrays[..3] {
            *array = array.astype(dtype)?;
        }
        let (y, state) = rounded.run()?;
        assert_eq!((y.dtype(), state.dtype()), (dtype, DType::F32));
        let (exact, expected) = rounded.expected()?;
        let step = if dtype == DType::F16 { 6e-4 } else { 5e-3 };
        assert_near(&y, &exact, step, &format!("{dtype}"))?;
        assert_near(&state, &expected, 2e-5, &format!("state, {dtype}"))?;
    }
    let (y, state) = inputs.run()?;
    let arrays = inputs.arrays.clone();
    let compiled = Compiled::new(
        move |a: &[Array]| inputs.run_of(a).map(|(y, state)| vec![y, state]),
        false,
    );
    let found = compiled.call(&arrays)?;
    assert_near(&found[0], &floats(&y)?, 2e-5, "compiled")?;
    assert_near(&found[1], &floats(&state)?, 2e-5, "compiled")
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let inputs = Inputs::new(SIZES[1], &[2], 1)?;
    let refused = |at: usize, array: Array| {
        let mut arrays = inputs.arrays.clone();
        arrays[at] = array;
        let error = inputs.run_of(&arrays).expect_err("it does not fit");
        error.to_string()
    };
    let text = refused(0, normal(1, &[1, 2, 127])?);
    assert!(
        text.contains("4 key heads") || text.contains("2 key heads"),
        "{text}"
    );
    assert!(refused(1, normal(1, &[1, 3, 4])?).contains("a is [1, 3, 4], expected [1, 2, 4]"));
    let half = inputs.arrays[5].astype(DType::F16)?;
    assert!(refused(5, half).contains("state is F16, expected F32"));
    let error = fast::causal_conv(&normal(1, &[1, 3, 4])?, &normal(1, &[4, 4])?, None, true);
    assert!(error.unwrap_err().to_string().contains("at least J inputs"));
    Ok(())
}

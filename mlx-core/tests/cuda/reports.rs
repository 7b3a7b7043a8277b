//! Indices out of range: an error of the evaluation, as on the CPU.

use mlx_core::fast::{self, Gate, Matrix};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Device, ErrorKind, Replay, Result, Stream, eval, synchronize};

use super::{FOUR, Weights, f32s, noise, on_gpu, same};

fn ids(all: &[i32]) -> Result<Array> {
    Array::from_slice(all, &[all.len() as i32])
}

/// The same error on the CPU and on the GPU, and neither is broken by it.
fn fails(what: &str, f: impl Fn() -> Result<Array>, text: &str) -> Result<()> {
    for device in [Device::CPU, Device::GPU] {
        let run = || -> Result<()> {
            let error = f().and_then(|y| eval([&y])).unwrap_err();
            assert_eq!(
                (error.kind(), &*error.to_string()),
                (ErrorKind::Eval, text),
                "{what} on {device}"
            );
            assert_eq!(
                f32s(&Array::from_slice(&[1.0f32, 2.0], &[2])?.add(1.0f32)?)?,
                [2.0, 3.0]
            );
            Ok(())
        };
        match device == Device::GPU {
            true => run()?,
            false => Stream::new(device)?.scope(run)?,
        }
    }
    Ok(())
}

#[test]
fn errors_are_those_of_the_cpu() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let x = || noise(1, &[5, 4], DType::F32);
    let one = || noise(2, &[1, 4], DType::F32);
    // Negative indices count from the end.
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
        let found = x()?.take(&ids(&[-1, -5])?.astype(dtype)?, 0)?;
        same(&format!("{dtype}"), &found, &x()?.take(&ids(&[4, 0])?, 0)?)?;
    }
    fails(
        "take",
        || x()?.take(&ids(&[0, 5])?, 0),
        "take: index 5 is outside an axis of 5",
    )?;
    fails(
        "take",
        || x()?.take(&ids(&[-6])?, 0),
        "take: index -6 is outside an axis of 5",
    )?;
    for dtype in [
        DType::I8,
        DType::U8,
        DType::I16,
        DType::U16,
        DType::U32,
        DType::I64,
        DType::U64,
    ] {
        let at = || ids(&[0, 7])?.astype(dtype);
        fails(
            &format!("take {dtype}"),
            || x()?.take(&at()?, 0),
            "take: index 7 is outside an axis of 5",
        )?;
    }
    fails(
        "take_along_axis",
        || x()?.take_along_axis(&Array::from_slice(&[9i32, 0, 0, 0], &[1, 4])?, 0),
        "take_along_axis: index 9 is outside an axis of 5",
    )?;
    fails(
        "put_along_axis",
        || x()?.put_along_axis(&Array::from_slice(&[0i32, 5, 0, 0], &[1, 4])?, &one()?, 0),
        "put_along_axis: index 5 is outside an axis of 5",
    )?;
    fails(
        "gather",
        || x()?.gather(&[&ids(&[4])?], &[0], &[2, 4]),
        "gather: index 4 is outside an axis of 5 for a window of 2",
    )?;
    fails(
        "scatter",
        || x()?.scatter(&[&ids(&[-7])?], &one()?.reshape(&[1, 1, 4])?, &[0]),
        "scatter: index -7 is outside an axis of 5",
    )?;
    fails(
        "scatter_add",
        || x()?.scatter_add(&[&ids(&[5])?], &one()?.reshape(&[1, 1, 4])?, &[0]),
        "scatter: index 5 is outside an axis of 5",
    )?;
    fails(
        "cross entropy",
        || fast::cross_entropy(&x()?, &ids(&[0, 1, 4, 0, 0])?),
        "cross entropy: index 4 is outside an axis of 4",
    )?;
    // A view of indices.
    let turned = || Array::from_slice(&[0i32, 1, 2, 9], &[2, 2])?.swapaxes(0, 1);
    fails(
        "view",
        || x()?.take(&turned()?, 0),
        "take: index 9 is outside an axis of 5",
    )
}

#[test]
fn rows_of_embeddings_are_checked() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for wrong in [64i32, -65, i32::MAX, i32::MIN] {
        for scheme in [None, Some(FOUR)] {
            let rows = || {
                let w = Weights::new(2, 64, 384, DType::BF16, scheme)?;
                match &w.parts {
                    (weight, None) => fast::rows(weight, &ids(&[3, wrong])?),
                    (packed, Some((scales, biases, scheme))) => fast::quantized_rows(
                        packed,
                        scales,
                        biases.as_ref(),
                        &ids(&[3, wrong])?,
                        *scheme,
                        DType::BF16,
                    ),
                }
            };
            fails(
                "rows",
                rows,
                &format!("a row's number must be below 64, given {wrong}"),
            )?;
        }
    }
    // A gradient goes through the plain form.
    let table = noise(1, &[64, 384], DType::BF16)?;
    let sum = |a: &[Array]| Ok(vec![fast::rows(&a[0], &ids(&[64])?)?.sum(.., false)?]);
    assert!(grad_with(sum, &[table], &[0]).and_then(eval).is_err());
    Ok(())
}

#[test]
fn indices_of_experts_are_checked() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    // More than 64 rows are divided into tasks by a kernel of its own.
    for rows in [3, 100] {
        for wrong in [4i32, -1, i32::MAX, i32::MIN] {
            let operands = || -> Result<(Array, Array, Array)> {
                let mut all = vec![1i32; rows];
                all[rows - 2] = wrong;
                Ok((
                    noise(1, &[rows as i32, 1, 128], DType::BF16)?,
                    noise(2, &[4, 64, 128], DType::BF16)?,
                    ids(&all)?,
                ))
            };
            let text = format!("an expert's index must be below 4, given {wrong}");
            let one = || {
                let (x, w, at) = operands()?;
                fast::experts_linear(&x, &w, &at)
            };
            fails(&format!("experts of {rows} rows"), one, &text)?;
            let gated = || {
                let (x, w, at) = operands()?;
                fast::gated_experts(Gate::Silu, &x, &Matrix::Dense(&w), &Matrix::Dense(&w), &at)
            };
            fails(&format!("gated experts of {rows} rows"), gated, &text)?;
        }
    }
    Ok(())
}

#[test]
fn what_was_queued_with_an_error_is_right_unless_it_depends_on_it() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let x = noise(1, &[5, 4], DType::F32)?;
    eval([&x])?;
    // The right array of one evaluation, and one that is queued after it.
    let (wrong, right) = (x.take(&ids(&[5])?, 0)?, x.add(1.0f32)?);
    let after = wrong.add(1.0f32)?;
    assert!(eval([&right, &after]).is_err());
    for lost in [&wrong, &after] {
        let error = lost.to_vec::<f32>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned);
    }
    assert_eq!(f32s(&right)?, f32s(&x.add(1.0f32)?)?);
    let wrong = x.take(&ids(&[5])?, 0)?;
    mlx_core::async_eval([&wrong])?;
    let later = x.add(2.0f32)?;
    mlx_core::async_eval([&later])?;
    assert!(synchronize().is_err());
    assert!(wrong.to_vec::<f32>().is_err());
    assert_eq!(f32s(&later)?, f32s(&x.add(2.0f32)?)?);
    synchronize()
}

/// An operation that checks an index.
type Check<'a> = &'a dyn Fn(i32) -> Result<Array>;

#[test]
fn checks_of_one_wait_are_told_apart() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let x = noise(1, &[64, 384], DType::F32)?;
    let experts = noise(2, &[64, 32, 384], DType::BF16)?;
    let row = noise(3, &[1, 1, 384], DType::BF16)?;
    let wanted = f32s(&x)?;
    eval([&x, &experts, &row])?;
    let second = Stream::new(Device::GPU)?;
    let take = |id| x.take(&ids(&[id])?, 0)?.multiply(1.0);
    let rows = |id| fast::rows(&x, &ids(&[id])?);
    let expert = |id| fast::experts_linear(&row, &experts, &ids(&[id])?);
    let beside = |id| second.scope(|| take(id));
    let all: [Check<'_>; 4] = [&take, &rows, &expert, &beside];
    for (i, wrong) in all.iter().enumerate() {
        for (j, right) in all.iter().enumerate() {
            // The wrong one is queued last, first, and alone among many.
            for order in 0..3 {
                let what = format!("{i} beside {j}, order {order}");
                let (good, bad) = (right(3)?, wrong(64)?);
                let more = (0..10).map(right).collect::<Result<Vec<_>>>()?;
                let mut roots = vec![&good, &bad];
                match order {
                    0 => {}
                    1 => roots.reverse(),
                    _ => roots.extend(&more),
                }
                let error = eval(roots).unwrap_err();
                assert!(error.to_string().contains("64"), "{what}: {error}");
                let error = f32s(&bad).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Poisoned, "{what}");
                let found = f32s(&good).unwrap_or_else(|error| panic!("{what}: {error}"));
                if j != 2 {
                    assert_eq!(found, wanted[3 * 384..4 * 384], "{what}");
                }
                for (id, a) in more.iter().enumerate().filter(|_| j != 2) {
                    assert_eq!(f32s(a)?, wanted[id * 384..][..384], "{what}, {id}");
                }
            }
        }
    }
    // Each has its own error.
    let (one, two) = (take(64)?, rows(65)?);
    assert!(eval([&one, &two]).is_err());
    for (lost, text) in [(&one, "take: index 64"), (&two, "index 65")] {
        let error = lost.to_vec::<f32>().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    Ok(())
}

#[test]
fn more_checks_than_slots_lose_at_most_those_of_one_slot() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let x = noise(1, &[5, 4], DType::F32)?;
    let wanted = f32s(&x)?;
    let all: Vec<Array> = (0..1500)
        .map(|i| x.take(&ids(&[if i == 700 { 5 } else { i % 5 }])?, 0))
        .collect::<Result<_>>()?;
    assert!(eval(&all).is_err());
    let mut lost = Vec::new();
    for (i, a) in all.iter().enumerate() {
        match f32s(a) {
            Ok(found) => assert_eq!(found, wanted[i % 5 * 4..][..4], "{i}"),
            Err(_) => lost.push(i),
        }
    }
    assert!(lost.contains(&700) && lost.len() <= 2, "{lost:?}");
    Ok(())
}

#[test]
fn streams_have_their_own_errors() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let x = noise(1, &[5, 4], DType::F32)?.freeze()?;
    let fail = || x.thaw().take(&ids(&[5])?, 0).and_then(|y| eval([&y]));
    // Another thread's error is not this one's.
    let queued = x.thaw().add(1.0f32)?;
    mlx_core::async_eval([&queued])?;
    std::thread::scope(|scope| assert!(scope.spawn(fail).join().expect("no panic").is_err()));
    assert_eq!(f32s(&queued)?.len(), 20);
    // A second stream of this thread.
    let second = Stream::new(Device::GPU)?;
    let error = second.scope(fail).unwrap_err().to_string();
    assert_eq!(error, "take: index 5 is outside an axis of 5");
    second.scope(|| f32s(&x.thaw().add(1.0f32)?))?;
    assert_eq!(f32s(&x.thaw().add(1.0f32)?)?.len(), 20);
    Ok(())
}

#[test]
fn a_replayed_step_reports_its_indices() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let w = Weights::new(2, 64, 384, DType::BF16, None)?;
    let mut steps = Replay::new()?;
    let mut step = |id: i32| -> Result<Vec<f32>> {
        let y = fast::linear(&fast::rows(&w.parts.0, &ids(&[id])?)?, &w.parts.0)?;
        let y = y.take(&ids(&[id])?, 1)?;
        steps.async_eval([&y], [&y; 0])?;
        f32s(&y)
    };
    let wanted: Vec<Vec<f32>> = (0..8).map(&mut step).collect::<Result<_>>()?;
    for round in 0..3 {
        let error = step(64).unwrap_err().to_string();
        assert!(error.contains("64"), "round {round}: {error}");
        for id in 0..8 {
            assert_eq!(step(id)?, wanted[id as usize], "round {round}");
        }
    }
    Ok(())
}

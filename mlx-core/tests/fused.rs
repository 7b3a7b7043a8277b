//! Operations that are one node on the CPU: on views of any layout, under transforms, and row by row.

use mlx_core::fast::{self, Mask, Matrix, NormOf, Rope, plainly};
use mlx_core::random::{self, Key};
use mlx_core::transforms::{Compiled, grad_with, jvp_with, vmap_with};
use mlx_core::{Array, DType, Result};

#[path = "shared/projection.rs"]
mod shared;

use shared::projection;

fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32)
}

fn assert_close(found: &Array, expected: &Array, tolerance: f32, what: &str) -> Result<()> {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    assert_eq!(found.dtype(), expected.dtype(), "{what}");
    let floats = |array: &Array| array.astype(DType::F32)?.to_vec::<f32>();
    for (index, (a, b)) in floats(found)?.iter().zip(floats(expected)?).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * b.abs().max(1.0),
            "{what}, element {index}: {a} and {b}"
        );
    }
    Ok(())
}

/// The same numbers in other layouts: dense, with the last two axes exchanged in memory, as the middle of a larger
/// array, as every other element of a larger array, and with one vector for all rows.
fn views(x: &Array) -> Result<Vec<Array>> {
    let last = x.dim(-1)?;
    let turned = x.swapaxes(-1, -2)?.contiguous()?.swapaxes(-1, -2)?;
    let wide = mlx_core::ops::concat(&[x, x, x], -1)?;
    let middle = wide.slice_axis(-1, last, 2 * last)?;
    let twice = mlx_core::ops::stack(&[x, x], -1)?;
    let every_other = twice.take(&Array::scalar(0i32)?, -1)?;
    let strided = twice
        .reshape(&[x.shape(), &[2]].concat())?
        .slice_axis(-1, 1, 2)?
        .squeeze(-1)?;
    let one = x.slice_axis(-2, 0, 1)?.broadcast_to(x.shape())?;
    Ok(vec![x.clone(), turned, middle, every_other, strided, one])
}

type Op = Box<dyn Fn(&[Array]) -> Result<Array>>;

/// An operation and its arguments.
struct Case {
    name: &'static str,
    fused: Op,
    args: Vec<Array>,
}

impl Case {
    fn plain(&self, args: &[Array]) -> Result<Array> {
        plainly(|| (self.fused)(args))
    }
}

fn case(
    name: &'static str,
    args: Vec<Array>,
    fused: impl Fn(&[Array]) -> Result<Array> + 'static,
) -> Case {
    Case {
        name,
        fused: Box::new(fused),
        args,
    }
}

fn rope(traditional: bool, freqs: Option<&Array>) -> Rope<'_> {
    Rope {
        dims: 16,
        traditional,
        base: freqs.is_none().then_some(100.0),
        scale: 0.5,
        freqs,
    }
}

/// Sizes that are multiples of 16 and sizes that are not, and 70, for which values are processed in groups of four and
/// a rest.
fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for size in [16, 21, 70] {
        let (x, weight) = (normal(1, &[2, 4, 3, size])?, normal(2, &[size])?);
        cases.push(case("rms_norm", vec![x.clone(), weight], |a| {
            fast::rms_norm(&a[0], Some(&a[1]), 1e-5)
        }));
        cases.push(case("rms_norm without weight", vec![x.clone()], |a| {
            fast::rms_norm(&a[0], None, 1e-2)
        }));
        cases.push(case(
            "swiglu",
            vec![x.multiply(30.0)?, normal(3, &[2, 4, 3, size])?],
            |a| fast::swiglu(&a[0], &a[1]),
        ));
        cases.push(case(
            "geglu",
            vec![x.multiply(3.0)?, normal(3, &[2, 4, 3, size])?],
            |a| fast::geglu(&a[0], &a[1]),
        ));
        cases.push(case("soft_cap", vec![x.multiply(3.0)?], |a| {
            fast::soft_cap(&a[0], 2.5)
        }));
        let (more, weights) = (normal(3, x.shape())?, [5, 6].map(|i| normal(i, &[size])));
        let [inner, outer] = weights;
        let args = vec![x.clone(), more, inner?, outer?];
        cases.push(case("add", args[..2].to_vec(), |a| fast::add(&a[0], &a[1])));
        cases.push(case("norm_add", args[..3].to_vec(), |a| {
            fast::norm_add(&a[0], &a[2], &a[1], 1e-5)
        }));
        let both = |(a, b): (Array, Array)| mlx_core::ops::concat(&[a, b], -1);
        cases.push(case("add_norm", args.clone(), move |a| {
            both(fast::add_norm(&a[0], &a[1], Some(&a[2]), &a[3], 1e-5)?)
        }));
        cases.push(case("add_norm of x", args[..3].to_vec(), move |a| {
            both(fast::add_norm(&a[0], &a[1], None, &a[2], 1e-5)?)
        }));
        let inputs = [args.clone(), vec![normal(4, &[9, size])?]].concat();
        cases.push(case("norm_linear", inputs, |a| {
            let of = NormOf {
                x: &a[0],
                residual: Some(&a[1]),
                inner: Some(&a[2]),
                weight: Some(&a[3]),
                eps: 1e-5,
            };
            let found = fast::norm_linear(&of, &[Matrix::Dense(&a[4])])?;
            mlx_core::ops::concat(&[&found.sum, &found.normed, &found.products[0]], -1)
        }));
        let (wide, periods) = (normal(7, &[2, 3, 4 * size])?, normal(8, &[6])?.exp()?);
        let offsets = Array::from_slice(&[5i32, 0], &[2])?;
        cases.push(case(
            "heads",
            vec![wide.clone(), normal(9, &[size])?],
            move |a| {
                fast::heads(&projection(
                    &a[0],
                    size,
                    Some((&a[1], 1e-5)),
                    12,
                    &periods,
                    &offsets,
                ))
            },
        ));
        let periods = normal(8, &[6])?.exp()?;
        cases.push(case("heads without norm", vec![wide], move |a| {
            fast::heads(&projection(
                &a[0],
                size,
                None,
                12,
                &periods,
                &Array::scalar(7i32)?,
            ))
        }));
        cases.push(case(
            "linear",
            vec![x.clone(), normal(4, &[9, size])?],
            |a| fast::linear(&a[0], &a[1]),
        ));
        for traditional in [false, true] {
            let offsets = Array::from_slice(&[5i32, 0], &[2])?;
            cases.push(case("rope", vec![x.clone()], move |a| {
                fast::rope_with(&a[0], &rope(traditional, None), &offsets)
            }));
        }
        for (name, mask) in [
            ("attention", Mask::None),
            ("causal attention", Mask::Causal),
        ] {
            let (k, v) = (normal(5, &[2, 2, 37, size])?, normal(6, &[2, 2, 37, size])?);
            let causal = matches!(mask, Mask::Causal);
            let of = move || if causal { Mask::Causal } else { Mask::None };
            cases.push(case(name, vec![x.clone(), k, v], move |a| {
                fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.3, of(), None)
            }));
        }
    }
    Ok(cases)
}

#[test]
fn layout_does_not_matter() -> Result<()> {
    for case in cases()? {
        for which in 0..case.args.len() {
            if case.args[which].ndim() < 2 {
                continue;
            }
            for (layout, view) in views(&case.args[which])?.into_iter().enumerate() {
                let mut args = case.args.clone();
                args[which] = view;
                let what = format!("{}, argument {which}, layout {layout}", case.name);
                let (found, expected) = ((case.fused)(&args)?, case.plain(&args)?);
                assert_close(&found, &expected, 2e-5, &what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn transforms_are_those_of_the_plain_operations() -> Result<()> {
    for case in cases()? {
        let all: Vec<usize> = (0..case.args.len()).collect();
        let sum = |op: &Op, x: &[Array]| {
            let y = op(x)?;
            Ok(vec![y.multiply(&normal(9, y.shape())?)?.sum(.., false)?])
        };
        let found = grad_with(|x| sum(&case.fused, x), &case.args, &all)?;
        let expected = grad_with(|x| plainly(|| sum(&case.fused, x)), &case.args, &all)?;
        for (found, expected) in found.iter().zip(&expected) {
            assert_close(found, expected, 2e-4, &format!("grad of {}", case.name))?;
        }

        let tangents: Result<Vec<Array>> = case.args.iter().map(|x| normal(8, x.shape())).collect();
        let tangents = tangents?;
        let (_, found) = jvp_with(|x| Ok(vec![(case.fused)(x)?]), &case.args, &tangents)?;
        let (_, expected) = jvp_with(|x| Ok(vec![case.plain(x)?]), &case.args, &tangents)?;
        assert_close(
            &found[0],
            &expected[0],
            2e-4,
            &format!("jvp of {}", case.name),
        )?;

        let expected = case.plain(&case.args)?;
        let (name, args) = (case.name, case.args);
        let compiled = Compiled::new(move |x: &[Array]| Ok(vec![(case.fused)(x)?]), false);
        let found = compiled.call(&args)?;
        assert_close(&found[0], &expected, 2e-5, &format!("compiled {name}"))?;
    }
    Ok(())
}

#[test]
fn vmap_is_one_after_the_other() -> Result<()> {
    let (x, weight) = (normal(1, &[3, 4, 16])?, normal(2, &[3, 16])?);
    let found = vmap_with(
        |a| Ok(vec![fast::rms_norm(&a[0], Some(&a[1]), 1e-5)?]),
        &[x.clone(), weight.clone()],
        &[Some(0), Some(0)],
        &[Some(0)],
    )?;
    for row in 0..3 {
        let pick = |a: &Array| a.slice_axis(0, row, row + 1)?.squeeze(0);
        let expected = plainly(|| fast::rms_norm(&pick(&x)?, Some(&pick(&weight)?), 1e-5))?;
        assert_close(&pick(&found[0])?, &expected, 2e-5, "rms_norm")?;
    }
    Ok(())
}

/// Equal nodes are merged when a graph is compiled; these are of one kind and not equal.
#[test]
fn what_differs_in_a_setting_is_not_merged() -> Result<()> {
    let x = normal(1, &[1, 2, 3, 16])?;
    let all = |a: &[Array]| {
        let (x, at) = (&a[0], Array::scalar(3i32)?);
        Ok(vec![
            fast::rms_norm(x, None, 1e-5)?,
            fast::rms_norm(x, None, 1.0)?,
            fast::rope_with(x, &rope(false, None), &at)?,
            fast::rope_with(x, &rope(true, None), &at)?,
            fast::scaled_dot_product_attention(x, x, x, 0.1, Mask::None, None)?,
            fast::scaled_dot_product_attention(x, x, x, 0.2, Mask::None, None)?,
            fast::scaled_dot_product_attention(x, x, x, 0.2, Mask::Causal, None)?,
        ])
    };
    let expected = all(std::slice::from_ref(&x))?;
    let found = Compiled::new(all, false).call(&[x])?;
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(found, expected, 1e-6, "compiled")?;
    }
    for pair in [[0, 1], [2, 3], [4, 5], [5, 6]] {
        let [a, b] = pair.map(|i| found[i].to_vec::<f32>());
        assert_ne!(a?, b?, "{pair:?}");
    }
    Ok(())
}

/// A row's result is the same to the bit, whatever is stored behind its last key and whatever the other rows hold.
#[test]
fn masked_keys_and_other_rows_do_not_show() -> Result<()> {
    let (q, k, v) = (
        normal(1, &[1, 4, 1, 64])?,
        normal(2, &[1, 2, 21, 64])?,
        normal(3, &[1, 2, 21, 64])?,
    );
    let alone = fast::scaled_dot_product_attention(&q, &k, &v, 0.125, Mask::None, None)?;
    let more = |x: &Array, seed: u64| {
        let tail = normal(seed, &[1, 2, 30, 64])?;
        let longer = mlx_core::ops::concat(&[x, &tail], 2)?;
        mlx_core::ops::concat(&[&longer, &normal(seed + 1, &[1, 2, 51, 64])?], 0)
    };
    let seen: Vec<bool> = (0..2 * 51).map(|i| !(21..51).contains(&i)).collect();
    let seen = Array::from_slice(&seen, &[2, 1, 1, 51])?;
    let both = fast::scaled_dot_product_attention(
        &mlx_core::ops::concat(&[&q, &normal(4, &[1, 4, 1, 64])?], 0)?,
        &more(&k, 5)?,
        &more(&v, 7)?,
        0.125,
        Mask::Array(seen),
        None,
    )?;
    assert_eq!(
        both.slice_axis(0, 0, 1)?.to_vec::<f32>()?,
        alone.to_vec::<f32>()?
    );
    Ok(())
}

/// A token's result is the same to the bit, whether it is computed alone or with the tokens before it.
#[test]
fn one_at_a_time_is_all_at_once() -> Result<()> {
    let (q, k, v) = (
        normal(1, &[1, 4, 40, 64])?,
        normal(2, &[1, 2, 40, 64])?,
        normal(3, &[1, 2, 40, 64])?,
    );
    let all = fast::scaled_dot_product_attention(&q, &k, &v, 0.125, Mask::Causal, None)?;
    for at in [0, 1, 17, 39] {
        let until = |x: &Array| x.slice_axis(2, 0, at + 1);
        let one = fast::scaled_dot_product_attention(
            &q.slice_axis(2, at, at + 1)?,
            &until(&k)?,
            &until(&v)?,
            0.125,
            Mask::None,
            None,
        )?;
        let expected = all.slice_axis(2, at, at + 1)?;
        assert_eq!(
            one.to_vec::<f32>()?,
            expected.to_vec::<f32>()?,
            "token {at}"
        );
    }
    Ok(())
}

/// Enough work to be split among threads.
#[test]
fn large_arrays_are_right_too() -> Result<()> {
    let x = normal(1, &[2, 8, 300, 64])?;
    let offsets = Array::from_slice(&[0i32, 1000], &[2])?;
    assert_close(
        &fast::rope_with(&x, &rope(false, None), &offsets)?,
        &plainly(|| fast::rope_with(&x, &rope(false, None), &offsets))?,
        2e-4,
        "rope",
    )?;
    assert_close(
        &fast::rms_norm(&x, None, 1e-5)?,
        &plainly(|| fast::rms_norm(&x, None, 1e-5))?,
        2e-5,
        "rms_norm",
    )?;
    assert_close(
        &fast::swiglu(&x, &x)?,
        &plainly(|| fast::swiglu(&x, &x))?,
        2e-5,
        "swiglu",
    )?;
    let q = normal(2, &[2, 8, 150, 64])?;
    assert_close(
        &fast::scaled_dot_product_attention(&q, &x, &x, 0.125, Mask::Causal, None)?,
        &plainly(|| fast::scaled_dot_product_attention(&q, &x, &x, 0.125, Mask::Causal, None))?,
        2e-5,
        "attention",
    )
}

/// Tasks are cut to fewer queries while threads are idle, and one query cannot be cut.
#[test]
fn many_heads_of_one_key_head_and_few_queries() -> Result<()> {
    for (heads, tokens) in [(33, 1), (33, 3), (64, 2), (131, 3)] {
        let q = normal(1, &[1, heads, tokens, 64])?;
        let (k, v) = (normal(2, &[1, 1, 8, 64])?, normal(3, &[1, 1, 8, 64])?);
        let attend = || fast::scaled_dot_product_attention(&q, &k, &v, 0.125, Mask::Causal, None);
        let what = format!("{heads} heads, {tokens} tokens");
        assert_close(&attend()?, &plainly(attend)?, 1e-4, &what)?;
    }
    Ok(())
}

//! Attention: every mask, layout of keys, soft cap and dtype; and a query's result does not depend on the other
//! queries.

use mlx_core::fast::{self, Attention, KeySlots, Mask, Positions, plainly};
use mlx_core::ops::concat;
use mlx_core::transforms::{grad_with, vmap_with};
use mlx_core::{Array, DType, QuantMode, Result, Scheme};

use super::{TYPES, check, normal};

/// Rows, query heads, key heads, head size, size of values.
pub(super) type Sizes = [i32; 5];

pub(super) struct Inputs {
    pub(super) q: Array,
    pub(super) k: Array,
    pub(super) v: Array,
    pub(super) sinks: Array,
}

pub(super) fn inputs(
    seed: u64,
    [b, h, g, d, dv]: Sizes,
    tokens: i32,
    slots: i32,
    dtype: DType,
) -> Result<Inputs> {
    Ok(Inputs {
        q: normal(seed, &[b, h, tokens, d], dtype)?,
        k: normal(seed + 1, &[b, g, slots, d], dtype)?,
        v: normal(seed + 2, &[b, g, slots, dv], dtype)?,
        sinks: normal(seed + 3, &[h], dtype)?,
    })
}

/// `fast::attention`, or attention over packed keys and values, and the same in f32 by plain operations.
fn both(
    inputs: &Inputs,
    scheme: Option<Scheme>,
    soft_cap: Option<f32>,
    sinks: bool,
    mask: Mask,
) -> Result<[Array; 2]> {
    let options = |sinks| Attention {
        scale: 0.3,
        soft_cap,
        mask: mask.clone(),
        sinks,
    };
    let Inputs { q, k, v, sinks: s } = inputs;
    let wide = |x: &Array| x.astype(DType::F32);
    let own = options(sinks.then_some(s));
    let (found, k, v) = match scheme {
        None => (fast::attention(q, k, v, &own)?, wide(k)?, wide(v)?),
        Some(scheme) => {
            let (k, v) = (fast::pack(k, scheme)?, fast::pack(v, scheme)?);
            let found = fast::packed_attention(q, &k, &v, scheme, &own)?;
            // Equal to the bit to attention over the unpacked keys and values: in f32, or rounded to the type that
            // tiles use.
            let unpacked = |x| fast::unpack(x, scheme, q.dtype());
            let (k, v) = (unpacked(&k)?, unpacked(&v)?);
            let rounded = |x: &Array| x.astype(q.dtype());
            let of_f32 = rounded(&fast::attention(&wide(q)?, &k, &v, &own)?)?;
            let bits = |x: &Array| wide(x)?.to_vec::<f32>();
            if bits(&found)? == bits(&of_f32)? {
                (found, k, v)
            } else {
                let (k, v) = (rounded(&k)?, rounded(&v)?);
                let of_rounded = fast::attention(q, &k, &v, &own)?;
                let may_round = q.dtype() == DType::BF16
                    || fast::form(fast::Op::Attention)? == fast::Form::Plain;
                assert!(may_round, "{scheme}, {mask:?}");
                assert!(bits(&found)? == bits(&of_rounded)?, "{scheme}, {mask:?}");
                (found, wide(&k)?, wide(&v)?)
            }
        }
    };
    let s = wide(s)?;
    let exact = plainly(|| fast::attention(&wide(q)?, &k, &v, &options(sinks.then_some(&s))))?;
    Ok([found, exact])
}

/// Runs in the settings of its process: `every_instruction_set_and_number_of_threads` starts it with many.
#[test]
fn attentions() -> Result<()> {
    every_mask(
        &[
            ([1, 1, 1, 1, 1], 1, 1),
            ([2, 6, 2, 7, 5], 3, 9),
            ([1, 4, 4, 64, 64], 70, 70),
            ([2, 4, 1, 32, 48], 1, 300),
            ([1, 8, 2, 96, 128], 20, 277),
            ([1, 4, 1, 256, 256], 1, 1100),
            ([3, 2, 1, 21, 70], 6, 513),
            ([1, 2, 1, 64, 80], 300, 333),
            ([2, 4, 2, 64, 32], 1, 45),
            ([1, 14, 2, 32, 64], 1, 270),
        ],
        |_| None,
    )
}

/// Runs in many settings, as `attentions` does.
#[test]
fn packed_attentions() -> Result<()> {
    every_mask(
        &[
            ([2, 6, 2, 32, 64], 3, 9),
            ([1, 4, 4, 64, 128], 70, 70),
            ([2, 4, 1, 32, 96], 1, 300),
            ([1, 8, 2, 128, 128], 20, 277),
            ([1, 4, 1, 256, 256], 1, 700),
            ([3, 2, 1, 64, 192], 6, 513),
            ([1, 2, 1, 96, 160], 140, 333),
        ],
        |case| {
            Some(scheme(
                4 + case as i32 / 2 % 2 * 4,
                32 + case as i32 % 2 * 32,
            ))
        },
    )
}

pub(super) fn scheme(bits: i32, group_size: i32) -> Scheme {
    Scheme::new(group_size, bits, QuantMode::Affine).expect("it is known")
}

fn every_mask(sizes: &[(Sizes, i32, i32)], packed: fn(usize) -> Option<Scheme>) -> Result<()> {
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for (case, &(sizes, tokens, slots)) in sizes.iter().enumerate() {
        for (turn, dtype) in TYPES.into_iter().enumerate() {
            let x = inputs(10 * case as u64, sizes, tokens, slots, dtype)?;
            let (soft_cap, sinks) = ((case % 2 == 1).then_some(3.0), case % 3 == 1);
            let rows: Vec<i32> = (0..sizes[0]).collect();
            let noise = normal(99, &[1, 1, tokens, slots], DType::F32)?;
            // Every query has a key.
            let seen = noise.greater(0.2f32)?;
            let first = Array::from_slice(&(0..slots).collect::<Vec<_>>(), &[1, 1, 1, slots])?;
            let seen = seen.logical_or(&first.equal(0)?)?;
            let added = noise.multiply(2.0f32)?.astype(dtype)?;
            let mut masks = vec![
                Mask::None,
                Mask::Causal,
                Mask::Array(seen),
                Mask::Array(added),
            ];
            let offsets = |of: &dyn Fn(i32) -> i32| {
                let offsets: Vec<i32> = rows.iter().map(|&row| of(row)).collect();
                Array::from_slice(&offsets, &[sizes[0]])
            };
            // Rows that are shorter than the slots, a ring that has wrapped around, and one that has not.
            let straight = offsets(&|row| (slots - tokens - 2 * row).max(0))?;
            let ring = offsets(&|row| slots * 2 - tokens + 3 * row)?;
            let young = offsets(&|row| row)?;
            let windows = [None, Some(1), Some((slots / 3).max(1))];
            for window in windows {
                for (slots, offsets) in [
                    (KeySlots::Straight, &straight),
                    (KeySlots::Ring, &ring),
                    (KeySlots::Ring, &young),
                    (KeySlots::Latest, &ring),
                    (KeySlots::Latest, &young),
                ] {
                    masks.push(Mask::Positions(Positions::new(offsets, window, slots)));
                }
            }
            // Each mask in one of three dtypes, and in another one in the next case.
            for mask in masks.into_iter().skip((case + turn) % 3).step_by(3) {
                let what = format!("attention {sizes:?}, {tokens} of {slots}, {dtype}, {mask:?}");
                let [found, exact] = both(&x, packed(case), soft_cap, sinks, mask)?;
                assert_eq!(found.dtype(), dtype);
                // MLX's own operations round in between, so they are not compared with f32: `both` has compared them
                // with themselves.
                if dtype != DType::F32 && fast::form(fast::Op::Attention)? == fast::Form::Plain {
                    continue;
                }
                // Weights are rounded too before they are multiplied by values.
                check(&found, &exact, 3.0, &mut digest, &what)?;
            }
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}

pub(super) fn placed(offsets: &Array, window: Option<i32>, slots: KeySlots) -> Mask {
    Mask::Positions(Positions::new(offsets, window, slots))
}

/// A token's result is the same to the bit in a whole prompt, alone, in chunks, in a ring, and beside other rows.
#[test]
fn a_query_is_alone_with_its_keys() -> Result<()> {
    if super::kernels_are_off() {
        return Ok(());
    }
    for (dtype, sizes) in [
        (DType::F32, [1, 4, 2, 64, 64]),
        (DType::BF16, [1, 4, 2, 64, 64]),
        (DType::F16, [1, 4, 2, 64, 64]),
        (DType::BF16, [1, 3, 1, 24, 40]),
        // On tiles: numbers of heads that fill 1, 2, 4, 8 and 16 columns, and fewer.
        (DType::BF16, [1, 2, 2, 32, 48]),
        (DType::BF16, [1, 3, 1, 64, 64]),
        (DType::BF16, [1, 8, 2, 96, 32]),
        (DType::BF16, [1, 7, 1, 32, 64]),
        (DType::BF16, [1, 16, 2, 64, 16]),
        (DType::BF16, [1, 11, 1, 32, 32]),
    ] {
        let tokens = 700;
        let x = inputs(1, sizes, tokens, tokens, dtype)?;
        let part = |x: &Array, from: i32, to: i32| x.slice_axis(2, from, to);
        let floats = |x: &Array| x.astype(DType::F32)?.to_vec::<f32>();
        let attend = |q: &Array, k: &Array, v: &Array, mask: Mask| {
            // With a window, there are chunks of which a query has no key; a large scale must not make their weight
            // infinite.
            let windowed = matches!(&mask, Mask::Positions(at) if at.window().is_some());
            let options = Attention {
                scale: if windowed { 1.5 } else { 0.2 },
                soft_cap: None,
                mask,
                sinks: None,
            };
            fast::attention(q, k, v, &options)
        };
        for window in [None, Some(100)] {
            let zero = Array::from_slice(&[0i32], &[1])?;
            let whole = attend(&x.q, &x.k, &x.v, placed(&zero, window, KeySlots::Straight))?;
            let check = |from: i32, to: i32, found: &Array, what: &str| -> Result<()> {
                let (found, expected) = (floats(found)?, floats(&part(&whole, from, to)?)?);
                let what = format!("{dtype}, window {window:?}, {from}..{to}, {what}");
                assert!(found == expected, "{what}");
                Ok(())
            };
            for (from, to) in [(0, 1), (17, 18), (255, 257), (300, 420), (699, 700)] {
                let at = Array::from_slice(&[from], &[1])?;
                let q = part(&x.q, from, to)?;
                let alone = attend(
                    &q,
                    &part(&x.k, 0, to)?,
                    &part(&x.v, 0, to)?,
                    placed(&at, window, KeySlots::Straight),
                )?;
                check(from, to, &alone, "alone")?;
                // Together with other rows, in buffers with more data behind.
                let others = inputs(
                    7,
                    [2, sizes[1], sizes[2], sizes[3], sizes[4]],
                    to - from,
                    tokens,
                    dtype,
                )?;
                let together = attend(
                    &concat(&[&others.q, &q], 0)?,
                    &concat(&[&others.k, &x.k], 0)?,
                    &concat(&[&others.v, &x.v], 0)?,
                    placed(
                        &Array::from_slice(&[500, 3, from], &[3])?,
                        window,
                        KeySlots::Straight,
                    ),
                )?;
                check(from, to, &together.slice_axis(0, 2, 3)?, "beside others")?;
                let Some(window) = window else {
                    continue;
                };
                // The window before the first new token and the new tokens, in order and in a ring.
                let (begin, cap) = ((from - window).max(0), window + 37 + (to - from));
                let behind = from - window;
                if behind >= 0 {
                    let mask = placed(&at, Some(window), KeySlots::Latest);
                    let (k, v) = (part(&x.k, behind, to)?, part(&x.v, behind, to)?);
                    check(from, to, &attend(&q, &k, &v, mask)?, "behind")?;
                }
                let ring = |x: &Array| -> Result<Array> {
                    let held = |slot: i32| {
                        let last = to - 1 - (to - 1 - slot).rem_euclid(cap);
                        last.max(begin.min(tokens - 1))
                    };
                    let slots: Vec<i32> = (0..cap).map(held).collect();
                    x.take(&Array::from_slice(&slots, &[cap])?, 2)
                };
                let mask = placed(&at, Some(window), KeySlots::Ring);
                let found = attend(&q, &ring(&x.k)?, &ring(&x.v)?, mask)?;
                check(from, to, &found, "ring")?;
            }
            if window.is_none() {
                let causal = attend(&x.q, &x.k, &x.v, Mask::Causal)?;
                check(0, tokens, &causal, "causal")?;
            }
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_placed_is_refused() -> Result<()> {
    let x = inputs(1, [2, 2, 1, 8, 8], 3, 5, DType::F32)?;
    let refused = |offsets: Array, window, k: &Array| {
        let options = Attention {
            scale: 1.0,
            soft_cap: None,
            mask: placed(&offsets, window, KeySlots::Straight),
            sinks: None,
        };
        let result = fast::attention(&x.q, k, k, &options);
        result.expect_err("it does not fit").to_string()
    };
    let floats = Array::from_slice(&[0f32; 2], &[2])?;
    let three = Array::from_slice(&[0i32; 3], &[3])?;
    let two = Array::from_slice(&[0i32; 2], &[2])?;
    for (offsets, window, k, what) in [
        (floats, None, x.k.clone(), "offsets must be I32"),
        (three, None, x.k.clone(), "one number or 2"),
        (
            two.clone(),
            Some(0),
            x.k.clone(),
            "a window must be at least 1",
        ),
        (two, None, x.k.slice_axis(2, 0, 2)?, "2 slots cannot hold 3"),
    ] {
        let message = refused(offsets, window, &k);
        assert!(message.contains(what), "{message}");
    }
    Ok(())
}

#[test]
fn transforms_are_those_of_the_plain_operations() -> Result<()> {
    let x = inputs(3, [2, 4, 2, 16, 8], 5, 12, DType::F32)?;
    let offsets = Array::from_slice(&[7i32, 20], &[2])?;
    let args = [x.q, x.k, x.v, x.sinks];
    for slots in [KeySlots::Straight, KeySlots::Ring, KeySlots::Latest] {
        let attend = |a: &[Array], is_plain: bool| {
            let options = Attention {
                scale: 0.3,
                soft_cap: Some(2.0),
                mask: placed(&offsets, Some(6), slots),
                sinks: Some(&a[3]),
            };
            match is_plain {
                true => plainly(|| fast::attention(&a[0], &a[1], &a[2], &options)),
                false => fast::attention(&a[0], &a[1], &a[2], &options),
            }
        };
        let weights = normal(9, &[2, 4, 5, 8], DType::F32)?;
        let [found, exact] = [false, true].map(|is_plain| {
            let sum = |a: &[Array]| {
                let y = attend(a, is_plain)?;
                Ok(vec![y.multiply(&weights)?.sum(.., false)?])
            };
            grad_with(sum, &args, &[0, 1, 2, 3])
        });
        for (found, exact) in found?.iter().zip(&exact?) {
            check(found, exact, 0.0, &mut 0, &format!("gradient, {slots:?}"))?;
        }
        let batch: Result<Vec<Array>> = args[..3]
            .iter()
            .map(|x| x.expand_dims(0)?.repeat(3, 0))
            .collect();
        let batch = batch?;
        let found = vmap_with(
            |a| {
                let a = [a, std::slice::from_ref(&args[3])].concat();
                Ok(vec![attend(&a, false)?])
            },
            &batch,
            &[Some(0), Some(0), Some(0)],
            &[Some(0)],
        )?;
        let exact = attend(&args, true)?.expand_dims(0)?.repeat(3, 0)?;
        check(&found[0], &exact, 0.0, &mut 0, &format!("vmap, {slots:?}"))?;
    }
    Ok(())
}

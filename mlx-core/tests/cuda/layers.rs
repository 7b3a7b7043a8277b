//! Norms, heads, caches, attention and sampling.

use mlx_core::fast::{
    self, Attention, Buffers, Draw, KeySlots, Mask, Positions, Projection, Slots, plainly,
};
use mlx_core::{Array, DType, Result, eval};

use super::{HALVES, attention, close, noise, on_gpu, periods, same};

#[test]
fn norms_and_gates() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        let (x, y, w, v) = (
            noise(1, &[5, 1152], dtype)?,
            noise(2, &[5, 1152], dtype)?,
            noise(3, &[1152], dtype)?,
            noise(4, &[1152], dtype)?,
        );
        let pairs = [
            (
                fast::rms_norm(&x, Some(&w), 1e-6)?,
                plainly(|| fast::rms_norm(&x, Some(&w), 1e-6))?,
            ),
            (
                fast::rms_norm(&x, None, 1e-6)?,
                plainly(|| fast::rms_norm(&x, None, 1e-6))?,
            ),
            (
                fast::norm_add(&x, &w, &y, 1e-6)?,
                plainly(|| fast::norm_add(&x, &w, &y, 1e-6))?,
            ),
            (fast::add(&x, &y)?, plainly(|| fast::add(&x, &y))?),
            (fast::swiglu(&x, &y)?, plainly(|| fast::swiglu(&x, &y))?),
            (fast::geglu(&x, &y)?, plainly(|| fast::geglu(&x, &y))?),
            (
                fast::soft_cap(&x, 0.7)?,
                plainly(|| fast::soft_cap(&x, 0.7))?,
            ),
            (fast::logsumexp(&x)?, plainly(|| fast::logsumexp(&x))?),
            (fast::argmax(&x)?, plainly(|| fast::argmax(&x))?),
        ];
        for (i, (found, wanted)) in pairs.iter().enumerate() {
            close(&format!("{dtype} {i}"), found, wanted, tolerance)?;
        }
        let of = |_: ()| fast::add_norm(&x, &y, Some(&w), &v, 1e-6);
        let (found, wanted) = (of(())?, plainly(|| of(()))?);
        close("sum", &found.0, &wanted.0, tolerance)?;
        close("normed", &found.1, &wanted.1, tolerance)?;
    }
    Ok(())
}

#[test]
fn heads_go_into_their_slots() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let freqs = periods(32)?;
    let offsets = Array::from_slice(&[3i32, 9], &[2])?;
    for (dtype, tolerance) in HALVES {
        for dims in [64, 32] {
            let freqs = freqs.slice_axis(0, 0, dims / 2)?;
            let x = noise(1, &[2, 4, 3 * 64], dtype)?;
            let w = noise(2, &[64], dtype)?;
            for norm in [None, Some((&w, 1e-6))] {
                let of = Projection {
                    x: &x,
                    head_dim: 64,
                    norm,
                    dims,
                    freqs: &freqs,
                    offsets: &offsets,
                };
                let (found, wanted) = (fast::heads(&of)?, plainly(|| fast::heads(&of))?);
                close(&format!("{dtype} {dims}"), &found, &wanted, tolerance)?;
                let values = noise(3, &[2, 4, 3 * 64], dtype)?
                    .reshape(&[2, 4, 3, 64])?
                    .swapaxes(1, 2)?;
                for ring in [false, true] {
                    let slots = Slots { ring, scheme: None };
                    let store = || fast::store_heads(Buffers::New(16), &of, &values, slots);
                    let (found, wanted) = (store()?, plainly(store)?);
                    close("keys", &found.0, &wanted.0, tolerance)?;
                    same("values", &found.1, &wanted.1)?;
                    let keys = fast::heads(&of)?;
                    let again = fast::store(
                        Buffers::Shared(&found.0, &found.1),
                        &keys,
                        &values,
                        &offsets,
                        slots,
                    )?;
                    same("keys again", &again.0, &found.0)?;
                    same("values again", &again.1, &found.1)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn attention_over_a_cache() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for (d, heads, kv_heads) in [(64, 4, 2), (128, 16, 8), (256, 4, 1), (80, 6, 6)] {
            for (tokens, slots) in [(1, 40), (1, 700), (3, 300), (40, 200)] {
                let rows = 3;
                let q = noise(1, &[rows, heads, tokens, d], dtype)?;
                let k = noise(2, &[rows, kv_heads, slots, d], dtype)?;
                let v = noise(3, &[rows, kv_heads, slots, d], dtype)?;
                let sinks = noise(4, &[heads], dtype)?;
                let offsets = [slots - tokens, 0, (slots - tokens) / 2];
                let at = Array::from_slice(&offsets, &[rows])?;
                for (window, layout) in [
                    (None, KeySlots::Straight),
                    (Some(24), KeySlots::Straight),
                    (Some(slots - tokens), KeySlots::Ring),
                    (Some(slots - tokens), KeySlots::Latest),
                ] {
                    for (soft_cap, sinks) in [(None, None), (Some(5.0), Some(&sinks))] {
                        let options = |at: &Array| Attention {
                            scale: (d as f32).powf(-0.5),
                            soft_cap,
                            mask: Mask::Positions(Positions::new(at, window, layout)),
                            sinks,
                        };
                        let what = format!(
                            "{dtype} {d} {heads}/{kv_heads} {tokens} of {slots}, {window:?} {layout:?} {soft_cap:?}"
                        );
                        let found = attention(&what, [&q, &k, &v], &options(&at), tolerance)?;
                        // Rows alone, and queries alone.
                        for row in 0..rows {
                            let one = |a: &Array| a.slice_axis(0, row, row + 1);
                            let alone = fast::attention(
                                &one(&q)?,
                                &one(&k)?,
                                &one(&v)?,
                                &options(&one(&at)?),
                            )?;
                            same(&format!("{what}: row {row}"), &alone, &one(&found)?)?;
                        }
                        if layout == KeySlots::Straight && tokens > 1 {
                            let last = q.slice_axis(2, tokens - 1, tokens)?;
                            let later = at.add(tokens - 1)?;
                            let alone = fast::attention(&last, &k, &v, &options(&later))?;
                            same(
                                &format!("{what}: last"),
                                &alone,
                                &found.slice_axis(2, tokens - 1, tokens)?,
                            )?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn draws_are_those_of_the_plain_form() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let base = Draw {
        temperature: 0.8,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        key: [1, 2],
    };
    let rows = [
        base,
        Draw {
            temperature: 0.0,
            ..base
        },
        Draw {
            top_p: 0.7,
            key: [3, 9],
            ..base
        },
        Draw {
            top_k: 5,
            key: [4, 4],
            ..base
        },
        Draw {
            min_p: 0.1,
            key: [8, 4],
            ..base
        },
        Draw {
            top_p: 0.9,
            top_k: 40,
            min_p: 0.01,
            key: [8, 8],
            ..base
        },
    ];
    let mut different = 0;
    for v in [1000, 32001] {
        for seed in 0..20 {
            let x = noise(seed, &[rows.len() as i32, v], DType::F32)?.multiply(3.0f32)?;
            let found = fast::draw(&x, &rows)?.checked.to_vec::<u32>()?;
            let wanted = plainly(|| fast::draw(&x, &rows))?.checked.to_vec::<u32>()?;
            different += found.iter().zip(&wanted).filter(|(a, b)| a != b).count();
            assert_eq!(found[1], wanted[1]);
            for (row, settings) in rows.iter().enumerate() {
                let alone = x.slice_axis(0, row as i32, row as i32 + 1)?;
                let alone = fast::draw(&alone, std::slice::from_ref(settings))?.checked;
                assert_eq!(alone.to_vec::<u32>()?, [found[row]], "{v}: row {row} alone");
            }
        }
    }
    // Logarithms of two back ends differ in the last bit.
    assert!(different <= 2, "{different} of 240 draws differ");
    // In a vocabulary of this size a row has several blocks. Only one of them sees the NaN.
    for (v, place) in [(100, 7), (32001, 7), (32001, 32000)] {
        let mut strange = vec![0.0f32; v];
        strange[place] = f32::NAN;
        let x = Array::from_slice(&strange, &[1, v as i32])?;
        assert_eq!(
            fast::draw(&x, &[base])?.checked.to_vec::<u32>()?,
            [fast::NO_TOKEN],
            "{v}: NaN at {place}"
        );
    }
    Ok(())
}

#[test]
fn sums_and_places_of_large_vocabularies() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for v in [8191, 8192, 151_937] {
        for dtype in [DType::F32, DType::BF16] {
            let x = noise(v as u64, &[3, v], dtype)?.multiply(4.0f32)?;
            let (sums, places) = (fast::logsumexp(&x)?, fast::argmax(&x)?);
            close(
                &format!("{dtype} {v}"),
                &sums,
                &plainly(|| fast::logsumexp(&x.astype(DType::F32)?))?,
                1e-5,
            )?;
            let wanted = plainly(|| fast::argmax(&x))?;
            assert_eq!(
                places.to_vec::<u32>()?,
                wanted.to_vec::<u32>()?,
                "{dtype} {v}"
            );
            let last = x.slice_axis(0, 2, 3)?;
            same(
                "alone",
                &fast::logsumexp(&last)?,
                &sums.slice_axis(0, 2, 3)?,
            )?;
        }
    }
    // The largest elements, and rows without a finite one.
    let mut rows = vec![f32::NEG_INFINITY; 3 * 20_000];
    (rows[19_999], rows[20_000 + 9_000], rows[20_000 + 17_000]) = (1.0, 2.0, 2.0);
    let x = Array::from_slice(&rows, &[3, 20_000])?;
    assert_eq!(fast::argmax(&x)?.to_vec::<u32>()?, [19_999, 9_000, 0]);
    Ok(())
}

/// Prompts have a kernel of their own for rows of up to 2,048 elements. Rows of an odd number of elements, and of more than
/// 16,384, are not kept in registers.
#[test]
fn norms_of_many_rows_have_the_bits_of_one() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        let few = [8, 264, 1024, 1152, 1288, 2048, 2056];
        let many = [4096, 4098, 5120, 5121, 8192, 8194, 16_384, 16_386];
        for n in few.into_iter().chain(many) {
            let rows = if n < 4096 { 1100 } else { 70 };
            let (x, y) = (noise(1, &[rows, n], dtype)?, noise(2, &[rows, n], dtype)?);
            let (w, v) = (noise(3, &[n], dtype)?, noise(4, &[n], dtype)?);
            for inner in [None, Some(&w)] {
                let what = format!("{dtype} {n} {}", inner.is_some());
                let of = |x: &Array, y: &Array| fast::add_norm(x, y, inner, &v, 1e-6);
                let norm = |x: &Array| fast::rms_norm(x, inner, 1e-6);
                let (sum, normed) = of(&x, &y)?;
                let wanted = plainly(|| of(&x, &y))?;
                // The norm of the plain form may be rounded up where the kernel's is rounded down,
                // before it is added.
                close(&what, &sum, &wanted.0, 2.0 * tolerance)?;
                close(&what, &normed, &wanted.1, 2.0 * tolerance)?;
                let alone = norm(&x)?;
                for row in [0, 7, rows - 1] {
                    let one = |a: &Array| a.slice_axis(0, row, row + 1);
                    let found = of(&one(&x)?, &one(&y)?)?;
                    same(&what, &found.0, &one(&sum)?)?;
                    same(&what, &found.1, &one(&normed)?)?;
                    same(&what, &norm(&one(&x)?)?, &one(&alone)?)?;
                }
            }
        }
        // An address that is no multiple of 4 bytes.
        for n in [64, 5120] {
            let (x, w) = (noise(1, &[n + 1], dtype)?, noise(2, &[n + 1], dtype)?);
            let (x, w) = (x.slice_axis(0, 1, n + 1)?, w.slice_axis(0, 1, n + 1)?);
            eval([&x, &w])?;
            let of = || fast::rms_norm(&x, Some(&w), 1e-6);
            close(
                &format!("{dtype} {n}, at 2 bytes"),
                &of()?,
                &plainly(of)?,
                tolerance,
            )?;
        }
    }
    Ok(())
}

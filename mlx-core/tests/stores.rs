//! One operation can create a cache's buffers, compute new keys and store new keys and values. Its result is the same
//! to the bit as with zeroed buffers and with keys that are computed before.

use mlx_core::fast::{Buffers, Projection, Slots, heads_and_store, store, store_heads};
use mlx_core::ops::create::{full, zeros};
use mlx_core::ops::quantize::{QuantMode, Scheme};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Result, eval, fast, graph_size};

const HEADS: i32 = 3;
const DIM: i32 = 64;

fn normal(seed: u64, shape: &[i32], dtype: DType) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32)?.astype(dtype)
}

fn floats(array: &Array) -> Result<Vec<f32>> {
    array.astype(DType::F32)?.to_vec()
}

/// Fills freed memory with NaN, which the next allocation gets.
fn soil(bytes: i32) -> Result<()> {
    for n in [bytes / 4, bytes / 8, bytes / 64] {
        let dirt = full(&[n.max(1)], f32::NAN, DType::F32)?;
        eval([&dirt])?;
    }
    Ok(())
}

/// Rows, slots, tokens, offsets, and whether the cache is a ring.
type Case = (i32, i32, i32, &'static [i32], bool);
const CASES: [Case; 12] = [
    (1, 16, 16, &[0], false),
    (1, 16, 5, &[0], false),
    (2, 16, 9, &[0, 3], false),
    (2, 300, 7, &[0, 250], false),
    // At the end of a buffer, and beyond it.
    (2, 16, 9, &[10, 16], false),
    (2, 16, 9, &[-4, -20], false),
    // Rings: before the end, across it, full, and with more tokens than slots.
    (2, 16, 9, &[2, 12], true),
    (1, 16, 16, &[5], true),
    (2, 16, 40, &[0, 7], true),
    (1, 16, 9, &[-3], true),
    // Large enough for pages to be returned to the system, or not.
    (2, 4096, 9, &[1, 4000], false),
    (2, 2048, 1500, &[0, 77], false),
];

fn each_case(mut body: impl FnMut(Case, &Array, DType) -> Result<()>) -> Result<()> {
    for case in CASES {
        let at = Array::from_slice(case.3, &[case.3.len() as i32])?;
        for dtype in [DType::F32, DType::BF16] {
            body(case, &at, dtype)?;
        }
    }
    Ok(())
}

/// The slots of each row's heads, filled by a plain loop.
fn by_hand(new: &Array, (rows, slots, tokens, offsets, ring): Case) -> Result<Vec<f32>> {
    let (d, new) = (new.dim(-1)? as usize, floats(new)?);
    let mut all = vec![0.0; (rows * HEADS * slots) as usize * d];
    for (i, vector) in new.chunks(d).enumerate() {
        let (head, token) = (i as i32 / tokens, i as i32 % tokens);
        let position = offsets[(head / HEADS) as usize % offsets.len()] + token;
        let slot = if ring {
            position.rem_euclid(slots)
        } else {
            position
        };
        if (0..slots).contains(&slot) {
            all[(head * slots + slot) as usize * d..][..d].copy_from_slice(vector);
        }
    }
    Ok(all)
}

fn slots(ring: bool, scheme: Option<Scheme>) -> Slots {
    Slots { ring, scheme }
}

#[test]
fn new_buffers_are_zero_where_no_token_is() -> Result<()> {
    if fast::form(fast::Op::Store)? == fast::Form::Plain {
        return Ok(());
    }
    each_case(|case, at, dtype| {
        let (rows, n, tokens, _, ring) = case;
        let k = normal(1, &[rows, HEADS, tokens, DIM], dtype)?;
        // In the layout of projections: tokens before heads.
        let v = normal(2, &[rows, tokens, HEADS, 48], dtype)?.swapaxes(1, 2)?;
        let buffer = |d| fast::blank(&[rows, HEADS, n, d], dtype);
        let expected = (by_hand(&k, case)?, by_hand(&v, case)?);
        let (shared_k, shared_v) = (buffer(DIM)?, buffer(48)?);
        for buffers in [
            Buffers::New(n),
            Buffers::Own(buffer(DIM)?, buffer(48)?),
            Buffers::Shared(&shared_k, &shared_v),
        ] {
            let kind = format!("{buffers:?}");
            soil(rows * HEADS * n * DIM * 4)?;
            let (a, b) = store(buffers, &k, &v, at, slots(ring, None))?;
            eval([&a, &b])?;
            assert!(
                floats(&a)? == expected.0 && floats(&b)? == expected.1,
                "{case:?} in {dtype}, {kind}"
            );
        }
        Ok(())
    })
}

#[test]
fn new_buffers_of_packed_rows_too() -> Result<()> {
    let scheme = Scheme::new(32, 8, QuantMode::Affine)?;
    let words = fast::packed_words(DIM, DType::BF16, scheme)?;
    for (rows, n, tokens) in [(2, 16, 9), (1, 2048, 1500)] {
        let [k, v] = [1, 2].map(|seed| normal(seed, &[rows, HEADS, tokens, DIM], DType::BF16));
        let (k, v, at) = (k?, v?, Array::from_slice(&[3], &[1])?);
        let of = |buffers| {
            soil(rows * HEADS * n * words * 4)?;
            let (a, b) = store(buffers, &k, &v, &at, slots(false, Some(scheme)))?;
            Ok::<_, mlx_core::Error>([a.to_vec::<u32>()?, b.to_vec()?])
        };
        let zero = || zeros(&[rows, HEADS, n, words], DType::U32);
        assert!(
            of(Buffers::New(n))? == of(Buffers::Own(zero()?, zero()?))?,
            "{n} slots"
        );
    }
    Ok(())
}

#[test]
fn keys_are_rotated_into_their_place() -> Result<()> {
    let freqs = Array::from_slice(&(1..=24).map(|i| i as f32).collect::<Vec<_>>(), &[24])?;
    let plain = fast::form(fast::Op::Store)? == fast::Form::Plain;
    each_case(|case, at, dtype| {
        let (rows, n, tokens, offsets, ring) = case;
        // The plain form would write outside of the buffer.
        let inside = offsets
            .iter()
            .all(|&at| at >= 0 && (ring || at + tokens <= n));
        if plain && !inside {
            return Ok(());
        }
        let x = normal(1, &[rows, tokens, HEADS * DIM], dtype)?;
        let weight = normal(2, &[DIM], dtype)?;
        let v = normal(3, &[rows, HEADS, tokens, DIM], dtype)?;
        let zero = || zeros(&[rows, HEADS, n, DIM], dtype);
        for norm in [None, Some((&weight, 1e-6))] {
            let keys = Projection {
                x: &x,
                head_dim: DIM,
                norm,
                dims: 48,
                freqs: &freqs,
                offsets: at,
            };
            let both =
                |(a, b): (Array, Array)| Ok::<_, mlx_core::Error>([floats(&a)?, floats(&b)?]);
            let slots = slots(ring, None);
            let heads = fast::heads(&keys)?;
            let expected = both(store(
                Buffers::Own(zero()?, zero()?),
                &heads,
                &v,
                at,
                slots,
            )?)?;
            for buffers in [Buffers::New(n), Buffers::Own(zero()?, zero()?)] {
                let kind = format!("{buffers:?}");
                assert!(
                    both(store_heads(buffers, &keys, &v, slots)?)? == expected,
                    "{case:?} in {dtype}, norm {}, {kind}",
                    norm.is_some()
                );
            }
        }
        Ok(())
    })
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let k = normal(1, &[2, HEADS, 3, DIM], DType::F32)?;
    let narrow = normal(1, &[2, HEADS, 3, DIM], DType::BF16)?;
    let at = Array::from_slice(&[0, 0], &[2])?;
    let slots = slots(false, None);
    let fault = |result: Result<(Array, Array)>| result.err().map(|e| e.to_string());
    let buffer = |rows| zeros(&[rows, HEADS, 8, DIM], DType::F32);
    for result in [
        store(Buffers::Own(buffer(1)?, buffer(1)?), &k, &k, &at, slots),
        store(
            Buffers::Own(buffer(2)?, buffer(2)?),
            &k,
            &narrow,
            &at,
            slots,
        ),
        store(Buffers::New(8), &k, &narrow, &at, slots),
    ] {
        if fast::form(fast::Op::Store)? == fast::Form::Cpu {
            assert!(fault(result).is_some_and(|text| text.contains("do not fit")));
        }
    }
    let none = fault(store(Buffers::New(0), &k, &k, &at, slots));
    assert!(none.is_some_and(|text| text.contains("at least one slot")));
    Ok(())
}

/// One node computes the heads of queries and stores those of keys, with the bits of two nodes.
#[test]
fn heads_that_are_stored_are_those_of_separate_operations() -> Result<()> {
    let is_node = |op| Ok::<_, mlx_core::Error>(fast::form(op)? != fast::Form::Plain);
    let is_plain = !is_node(fast::Op::Store)? || !is_node(fast::Op::Rope)?;
    let four = Scheme {
        group_size: 32,
        bits: 4,
        mode: QuantMode::Affine,
    };
    let (heads, kv_heads, dim, slots) = (4, 2, 32, 16);
    let freqs = Array::from_slice(&(1..=16).map(|i| i as f32).collect::<Vec<_>>(), &[16])?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (rows, tokens, ring) in [(1, 1, false), (2, 5, false), (2, 3, true)] {
            let q = normal(1, &[rows, tokens, heads * dim], dtype)?;
            let k = normal(2, &[rows, tokens, kv_heads * dim], dtype)?;
            let v = normal(3, &[rows, kv_heads, tokens, dim], dtype)?;
            let (of_q, of_k) = (normal(4, &[dim], dtype)?, normal(5, &[dim], dtype)?);
            let at: Vec<i32> = (0..rows).map(|row| 3 + 7 * row).collect();
            let at = Array::from_slice(&at, &[rows])?;
            let projection = |x, weight: Option<_>| Projection {
                x,
                head_dim: dim,
                norm: weight.map(|weight| (weight, 1e-6)),
                dims: 32,
                freqs: &freqs,
                offsets: &at,
            };
            for scheme in [None, Some(four)] {
                for (of_q, of_k) in [
                    (None, None),
                    (Some(&of_q), Some(&of_k)),
                    (Some(&of_q), None),
                ] {
                    let (queries, keys) = (projection(&q, of_q), projection(&k, of_k));
                    let how = Slots { ring, scheme };
                    let what = format!("{rows} rows, {tokens} tokens, {dtype}, {how:?}");
                    eval([&q, &k, &v, &at, &freqs])?;
                    eval(of_q.into_iter().chain(of_k))?;
                    let (a, b, c) = heads_and_store(&queries, Buffers::New(slots), &keys, &v, how)?;
                    let (wanted_b, wanted_c) = store_heads(Buffers::New(slots), &keys, &v, how)?;
                    let wanted = [fast::heads(&queries)?, wanted_b, wanted_c];
                    let found = [a, b, c];
                    if !is_plain && scheme.is_none() {
                        assert_eq!(graph_size(&found)?, 1, "{what}");
                    }
                    assert!(graph_size(&found)? <= graph_size(&wanted)?, "{what}");
                    eval(&found)?;
                    eval(&wanted)?;
                    for (found, wanted) in found.iter().zip(&wanted) {
                        assert_eq!(found.shape(), wanted.shape(), "{what}");
                        let words = |a: &Array| match a.dtype() {
                            DType::U32 => a.to_vec::<u32>(),
                            _ => Ok(floats(a)?.into_iter().map(f32::to_bits).collect()),
                        };
                        assert!(words(found)? == words(wanted)?, "{what}");
                    }
                    let [_, b, c] = &found;
                    let (_, k_buffer, v_buffer) =
                        heads_and_store(&queries, Buffers::Shared(b, c), &keys, &v, how)?;
                    let again = store_heads(Buffers::Shared(b, c), &keys, &v, how)?;
                    let bytes = |a: &Array| a.view(DType::U8)?.to_vec::<u8>();
                    assert!(bytes(&k_buffer)? == bytes(&again.0)?, "{what}");
                    assert!(bytes(&v_buffer)? == bytes(&again.1)?, "{what}");
                }
            }
        }
    }
    Ok(())
}

//! Flat steps beside `fused_isa/flat.rs`: positions of tokens, keys of projections, updates in place, steps without pages and
//! their gradients, and what is refused.

use mlx_core::fast::{
    self, Attention, FlatAttention, KeySlots, Mask, PagedStore, Pages, Pools, Positions,
    RaggedRows, Seen, plainly,
};
use mlx_core::ops::concat;
use mlx_core::random::{self, Key};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, QuantMode, Result, Scheme, eval};

#[path = "flat/ahead.rs"]
mod ahead;
#[path = "flat/refused.rs"]
mod refused;
#[path = "shared/projection.rs"]
mod shared;

use shared::projection;

fn normal(seed: u64, shape: &[i32], dtype: DType) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32)?.astype(dtype)
}

fn bits(x: &Array) -> Result<Vec<u8>> {
    x.view(DType::U8)?.to_vec::<u8>()
}

fn ints(numbers: &[i32]) -> Result<Array> {
    Array::from_slice(numbers, &[numbers.len() as i32])
}

fn near(found: &Array, exact: &Array, tolerance: f32, what: &str) -> Result<()> {
    assert_eq!(found.shape(), exact.shape(), "{what}");
    let floats = |x: &Array| x.astype(DType::F32)?.to_vec::<f32>();
    for (index, (a, b)) in floats(found)?.iter().zip(floats(exact)?).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * b.abs().max(1.0),
            "{what}, element {index}: {a} and {b}"
        );
    }
    Ok(())
}

fn is_plain() -> Result<bool> {
    Ok(fast::form(fast::Op::Attention)? == fast::Form::Plain)
}

const SEES_ALL: Seen<'static> = Seen {
    window: None,
    chunk: None,
    ahead: 0,
    mask: None,
    slopes: None,
};

fn options(seen: Seen<'_>) -> FlatAttention<'_> {
    FlatAttention {
        scale: 0.3,
        soft_cap: None,
        seen,
        sinks: None,
    }
}

fn rows_of(starts: &Array) -> RaggedRows<'_> {
    RaggedRows {
        starts,
        longest: i32::MAX,
    }
}

/// Three rows of 2, 0 and 3 tokens after 15, 4 and 30 positions, in pages of 16, and a token of no row.
struct Step {
    starts: Array,
    lens: Array,
    tables: Array,
}

const TOKENS: i32 = 6;
const PLACES: [(i32, i32); 5] = [(3, 15), (0, 0), (5, 14), (5, 15), (1, 0)];

impl Step {
    fn new() -> Result<Self> {
        Ok(Self {
            starts: ints(&[0, 2, 2, 5])?,
            lens: ints(&[15, 4, 30])?,
            tables: Array::from_slice(&[3i32, 0, -1, -1, -1, -1, 4, 5, 1], &[3, 3])?,
        })
    }

    fn pages(&self) -> Pages<'_> {
        Pages {
            starts: &self.starts,
            lens: &self.lens,
            tables: &self.tables,
            most: None,
        }
    }

    /// The position of each token. That of the token of no row is another row's.
    fn positions() -> Result<Array> {
        Array::from_slice(&[15i32, 16, 30, 31, 32, 31], &[1, TOKENS])
    }
}

#[test]
fn positions_are_offsets_of_single_tokens() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let periods = random::normal_with(&Key::new(7)?, &[8], DType::F32, 0.0, 3.0)?.exp()?;
        let w = normal(6, &[20], dtype)?;
        let positions = Array::from_slice(&[7i32, 3000, 0, 8, 8, 100], &[2, 3])?;
        for forms in [false, true] {
            let run = |f: &dyn Fn() -> Result<Array>| if forms { plainly(f) } else { f() };
            let x = normal(5, &[2, 3, 40], dtype)?;
            let weights = [None, Some((&w, 1e-5))];
            for weight in weights {
                let whole =
                    run(&|| fast::heads(&projection(&x, 20, weight, 16, &periods, &positions)))?;
                for (row, token) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
                    let one = |x: &Array, axis| {
                        x.slice_axis(0, row, row + 1)?
                            .slice_axis(axis, token, token + 1)
                    };
                    let (own, at) = (one(&x, 1)?, one(&positions, 1)?.reshape(&[1])?);
                    let alone =
                        run(&|| fast::heads(&projection(&own, 20, weight, 16, &periods, &at)))?;
                    assert_eq!(
                        bits(&one(&whole, 2)?)?,
                        bits(&alone)?,
                        "{dtype}, {row}, {token}"
                    );
                }
            }
            // Offsets of rows are these positions.
            let follow = Array::from_slice(&[7i32, 8, 9, 30, 31, 32], &[2, 3])?;
            let x = normal(4, &[2, 4, 3, 20], dtype)?;
            let rope = fast::Rope {
                dims: 12,
                traditional: true,
                base: Some(1e4),
                scale: 0.5,
                freqs: None,
            };
            let found = run(&|| fast::rope_with(&x, &rope, &follow))?;
            let expected = run(&|| fast::rope_with(&x, &rope, &ints(&[7, 30])?))?;
            near(&found, &expected, 1e-6, &format!("{dtype}"))?;
        }
    }
    let x = normal(5, &[2, 3, 40], DType::F32)?;
    let periods = normal(6, &[8], DType::F32)?;
    for wrong in [&[3, 2][..], &[1, 3]] {
        let positions = Array::from_slice(&vec![0i32; (wrong[0] * wrong[1]) as usize], wrong)?;
        let error = fast::heads(&projection(&x, 20, None, 16, &periods, &positions));
        let text = error.expect_err("positions of other tokens").to_string();
        assert!(text.contains("positions of 2 rows of 3 tokens"), "{text}");
    }
    Ok(())
}

#[test]
fn rotations_by_positions_have_gradients() -> Result<()> {
    let x = normal(4, &[2, 4, 3, 20], DType::F32)?;
    let weights = normal(9, &[2, 4, 3, 20], DType::F32)?;
    let positions = Array::from_slice(&[7i32, 3, 9, 30, 1, 32], &[2, 3])?;
    let gradient = |is_plain: bool| {
        let sum = |a: &[Array]| {
            let rope = || fast::rope(&a[0], 12, false, 1e4, 1.0, &positions);
            let y = if is_plain { plainly(rope)? } else { rope()? };
            Ok(vec![y.multiply(&weights)?.sum(.., false)?])
        };
        grad_with(sum, std::slice::from_ref(&x), &[0])
    };
    near(&gradient(false)?[0], &gradient(true)?[0], 1e-5, "gradient")
}

#[test]
fn keys_of_projections_are_stored() -> Result<()> {
    let step = Step::new()?;
    let schemes = [
        None,
        Some(Scheme::new(32, 4, QuantMode::Affine)?),
        Some(Scheme::new(64, 8, QuantMode::Affine)?),
    ];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for scheme in schemes {
            let periods = random::normal_with(&Key::new(7)?, &[16], DType::F32, 0.0, 3.0)?.exp()?;
            let (x, queries) = (
                normal(1, &[1, TOKENS, 128], dtype)?,
                normal(2, &[1, TOKENS, 256], dtype)?,
            );
            let (w, positions) = (normal(6, &[64], dtype)?, Step::positions()?);
            let values = normal(3, &[1, 2, TOKENS, 64], dtype)?;
            let keys = projection(&x, 64, Some((&w, 1e-5)), 32, &periods, &positions);
            let queries = projection(&queries, 64, None, 32, &periods, &positions);
            let numbers = normal(8, &[6, 2, 16, 64], dtype)?;
            let pool = match scheme {
                Some(scheme) => fast::pack(&numbers, scheme)?,
                None => numbers,
            };
            let how = PagedStore { scheme };
            let shared = || Pools::Shared(&pool, &pool);
            let pages = step.pages();
            let made = fast::heads(&keys)?;
            let (k, v) = fast::paged_store(shared(), &made, &values, &pages, how)?;
            // Exactly the slots of the tokens are new.
            for (buffer, new) in [(&k, &made), (&v, &values)] {
                let new = match scheme {
                    Some(scheme) => fast::pack(new, scheme)?,
                    None => new.clone(),
                };
                let mut expected = pool.clone();
                for (token, (page, slot)) in PLACES.into_iter().enumerate() {
                    let token = token as i32;
                    let [.., d] = pool.dims::<4>()?;
                    let one = new.slice_axis(2, token, token + 1)?;
                    let (start, stop) = ([page, 0, slot, 0], [page + 1, 2, slot + 1, d]);
                    expected = expected.slice_update(&one, &start, &stop)?;
                }
                assert_eq!(bits(buffer)?, bits(&expected)?, "{dtype}, {scheme:?}");
            }
            let check = |k2: &Array, v2: &Array, what: &str| -> Result<()> {
                assert_eq!(bits(&k)?, bits(k2)?, "keys, {what}, {dtype}, {scheme:?}");
                assert_eq!(bits(&v)?, bits(v2)?, "values, {what}, {dtype}, {scheme:?}");
                Ok(())
            };
            let (k2, v2) = fast::paged_store_heads(shared(), &keys, &values, &pages, how)?;
            check(&k2, &v2, "heads")?;
            let (q, k2, v2) =
                fast::paged_heads_and_store(&queries, shared(), &keys, &values, &pages, how)?;
            check(&k2, &v2, "heads and queries")?;
            assert_eq!(bits(&q)?, bits(&fast::heads(&queries)?)?);
            let own = || -> Result<Pools<'static>> { Ok(Pools::Own(pool.copy()?, pool.copy()?)) };
            let (k2, v2) = fast::paged_store_heads(own()?, &keys, &values, &pages, how)?;
            check(&k2, &v2, "in place")?;
            let pack_is_exact = scheme.is_none() || !is_plain()?;
            if pack_is_exact {
                let (k2, v2) =
                    plainly(|| fast::paged_store(shared(), &made, &values, &pages, how))?;
                check(&k2, &v2, "plain")?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_step_without_tokens_stores_nothing() -> Result<()> {
    let pool = normal(8, &[6, 2, 16, 64], DType::F32)?;
    let tables = Array::from_slice(&[-1i32, -1], &[2, 1])?;
    let (starts, lens) = (ints(&[0, 0, 0])?, ints(&[4, 0])?);
    let pages = Pages {
        starts: &starts,
        lens: &lens,
        tables: &tables,
        most: None,
    };
    for tokens in [0, 3] {
        let new = normal(3, &[1, 2, tokens, 64], DType::F32)?;
        for forms in [false, true] {
            let store = || fast::paged_keep(&pool, &new, &pages, false);
            let kept = if forms { plainly(store)? } else { store()? };
            assert_eq!(bits(&kept)?, bits(&pool)?, "{tokens} tokens");
            let q = normal(1, &[1, 4, tokens, 64], DType::F32)?;
            let attend =
                || fast::paged_attention(&q, &pool, &pool, None, &pages, &options(SEES_ALL));
            let y = if forms { plainly(attend)? } else { attend()? };
            assert_eq!(y.shape(), q.shape());
            assert!(y.to_vec::<f32>()?.iter().all(|y| *y == 0.0));
        }
    }
    Ok(())
}

/// Rows that are packed already are kept as they are: their words are no numbers.
#[test]
fn words_are_kept_as_they_are() -> Result<()> {
    let step = Step::new()?;
    let pool = Array::full(&[6, 2, 16, 5], 7u32, DType::U32)?;
    let words: Vec<u32> = (0..2 * TOKENS as u32 * 5)
        .map(|i| i.wrapping_mul(0x9e37_79b9) | 0x7f80_0000)
        .collect();
    let new = Array::from_slice(&words, &[1, 2, TOKENS, 5])?;
    for forms in [false, true] {
        let store = || fast::paged_keep(&pool, &new, &step.pages(), false);
        let kept = if forms { plainly(store)? } else { store()? };
        let kept = kept.to_vec::<u32>()?;
        let mut wanted = vec![7u32; kept.len()];
        for (token, (page, slot)) in PLACES.into_iter().enumerate() {
            for head in 0..2 {
                let to = ((page * 2 + head) * 16 + slot) as usize * 5;
                let from = (head as usize * TOKENS as usize + token) * 5;
                wanted[to..to + 5].copy_from_slice(&words[from..from + 5]);
            }
        }
        assert_eq!(kept, wanted, "plain: {forms}");
    }
    Ok(())
}

#[test]
fn pools_are_written_in_place() -> Result<()> {
    let step = Step::new()?;
    let pool = || -> Result<Array> {
        let pool = fast::blank(&[6, 2, 16, 64], DType::F32)?.add(1.0f32)?;
        eval([&pool])?;
        Ok(pool)
    };
    let new = normal(3, &[1, 2, TOKENS, 64], DType::F32)?;
    if is_plain()? {
        return Ok(());
    }
    let how = PagedStore { scheme: None };
    let (k, v) = (pool()?, pool()?);
    let (mut k2, mut v2) = (k.clone(), v.clone());
    for _ in 0..3 {
        (k2, v2) = fast::paged_store(Pools::Own(k2, v2), &new, &new, &step.pages(), how)?;
    }
    eval([&k2, &v2])?;
    // The first handles see the update, because they are the same buffers.
    assert_eq!(bits(&k)?, bits(&k2)?);
    assert_eq!(bits(&v)?, bits(&v2)?);
    assert_ne!(bits(&k)?, bits(&pool()?)?);
    Ok(())
}

const ROWS: [i32; 5] = [3, 0, 70, 1, 300];

/// Queries, keys and values of [`ROWS`], as [`texts_of`].
fn texts(sizes: [i32; 4], dtype: DType) -> Result<([Array; 3], Array)> {
    texts_of(&ROWS, sizes, dtype)
}

/// Queries, keys and values of the rows, with two tokens of no row, which are NaN; and `starts`.
fn texts_of(rows: &[i32], sizes: [i32; 4], dtype: DType) -> Result<([Array; 3], Array)> {
    let [h, kv, d, dv] = sizes;
    let tokens: i32 = rows.iter().sum();
    let made = |seed, heads, d| -> Result<Array> {
        let nan = Array::scalar(f32::NAN)?.broadcast_to(&[1, heads, 2, d])?;
        concat(
            &[
                &normal(seed, &[1, heads, tokens, d], dtype)?,
                &nan.astype(dtype)?,
            ],
            2,
        )
    };
    let mut starts = vec![0];
    for row in rows {
        starts.push(starts[starts.len() - 1] + row);
    }
    Ok((
        [made(1, h, d)?, made(2, kv, d)?, made(3, kv, dv)?],
        ints(&starts)?,
    ))
}

#[test]
fn a_row_sees_only_its_own_tokens() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (sizes, window) in [([4, 2, 64, 64], None), ([3, 1, 40, 16], Some(9))] {
            let ([q, k, v], starts) = texts(sizes, dtype)?;
            let seen = Seen { window, ..SEES_ALL };
            let whole = fast::ragged_attention(&q, &k, &v, &rows_of(&starts), &options(seen))?;
            let latent = fast::ragged_latents(&q, &k, sizes[3], &rows_of(&starts), &options(seen))?;
            let mut from = 0;
            for row in ROWS {
                let to = from + row;
                let part = |x: &Array| x.slice_axis(2, from, to);
                let zero = ints(&[0])?;
                let mask = Mask::Positions(Positions::new(&zero, window, KeySlots::Straight));
                let options = Attention {
                    scale: 0.3,
                    soft_cap: None,
                    mask,
                    sinks: None,
                };
                let both = if row == 0 {
                    continue;
                } else {
                    let values = part(&k)?.slice_axis(3, 0, sizes[3])?;
                    [
                        (
                            &whole,
                            fast::attention(&part(&q)?, &part(&k)?, &part(&v)?, &options)?,
                        ),
                        (
                            &latent,
                            fast::attention(&part(&q)?, &part(&k)?, &values, &options)?,
                        ),
                    ]
                };
                for (whole, alone) in both {
                    let (found, what) = (part(whole)?, format!("{row} tokens, {dtype}"));
                    if is_plain()? {
                        // MLX's own attention rounds in between, so it is compared in f32 only.
                        if dtype == DType::F32 {
                            near(&found, &alone, 2e-5, &what)?;
                        }
                    } else {
                        let (found, alone) = (found.astype(DType::F32)?, alone.astype(DType::F32)?);
                        assert!(found.to_vec::<f32>()? == alone.to_vec::<f32>()?, "{what}");
                    }
                }
                from = to;
            }
            for y in [&whole, &latent] {
                let rest = y.slice_axis(2, from, from + 2)?.astype(DType::F32)?;
                assert!(rest.to_vec::<f32>()?.iter().all(|y| *y == 0.0));
            }
        }
    }
    Ok(())
}

/// A random mask of the rows, in which every query sees its own key.
fn bools_that_show_own_keys(tokens: i32) -> Result<Array> {
    let bools = normal(4, &[1, tokens, 300], DType::F32)?.greater(-0.5f32)?;
    let at: Vec<i32> = ROWS.iter().flat_map(|row| 0..*row).chain([0, 0]).collect();
    let own = Array::from_slice(&at, &[1, tokens, 1])?;
    let column = Array::from_slice(&(0..300).collect::<Vec<i32>>(), &[1, 1, 300])?;
    bools.logical_or(&column.equal(&own)?)
}

/// What queries see. The first two cases have a dense form over single rows.
fn seen_with_gradients<'a>(
    bools: &'a Array,
    numbers: &'a Array,
    slopes: &'a Array,
) -> Vec<Seen<'a>> {
    let of = |mask, window, chunk| Seen {
        window,
        chunk,
        ahead: 0,
        mask,
        slopes: None,
    };
    vec![
        SEES_ALL,
        of(None, Some(20), None),
        of(None, None, Some(32)),
        of(Some(bools), None, None),
        of(Some(numbers), None, None),
        of(Some(bools), Some(15), None),
        of(Some(numbers), Some(40), Some(64)),
        Seen {
            ahead: i32::MAX,
            ..SEES_ALL
        },
        Seen {
            ahead: 30,
            ..SEES_ALL
        },
        Seen {
            ahead: 20,
            ..of(None, Some(21), None)
        },
        Seen {
            ahead: i32::MAX,
            ..of(Some(bools), None, None)
        },
        Seen {
            ahead: 15,
            ..of(Some(bools), Some(40), None)
        },
        Seen {
            ahead: 9,
            ..of(Some(numbers), Some(10), None)
        },
        Seen {
            slopes: Some(slopes),
            ..SEES_ALL
        },
    ]
}

#[test]
fn gradients_are_those_of_the_rows() -> Result<()> {
    let sizes = [4, 2, 32, 16];
    let tokens: i32 = ROWS.iter().sum::<i32>() + 2;
    let (inputs, starts) = texts(sizes, DType::F32)?;
    let weights = normal(9, &[1, 4, tokens, 16], DType::F32)?;
    let bools = bools_that_show_own_keys(tokens)?;
    let numbers = normal(5, &[4, tokens, 300], DType::F32)?;
    let slopes = Array::from_slice(&[0.5f32, 0.25, 0.125, 0.0625], &[4])?;
    for (case, seen) in seen_with_gradients(&bools, &numbers, &slopes)
        .into_iter()
        .enumerate()
    {
        let gradient = |is_plain: bool| {
            let sum = |a: &[Array]| {
                let attend = || {
                    fast::ragged_attention(&a[0], &a[1], &a[2], &rows_of(&starts), &options(seen))
                };
                let y = if is_plain {
                    plainly(attend)?
                } else {
                    attend()?
                };
                Ok(vec![y.multiply(&weights)?.sum(.., false)?])
            };
            grad_with(sum, &inputs, &[0, 1, 2])
        };
        let (found, exact) = (gradient(false)?, gradient(true)?);
        for (name, (found, exact)) in ["q", "k", "v"].iter().zip(found.iter().zip(&exact)) {
            let own = |x: &Array| x.slice_axis(2, 0, tokens - 2);
            near(
                &own(found)?,
                &own(exact)?,
                2e-4,
                &format!("{name}, case {case}"),
            )?;
            let rest = found.slice_axis(2, tokens - 2, tokens)?.to_vec::<f32>()?;
            assert!(
                rest.iter().all(|g| *g == 0.0),
                "{name}, case {case}: {rest:?}"
            );
        }
        if case > 1 {
            continue;
        }
        // Those of the dense form over single rows.
        let mut from = 0;
        for row in ROWS {
            let part = |x: &Array| x.slice_axis(2, from, from + row);
            if row > 0 {
                let own: Result<Vec<Array>> = inputs.iter().map(part).collect();
                let weights = part(&weights)?;
                let dense = |a: &[Array]| {
                    let zero = ints(&[0])?;
                    let at = Positions::new(&zero, seen.window, KeySlots::Straight);
                    let options = Attention {
                        scale: 0.3,
                        soft_cap: None,
                        mask: Mask::Positions(at),
                        sinks: None,
                    };
                    let y = fast::attention(&a[0], &a[1], &a[2], &options)?;
                    Ok(vec![y.multiply(&weights)?.sum(.., false)?])
                };
                let alone = grad_with(dense, &own?, &[0, 1, 2])?;
                for (found, alone) in found.iter().zip(&alone) {
                    near(
                        &part(found)?,
                        alone,
                        1e-4,
                        &format!("{row} tokens, case {case}"),
                    )?;
                }
            }
            from += row;
        }
    }
    Ok(())
}

//! Flat steps over pages: the kernels against the plain form, and each row alone against the same row in a batch, to the
//! bit. All positions that no query sees are NaN.

use mlx_core::fast::{
    self, FlatAttention, PagedStore, Pages, Pools, Projection, Seen, packed_words, plainly,
};
use mlx_core::ops::concat;
use mlx_core::ops::create::full;
use mlx_core::{Array, DType, Result, Scheme};

use super::{close, f32s, noise, on_gpu};
use mlx_core::ops::quantize::QuantMode;

const PAGE: i32 = 64;

/// Sizes of heads, and what queries see.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: i32,
    kv_heads: i32,
    dim: i32,
    value_dim: i32,
    window: Option<i32>,
    soft_cap: Option<f32>,
    bits: Option<i32>,
    is_latent: bool,
}

const PLAIN: Case = Case {
    heads: 4,
    kv_heads: 2,
    dim: 128,
    value_dim: 128,
    window: None,
    soft_cap: None,
    bits: None,
    is_latent: false,
};

impl Case {
    fn scheme(&self) -> Option<Scheme> {
        let scheme = |bits| Scheme::new(64, bits, QuantMode::Affine).unwrap();
        self.bits.map(scheme)
    }
}

/// A row of a step: the positions that it holds, its new tokens, and the seed of its numbers.
#[derive(Clone, Copy, Debug)]
struct Row {
    held: i32,
    tokens: i32,
    seed: u64,
}

/// The numbers of a row: `[1, H, tokens, D]` queries, and keys and values of all positions.
fn numbers(case: Case, row: Row, dtype: DType) -> Result<[Array; 3]> {
    let all = row.held + row.tokens;
    Ok([
        noise(3 * row.seed, &[1, case.heads, row.tokens, case.dim], dtype)?,
        noise(3 * row.seed + 1, &[1, case.kv_heads, all, case.dim], dtype)?,
        noise(
            3 * row.seed + 2,
            &[1, case.kv_heads, all, case.value_dim],
            dtype,
        )?,
    ])
}

/// A step of these rows. `spare`: tokens behind the last row. `turn` changes which pages they have.
struct Step {
    case: Case,
    starts: Array,
    lens: Array,
    tables: Array,
    queries: Array,
    new: [Array; 2],
    pools: [Array; 2],
}

fn step(case: Case, rows: &[Row], dtype: DType, spare: i32, turn: i32) -> Result<Step> {
    let pages = |row: &Row| ((row.held + row.tokens).max(1) + PAGE - 1) / PAGE;
    let columns = rows.iter().map(pages).max().unwrap_or(1) + turn % 2;
    let count = rows.iter().map(pages).sum::<i32>() + 3;
    let mut next = turn;
    let mut table = vec![-1; rows.len() * columns as usize];
    let (mut starts, mut lens) = (vec![0], Vec::new());
    let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut held: Vec<(i32, [Array; 2])> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let [q, k, v] = numbers(case, *row, dtype)?;
        starts.push(starts[at] + row.tokens);
        lens.push(row.held);
        if row.tokens > 0 {
            queries.push(q);
            keys.push(k.slice_axis(2, row.held, row.held + row.tokens)?);
            values.push(v.slice_axis(2, row.held, row.held + row.tokens)?);
        }
        for page in 0..pages(row) {
            // Seven and the number of pages have no common factor in these tests, or the order is that of pages.
            let own = match count % 7 {
                0 => next,
                _ => next * 7,
            } % count;
            next += 1;
            table[at * columns as usize + page as usize] = own;
            let (from, to) = (page * PAGE, ((page + 1) * PAGE).min(row.held));
            if from < to {
                // Positions that no query sees are NaN.
                let first = case
                    .window
                    .map_or(0, |window| (row.held - window + 1).max(0));
                let part = |x: &Array| -> Result<Array> {
                    let part = x.slice_axis(2, from, to)?;
                    let [_, heads, n, d] = part.dims()?;
                    let lost = (first - from).clamp(0, n);
                    let nan = full(&[1, heads, lost, d], f32::NAN, DType::F32)?.astype(dtype)?;
                    let part = concat(&[&nan, &part.slice_axis(2, lost, n)?], 2)?;
                    let nan = full(&[1, heads, PAGE - n, d], f32::NAN, DType::F32)?;
                    concat(&[&part, &nan.astype(dtype)?], 2)
                };
                held.push((own, [part(&k)?, part(&v)?]));
            }
        }
    }
    let pool = |at: usize| -> Result<Array> {
        let d = [case.dim, case.value_dim][at];
        let nan = full(&[count, case.kv_heads, PAGE, d], f32::NAN, DType::F32)?;
        let mut pool = nan.astype(dtype)?;
        for (page, content) in &held {
            let (starts, stops) = ([*page, 0, 0, 0], [page + 1, case.kv_heads, PAGE, d]);
            pool = pool.slice_update(&content[at], &starts, &stops)?;
        }
        match case.scheme() {
            Some(scheme) => fast::pack(&pool, scheme),
            None => Ok(pool),
        }
    };
    let behind = |all: Vec<Array>, heads: i32, d: i32| -> Result<Array> {
        let mut all = all;
        all.push(full(&[1, heads, spare, d], 7.0f32, DType::F32)?.astype(dtype)?);
        concat(&all, 2)
    };
    let n = rows.len() as i32;
    Ok(Step {
        case,
        starts: Array::from_slice(&starts, &[n + 1])?,
        lens: Array::from_slice(&lens, &[n])?,
        tables: Array::from_slice(&table, &[n, columns])?,
        queries: behind(queries, case.heads, case.dim)?,
        new: [
            behind(keys, case.kv_heads, case.dim)?,
            behind(values, case.kv_heads, case.value_dim)?,
        ],
        pools: [pool(0)?, pool(1)?],
    })
}

impl Step {
    fn pages(&self, most: Option<i32>) -> Pages<'_> {
        Pages {
            starts: &self.starts,
            lens: &self.lens,
            tables: &self.tables,
            most,
        }
    }

    fn run(&self, most: Option<i32>) -> Result<[Array; 3]> {
        let (pages, scheme) = (self.pages(most), self.case.scheme());
        let [k, v] = &self.pools;
        if self.case.is_latent {
            let k = fast::paged_keep(k, &self.new[0], &pages, false)?;
            return Ok([self.attend(most, &k, &k)?, k.clone(), k]);
        }
        let how = PagedStore { scheme };
        let [new_k, new_v] = &self.new;
        let (k, v) = fast::paged_store(Pools::Shared(k, v), new_k, new_v, &pages, how)?;
        Ok([self.attend(most, &k, &v)?, k, v])
    }

    /// The attention over these pools.
    fn attend(&self, most: Option<i32>, k: &Array, v: &Array) -> Result<Array> {
        let options = FlatAttention {
            scale: (self.case.dim as f32).powf(-0.5),
            soft_cap: self.case.soft_cap,
            seen: Seen {
                window: self.case.window,
                ..Seen::default()
            },
            sinks: None,
        };
        let (pages, scheme) = (self.pages(most), self.case.scheme());
        match self.case.is_latent {
            true => fast::paged_latents(&self.queries, k, self.case.value_dim, &pages, &options),
            false => fast::paged_attention(&self.queries, k, v, scheme, &pages, &options),
        }
    }
}

fn rows(of: &[(i32, i32)]) -> Vec<Row> {
    let row = |(at, &(held, tokens)): (usize, &(i32, i32))| Row {
        held,
        tokens,
        seed: at as u64 + 1,
    };
    of.iter().enumerate().map(row).collect()
}

fn check(case: Case, of: &[(i32, i32)]) -> Result<()> {
    let all = rows(of);
    let most = of.iter().map(|&(_, tokens)| tokens).max();
    for dtype in [DType::BF16, DType::F16] {
        let what = format!("{case:?}, {of:?}, {dtype}");
        let batch = step(case, &all, dtype, 3, 5)?;
        let found = batch.run(most)?;
        let plain = plainly(|| batch.run(most))?;
        // Two ways to pack round a tie to different codes, so the plain form reads what the kernel has packed.
        let wanted = match case.bits {
            Some(_) => plainly(|| batch.attend(most, &found[1], &found[2]))?,
            None => plain[0].clone(),
        };
        // The kernel rounds packed numbers to the dtype, and the plain form does not.
        let tolerance = match (case.bits, dtype) {
            (Some(_), _) => 6e-2,
            (None, DType::BF16) => 3e-2,
            (None, _) => 4e-3,
        };
        close(&what, &found[0], &wanted, tolerance)?;
        for part in 1..3 {
            let same = f32s(&found[part])?
                .iter()
                .zip(&f32s(&plain[part])?)
                .all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()));
            assert!(same || case.bits.is_some(), "{what}: pool {part} differs");
        }
        // The bits do not depend on the bound.
        let wide = f32s(&batch.run(None)?[0])?;
        assert_eq!(f32s(&found[0])?, wide, "{what}: another bound");
        // Nor on other rows, the place in the axis, or pages.
        let mut first = 0;
        for (at, row) in all.iter().enumerate() {
            let own = found[0].slice_axis(2, first, first + row.tokens)?;
            first += row.tokens;
            if row.tokens == 0 {
                continue;
            }
            let alone = step(case, &[*row], dtype, 0, at as i32)?.run(Some(row.tokens))?;
            assert_eq!(f32s(&own)?, f32s(&alone[0])?, "{what}: row {at} alone");
        }
        let rest = f32s(&found[0].slice_axis(2, first, first + 3)?)?;
        assert!(rest.iter().all(|&x| x == 0.0), "{what}: tokens of no row");
    }
    Ok(())
}

const STEPS: [&[(i32, i32)]; 7] = [
    &[(5, 1)],
    &[(0, 1), (63, 1), (64, 1), (200, 1), (1000, 1)],
    &[(0, 3), (61, 4), (130, 0), (700, 9)],
    &[(0, 90), (130, 200), (64, 64)],
    &[(3000, 1), (10, 1)],
    &[(0, 700), (900, 1), (20, 5)],
    &[
        (17, 4),
        (80, 4),
        (127, 4),
        (128, 4),
        (500, 4),
        (4, 4),
        (6, 4),
        (300, 4),
    ],
];

#[test]
fn rows_of_any_width() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for of in STEPS {
        for (heads, kv_heads, dim) in [(4, 2, 128), (8, 1, 64), (6, 2, 256), (3, 3, 80)] {
            let case = Case {
                heads,
                kv_heads,
                dim,
                value_dim: dim,
                ..PLAIN
            };
            check(case, of)?;
        }
    }
    Ok(())
}

#[test]
fn windows_and_caps() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for of in STEPS {
        for window in [1, 40, 64, 300] {
            let case = Case {
                window: Some(window),
                soft_cap: (window == 40).then_some(20.0),
                ..PLAIN
            };
            check(case, of)?;
        }
    }
    Ok(())
}

#[test]
fn latents_and_packed_rows() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for of in STEPS {
        let latents = Case {
            heads: 16,
            kv_heads: 1,
            dim: 576,
            value_dim: 512,
            is_latent: true,
            ..PLAIN
        };
        check(latents, of)?;
        for bits in [4, 8] {
            let packed = Case {
                bits: Some(bits),
                ..PLAIN
            };
            assert!(packed_words(128, DType::BF16, packed.scheme().unwrap())? > 0);
            check(packed, of)?;
        }
    }
    Ok(())
}

/// The heads of projections, written by one kernel, equal the heads that two kernels make.
#[test]
fn projections_are_stored_as_their_heads() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let case = PLAIN;
    for of in STEPS {
        for dtype in [DType::BF16, DType::F16] {
            let batch = step(case, &rows(of), dtype, 2, 4)?;
            let t = batch.queries.dim(2)?;
            let mut positions: Vec<i32> = of
                .iter()
                .flat_map(|&(held, tokens)| held..held + tokens)
                .collect();
            positions.resize(t as usize, 0);
            let positions = Array::from_slice(&positions, &[1, t])?;
            let x = noise(9, &[1, t, case.heads * case.dim], dtype)?;
            let y = noise(10, &[1, t, case.kv_heads * case.dim], dtype)?;
            let periods: Vec<f32> = (0..case.dim / 2).map(|i| 1.5f32.powi(i)).collect();
            let freqs = Array::from_slice(&periods, &[case.dim / 2])?;
            let projection = |x| Projection {
                x,
                head_dim: case.dim,
                norm: None,
                dims: case.dim,
                freqs: &freqs,
                offsets: &positions,
            };
            let pages = batch.pages(None);
            let how = PagedStore { scheme: None };
            let pools = || Pools::Shared(&batch.pools[0], &batch.pools[1]);
            let values = &batch.new[1];
            let (queries, keys) = (projection(&x), projection(&y));
            let (heads, k, v) =
                fast::paged_heads_and_store(&queries, pools(), &keys, values, &pages, how)?;
            let apart = fast::heads(&keys)?;
            let (k2, v2) = fast::paged_store(pools(), &apart, values, &pages, how)?;
            let bits = |a: &Array| -> Result<Vec<u32>> {
                Ok(f32s(a)?.iter().map(|x| x.to_bits()).collect())
            };
            assert_eq!(bits(&heads)?, bits(&fast::heads(&queries)?)?, "{of:?}");
            assert_eq!(bits(&k)?, bits(&k2)?, "{of:?}: keys");
            assert_eq!(bits(&v)?, bits(&v2)?, "{of:?}: values");
            let plain = plainly(|| fast::heads(&keys))?;
            close("heads", &apart, &plain, 2e-2)?;
        }
    }
    Ok(())
}

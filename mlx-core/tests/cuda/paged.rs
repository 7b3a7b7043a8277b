//! Flat steps over pages: the kernels against the plain form, and each row alone against the same row in a batch, to the
//! bit. All positions that no query sees are NaN.

use mlx_core::fast::{
    self, FlatAttention, PagedStore, Pages, Pools, Projection, RaggedRows, Seen, packed_words,
    plainly,
};
use mlx_core::ops::concat;
use mlx_core::ops::create::full;
use mlx_core::{Array, DType, Result, Scheme, graph_size};

use super::{close, f32s, noise, on_gpu};
use mlx_core::ops::quantize::QuantMode;

const PAGE: i32 = 64;

/// Sizes of heads, and what queries see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) heads: i32,
    pub(super) kv_heads: i32,
    pub(super) dim: i32,
    pub(super) value_dim: i32,
    pub(super) window: Option<i32>,
    pub(super) chunk: Option<i32>,
    pub(super) ahead: i32,
    pub(super) soft_cap: Option<f32>,
    pub(super) bits: Option<i32>,
    pub(super) is_latent: bool,
    pub(super) has_slopes: bool,
    pub(super) has_sinks: bool,
    pub(super) added: Option<Added>,
}

/// A mask, for each head or for all, and for each token or for all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Added {
    kind: Kind,
    by_head: bool,
    by_token: bool,
}

/// What a mask consists of. All but `Numbers` hide the first 130 positions from some tokens, which are whole parts of the
/// kernels' sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Booleans, which hide all positions from some tokens.
    Booleans,
    /// Numbers from -2 to 2.
    Numbers,
    /// The same, and the lowest number where booleans would be false.
    Lowest,
    /// The same, and minus infinity for some positions other than a token's own.
    Infinite,
}

pub(super) const fn added(kind: Kind, by_head: bool, by_token: bool) -> Option<Added> {
    Some(Added {
        kind,
        by_head,
        by_token,
    })
}

pub(super) const PLAIN: Case = Case {
    heads: 4,
    kv_heads: 2,
    dim: 128,
    value_dim: 128,
    window: None,
    chunk: None,
    ahead: 0,
    soft_cap: None,
    bits: None,
    is_latent: false,
    has_slopes: false,
    has_sinks: false,
    added: None,
};

pub(super) const LATENTS: Case = Case {
    heads: 16,
    kv_heads: 1,
    dim: 576,
    value_dim: 512,
    is_latent: true,
    ..PLAIN
};

/// [`PLAIN`] with other heads.
pub(super) const fn sized(heads: i32, kv_heads: i32, dim: i32) -> Case {
    Case {
        heads,
        kv_heads,
        dim,
        value_dim: dim,
        ..PLAIN
    }
}

/// Heads for which there are different kernels, or of which kernels leave some elements out.
pub(super) const SIZES: [Case; 4] = [PLAIN, sized(8, 1, 64), sized(6, 2, 256), sized(3, 3, 80)];

/// All kinds of masks.
pub(super) const MASKS: [Option<Added>; 11] = [
    added(Kind::Booleans, false, false),
    added(Kind::Booleans, true, false),
    added(Kind::Booleans, false, true),
    added(Kind::Booleans, true, true),
    added(Kind::Numbers, false, false),
    added(Kind::Numbers, true, false),
    added(Kind::Numbers, false, true),
    added(Kind::Numbers, true, true),
    added(Kind::Lowest, false, false),
    added(Kind::Lowest, false, true),
    added(Kind::Infinite, false, true),
];

/// All that changes scores, at once.
pub(super) const ALL: Case = Case {
    window: Some(300),
    chunk: Some(400),
    soft_cap: Some(20.0),
    has_slopes: true,
    has_sinks: true,
    added: added(Kind::Booleans, false, true),
    ..PLAIN
};

impl Case {
    /// Whether a query sees all keys of its row, and nothing changes their scores.
    pub(super) fn is_whole(&self) -> bool {
        let changes = self.soft_cap.is_some() || self.has_sinks || self.added.is_some();
        let is_kept = self.is_latent || self.bits.is_some();
        self.ahead == i32::MAX && self.window.is_none() && !changes && !is_kept
    }

    pub(super) const fn in_chunks(self, size: i32) -> Self {
        Self {
            chunk: Some(size),
            ..self
        }
    }
    fn scheme(&self) -> Option<Scheme> {
        let scheme = |bits| Scheme::new(64, bits, QuantMode::Affine).unwrap();
        self.bits.map(scheme)
    }
}

/// A row of a step: the positions that it holds, its new tokens, and the seed of its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) held: i32,
    pub(super) tokens: i32,
    pub(super) seed: u64,
}

/// The numbers of a row: `[1, H, tokens, D]` queries, and keys and values of all positions.
pub(super) fn numbers(case: Case, row: Row, dtype: DType) -> Result<[Array; 3]> {
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

/// A step of rows, with `spare` tokens behind the last of them.
pub(super) struct Step {
    case: Case,
    starts: Array,
    lens: Array,
    tables: Array,
    pub(super) queries: Array,
    pub(super) new: [Array; 2],
    pools: [Array; 2],
    pub(super) mask: Option<Array>,
    slopes: Option<Array>,
    sinks: Option<Array>,
}

/// The mask of a step, with a column for each position that a row has. Its numbers depend on the row, the head and the
/// positions only.
fn mask(case: Case, rows: &[Row], spare: i32) -> Result<Option<Array>> {
    let Some(Added {
        kind,
        by_head,
        by_token,
    }) = case.added
    else {
        return Ok(None);
    };
    assert!(
        by_token || kind != Kind::Infinite,
        "all keys of a token would be at minus infinity"
    );
    let all = rows.iter().map(|row| row.held + row.tokens);
    let columns = all.max().unwrap_or(0).max(1);
    let tokens = rows
        .iter()
        .flat_map(|row| (row.held..row.held + row.tokens).map(|position| (row.seed, position)));
    let tokens: Vec<(u64, i32)> = match by_token {
        true => tokens.chain((0..spare).map(|_| (0, 0))).collect(),
        false => vec![(1, 0)],
    };
    let heads = if by_head { case.heads } else { 1 };
    let (mut seen, mut numbers) = (Vec::new(), Vec::new());
    for head in 0..heads {
        for &(seed, position) in &tokens {
            for column in 0..columns {
                let mixed =
                    (seed * 31 + position as u64 * 7 + head as u64) * 13 + column as u64 * 29;
                let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let number = (mixed % 1000) as f32 / 250.0 - 2.0;
                let is_far = match by_token {
                    true => position % 5 == 1 && column < 130,
                    false => column < 70,
                };
                let hides = is_far || mixed.is_multiple_of(3);
                let hides_all = by_token && position % 7 == 3;
                match kind {
                    Kind::Booleans => seen.push(!hides && !hides_all),
                    Kind::Numbers => numbers.push(number),
                    Kind::Lowest if hides || hides_all => numbers.push(f32::MIN),
                    Kind::Infinite if hides && column != position => {
                        numbers.push(f32::NEG_INFINITY);
                    }
                    Kind::Lowest | Kind::Infinite => numbers.push(number),
                }
            }
        }
    }
    let shape = [heads, tokens.len() as i32, columns];
    Ok(Some(match kind {
        Kind::Booleans => Array::from_slice(&seen, &shape)?,
        _ => Array::from_slice(&numbers, &shape)?,
    }))
}

/// `turn` changes which pages rows have. Tokens of no row are NaN.
pub(super) fn step(case: Case, rows: &[Row], dtype: DType, spare: i32, turn: i32) -> Result<Step> {
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
                let of_window = case.window.map_or(0, |window| row.held - window + 1);
                let of_chunk = case.chunk.map_or(0, |chunk| row.held / chunk * chunk);
                let first = of_window.max(of_chunk);
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
        all.push(full(&[1, heads, spare, d], f32::NAN, DType::F32)?.astype(dtype)?);
        concat(&all, 2)
    };
    let n = rows.len() as i32;
    let by_head = |number: fn(i32) -> f32| -> Result<Array> {
        let numbers: Vec<f32> = (1..=case.heads).map(number).collect();
        Array::from_slice(&numbers, &[case.heads])
    };
    let slopes = |head| match head % 2 {
        0 => -0.02 * head as f32,
        _ => 0.5f32.powi(head),
    };
    let step = Step {
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
        mask: mask(case, rows, spare)?,
        slopes: case.has_slopes.then(|| by_head(slopes)).transpose()?,
        sinks: match case.has_sinks {
            true => Some(by_head(|head| 0.5 * head as f32 - 1.0)?),
            false => None,
        },
    };
    // The operations of a step that are counted below are only its own.
    let [k, v] = &step.new;
    let [k_pool, v_pool] = &step.pools;
    mlx_core::eval([&step.queries, k, v, k_pool, v_pool])?;
    Ok(step)
}

/// Fails unless one node computes `y`, or many if it is in the plain form.
pub(super) fn is_one_node(what: &str, y: &Array, plain: &Array) -> Result<()> {
    assert_eq!(graph_size([y])?, 1, "{what}: not in a kernel");
    assert!(graph_size([plain])? > 5, "{what}: not in the plain form");
    Ok(())
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

    pub(super) fn run(&self, most: Option<i32>) -> Result<[Array; 3]> {
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
        let options = self.options();
        let (pages, scheme) = (self.pages(most), self.case.scheme());
        match self.case.is_latent {
            true => fast::paged_latents(&self.queries, k, self.case.value_dim, &pages, &options),
            false => fast::paged_attention(&self.queries, k, v, scheme, &pages, &options),
        }
    }

    fn options(&self) -> FlatAttention<'_> {
        FlatAttention {
            scale: (self.case.dim as f32).powf(-0.5),
            soft_cap: self.case.soft_cap,
            seen: Seen {
                window: self.case.window,
                chunk: self.case.chunk,
                ahead: self.case.ahead,
                mask: self.mask.as_ref(),
                slopes: self.slopes.as_ref(),
            },
            sinks: self.sinks.as_ref(),
        }
    }

    /// The attention without pages, of rows that hold nothing before the step.
    pub(super) fn ragged(&self, most: Option<i32>) -> Result<Array> {
        let options = self.options();
        let rows = RaggedRows {
            starts: &self.starts,
            longest: most.unwrap_or(i32::MAX),
        };
        let [k, v] = &self.new;
        match self.case.is_latent {
            true => fast::ragged_latents(&self.queries, k, self.case.value_dim, &rows, &options),
            false => fast::ragged_attention(&self.queries, k, v, &rows, &options),
        }
    }
}

pub(super) fn rows(of: &[(i32, i32)]) -> Vec<Row> {
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
        let attend = || batch.attend(most, &found[1], &found[2]);
        mlx_core::eval(&found)?;
        is_one_node(&what, &attend()?, &plainly(attend)?)?;
        // Two ways to pack round a tie to different codes, so the plain form reads what the kernel has packed.
        let wanted = match case.bits {
            Some(_) => plainly(attend)?,
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

pub(super) const STEPS: [&[(i32, i32)]; 7] = [
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

/// Many prompts, for which there is a kernel of its own.
const PROMPTS: &[(i32, i32)] = &[(0, 700), (130, 100), (64, 64), (10, 1), (1000, 40)];

/// Checks the cases in all steps.
fn check_all(cases: impl IntoIterator<Item = Case>) -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for case in cases {
        for of in STEPS {
            check(case, of)?;
        }
        check(case, PROMPTS)?;
    }
    Ok(())
}

#[test]
fn rows_of_any_width() -> Result<()> {
    check_all(SIZES)
}

#[test]
fn windows_caps_and_sinks() -> Result<()> {
    let windows = [1, 40, 64, 300].map(|window| Case {
        window: Some(window),
        soft_cap: (window == 40).then_some(20.0),
        has_sinks: window == 300,
        ..PLAIN
    });
    let has_sinks = Case {
        has_sinks: true,
        ..PLAIN
    };
    check_all(windows.into_iter().chain([has_sinks]))
}

/// Steps of many rows with few tokens each, which have a kernel of their own: with parts of the keys in several blocks, with
/// a block for each row, and with more blocks than run at once.
#[test]
fn many_rows_with_few_tokens() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let window = |window| Case {
        window: Some(window),
        has_sinks: window == 300,
        soft_cap: (window == 40).then_some(20.0),
        ..PLAIN
    };
    for case in [PLAIN, sized(8, 2, 64), window(300), window(40)] {
        for rows in [30, 70, 140] {
            let row = |at: i32| (at * 61 % 997, [1, 1, 4, 1, 0, 2][(at % 6) as usize]);
            check(case, &(0..rows).map(row).collect::<Vec<_>>())?;
            let single: Vec<_> = (0..rows).map(|at| (at * 61 % 997, 1)).collect();
            check(case, &single)?;
        }
    }
    Ok(())
}

#[test]
fn latents_and_packed_rows() -> Result<()> {
    let packed = [4, 8].map(|bits| Case {
        bits: Some(bits),
        ..PLAIN
    });
    if on_gpu()? {
        for case in packed {
            assert!(packed_words(128, DType::BF16, case.scheme().unwrap())? > 0);
        }
    }
    check_all([LATENTS].into_iter().chain(packed))
}

#[test]
fn chunks() -> Result<()> {
    let mut cases = Vec::new();
    for chunk in [5, 64, 100] {
        let bits = [None, Some(4), Some(8)];
        cases.extend(bits.map(|bits| Case { bits, ..PLAIN }.in_chunks(chunk)));
        cases.push(LATENTS.in_chunks(chunk));
    }
    cases.extend(SIZES[1..].iter().map(|case| case.in_chunks(100)));
    let others = Case {
        window: Some(70),
        soft_cap: Some(20.0),
        has_sinks: true,
        ..PLAIN
    };
    cases.extend([others.in_chunks(100), PLAIN.in_chunks(300)]);
    check_all(cases)
}

#[test]
fn slopes() -> Result<()> {
    let others = [
        LATENTS,
        Case {
            bits: Some(4),
            ..PLAIN
        },
        Case {
            window: Some(40),
            soft_cap: Some(20.0),
            has_sinks: true,
            ..PLAIN
        },
    ];
    check_all(SIZES.into_iter().chain(others).map(|case| Case {
        has_slopes: true,
        ..case
    }))
}

#[test]
fn masks() -> Result<()> {
    check_all(MASKS.map(|added| Case { added, ..PLAIN }))
}

#[test]
fn masks_of_other_heads_and_pools() -> Result<()> {
    let hidden = |case: &Case| Case {
        added: added(Kind::Booleans, false, true),
        ..*case
    };
    let mut cases: Vec<Case> = SIZES[1..].iter().map(hidden).collect();
    cases.push(hidden(&LATENTS));
    for bits in [4, 8].map(Some) {
        for by_head in [false, true] {
            let kinds = [(Kind::Booleans, !by_head), (Kind::Numbers, by_head)];
            cases.extend(kinds.map(|(kind, by_token)| Case {
                bits,
                added: added(kind, by_head, by_token),
                ..PLAIN
            }));
        }
    }
    check_all(cases)
}

#[test]
fn masks_with_all_else() -> Result<()> {
    let cases = [
        ALL,
        Case {
            bits: Some(8),
            ..ALL
        },
        Case {
            added: added(Kind::Infinite, false, true),
            ..ALL
        },
        Case {
            window: Some(40),
            added: added(Kind::Booleans, true, true),
            ..PLAIN
        },
        Case {
            has_sinks: true,
            added: added(Kind::Booleans, false, false),
            ..PLAIN
        },
    ];
    check_all(cases)
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

//! Flat steps: random ragged batches over pages, compared with attention over each row alone, to the bit, and with the
//! plain form. Everything that no query sees is NaN.

use mlx_core::fast::{
    self, Attention, FlatAttention, KeySlots, Mask, PagedStore, Pages, Pools, Positions, Seen,
    plainly,
};
use mlx_core::ops::concat;
use mlx_core::{Array, DType, Result, Scheme};

use super::attention::{Sizes, scheme};
use super::{TYPES, check, normal};

/// A generator of numbers, for shapes.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From 0 to `sides - 1`.
    pub(super) fn roll(&mut self, sides: i32) -> i32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as i32 % sides
    }

    /// An order of `0..n`.
    fn order(&mut self, n: i32) -> Vec<i32> {
        let mut all: Vec<i32> = (0..n).collect();
        for last in (1..n).rev() {
            all.swap(last as usize, self.roll(last + 1) as usize);
        }
        all
    }
}

/// What a case of a batch has.
#[derive(Clone, Copy, Debug)]
struct How {
    sizes: Sizes,
    page: i32,
    window: Option<i32>,
    chunk: Option<i32>,
    scheme: Option<Scheme>,
    /// The size of values in latents.
    latent: Option<i32>,
    soft_cap: Option<f32>,
    sinks: bool,
    bools: bool,
    numbers: bool,
    slopes: bool,
}

/// A step of some rows.
struct Batch {
    how: How,
    /// Tokens and held positions of each row.
    rows: Vec<(i32, i32)>,
    /// All tokens, with those of no row.
    tokens: i32,
    starts: Array,
    lens: Array,
    tables: Array,
    queries: Array,
    /// The keys and values of each row in the order of positions, `[1, K, held + tokens, D]`.
    keys: Vec<Array>,
    values: Vec<Array>,
    /// The pools before the step.
    pools: [Array; 2],
    mask: Option<Array>,
    slopes: Option<Array>,
    sinks: Array,
}

fn floats(x: &Array) -> Result<Vec<f32>> {
    x.astype(DType::F32)?.to_vec::<f32>()
}

fn nan(shape: &[i32], dtype: DType) -> Result<Array> {
    mlx_core::ops::create::full(shape, f32::NAN, DType::F32)?.astype(dtype)
}

impl How {
    /// The first position that a query at position `p` sees.
    fn first(&self, p: i32) -> i32 {
        let window = self.window.map_or(0, |window| p - window + 1);
        let chunk = self.chunk.map_or(0, |chunk| p / chunk * chunk);
        window.max(chunk).max(0)
    }

    /// The mask of a step with this number of tokens, for these columns.
    fn mask(
        &self,
        seed: u64,
        rows: &[(i32, i32)],
        tokens: i32,
        columns: i32,
    ) -> Result<Option<Array>> {
        let heads = if seed.is_multiple_of(2) {
            1
        } else {
            self.sizes[1]
        };
        let noise = normal(seed + 5, &[heads, tokens, columns], DType::F32)?;
        if self.numbers {
            return Ok(Some(noise.multiply(2.0f32)?));
        }
        if !self.bools {
            return Ok(None);
        }
        // Every query sees its own key. If it saw none, it would get the mean of what it sees otherwise, which is all
        // keys in the dense form.
        let own = rows.iter().flat_map(|&(new, held)| held..held + new);
        let own: Vec<i32> = own.chain([0; 4]).take(tokens as usize).collect();
        let own = Array::from_slice(&own, &[1, tokens, 1])?;
        let column: Vec<i32> = (0..columns).collect();
        let column = Array::from_slice(&column, &[1, 1, columns])?;
        Ok(Some(
            noise.greater(-0.3f32)?.logical_or(&column.equal(&own)?)?,
        ))
    }

    fn options<'a>(&self, batch: &'a Batch, sinks: Option<&'a Array>) -> FlatAttention<'a> {
        FlatAttention {
            scale: 0.3,
            soft_cap: self.soft_cap,
            seen: Seen {
                window: self.window,
                chunk: self.chunk,
                ahead: 0,
                mask: batch.mask.as_ref(),
                slopes: batch.slopes.as_ref(),
            },
            sinks,
        }
    }
}

impl Batch {
    fn new(seed: u64, how: How, rows: &[(i32, i32)], dtype: DType) -> Result<Self> {
        let dice = &mut Dice::new(seed);
        let [_, h, kv, d, dv] = how.sizes;
        let count = rows.len() as i32;
        let mut starts = vec![0];
        for (tokens, _) in rows {
            starts.push(starts[starts.len() - 1] + tokens);
        }
        let tokens = starts[rows.len()] + dice.roll(4);
        // The pages of what a row's queries see; a window uses them round and round. Those of other positions are
        // another row's, or no page.
        let pages_of = |&(tokens, held): &(i32, i32)| {
            let first = how.first(held);
            (held + tokens - 1).max(0) / how.page - first / how.page + 1
        };
        let all = |&(tokens, held): &(i32, i32)| (held + tokens).max(1).div_euclid(how.page) + 1;
        let is_reused = how.window.is_some() && !how.bools && !how.numbers;
        let wide = rows.iter().map(|row| match is_reused {
            true => pages_of(row),
            false => all(row),
        });
        let wide = wide.max().unwrap_or(1) + dice.roll(2);
        let pool_pages = count * wide + 3;
        let mut free = dice.order(pool_pages);
        let mut tables = vec![-1; (count * wide) as usize];
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let size = how.page as usize * d as usize;
        let stride = [kv as usize * size, size];
        let mut pools = [
            vec![f32::NAN; pool_pages as usize * stride[0]],
            vec![f32::NAN; pool_pages as usize * (kv * how.page * dv) as usize],
        ];
        for (b, row) in rows.iter().enumerate() {
            let (new, held) = *row;
            let shape = |d| [1, kv, held + new, d];
            let k = normal(seed + 10 * b as u64, &shape(d), dtype)?;
            let v = match how.latent {
                Some(size) => k.slice_axis(-1, 0, size)?,
                None => normal(seed + 10 * b as u64 + 1, &shape(dv), dtype)?,
            };
            for (of, pool, d) in [(&k, 0, d), (&v, 1, dv)] {
                let all = floats(of)?;
                for p in how.first(held)..held + new {
                    let entry = b as i32 * wide + p / how.page % wide;
                    let entry = &mut tables[entry as usize];
                    if *entry < 0 {
                        *entry = free.pop().expect("there are enough pages");
                    }
                    for head in (0..kv).filter(|_| p < held) {
                        let from = ((head * (held + new) + p) * d) as usize;
                        let to = ((*entry * kv + head) * how.page + p % how.page) * d;
                        let (to, d) = (to as usize, d as usize);
                        pools[pool][to..to + d].copy_from_slice(&all[from..from + d]);
                    }
                }
            }
            keys.push(k);
            values.push(v);
        }
        let [k, v] = &pools;
        let pool =
            |all: &[f32], d| Array::from_slice(all, &[pool_pages, kv, how.page, d])?.astype(dtype);
        let mask = how.mask(seed, rows, tokens, wide * how.page)?;
        let slopes: Vec<f32> = (1..=h).map(|n| 0.5 / n as f32).collect();
        Ok(Self {
            how,
            rows: rows.to_vec(),
            tokens,
            starts: Array::from_slice(&starts, &[count + 1])?,
            lens: Array::from_slice(&rows.iter().map(|row| row.1).collect::<Vec<_>>(), &[count])?,
            tables: Array::from_slice(&tables, &[count, wide])?,
            queries: concat(
                &[
                    &normal(seed + 3, &[1, h, starts[rows.len()], d], dtype)?,
                    &nan(&[1, h, tokens - starts[rows.len()], d], dtype)?,
                ],
                2,
            )?,
            keys,
            values,
            pools: [pool(k, d)?, pool(v, dv)?],
            mask,
            slopes: how
                .slopes
                .then(|| Array::from_slice(&slopes, &[h]))
                .transpose()?,
            sinks: normal(seed + 4, &[h], dtype)?,
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

    /// The new tokens of all rows of some keys or values, and NaN for those of no row.
    fn new_tokens(&self, of: &[Array]) -> Result<Array> {
        let mut parts = Vec::new();
        for (x, (new, held)) in of.iter().zip(&self.rows) {
            parts.push(x.slice_axis(2, *held, held + new)?);
        }
        let own: i32 = self.rows.iter().map(|row| row.0).sum();
        let [_, heads, _, d] = of[0].dims()?;
        parts.push(nan(&[1, heads, self.tokens - own, d], of[0].dtype())?);
        concat(&parts.iter().collect::<Vec<_>>(), 2)
    }

    /// The pools after the step, packed if there is a scheme.
    fn stored(&self) -> Result<[Array; 2]> {
        let (keys, values) = (self.new_tokens(&self.keys)?, self.new_tokens(&self.values)?);
        let how = PagedStore {
            scheme: self.how.scheme,
        };
        if self.how.latent.is_some() {
            let pool = fast::paged_keep(&self.pools[0], &keys, &self.pages(), false)?;
            return Ok([pool, self.pools[1].clone()]);
        }
        let [k, v] = match self.how.scheme {
            Some(scheme) => [
                fast::pack(&self.pools[0], scheme)?,
                fast::pack(&self.pools[1], scheme)?,
            ],
            None => self.pools.clone(),
        };
        let (k, v) = fast::paged_store(Pools::Shared(&k, &v), &keys, &values, &self.pages(), how)?;
        Ok([k, v])
    }

    /// The attention of the step over these pools.
    fn attend(&self, [k, v]: &[Array; 2]) -> Result<Array> {
        let options = self
            .how
            .options(self, self.how.sinks.then_some(&self.sinks));
        match self.how.latent {
            Some(size) => fast::paged_latents(&self.queries, k, size, &self.pages(), &options),
            None => {
                let scheme = self.how.scheme;
                fast::paged_attention(&self.queries, k, v, scheme, &self.pages(), &options)
            }
        }
    }

    /// Attention over row `b` alone.
    fn alone(&self, b: usize) -> Result<Array> {
        let (new, _) = self.rows[b];
        let from: i32 = self.rows[..b].iter().map(|row| row.0).sum();
        let q = self.queries.slice_axis(2, from, from + new)?;
        let options = Attention {
            scale: 0.3,
            soft_cap: self.how.soft_cap,
            mask: self.dense_mask(b, from)?,
            sinks: self.how.sinks.then_some(&self.sinks),
        };
        let (k, v) = (&self.keys[b], &self.values[b]);
        match self.how.scheme {
            Some(scheme) => {
                let (k, v) = (fast::pack(k, scheme)?, fast::pack(v, scheme)?);
                fast::packed_attention(&q, &k, &v, scheme, &options)
            }
            None => fast::attention(&q, k, v, &options),
        }
    }

    fn dense_mask(&self, b: usize, from: i32) -> Result<Mask> {
        let how = &self.how;
        let (new, held) = self.rows[b];
        if how.chunk.is_none() && self.mask.is_none() && self.slopes.is_none() {
            let offset = Array::from_slice(&[held], &[1])?;
            return Ok(Mask::Positions(Positions::new(
                &offset,
                how.window,
                KeySlots::Straight,
            )));
        }
        let (mut seen, mut distance) = (Vec::new(), Vec::new());
        for p in held..held + new {
            for key in 0..held + new {
                seen.push(key >= how.first(p) && key <= p);
                distance.push((key - p) as f32);
            }
        }
        let shape = [1, 1, new, held + new];
        let seen = Array::from_slice(&seen, &shape)?;
        let mask = match &self.mask {
            Some(mask) => Some(
                mask.slice_axis(1, from, from + new)?
                    .slice_axis(2, 0, held + new)?
                    .expand_dims(0)?,
            ),
            None => None,
        };
        let hidden = Array::scalar(-1e30f32)?;
        if let Some(slopes) = &self.slopes {
            let seen = match &mask {
                Some(mask) => seen.logical_and(mask)?,
                None => seen,
            };
            let bias = slopes.reshape(&[1, how.sizes[1], 1, 1])?;
            let bias = bias.multiply(&Array::from_slice(&distance, &shape)?)?;
            return Ok(Mask::Array(seen.select(&bias, &hidden)?));
        }
        Ok(Mask::Array(match mask {
            Some(mask) if how.bools => seen.logical_and(&mask)?,
            Some(mask) => seen.select(&mask, &hidden)?,
            None => seen,
        }))
    }
}

fn cases() -> Vec<(How, Vec<(i32, i32)>)> {
    let plain = How {
        sizes: [1, 4, 2, 64, 64],
        page: 64,
        window: None,
        chunk: None,
        scheme: None,
        latent: None,
        soft_cap: None,
        sinks: false,
        bools: false,
        numbers: false,
        slopes: false,
    };
    let decode = vec![(1, 700), (1, 0), (1, 63), (0, 90), (1, 64), (1, 300)];
    let prompts = vec![(0, 5), (130, 0), (1, 257), (70, 200), (0, 0), (3, 511)];
    let one = vec![(1, 900)];
    vec![
        (plain, decode.clone()),
        (plain, prompts.clone()),
        (
            How {
                sizes: [1, 8, 1, 96, 128],
                page: 16,
                sinks: true,
                ..plain
            },
            decode.clone(),
        ),
        (
            How {
                sizes: [1, 2, 2, 7, 5],
                page: 128,
                soft_cap: Some(3.0),
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                window: Some(100),
                ..plain
            },
            decode.clone(),
        ),
        (
            How {
                window: Some(5),
                page: 16,
                sizes: [1, 3, 1, 64, 80],
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                window: Some(1),
                page: 32,
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                chunk: Some(96),
                page: 32,
                sizes: [1, 6, 2, 32, 32],
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                chunk: Some(64),
                window: Some(40),
                ..plain
            },
            decode.clone(),
        ),
        (
            How {
                bools: true,
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                bools: true,
                window: Some(80),
                sinks: true,
                ..plain
            },
            decode.clone(),
        ),
        (
            How {
                numbers: true,
                page: 256,
                ..plain
            },
            decode.clone(),
        ),
        (
            How {
                slopes: true,
                sizes: [1, 4, 4, 32, 64],
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                slopes: true,
                bools: true,
                soft_cap: Some(2.0),
                page: 32,
                ..plain
            },
            decode.clone(),
        ),
        (
            How {
                latent: Some(64),
                sizes: [1, 16, 1, 96, 64],
                ..plain
            },
            decode.clone(),
        ),
        (
            How {
                latent: Some(32),
                sizes: [1, 5, 1, 40, 32],
                page: 16,
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                sizes: [1, 2, 1, 512, 512],
                ..plain
            },
            one.clone(),
        ),
        (
            How {
                sizes: [1, 2, 1, 320, 320],
                window: Some(30),
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                scheme: Some(scheme(8, 32)),
                ..plain
            },
            decode.clone(),
        ),
        (
            How {
                scheme: Some(scheme(4, 64)),
                window: Some(33),
                page: 32,
                ..plain
            },
            prompts.clone(),
        ),
        (
            How {
                scheme: Some(scheme(4, 32)),
                sizes: [1, 4, 1, 128, 96],
                page: 16,
                ..plain
            },
            one,
        ),
        (
            How {
                scheme: Some(scheme(8, 64)),
                sinks: true,
                chunk: Some(50),
                ..plain
            },
            decode,
        ),
    ]
}

/// A batch of random rows, of what a case may have.
fn random_case(seed: u64) -> (How, Vec<(i32, i32)>) {
    let dice = &mut Dice::new(1000 + seed);
    let some = |dice: &mut Dice, sides: i32| (dice.roll(3) == 0).then(|| 1 + dice.roll(sides));
    let kv = 1 + dice.roll(2);
    let packed = dice.roll(3) == 0;
    let size = |dice: &mut Dice| match packed {
        true => 32 * (1 + dice.roll(4)),
        false => 1 + dice.roll(130),
    };
    let (d, dv) = (size(dice), size(dice));
    let latent = (!packed && dice.roll(4) == 0).then(|| 1 + dice.roll(d));
    let extra = dice.roll(5);
    let how = How {
        sizes: [1, kv * (1 + dice.roll(9)), kv, d, latent.unwrap_or(dv)],
        page: 16 << dice.roll(5),
        window: some(dice, 150),
        chunk: some(dice, 200),
        scheme: packed.then(|| scheme(4 + 4 * dice.roll(2), 32)),
        latent,
        soft_cap: (dice.roll(4) == 0).then_some(4.0),
        sinks: dice.roll(3) == 0,
        bools: extra == 0,
        numbers: extra == 1,
        slopes: extra == 2,
    };
    let rows = (0..1 + dice.roll(7)).map(|_| {
        let tokens = [0, 1, 1, 1, dice.roll(9), dice.roll(150)][dice.roll(6) as usize];
        (
            tokens,
            [0, dice.roll(70), dice.roll(600)][dice.roll(3) as usize],
        )
    });
    (how, rows.collect())
}

/// Runs in the settings of its process: `every_instruction_set_and_number_of_threads` starts it with many.
#[test]
fn ragged_batches() -> Result<()> {
    let mut digest = 0xcbf2_9ce4_8422_2325;
    let all = cases().into_iter().map(|case| (case, &TYPES[..]));
    let random = (0..30).map(|seed| (random_case(seed), &TYPES[seed as usize % 3..][..1]));
    for (case, ((how, rows), dtypes)) in all.chain(random).enumerate() {
        for (turn, dtype) in dtypes.iter().copied().enumerate() {
            let what = format!("case {case}: {how:?}, {rows:?}, {dtype}");
            let batch = Batch::new(100 * case as u64, how, &rows, dtype)?;
            let pools = batch.stored()?;
            let found = batch.attend(&pools)?;
            assert_eq!(found.dtype(), dtype);
            let is_plain = fast::form(fast::Op::Attention)? == fast::Form::Plain;
            let mut from = 0;
            for (b, (new, _)) in rows.iter().enumerate() {
                let own = found.slice_axis(2, from, from + new)?;
                from += new;
                if *new == 0 {
                    continue;
                }
                let alone = batch.alone(b)?;
                if is_plain {
                    // MLX's own attention rounds in between, so it is compared in f32 only.
                    if dtype != DType::F32 {
                        continue;
                    }
                    check(&own, &alone.astype(DType::F32)?, 6.0, &mut digest, &what)?;
                } else {
                    assert!(floats(&own)? == floats(&alone)?, "row {b} of {what}");
                }
            }
            let rest = floats(&found.slice_axis(2, from, batch.tokens)?)?;
            assert!(rest.iter().all(|y| *y == 0.0), "{what}: {rest:?}");
            // Each case in one of the dtypes, because a plain form takes longer than the others together.
            if dtypes.len() > 1 && (case + turn) % 3 != 0 {
                continue;
            }
            let exact = plainly(|| batch.attend(&pools))?.astype(DType::F32)?;
            check(&found, &exact, 6.0, &mut digest, &what)?;
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}

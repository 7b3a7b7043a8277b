//! Rows whose tokens see those after them: random ragged batches, compared with attention over each row alone, to the
//! bit, and with the plain form. Tokens of no row are NaN.

use mlx_core::fast::{self, Attention, FlatAttention, Mask, RaggedRows, Seen, plainly};
use mlx_core::ops::concat;
use mlx_core::ops::create::full;
use mlx_core::{Array, DType, Result};

use super::flat::Dice;
use super::{TYPES, check, normal};

/// What a case of a batch has.
#[derive(Clone, Copy, Debug)]
struct How {
    /// Query heads, KV heads, features of a key and of a value.
    sizes: [i32; 4],
    window: Option<i32>,
    ahead: i32,
    soft_cap: Option<f32>,
    sinks: bool,
    latent: bool,
    /// Numbers that are added to scores, by head and token.
    numbers: bool,
}

const PLAIN: How = How {
    sizes: [4, 2, 64, 64],
    window: None,
    ahead: i32::MAX,
    soft_cap: None,
    sinks: false,
    latent: false,
    numbers: false,
};

/// A step of rows, with some tokens of no row behind them.
struct Batch {
    how: How,
    starts: Array,
    inputs: [Array; 3],
    mask: Option<Array>,
    sinks: Array,
}

impl Batch {
    fn new(seed: u64, how: How, rows: &[i32], dtype: DType) -> Result<Self> {
        let [heads, kv, d, dv] = how.sizes;
        let mut starts = vec![0];
        for row in rows {
            starts.push(starts[starts.len() - 1] + row);
        }
        let (own, spare) = (starts[rows.len()], seed as i32 % 4);
        let made = |seed, heads, d| -> Result<Array> {
            let rest = full(&[1, heads, spare, d], f32::NAN, DType::F32)?.astype(dtype)?;
            concat(&[&normal(seed, &[1, heads, own, d], dtype)?, &rest], 2)
        };
        let columns = rows.iter().copied().max().unwrap_or(0).max(1) + spare;
        let mask = || normal(seed + 4, &[heads, own + spare, columns], DType::F32);
        Ok(Self {
            how,
            starts: Array::from_slice(&starts, &[starts.len() as i32])?,
            inputs: [
                made(seed, heads, d)?,
                made(seed + 1, kv, d)?,
                made(seed + 2, kv, dv)?,
            ],
            mask: how.numbers.then(mask).transpose()?,
            sinks: normal(seed + 3, &[heads], dtype)?,
        })
    }

    fn attend(&self, longest: i32) -> Result<Array> {
        let how = &self.how;
        let options = FlatAttention {
            scale: 0.3,
            soft_cap: how.soft_cap,
            seen: Seen {
                window: how.window,
                ahead: how.ahead,
                mask: self.mask.as_ref(),
                ..Seen::default()
            },
            sinks: how.sinks.then_some(&self.sinks),
        };
        let rows = RaggedRows {
            starts: &self.starts,
            longest,
        };
        let [q, k, v] = &self.inputs;
        match how.latent {
            true => fast::ragged_latents(q, k, how.sizes[3], &rows, &options),
            false => fast::ragged_attention(q, k, v, &rows, &options),
        }
    }

    /// Attention over the row of `n` tokens from `first` on alone, with a dense mask.
    fn alone(&self, first: i32, n: i32) -> Result<Array> {
        let how = &self.how;
        let part = |x: &Array| x.slice_axis(2, first, first + n);
        let [q, k, v] = &self.inputs;
        let (q, k) = (part(q)?, part(k)?);
        let v = match how.latent {
            true => k.slice_axis(3, 0, how.sizes[3])?,
            false => part(v)?,
        };
        let window = how.window.unwrap_or(i32::MAX);
        let sees = |query: i32, key: i32| query - key < window && key - query <= how.ahead;
        let seen: Vec<bool> = (0..n)
            .flat_map(|query| (0..n).map(move |key| sees(query, key)))
            .collect();
        let all = seen.iter().all(|&seen| seen);
        let seen = Array::from_slice(&seen, &[1, 1, n, n])?;
        let mask = match &self.mask {
            Some(mask) => {
                let own = mask
                    .slice_axis(1, first, first + n)?
                    .slice_axis(2, 0, n)?
                    .expand_dims(0)?;
                Mask::Array(seen.select(&own, &Array::scalar(-1e30f32)?)?)
            }
            None if all => Mask::None,
            None => Mask::Array(seen),
        };
        let options = Attention {
            scale: 0.3,
            soft_cap: how.soft_cap,
            mask,
            sinks: how.sinks.then_some(&self.sinks),
        };
        fast::attention(&q, &k, &v, &options)
    }
}

fn cases() -> Vec<(How, Vec<i32>)> {
    let rows = vec![3, 0, 70, 1, 300, 255, 257, 64];
    let near = |window, ahead| How {
        window,
        ahead,
        ..PLAIN
    };
    let mut all = vec![
        (PLAIN, vec![1]),
        (PLAIN, vec![1; 40]),
        (PLAIN, vec![700, 2]),
        // More positions after a chunk of keys than in it.
        (near(Some(1), 600), vec![700, 530]),
        (near(Some(600), 1), vec![700, 530]),
        (near(Some(1), 1), vec![700, 2]),
    ];
    let others = [
        PLAIN,
        near(None, 1),
        near(Some(65), 64),
        near(Some(1), i32::MAX),
        near(Some(9), 8),
        How {
            sizes: [12, 12, 32, 32],
            ..PLAIN
        },
        How {
            sizes: [3, 1, 72, 40],
            soft_cap: Some(4.0),
            ..near(Some(33), 16)
        },
        How {
            sinks: true,
            ..near(Some(20), 20)
        },
        How {
            sizes: [16, 1, 96, 64],
            latent: true,
            ..PLAIN
        },
        How {
            numbers: true,
            ..near(Some(40), 7)
        },
    ];
    all.extend(others.map(|how| (how, rows.clone())));
    all
}

fn random_case(seed: u64) -> (How, Vec<i32>) {
    let dice = &mut Dice::new(77 + seed);
    let kv = 1 + dice.roll(3);
    let (d, dv) = (1 + dice.roll(130), 1 + dice.roll(130));
    let latent = dice.roll(5) == 0;
    let how = How {
        sizes: [kv * (1 + dice.roll(5)), kv, d, if latent { d } else { dv }],
        window: (dice.roll(2) == 0).then(|| 1 + dice.roll(300)),
        ahead: [1 + dice.roll(300), i32::MAX][dice.roll(2) as usize],
        soft_cap: (dice.roll(4) == 0).then_some(4.0),
        sinks: dice.roll(3) == 0,
        latent,
        numbers: dice.roll(4) == 0,
    };
    let rows = (0..1 + dice.roll(7))
        .map(|_| [0, 1, dice.roll(9), dice.roll(150), dice.roll(400)][dice.roll(5) as usize]);
    (how, rows.collect())
}

fn floats(x: &Array) -> Result<Vec<f32>> {
    x.astype(DType::F32)?.to_vec::<f32>()
}

/// Runs in the settings of its process: `every_instruction_set_and_number_of_threads` starts it with many.
#[test]
fn both_directions() -> Result<()> {
    let is_plain = fast::form(fast::Op::Attention)? == fast::Form::Plain;
    let mut digest = 0xcbf2_9ce4_8422_2325;
    let all = cases().into_iter().map(|case| (case, &TYPES[..]));
    let random = (0..20).map(|seed| (random_case(seed), &TYPES[seed as usize % 3..][..1]));
    for (case, ((how, rows), dtypes)) in all.chain(random).enumerate() {
        for (turn, dtype) in dtypes.iter().copied().enumerate() {
            let what = format!("case {case}: {how:?}, {rows:?}, {dtype}");
            let batch = Batch::new(100 * case as u64 + 1, how, &rows, dtype)?;
            let longest = rows.iter().copied().max().unwrap_or(0);
            let found = batch.attend(longest)?;
            assert_eq!(found.dtype(), dtype);
            let mut from = 0;
            for &n in rows.iter().filter(|&&n| n > 0) {
                let own = found.slice_axis(2, from, from + n)?;
                let alone = batch.alone(from, n)?;
                from += n;
                if !is_plain {
                    assert!(floats(&own)? == floats(&alone)?, "{n} tokens of {what}");
                } else if dtype == DType::F32 {
                    // MLX's own attention rounds in between, so it is compared in f32 only.
                    check(&own, &alone, 6.0, &mut digest, &what)?;
                }
            }
            let tokens = batch.inputs[0].dim(2)?;
            let rest = floats(&found.slice_axis(2, from, tokens)?)?;
            assert!(rest.iter().all(|y| *y == 0.0), "{what}: {rest:?}");
            // Each case in one of the dtypes, because a plain form takes longer than the others together.
            if dtypes.len() > 1 && (case + turn) % 3 != 0 {
                continue;
            }
            for longest in [longest, i32::MAX] {
                let exact = plainly(|| batch.attend(longest))?.astype(DType::F32)?;
                check(&found, &exact, 6.0, &mut digest, &what)?;
            }
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}

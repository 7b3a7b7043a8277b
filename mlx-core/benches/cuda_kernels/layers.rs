//! Attention, the operations between a layer's products, and choosing a token.

use mlx_core::fast::{
    self, Attention, Draw, FlatAttention, Gate, KeySlots, Mask, PAGE, Pages, Positions, Projection,
    Seen,
};
use mlx_core::{Array, DType, Result};

use crate::inputs::{Amount, affine, normal, quantized};
use crate::measure::Bench;

/// Tokens of a step: one row, a batch, a prompt.
const ROWS: [i32; 3] = [1, 64, 2048];
/// Runs of kernels whose inputs are in the L2 cache, as the kernel before has written them there.
const RUNS: usize = 64;
/// Heads, KV heads and head size.
const SHAPES: [(&str, i32, i32, i32); 2] = [("gemma3", 4, 1, 256), ("qwen3", 16, 8, 128)];

pub fn attention(bench: &Bench) -> Result<()> {
    for (name, heads, kv_heads, size) in SHAPES {
        // Rows, new tokens, keys.
        for (b, l, s) in [
            (1, 1, 128),
            (8, 1, 128),
            (64, 1, 128),
            (1, 1, 2048),
            (64, 1, 2048),
            (1, 512, 512),
            (1, 2048, 2048),
            (512, 24, 24),
        ] {
            let case = format!("{name}: {l} new of {s} tokens");
            bench.time("attention bf16", &case, b, || {
                let q = normal(&[b, heads, l, size], DType::BF16)?;
                let cache = || normal(&[b, kv_heads, s, size], DType::BF16);
                let stored = 2 * cache()?.nbytes();
                let caches = (0..bench.copies(stored)).map(|_| Ok((cache()?, cache()?)));
                let caches: Vec<(Array, Array)> = caches.collect::<Result<_>>()?;
                let offsets = Array::from_slice(&vec![s - l; b as usize], &[b])?;
                // The keys before the new tokens, and half of these.
                let seen = f64::from(s - l) + f64::from(l + 1) / 2.0;
                let amount = Amount {
                    operations: 4.0 * q.size() as f64 * seen,
                    bytes: (stored + 2 * q.nbytes()) as f64,
                };
                Ok((amount, caches.len(), move |run: usize| {
                    let options = Attention {
                        scale: (size as f32).sqrt().recip(),
                        mask: Mask::Positions(Positions::new(&offsets, None, KeySlots::Straight)),
                        sinks: None,
                        soft_cap: None,
                    };
                    fast::attention(&q, &caches[run].0, &caches[run].1, &options)
                }))
            })?;
        }
    }
    Ok(())
}

/// Attention of a decode step over pages: one new token a row.
pub fn paged_attention(bench: &Bench) -> Result<()> {
    for (name, heads, kv_heads, size) in SHAPES {
        // Rows, and the positions that each holds. The rows of the last case have up to twice as many.
        for (b, s, is_mixed) in [
            (1, 128, false),
            (1, 2048, false),
            (16, 670, false),
            (64, 128, false),
            (64, 670, false),
            (64, 670, true),
            (256, 670, true),
            (8, 16384, false),
        ] {
            let case = format!(
                "{name}: {s} positions{}",
                if is_mixed { ", mixed" } else { "" }
            );
            bench.time("paged attention bf16", &case, b, || {
                let of_row = |row: i32| {
                    if is_mixed {
                        2 * s * (row + 1) / (b + 1)
                    } else {
                        s
                    }
                };
                let lens: Vec<i32> = (0..b).map(|row| of_row((row * 37) % b)).collect();
                let longest = lens.iter().max().map_or(1, |len| len / PAGE + 1);
                let columns = (longest as u32).next_power_of_two().max(4) as i32;
                let held: i32 = lens.iter().map(|len| len / PAGE + 1).sum();
                let pool = || normal(&[held, kv_heads, PAGE, size], DType::BF16);
                let q = normal(&[1, heads, b, size], DType::BF16)?;
                let positions: i32 = lens.iter().map(|len| len + 1).sum();
                let token = 4 * kv_heads * size;
                let bytes = f64::from(token) * f64::from(positions);
                let pools = (0..bench.copies(bytes as usize)).map(|_| Ok((pool()?, pool()?)));
                let pools: Vec<(Array, Array)> = pools.collect::<Result<_>>()?;
                // Pages of a row are far from each other.
                let mut table = vec![0; (b * columns) as usize];
                let mut next = 0;
                for column in 0..columns {
                    for row in (0..b).filter(|&row| column <= lens[row as usize] / PAGE) {
                        table[(row * columns + column) as usize] = next;
                        next += 1;
                    }
                }
                let table = Array::from_slice(&table, &[b, columns])?;
                let starts = Array::from_slice(&(0..=b).collect::<Vec<i32>>(), &[b + 1])?;
                let lens = Array::from_slice(&lens, &[b])?;
                let amount = Amount {
                    operations: 4.0 * f64::from(heads * size) * f64::from(positions),
                    bytes: bytes + 2.0 * q.nbytes() as f64,
                };
                Ok((amount, pools.len(), move |run: usize| {
                    let pages = Pages {
                        starts: &starts,
                        lens: &lens,
                        tables: &table,
                        most: Some(1),
                    };
                    let options = FlatAttention {
                        scale: (size as f32).sqrt().recip(),
                        soft_cap: None,
                        seen: Seen::default(),
                        sinks: None,
                    };
                    fast::paged_attention(&q, &pools[run].0, &pools[run].1, None, &pages, &options)
                }))
            })?;
        }
    }
    Ok(())
}

pub fn norms(bench: &Bench) -> Result<()> {
    let size = 1152;
    for rows in ROWS {
        let case = format!("of {size}");
        let input = || normal(&[rows, 1, size], DType::BF16);
        let weight = || normal(&[size], DType::BF16);
        // A product and a sum for the mean of squares, two products for the result.
        bench.time("rms_norm", &case, rows, || {
            let (x, weight) = (input()?, weight()?);
            let amount = Amount::elementwise(&[&x, &x], 4.0);
            Ok((amount, RUNS, move |_| {
                fast::rms_norm(&x, Some(&weight), 1e-6)
            }))
        })?;
        bench.time("norm_add", &case, rows, || {
            let (x, weight, residual) = (input()?, weight()?, input()?);
            let amount = Amount::elementwise(&[&x, &residual, &x], 5.0);
            Ok((amount, RUNS, move |_| {
                fast::norm_add(&x, &weight, &residual, 1e-6)
            }))
        })?;
        bench.time("add_norm", &case, rows, || {
            let (x, weight, residual) = (input()?, weight()?, input()?);
            let amount = Amount::elementwise(&[&x, &residual, &x, &x], 5.0);
            Ok((amount, RUNS, move |_| {
                Ok(fast::add_norm(&x, &residual, None, &weight, 1e-6)?.1)
            }))
        })?;
    }
    Ok(())
}

/// Norm and rotation of queries.
pub fn heads(bench: &Bench) -> Result<()> {
    for (name, heads, _, size) in SHAPES {
        for rows in ROWS {
            let case = format!("{name}: {heads} of {size}");
            bench.time("norm and rope of heads", &case, rows, || {
                let x = normal(&[rows, 1, heads * size], DType::BF16)?;
                let weight = normal(&[size], DType::BF16)?;
                let offsets = Array::from_slice(&vec![100; rows as usize], &[rows])?;
                let half = size / 2;
                let periods = (0..half).map(|i| 1e6f32.powf(i as f32 / half as f32));
                let freqs = Array::from_slice(&periods.collect::<Vec<_>>(), &[half])?;
                let amount = Amount::elementwise(&[&x, &x], 7.0);
                Ok((amount, RUNS, move |_| {
                    fast::heads(&Projection {
                        x: &x,
                        head_dim: size,
                        norm: Some((&weight, 1e-6)),
                        dims: size,
                        freqs: &freqs,
                        offsets: &offsets,
                    })
                }))
            })?;
        }
    }
    Ok(())
}

pub fn activations(bench: &Bench) -> Result<()> {
    for rows in ROWS {
        let size = 6912;
        bench.time("geglu", &format!("of {size}"), rows, || {
            let input = || normal(&[rows, size], DType::BF16);
            let (x, up) = (input()?, input()?);
            let amount = Amount::elementwise(&[&x, &up, &x], 4.0);
            Ok((amount, RUNS, move |_| fast::gated(Gate::GeluTanh, &x, &up)))
        })?;
    }
    Ok(())
}

/// Rows of a quantised embedding.
pub fn embedding(bench: &Bench) -> Result<()> {
    let (entries, size, bits) = (262_144, 1152, 4);
    for rows in ROWS {
        let case = format!("gemma3 [{entries}, {size}]");
        bench.time("embedding q4", &case, rows, || {
            let (w, _) = quantized(&[entries, size], affine(bits))?;
            let ids = (0..RUNS as i32).map(|run| {
                let ids = (0..rows).map(|row| ((run * rows + row) * 7919 % entries) as u32);
                Array::from_slice(&ids.collect::<Vec<_>>(), &[rows])
            });
            let ids: Vec<Array> = ids.collect::<Result<_>>()?;
            // Codes, and a scale and a bias for each group, are read and numbers written; a product and a sum each.
            let numbers = f64::from(rows) * f64::from(size);
            let amount = Amount {
                operations: 2.0 * numbers,
                bytes: numbers * (f64::from(bits) / 8.0 + 4.0 / 64.0 + 2.0),
            };
            Ok((amount, RUNS, move |run: usize| {
                let (packed, scales, biases) = (&w.packed, &w.scales, w.biases.as_ref());
                fast::quantized_rows(packed, scales, biases, &ids[run], affine(bits), DType::BF16)
            }))
        })?;
    }
    Ok(())
}

/// Choosing a token of rows of logits.
pub fn choose(bench: &Bench) -> Result<()> {
    let vocabulary = 262_144;
    let case = format!("of {vocabulary}");
    let with = |temperature, top_p, top_k| Draw {
        temperature,
        top_p,
        min_p: 0.0,
        top_k,
        key: [1, 2],
    };
    for rows in [1, 64] {
        // Each number is read and compared once. The head has just written them.
        let logits = || -> Result<_> {
            let logits = normal(&[rows, vocabulary], DType::F32)?;
            Ok((Amount::elementwise(&[&logits], 1.0), logits))
        };
        bench.time("argmax", &case, rows, || {
            let (amount, logits) = logits()?;
            Ok((amount, RUNS, move |_| fast::argmax(&logits)))
        })?;
        bench.time("logsumexp", &case, rows, || {
            let (amount, logits) = logits()?;
            Ok((amount, RUNS, move |_| fast::logsumexp(&logits)))
        })?;
        for (name, draw) in [
            ("draw", with(0.8, 1.0, 0)),
            ("draw, top-p 0.9", with(0.8, 0.9, 0)),
            ("draw, top-k 40", with(0.8, 1.0, 40)),
        ] {
            bench.time(name, &case, rows, || {
                let (amount, logits) = logits()?;
                let draws = vec![draw; rows as usize];
                Ok((amount, RUNS, move |_| {
                    Ok(fast::draw(&logits, &draws)?.checked)
                }))
            })?;
        }
    }
    Ok(())
}

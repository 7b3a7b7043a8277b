//! What only some families or settings need: experts and their routers, quantised caches, latents, recurrences.

use std::collections::BTreeSet;

use mlx_core::fast::{
    self, Attention, Gate, GatedDelta, KeySlots, Mask, Positions, RaggedDelta, RaggedRows, Route,
    SlotsAfter, StatePool, StateSlots, pack,
};
use mlx_core::ops::quantize::{Quantized, Scheme};
use mlx_core::{Array, DType, Result};

use crate::inputs::{Amount, affine, matrix, normal, product, quantized};
use crate::measure::Bench;

/// Tokens of a step: one row, batches, a prompt.
const TOKENS: [i32; 5] = [1, 8, 32, 64, 512];
/// Shapes of Qwen3-30B-A3B: experts, those of a token, features inside an expert, features of a token.
const EXPERTS: (i32, i32, i32, i32) = (128, 8, 768, 2048);

/// The experts of each token, all different, and how many there are in all.
fn chosen(tokens: i32) -> Result<(Array, usize)> {
    let (experts, top_k, ..) = EXPERTS;
    let places: Vec<i32> = (0..tokens * top_k)
        .map(|i| (i / top_k * 37 + i % top_k * 16 + i / top_k * (i % top_k) * 5) % experts)
        .collect();
    let distinct = places.iter().collect::<BTreeSet<_>>().len();
    Ok((Array::from_slice(&places, &[tokens, top_k])?, distinct))
}

fn stacks(bench: &Bench, n: i32, k: i32, scheme: Scheme) -> Result<(Vec<Quantized>, usize)> {
    let (experts, ..) = EXPERTS;
    let (first, bytes) = quantized(&[experts, n, k], scheme)?;
    let mut all = vec![first];
    while all.len() < bench.copies(bytes) {
        all.push(quantized(&[experts, n, k], scheme)?.0);
    }
    Ok((all, bytes / experts as usize))
}

pub fn experts(bench: &Bench) -> Result<()> {
    let (experts, top_k, inner, hidden) = EXPERTS;
    let scheme = affine(4);
    for tokens in TOKENS {
        let rows = tokens * top_k;
        let (indices, distinct) = chosen(tokens)?;
        let case = format!("{top_k} of {experts} [{inner}, {hidden}]");
        bench.time("experts gate and up q4", &case, tokens, || {
            let (gates, bytes) = stacks(bench, inner, hidden, scheme)?;
            let (ups, _) = stacks(bench, inner, hidden, scheme)?;
            let x = normal(&[tokens, 1, 1, hidden], DType::BF16)?;
            let one = product(rows, inner, hidden, DType::BF16, 2 * distinct * bytes);
            let amount = Amount {
                operations: 2.0 * one.operations,
                ..one
            };
            let indices = indices.clone();
            Ok((amount, gates.len(), move |run: usize| {
                let (gate, up) = (matrix(&gates[run], scheme), matrix(&ups[run], scheme));
                fast::gated_experts(Gate::Silu, &x, &gate, &up, &indices)
            }))
        })?;
        let case = format!("{top_k} of {experts} [{hidden}, {inner}]");
        bench.time("experts down q4", &case, tokens, || {
            let (downs, bytes) = stacks(bench, hidden, inner, scheme)?;
            let x = normal(&[tokens, top_k, 1, inner], DType::BF16)?;
            let amount = product(rows, hidden, inner, DType::BF16, distinct * bytes);
            let indices = indices.clone();
            Ok((amount, downs.len(), move |run: usize| {
                let w = &downs[run];
                let biases = w.biases.as_ref();
                fast::quantized_experts_linear(&x, &w.packed, &w.scales, biases, &indices, scheme)
            }))
        })?;
        let runs = 64;
        bench.time("route", &format!("{top_k} of {experts}"), tokens, || {
            let scores = normal(&[tokens, experts], DType::BF16)?;
            let how = Route {
                top_k,
                sigmoid: false,
                norm: true,
                added_to_sum: 0.0,
                least_sum: 0.0,
                scale: 1.0,
                groups: None,
            };
            let amount = Amount::elementwise(&[&scores], 8.0);
            Ok((amount, runs, move |_| {
                Ok(fast::route(&scores, None, &how)?.1)
            }))
        })?;
        bench.time(
            "sum of experts",
            &format!("{top_k} of {hidden}"),
            tokens,
            || {
                let y = normal(&[tokens, top_k, hidden], DType::BF16)?;
                let weights = normal(&[tokens, top_k], DType::F32)?;
                let amount = Amount::elementwise(&[&y], 2.0);
                Ok((amount, runs, move |_| fast::weighted_sum(&y, &weights)))
            },
        )?;
    }
    Ok(())
}

/// Attention over packed keys of 16 heads and 8 KV heads of 128 elements, and over latents.
pub fn caches(bench: &Bench) -> Result<()> {
    for (b, l, s) in [(1, 1, 2048), (32, 1, 2048), (1, 512, 2048)] {
        let offsets = Array::from_slice(&vec![s - l; b as usize], &[b])?;
        let seen = f64::from(s - l) + f64::from(l + 1) / 2.0;
        let options = |offsets: &Array, size: i32| Attention {
            scale: (size as f32).sqrt().recip(),
            mask: Mask::Positions(Positions::new(offsets, None, KeySlots::Straight)),
            sinks: None,
            soft_cap: None,
        };
        for bits in [4, 8] {
            let scheme = affine(bits);
            let case = format!("qwen3, {bits} bits: {l} new of {s} tokens");
            bench.time("attention packed", &case, b, || {
                let q = normal(&[b, 16, l, 128], DType::BF16)?;
                let kept = || -> Result<Array> {
                    let array = pack(&normal(&[b, 8, s, 128], DType::BF16)?, scheme)?;
                    mlx_core::eval([&array])?;
                    Ok(array)
                };
                let stored = 2 * kept()?.nbytes();
                let all = (0..bench.copies(stored)).map(|_| Ok((kept()?, kept()?)));
                let all: Vec<(Array, Array)> = all.collect::<Result<_>>()?;
                let amount = Amount {
                    operations: 4.0 * q.size() as f64 * seen,
                    bytes: (stored + 2 * q.nbytes()) as f64,
                };
                let offsets = offsets.clone();
                Ok((amount, all.len(), move |run: usize| {
                    let (k, v) = &all[run];
                    fast::packed_attention(&q, k, v, scheme, &options(&offsets, 128))
                }))
            })?;
        }
        let case = format!("latents of 576, 16 heads: {l} new of {s} tokens");
        bench.time("attention bf16", &case, b, || {
            let q = normal(&[b, 16, l, 576], DType::BF16)?;
            let kept = || normal(&[b, 1, s, 576], DType::BF16);
            let stored = kept()?.nbytes();
            let all = (0..bench.copies(stored)).map(|_| kept());
            let all: Vec<Array> = all.collect::<Result<_>>()?;
            let amount = Amount {
                operations: 2.0 * (576.0 + 512.0) / 576.0 * q.size() as f64 * seen,
                bytes: (stored + 2 * q.nbytes()) as f64,
            };
            let offsets = offsets.clone();
            Ok((amount, all.len(), move |run: usize| {
                let k = &all[run];
                let v = k.slice_axis(-1, 0, 512)?;
                fast::attention(&q, k, &v, &options(&offsets, 192))
            }))
        })?;
    }
    Ok(())
}

/// The gated delta rule and its convolution in the sizes of Qwen3-Next-80B: 16 key heads and 32 value heads of 128 elements.
pub fn recurrences(bench: &Bench) -> Result<()> {
    let (key_heads, heads, dim) = (16, 32, 128);
    let width = 2 * key_heads * dim + heads * dim;
    for (rows, tokens) in [(1, 1), (8, 1), (64, 1), (1, 4), (1, 512)] {
        let case = format!("{tokens} tokens, {heads} heads of {dim}");
        bench.time("gated delta", &case, rows, || {
            let qkv = normal(&[rows, tokens, width], DType::BF16)?;
            let gate = normal(&[rows, tokens, heads], DType::BF16)?;
            let number = normal(&[heads], DType::F32)?.abs()?;
            mlx_core::eval([&number])?;
            let state = || normal(&[rows, heads, dim, dim], DType::F32);
            let bytes = state()?.nbytes();
            let states = (0..bench.copies(bytes)).map(|_| state());
            let states: Vec<Array> = states.collect::<Result<_>>()?;
            let widths = Array::from_slice(&vec![tokens; rows as usize], &[rows])?;
            let amount = Amount {
                operations: 7.0 * f64::from(tokens) * bytes as f64 / 4.0,
                bytes: (2 * bytes + 2 * qkv.nbytes()) as f64,
            };
            Ok((amount, states.len(), move |run: usize| {
                let of = GatedDelta {
                    qkv: &qkv,
                    a: &gate,
                    b: &gate,
                    rate: &number,
                    bias: &number,
                    state: &states[run],
                    widths: &widths,
                    key_heads,
                    most: 1.0,
                    bound: None,
                };
                Ok(fast::gated_delta(&of)?.0)
            }))
        })?;
        bench.time(
            "causal conv",
            &format!("{tokens} tokens of {width}"),
            rows,
            || {
                let x = normal(&[rows, tokens + 3, width], DType::BF16)?;
                let taps = normal(&[4, width], DType::BF16)?;
                let amount = Amount::elementwise(&[&x, &x], 8.0);
                Ok((amount, 64, move |_| {
                    fast::causal_conv(&x, &taps, None, true)
                }))
            },
        )?;
    }
    ragged(bench)
}

/// The same layers over ragged rows, with states in a pool that is written in place.
fn ragged(bench: &Bench) -> Result<()> {
    let (key_heads, heads, dim) = (16, 32, 128);
    let width = 2 * key_heads * dim + heads * dim;
    for (rows, tokens) in [(1, 1), (8, 1), (64, 1), (1, 512)] {
        let all = rows * tokens;
        let numbers = |step: i32, n: i32| {
            Array::from_slice(&(0..n).map(|i| i * step).collect::<Vec<_>>(), &[n])
        };
        let (starts, slots) = (numbers(tokens, rows + 1)?, numbers(1, rows)?);
        let states = |pool: &Array| StateSlots {
            pool: StatePool::Own(pool.clone()),
            from: &slots,
            to: SlotsAfter::Rows(&slots),
        };
        let of = RaggedRows {
            starts: &starts,
            longest: tokens,
        };
        let case = format!("{tokens} tokens, {heads} heads of {dim}");
        bench.time("ragged delta", &case, rows, || {
            let qkv = normal(&[1, all, width], DType::BF16)?;
            let gate = normal(&[1, all, heads], DType::BF16)?;
            let number = normal(&[heads], DType::F32)?.abs()?;
            mlx_core::eval([&number])?;
            let pool = || normal(&[rows, heads, dim, dim], DType::F32);
            let bytes = pool()?.nbytes();
            let pools = (0..bench.copies(bytes)).map(|_| pool());
            let pools: Vec<Array> = pools.collect::<Result<_>>()?;
            let amount = Amount {
                operations: 7.0 * f64::from(tokens) * bytes as f64 / 4.0,
                bytes: (2 * bytes + 2 * qkv.nbytes()) as f64,
            };
            Ok((amount, pools.len(), move |run: usize| {
                let inputs = RaggedDelta {
                    qkv: &qkv,
                    a: &gate,
                    b: &gate,
                    rate: &number,
                    bias: &number,
                    key_heads,
                    key_dim: dim,
                    most: 1.0,
                    bound: None,
                };
                Ok(fast::ragged_delta(&inputs, &of, Some(states(&pools[run])))?.0)
            }))
        })?;
        let case = format!("{tokens} tokens of {width}");
        bench.time("ragged conv", &case, rows, || {
            let x = normal(&[1, all, width], DType::BF16)?;
            let pool = normal(&[rows, 3, width], DType::BF16)?;
            let taps = normal(&[4, width], DType::BF16)?;
            let amount = Amount::elementwise(&[&x, &x], 8.0);
            Ok((amount, 64, move |_| {
                Ok(fast::ragged_conv(&x, &taps, None, true, &of, Some(states(&pool)))?.0)
            }))
        })?;
    }
    Ok(())
}

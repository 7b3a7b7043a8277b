//! Attention, and the KV caches that it reads.

use std::cell::RefCell;

use criterion::Criterion;
use mlx_core::fast::{
    self, Attention, Buffers, FlatAttention, KeySlots, Mask, PAGE, Pages, Positions, Seen, Slots,
};
use mlx_core::{Array, DType, Result};

use crate::timed::{Amount, time};
use crate::{affine, normal};

/// Heads, kv heads and head size.
const SHAPES: [(&str, i32, i32, i32); 2] = [("qwen3", 16, 8, 128), ("gemma3", 4, 1, 256)];
/// Rows, new tokens, stored tokens.
const STEPS: [(i32, i32, i32); 4] = [(1, 1, 128), (1, 1, 2048), (32, 1, 128), (1, 512, 512)];

/// The amount of work of queries over keys and values of this many bytes, and the attention's options.
fn attend(q: &Array, s: i32, stored: usize) -> Result<(Amount, Attention<'static>)> {
    let [_, _, l, size] = q.dims()?;
    let (mask, seen) = match l {
        1 => (Mask::None, f64::from(s)),
        // A causal mask covers half of the square.
        _ => (Mask::Causal, f64::from(s + 1) / 2.0),
    };
    let amount = Amount {
        operations: 4.0 * q.size() as f64 * seen,
        bytes: (stored + 2 * q.nbytes()) as f64,
    };
    let options = Attention {
        scale: (size as f32).sqrt().recip(),
        mask,
        sinks: None,
        soft_cap: None,
    };
    Ok((amount, options))
}

pub fn attention(c: &mut Criterion) {
    for dtype in [DType::F32, DType::BF16] {
        for (name, heads, kv_heads, size) in SHAPES {
            for (b, l, s) in STEPS {
                let id = format!("attention {dtype} {name}: {b} rows, {l} new of {s}");
                time(c, &id, || {
                    let q = normal(&[b, heads, l, size], dtype)?;
                    let k = normal(&[b, kv_heads, s, size], dtype)?;
                    let v = normal(&[b, kv_heads, s, size], dtype)?;
                    let (amount, options) = attend(&q, s, k.nbytes() + v.nbytes())?;
                    Ok((amount, move || fast::attention(&q, &k, &v, &options)))
                });
            }
        }
    }
}

/// Rows over pages, each beside the same rows in buffers.
pub fn paged(c: &mut Criterion) {
    for dtype in [DType::F32, DType::BF16] {
        for (name, heads, kv_heads, size) in SHAPES {
            for (b, l, s) in [(1, 1, 512), (1, 1, 4096), (16, 1, 1024), (1, 512, 4096)] {
                let id = format!("{dtype} {name}: {b} rows, {l} new of {s}");
                let scale = (size as f32).sqrt().recip();
                let amount = |q: &Array, stored: usize| Amount {
                    operations: 4.0 * q.size() as f64 * f64::from(s - l / 2),
                    bytes: (stored + 2 * q.nbytes()) as f64,
                };
                time(c, &format!("buffers {id}"), || {
                    let q = normal(&[b, heads, l, size], dtype)?;
                    let k = normal(&[b, kv_heads, s, size], dtype)?;
                    let v = normal(&[b, kv_heads, s, size], dtype)?;
                    let offsets = Array::from_slice(&vec![s - l; b as usize], &[b])?;
                    let options = Attention {
                        scale,
                        mask: Mask::Positions(Positions::new(&offsets, None, KeySlots::Straight)),
                        sinks: None,
                        soft_cap: None,
                    };
                    let amount = amount(&q, k.nbytes() + v.nbytes());
                    Ok((amount, move || fast::attention(&q, &k, &v, &options)))
                });
                time(c, &format!("pages {id}"), || {
                    let q = normal(&[1, heads, b * l, size], dtype)?;
                    let (each, all) = (s / PAGE, b * s / PAGE);
                    let k = normal(&[all, kv_heads, PAGE, size], dtype)?;
                    let v = normal(&[all, kv_heads, PAGE, size], dtype)?;
                    // Neighbours in a row are far apart in the pool.
                    let tables: Vec<i32> = (0..all).map(|page| page * 37 % all).collect();
                    let starts: Vec<i32> = (0..=b).map(|row| row * l).collect();
                    let starts = Array::from_slice(&starts, &[b + 1])?;
                    let lens = Array::from_slice(&vec![s - l; b as usize], &[b])?;
                    let tables = Array::from_slice(&tables, &[b, each])?;
                    let amount = amount(&q, k.nbytes() + v.nbytes());
                    Ok((amount, move || {
                        let pages = Pages {
                            starts: &starts,
                            lens: &lens,
                            tables: &tables,
                            most: None,
                        };
                        let options = FlatAttention {
                            scale,
                            soft_cap: None,
                            seen: Seen::default(),
                            sinks: None,
                        };
                        fast::paged_attention(&q, &k, &v, None, &pages, &options)
                    }))
                });
            }
        }
    }
}

/// Keys and values in 4 and 8 bits.
pub fn packed(c: &mut Criterion) {
    for bits in [4, 8] {
        let scheme = affine(bits);
        for (name, heads, kv_heads, size) in SHAPES {
            for (b, l, s) in STEPS {
                let id = format!("attention q{bits} {name}: {b} rows, {l} new of {s}");
                time(c, &id, || {
                    let q = normal(&[b, heads, l, size], DType::BF16)?;
                    let keys = normal(&[b, kv_heads, s, size], DType::BF16)?;
                    let (k, v) = (fast::pack(&keys, scheme)?, fast::pack(&keys, scheme)?);
                    let (amount, options) = attend(&q, s, k.nbytes() + v.nbytes())?;
                    Ok((amount, move || {
                        fast::packed_attention(&q, &k, &v, scheme, &options)
                    }))
                });
            }
        }
    }
}

/// Stores new keys and values in a cache, unchanged and packed.
pub fn store(c: &mut Criterion) {
    let (_, _, kv_heads, size) = SHAPES[0];
    for (kind, scheme) in [
        ("bf16", None),
        ("q4", Some(affine(4))),
        ("q8", Some(affine(8))),
    ] {
        for (b, l, s) in [(1, 1, 1024), (32, 1, 1024), (1, 512, 1024)] {
            let id = format!("store {kind} qwen3: {b} rows, {l} new");
            time(c, &id, || {
                let new = normal(&[b, kv_heads, l, size], DType::BF16)?;
                let (words, dtype) = match scheme {
                    Some(scheme) => (fast::packed_words(size, DType::BF16, scheme)?, DType::U32),
                    None => (size, DType::BF16),
                };
                let buffer = || fast::blank(&[b, kv_heads, s, words], dtype);
                let cache = RefCell::new(Some((buffer()?, buffer()?)));
                let offsets = Array::from_slice(&vec![100; b as usize], &[b])?;
                let stored = 2 * (b * kv_heads * l * words) as usize * dtype.size();
                let amount = Amount {
                    // One product and one sum turn a number into a code.
                    operations: scheme.map_or(0.0, |_| 4.0 * new.size() as f64),
                    bytes: (2 * new.nbytes() + stored) as f64,
                };
                Ok((amount, move || {
                    let cached = cache.take().expect("it is put back below");
                    let buffers = Buffers::Own(cached.0, cached.1);
                    let slots = Slots {
                        ring: false,
                        scheme,
                    };
                    let (keys, values) = fast::store(buffers, &new, &new, &offsets, slots)?;
                    cache.replace(Some((keys.clone(), values)));
                    Ok(keys)
                }))
            });
        }
    }
}

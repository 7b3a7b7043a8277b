//! Quantised KV caches, and attention over them and over heads of more than 256 elements.

use mlx_core::fast::{
    self, Attention, Buffers, KeySlots, Mask, Positions, Projection, Slots, plainly,
};
use mlx_core::ops::quantize::{QuantMode, Scheme};
use mlx_core::{Array, DType, Result};

use super::{HALVES, close, host, noise, on_cpu, on_gpu, periods, same};

fn packings() -> Vec<Scheme> {
    let mut all = Vec::new();
    for bits in [4, 8] {
        for group_size in [32, 64, 128] {
            all.push(Scheme {
                mode: QuantMode::Affine,
                bits,
                group_size,
            });
        }
    }
    all
}

#[test]
fn keys_and_values_are_packed_as_on_the_cpu() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, _) in HALVES {
        for scheme in packings() {
            for (ring, at) in [(false, [0, 3]), (true, [5, 14])] {
                let (rows, heads, tokens) = (2, 3, 4);
                let level = Array::from_slice(&[3e-3f32, 40.0, -7.0], &[3, 1, 1])?;
                // Values of another size, far from zero, and whole groups of zeros.
                let keys = noise(1, &[rows, heads, tokens, 256], dtype)?;
                let values = noise(2, &[rows, heads, tokens, 128], DType::F32)?;
                let values = values.add(&level)?.astype(dtype)?;
                let offsets = Array::from_slice(&at, &[rows])?;
                let how = Slots {
                    ring,
                    scheme: Some(scheme),
                };
                let [k, v] = [host(&keys)?, host(&values)?];
                let wanted = on_cpu(|| {
                    let (k, v) = (k.astype(dtype)?, v.astype(dtype)?);
                    let (k, v) = fast::store(Buffers::New(8), &k, &v, &offsets, how)?;
                    Ok((k.to_vec::<u32>()?, v.to_vec::<u32>()?))
                })?;
                let found = fast::store(Buffers::New(8), &keys, &values, &offsets, how)?;
                let what = format!("{dtype} {scheme:?}, ring {ring}");
                assert!(found.0.to_vec::<u32>()? == wanted.0, "{what}: keys");
                assert!(found.1.to_vec::<u32>()? == wanted.1, "{what}: values");
                // The same tokens again, into a copy of the buffers.
                let again = fast::store(
                    Buffers::Shared(&found.0, &found.1),
                    &keys,
                    &values,
                    &offsets,
                    how,
                )?;
                assert!(again.0.to_vec::<u32>()? == wanted.0, "{what}: keys again");
                assert!(again.1.to_vec::<u32>()? == wanted.1, "{what}: values again");
            }
        }
    }
    Ok(())
}

fn slots_of(buffer: &Array) -> i32 {
    buffer.shape()[2]
}

#[test]
fn rotated_keys_are_packed() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let freqs = periods(32)?;
    let offsets = Array::from_slice(&[3i32, 9], &[2])?;
    let x = noise(1, &[2, 4, 3 * 64], DType::BF16)?;
    let values = noise(3, &[2, 4, 3, 64], DType::BF16)?.swapaxes(1, 2)?;
    let of = Projection {
        x: &x,
        head_dim: 64,
        norm: None,
        dims: 64,
        freqs: &freqs,
        offsets: &offsets,
    };
    let scheme = packings()[4];
    let slots = Slots {
        ring: false,
        scheme: Some(scheme),
    };
    let joined = fast::store_heads(Buffers::New(16), &of, &values, slots)?;
    let keys = fast::heads(&of)?;
    let apart = fast::store(Buffers::New(16), &keys, &values, &offsets, slots)?;
    assert!(joined.0.to_vec::<u32>()? == apart.0.to_vec::<u32>()?);
    assert!(joined.1.to_vec::<u32>()? == apart.1.to_vec::<u32>()?);
    let read = fast::unpack(&joined.0, scheme, DType::BF16)?.slice_axis(2, 9, 13)?;
    let own = |a: &Array| a.slice_axis(0, 1, 2);
    close("keys", &own(&read)?, &own(&keys)?, 0.03)
}

/// Keys and values, as a cache stores them.
struct Kept {
    k: Array,
    v: Array,
    scheme: Option<Scheme>,
}

impl Kept {
    fn attend(&self, q: &Array, options: &Attention<'_>) -> Result<Array> {
        match self.scheme {
            Some(scheme) => fast::packed_attention(q, &self.k, &self.v, scheme, options),
            None => fast::attention(q, &self.k, &self.v, options),
        }
    }
    /// The keys and values in F32.
    fn wide(&self, dtype: DType) -> Result<[Array; 2]> {
        let wide = |a: &Array| match self.scheme {
            Some(scheme) => fast::unpack(a, scheme, dtype),
            None => a.astype(DType::F32),
        };
        Ok([wide(&self.k)?, wide(&self.v)?])
    }
    fn row(&self, row: i32) -> Result<Self> {
        let one = |a: &Array| a.slice_axis(0, row, row + 1);
        Ok(Self {
            k: one(&self.k)?,
            v: one(&self.v)?,
            scheme: self.scheme,
        })
    }
}

/// Compares with the plain form in F32; and rows and queries alone with those of the batch, to the
/// bit.
fn compare(what: &str, q: &Array, kept: &Kept, tolerance: f32) -> Result<()> {
    let dtype = q.dtype();
    let [rows, heads, tokens, d] = [0, 1, 2, 3].map(|axis| q.shape()[axis]);
    let slots = slots_of(&kept.k);
    let sinks = noise(4, &[heads], dtype)?;
    let offsets = [slots - tokens, 0, (slots - tokens) / 2];
    let at = Array::from_slice(&offsets[..rows as usize], &[rows])?;
    let [k, v] = kept.wide(dtype)?;
    for (window, layout, soft_cap, sinks) in [
        (None, KeySlots::Straight, None, None),
        (Some(24), KeySlots::Straight, Some(5.0), Some(&sinks)),
        (Some(slots - tokens), KeySlots::Ring, None, Some(&sinks)),
        (Some(slots - tokens), KeySlots::Latest, None, None),
    ] {
        let options = |at: &Array| Attention {
            scale: (d as f32).powf(-0.5),
            soft_cap,
            mask: Mask::Positions(Positions::new(at, window, layout)),
            sinks,
        };
        let what = format!("{what} {tokens} of {slots}, {window:?} {layout:?}");
        let found = kept.attend(q, &options(&at))?;
        let wanted = plainly(|| fast::attention(&q.astype(DType::F32)?, &k, &v, &options(&at)))?;
        close(&what, &found, &wanted, tolerance)?;
        for row in 0..rows {
            let one = |a: &Array| a.slice_axis(0, row, row + 1);
            let alone = kept.row(row)?.attend(&one(q)?, &options(&one(&at)?))?;
            same(&format!("{what}: row {row}"), &alone, &one(&found)?)?;
        }
        if layout == KeySlots::Straight && tokens > 1 {
            let last = |a: &Array| a.slice_axis(2, tokens - 1, tokens);
            let alone = kept.attend(&last(q)?, &options(&at.add(tokens - 1)?))?;
            same(&format!("{what}: last"), &alone, &last(&found)?)?;
        }
    }
    Ok(())
}

#[test]
fn attention_over_packed_keys() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for scheme in packings() {
            for (d, heads, kv_heads) in [(64, 4, 2), (128, 16, 8), (256, 4, 1), (96, 6, 6)] {
                if d % scheme.group_size != 0 {
                    continue;
                }
                for (tokens, slots) in [(1, 40), (1, 700), (3, 300), (100, 200)] {
                    let rows = 3;
                    let q = noise(1, &[rows, heads, tokens, d], dtype)?;
                    let fresh = |seed| noise(seed, &[rows, kv_heads, slots, d], dtype);
                    let kept = Kept {
                        k: fast::pack(&fresh(2)?, scheme)?,
                        v: fast::pack(&fresh(3)?, scheme)?,
                        scheme: Some(scheme),
                    };
                    // Elements of keys and values are rounded to 16 bits once more than elsewhere.
                    let tolerance = 2.0 * tolerance;
                    compare(&format!("{dtype} {scheme:?} {d}"), &q, &kept, tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn attention_of_wide_heads() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for (d, value_dim, heads, kv_heads) in
            [(576, 512, 16, 1), (512, 512, 8, 2), (320, 128, 5, 1)]
        {
            for (tokens, slots) in [(1, 40), (1, 700), (7, 130), (60, 200)] {
                let rows = 3;
                let q = noise(1, &[rows, heads, tokens, d], dtype)?;
                let k = noise(2, &[rows, kv_heads, slots, d], dtype)?;
                // As latent attention has them: a part of the keys.
                let v = k.slice_axis(3, 0, value_dim)?;
                let kept = Kept { k, v, scheme: None };
                compare(&format!("{dtype} {d} {value_dim}"), &q, &kept, tolerance)?;
            }
        }
    }
    Ok(())
}

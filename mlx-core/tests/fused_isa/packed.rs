//! Packed rows, and attention over them; `attention::packed_attentions` tests the masks and instruction sets.

use mlx_core::fast::{self, Attention, KeySlots, Mask, plainly};
use mlx_core::ops::concat;
use mlx_core::{Array, DType, QuantMode, Result, Scheme};

use super::attention::{inputs, placed, scheme};
use super::{TYPES, child, normal, text};

/// Rows are packed as MLX quantises them, whatever their numbers and their layout in memory.
#[test]
fn packed_rows_are_quantised_ones() -> Result<()> {
    let mut digest = 0u64;
    for (turn, dtype) in TYPES.into_iter().enumerate() {
        for (bits, group) in [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)] {
            let scheme = scheme(bits, group);
            let noise = normal(turn as u64, &[7, 3, 256], dtype)?;
            let level = Array::from_slice(&[3e-3f32, 40.0, 7.0], &[3, 1])?.astype(dtype)?;
            let x = noise.add(&level)?;
            let zero = noise.multiply(0.0f32)?;
            let far = noise.slice_axis(-1, 0, 1)?.broadcast_to(&[7, 3, 256])?;
            for (what, x) in [
                ("noise", &noise),
                ("far from zero", &x),
                ("turned", &x.swapaxes(0, 1)?),
                ("zeros", &zero),
                ("alike", &far),
                (
                    "every other",
                    &x.slice_strided(&[0, 0, 0], &[7, 3, 256], &[1, 2, 1])?,
                ),
            ] {
                let (found, exact) = (fast::pack(x, scheme)?, plainly(|| fast::pack(x, scheme))?);
                assert_eq!(found.shape(), exact.shape());
                let found = found.to_vec::<u32>()?;
                assert!(
                    found == exact.to_vec::<u32>()?,
                    "{what} in {dtype}, {scheme}"
                );
                for word in found {
                    digest = (digest ^ u64::from(word)).wrapping_mul(0x100_0000_01b3);
                }
            }
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}

/// With this crate's kernels switched off, packing is MLX's graph, as on a GPU.
#[test]
fn without_our_kernels_it_is_the_same() {
    for test in [
        "attention::packed_attentions",
        "packed::packed_rows_are_quantised_ones",
    ] {
        let output = child(test, &[("MLX_CPU_KERNELS", "off")]);
        assert!(output.status.success(), "{test}: {}", text(&output));
    }
}

/// A decoded token over packed keys has the same result as in the whole prompt, in one step or in rows of other
/// lengths.
#[test]
fn a_query_is_alone_with_its_packed_keys() -> Result<()> {
    for (dtype, bits) in [
        (DType::F32, 4),
        (DType::BF16, 8),
        (DType::BF16, 4),
        (DType::F16, 8),
    ] {
        let (tokens, scheme) = (600, scheme(bits, 64));
        let x = inputs(3, [1, 4, 2, 64, 64], tokens, tokens, dtype)?;
        let (k, v) = (fast::pack(&x.k, scheme)?, fast::pack(&x.v, scheme)?);
        let attend = |q: &Array, k: &Array, v: &Array, mask: Mask| {
            let options = Attention {
                scale: 0.2,
                soft_cap: None,
                mask,
                sinks: None,
            };
            let y = fast::packed_attention(q, k, v, scheme, &options)?;
            y.astype(DType::F32)?.to_vec::<f32>()
        };
        let zero = Array::from_slice(&[0i32], &[1])?;
        let whole = attend(&x.q, &k, &v, placed(&zero, Some(400), KeySlots::Straight))?;
        let (k2, v2) = (concat(&[&k, &k], 0)?, concat(&[&v, &v], 0)?);
        for at in [0, 31, 255, 256, 599] {
            let q = x.q.slice_axis(2, at, at + 1)?;
            let offsets = Array::from_slice(&[at, 599 - at], &[2])?;
            let mask = placed(&offsets, Some(400), KeySlots::Straight);
            let two = attend(&concat(&[&q, &q], 0)?, &k2, &v2, mask)?;
            for head in 0..4 {
                let expected = (head * tokens + at) as usize * 64;
                let found = head as usize * 64;
                assert!(
                    two[found..found + 64] == whole[expected..expected + 64],
                    "{dtype}, {bits} bits, head {head} at {at}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_not_packed_is_refused() -> Result<()> {
    let x = inputs(1, [1, 2, 1, 64, 64], 3, 5, DType::F32)?;
    let error = |result: Result<Array>| result.expect_err("it does not fit").to_string();
    let message = error(fast::pack(&x.k, scheme(3, 64)));
    assert!(
        message.contains("4 or 8 bits, given affine, 3 bits"),
        "{message}"
    );
    let message = error(fast::pack(&x.k, scheme(4, 128)));
    assert!(
        message.contains("rows of 64 do not divide into groups of 128"),
        "{message}"
    );
    let message = error(fast::pack(&x.k.astype(DType::I32)?, scheme(4, 64)));
    assert!(message.contains("packed of F32, F16 or BF16"), "{message}");
    let mxfp4 = Scheme::default_of(QuantMode::Mxfp4);
    let message = error(fast::pack(&x.k, mxfp4));
    assert!(message.contains("packed affinely"), "{message}");
    let options = Attention {
        scale: 1.0,
        soft_cap: None,
        mask: Mask::None,
        sinks: None,
    };
    let packed = fast::pack(&x.k, scheme(8, 64))?;
    for (k, v, four) in [
        (&packed, &packed, scheme(4, 64)),
        (&x.k, &x.v, scheme(4, 64)),
        (&packed, &x.v, scheme(8, 64)),
    ] {
        let message = error(fast::packed_attention(&x.q, k, v, four, &options));
        assert!(
            message.contains("attention needs packed keys and values"),
            "{message}"
        );
    }
    Ok(())
}

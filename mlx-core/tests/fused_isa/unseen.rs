//! Attention over a chunk of keys that is masked for some queries of a task and unmasked for others. The memory's
//! former contents do not change the result.

use mlx_core::fast::{self, Attention, KeySlots, Mask, plainly};
use mlx_core::{Array, DType, Result};

use super::attention::{Inputs, inputs, placed};
use super::{TYPES, check};

/// A chunk has 256 positions: of the tokens from this one on, some have keys at the end of one chunk, others only in
/// the next.
const FIRST: i32 = 230;
const TOKENS: i32 = 70;
const SLOTS: i32 = 600;
const WINDOW: i32 = 8;

fn options<'a>(mask: Mask, sinks: Option<&'a Array>) -> Attention<'a> {
    Attention {
        scale: 0.3,
        soft_cap: None,
        mask,
        sinks,
    }
}

/// Runs in many settings, as `attentions` does.
#[test]
fn what_was_in_memory_does_not_show() -> Result<()> {
    if fast::form(fast::Op::Attention)? == fast::Form::Plain {
        return Ok(());
    }
    let offsets = Array::from_slice(&[FIRST], &[1])?;
    let mask = placed(&offsets, Some(WINDOW), KeySlots::Straight);
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for dtype in TYPES {
        let x = inputs(7, [1, 4, 2, 64, 64], TOKENS, SLOTS, dtype)?;
        let Inputs { q, k, v, sinks } = &x;
        let wide = |x: &Array| x.astype(DType::F32);
        // NaN is the last result that the threads computed, so their scratch memory holds it.
        let nan = v.multiply(f32::NAN)?.astype(dtype)?;
        for sinks in [None, Some(sinks)] {
            let poison = wide(&fast::attention(q, k, &nan, &options(Mask::None, None))?)?;
            assert!(poison.to_vec::<f32>()?.iter().all(|y| y.is_nan()));
            let found = fast::attention(q, k, v, &options(mask.clone(), sinks))?;
            let wide_sinks = sinks.map(wide).transpose()?;
            let own = options(mask.clone(), wide_sinks.as_ref());
            let exact = plainly(|| fast::attention(&wide(q)?, &wide(k)?, &wide(v)?, &own))?;
            let what = format!("{dtype}, sinks: {}", sinks.is_some());
            check(&found, &exact, 3.0, &mut digest, &what)?;
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}

//! Recurrent layers over ragged rows, with states in slots.

#[path = "../ragged/batch.rs"]
mod batch;
#[path = "../ragged/layers.rs"]
mod layers;
#[path = "../recurrent/reference.rs"]
#[allow(
    dead_code,
    reason = "the definition in f64 is for the tests of dense rows"
)]
mod reference;

use mlx_core::fast::{SlotsAfter, StatePool, StateSlots, plainly};
use mlx_core::{Array, DType, Result};

use super::{HALVES, close, f32s, on_gpu, same};
use batch::{Batch, SLOTS, To, batches, ints};

/// Each row has the bits of the row alone in the dense kernels, and is close to the plain form in F32.
#[test]
fn rows_are_those_alone() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for (batch, tokens) in batches() {
            for (what, layer) in batch::layers(tokens, dtype)? {
                let what = format!("{what}, rows of {:?}", batch.widths);
                let pool = layer.pool(SLOTS, 9)?;
                let (y, after) = batch.run(&layer, &pool)?;
                let expected = batch.expected(&layer, &pool)?;
                same(&what, &y, &expected.0)?;
                same(&format!("{what}: pool"), &after, &expected.1)?;
                let wide = layer.in_f32()?;
                let wide_pool = match wide.slot().1 == pool.dtype() {
                    true => pool.clone(),
                    false => pool.astype(DType::F32)?,
                };
                let wanted = plainly(|| batch.run(&wide, &wide_pool))?;
                close(&what, &y, &wanted.0, tolerance)?;
                close(&format!("{what}: pool"), &after, &wanted.1, 0.002)?;
            }
        }
    }
    Ok(())
}

/// A long prompt beside rows that decode, in a pool that is written in place. NaN in tokens of no row, and in slots that
/// no row reads, has no effect.
#[test]
fn prompts_beside_decoding_rows() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let batch = Batch {
        widths: vec![1, 1, 1, 300, 2],
        from: vec![2, 5, -1, 7, 0],
        to: To::Rows(vec![2, 5, 1, 7, 0]),
    };
    let (tokens, used) = (309, 305);
    for (what, layer) in batch::layers(tokens, DType::BF16)? {
        let pool = layer.pool(SLOTS, 9)?;
        let expected = batch.expected(&layer, &pool)?;
        let real: Vec<bool> = (0..tokens).map(|token| token < used).collect();
        let real = Array::from_slice(&real, &[1, tokens, 1])?;
        let poisoned = layer.of_tokens();
        let poisoned = poisoned
            .iter()
            .map(|x| real.select(x, f32::NAN)?.astype(x.dtype()));
        let layer = layer.with_tokens(&poisoned.collect::<Result<Vec<_>>>()?);
        let unread = [1, 3, 4, 6, 8];
        let read: Vec<bool> = (0..SLOTS).map(|slot| !unread.contains(&slot)).collect();
        let mut shape = vec![SLOTS];
        shape.resize(pool.ndim(), 1);
        let read = Array::from_slice(&read, &shape)?;
        let pool = read.select(&pool, f32::NAN)?.astype(pool.dtype())?;
        let address = pool.address()?;
        let To::Rows(to) = &batch.to else {
            unreachable!("the batch has slots of rows")
        };
        let states = StateSlots {
            pool: StatePool::Own(pool),
            from: &ints(&batch.from)?,
            to: SlotsAfter::Rows(&ints(to)?),
        };
        let (y, pool) = layer.ragged(&ints(&batch.starts())?, 300, Some(states))?;
        let pool = pool.expect("there is a pool");
        mlx_core::eval([&y, &pool])?;
        assert_eq!(pool.address()?, address, "{what}");
        same(&what, &y, &expected.0)?;
        for slot in 0..SLOTS {
            let part = |pool: &Array| pool.slice_axis(0, slot, slot + 1);
            if unread.contains(&slot) && !to.contains(&slot) {
                assert!(f32s(&part(&pool)?)?.iter().all(|x| x.is_nan()), "{what}");
            } else {
                same(&what, &part(&pool)?, &part(&expected.1)?)?;
            }
        }
    }
    Ok(())
}

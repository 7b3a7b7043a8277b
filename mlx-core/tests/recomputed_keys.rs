//! What a checkpointed function draws is the same when the backward pass computes it again.

use mlx_core::ops::create::ones;
use mlx_core::transforms::{checkpoint_with, value_and_grad_with};
use mlx_core::{Array, DType, Result, random};

/// Drops half of the numbers.
fn dropped(x: &Array) -> Result<Array> {
    let kept = random::bernoulli(None, 0.5f32, x.shape())?;
    kept.select(x, 0.0)
}

/// The gradient of the sum is 1 where a number was kept, so that it equals the value for a vector of ones.
#[test]
fn the_backward_pass_drops_what_the_forward_pass_dropped() -> Result<()> {
    random::seed(3);
    let x = ones(&[1000], DType::F32)?;
    let layer = checkpoint_with(|x: &[Array]| Ok(vec![dropped(&x[0])?]))?;
    let (values, grads) = value_and_grad_with(
        |x| {
            let once = layer(x)?.remove(0);
            let twice = layer(std::slice::from_ref(&once))?.remove(0);
            Ok(vec![twice.sum(.., false)?, once, twice])
        },
        &[x],
        &[0],
    )?;
    let [_, once, twice] = [0, 1, 2].map(|i| &values[i]);
    let (once, twice) = (once.to_vec::<f32>()?, twice.to_vec::<f32>()?);
    assert_eq!(grads[0].to_vec::<f32>()?, twice);
    // Each call has keys of its own.
    let kept = |all: &[f32]| all.iter().filter(|x| **x == 1.0).count();
    assert!((400..600).contains(&kept(&once)) && (200..300).contains(&kept(&twice)));
    Ok(())
}

/// The thread's keys go on after the backward pass as if it had drawn none.
#[test]
fn the_backward_pass_takes_no_keys() -> Result<()> {
    let next = |differentiate: bool| -> Result<Vec<u32>> {
        random::seed(5);
        let x = ones(&[4], DType::F32)?;
        let layer = checkpoint_with(|x: &[Array]| Ok(vec![dropped(&x[0])?.sum(.., false)?]))?;
        match differentiate {
            true => drop(value_and_grad_with(|x| layer(x), &[x], &[0])?),
            false => drop(layer(&[x])?),
        }
        random::next_key()?.as_array().to_vec()
    };
    assert_eq!(next(true)?, next(false)?);
    Ok(())
}

//! Linear regression by gradient descent.

use mlx_core::{Array, DType, Result, array, random, value_and_grad};

fn main() -> Result<()> {
    random::seed(0);
    let x = random::normal(None, [200, 2], DType::F32)?;
    let y = (x.matmul(&array![2.0f32, -3.5])? + 4.25)?;

    let step =
        value_and_grad(|w: &Array, b: &Array| ((x.matmul(w)? + b)? - &y)?.square()?.mean_all());
    let step = step.argnums(..);
    let (mut w, mut b) = (array![0.0f32, 0.0], Array::from(0.0f32));
    for _ in 0..100 {
        let (_loss, (dw, db)) = step(&w, &b)?;
        (w, b) = ((w - (dw * 0.2)?)?, (b - (db * 0.2)?)?);
    }
    println!("w = {}, b = {}", w.round_with(3)?, b.round_with(3)?);
    Ok(())
}

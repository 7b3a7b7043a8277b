//! A classifier of three spirals: a module of the program, its gradients and an optimiser.

use mlx_nn::mlx_core::{Array, DType, Result, arange, random, stack};
use mlx_nn::{AdamW, Linear, Module, loss, value_and_grad};

#[derive(Module)]
struct Mlp {
    l1: Linear,
    l2: Linear,
}

impl Mlp {
    fn forward(&self, x: &Array) -> Result<Array> {
        self.l2.forward(&self.l1.forward(x)?.relu()?)
    }
}

/// Points `[n, 2]` on three arms that turn by half a circle, and the arm of each.
fn spirals(n: i32) -> Result<(Array, Array)> {
    let arms = (arange(0, n, 1, DType::I32)? % 3)?;
    let radius = random::uniform(None, 0.2, 1.0, n, DType::F32)?;
    let angle = (&radius * 3.1 + (&arms * 2.0944)?)?;
    let points = [(&radius * angle.cos()?)?, (&radius * angle.sin()?)?];
    Ok((stack(&points, 1)?, arms))
}

fn main() -> Result<()> {
    random::seed(0);
    let (x, arms) = spirals(600)?;
    let (l1, l2) = (Linear::new(2, 64, true)?, Linear::new(64, 3, true)?);
    let mut model = Mlp { l1, l2 };
    let mut optimizer = AdamW::new(0.02).weight_decay(0.01);
    for _ in 0..300 {
        let (_loss, grads) = value_and_grad(&mut model, |model| {
            loss::cross_entropy(&model.forward(&x)?, &arms)?.mean_all()
        })?;
        optimizer.update(&mut model, &grads)?;
    }

    let (x, arms) = spirals(300)?;
    let found = model.forward(&x)?.argmax(-1, false)?;
    let right: i32 = found.eq(&arms)?.sum_all()?.item()?;
    println!(
        "{} parameters, {right} of 300 new points are right",
        model.num_parameters()
    );
    Ok(())
}

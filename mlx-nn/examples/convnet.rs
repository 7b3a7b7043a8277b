//! A convolutional net with batch norm and dropout. The program handles no statistics and no random
//! keys.

use mlx_nn::mlx_core::{Array, DType, Result, arange, random};
use mlx_nn::{
    AdamW, BatchNorm, Conv2d, Dropout, Linear, MaxPool2d, Module, Sequential, loss, value_and_grad,
};

fn net() -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Conv2d::new(1, 8, 3)?.padding(1))
        .add(BatchNorm::new(8)?)
        .add_fn(Array::relu)
        .add(MaxPool2d::new(2))
        .add(Conv2d::new(8, 16, 3)?.padding(1))
        .add_fn(Array::relu)
        .add(MaxPool2d::new(2))
        .add_fn(|x| x.flatten_with(1, -1))
        .add(Dropout::new(0.25)?)
        .add(Linear::new(16 * 3 * 3, 3, true)?))
}

/// Images `[n, 12, 12, 1]` of a row (0), a column (1) or a diagonal (2) in noise, and their kinds.
fn images(n: i32) -> Result<(Array, Array)> {
    let kind = random::randint(None, 0, 3, [n, 1, 1, 1], DType::I32)?;
    let place = random::randint(None, 0, 12, [n, 1, 1, 1], DType::I32)?;
    let row = arange(0, 12, 1, DType::I32)?.reshape((1, 12, 1, 1))?;
    let column = row.reshape((1, 1, 12, 1))?;
    let diagonal = ((&row + &column)? % 12)?;
    let other = kind.eq(1)?.select(&column, &diagonal)?;
    let line = kind.eq(0)?.select(&row, &other)?.eq(&place)?;
    let noise = random::normal(None, [n, 12, 12, 1], DType::F32)?;
    Ok(((line.astype(DType::F32)? + noise * 0.2)?, kind.flatten()?))
}

fn main() -> Result<()> {
    random::seed(0);
    let mut model = net()?;
    let mut optimizer = AdamW::new(0.01);
    for _ in 0..60 {
        let (x, kinds) = images(64)?;
        let (_loss, grads) = value_and_grad(&mut model, |model| {
            loss::cross_entropy(&model.forward(&x)?, &kinds)?.mean_all()
        })?;
        optimizer.update(&mut model, &grads)?;
    }

    model.train(false)?;
    let (x, kinds) = images(200)?;
    let found = model.forward(&x)?.argmax(-1, false)?;
    let right: i32 = found.eq(&kinds)?.sum_all()?.item()?;
    println!("{right} of 200 new images are right");
    Ok(())
}

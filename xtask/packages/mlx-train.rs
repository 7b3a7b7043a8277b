//! A program on `mlx-train` without its default features.

use mlx_train::{Batch, Example, Result};

fn main() -> Result<()> {
    let examples = [
        Example::new(vec![1, 2, 3], 1),
        Example::new(vec![4, 5, 6, 7], 2),
    ];
    let batch = Batch::new(examples.iter().map(|example| [example]))?;
    println!("{} {:?}", batch.tokens(), batch.widths());
    Ok(())
}

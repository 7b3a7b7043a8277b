//! A transformer encoder that learns to sort: eight digits in, the same digits in order out.

use mlx_nn::mlx_core::{Array, DType, Result, arange, array, random};
use mlx_nn::{
    AdamW, Embedding, Linear, Module, Schedule, TransformerEncoder, loss, value_and_grad,
};

const DIGITS: i32 = 10;
const LENGTH: i32 = 8;
const DIMS: i32 = 32;

#[derive(Module)]
struct Sorter {
    digits: Embedding,
    positions: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

impl Sorter {
    fn new() -> Result<Self> {
        Ok(Self {
            digits: Embedding::new(DIGITS, DIMS)?,
            positions: Embedding::new(LENGTH, DIMS)?,
            encoder: TransformerEncoder::new(2, DIMS, 4)?,
            head: Linear::new(DIMS, DIGITS, true)?,
        })
    }

    /// `[B, L]` digits to `[B, L, 10]` logits.
    fn forward(&self, x: &Array) -> Result<Array> {
        let positions = arange(0, x.dim(1)?, 1, DType::I32)?;
        let x = (self.digits.forward(x)? + self.positions.forward(&positions)?)?;
        self.head.forward(&self.encoder.forward(&x, None)?)
    }

    /// The likeliest digit of each place.
    fn sort(&self, x: &Array) -> Result<Array> {
        self.forward(x)?.argmax(-1, false)
    }
}

fn digits(rows: i32) -> Result<Array> {
    random::randint(None, 0, DIGITS, (rows, LENGTH), DType::I32)
}

fn main() -> Result<()> {
    random::seed(0);
    let mut model = Sorter::new()?;
    let mut optimizer = AdamW::new(Schedule::cosine(3e-3, 1e-5, 300));
    for _ in 0..300 {
        let x = digits(64)?;
        let sorted = x.sort(-1)?;
        let (_loss, grads) = value_and_grad(&mut model, |model| {
            loss::cross_entropy(&model.forward(&x)?, &sorted)?.mean_all()
        })?;
        optimizer.update(&mut model, &grads)?;
    }

    // The weights by the names of the fields, for Python too.
    let folder = tempfile::tempdir()?;
    model.save(folder.path().join("sorter.safetensors"))?;
    let mut model = Sorter::new()?;
    model.load(folder.path().join("sorter.safetensors"))?;
    model.train(false)?;
    let x = digits(200)?;
    let right: f32 = model.sort(&x)?.eq(x.sort(-1)?)?.mean_all()?.item()?;
    println!("more than 95 % of new digits are right: {}", right > 0.95);
    let pi = model.sort(&array![[3, 1, 4, 1, 5, 9, 2, 6]])?;
    println!("3, 1, 4, 1, 5, 9, 2, 6 becomes {:?}", pi.to_vec::<u32>()?);
    Ok(())
}

//! A recurrent model of characters: it learns a sentence, and writes it from its first letter.

use mlx_nn::mlx_core::{Array, Result, random};
use mlx_nn::{Adam, Embedding, Linear, Lstm, Module, loss, value_and_grad};

const TEXT: &str = "peter piper picked a peck of pickled peppers.";

#[derive(Module)]
struct Writer {
    letters: Embedding,
    lstm: Lstm,
    head: Linear,
}

impl Writer {
    fn new() -> Result<Self> {
        Ok(Self {
            letters: Embedding::new(128, 16)?,
            lstm: Lstm::new(16, 64)?,
            head: Linear::new(64, 128, true)?,
        })
    }

    /// Letters `[L]` to the logits of what follows each, `[L, 128]`.
    fn forward(&self, letters: &Array) -> Result<Array> {
        let (states, _cells) = self.lstm.forward(&self.letters.forward(letters)?)?;
        self.head.forward(&states)
    }

    /// The likeliest letters after `first`, up to a full stop. Each step takes one letter and the
    /// state after the previous one.
    fn write(&self, first: u8) -> Result<String> {
        let mut text = vec![first];
        let mut state: Option<(Array, Array)> = None;
        while text.len() < 80 && !text.ends_with(b".") {
            let x = self
                .letters
                .forward(&Array::from(vec![text[text.len() - 1]]))?;
            let (states, cells) = match &state {
                None => self.lstm.forward(&x)?,
                Some((hidden, cell)) => self.lstm.forward_from(&x, hidden, cell)?,
            };
            let next = self.head.forward(&states)?.argmax(-1, false)?;
            text.push(next.item::<u32>()? as u8);
            state = Some((states.i(-1)?, cells.i(-1)?));
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn main() -> Result<()> {
    random::seed(0);
    let letters = Array::from(TEXT.as_bytes().to_vec());
    let (x, next) = (letters.i(..-1)?, letters.i(1..)?);
    let mut model = Writer::new()?;
    let mut optimizer = Adam::new(0.01);
    for _ in 0..150 {
        let (_loss, grads) = value_and_grad(&mut model, |model| {
            loss::cross_entropy(&model.forward(&x)?, &next)?.mean_all()
        })?;
        optimizer.update(&mut model, &grads)?;
    }
    println!("{}", model.write(b'p')?);
    Ok(())
}

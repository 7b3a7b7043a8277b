//! Token sequences as arrays: what a training step sees.

use mlx_core::{Array, Error, ErrorKind, Result};

/// A document: token ids, and from where on they are learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The ids.
    pub tokens: Vec<u32>,
    /// How many of the first tokens are only read: a prompt. The very first token never is learnt,
    /// because nothing predicts it.
    pub prompt: usize,
}

impl Example {
    /// How many tokens are learnt.
    pub fn learnt(&self) -> usize {
        self.tokens.len().saturating_sub(self.prompt.max(1))
    }
}

/// Rows of examples side by side, padded on the right.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What the model reads, U32 `[B, L]`.
    pub inputs: Array,
    /// What it is to predict at each place, U32 `[B, L]`.
    pub targets: Array,
    /// Where that counts, Bool `[B, L]`.
    pub mask: Array,
    /// The lengths of the documents of each row; each is one shorter than its example.
    pub documents: Vec<Vec<usize>>,
    /// How many places count.
    pub learnt: usize,
}

impl Batch {
    /// One row for each list of examples: a row of several is packed, and none of its documents sees
    /// another.
    ///
    /// # Errors
    /// There is no row, or a row has no document of two tokens or more.
    pub fn new<'e, R>(rows: impl IntoIterator<Item = R>) -> Result<Self>
    where
        R: IntoIterator<Item = &'e Example>,
    {
        let rows: Vec<Vec<&Example>> = rows
            .into_iter()
            .map(|row| {
                let row = row.into_iter();
                row.filter(|example| example.tokens.len() > 1).collect()
            })
            .collect();
        if rows.is_empty() || rows.iter().any(Vec::is_empty) {
            let message = "a row of a batch needs a document of at least two tokens";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let documents: Vec<Vec<usize>> = rows
            .iter()
            .map(|row| row.iter().map(|example| example.tokens.len() - 1).collect())
            .collect();
        let width = documents.iter().map(|row| row.iter().sum()).max();
        let width: usize = width.unwrap_or(0);
        let (mut inputs, mut targets, mut mask) = (Vec::new(), Vec::new(), Vec::new());
        for (index, row) in rows.iter().enumerate() {
            for example in row {
                let tokens = &example.tokens;
                inputs.extend_from_slice(&tokens[..tokens.len() - 1]);
                targets.extend_from_slice(&tokens[1..]);
                mask.extend((1..tokens.len()).map(|at| at >= example.prompt));
            }
            for padded in [&mut inputs, &mut targets] {
                padded.resize((index + 1) * width, 0);
            }
            mask.resize((index + 1) * width, false);
        }
        let shape = [rows.len() as i32, width as i32];
        Ok(Self {
            inputs: Array::from_slice(&inputs, &shape)?,
            targets: Array::from_slice(&targets, &shape)?,
            learnt: mask.iter().filter(|&&counts| counts).count(),
            mask: Array::from_slice(&mask, &shape)?,
            documents,
        })
    }

    /// The length of each row without its padding.
    pub fn widths(&self) -> Vec<usize> {
        self.documents.iter().map(|row| row.iter().sum()).collect()
    }

    /// How many tokens the model reads, padding left out.
    pub fn tokens(&self) -> usize {
        self.documents.iter().flatten().sum()
    }

    /// Whether a row holds several documents.
    pub fn is_packed(&self) -> bool {
        self.documents.iter().any(|row| row.len() > 1)
    }
}

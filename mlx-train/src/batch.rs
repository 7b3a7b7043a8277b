//! Token sequences as arrays: the input of a training step.

use mlx_core::{Array, Error, ErrorKind, Result};

/// A document: token ids, and which of them count in the loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// The ids.
    pub tokens: Vec<u32>,
    /// The length of the prompt: its tokens do not count in the loss. The very first token never counts,
    /// because nothing predicts it.
    pub prompt: usize,
    /// A weight in the loss for each token, finite and not negative; without weights each token behind
    /// the prompt has weight 1.
    pub weights: Option<Vec<f32>>,
}

impl Example {
    /// An example whose first `prompt` tokens are the prompt.
    pub fn new(tokens: Vec<u32>, prompt: usize) -> Self {
        Self {
            tokens,
            prompt,
            weights: None,
        }
    }

    /// The weight of token `at` in the loss.
    pub fn weight(&self, at: usize) -> f32 {
        if at < self.prompt.max(1) {
            return 0.0;
        }
        match &self.weights {
            None => 1.0,
            Some(weights) => weights.get(at).copied().unwrap_or(0.0),
        }
    }

    /// The number of tokens that count in the loss.
    pub fn learnt(&self) -> usize {
        let learnt = |&at: &usize| self.weight(at) > 0.0;
        (0..self.tokens.len()).filter(learnt).count()
    }
}

/// Rows of examples as arrays, padded on the right.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The model's input, U32 `[B, L]`.
    pub inputs: Array,
    /// The token to predict at each place, U32 `[B, L]`.
    pub targets: Array,
    /// The weight of each place in the loss, F32 `[B, L]`: 0 for prompts and padding, usually 1 elsewhere.
    pub weights: Array,
    /// The places whose weight is not 0, as indices into `B * L`: U32 `[N]`, ascending.
    pub places: Array,
    /// The lengths of the documents of each row; each is one shorter than its example.
    pub documents: Vec<Vec<usize>>,
    /// The number of places that count: `N`.
    pub learnt: usize,
    /// The sum of the weights.
    pub weight: f64,
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
        let (mut inputs, mut targets, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for (index, row) in rows.iter().enumerate() {
            for example in row {
                let tokens = &example.tokens;
                inputs.extend_from_slice(&tokens[..tokens.len() - 1]);
                targets.extend_from_slice(&tokens[1..]);
                weights.extend((1..tokens.len()).map(|at| example.weight(at)));
            }
            for padded in [&mut inputs, &mut targets] {
                padded.resize((index + 1) * width, 0);
            }
            weights.resize((index + 1) * width, 0.0);
        }
        let inputs = Array::from_slice(&inputs, &[rows.len() as i32, width as i32])?;
        Self::with(inputs, &targets, &weights, &documents)
    }

    fn with(
        inputs: Array,
        targets: &[u32],
        weights: &[f32],
        documents: &[Vec<usize>],
    ) -> Result<Self> {
        let places: Vec<u32> = (0u32..)
            .zip(weights)
            .filter_map(|(place, &weight)| (weight > 0.0).then_some(place))
            .collect();
        let [rows, width] = inputs.dims()?;
        Ok(Self {
            inputs,
            targets: Array::from_slice(targets, &[rows, width])?,
            weight: weights.iter().map(|&weight| f64::from(weight)).sum(),
            weights: Array::from_slice(weights, &[rows, width])?,
            learnt: places.len(),
            places: Array::from_slice(&places, &[places.len() as i32])?,
            documents: documents.to_vec(),
        })
    }

    /// The same rows with the token after the next one as the target, which a head for multi-token
    /// prediction learns. The weight of a position is that of its new target, and 0 for the last
    /// position of a document. If no token is left to learn, `learnt` is 0.
    ///
    /// # Errors
    /// Memory for an array is exhausted.
    pub fn ahead(&self) -> Result<Self> {
        let width = self.targets.dim(1)? as usize;
        let (mut targets, mut weights) = (self.targets.to_vec::<u32>()?, self.weights.to_vec()?);
        for (row, documents) in self.documents.iter().enumerate() {
            let mut start = row * width;
            for &len in documents {
                targets[start..start + len].rotate_left(1);
                weights[start..start + len].rotate_left(1);
                start += len;
                weights[start - 1] = 0.0;
            }
        }
        Self::with(self.inputs.clone(), &targets, &weights, &self.documents)
    }

    /// The length of each row without its padding.
    pub fn widths(&self) -> Vec<usize> {
        self.documents.iter().map(|row| row.iter().sum()).collect()
    }

    /// The number of tokens that the model reads, without padding.
    pub fn tokens(&self) -> usize {
        self.documents.iter().flatten().sum()
    }

    /// The rows of a flat step over all places, row after row: the documents, and the padding behind
    /// the last one of a row.
    pub(crate) fn rows(&self) -> Result<Vec<usize>> {
        let width = self.inputs.dim(1)? as usize;
        let rows = self.documents.iter().flat_map(|documents| {
            let padding = width - documents.iter().sum::<usize>();
            documents
                .iter()
                .copied()
                .chain((padding > 0).then_some(padding))
        });
        Ok(rows.collect())
    }

    /// Whether a row holds several documents.
    pub fn is_packed(&self) -> bool {
        self.documents.iter().any(|row| row.len() > 1)
    }
}

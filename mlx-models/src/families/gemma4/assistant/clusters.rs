//! [`Clusters`]: a vocabulary in clusters, of which a drafter scores only the best.

use mlx_core::ops::create::zeros;
use mlx_core::{Array, DType, Result};
use mlx_nn::{Checkpoint, Embedding, Linear, module};

use crate::config::Config;

/// The tensor with the tokens in the order of their clusters.
pub(super) const ORDER: &str = "masked_embedding.token_ordering";

/// A vocabulary in clusters. Only the tokens of the best clusters have logits of their own.
#[derive(Clone)]
pub(super) struct Clusters {
    centroids: Linear,
    /// The tokens of each cluster: I32 `[C, V / C]`.
    tokens: Array,
    /// How many clusters are chosen.
    top: i32,
}
module!(Clusters { centroids } plain { tokens, top });

impl Clusters {
    pub(super) fn load(
        c: &Config,
        published: &Checkpoint,
        (hidden, vocab): (i32, i32),
    ) -> Result<Self> {
        let count = c.size("num_centroids", Some(2048))?;
        let top = c.size("centroid_intermediate_top_k", Some(32))?;
        if vocab % count != 0 || top > count {
            return Err(c.error(format!(
                "num_centroids {count} must divide the {vocab} tokens, and centroid_intermediate_top_k {top} not exceed it"
            )));
        }
        let Some(order) = published.array(ORDER)? else {
            return Err(c.error(format!("the tensor {ORDER} is missing")));
        };
        if order.shape() != [vocab] {
            let shape = order.shape();
            return Err(c.error(format!(
                "{ORDER} must have {vocab} elements, found {shape:?}"
            )));
        }
        let tokens: Vec<i64> = order.astype(DType::I64)?.to_vec()?;
        if let Some(token) = tokens
            .iter()
            .find(|token| !(0..i64::from(vocab)).contains(token))
        {
            return Err(c.error(format!("{ORDER} has {token}, none of the {vocab} tokens")));
        }
        let tokens: Vec<i32> = tokens.into_iter().map(|token| token as i32).collect();
        Ok(Self {
            centroids: Linear::empty(hidden, count, false)?,
            tokens: Array::from_slice(&tokens, &[count, vocab / count])?,
            top,
        })
    }

    /// Logits `[N, V]` of features `[N, A]`. Tokens of other clusters have the least logit of the row less 1.
    pub(super) fn logits(&self, embedding: &Embedding, features: &Array) -> Result<Array> {
        let [rows, hidden] = features.dims()?;
        let scores = self.centroids.forward(features)?;
        let best = scores.negative()?.argpartition(self.top - 1, -1)?;
        let best = best.slice_axis(1, 0, self.top)?;
        let chosen = self.tokens.take(&best, 0)?.reshape(&[rows, -1])?;
        let of_tokens = embedding.forward(&chosen)?;
        let logits = of_tokens
            .matmul(&features.reshape(&[rows, hidden, 1])?)?
            .squeeze(2)?;
        let least = logits.min(-1, true)?.subtract(1.0)?;
        let vocab = self.tokens.size() as i32;
        let others = zeros(&[rows, vocab], logits.dtype())?.add(&least)?;
        others.put_along_axis(&chosen, &logits, 1)
    }
}

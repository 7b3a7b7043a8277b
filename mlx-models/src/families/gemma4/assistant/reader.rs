//! What the drafter of a Gemma 4 reads of its target, and what it drafts.

use mlx_core::ops::concat;
use mlx_core::ops::create::zeros;
use mlx_core::{Array, Result};
use mlx_nn::{Head, KvShape, LayerKind, Step};

use super::Gemma4Assistant;
use crate::decoders::causal_lm::DecoderLayer;
use crate::draft_heads::drafted::{Reader, last_features};
use crate::model::{Drafting, Model, kv_heads, paired};

impl Gemma4Assistant {
    /// The drafter's features `[1, T, A]`, from embedded tokens and the target's features before them, both `[1, T, E]`.
    fn features(
        &self,
        target: &dyn Model,
        tokens: &Array,
        before: &Array,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let embedded = target.embeddings(tokens)?.astype(before.dtype())?;
        let x = self
            .pre_projection
            .forward(&concat(&[&embedded, before], -1)?)?;
        let x = step.before_tokens(&self.held, |step| {
            let mut x = x.into();
            for (layer, &state) in self.model.layers.iter().zip(&self.held) {
                x = layer.forward(x, state, step)?;
            }
            Ok(x)
        })?;
        let (_, normed) = x.normed(&self.model.norm)?;
        Ok(normed)
    }
}

impl Reader for Gemma4Assistant {
    fn duplicate(&self) -> Box<dyn Reader> {
        Box::new(self.clone())
    }

    fn reads(&self) -> Option<&[usize]> {
        None
    }

    fn states(&self) -> (KvShape, Vec<LayerKind>) {
        (kv_heads(0, 0), vec![last_features(self.hidden)])
    }

    /// The target's keys and values end before the first draft, and so do the positions of the drafts.
    fn manner(&self) -> Drafting {
        Drafting::Held
    }

    fn follow(
        &self,
        target: &dyn Model,
        first: usize,
        tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let features = match features {
            Some(features) => features.clone(),
            None => {
                let dtype = target.embeddings(tokens)?.dtype();
                zeros(&[1, step.tokens() as i32, self.hidden], dtype)?
            }
        };
        let (tokens, before) = paired(tokens, &features, first, step)?;
        self.features(target, &tokens, &before, step)
    }

    fn draft(
        &self,
        target: &dyn Model,
        _first: usize,
        tokens: &Array,
        before: &Array,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let before = self.post_projection.forward(before)?;
        self.features(target, tokens, &before, step)
    }

    fn logits(&self, _: &dyn Model, features: &Array, first: Option<i32>) -> Result<Array> {
        let embedding = &self.model.embed_tokens;
        if let Some(clusters) = &self.masked_embedding {
            let shape = features.shape().to_vec();
            let hidden = shape[shape.len() - 1];
            let logits = clusters.logits(embedding, &features.reshape(&[-1, hidden])?)?;
            let vocab = logits.dim(1)?;
            let shape: Vec<i32> = shape[..shape.len() - 1]
                .iter()
                .copied()
                .chain([vocab])
                .collect();
            return logits.reshape(&shape);
        }
        let head = Head::of(self.lm_head.as_ref(), embedding, None);
        match first {
            Some(first) => head.first(first, features),
            None => head.forward(features),
        }
    }
}

//! Gradients layer by layer: less memory for one more forward pass (Chen et al., arXiv:1604.06174).
//!
//! The forward pass keeps the input of each layer and no intermediate results. The backward pass goes from the last
//! layer to the first: it computes each layer again and differentiates it alone. It runs the head on a few positions at
//! a time, so that `[B, L, V]` logits never exist. It ends at the first layer with trainable parameters. A layer that
//! reads what an earlier one has left in the step (keys and values, compressed blocks, the choice of an indexer) and
//! all layers from that one on are one piece.

use std::ops::Range;

use mlx_core::{Array, Result};
use mlx_models::{Geometry, Model};
use mlx_nn::trainable::trainable;
use mlx_nn::{ModelCache, Residual, Step};

use crate::batch::Batch;
use crate::grad::{Gradients, accumulate, pull_back};
use crate::loss::{Ahead, ONE_STEP, check, head_losses};

/// How many positions of a row go through the head at once.
const POSITIONS: i32 = 256;

/// Returns the sum of [`sum_loss`](crate::loss::sum_loss), that of a head for multi-token
/// prediction (`ahead`), if one is trained, and the gradients of both with respect to every
/// trainable parameter of `model`. All are evaluated.
///
/// # Errors
/// The same as those of [`sum_loss`](crate::loss::sum_loss).
pub fn sum_loss_and_grads(
    model: &mut dyn Model,
    batch: &Batch,
    ahead: Option<&Ahead>,
    ce_chunk: Option<i32>,
) -> Result<(Vec<Array>, Gradients)> {
    check(model, batch)?;
    let names: Vec<String> = trainable(model)?
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let pieces = pieces(model.geometry());
    let in_piece = |name: &str, piece: &Range<usize>| {
        layer_of(name).is_some_and(|layer| piece.contains(&layer))
    };
    let outside = |name: &str| layer_of(name).is_none();
    let embedding = names.iter().any(|name| outside(name));
    let trains = |piece: &Range<usize>| names.iter().any(|name| in_piece(name, piece));
    let first = pieces.iter().position(|piece| embedding || trains(piece));
    let first = first.unwrap_or(pieces.len());

    let rows = batch.rows()?;
    let mut cache = ModelCache::new(model.states(), rows.len(), ONE_STEP);
    let mut step = cache.begin(&rows)?;
    let mut inputs = Vec::with_capacity(pieces.len() - first + 1);
    let tokens = batch.inputs.reshape(&[1, -1])?;
    let mut x = model.embed(&tokens)?;
    for (at, piece) in pieces.iter().enumerate() {
        if at >= first {
            inputs.push(x.clone());
        }
        for layer in piece.clone() {
            x = model.layer(layer, x.into(), &mut step)?.sum()?;
            mlx_core::eval([&x])?;
        }
    }

    let mut grads = Gradients::new();
    let (loss, mut dx) = head(model, &x, batch, ce_chunk, &outside, &mut grads)?;
    let mut losses = vec![loss];
    if let Some(ahead) = ahead {
        let factor = Array::scalar(ahead.factor())?;
        let (loss, of_head, more) = pull_back(model, &x, &factor, outside, |model, x| {
            let [_, hidden] = model.norm(x.clone().into())?;
            ahead.sum_loss(model, &hidden, ce_chunk)
        })?;
        dx = dx.add(&of_head)?;
        mlx_core::eval([&loss, &dx])?;
        add(&mut grads, more)?;
        losses.push(loss);
    }
    for piece in pieces[first..].iter().rev() {
        let input = inputs.pop().unwrap_or_else(|| x.clone());
        dx = back(model, piece, &input, &dx, &mut step, &mut grads)?;
    }
    if embedding {
        // The embedding reads integers, so only its parameters have gradients.
        let none = Array::scalar(0.0f32)?;
        let (_, _, of_embedding) =
            pull_back(model, &none, &dx, outside, |model, _| model.embed(&tokens))?;
        add(&mut grads, of_embedding)?;
    }
    Ok((losses, grads))
}

/// The loss, and its gradient with respect to the head's input.
fn head(
    model: &mut dyn Model,
    x: &Array,
    batch: &Batch,
    ce_chunk: Option<i32>,
    outside: &dyn Fn(&str) -> bool,
    grads: &mut Gradients,
) -> Result<(Array, Array)> {
    let (all, together) = (x.dim(1)?, POSITIONS * batch.inputs.dim(0)?);
    let one = Array::scalar(1.0f32)?;
    let (mut loss, mut parts) = (Array::scalar(0.0f32)?, Vec::new());
    let [targets, weights] = [&batch.targets, &batch.weights].map(|of| of.reshape(&[1, -1]));
    let (targets, weights) = (targets?, weights?);
    for start in (0..all).step_by(together as usize) {
        let part = |array: &Array| array.slice_axis(1, start, (start + together).min(all));
        let (targets, weights) = (part(&targets)?, part(&weights)?);
        let (sum, dx, of_head) = pull_back(model, &part(x)?, &one, outside, |model, x| {
            let [_, hidden] = model.norm(x.clone().into())?;
            let losses = head_losses(model, &hidden, &targets, ce_chunk)?;
            losses.multiply(&weights)?.sum(.., false)
        })?;
        loss = loss.add(sum)?;
        mlx_core::eval([&loss, &dx])?;
        parts.push(dx);
        add(grads, of_head)?;
    }
    Ok((loss, mlx_core::ops::concat(&parts, 1)?))
}

/// The layers that are computed again together.
fn pieces(geometry: &Geometry) -> Vec<Range<usize>> {
    let layers = geometry.layers().iter();
    pieces_of(layers.map(|layer| [layer.shares, layer.reads].into_iter().flatten().min()))
}

/// The same, given the first layer that each layer reads, if there is one.
fn pieces_of(reads: impl ExactSizeIterator<Item = Option<usize>>) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::with_capacity(reads.len());
    for (layer, reads) in reads.enumerate() {
        let mut begin = layer;
        while let Some(last) = pieces.pop_if(|last| reads.is_some_and(|first| first < last.end)) {
            begin = last.start;
        }
        pieces.push(begin..layer + 1);
    }
    pieces
}

/// Differentiates a piece; returns the gradient with respect to its input.
fn back(
    model: &mut dyn Model,
    piece: &Range<usize>,
    input: &Array,
    dx: &Array,
    step: &mut Step<'_>,
    grads: &mut Gradients,
) -> Result<Array> {
    let inside = |name: &str| layer_of(name).is_some_and(|layer| piece.contains(&layer));
    let (_, dx, of_layer) = pull_back(model, input, dx, inside, |model, x| {
        let mut x = Residual::from(x.clone());
        for layer in piece.clone() {
            x = model.layer(layer, x, step)?;
        }
        x.sum()
    })?;
    mlx_core::eval([&dx])?;
    add(grads, of_layer)?;
    Ok(dx)
}

/// Adds and evaluates gradients, so that no graph keeps its inputs alive.
fn add(grads: &mut Gradients, more: Gradients) -> Result<()> {
    accumulate(grads, more)?;
    mlx_core::eval(grads.values())
}

/// The number of the decoder layer that a parameter belongs to.
pub(crate) fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name
        .split_once("layers.")
        .filter(|(set, _)| *set != "mtp.")?;
    rest.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::pieces_of;

    #[test]
    fn layers_that_read_of_each_other_are_one_piece() {
        let reads = [None, None, Some(1), Some(1), None, None, Some(5), None];
        let pieces = pieces_of(reads.into_iter());
        assert_eq!(pieces, [0..1, 1..4, 4..5, 5..7, 7..8]);
        let reads = [None, None, Some(1), Some(0), None];
        assert_eq!(pieces_of(reads.into_iter()), [0..4, 4..5]);
    }
}

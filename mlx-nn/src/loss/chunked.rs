//! Cross entropy, one slice of the vocabulary at a time.

use mlx_core::ops::create::zeros;
use mlx_core::ops::{concat, depends};
use mlx_core::transforms::{custom_vjp_with, value_and_grad_with};
use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

use crate::head::{Head, OwnedHead};

/// [`cross_entropy`](super::cross_entropy) of the logits that `head` makes of `hidden`, `chunk` tokens
/// of the vocabulary at a time, so that `[.., V]` logits never exist: `hidden [.., E]`, `targets [..]`
/// -> F32 `[..]`.
///
/// The forward pass keeps a running log of the sum of exponentials. The backward pass computes each
/// slice of logits again. It needs one more product with the head, and the memory of one slice.
/// Slices are computed one after the other, also in a lazy graph.
///
/// Gradients reach `hidden` and the [trainable](crate::Param::trainable) parameters of the head: its matrix, bias or
/// adapter.
///
/// ```
/// use mlx_core::{Array, DType, random};
/// use mlx_nn::{Head, HeadMatrix, Linear, Param, loss};
///
/// # fn main() -> mlx_core::Result<()> {
/// let mut layer = Linear::empty(8, 100, false)?;
/// let key = random::Key::new(1)?;
/// *layer.weight_mut() = mlx_nn::Weight::Dense(Param::new(random::normal(&key, &[100, 8], DType::F32)?));
/// let head = Head { matrix: HeadMatrix::Own(&layer), scale: None, softcap: None, excluded: None };
/// let hidden = random::normal(&key, &[2, 8], DType::F32)?;
/// let targets = Array::from_slice(&[3u32, 99], &[2])?;
/// let sliced = loss::chunked_cross_entropy(&hidden, &targets, &head, 30)?;
/// let plain = loss::cross_entropy(&head.forward(&hidden)?, &targets)?;
/// let off = sliced.subtract(plain)?.abs()?.max(.., false)?.item::<f32>()?;
/// assert!(off < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `chunk` is not positive, the shapes do not fit, or there is no head.
pub fn chunked_cross_entropy(
    hidden: &Array,
    targets: &Array,
    head: &Head<'_>,
    chunk: i32,
) -> Result<Array> {
    let slices = Slices::new(hidden, targets, head, chunk)?;
    let (_, params) = slices.head.trainable()?;
    let primals = [vec![hidden.clone()], params].concat();
    let backward = slices.clone();
    let losses = custom_vjp_with(
        move |primals| slices.forward(primals),
        move |primals, cotangents, outputs| backward.backward(primals, &cotangents[0], &outputs[1]),
    )?;
    let mut outputs = losses(&primals)?;
    outputs.truncate(1);
    outputs
        .pop()
        .ok_or_else(|| Error::new(ErrorKind::Mlx, "custom_vjp returned no arrays"))
}

/// The result of [`chunked_cross_entropy`], and whether each target is the likeliest token (the first one of equal
/// logits): two arrays `[..]`, F32 and bool. There is no gradient.
///
/// # Errors
/// The same as those of [`chunked_cross_entropy`].
pub fn chunked_accuracy(
    hidden: &Array,
    targets: &Array,
    head: &Head<'_>,
    chunk: i32,
) -> Result<(Array, Array)> {
    Slices::new(hidden, targets, head, chunk)?.judged(hidden)
}

#[derive(Clone)]
struct Slices {
    /// The head. The values of its trainable parameters are passed with each call, and only their
    /// shapes are read here.
    head: OwnedHead,
    targets: Array,
    chunk: i32,
}

impl Slices {
    fn new(hidden: &Array, targets: &Array, head: &Head<'_>, chunk: i32) -> Result<Self> {
        if chunk < 1 {
            let message = format!("a chunk of the vocabulary must be at least 1, given {chunk}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let rows = hidden.shape().split_last().map(|(_, rows)| rows);
        if rows != Some(targets.shape()) {
            let message = format!(
                "hidden {:?} and targets {:?} must have the same rows",
                hidden.shape(),
                targets.shape()
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(Self {
            head: head.owned()?,
            targets: targets.astype(DType::I32)?,
            chunk,
        })
    }

    fn ranges(&self) -> impl Iterator<Item = (i32, i32)> + use<> {
        let (vocab, chunk) = (self.head.vocab(), self.chunk);
        let starts = (0..vocab).step_by(chunk as usize);
        starts.map(move |from| (from, vocab.min(from.saturating_add(chunk))))
    }

    /// The logit of each target that is among the tokens `from .. to`; 0 for other targets.
    fn picked(targets: &Array, logits: &Array, from: i32, to: i32) -> Result<Array> {
        let at = targets.subtract(from)?;
        let inside = at.greater_equal(0)?.logical_and(at.less(to - from)?)?;
        let at = at.clip(0, to - from - 1)?.expand_dims(-1)?;
        inside.select(logits.take_along_axis(&at, -1)?.squeeze(-1)?, 0.0)
    }

    /// Folds the slices of the logits, from the first to the last, into one value.
    fn fold<T>(
        &self,
        head: &OwnedHead,
        hidden: &Array,
        mut add: impl FnMut(Option<T>, &Array, i32, i32) -> Result<T>,
        arrays: impl Fn(&T) -> Vec<&Array>,
    ) -> Result<T> {
        let mut hidden = hidden.clone();
        let mut known = None;
        for (from, to) in self.ranges() {
            let logits = head.slice(from, to)?.forward(&hidden)?;
            let next = add(known, &logits.astype(DType::F32)?, from, to)?;
            // The next slice depends on this one, so that it starts when this one is finished.
            hidden = after(&hidden, &arrays(&next))?;
            known = Some(next);
        }
        known.ok_or_else(|| Error::new(ErrorKind::Shape, "the vocabulary is empty"))
    }

    /// The log of the sum of exponentials, and the target's logit, with one more slice.
    fn add(
        &self,
        known: Option<(Array, Array)>,
        logits: &Array,
        from: i32,
        to: i32,
    ) -> Result<(Array, Array)> {
        let lse = fast::logsumexp(logits)?;
        // The indices of a slice are computed together with the slice, not all at the beginning.
        let targets = match &known {
            Some((lse, _)) => after(&self.targets, &[lse])?,
            None => self.targets.clone(),
        };
        let picked = Self::picked(&targets, logits, from, to)?;
        match known {
            None => Ok((lse, picked)),
            Some((a, b)) => Ok((a.logaddexp(&lse)?, b.add(&picked)?)),
        }
    }

    /// The losses, and the logs of the sums of exponentials.
    fn forward(&self, primals: &[Array]) -> Result<Vec<Array>> {
        let head = self.head.with(&primals[1..])?;
        let (lse, picked) = self.fold(
            &head,
            &primals[0],
            |known, logits, from, to| self.add(known, logits, from, to),
            |(lse, picked)| vec![lse, picked],
        )?;
        Ok(vec![lse.subtract(picked)?, lse])
    }

    /// The losses, and whether each target is the likeliest token.
    fn judged(&self, hidden: &Array) -> Result<(Array, Array)> {
        struct Known {
            sums: (Array, Array),
            best: Array,
            token: Array,
        }
        let known = self.fold(
            &self.head,
            hidden,
            |known: Option<Known>, logits, from, to| {
                let token = fast::argmax(logits)?;
                let best = logits.take_along_axis(&token.expand_dims(-1)?, -1)?;
                let best = best.squeeze(-1)?;
                let token = token.astype(DType::I32)?.add(from)?;
                let Some(known) = known else {
                    let sums = self.add(None, logits, from, to)?;
                    return Ok(Known { sums, best, token });
                };
                let better = best.greater(&known.best)?;
                Ok(Known {
                    sums: self.add(Some(known.sums), logits, from, to)?,
                    best: better.select(best, known.best)?,
                    token: better.select(token, known.token)?,
                })
            },
            |known| vec![&known.sums.0, &known.sums.1, &known.best, &known.token],
        )?;
        let (lse, picked) = known.sums;
        Ok((lse.subtract(picked)?, known.token.equal(&self.targets)?))
    }

    fn backward(&self, primals: &[Array], cotangent: &Array, lse: &Array) -> Result<Vec<Array>> {
        let head = self.head.with(&primals[1..])?;
        let (names, _) = head.trainable()?;
        let mut hidden = primals[0].clone();
        let mut of_hidden = zeros(hidden.shape(), DType::F32)?;
        let mut parts: Vec<Vec<Array>> = vec![Vec::new(); names.len()];
        for (from, to) in self.ranges() {
            let part = head.slice(from, to)?;
            let (_, params) = part.trainable()?;
            let inputs = [vec![hidden.clone()], params].concat();
            let all: Vec<usize> = (0..inputs.len()).collect();
            let targets = after(&self.targets, &[&hidden])?;
            // If the sum is held constant, the derivative of `exp(logit - lse)` is the probability.
            let (_, grads) = value_and_grad_with(
                |inputs| {
                    let logits = part.with(&inputs[1..])?.forward(&inputs[0])?;
                    let logits = logits.astype(DType::F32)?;
                    // The targets' logits are picked first, so that the difference can reuse the
                    // memory of the logits.
                    let picked = Self::picked(&targets, &logits, from, to)?;
                    let logits = after(&logits, &[&picked])?;
                    let shares = logits.subtract(lse.expand_dims(-1)?)?.exp()?;
                    let losses = shares.sum(-1, false)?.subtract(picked)?;
                    Ok(vec![losses.multiply(cotangent)?.sum(.., false)?])
                },
                &inputs,
                &all,
            )?;
            let mut grads = grads.into_iter();
            let of_part = grads
                .next()
                .ok_or_else(|| Error::new(ErrorKind::Mlx, "value_and_grad returned no arrays"))?;
            of_hidden = of_hidden.add(of_part.astype(DType::F32)?)?;
            let mut done = vec![of_hidden.clone()];
            for ((name, parts), grad) in names.iter().zip(&mut parts).zip(grads) {
                match (head.axis_of(name), parts.pop()) {
                    (None, Some(sum)) => parts.push(sum.add(grad.astype(DType::F32)?)?),
                    (None, None) => parts.push(grad.astype(DType::F32)?),
                    (Some(_), last) => parts.extend(last.into_iter().chain([grad])),
                }
                done.extend(parts.last().cloned());
            }
            hidden = after(&hidden, &done.iter().collect::<Vec<_>>())?;
        }
        let mut grads = vec![of_hidden.astype(primals[0].dtype())?];
        for ((name, parts), primal) in names.iter().zip(parts).zip(&primals[1..]) {
            let grad = concat(&parts, head.axis_of(name).unwrap_or(0))?;
            grads.push(grad.astype(primal.dtype())?);
        }
        Ok(grads)
    }
}

fn after(array: &Array, done: &[&Array]) -> Result<Array> {
    let mut arrays = depends(std::slice::from_ref(array), done)?;
    arrays
        .pop()
        .ok_or_else(|| Error::new(ErrorKind::Mlx, "depends returned no arrays"))
}

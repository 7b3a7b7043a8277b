//! A model on several ranks (tensor parallelism, Shoeybi et al., arXiv:1909.08053): each rank holds some
//! of the heads of attention and recurrence, some of the features inside MLPs and experts, and some of
//! the vocabulary.
//!
//! [`shard`] walks a module and cuts the layers that it knows, whatever model they are in. The first
//! projections of a layer lose rows, the last one loses columns, and its output is summed over the
//! ranks. All else is the same on every rank. A checkpoint that is [read](crate::fill_lazily) afterwards
//! has the whole arrays, of which a rank reads its parts.
//!
//! | layer | divided by | sums |
//! |---|---|---|
//! | [`Attention`](crate::Attention), [`LatentAttention`](crate::LatentAttention), [`FusedAttention`](crate::FusedAttention) | heads | 1 |
//! | [`CompressedAttention`](crate::CompressedAttention) | groups of heads | 1 |
//! | [`GatedMlp`](crate::GatedMlp), [`PlainMlp`](crate::PlainMlp), [`FusedMlp`](crate::FusedMlp) | features inside | 1, and 2 of a cutoff |
//! | [`ExpertsMlp`](crate::ExpertsMlp), [`StackedExperts`](crate::StackedExperts) | features inside each expert, or experts | 1, and 1 of the shared expert |
//! | [`GatedDeltaNet`](crate::GatedDeltaNet), [`ChannelDelta`](crate::ChannelDelta) | heads | 1 |
//! | [`Mamba`](crate::Mamba), [`Lightning`](crate::Lightning) | heads | 1, and 1 of a norm over all heads |
//! | [`ProjectedScan`](crate::ProjectedScan) | heads | 2 |
//! | [`SelectiveScan`](crate::SelectiveScan) | features | 2 |
//! | [`Rwkv7`](crate::Rwkv7) | heads | 1 |
//! | [`ShortConv`](crate::ShortConv) | features | 1 |
//! | `lm_head`, or the embedding that is tied to it | tokens | 1 gather, and 1 of the tied lookup |
//!
//! Keys and values with fewer heads than ranks are held by several ranks. A norm over the features of
//! all heads sums the squares over the ranks.
//!
//! A layer refers to the [`Group`] of its thread, because a group belongs to a thread: [`join`] makes it
//! known.

use std::cell::RefCell;
use std::ops::Range;

use mlx_core::distributed::{self, Group};
use mlx_core::ops::concat;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

mod cut;
mod plan;

pub(crate) use cut::Cut;
pub(crate) use plan::{Heads, Shard};
pub use plan::{Sharded, shard};

/// The place of this process among those that share a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    rank: i32,
    size: i32,
}

impl Default for Ranks {
    fn default() -> Self {
        Self::ALONE
    }
}

thread_local! {
    static GROUP: RefCell<Option<Group>> = const { RefCell::new(None) };
}

/// Makes `group` the one that the layers use on this thread, and returns this process's place in it.
///
/// ```
/// use mlx_core::distributed::{Backend, init};
///
/// # fn main() -> mlx_core::Result<()> {
/// let ranks = mlx_nn::shard::join(init(false, Backend::Any)?);
/// assert!(ranks.rank() < ranks.size());
/// # Ok(())
/// # }
/// ```
pub fn join(group: Group) -> Ranks {
    let ranks = Ranks::of(&group);
    GROUP.set(Some(group));
    ranks
}

/// Calls `f` with the group that this thread has [joined](join).
///
/// # Errors
/// It has joined none. The errors of `f`.
pub fn with_group<R>(f: impl FnOnce(&Group) -> Result<R>) -> Result<R> {
    GROUP.with_borrow(|group| match group {
        Some(group) => f(group),
        None => {
            let message = "this thread has joined no group of ranks (mlx_nn::shard::join)";
            Err(Error::new(ErrorKind::Invalid, message))
        }
    })
}

impl Ranks {
    /// The place of this process in a group.
    pub fn of(group: &Group) -> Self {
        Self {
            rank: group.rank() as i32,
            size: group.size() as i32,
        }
    }

    /// Process `rank` of `size`.
    ///
    /// # Errors
    /// There is no such process.
    pub fn new(rank: usize, size: usize) -> Result<Self> {
        match (i32::try_from(rank), i32::try_from(size)) {
            (Ok(rank), Ok(size)) if rank < size => Ok(Self { rank, size }),
            _ => {
                let message = format!("there is no rank {rank} of {size}");
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// A process alone.
    pub const ALONE: Self = Self { rank: 0, size: 1 };

    /// The number of this process, from 0 to `size() - 1`.
    pub fn rank(self) -> usize {
        self.rank as usize
    }

    /// The number of processes.
    pub fn size(self) -> usize {
        self.size as usize
    }

    /// Whether this is the first rank.
    pub(crate) fn is_first(self) -> bool {
        self.rank == 0
    }

    /// This rank's share of `n` things: as many as the others have, or one more.
    pub(crate) fn share(self, n: i32) -> Range<i32> {
        let until = |rank: i32| (i64::from(n) * i64::from(rank) / i64::from(self.size)) as i32;
        until(self.rank)..until(self.rank + 1)
    }

    /// This rank's share of `n` features, in blocks of `unit` of them. If they do not divide into blocks, or into fewer
    /// than there are ranks, in single features.
    pub(crate) fn share_of_blocks(self, n: i32, unit: i32) -> Range<i32> {
        let has_blocks = n % unit == 0 && n / unit >= self.size;
        let unit = if has_blocks { unit } else { 1 };
        let Range { start, end } = self.share(n / unit);
        start * unit..end * unit
    }

    /// The shared things, of `few`, that the rank's share of `many` needs: each of `few` serves the same number of
    /// successive things. If there are more ranks than of `few`, several ranks have the same one.
    pub(crate) fn share_of_few(self, few: i32) -> Range<i32> {
        if few % self.size == 0 {
            return self.share(few);
        }
        let own = self.rank * few / self.size;
        own..own + 1
    }

    /// The number of ranks that have the same one of `few`.
    pub(crate) fn copies_of_few(self, few: i32) -> i32 {
        if few % self.size == 0 {
            1
        } else {
            self.size / few
        }
    }

    /// The group of this thread, if it is that of these ranks.
    fn with<R>(self, f: impl FnOnce(&Group) -> Result<R>) -> Result<R> {
        with_group(|group| {
            let here = Self::of(group);
            if here != self {
                let message = format!(
                    "the layer is that of rank {} of {}, and this thread is rank {} of {}",
                    self.rank, self.size, here.rank, here.size
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            f(group)
        })
    }

    /// The sum of the ranks' `x`.
    pub(crate) fn sum(self, x: &Array) -> Result<Array> {
        self.with(|group| distributed::all_sum(x, group))
    }

    /// The largest of the ranks' elements.
    pub(crate) fn largest(self, x: &Array) -> Result<Array> {
        self.with(|group| distributed::all_max(x, group))
    }

    /// The ranks' last axes, joined: `[.., n] -> [.., size * n]`
    pub(crate) fn gather(self, x: &Array) -> Result<Array> {
        let mut shape = x.shape().to_vec();
        let last = shape.last().copied().unwrap_or(1);
        let flat = x.reshape(&[-1, last])?;
        let all = self.with(|group| distributed::all_gather(&flat, group))?;
        let by_rank = all.reshape(&[self.size, -1, last])?.swapaxes(0, 1)?;
        if let Some(n) = shape.last_mut() {
            *n *= self.size;
        }
        by_rank.reshape(&shape)
    }
}

/// What a linear layer or an embedding does with the other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RankJoin {
    /// Nothing: it has all inputs and all outputs that are wanted here.
    #[default]
    Alone,
    /// It has some of the inputs. The outputs are summed.
    Inputs(Ranks),
    /// It has some of the outputs, all of which are wanted.
    Outputs(Ranks),
}

/// Features that are spread over ranks, for reductions over all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub ranks: Ranks,
    /// The features of all ranks, each counted once.
    pub whole: i32,
    /// The number of ranks that have the same features.
    pub copies: i32,
}

impl Spread {
    /// `x / rms(all ranks' x) * scale`, in F32 inside.
    pub(crate) fn rms_norm(self, x: &Array, scale: &Array, eps: f32) -> Result<Array> {
        let wide = x.astype(DType::F32)?;
        let squares = self.ranks.sum(&wide.square()?.sum(-1, true)?)?;
        let mean = squares.divide((self.whole * self.copies) as f32)?;
        let normed = wide.multiply(mean.add(eps)?.rsqrt()?)?;
        normed.astype(x.dtype())?.multiply(scale)
    }

    /// The mean and the standard deviation of all ranks' `x` along the last axis, which stays with length 1.
    pub(crate) fn moments(self, x: &Array) -> Result<[Array; 2]> {
        let mean = |x: &Array| -> Result<Array> {
            let sum = self.ranks.sum(&x.sum(-1, true)?)?;
            sum.divide((self.whole * self.copies) as f32)
        };
        let wide = x.astype(DType::F32)?;
        let middle = mean(&wide)?;
        let variance = mean(&wide.subtract(&middle)?.square()?)?;
        Ok([
            middle.astype(x.dtype())?,
            variance.sqrt()?.astype(x.dtype())?,
        ])
    }
}

/// Ranges of the last axis, joined.
pub(crate) fn ranges(x: &Array, axis: usize, of: &[Range<i32>]) -> Result<Array> {
    let part = |range: &Range<i32>| x.slice_axis(axis as i32, range.start, range.end);
    match of {
        [range] => part(range)?.contiguous(),
        of => concat(
            &of.iter().map(part).collect::<Result<Vec<_>>>()?,
            axis as i32,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for size in 1..8 {
            for n in [1, 2, 5, 12, 96] {
                let all = (0..size).flat_map(|rank| Ranks { rank, size }.share(n));
                assert!(all.eq(0..n), "{n} over {size}");
                let blocks =
                    (0..size).flat_map(|rank| Ranks { rank, size }.share_of_blocks(n * 32, 32));
                assert!(blocks.eq(0..n * 32), "{n} blocks over {size}");
            }
        }
        let few = |rank, size, few| Ranks { rank, size }.share_of_few(few);
        assert_eq!(
            [0, 1, 2, 3].map(|rank| few(rank, 4, 2)),
            [0..1, 0..1, 1..2, 1..2]
        );
        assert_eq!([0, 1].map(|rank| few(rank, 2, 4)), [0..2, 2..4]);
        assert_eq!(Ranks { rank: 0, size: 4 }.copies_of_few(2), 2);
    }

    #[test]
    fn layers_of_other_ranks_and_threads_without_a_group_are_refused() {
        let x = Array::from_slice(&[1.0f32], &[1]).unwrap();
        let ranks = Ranks { rank: 1, size: 2 };
        let error = ranks.sum(&x).unwrap_err().to_string();
        assert!(error.contains("has joined no group"), "{error}");
        let alone = distributed::init(false, distributed::Backend::Ring).unwrap();
        assert_eq!(join(alone), Ranks::ALONE);
        let error = ranks.sum(&x).unwrap_err().to_string();
        assert!(
            error.contains("rank 1 of 2") && error.contains("rank 0 of 1"),
            "{error}"
        );
    }
}

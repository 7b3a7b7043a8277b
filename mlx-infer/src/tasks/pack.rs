//! Packs texts of different lengths into batches.

use crate::work_sizes::WorkSizes;

/// What may be in a batch. A text that is too long for it is a batch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchLimit {
    /// Most tokens.
    pub(super) tokens: usize,
    /// Most texts.
    pub(super) rows: usize,
    /// Whether each text counts as many tokens as the longest one. Some layers of decoders compute
    /// arrays with padding; encoders have none.
    pub(super) counts_padding: bool,
}

/// The sizes of texts that are computed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchSize {
    rows: usize,
    tokens: usize,
    longest: usize,
}

impl BatchSize {
    /// The size of texts of these lengths.
    pub(super) fn of(lens: impl IntoIterator<Item = usize>) -> Self {
        let plus_text = |size: Self, len: usize| {
            size.plus(Self {
                rows: 1,
                tokens: len,
                longest: len,
            })
        };
        lens.into_iter().fold(Self::default(), plus_text)
    }

    /// The size of both.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            tokens: self.tokens + other.tokens,
            longest: self.longest.max(other.longest),
        }
    }
}

impl BatchLimit {
    /// Whether these texts are one batch.
    pub(super) fn holds(&self, size: BatchSize) -> bool {
        let tokens = match self.counts_padding {
            true => size.rows * size.longest,
            false => size.tokens,
        };
        size.rows <= 1 || (size.rows <= self.rows && tokens <= self.tokens)
    }

    /// What may be in a batch of several calls. While rows wait for it, it has no more tokens than a
    /// chunk of a prompt.
    pub(super) fn of_calls(self, beside_rows: bool) -> Self {
        let most = match beside_rows {
            true => WorkSizes::of_device().chunk,
            false => usize::MAX,
        };
        Self {
            tokens: self.tokens.min(most),
            ..self
        }
    }

    /// The limit that holds no more than each of both.
    pub(super) fn least(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.min(other.tokens),
            rows: self.rows.min(other.rows),
            counts_padding: self.counts_padding || other.counts_padding,
        }
    }
}

/// Splits the indices of `lens` into batches.
///
/// The longest texts come first, so that a lack of memory shows at the start, and later batches reuse the buffers.
pub(super) fn pack(lens: &[usize], limit: BatchLimit) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lens.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(lens[at]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut size = BatchSize::default();
    for at in order {
        let text = BatchSize::of([lens[at]]);
        match batches.last_mut() {
            Some(batch) if limit.holds(size.plus(text)) => {
                size = size.plus(text);
                batch.push(at);
            }
            _ => {
                size = text;
                batches.push(vec![at]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn padded(tokens: usize, rows: usize) -> BatchLimit {
        BatchLimit {
            tokens,
            rows,
            counts_padding: true,
        }
    }

    #[test]
    fn neighbours_in_length_share_a_batch() {
        assert_eq!(
            pack(&[3, 9, 2, 8, 3], padded(16, 64)),
            [vec![1], vec![3, 0], vec![4, 2]]
        );
        assert_eq!(pack(&[3, 3, 3], padded(100, 2)), [vec![0, 1], vec![2]]);
        assert_eq!(pack(&[50, 1], padded(16, 64)), [vec![0], vec![1]]);
        assert!(pack(&[], padded(16, 64)).is_empty());
        let without = BatchLimit {
            counts_padding: false,
            ..padded(16, 64)
        };
        assert_eq!(pack(&[3, 9, 2, 8, 3], without), [vec![1], vec![3, 0, 4, 2]]);
    }

    proptest! {
        #[test]
        fn every_text_is_in_one_batch_that_fits(
            lens in prop::collection::vec(1..40usize, 0..60),
            tokens in 1..200usize,
            rows in 1..9usize,
            counts_padding: bool,
        ) {
            let limit = BatchLimit { tokens, rows, counts_padding };
            let batches = pack(&lens, limit);
            let mut all: Vec<usize> = batches.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lens.len()).collect::<Vec<_>>());
            for batch in batches {
                let longest = batch.iter().map(|&at| lens[at]).max().unwrap();
                let sum: usize = batch.iter().map(|&at| lens[at]).sum();
                let counted = if counts_padding { batch.len() * longest } else { sum };
                prop_assert!(batch.len() <= rows);
                prop_assert!(batch.len() == 1 || counted <= tokens);
                prop_assert!(limit.holds(BatchSize::of(batch.iter().map(|&at| lens[at]))));
            }
        }
    }
}

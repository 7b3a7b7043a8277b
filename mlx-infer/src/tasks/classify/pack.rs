//! Packs texts of different lengths into batches with little padding.

/// Splits the indices of `lens` into batches. The padded size of a batch, rows times the longest text, is at most
/// `tokens`, and it has at most `rows` rows. A text that is longer than `tokens` is a batch of its own.
///
/// The longest texts come first, so that a lack of memory shows at the start, and later batches reuse the buffers.
pub(in crate::tasks) fn pack(lens: &[usize], tokens: usize, rows: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lens.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(lens[at]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for at in order {
        match batches.last_mut() {
            Some(batch)
                if batch.len() < rows && (batch.len() + 1) * lens[batch[0]].max(1) <= tokens =>
            {
                batch.push(at);
            }
            _ => batches.push(vec![at]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_in_length_share_a_batch() {
        assert_eq!(
            pack(&[3, 9, 2, 8, 3], 16, 64),
            [vec![1], vec![3, 0], vec![4, 2]]
        );
        assert_eq!(pack(&[3, 3, 3], 100, 2), [vec![0, 1], vec![2]]);
        assert_eq!(pack(&[50, 1], 16, 64), [vec![0], vec![1]]);
        assert!(pack(&[], 16, 64).is_empty());
    }

    proptest! {
        #[test]
        fn every_text_is_in_one_batch_that_fits(
            lens in prop::collection::vec(1..40usize, 0..60),
            tokens in 1..200usize,
            rows in 1..9usize,
        ) {
            let batches = pack(&lens, tokens, rows);
            let mut all: Vec<usize> = batches.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lens.len()).collect::<Vec<_>>());
            for batch in batches {
                let longest = batch.iter().map(|&at| lens[at]).max().unwrap();
                prop_assert!(batch.len() <= rows);
                prop_assert!(batch.len() == 1 || batch.len() * longest <= tokens);
            }
        }
    }
}

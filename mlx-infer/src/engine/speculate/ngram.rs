//! Drafts from a row's own text.
//!
//! Prompt lookup decoding (Saxena 2023): the tokens that followed an earlier occurrence of the text's last tokens may
//! follow again.

use std::collections::HashMap;

/// The longest and the shortest run of last tokens that is searched.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;

/// The latest place at which each run of tokens ended.
#[derive(Debug, Default)]
pub(super) struct Ngrams {
    /// A run, padded with `u32::MAX` if it is short, and the place after it.
    places: HashMap<[u32; LONGEST], usize>,
    /// Tokens of the text that are in `places`.
    read: usize,
}

impl Ngrams {
    /// At most `most` tokens that may follow `ids`, which must extend the text of the last call. None if the end of
    /// `ids` has no earlier occurrence.
    pub(super) fn draft(&mut self, ids: &[u32], most: usize) -> Vec<u32> {
        // Runs at the end of the text are added by the next call, because the tokens after them are not known yet.
        for end in self.read.max(1)..ids.len() {
            for len in SHORTEST..=LONGEST.min(end) {
                self.places.insert(run(&ids[end - len..end]), end);
            }
        }
        self.read = self.read.max(ids.len());
        let found = (SHORTEST..=LONGEST.min(ids.len()))
            .rev()
            .find_map(|len| self.places.get(&run(&ids[ids.len() - len..])));
        let Some(&start) = found else {
            return Vec::new();
        };
        // If the earlier occurrence is near the end, the text repeats itself, and so does the
        // draft.
        let mut draft = Vec::with_capacity(most);
        for at in start..start + most {
            let token = ids.get(at).or_else(|| draft.get(at - ids.len()));
            draft.extend(token.copied());
        }
        draft
    }
}

fn run(ids: &[u32]) -> [u32; LONGEST] {
    let mut run = [u32::MAX; LONGEST];
    run[..ids.len()].copy_from_slice(ids);
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_drafted() {
        let mut ngrams = Ngrams::default();
        assert_eq!(ngrams.draft(&[1, 2, 3, 4, 5, 9, 2, 3], 3), [4, 5, 9]);
        // Of several occurrences, the latest one in the text.
        assert_eq!(ngrams.draft(&[1, 2, 3, 4, 5, 9, 2, 3, 7, 2, 3], 2), [7, 2]);
    }

    #[test]
    fn a_longer_run_goes_before_a_later_one() {
        let ids = [5, 1, 2, 3, 8, 6, 2, 3, 9, 5, 1, 2, 3];
        assert_eq!(Ngrams::default().draft(&ids, 1), [8]);
    }

    #[test]
    fn a_text_that_repeats_itself_is_continued() {
        assert_eq!(Ngrams::default().draft(&[1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn new_text_has_no_draft() {
        let mut ngrams = Ngrams::default();
        for ids in [&[][..], &[1], &[1, 2], &[1, 2, 3, 4, 5]] {
            assert!(ngrams.draft(ids, 4).is_empty(), "{ids:?}");
        }
        // Two tokens that have not occurred next to each other.
        assert!(ngrams.draft(&[1, 2, 3, 4, 5, 3, 2], 4).is_empty());
        assert!(ngrams.draft(&[1, 2, 3, 4, 5, 3, 2, 3], 0).is_empty());
    }

    #[test]
    fn drafts_do_not_depend_on_how_the_text_came() {
        let ids: Vec<u32> = (0..400u32).map(|at| at * at % 23 % 7).collect();
        let mut grown = Ngrams::default();
        for end in 1..=ids.len() {
            let drafted = grown.draft(&ids[..end], 5);
            assert_eq!(drafted, Ngrams::default().draft(&ids[..end], 5), "{end}");
        }
    }
}

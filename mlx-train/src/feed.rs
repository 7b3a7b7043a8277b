//! The order of examples and their division into batches: shuffled by a seed, resumable at any batch.

use serde::{Deserialize, Serialize};

use crate::batch::Example;

/// The number of batches whose examples are sorted by length together, so that a batch has little padding.
const WINDOW: usize = 16;

/// The position of a [`Feed`], which a checkpoint saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The number of complete rounds. A round reads every example once.
    pub epoch: u64,
    /// The number of batches of the current round that were read.
    pub batch: usize,
}

/// How examples are grouped into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedOptions {
    /// Rows of a batch.
    pub batch_size: usize,
    /// Instead of `batch_size`: rows of similar length, up to this many tokens with padding.
    pub batch_tokens: Option<usize>,
    /// Pack several documents into a row, up to this many tokens.
    pub pack: Option<usize>,
    /// The seed of the order.
    pub seed: u64,
}

/// The batches of a data set, round after round; each round reads every example once.
///
/// A whole round is planned from the seed and the round's number, so a [`Position`] is enough to continue.
#[derive(Clone, Debug)]
pub struct Feed {
    lengths: Vec<usize>,
    options: FeedOptions,
    position: Position,
    plan: Vec<Vec<Vec<usize>>>,
}

impl Feed {
    /// The beginning of the first round.
    pub fn new(examples: &[Example], options: FeedOptions) -> Self {
        let lengths = examples.iter().map(|example| example.tokens.len());
        let mut feed = Self {
            lengths: lengths.collect(),
            options,
            position: Position::default(),
            plan: Vec::new(),
        };
        feed.plan = feed.planned(0);
        feed
    }

    /// All examples once, in the order of the file, for evaluation.
    pub fn in_order(examples: &[Example], batch_size: usize) -> Vec<Vec<usize>> {
        let all: Vec<usize> = (0..examples.len()).collect();
        all.chunks(batch_size.max(1))
            .map(<[usize]>::to_vec)
            .collect()
    }

    /// The current position.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Continues at a position of a feed with the same examples and options.
    pub fn seek(&mut self, position: Position) {
        if position.epoch != self.position.epoch {
            self.plan = self.planned(position.epoch);
        }
        self.position = position;
    }

    /// The rows of the next batch, each a list of example indices. Empty only without examples.
    pub fn next_batch(&mut self) -> Vec<Vec<usize>> {
        if self.position.batch >= self.plan.len() {
            let epoch = self.position.epoch + 1;
            self.seek(Position { epoch, batch: 0 });
        }
        let batch = self.plan.get(self.position.batch).cloned();
        self.position.batch += 1;
        batch.unwrap_or_default()
    }

    fn planned(&self, epoch: u64) -> Vec<Vec<Vec<usize>>> {
        let mut numbers = Numbers::new(self.options.seed, epoch);
        let mut order: Vec<usize> = (0..self.lengths.len()).collect();
        numbers.shuffle(&mut order);
        let size = self.options.batch_size.max(1);
        let rows: Vec<Vec<usize>> = match self.options.pack {
            Some(limit) => self.packed(&order, limit),
            None if self.options.batch_tokens.is_some() => {
                order.sort_by_key(|&index| self.lengths[index]);
                order.into_iter().map(|index| vec![index]).collect()
            }
            None => {
                for window in order.chunks_mut(WINDOW.saturating_mul(size)) {
                    window.sort_by_key(|&index| self.lengths[index]);
                }
                order.into_iter().map(|index| vec![index]).collect()
            }
        };
        let mut batches: Vec<Vec<Vec<usize>>> = match self.options.batch_tokens {
            Some(tokens) => self.filled(rows, tokens),
            None => rows.chunks(size).map(<[_]>::to_vec).collect(),
        };
        numbers.shuffle(&mut batches);
        batches
    }

    /// Groups rows, in their order, into batches of at least `tokens` tokens.
    fn filled(&self, rows: Vec<Vec<usize>>, tokens: usize) -> Vec<Vec<Vec<usize>>> {
        let (mut batches, mut batch, mut width) = (Vec::new(), Vec::new(), 0);
        for row in rows {
            let places = row.iter().map(|&index| self.lengths[index]);
            let places = places.fold(0usize, usize::saturating_add);
            width = width.max(places);
            batch.push(row);
            if batch.len().saturating_mul(width) >= tokens {
                batches.push(std::mem::take(&mut batch));
                width = 0;
            }
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        batches
    }

    /// First fit: each example goes to the first open row with room for it.
    fn packed(&self, order: &[usize], limit: usize) -> Vec<Vec<usize>> {
        /// The number of rows that still accept examples; older rows are nearly full.
        const OPEN: usize = 64;

        let mut rows: Vec<(usize, Vec<usize>)> = Vec::new();
        for &index in order {
            // A document of n tokens fills n - 1 places.
            let length = self.lengths[index].saturating_sub(1);
            let open = rows.len().saturating_sub(OPEN);
            let room = rows[open..]
                .iter_mut()
                .find(|(used, _)| used.saturating_add(length) < limit);
            match room {
                Some((used, row)) => {
                    *used += length;
                    row.push(index);
                }
                None => rows.push((length, vec![index])),
            }
        }
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

/// SplitMix64 (Steele et al., OOPSLA 2014). It is implemented here because resuming needs the same numbers in every
/// version.
pub(crate) struct Numbers(u64);

impl Numbers {
    /// The generator of one of the streams of a seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut first = Self(seed);
        let mixed = first.next();
        Self(mixed ^ stream.wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fisher-Yates shuffle.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // The high half of the product. Its bias is at most items.len() / 2^64.
            let draw = (u128::from(self.next()) * (last as u128 + 1)) >> 64;
            items.swap(last, draw as usize);
        }
    }
}

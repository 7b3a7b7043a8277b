//! The prefixes of a model's files, as plain data.
//!
//! A file is a segment: it has the keys and values of positions from `start` on, and continues its
//! parent, the segment with the first `start` tokens. A chain of segments is a whole prefix.

use std::collections::{HashMap, HashSet};

use super::checksum::checksum;
use super::folder::FileName;
use crate::engine::prefix_tree::shared;

/// The longest chain. A prefix that would need a longer one is written whole.
const LONGEST_CHAIN: usize = 64;

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) name: FileName,
    /// Bytes of the file.
    pub(super) bytes: u64,
    /// The tokens of the whole prefix.
    pub(super) ids: Vec<u32>,
    /// The number of first tokens whose keys and values are in the parent and before it.
    pub(super) start: usize,
    /// The key of the parent, if `start` is not 0.
    pub(super) parent: Option<u64>,
    /// Whether positions are embedded as in texts beyond the original context.
    pub(super) is_long: bool,
    /// The largest number of positions that the row has ever had.
    pub(super) written: usize,
    /// The shorter lengths that recurrent layers have recorded.
    pub(super) recorded: Vec<usize>,
}

/// To which lengths a prefix of the model can be shortened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortening {
    /// The smallest window of a layer, if some layer has one.
    pub(super) window: Option<usize>,
    /// Slots of a window beyond its positions.
    pub(super) slack: usize,
    /// Whether a layer is recurrent, so that only recorded lengths are left.
    pub(super) is_recurrent: bool,
}

impl Shortening {
    /// The greatest length of at most `most` to which the prefix can be shortened.
    fn longest(&self, segment: &Segment, most: usize) -> usize {
        if most == segment.ids.len() {
            return most;
        }
        let ring = |&len: &usize| {
            let held = self.window.map_or(usize::MAX, |window| window + self.slack);
            segment.written <= held || segment.written <= len + self.slack + 1
        };
        let recorded = segment.recorded.iter().rev().copied();
        let mut lengths: Box<dyn Iterator<Item = usize>> = match self.is_recurrent {
            true => Box::new(recorded.filter(move |&len| len <= most)),
            false => Box::new(std::iter::once(most)),
        };
        lengths.find(ring).unwrap_or(0)
    }
}

/// A prefix that was found: the key of its last segment, and how many tokens can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundSegment {
    pub(super) key: u64,
    pub(super) len: usize,
}

/// The key of a prefix.
pub(super) fn key(ids: &[u32], is_long: bool) -> u64 {
    let ids = ids.iter().flat_map(|id| id.to_le_bytes());
    let bytes: Vec<u8> = ids.chain([u8::from(is_long)]).collect();
    checksum(&bytes)
}

/// All segments of a model.
#[derive(Debug, Default)]
pub(super) struct Index {
    segments: HashMap<u64, Segment>,
    /// Files that were found to be damaged or foreign.
    refused: HashSet<FileName>,
    shortening: Shortening,
}

impl Index {
    pub(super) fn new(shortening: Shortening) -> Self {
        Self {
            shortening,
            ..Self::default()
        }
    }

    /// The number of files, and their bytes.
    pub(super) fn sizes(&self) -> [usize; 2] {
        let bytes = self.segments.values().map(|segment| segment.bytes as usize);
        [self.segments.len(), bytes.sum()]
    }

    /// Whether the file is known, good or not.
    pub(super) fn knows(&self, name: FileName) -> bool {
        let is_known = |segment: &Segment| segment.name == name;
        self.refused.contains(&name) || self.segments.get(&name.key).is_some_and(is_known)
    }

    pub(super) fn insert(&mut self, segment: Segment) {
        self.refused.remove(&segment.name);
        self.segments.insert(segment.name.key, segment);
    }

    /// Forgets a file that is not there any more.
    pub(super) fn remove(&mut self, key: u64) {
        self.segments.remove(&key);
    }

    /// Forgets a file that cannot be used. Returns whether that is news.
    pub(super) fn refuse(&mut self, name: FileName) -> bool {
        if self
            .segments
            .get(&name.key)
            .is_some_and(|segment| segment.name == name)
        {
            self.segments.remove(&name.key);
        }
        self.refused.insert(name)
    }

    /// Forgets all files that are not among these.
    pub(super) fn keep(&mut self, names: &HashSet<FileName>) {
        self.segments
            .retain(|_, segment| names.contains(&segment.name));
        self.refused.retain(|name| names.contains(name));
    }

    /// The segments of a prefix, the first one first; `None` if one is missing.
    pub(super) fn chain(&self, key: u64) -> Option<Vec<&Segment>> {
        let mut segment = self.segments.get(&key)?;
        let mut chain = vec![segment];
        while let Some(parent) = segment.parent {
            let before = self.segments.get(&parent)?;
            let continues = before.ids.len() == segment.start
                && before.is_long == segment.is_long
                && segment.ids.starts_with(&before.ids);
            if !continues || chain.len() == LONGEST_CHAIN {
                return None;
            }
            chain.push(before);
            segment = before;
        }
        chain.reverse();
        (segment.start == 0).then_some(chain)
    }

    /// The prefix of which the most tokens, at most `most`, can be used for a text.
    pub(super) fn longest(&self, ids: &[u32], most: usize, is_long: bool) -> Option<FoundSegment> {
        let mut best: Option<(usize, std::cmp::Reverse<usize>, u64)> = None;
        for (&key, segment) in &self.segments {
            let same = shared(&segment.ids, ids).min(most);
            if segment.is_long != is_long || best.is_some_and(|(len, ..)| same < len) {
                continue;
            }
            let len = self.shortening.longest(segment, same);
            // Of two that serve equally, the shorter one is read sooner.
            let rank = (len, std::cmp::Reverse(segment.ids.len()), key);
            if len > 0 && best.is_none_or(|best| rank > best) && self.chain(key).is_some() {
                best = Some(rank);
            }
        }
        best.map(|(len, _, key)| FoundSegment { key, len })
    }

    /// The segment that a new one with these tokens continues: the longest whose tokens all are
    /// first tokens of it.
    pub(super) fn parent(&self, ids: &[u32], is_long: bool) -> Option<&Segment> {
        let fits = |segment: &&Segment| {
            segment.is_long == is_long
                && segment.ids.len() < ids.len()
                && ids.starts_with(&segment.ids)
        };
        let is_whole = |segment: &&Segment| {
            let chain = self.chain(segment.name.key);
            chain.is_some_and(|chain| chain.len() < LONGEST_CHAIN)
        };
        let fitting = self.segments.values().filter(fits).filter(is_whole);
        fitting.max_by_key(|segment| segment.ids.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment with the tokens `ids`, from `start` on.
    fn segment(ids: &[u32], start: usize) -> Segment {
        Segment {
            name: FileName {
                key: key(ids, false),
                sum: 1,
            },
            bytes: 10,
            ids: ids.to_vec(),
            start,
            parent: (start > 0).then(|| key(&ids[..start], false)),
            is_long: false,
            written: ids.len(),
            recorded: Vec::new(),
        }
    }

    fn ids(n: u32) -> Vec<u32> {
        (0..n).collect()
    }

    fn found(ids: &[u32], len: usize) -> Option<FoundSegment> {
        let key = key(ids, false);
        Some(FoundSegment { key, len })
    }

    #[test]
    fn chains_are_found_whole_or_not_at_all() {
        let mut index = Index::default();
        let all = ids(50);
        for (len, start) in [(20, 0), (35, 20), (50, 35)] {
            index.insert(segment(&all[..len], start));
        }
        assert_eq!(index.sizes(), [3, 30]);
        assert_eq!(index.longest(&all, 49, false), found(&all, 49));
        assert_eq!(index.longest(&all[..30], 29, false), found(&all[..35], 29));
        let other = [&all[..20], &[99, 98]].concat();
        assert_eq!(index.longest(&other, 21, false), found(&all[..20], 20));
        assert_eq!(index.longest(&all, 49, true), None);
        assert_eq!(index.longest(&[7, 8, 9], 2, false), None);
        let parent = |ids: &[u32]| index.parent(ids, false).map(|segment| segment.ids.len());
        assert_eq!(parent(&ids(60)), Some(50));
        assert_eq!(parent(&all), Some(35));
        assert_eq!(parent(&other), Some(20));
        assert_eq!(parent(&all[..20]), None);
        // Without the middle the end is of no use.
        index.remove(key(&all[..35], false));
        assert_eq!(index.longest(&all, 49, false), found(&all[..20], 20));
        assert_eq!(index.parent(&ids(60), false).unwrap().ids.len(), 20);
        assert!(index.refuse(segment(&all[..20], 0).name));
        assert!(!index.refuse(segment(&all[..20], 0).name));
        assert!(index.knows(segment(&all[..20], 0).name));
        assert_eq!(index.longest(&all, 49, false), None);
        index.keep(&HashSet::new());
        assert_eq!((index.sizes(), index.refused.len()), ([0, 0], 0));
    }

    #[test]
    fn windows_and_recurrent_layers_are_not_cut_anywhere() {
        let all = ids(50);
        let longest = |shortening, recorded: &[usize], most| {
            let mut index = Index::new(shortening);
            index.insert(Segment {
                recorded: recorded.to_vec(),
                ..segment(&all, 0)
            });
            let found = index.longest(&all, most, false);
            found.map_or(0, |found| found.len)
        };
        let ring = |window, slack| Shortening {
            window: Some(window),
            slack,
            is_recurrent: false,
        };
        assert_eq!(longest(ring(16, 0), &[], 40), 0);
        assert_eq!(longest(ring(16, 0), &[], 49), 49);
        assert_eq!(longest(ring(16, 4), &[], 45), 45);
        assert_eq!(longest(ring(16, 4), &[], 44), 0);
        assert_eq!(longest(ring(50, 0), &[], 40), 40);
        let recurrent = Shortening {
            is_recurrent: true,
            ..Shortening::default()
        };
        assert_eq!(longest(recurrent, &[], 49), 0);
        assert_eq!(longest(recurrent, &[12, 34], 49), 34);
        assert_eq!(longest(recurrent, &[12, 34], 33), 12);
        assert_eq!(longest(recurrent, &[12, 34], 50), 50);
    }

    #[test]
    fn keys_depend_on_tokens_and_embedding() {
        let keys = [
            key(&[1, 2], false),
            key(&[1, 2], true),
            key(&[2, 1], false),
            key(&[1, 2, 0], false),
            key(&[], false),
        ];
        let different: HashSet<u64> = keys.into();
        assert_eq!(different.len(), keys.len());
    }
}

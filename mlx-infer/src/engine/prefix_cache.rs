//! A store of prefixes, limited in bytes. The least recently used prefix is evicted first.
//!
//! The store knows token ids and sizes; the handles are opaque to it. Prefixes are sorted by their
//! ids, so the entries that share the most tokens with a text are its neighbours in that order.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::rc::Rc;

/// Handles by prefix.
pub(crate) struct PrefixStore<H> {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: BTreeMap<Rc<[u32]>, Entry<H>>,
    /// The prefixes in the order of their last use.
    order: BTreeMap<u64, Rc<[u32]>>,
}

struct Entry<H> {
    handle: H,
    bytes: usize,
    used: u64,
}

/// The result of a search.
pub(crate) struct Found<'s, H> {
    /// The handle with the longest usable prefix of the text, and the length of that prefix.
    pub(crate) best: Option<(&'s H, usize)>,
    /// The longest prefix that some entry shares with the text, usable or not.
    pub(crate) common: usize,
}

impl<H> PrefixStore<H> {
    /// An empty store with this limit in bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: 0,
            clock: 0,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// Whether the store is off: its limit is 0.
    pub(crate) fn is_off(&self) -> bool {
        self.limit == 0
    }

    /// The bytes of all handles.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops all entries.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
        self.bytes = 0;
    }

    /// Looks for the longest prefix of `ids` with at most `most` tokens. `usable` returns how many of the first tokens
    /// that an entry shares with `ids` its handle can be used for.
    pub(crate) fn find(
        &mut self,
        ids: &[u32],
        most: usize,
        usable: impl Fn(&H, usize) -> usize,
    ) -> Found<'_, H> {
        let mut common = 0;
        let mut best: Option<(Rc<[u32]>, usize)> = None;
        let behind = self.entries.range::<[u32], _>((Included(ids), Unbounded));
        let before = self.entries.range::<[u32], _>((Unbounded, Excluded(ids)));
        let mut look = |key: &Rc<[u32]>, entry: &Entry<H>| {
            let same = shared(key, ids).min(most);
            common = common.max(same);
            // Entries further away share no more tokens.
            let longest = best.as_ref().map_or(0, |&(_, len)| len);
            if same <= longest {
                return false;
            }
            let len = usable(&entry.handle, same);
            if len > longest {
                best = Some((key.clone(), len));
            }
            same > len
        };
        for (key, entry) in behind {
            if !look(key, entry) {
                break;
            }
        }
        for (key, entry) in before.rev() {
            if !look(key, entry) {
                break;
            }
        }
        let best = best.map(|(key, len)| {
            self.touch(&key);
            (&self.entries[&key].handle, len)
        });
        Found { best, common }
    }

    /// Whether the handle of an entry can be used for all of these ids. Such an entry then counts
    /// as used.
    pub(crate) fn covers(&mut self, ids: &[u32], serves: impl Fn(&H, usize) -> bool) -> bool {
        let usable = |handle: &H, same| if serves(handle, same) { same } else { 0 };
        matches!(self.find(ids, ids.len(), usable).best, Some((_, len)) if len == ids.len())
    }

    /// Stores a handle of this size for `ids`, and drops the entries that it makes redundant. A
    /// handle that is larger than the limit is not stored.
    pub(crate) fn insert(
        &mut self,
        ids: &[u32],
        handle: H,
        bytes: usize,
        serves: impl Fn(&H, usize) -> bool,
    ) {
        if bytes > self.limit {
            return;
        }
        self.remove(ids);
        let mut end = ids.len();
        while let Some((key, _)) = self
            .entries
            .range::<[u32], _>((Unbounded, Included(&ids[..end])))
            .next_back()
        {
            let (key, same) = (key.clone(), shared(key, ids));
            if same == key.len() && serves(&handle, same) {
                self.remove(&key);
            }
            // Prefixes of `ids` that sort before this key are shorter than the common prefix.
            match same {
                0 => break,
                _ if same == key.len() => end = same - 1,
                _ => end = same,
            }
        }
        while self.bytes + bytes > self.limit {
            let (_, oldest) = self.order.first_key_value().expect("bytes are of entries");
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
        let key: Rc<[u32]> = ids.into();
        self.bytes += bytes;
        self.clock += 1;
        let used = self.clock;
        self.order.insert(used, key.clone());
        let entry = Entry {
            handle,
            bytes,
            used,
        };
        self.entries.insert(key, entry);
    }

    fn touch(&mut self, key: &[u32]) {
        if let Some(entry) = self.entries.get_mut(key) {
            self.clock += 1;
            if let Some(key) = self.order.remove(&entry.used) {
                self.order.insert(self.clock, key);
            }
            entry.used = self.clock;
        }
    }

    fn remove(&mut self, key: &[u32]) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }
}

/// The length of the longest common prefix.
pub(crate) fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A handle that can be used for its whole text, and for the prefixes of `lengths`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Handle {
        len: usize,
        lengths: [bool; 8],
    }

    fn serves(handle: &Handle, len: usize) -> bool {
        len == handle.len || (len < handle.len && handle.lengths[len])
    }

    fn usable(handle: &Handle, most: usize) -> usize {
        (1..=most)
            .rev()
            .find(|&len| serves(handle, len))
            .unwrap_or(0)
    }

    #[derive(Clone, Debug)]
    enum Event {
        Insert(Vec<u32>, usize, [bool; 8]),
        Find(Vec<u32>, usize),
        Covers(Vec<u32>),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let ids = || prop::collection::vec(0..3u32, 1..7);
        let event = prop_oneof![
            3 => (ids(), 1..30usize, any::<[bool; 8]>()).prop_map(|(ids, bytes, cut)| Event::Insert(ids, bytes, cut)),
            2 => (ids(), 1..30usize, any::<bool>()).prop_map(|(ids, bytes, cut)| Event::Insert(ids, bytes, [cut; 8])),
            3 => (ids(), 0..8usize).prop_map(|(ids, most)| Event::Find(ids, most)),
            1 => ids().prop_map(Event::Covers),
        ];
        prop::collection::vec(event, 1..60)
    }

    /// The same as a list in the order of use, searched from end to end.
    #[derive(Default)]
    struct Plain(Vec<(Vec<u32>, Handle, usize)>);

    impl Plain {
        fn find(&mut self, ids: &[u32], most: usize) -> (usize, usize) {
            let (mut best, mut common) = (0, 0);
            for (key, handle, _) in &self.0 {
                let same = shared(key, ids).min(most);
                common = common.max(same);
                best = best.max(usable(handle, same));
            }
            (best, common)
        }

        fn touch(&mut self, key: &[u32]) {
            let at = self.0.iter().position(|(k, ..)| k == key).unwrap();
            let entry = self.0.remove(at);
            self.0.push(entry);
        }

        fn insert(&mut self, ids: &[u32], handle: Handle, bytes: usize, limit: usize) {
            if bytes > limit {
                return;
            }
            self.0.retain(|(key, ..)| {
                key != ids && !(ids.starts_with(key) && serves(&handle, key.len()))
            });
            while self.0.iter().map(|(.., bytes)| bytes).sum::<usize>() + bytes > limit {
                self.0.remove(0);
            }
            self.0.push((ids.to_vec(), handle, bytes));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_finds_what_a_search_of_everything_finds(events in events(), limit in 0..120usize) {
            let (mut store, mut plain) = (PrefixStore::new(limit), Plain::default());
            for event in events {
                match event {
                    Event::Insert(ids, bytes, lengths) => {
                        let handle = Handle { len: ids.len(), lengths };
                        store.insert(&ids, handle, bytes, serves);
                        plain.insert(&ids, handle, bytes, limit);
                    }
                    Event::Find(ids, most) => {
                        let found = store.find(&ids, most, usable);
                        let (best, common) = plain.find(&ids, most);
                        prop_assert_eq!(found.common, common);
                        prop_assert_eq!(found.best.map_or(0, |(_, len)| len), best);
                        if let Some((handle, len)) = found.best {
                            prop_assert!(serves(handle, len));
                        }
                        if best > 0 {
                            let used = store.order.last_key_value().unwrap().1.clone();
                            plain.touch(&used);
                        }
                    }
                    Event::Covers(ids) => {
                        let (best, _) = plain.find(&ids, ids.len());
                        prop_assert_eq!(store.covers(&ids, serves), best == ids.len());
                        if best > 0 {
                            let used = store.order.last_key_value().unwrap().1.clone();
                            plain.touch(&used);
                        }
                    }
                }
                let keys: Vec<&[u32]> = store.order.values().map(|key| &**key).collect();
                let expected: Vec<&[u32]> = plain.0.iter().map(|(key, ..)| &key[..]).collect();
                prop_assert_eq!(keys, expected);
                prop_assert_eq!(store.bytes(), plain.0.iter().map(|(.., bytes)| bytes).sum::<usize>());
                prop_assert!(store.bytes() <= limit && store.entries.len() == store.order.len());
            }
        }
    }
}

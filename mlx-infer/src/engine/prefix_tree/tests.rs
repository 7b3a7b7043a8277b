//! The tree against a list of pages by their tokens, searched from end to end.

use std::cell::Cell;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

const PAGE: usize = 4;

/// A page that may lack the keys and values of a window, and may be held by a row.
#[derive(Clone, Debug)]
struct Page {
    has_window: bool,
    is_held: Rc<Cell<bool>>,
}

impl NodePage for Page {
    fn covers(&self, other: &Self) -> bool {
        self.has_window || !other.has_window
    }

    fn adopt(&mut self, other: Self) {
        self.has_window |= other.has_window;
    }

    fn is_held(&self) -> bool {
        self.is_held.get()
    }
}

impl NodeStates for usize {
    fn nbytes(&self) -> usize {
        *self
    }
}

/// A prefix is usable if the page of its last token and the one before have their windows.
fn usable(windows: &[bool]) -> bool {
    windows.iter().rev().take(2).all(|has_window| *has_window)
}

#[derive(Clone, Debug)]
enum Event {
    /// The tokens of a prefix, whether each page has a window and is held, and lengths with states.
    Insert(Vec<u32>, [bool; 4], bool, [bool; 13]),
    Find(Vec<u32>, bool),
    /// Rows leave: their pages are no longer held.
    Leave,
    Evict,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let ids = || prop::collection::vec(0..2u32, 1..13);
    let insert = (
        ids(),
        any::<[bool; 4]>(),
        any::<bool>(),
        any::<[bool; 13]>(),
    );
    let event = prop_oneof![
        4 => insert.prop_map(|(ids, windows, held, states)| Event::Insert(ids, windows, held, states)),
        4 => (ids(), any::<bool>()).prop_map(|(ids, needs)| Event::Find(ids, needs)),
        1 => Just(Event::Leave),
        2 => Just(Event::Evict),
    ];
    prop::collection::vec(event, 1..60)
}

/// All pages, by the tokens up to their ends.
#[derive(Default)]
struct Plain(BTreeMap<Vec<u32>, Beside>);

struct Beside {
    page: Page,
    states: BTreeMap<usize, usize>,
}

impl Plain {
    /// The page that ends with `ids`, or that begins with its last page and covers it.
    fn place(&mut self, ids: &[u32], page: Page) -> Vec<u32> {
        let start = (ids.len() - 1) / PAGE * PAGE;
        if let Some(own) = self.0.get_mut(ids) {
            own.page.adopt(page);
            return ids.to_vec();
        }
        let mut longer = self.0.iter().filter(|(key, own)| {
            key.starts_with(ids) && key.len() <= start + PAGE && own.page.covers(&page)
        });
        if let Some((key, _)) = longer.next() {
            return key.clone();
        }
        let mut states = BTreeMap::new();
        for end in start + 1..ids.len() {
            let is_covered = |own: &Beside| page.covers(&own.page);
            if self.0.get(&ids[..end]).is_some_and(is_covered) {
                let gone = self.0.remove(&ids[..end]).unwrap();
                for (len, own) in gone.states {
                    states.entry(len).or_insert(own);
                }
            }
        }
        self.0.insert(ids.to_vec(), Beside { page, states });
        ids.to_vec()
    }

    /// The longest usable prefix, and the longest one.
    fn find(&self, ids: &[u32], needs_states: bool) -> (usize, usize) {
        let (mut best, mut common) = (0, 0);
        for (key, own) in &self.0 {
            let start = (key.len() - 1) / PAGE * PAGE;
            let same = shared(key, ids);
            common = common.max(same);
            let mut windows: Vec<bool> = (1..=start / PAGE)
                .filter_map(|n| self.0.get(&key[..n * PAGE]))
                .map(|above| above.page.has_window)
                .collect();
            assert_eq!(
                windows.len(),
                start / PAGE,
                "a page is there with those before it"
            );
            windows.push(own.page.has_window);
            for len in start + 1..=same {
                let has_states = own.states.contains_key(&len) || !needs_states;
                if has_states && usable(&windows) {
                    best = best.max(len);
                }
            }
        }
        (best, common)
    }
}

fn check(tree: &PrefixTree<Page, usize>, plain: &Plain) {
    let held = tree.nodes.iter().flatten();
    assert_eq!(
        held.filter(|node| node.above.is_some()).count(),
        plain.0.len()
    );
    let states = plain.0.values().flat_map(|own| own.states.values());
    assert_eq!(tree.state_bytes(), states.sum::<usize>());
    for (used, at) in &tree.leaves {
        let node = tree.node(*at);
        assert!(node.children.is_empty() && node.used == *used);
    }
}

/// The tokens up to the end of a node.
fn tokens(tree: &PrefixTree<Page, usize>, mut at: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    while let Some((parent, own)) = &tree.node(at).above {
        ids.splice(0..0, own.iter().copied());
        at = *parent;
    }
    ids
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_finds_what_a_search_of_everything_finds(events in events()) {
        let (mut tree, mut plain) = (PrefixTree::new(PAGE), Plain::default());
        let mut held: Vec<Rc<Cell<bool>>> = Vec::new();
        for event in events {
            match event {
                Event::Insert(ids, windows, is_held, states) => {
                    let is_held = Rc::new(Cell::new(is_held));
                    held.push(is_held.clone());
                    let page = |has_window| Page { has_window, is_held: is_held.clone() };
                    let numbers = 0..ids.len().div_ceil(PAGE);
                    let pages = numbers.clone().map(|number| page(windows[number])).collect();
                    let path = tree.insert(Root::default(), &ids, pages);
                    prop_assert_eq!(path.len(), numbers.len());
                    prop_assert!(tree.ends(&path, ids.len()));
                    for number in numbers {
                        let end = ids.len().min((number + 1) * PAGE);
                        let key = plain.place(&ids[..end], page(windows[number]));
                        prop_assert_eq!(&key, &tokens(&tree, path[number]));
                        for len in (number * PAGE + 1..=end).filter(|&len| states[len]) {
                            tree.set_states(&path, len, len);
                            let own = plain.0.get_mut(&key).unwrap();
                            own.states.insert(len, len);
                        }
                    }
                }
                Event::Find(ids, needs_states) => {
                    let found = tree.find(Root::default(), &ids, needs_states, |pages, _| {
                        let windows: Vec<bool> = pages.iter().map(|page| page.has_window).collect();
                        usable(&windows)
                    });
                    prop_assert_eq!((found.len, found.common), plain.find(&ids, needs_states));
                    prop_assert_eq!(found.path.len(), found.len.div_ceil(PAGE));
                    if let Some(&last) = found.path.last() {
                        prop_assert!(tokens(&tree, last).starts_with(&ids[..found.len]));
                    }
                    let other = Root {
                        is_long: true,
                        adapter: None,
                    };
                    prop_assert_eq!(tree.find(other, &ids, needs_states, |_, _| true), FoundPath::default());
                    tree.touch(&found.path);
                    if let (Some(&last), [_, ..]) = (found.path.last(), &found.path[..]) {
                        // It is the last that goes.
                        let newest = tree.leaves.last().map(|leaf| leaf.1);
                        let is_leaf = tree.node(last).children.is_empty();
                        prop_assert!(!is_leaf || newest == Some(last));
                    }
                }
                Event::Leave => held.iter().for_each(|is_held| is_held.set(false)),
                Event::Evict => {
                    let frees = |at: &usize| {
                        let node = tree.node(*at);
                        let is_held = node.page.as_ref().unwrap().is_held();
                        !is_held || !node.states.is_empty()
                    };
                    let leaves = tree.leaves.iter().map(|leaf| leaf.1);
                    let expected = leaves.filter(frees).min_by_key(|&at| tree.node(at).used);
                    let ids = expected.map(|at| tokens(&tree, at));
                    prop_assert_eq!(tree.evict(), ids.is_some());
                    if let Some(ids) = ids {
                        prop_assert!(plain.0.remove(&ids).is_some());
                    }
                }
            }
            check(&tree, &plain);
        }
        held.iter().for_each(|is_held| is_held.set(false));
        while tree.evict() {}
        prop_assert!(tree.nodes.iter().all(Option::is_none) && tree.roots.is_empty());
        prop_assert_eq!(tree.state_bytes(), 0);
    }
}

//! A tree of prefixes by token ids. A node is a page: it continues the tokens of its parent by one page
//! of ids, or by fewer, and then has no children. Prefixes that begin alike share nodes.
//!
//! The least recently used leaf goes first, so a prefix is shortened page by page. A leaf of which rows
//! hold all pages stays: dropping it would free nothing. The tree knows token ids; pages and recurrent
//! states are opaque to it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::rc::Rc;

use crate::model::adapters::AdapterKey;

/// The root of a tree: prefixes under different roots share nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Root {
    /// Whether positions are embedded as those of a long text.
    pub(crate) is_long: bool,
    pub(crate) adapter: Option<AdapterKey>,
}

/// The keys and values of a page of tokens.
pub(crate) trait NodePage {
    /// Whether it holds at least what `other` holds, a page that begins with the same tokens.
    fn covers(&self, other: &Self) -> bool;
    /// Takes what `other`, a page of the same tokens, holds beyond it.
    fn adopt(&mut self, other: Self);
    /// Whether dropping it would free nothing.
    fn is_held(&self) -> bool;
}

/// The recurrent states at a length.
pub(crate) trait NodeStates {
    fn nbytes(&self) -> usize;
}

/// Prefixes as a tree.
pub(crate) struct PrefixTree<P, S> {
    /// Token ids of a whole page.
    page: usize,
    nodes: Vec<Option<Node<P, S>>>,
    unused: Vec<usize>,
    roots: BTreeMap<Root, usize>,
    /// The nodes without children, in the order of their last use.
    leaves: BTreeSet<(u64, usize)>,
    clock: u64,
    state_bytes: usize,
}

struct Node<P, S> {
    /// The parent and the node's ids; none for a root.
    above: Option<(usize, Rc<[u32]>)>,
    page: Option<P>,
    /// Recurrent states at lengths within the page.
    states: BTreeMap<usize, S>,
    /// Lengths at which prefixes end that were inserted.
    ends: BTreeSet<usize>,
    children: BTreeMap<Rc<[u32]>, usize>,
    used: u64,
}

/// The result of a search.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundPath {
    /// The nodes of the longest usable prefix, from the root on.
    pub(crate) path: Vec<usize>,
    /// The length of that prefix.
    pub(crate) len: usize,
    /// The longest prefix that the tree has, usable or not.
    pub(crate) common: usize,
}

impl<P: NodePage, S: NodeStates> PrefixTree<P, S> {
    /// An empty tree of pages of `page` tokens.
    pub(crate) fn new(page: usize) -> Self {
        Self {
            page,
            nodes: Vec::new(),
            unused: Vec::new(),
            roots: BTreeMap::new(),
            leaves: BTreeSet::new(),
            clock: 0,
            state_bytes: 0,
        }
    }

    /// Bytes of all recurrent states.
    pub(crate) fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.page);
    }

    fn node(&self, at: usize) -> &Node<P, S> {
        self.nodes[at].as_ref().expect("a node of the tree")
    }

    fn node_mut(&mut self, at: usize) -> &mut Node<P, S> {
        self.nodes[at].as_mut().expect("a node of the tree")
    }

    /// The pages of a path.
    pub(crate) fn pages(&self, path: &[usize]) -> Vec<&P> {
        let pages = path.iter().map(|&at| self.node(at).page.as_ref());
        pages.map(|page| page.expect("it is no root")).collect()
    }

    /// The recurrent states of a path at lengths of at most `len`.
    pub(crate) fn states(&self, path: &[usize], len: usize) -> Vec<(usize, &S)> {
        let nodes = path.iter().map(|&at| self.node(at));
        let states = nodes.flat_map(|node| node.states.range(..=len));
        states.map(|(&len, states)| (len, states)).collect()
    }

    /// Whether a prefix was inserted that ends on a path at this length.
    pub(crate) fn ends(&self, path: &[usize], len: usize) -> bool {
        let last = path.last().map(|&at| self.node(at));
        last.is_some_and(|node| node.ends.contains(&len))
    }

    /// Looks for the longest prefix of `ids` for which `usable` holds, given its pages and its length.
    /// With `needs_states` only lengths with recurrent states are usable.
    pub(crate) fn find(
        &self,
        root: Root,
        ids: &[u32],
        needs_states: bool,
        usable: impl Fn(&[&P], usize) -> bool,
    ) -> FoundPath {
        let Some(&root) = self.roots.get(&root) else {
            return FoundPath::default();
        };
        let (mut path, mut at) = (Vec::new(), root);
        let mut rest = ids;
        while let Some((page, after)) = rest.split_at_checked(self.page)
            && let Some(&child) = self.node(at).children.get(page)
        {
            path.push(child);
            (at, rest) = (child, after);
        }
        let longest = |path: &[usize], most: usize| {
            let fits = |&len: &usize| usable(&self.pages(path), len);
            let least = (path.len() - 1) * self.page + 1;
            match needs_states {
                false => Some(most).filter(fits),
                true => {
                    let last = self.node(path[path.len() - 1]);
                    let lengths = last.states.range(least..=most);
                    lengths.rev().map(|(&len, _)| len).find(fits)
                }
            }
        };
        // Pages that share ids with the rest, and if none is usable, those of one page less.
        let (mut common, mut best) = (0, None);
        loop {
            let start = path.len() * self.page;
            let rest = &ids[start..ids.len().min(start + self.page)];
            let above = path.last().copied().unwrap_or(root);
            let mut look = |(own, &child): (&Rc<[u32]>, &usize)| {
                let most = start + shared(own, rest);
                common = common.max(most);
                let so_far = best.as_ref().map_or(start, |&(_, len)| len);
                // Children further away share no more ids.
                if most <= so_far {
                    return false;
                }
                path.push(child);
                if let Some(len) = longest(&path, most).filter(|&len| len > so_far) {
                    best = Some((path.clone(), len));
                }
                path.pop();
                true
            };
            let children = &self.node(above).children;
            let mut behind = children.range::<[u32], _>((Included(rest), Unbounded));
            let before = children.range::<[u32], _>((Unbounded, Excluded(rest)));
            let _ = behind.all(&mut look);
            let _ = before.rev().all(&mut look);
            common = common.max(start);
            if best.is_some() || path.pop().is_none() {
                break;
            }
        }
        let (path, len) = best.unwrap_or_default();
        FoundPath { path, len, common }
    }

    /// Marks the nodes of a path as used.
    pub(crate) fn touch(&mut self, path: &[usize]) {
        for &at in path {
            self.clock += 1;
            let used = self.clock;
            let node = self.node_mut(at);
            let before = std::mem::replace(&mut node.used, used);
            if self.leaves.remove(&(before, at)) {
                self.leaves.insert((used, at));
            }
        }
    }

    /// Inserts the pages of a prefix, those with the numbers 0 and up. Nodes that are there take what
    /// the new pages hold beyond theirs. Returns the path.
    pub(crate) fn insert(&mut self, root: Root, ids: &[u32], pages: Vec<P>) -> Vec<usize> {
        let mut at = match self.roots.get(&root) {
            Some(&at) => at,
            None => {
                let at = self.add(None, None);
                self.roots.insert(root, at);
                at
            }
        };
        let mut path = Vec::new();
        let last = ids.len().div_ceil(self.page).saturating_sub(1);
        for (number, (own, page)) in ids.chunks(self.page).zip(pages).enumerate() {
            at = self.insert_below(at, own, page, number < last);
            path.push(at);
        }
        if let Some(&last) = path.last() {
            self.node_mut(last).ends.insert(ids.len());
        }
        self.touch(&path);
        path
    }

    /// Inserts a page of at least one id below a node, unless a node there covers it. `goes_on`: the
    /// prefix has more pages.
    fn insert_below(&mut self, parent: usize, ids: &[u32], page: P, goes_on: bool) -> usize {
        let children = &self.node(parent).children;
        if let Some(&child) = children.get(ids) {
            let node = self.node_mut(child);
            let was_last = !node.ends.is_empty();
            match &mut node.page {
                // A head that drafts had not read the last position of a prefix that ended here.
                Some(own) if goes_on && was_last && page.covers(own) => *own = page,
                Some(own) => own.adopt(page),
                None => {}
            }
            return child;
        }
        // A page that begins with the same ids and has more.
        let longer = children.range::<[u32], _>((Included(ids), Unbounded));
        let mut longer = longer.take_while(|(own, _)| own.starts_with(ids));
        let covers = |child: usize| {
            let own = self.node(child).page.as_ref();
            own.is_some_and(|own| own.covers(&page))
        };
        if let Some((_, &child)) = longer.find(|(_, child)| covers(**child)) {
            return child;
        }
        // Pages with fewer ids, which the new one makes redundant.
        let shorter: Vec<usize> = (1..ids.len())
            .filter_map(|n| children.get(&ids[..n]).copied())
            .filter(|&child| {
                let own = self.node(child).page.as_ref();
                own.is_some_and(|own| page.covers(own))
            })
            .collect();
        let new = self.add(Some((parent, ids.into())), Some(page));
        for child in shorter {
            if let Some(gone) = self.remove(child) {
                for (len, states) in gone.states {
                    self.set_node_states(new, len, states);
                }
                self.node_mut(new).ends.extend(gone.ends);
            }
        }
        new
    }

    /// Sets the recurrent states of a path at a length, unless it has some.
    pub(crate) fn set_states(&mut self, path: &[usize], len: usize, states: S) {
        let at = len.checked_sub(1).map(|last| last / self.page);
        if let Some(&at) = at.and_then(|at| path.get(at)) {
            self.set_node_states(at, len, states);
        }
    }

    fn set_node_states(&mut self, at: usize, len: usize, states: S) {
        let bytes = states.nbytes();
        if let Entry::Vacant(entry) = self.node_mut(at).states.entry(len) {
            entry.insert(states);
            self.state_bytes += bytes;
        }
    }

    /// Drops the least recently used leaf that frees memory. Returns whether there was one.
    pub(crate) fn evict(&mut self) -> bool {
        let frees = |&&(_, at): &&(u64, usize)| {
            let node = self.node(at);
            let is_held = node.page.as_ref().is_some_and(P::is_held);
            !is_held || !node.states.is_empty()
        };
        let found = self.leaves.iter().find(frees).map(|&(_, at)| at);
        found.is_some_and(|at| self.remove_up(at))
    }

    /// Removes a leaf, and its root if nothing is left in it. Returns `true`.
    fn remove_up(&mut self, at: usize) -> bool {
        let above = self.remove(at).and_then(|node| node.above);
        if let Some((parent, _)) = above
            && self.node(parent).above.is_none()
            && self.node(parent).children.is_empty()
        {
            self.roots.retain(|_, root| *root != parent);
            self.remove(parent);
        }
        true
    }

    fn add(&mut self, above: Option<(usize, Rc<[u32]>)>, page: Option<P>) -> usize {
        let at = self.unused.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        let used = self.clock;
        if let Some((parent, ids)) = &above {
            let parent_used = self.node(*parent).used;
            self.leaves.remove(&(parent_used, *parent));
            self.leaves.insert((used, at));
            let (parent, ids) = (*parent, ids.clone());
            self.node_mut(parent).children.insert(ids, at);
        }
        self.nodes[at] = Some(Node {
            above,
            page,
            states: BTreeMap::new(),
            ends: BTreeSet::new(),
            children: BTreeMap::new(),
            used,
        });
        at
    }

    /// Removes a node without children.
    fn remove(&mut self, at: usize) -> Option<Node<P, S>> {
        let node = self.nodes[at].take()?;
        self.unused.push(at);
        self.leaves.remove(&(node.used, at));
        self.state_bytes -= node.states.values().map(S::nbytes).sum::<usize>();
        if let Some((parent, ids)) = &node.above {
            let above = self.node_mut(*parent);
            above.children.remove(ids);
            let is_leaf = above.children.is_empty() && above.above.is_some();
            let used = above.used;
            if is_leaf {
                self.leaves.insert((used, *parent));
            }
        }
        Some(node)
    }
}

/// The length of the longest common prefix.
pub(crate) fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;

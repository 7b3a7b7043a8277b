//! Kept prefixes: pages of rows, and recurrent states at some of their lengths, that outlive the rows
//! and that later rows begin with.
//!
//! A kept page is counted like that of a row, so nothing changes the positions that it had when it was kept. A row may
//! write behind them. Which tokens the page belongs to is the business of its owner.

use std::collections::BTreeSet;
use std::rc::Rc;

use mlx_core::{Array, Result};

use super::pages::{KeptPage, PAGE};
use super::state::{LayerState, refusal};
use super::{LayerKind, ModelCache};

/// The pages with one number of a row, one in each group of layers: the keys and values of [`PAGE`]
/// consecutive positions. A layer with a window may lack it.
#[derive(Debug)]
pub struct PrefixPage {
    groups: Vec<Option<KeptPage>>,
}

/// The states of all recurrent layers at one length of a row.
#[derive(Clone, Debug)]
pub struct PrefixStates {
    /// The number of a layer, and its arrays, `[1, …]`.
    layers: Vec<(usize, Rc<[Array]>)>,
}

/// Pages of rows, in each group of layers, to which no layer will write again.
#[derive(Clone, Debug, Default)]
pub struct WholePages {
    groups: Vec<BTreeSet<u32>>,
}

/// The pages of a group of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageUse {
    /// Pages that rows hold, those that several rows hold counted once.
    pub by_rows: usize,
    /// Those of them that several rows hold.
    pub shared: usize,
    /// Pages that only kept prefixes hold.
    pub by_prefixes: usize,
    /// Bytes of a page in all layers of the group; 0 before the first write.
    pub page_bytes: usize,
}

impl PrefixPage {
    /// Whether it holds at least the positions that `other` holds, in every group.
    pub fn covers(&self, other: &Self) -> bool {
        let mut groups = self.groups.iter().zip(&other.groups);
        groups.all(|(own, other)| match (own, other) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(other)) => own.from() <= other.from(),
        })
    }

    /// Takes the pages of `other`, which belongs to the same tokens, where they hold more positions.
    pub fn adopt(&mut self, other: Self) {
        for (own, other) in self.groups.iter_mut().zip(other.groups) {
            if let Some(other) = other
                && own.as_ref().is_none_or(|own| other.from() < own.from())
            {
                *own = Some(other);
            }
        }
    }

    /// Whether rows hold all of its pages, and there is one, so that dropping it would free nothing.
    pub fn is_held(&self) -> bool {
        let mut pages = self.groups.iter().flatten().peekable();
        pages.peek().is_some() && !pages.any(KeptPage::is_idle)
    }

    /// Bytes of its pages, given those of [`ModelCache::page_use`].
    pub fn nbytes(&self, groups: &[PageUse]) -> usize {
        let pages = self.groups.iter().zip(groups);
        pages
            .filter_map(|(page, group)| page.as_ref().map(|_| group.page_bytes))
            .sum()
    }
}

impl PrefixStates {
    /// The arrays, layer by layer.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(|(_, arrays)| arrays.iter())
    }

    /// Bytes of the arrays.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }
}

impl ModelCache {
    /// Keeps page number `number` of row `row`, with the positions from `number * PAGE` on that the row
    /// holds.
    ///
    /// # Errors
    /// The row does not exist.
    pub fn keep_page(&self, row: usize, number: usize) -> Result<PrefixPage> {
        self.check_row(row)?;
        let groups = self.pages[row].iter();
        let groups = groups.map(|row| KeptPage::of(row, number)).collect();
        Ok(PrefixPage { groups })
    }

    /// The states of the recurrent layers at the first `len` positions of row `row`: copies of the present
    /// ones, or those that were [recorded](Self::record). `None` if a layer has neither. Nothing is
    /// evaluated.
    ///
    /// # Errors
    /// The row does not exist, or there is no memory for a handle.
    pub fn keep_states(&self, row: usize, len: usize) -> Result<Option<PrefixStates>> {
        self.check_row(row)?;
        let mut layers = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let LayerState::Recurrent(state) = layer else {
                continue;
            };
            match state.at(row, self.lens[row], len)? {
                Some(arrays) => layers.push((at, arrays)),
                None => return Ok(None),
            }
        }
        Ok(Some(PrefixStates { layers }))
    }

    /// Whether kept pages, those with the numbers 0 and up, hold all keys and values that tokens after
    /// the first `len` positions depend on.
    pub fn serve_prefix(&self, pages: &[&PrefixPage], len: usize) -> bool {
        let pool = self.pool.borrow();
        (0..pool.groups().len()).all(|group| self.needed(pages, group, len).is_some())
    }

    /// The pages of a group that tokens after the first `len` positions depend on, if all are kept.
    fn needed<'p>(
        &self,
        pages: &[&'p PrefixPage],
        group: usize,
        len: usize,
    ) -> Option<(usize, Vec<&'p KeptPage>)> {
        // A token at position `len` sees the `window - 1` positions before it.
        let window = self.pool.borrow().groups()[group].window;
        let begin = window.map_or(0, |window| (len + 1).saturating_sub(window).min(len));
        let first = begin / PAGE;
        let numbers = first..len.div_ceil(PAGE).max(first);
        let found: Option<Vec<&KeptPage>> = numbers
            .map(|number| pages.get(number)?.groups.get(group)?.as_ref())
            .collect();
        let found = found?;
        // Only the first page may lack its first positions.
        let lacks = |(at, page): (usize, &&KeptPage)| match at {
            0 => page.from() > begin - first * PAGE,
            _ => page.from() > 0,
        };
        let is_whole = !found.iter().enumerate().any(lacks);
        is_whole.then_some((first, found))
    }

    /// A cache of one row [beside](Self::beside) this one, which holds the first `len` positions in kept
    /// pages, those with the numbers 0 and up. `states` has the recurrent states at the length `len`, and
    /// may have those at shorter lengths, to which the row can then be shortened.
    ///
    /// # Errors
    /// The pages or states do not [serve](Self::serve_prefix) this length, or an evaluation has failed since
    /// they were kept.
    pub fn row_of(
        &self,
        pages: &[&PrefixPage],
        states: &[(usize, &PrefixStates)],
        len: usize,
    ) -> Result<Self> {
        let lost = || {
            refusal(format!(
                "the first {len} positions of a prefix are not kept"
            ))
        };
        let mut own = self.beside(1);
        let groups = own.pages[0].len();
        for group in 0..groups {
            let (first, kept) = self.needed(pages, group, len).ok_or_else(lost)?;
            let pool = own.pool.borrow();
            let of_pool = pool.groups()[group].pages();
            if !kept.iter().all(|page| page.is_of(of_pool)) {
                return Err(lost());
            }
            let row = KeptPage::row(of_pool, first, &kept);
            drop(pool);
            own.pages[0][group] = row;
        }
        for (at, layer) in own.layers.iter_mut().enumerate() {
            let Some(recurrent) = layer.recurrent() else {
                continue;
            };
            let mut is_there = false;
            for &(length, states) in states.iter().filter(|(length, _)| *length <= len) {
                let found = states.layers.iter().find(|(layer, _)| *layer == at);
                let (_, arrays) = found.ok_or_else(lost)?;
                recurrent.keep(0, length, arrays.clone());
                if length == len {
                    recurrent.fill(arrays.to_vec())?;
                    is_there = true;
                }
            }
            if !is_there {
                return Err(lost());
            }
        }
        (own.lens[0], own.expected[0]) = (len, len);
        Ok(own)
    }

    /// The pages of the pool in use, for each group of layers that hold the same positions, in the order of
    /// the groups' first layers.
    pub fn page_use(&self) -> Vec<PageUse> {
        let pool = self.pool.borrow();
        let groups = pool.groups().iter().enumerate();
        let of_group = |(at, group): (usize, &super::pool::Group)| {
            let pages = group.pages().borrow();
            PageUse {
                by_rows: pages.held() - pages.idle(),
                shared: pages.shared(),
                by_prefixes: pages.idle(),
                page_bytes: pool.page_bytes(at),
            }
        };
        groups.map(of_group).collect()
    }

    /// For each of these rows of caches of one pool, how many of its pages in each group an earlier one
    /// holds too, and the pages of all. Beside a cache and the number of a row stands how many of the row's
    /// first positions no layer will write again. Pages behind them do not count: the row gets a copy of
    /// them when a layer writes there.
    pub fn shared_pages<'c>(
        rows: impl IntoIterator<Item = (&'c Self, usize, usize)>,
    ) -> (Vec<Vec<usize>>, WholePages) {
        let mut all = WholePages::default();
        let of_row = |(cache, row, settled): (&'c Self, usize, usize)| {
            let (groups, whole) = (&cache.pages[row], settled.min(cache.lens[row]) / PAGE);
            let most = all.groups.len().max(groups.len());
            all.groups.resize(most, BTreeSet::new());
            let of_group = |(pages, seen): (&super::RowPages, &mut BTreeSet<u32>)| {
                let own = pages.numbered().filter(|&(number, _)| number < whole);
                own.filter(|&(_, page)| !seen.insert(page)).count()
            };
            groups.iter().zip(&mut all.groups).map(of_group).collect()
        };
        let shared = rows.into_iter().map(of_row).collect();
        (shared, all)
    }

    /// How many of these kept pages are among the pages of rows, for each group of layers that keep all
    /// positions; 0 for the others.
    pub fn pages_in_rows(&self, pages: &[&PrefixPage], rows: &WholePages) -> Vec<usize> {
        let pool = self.pool.borrow();
        let groups = pool.groups().iter().enumerate();
        let in_rows = |(at, group): (usize, &super::pool::Group)| {
            let Some(own) = rows.groups.get(at).filter(|_| group.window.is_none()) else {
                return 0;
            };
            let kept = pages.iter().filter_map(|page| page.groups[at].as_ref());
            kept.filter(|page| own.contains(&page.page())).count()
        };
        groups.map(in_rows).collect()
    }

    /// `pages` for each group of layers that keep all positions, and 0 for the others.
    pub fn whole_pages(&self, pages: usize) -> Vec<usize> {
        let pool = self.pool.borrow();
        let groups = pool.groups().iter();
        groups
            .map(|group| if group.window.is_none() { pages } else { 0 })
            .collect()
    }

    /// Whether some layer has a window, so that a prefix cannot be shortened to any length.
    pub fn has_windows(&self) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|kind| kind.window(&self.options).is_some())
    }

    /// Whether some layer is recurrent.
    pub fn is_recurrent(&self) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|kind| matches!(kind, LayerKind::Recurrent(_)))
    }

    /// Writes a number to every page that neither a row nor a kept prefix holds, in all layers; for
    /// packed pages, words of ones. Tests show with it that nothing reads such pages.
    ///
    /// # Errors
    /// The evaluation fails.
    pub fn overwrite_unheld(&mut self, value: f32) -> Result<()> {
        self.last = None;
        self.pool.borrow_mut().overwrite_unheld(value)
    }
}

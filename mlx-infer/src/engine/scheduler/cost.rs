//! The pages and bytes of rows' caches.

use mlx_nn::StateCost;

/// The size of a row's cache as a function of its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheCost {
    /// Bytes of a row, whatever its length.
    row_bytes: usize,
    /// Layers that hold the same positions, in the order of their first layers: those of the model's pool of
    /// pages, then those of the draft model's.
    groups: Vec<GroupCost>,
    /// The number of groups of the model's pool.
    own: usize,
    /// Positions of a page.
    page: usize,
}

/// Layers that hold the same positions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupCost {
    /// The most positions that are kept.
    limit: Option<usize>,
    position_bytes: usize,
}

impl CacheCost {
    /// The cost of layers with these states, whose positions are in pages of `page` positions.
    pub(crate) fn new(layers: Vec<StateCost>, page: usize) -> Self {
        let mut cost = Self {
            row_bytes: 0,
            groups: Vec::new(),
            own: 0,
            page,
        };
        cost.add(layers);
        cost.own = cost.groups.len();
        cost
    }

    /// The same with the layers of a draft model, whose pages are in another pool.
    pub(crate) fn with_draft(mut self, layers: Vec<StateCost>) -> Self {
        self.add(layers);
        self
    }

    fn add(&mut self, layers: Vec<StateCost>) {
        let first = self.groups.len();
        for layer in layers {
            self.row_bytes += layer.row_bytes;
            if layer.position_bytes == 0 {
                continue;
            }
            let mut groups = self.groups[first..].iter_mut();
            match groups.find(|group| group.limit == layer.limit) {
                Some(group) => group.position_bytes += layer.position_bytes,
                None => self.groups.push(GroupCost {
                    limit: layer.limit,
                    position_bytes: layer.position_bytes,
                }),
            }
        }
    }

    /// The pages of a row of `len` positions in a group. A row that has more positions than the group keeps
    /// also holds the page that it leaves and the page that it enters.
    fn pages(&self, group: &GroupCost, len: usize) -> usize {
        let kept = group.limit.map_or(len, |limit| len.min(limit + self.page));
        kept.div_ceil(self.page)
    }

    /// The bytes of a row of `len` positions.
    pub(crate) fn row(&self, len: usize) -> usize {
        self.row_beside(len, &[])
    }

    /// The bytes that a row of `len` positions adds to those of other rows, of which it shares these
    /// numbers of pages in the groups of the model's pool.
    pub(crate) fn row_beside(&self, len: usize, shared: &[usize]) -> usize {
        let shared = shared.iter().copied().take(self.own);
        let shared = shared.chain(std::iter::repeat(0));
        let groups = self.groups.iter().zip(shared);
        let bytes = groups.map(|(group, shared)| {
            let pages = self.pages(group, len).saturating_sub(shared);
            pages * self.page * group.position_bytes
        });
        self.row_bytes + bytes.sum::<usize>()
    }

    /// The bytes of `rows` rows beside their pages in the model's pool, if they have `len` positions each.
    pub(crate) fn beside_pool(&self, len: usize) -> usize {
        let groups = self.groups[self.own..].iter();
        let bytes = groups.map(|group| self.pages(group, len) * self.page * group.position_bytes);
        self.row_bytes + bytes.sum::<usize>()
    }

    /// What a row of `len` positions needs, and what a limit in bytes allows.
    pub(crate) fn shortage(&self, len: usize, limit: usize) -> Shortage {
        let pages = len.div_ceil(self.page);
        let fits = |pages: &usize| self.row(pages * self.page) <= limit;
        let available = (0..pages).rev().find(fits).unwrap_or(0);
        Shortage {
            positions: len,
            page: self.page,
            pages,
            bytes: self.row(len),
            available,
            limit,
        }
    }
}

/// The memory that a row needs, beside what all rows may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    positions: usize,
    /// Positions of a page.
    page: usize,
    pages: usize,
    bytes: usize,
    /// The pages of the longest row that fits.
    available: usize,
    limit: usize,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            positions,
            page,
            pages,
            bytes,
            available,
            limit,
        } = self;
        write!(
            f,
            "the request's caches need {pages} pages of {page} tokens ({positions} tokens, {bytes} bytes), more than \
             the engine may take: {available} pages ({} tokens) in {limit} bytes",
            available * page
        )
    }
}

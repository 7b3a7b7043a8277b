//! The pages and bytes of rows' caches.

use mlx_nn::{PAGE, StateCost};

use crate::model::LoadedModel;
use crate::request::limits::Limits;

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
    /// The cost of a model's rows, and of those of its draft model.
    pub(crate) fn of(model: &LoadedModel) -> Self {
        let draft = model.draft_model().map(LoadedModel::state_costs);
        Self::new(model.state_costs(), PAGE).with_draft(draft.unwrap_or_default())
    }

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

    /// The bytes of these numbers of pages, in each group of the model's pool and then of the draft
    /// model's.
    pub(crate) fn pool_bytes(&self, pages: &[usize]) -> usize {
        let groups = self.groups.iter().zip(pages);
        let bytes = groups.map(|(group, pages)| pages * self.page * group.position_bytes);
        bytes.sum()
    }

    /// The pages, in each group of the model's pool and then of the draft model's, that rows within
    /// `limits` and stored prefixes ever hold together, if the rows may take `cache_bytes`.
    fn most_pages(&self, limits: &Limits, cache_bytes: usize) -> Vec<usize> {
        let bytes = |group: &GroupCost| (self.page * group.position_bytes).max(1);
        let whole = self.groups.iter().filter(|group| group.limit.is_none());
        let whole: usize = whole.map(bytes).sum();
        let of_group = |(at, group): (usize, &GroupCost)| {
            let of_rows = match group.limit {
                None => cache_bytes / whole,
                // Beside the window, a row holds the prompt tokens that a pass writes.
                Some(limit) => {
                    let of_windows = limits.rows * self.pages(group, limit + self.page);
                    let of_pass = limits.prompt_tokens(0, 0).div_ceil(self.page);
                    of_windows.min(cache_bytes / bytes(group)) + of_pass
                }
            };
            let kept = match at < self.own {
                true => limits.prefix_bytes / bytes(group),
                false => 0,
            };
            // The spare page, and pages that rows have just copied, whose originals the prefixes hold
            // until they are trimmed. More than these at once would make the pool grow.
            of_rows + kept + 1 + limits.rows.min(of_rows / 16 + 2)
        };
        self.groups.iter().enumerate().map(of_group).collect()
    }

    /// The pages to reserve in each group of the model's pool, and of the draft model's, so that they never
    /// grow.
    pub(crate) fn pools(&self, limits: &Limits, cache_bytes: usize) -> [Vec<usize>; 2] {
        let mut own = self.most_pages(limits, cache_bytes);
        let of_draft = own.split_off(self.own);
        [own, of_draft]
    }

    /// The bytes of all pages that are [reserved](Self::pool), of the draft model's, and of what rows
    /// hold whatever their lengths.
    fn all_bytes(&self, limits: &Limits, cache_bytes: usize) -> usize {
        let pages = self.most_pages(limits, cache_bytes);
        let pages = pages.into_iter().zip(&self.groups);
        let pages = pages.map(|(pages, group)| pages * self.page * group.position_bytes);
        pages.sum::<usize>() + limits.rows * self.row_bytes
    }

    /// The most bytes that rows may take so that all that is reserved for them fits into `room`
    /// bytes; `None` if there is not room for one page of a row.
    pub(crate) fn fitting(&self, limits: &Limits, room: usize) -> Option<usize> {
        let fits = |bytes: usize| self.all_bytes(limits, bytes) <= room;
        // The bytes grow with the limit: a search by halves.
        let (mut least, mut most) = (0, room);
        while least < most {
            let middle = least + (most - least).div_ceil(2);
            match fits(middle) {
                true => least = middle,
                false => most = middle - 1,
            }
        }
        (least >= self.row(1)).then_some(least)
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

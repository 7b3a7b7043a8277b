//! Pages: which positions of which rows lie where.
//!
//! A page holds [`PAGE`] consecutive positions of one row, in every layer of a group. Layers form a
//! group if their rows hold the same positions: all layers that keep everything are one group, and
//! all layers with the same window another. A row has a list of page numbers for each group.
//!
//! Pages are counted. Rows that begin alike share their pages, so a copy of a row is a copy of page
//! numbers. A row changes no position that another holder has: before a step it gets a copy of the one
//! page that it shares and would change. Behind the positions that others may have, one row may write to a
//! shared page. So a row goes on in the page with the end of its prompt, of which a prefix is kept.
//! All of this is arithmetic on numbers. The arrays are in [`pool`](super::pool).

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

/// Positions of a page of keys and values.
pub const PAGE: usize = 64;

/// The page that belongs to no row. Steps of a fixed shape write to it for rows without tokens.
pub(crate) const SPARE: u32 = 0;

/// The pages of a group, and how many rows and kept prefixes hold each.
#[derive(Debug)]
pub(crate) struct Pages {
    /// For each page, the number of its holders. The spare page has one that never goes.
    holders: Vec<u32>,
    /// For each page, the number of its holders that are kept prefixes.
    kept: Vec<u32>,
    /// For each page, which of its positions are written.
    written: Vec<Written>,
    /// The number of rows that were ever made.
    rows: u64,
    /// The number of pages that only kept prefixes hold.
    idle: usize,
    /// The number of pages that several rows hold.
    shared: usize,
    /// Pages without a holder. The lowest is taken first, so that memory behind the highest page
    /// that was ever held is not touched.
    free: BinaryHeap<Reverse<u32>>,
}

/// The written positions of a page, counted from its first one.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    /// Those before this one may have several holders.
    common: usize,
    /// Those from there to this one only `writer` has.
    end: usize,
    /// The number of a row.
    writer: u64,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            holders: vec![1],
            kept: vec![0],
            written: vec![Written::default()],
            rows: 0,
            idle: 0,
            shared: 0,
            free: BinaryHeap::new(),
        }
    }
}

impl Pages {
    /// The number of pages that were ever held, with the spare page.
    pub(crate) fn len(&self) -> usize {
        self.holders.len()
    }

    /// The number of pages with a holder, without the spare page.
    pub(crate) fn held(&self) -> usize {
        self.holders.len() - 1 - self.free.len()
    }

    /// The number of holders of a page.
    pub(crate) fn holders(&self, page: u32) -> u32 {
        self.holders[page as usize]
    }

    /// The number of pages that no row holds and a kept prefix does.
    pub(crate) fn idle(&self) -> usize {
        self.idle
    }

    /// The number of pages that several rows hold.
    pub(crate) fn shared(&self) -> usize {
        self.shared
    }

    fn is_shared(&self, page: u32) -> bool {
        self.holders[page as usize] - self.kept[page as usize] > 1
    }

    /// Whether kept prefixes hold a page, and no row does.
    fn is_idle(&self, page: u32) -> bool {
        let kept = self.kept[page as usize];
        kept > 0 && kept == self.holders[page as usize]
    }

    /// The pages without a holder.
    pub(crate) fn unheld(&self) -> impl Iterator<Item = u32> {
        self.free.iter().map(|&Reverse(page)| page)
    }

    fn take(&mut self) -> u32 {
        match self.free.pop() {
            Some(Reverse(page)) => {
                self.holders[page as usize] = 1;
                self.written[page as usize] = Written::default();
                page
            }
            None => {
                self.holders.push(1);
                self.kept.push(0);
                self.written.push(Written::default());
                (self.holders.len() - 1) as u32
            }
        }
    }

    /// Adds `holders` holders to a page, of which `kept` are kept prefixes.
    fn add(&mut self, page: u32, holders: i32, kept: i32) {
        self.idle -= usize::from(self.is_idle(page));
        self.shared -= usize::from(self.is_shared(page));
        let at = page as usize;
        let counted = "every holder is counted";
        self.holders[at] = self.holders[at].checked_add_signed(holders).expect(counted);
        self.kept[at] = self.kept[at].checked_add_signed(kept).expect(counted);
        if holders > 0 {
            self.written[at].common = self.written[at].end;
        }
        self.idle += usize::from(self.is_idle(page));
        self.shared += usize::from(self.is_shared(page));
        if self.holders[at] == 0 {
            self.free.push(Reverse(page));
        }
    }

    /// Whether a row may write the positions of a page from `begin` on without changing those of other holders.
    fn may_write(&self, page: u32, begin: usize, row: u64) -> bool {
        let written = &self.written[page as usize];
        let is_writer = written.writer == row && begin >= written.common;
        self.holders(page) == 1 || is_writer || begin >= written.end
    }

    /// A row writes the positions `begin..end` of a page.
    fn write(&mut self, page: u32, (begin, end): (usize, usize), row: u64) {
        let is_alone = self.holders(page) == 1;
        let written = &mut self.written[page as usize];
        if written.writer != row {
            (written.writer, written.common) = (row, begin.min(written.end));
        }
        if is_alone {
            written.common = 0;
        }
        written.end = end.max(written.end);
    }

    /// A row gives up the positions of a page from `end` on.
    fn give_up(&mut self, page: u32, end: usize, row: u64) {
        let is_alone = self.holders(page) == 1;
        let written = &mut self.written[page as usize];
        if is_alone || written.writer == row {
            let least = if is_alone { 0 } else { written.common };
            written.end = end.max(least).min(written.end);
        }
    }

    fn new_row(&mut self) -> u64 {
        self.rows += 1;
        self.rows
    }

    fn share(&mut self, page: u32) {
        self.add(page, 1, 0);
    }

    fn release(&mut self, page: u32) {
        self.add(page, -1, 0);
    }
}

/// A page that a kept prefix holds.
#[derive(Debug)]
pub(crate) struct KeptPage {
    pages: Rc<RefCell<Pages>>,
    page: u32,
    /// The first of its positions that has a value, counted from the first of the page.
    from: usize,
}

impl KeptPage {
    /// Page number `number` of a row, if it is held and has a value.
    pub(crate) fn of(row: &RowPages, number: usize) -> Option<Self> {
        let page = row.page_of(number * PAGE)?;
        let from = row.held_from().saturating_sub(number * PAGE);
        let pages = row.pages.clone();
        pages.borrow_mut().add(page, 1, 1);
        Some(Self { pages, page, from })
    }

    /// The first of its positions that has a value, counted from the first of the page.
    pub(crate) fn from(&self) -> usize {
        self.from
    }

    /// The number of the page.
    pub(crate) fn page(&self) -> u32 {
        self.page
    }

    /// Whether no row holds the page.
    pub(crate) fn is_idle(&self) -> bool {
        self.pages.borrow().is_idle(self.page)
    }

    /// A row that holds consecutive pages, the first of which is page number `first` of the row.
    pub(crate) fn row(pages: &Rc<RefCell<Pages>>, first: usize, kept: &[&Self]) -> RowPages {
        let mut row = RowPages::new(pages);
        let before = kept.first().map_or(0, |page| page.from);
        (row.first, row.written) = (first, first * PAGE + before);
        let mut counts = pages.borrow_mut();
        for page in kept {
            counts.share(page.page);
            row.held.push_back(page.page);
        }
        drop(counts);
        row
    }

    /// Whether it is a page of `pages`.
    pub(crate) fn is_of(&self, pages: &Rc<RefCell<Pages>>) -> bool {
        Rc::ptr_eq(&self.pages, pages)
    }
}

impl Drop for KeptPage {
    fn drop(&mut self) {
        self.pages.borrow_mut().add(self.page, -1, -1);
    }
}

/// The pages of one row in one group: consecutive pages of positions. A clone holds the same pages.
#[derive(Debug)]
pub(crate) struct RowPages {
    pages: Rc<RefCell<Pages>>,
    /// The number of pages before the first held one: the row's positions before
    /// `first * PAGE` are gone.
    first: usize,
    /// The first position that was written: those before it in its page have no values.
    written: usize,
    held: VecDeque<u32>,
    /// Its number among the rows that were ever made.
    number: u64,
}

/// A page that a row shared, and the page that it writes in its place. The second one needs the
/// content of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageCopy {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl RowPages {
    /// A row without positions.
    pub(crate) fn new(pages: &Rc<RefCell<Pages>>) -> Self {
        Self {
            pages: pages.clone(),
            first: 0,
            written: 0,
            held: VecDeque::new(),
            number: pages.borrow_mut().new_row(),
        }
    }

    /// Whether they are pages of `pages`.
    pub(crate) fn is_of(&self, pages: &Rc<RefCell<Pages>>) -> bool {
        Rc::ptr_eq(&self.pages, pages)
    }

    /// The first position of the first held page.
    pub(crate) fn begin(&self) -> usize {
        self.first * PAGE
    }

    /// The first position whose values are held.
    pub(crate) fn held_from(&self) -> usize {
        self.begin().max(self.written)
    }

    /// The number of held pages.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// The held pages, each with the number of pages of the row before it.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, u32)> {
        self.held
            .iter()
            .enumerate()
            .map(|(at, &page)| (self.first + at, page))
    }

    /// The page of position `position`, if it is held.
    pub(crate) fn page_of(&self, position: usize) -> Option<u32> {
        let at = (position / PAGE).checked_sub(self.first)?;
        self.held.get(at).copied()
    }

    /// Prepares the row for writing the positions `begin..end`, which follow held positions or
    /// overwrite some: it holds their pages, and no other holder has these positions. Returns the pages that need the
    /// content of others first. Until something else happens to the row, preparing it again changes nothing.
    pub(crate) fn prepare(&mut self, begin: usize, end: usize) -> Vec<PageCopy> {
        let mut copies = Vec::new();
        if begin >= end {
            return copies;
        }
        let mut pages = self.pages.borrow_mut();
        if self.held.is_empty() {
            (self.first, self.written) = (begin / PAGE, begin);
        }
        for number in begin / PAGE..=(end - 1) / PAGE {
            let at = number - self.first;
            let from = begin.saturating_sub(number * PAGE);
            let own = match self.held.get(at) {
                None => {
                    let own = pages.take();
                    self.held.push_back(own);
                    own
                }
                Some(&page) if pages.may_write(page, from, self.number) => page,
                Some(&page) => {
                    let own = pages.take();
                    pages.release(page);
                    self.held[at] = own;
                    copies.push(PageCopy {
                        from: page,
                        to: own,
                    });
                    own
                }
            };
            let range = (from, (end - number * PAGE).min(PAGE));
            pages.write(own, range, self.number);
        }
        copies
    }

    /// Whether the row holds every page of the positions `begin..end`, and may write these without changing those of
    /// other holders.
    #[cfg(test)]
    pub(crate) fn is_prepared(&self, begin: usize, end: usize) -> bool {
        let pages = self.pages.borrow();
        let mut numbers = begin / PAGE..end.div_ceil(PAGE);
        numbers.all(|number| {
            let from = begin.saturating_sub(number * PAGE);
            let page = self.page_of(number * PAGE);
            page.is_some_and(|page| pages.may_write(page, from, self.number))
        })
    }

    /// Releases the pages behind the first `len` positions.
    pub(crate) fn truncate(&mut self, len: usize) {
        let keep = len.div_ceil(PAGE).saturating_sub(self.first);
        let mut pages = self.pages.borrow_mut();
        for page in self.held.drain(keep.min(self.held.len())..) {
            pages.release(page);
        }
        if let Some(&last) = self.held.get(keep.wrapping_sub(1)) {
            pages.give_up(last, len - (len - 1) / PAGE * PAGE, self.number);
        }
    }

    /// Releases the pages of which all positions are before `position`.
    pub(crate) fn drop_before(&mut self, position: usize) {
        let mut pages = self.pages.borrow_mut();
        while self.first < position / PAGE
            && let Some(page) = self.held.pop_front()
        {
            pages.release(page);
            self.first += 1;
        }
    }

    /// Releases all pages.
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
        (self.first, self.written) = (0, 0);
    }
}

impl Clone for RowPages {
    fn clone(&self) -> Self {
        let mut pages = self.pages.borrow_mut();
        self.held.iter().for_each(|&page| pages.share(page));
        let number = pages.new_row();
        drop(pages);
        Self {
            pages: self.pages.clone(),
            first: self.first,
            written: self.written,
            held: self.held.clone(),
            number,
        }
    }
}

impl Drop for RowPages {
    fn drop(&mut self) {
        let mut pages = self.pages.borrow_mut();
        self.held.iter().for_each(|&page| pages.release(page));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What happens to rows.
    #[derive(Clone, Debug)]
    enum Event {
        Begin,
        /// Write this many positions.
        Write(usize, usize),
        /// Write this many positions, and keep a part (in sixteenths).
        Reject(usize, usize, usize),
        Fork(usize),
        Cut(usize, usize),
        Window(usize, usize),
        End(usize),
        /// Keep a page of a row.
        Keep(usize, usize),
        /// Drop a page that was kept.
        Drop(usize),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let row = || 0..8usize;
        let event = prop_oneof![
            2 => Just(Event::Begin),
            6 => (row(), 1..200usize).prop_map(|(row, n)| Event::Write(row, n)),
            2 => (row(), 1..90usize, 0..17usize).prop_map(|(row, n, keep)| Event::Reject(row, n, keep)),
            2 => row().prop_map(Event::Fork),
            2 => (row(), 0..17usize).prop_map(|(row, part)| Event::Cut(row, part)),
            2 => (row(), 1..150usize).prop_map(|(row, window)| Event::Window(row, window)),
            2 => row().prop_map(Event::End),
            2 => (row(), 0..6usize).prop_map(|(row, number)| Event::Keep(row, number)),
            1 => row().prop_map(Event::Drop),
        ];
        prop::collection::vec(event, 1..60)
    }

    /// A row and the numbers that its positions should hold; `None` where a window has passed.
    struct Beside {
        row: RowPages,
        numbers: Vec<Option<u64>>,
    }

    /// The rows, and the numbers in the slots of pages.
    #[derive(Default)]
    struct Model {
        pages: Rc<RefCell<Pages>>,
        slots: Vec<[Option<u64>; PAGE]>,
        rows: Vec<Beside>,
        /// Kept pages, and the numbers that they should hold.
        kept: Vec<(KeptPage, [Option<u64>; PAGE])>,
        next: u64,
    }

    impl Model {
        fn write(&mut self, at: usize, n: usize, keep: usize) {
            let Beside { row, numbers } = &mut self.rows[at];
            let len = numbers.len();
            let copies = row.prepare(len, len + n);
            self.slots.resize(self.pages.borrow().len(), [None; PAGE]);
            for copy in copies {
                self.slots[copy.to as usize] = self.slots[copy.from as usize];
            }
            assert!(row.is_prepared(len, len + n));
            for position in len..len + n {
                let page = row.page_of(position).unwrap();
                assert_ne!(page, SPARE);
                self.slots[page as usize][position % PAGE] = Some(self.next);
                if position < len + keep {
                    numbers.push(Some(self.next));
                }
                self.next += 1;
            }
            row.truncate(len + keep);
        }

        fn apply(&mut self, event: &Event) {
            if let Event::Begin = event {
                self.rows.push(Beside {
                    row: RowPages::new(&self.pages),
                    numbers: Vec::new(),
                });
                return;
            }
            if let Event::Drop(at) = *event {
                if !self.kept.is_empty() {
                    self.kept.swap_remove(at % self.kept.len());
                }
                return;
            }
            if self.rows.is_empty() {
                return;
            }
            let n = self.rows.len();
            match *event {
                Event::Begin | Event::Drop(_) => {}
                Event::Keep(row, number) => {
                    let Beside { row, numbers } = &self.rows[row % n];
                    if let Some(page) = KeptPage::of(row, number) {
                        let mut held = [None; PAGE];
                        let own = numbers.iter().skip(number * PAGE).take(PAGE);
                        held.iter_mut()
                            .zip(own)
                            .for_each(|(held, own)| *held = *own);
                        self.kept.push((page, held));
                    }
                }
                Event::Write(row, tokens) => self.write(row % n, tokens, tokens),
                Event::Reject(row, tokens, keep) => self.write(row % n, tokens, tokens * keep / 16),
                Event::Fork(row) => {
                    let Beside { row, numbers } = &self.rows[row % n];
                    let (row, numbers) = (row.clone(), numbers.clone());
                    self.rows.push(Beside { row, numbers });
                }
                Event::Cut(row, part) => {
                    let Beside { row, numbers } = &mut self.rows[row % n];
                    let len = numbers.len() * part / 16;
                    row.truncate(len);
                    numbers.truncate(len);
                }
                Event::Window(row, window) => {
                    let Beside { row, numbers } = &mut self.rows[row % n];
                    row.drop_before(numbers.len().saturating_sub(window));
                    let gone = row.begin().min(numbers.len());
                    numbers[..gone].fill(None);
                }
                Event::End(row) => drop(self.rows.swap_remove(row % n)),
            }
        }

        fn check(&self) {
            let mut holders = vec![0; self.pages.borrow().len()];
            holders[SPARE as usize] = 1;
            let mut wanted = 0;
            for Beside { row, numbers } in &self.rows {
                for (position, number) in numbers.iter().enumerate() {
                    if number.is_some() {
                        let page = row.page_of(position).expect("the position is held");
                        assert_eq!(self.slots[page as usize][position % PAGE], *number);
                    }
                }
                row.numbered()
                    .for_each(|(_, page)| holders[page as usize] += 1);
                wanted += numbers.len().div_ceil(PAGE);
                assert!(row.len() <= numbers.len().div_ceil(PAGE));
            }
            let mut kept = vec![0; holders.len()];
            for (page, numbers) in &self.kept {
                let held = &self.slots[page.page as usize];
                for (held, number) in held.iter().zip(numbers).filter(|(_, own)| own.is_some()) {
                    assert_eq!(held, number, "a kept page does not change");
                }
                kept[page.page as usize] += 1;
                holders[page.page as usize] += 1;
            }
            let pages = self.pages.borrow();
            assert_eq!((&pages.holders, &pages.kept), (&holders, &kept));
            let held = holders[1..].iter().filter(|&&holders| holders > 0).count();
            assert_eq!(pages.held(), held);
            let idle = holders.iter().zip(&kept);
            let idle = idle
                .filter(|(held, kept)| **kept > 0 && held == kept)
                .count();
            assert_eq!(pages.idle(), idle);
            let shared = holders.iter().zip(&kept);
            let shared = shared.filter(|(held, kept)| **held - **kept > 1).count();
            assert_eq!(pages.shared(), shared);
            let by_rows = held - idle;
            assert!(by_rows <= wanted, "{by_rows} pages for rows of {wanted}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn rows_hold_what_they_wrote_and_nothing_is_lost(events in events()) {
            let mut model = Model::default();
            for event in &events {
                model.apply(event);
                model.check();
            }
            model.rows.clear();
            let (held, idle) = (model.pages.borrow().held(), model.pages.borrow().idle());
            prop_assert_eq!(held, idle);
            model.kept.clear();
            prop_assert_eq!(model.pages.borrow().held(), 0);
        }
    }

    #[test]
    fn a_long_row_beside_short_ones_costs_the_sum_of_the_lengths() {
        let pages = Rc::default();
        let lengths = std::iter::once(32_768).chain(std::iter::repeat_n(512, 63));
        let rows = lengths.clone().map(|len| {
            let mut row = RowPages::new(&pages);
            row.prepare(0, len + 1);
            row
        });
        let rows: Vec<RowPages> = rows.collect();
        let (held, sum) = (pages.borrow().held() * PAGE, lengths.sum::<usize>());
        assert!(10 * held <= 11 * sum, "{held} positions for {sum}");
        drop(rows);
        assert_eq!(pages.borrow().held(), 0);
    }

    #[test]
    fn rows_that_begin_alike_share_all_pages_but_one() {
        let pages = Rc::default();
        let mut first = RowPages::new(&pages);
        first.prepare(0, 2000);
        let mut rows: Vec<RowPages> = vec![first; 32];
        assert_eq!(pages.borrow().held(), 2000usize.div_ceil(PAGE));
        for (at, row) in rows.iter_mut().enumerate() {
            // The first one goes on in the page of all.
            assert_eq!(row.prepare(2000, 2001).len(), usize::from(at > 0));
        }
        assert_eq!(pages.borrow().held(), 2000usize.div_ceil(PAGE) + 31);
    }

    #[test]
    fn a_row_goes_on_in_a_page_that_a_prefix_keeps() {
        let pages = Rc::default();
        let mut row = RowPages::new(&pages);
        row.prepare(0, 70);
        let kept = KeptPage::of(&row, 1).unwrap();
        // A step that is dropped, and one of which a part is rejected.
        assert_eq!(row.prepare(70, 73), []);
        assert_eq!(row.prepare(70, 75), []);
        row.truncate(72);
        assert_eq!(row.prepare(72, 73), []);
        // A row that begins with the prefix may not write where the first one has written.
        let mut other = KeptPage::row(&pages, 1, &[&kept]);
        assert_eq!(other.prepare(70, 71).len(), 1);
        // Since another holder may have what the first row had then, that is not overwritten.
        let second = KeptPage::of(&row, 1).unwrap();
        row.truncate(71);
        assert_eq!(row.prepare(71, 72).len(), 1);
        assert_ne!(row.page_of(71), Some(second.page()));
    }
}

//! The memory of pages: for each layer, one array of keys and one of values, shared by all rows of
//! all caches of a pool.
//!
//! The arrays are written in place, and only in pages that one row holds alone, so rows never see
//! each other's steps. If more pages are held than an array has, the array is replaced by one at
//! least twice as large.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_core::fast::Projection;
use mlx_core::ops::create::full;
use mlx_core::{Array, DType, Error, ErrorKind, Result, Scheme, eval, fast, inplace};

use super::pages::{PAGE, PageCopy, Pages, RowPages, SPARE};
use super::state::refusal;
use super::{CacheOptions, LayerKind, RowPart};
use crate::attend::{Keys, Paged, keep_in_pages, store_in_pages};

/// The least number of pages of an array.
const LEAST: usize = 8;

/// The pages of all layers of a model.
#[derive(Debug)]
pub(crate) struct PagePool {
    groups: Vec<Group>,
    layers: Vec<Option<LayerPool>>,
    scheme: Option<Scheme>,
    /// How often arrays were replaced by others.
    moved: u64,
}

/// Layers whose rows hold the same positions.
#[derive(Debug)]
pub(crate) struct Group {
    /// How many of the last positions the layers need; `None`: all.
    pub(crate) window: Option<usize>,
    pub(crate) layers: Vec<usize>,
    pages: Rc<RefCell<Pages>>,
    /// The pages that were reserved. Arrays have at least as many.
    reserved: usize,
}

/// The pages of one layer.
#[derive(Debug)]
struct LayerPool {
    group: usize,
    /// `[pages, K, PAGE, D]` for keys and, unless values are a part of them, for values. For packed
    /// rows they are U32 `[pages, K, PAGE, words]`. Empty before the first write.
    arrays: Vec<Array>,
    /// The same buffers as they were known to be computed. They replace `arrays` if the evaluation
    /// of a write fails.
    settled: Vec<Array>,
}

impl Group {
    pub(crate) fn pages(&self) -> &Rc<RefCell<Pages>> {
        &self.pages
    }

    /// The pages of new arrays, if there are to be at least `pages`.
    fn capacity(&self, pages: usize) -> usize {
        match pages <= self.reserved {
            true => self.reserved,
            false => pages.next_power_of_two().max(LEAST),
        }
    }
}

impl PagePool {
    pub(crate) fn new(kinds: &[LayerKind], options: &CacheOptions) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        let mut layer = |(index, kind): (usize, &LayerKind)| {
            if let LayerKind::Recurrent(_) = kind {
                return None;
            }
            let window = kind.window(options);
            let found = groups.iter().position(|group| group.window == window);
            let group = found.unwrap_or_else(|| {
                groups.push(Group {
                    window,
                    layers: Vec::new(),
                    pages: Rc::default(),
                    reserved: 0,
                });
                groups.len() - 1
            });
            groups[group].layers.push(index);
            Some(LayerPool {
                group,
                arrays: Vec::new(),
                settled: Vec::new(),
            })
        };
        let layers = kinds.iter().enumerate().map(&mut layer).collect();
        Self {
            groups,
            layers,
            scheme: options.quantized,
            moved: 0,
        }
    }

    /// A number that differs after arrays were replaced by others.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Makes the arrays of all layers, with `pages[g]` pages in group g, so that they do not move when
    /// rows grow. `parts[l]` describes the arrays of layer l.
    ///
    /// # Errors
    /// There is no memory for them, or the numbers of layers or groups differ. The pool is then as before.
    pub(crate) fn reserve(&mut self, parts: &[Vec<RowPart>], pages: &[usize]) -> Result<()> {
        if (parts.len(), pages.len()) != (self.layers.len(), self.groups.len()) {
            return Err(refusal(format!(
                "{} layers in {} groups of pages, given {} and {}",
                self.layers.len(),
                self.groups.len(),
                parts.len(),
                pages.len()
            )));
        }
        let mut made = Vec::new();
        for (layer, parts) in self.layers.iter().zip(parts) {
            let Some(layer) = layer else { continue };
            let pages = pages[layer.group].max(self.groups[layer.group].pages.borrow().len());
            let blank = |part: &RowPart| {
                let [_, heads, _, width] = part.shape[..] else {
                    return Err(refusal(format!("{part} does not grow")));
                };
                let pages = i32::try_from(pages).map_err(|_| {
                    let message =
                        format!("{pages} pages of keys and values, more than an array may have");
                    Error::new(ErrorKind::Budget, message)
                })?;
                fast::blank(&[pages, heads, PAGE as i32, width], part.dtype)
            };
            made.push(parts.iter().map(blank).collect::<Result<Vec<Array>>>()?);
        }
        eval(made.iter().flatten())?;
        for (layer, arrays) in self.layers.iter_mut().flatten().zip(made) {
            layer.settled.clone_from(&arrays);
            layer.arrays = arrays;
        }
        for (group, &pages) in self.groups.iter_mut().zip(pages) {
            group.reserved = pages;
        }
        self.moved += 1;
        // MLX compiles its kernels for GPUs at their first use, which takes seconds: here, where no row waits.
        let spare = PageCopy {
            from: SPARE,
            to: SPARE,
        };
        for group in 0..self.groups.len() {
            self.copy(group, &[spare])?;
        }
        eval(self.arrays())
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// A row without positions: its pages in each group.
    pub(crate) fn row(&self) -> Vec<RowPages> {
        let groups = self.groups.iter();
        groups.map(|group| RowPages::new(&group.pages)).collect()
    }

    /// The group of a layer with keys and values.
    ///
    /// # Errors
    /// The layer is recurrent, or does not exist.
    pub(crate) fn group_of(&self, layer: usize) -> Result<usize> {
        let found = self.layers.get(layer).and_then(Option::as_ref);
        found
            .map(|layer| layer.group)
            .ok_or_else(|| refusal(format!("layer {layer} keeps no keys and values")))
    }

    /// The arrays of a layer; none before its first write.
    pub(crate) fn arrays_of(&self, layer: usize) -> &[Array] {
        let found = self.layers.get(layer).and_then(Option::as_ref);
        found.map_or(&[], |layer| &layer.arrays)
    }

    /// The arrays of all layers.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let layers = self.layers.iter().flatten();
        layers.flat_map(|layer| &layer.arrays)
    }

    /// The bytes of a page in all layers of a group.
    pub(crate) fn page_bytes(&self, group: usize) -> usize {
        let layers = self.groups[group].layers.iter();
        let arrays = layers.flat_map(|&layer| self.arrays_of(layer));
        arrays
            .map(|array| array.nbytes() / (array.shape()[0] as usize).max(1))
            .sum()
    }

    /// Notes which arrays are computed, and drops writes whose evaluation has failed: the pages
    /// that were committed before are still there.
    pub(crate) fn settle(&mut self) {
        for layer in self.layers.iter_mut().flatten() {
            match layer.arrays.iter().any(Array::is_lost) {
                true => layer.arrays.clone_from(&layer.settled),
                false if layer.arrays.iter().all(Array::is_computed) => {
                    layer.settled.clone_from(&layer.arrays);
                }
                false => {}
            }
        }
    }

    /// Drops everything: a write that was computed is lost too if a later part of its evaluation
    /// fails. Rows that hold pages have to be computed again.
    pub(crate) fn recover(&mut self) {
        self.moved += 1;
        for group in &mut self.groups {
            group.pages = Rc::default();
        }
        for layer in self.layers.iter_mut().flatten() {
            layer.arrays.clear();
            layer.settled.clear();
        }
    }

    /// Refuses the pages of a row in a group if they are from before [`recover`](Self::recover).
    ///
    /// # Errors
    /// They are.
    pub(crate) fn check(&self, group: usize, row: &RowPages) -> Result<()> {
        match row.is_of(&self.groups[group].pages) {
            true => Ok(()),
            false => Err(refusal(
                "the row is lost, because an evaluation has failed; compute it again",
            )),
        }
    }

    /// Frees the memory if no page is held and none was reserved. Returns whether it did.
    pub(crate) fn release(&mut self) -> bool {
        let is_free = |group: &Group| group.reserved == 0 && group.pages.borrow().held() == 0;
        // A model without pages has nothing to free, and its captured steps stay.
        let mut layers = self.layers.iter().flatten();
        let frees = layers.any(|layer| !layer.arrays.is_empty()) && self.groups.iter().all(is_free);
        if frees {
            self.moved += 1;
            for layer in self.layers.iter_mut().flatten() {
                layer.arrays.clear();
                layer.settled.clear();
            }
        }
        frees
    }

    /// Copies pages in all layers of a group.
    ///
    /// # Errors
    /// No memory for a handle.
    pub(crate) fn copy(&mut self, group: usize, copies: &[PageCopy]) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        let list = |of: fn(&PageCopy) -> u32| {
            let pages: Vec<u32> = copies.iter().map(of).collect();
            Array::from_slice(&pages, &[pages.len() as i32])
        };
        let (from, to) = (list(|copy| copy.from)?, list(|copy| copy.to)?);
        for layer in self.groups[group].layers.clone() {
            self.grow(layer)?;
            for at in 0..self.arrays_of(layer).len() {
                let content = self.arrays_of(layer)[at].take(&from, 0)?;
                self.overwrite(layer, at, &to, &content)?;
            }
        }
        Ok(())
    }

    /// Writes a number to every page without a holder, in all layers; to packed pages words of ones.
    ///
    /// # Errors
    /// The evaluation fails.
    pub(crate) fn overwrite_unheld(&mut self, value: f32) -> Result<()> {
        for layer in 0..self.layers.len() {
            let Some(Some(own)) = self.layers.get(layer) else {
                continue;
            };
            let held: Vec<u32> = self.groups[own.group].pages.borrow().unheld().collect();
            for at in 0..own.arrays.len() {
                let array = self.arrays_of(layer)[at].clone();
                let [room, heads, page, d] = array.dims()?;
                let to: Vec<u32> = held
                    .iter()
                    .copied()
                    .filter(|&to| (to as i32) < room)
                    .collect();
                if to.is_empty() {
                    continue;
                }
                let shape = [to.len() as i32, heads, page, d];
                let content = match array.dtype() {
                    DType::U32 => full(&shape, u32::MAX, DType::U32)?,
                    dtype => full(&shape, value, dtype)?,
                };
                let to = Array::from_slice(&to, &[to.len() as i32])?;
                self.overwrite(layer, at, &to, &content)?;
            }
        }
        eval(self.arrays())
    }

    /// Writes `content`, `[n, K, PAGE, D]`, to the pages `to`, `[n]`, of array number `at` of a
    /// layer.
    fn overwrite(&mut self, layer: usize, at: usize, to: &Array, content: &Array) -> Result<()> {
        let own = self.layers[layer].as_mut().expect("it has pages");
        let array = own.arrays[at].clone();
        let updates = content.expand_dims(1)?;
        own.arrays[at] = inplace::scatter_in_place(array, &[to], &updates, &[0])?;
        Ok(())
    }

    /// Gives the arrays of a layer all pages that are held. New arrays are evaluated at once: if a
    /// later step fails, the pages that rows hold are in them.
    fn grow(&mut self, layer: usize) -> Result<()> {
        if !self.moves(layer) || self.arrays_of(layer).is_empty() {
            return Ok(());
        }
        let own = self.layers[layer].as_mut().expect("it has pages");
        let group = &self.groups[own.group];
        let pages = group.pages.borrow().len();
        let grown = |array: &Array| {
            let [held, heads, page, d] = array.dims()?;
            let room = group.capacity(pages.max(2 * held as usize));
            let larger = fast::blank(&[room as i32, heads, page, d], array.dtype())?;
            larger.slice_update(array, &[0; 4], &[held, heads, page, d])
        };
        let arrays = own.arrays.iter().map(grown).collect::<Result<Vec<_>>>()?;
        eval(&arrays)?;
        own.settled.clone_from(&arrays);
        own.arrays = arrays;
        self.moved += 1;
        Ok(())
    }

    /// Whether the next write of a layer makes new arrays, because there are none or they have too
    /// few pages.
    pub(crate) fn moves(&self, layer: usize) -> bool {
        let Some(Some(own)) = self.layers.get(layer) else {
            return false;
        };
        let pages = self.groups[own.group].pages.borrow().len();
        let room = |array: &Array| array.shape()[0] as usize >= pages;
        own.arrays.is_empty() || !own.arrays.iter().all(room)
    }

    /// Writes the new keys and, unless values are a part of them, values of a step,
    /// `[1, K, T, D]`. Returns the layer's arrays, from which the step's queries read, and the
    /// heads of the queries if they are given as a projection.
    ///
    /// # Errors
    /// The keys or values do not fit those that the layer holds.
    pub(crate) fn write(
        &mut self,
        layer: usize,
        queries: Option<&Projection<'_>>,
        k: &Keys<'_>,
        v: Option<&Array>,
        at: &Paged,
    ) -> Result<(Vec<Array>, Option<Array>)> {
        self.grow(layer)?;
        let scheme = self.scheme;
        let group = self.group_of(layer)?;
        let own = self.layers[layer].as_mut().expect("it has pages");
        if own.arrays.is_empty() {
            let group = &self.groups[group];
            let room = group.capacity(group.pages.borrow().len()) as i32;
            let [_, heads, _, d] = k.shape()?;
            let array = |heads: i32, d: i32| -> Result<Array> {
                let (d, dtype) = match scheme {
                    Some(scheme) => (fast::packed_words(d, k.dtype(), scheme)?, DType::U32),
                    None => (d, k.dtype()),
                };
                fast::blank(&[room, heads, PAGE as i32, d], dtype)
            };
            own.arrays = vec![array(heads, d)?];
            if let Some(v) = v {
                let [_, heads, _, d] = v.dims()?;
                own.arrays.push(array(heads, d)?);
            }
        }
        let (arrays, heads) = store_in_pages(&own.arrays, queries, k, v, at, scheme)?;
        own.arrays.clone_from(&arrays);
        Ok((arrays, heads))
    }

    /// The arrays of a row's positions `begin..end`, all of which it holds: `[1, K, end - begin,
    /// D]`.
    ///
    /// # Errors
    /// No memory for a handle.
    pub(crate) fn positions(
        &self,
        layer: usize,
        row: &RowPages,
        (begin, end): (usize, usize),
    ) -> Result<Vec<Array>> {
        self.check(self.group_of(layer)?, row)?;
        let pages: Vec<u32> = (begin / PAGE..end.div_ceil(PAGE))
            .filter_map(|number| row.page_of(number * PAGE))
            .collect();
        let first = begin / PAGE * PAGE;
        let pages = Array::from_slice(&pages, &[pages.len() as i32])?;
        let part = |array: &Array| {
            let found = array.take(&pages, 0)?.swapaxes(0, 1)?; // [K, n, PAGE, D]
            let [heads, n, page, d] = found.dims()?;
            let found = found.reshape(&[1, heads, n * page, d])?;
            found.slice_axis(2, (begin - first) as i32, (end - first) as i32)
        };
        self.arrays_of(layer).iter().map(part).collect()
    }

    /// Writes a row's positions from `begin` on. It holds their pages alone. `arrays` are
    /// `[1, K, positions, D]`.
    ///
    /// # Errors
    /// The arrays do not fit those of the layer.
    pub(crate) fn fill(
        &mut self,
        layer: usize,
        row: &RowPages,
        begin: usize,
        arrays: &[Array],
    ) -> Result<()> {
        self.grow(layer)?;
        let group = self.group_of(layer)?;
        let group = &self.groups[group];
        let room = group.capacity(group.pages.borrow().len()) as i32;
        for (at, array) in arrays.iter().enumerate() {
            let [_, heads, n, d] = array.dims()?;
            let own = self.layers[layer].as_mut().expect("it has pages");
            if own.arrays.len() == at {
                let blank = fast::blank(&[room, heads, PAGE as i32, d], array.dtype())?;
                own.arrays.push(blank);
            }
            let [_, held_heads, _, held_d] = own.arrays[at].dims()?;
            if (held_heads, held_d) != (heads, d) || own.arrays[at].dtype() != array.dtype() {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "cache holds {} {:?}, given keys or values {} {:?}",
                        own.arrays[at].dtype(),
                        own.arrays[at].shape(),
                        array.dtype(),
                        array.shape()
                    ),
                ));
            }
            let pages = pages_of(row, (begin, begin + n as usize))?;
            own.arrays[at] = keep_in_pages(&own.arrays[at], array, &pages)?;
        }
        Ok(())
    }
}

/// The pages of a row's positions `begin..end`, all of which it holds, as those of a step that brings
/// these positions.
fn pages_of(row: &RowPages, (begin, end): (usize, usize)) -> Result<Paged> {
    let first = begin / PAGE;
    let held = (first..end.div_ceil(PAGE)).map(|number| {
        let page = row.page_of(number * PAGE);
        let page = page.ok_or_else(|| refusal(format!("the row does not hold page {number}")))?;
        Ok(page as i32)
    });
    let pages = held.collect::<Result<Vec<i32>>>()?;
    let n = (end - begin) as i32;
    Ok(Paged {
        tables: Array::from_slice(&pages, &[1, pages.len() as i32])?,
        starts: Array::from_slice(&[0, n], &[2])?,
        lens: Array::from_slice(&[(begin - first * PAGE) as i32], &[1])?,
        most: n,
    })
}

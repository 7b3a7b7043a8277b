//! The part of [`Step`] that knows pages: which pages its tokens are written to, the tables of
//! pages that kernels read, and the pages that windows leave behind.

use mlx_core::{Array, Result, async_eval};

use super::Step;
use super::axis::Axis;
use crate::attend::Paged;
use crate::cache::ModelCache;
use crate::cache::pages::{PAGE, RowPages, SPARE};

/// The pages of a step for the layers of a group.
#[derive(Clone, Debug)]
pub(super) struct StepPages {
    pub(super) paged: Paged,
    /// The window of the layers.
    pub(super) window: Option<usize>,
}

/// The least number of columns of a table.
const COLUMNS: usize = 4;

/// A table of pages for `rows` of the given widths and lengths in a group: I32 `[B, P]`. Position p
/// of a row is in the page at column `p / PAGE mod P`. Rows without tokens have the spare page.
pub(super) fn table(rows: &[&RowPages], widths: &[usize], columns: usize) -> Result<Array> {
    let mut table = vec![SPARE as i32; rows.len() * columns];
    for ((row, pages), &width) in rows.iter().enumerate().zip(widths) {
        for (number, page) in pages.numbered().filter(|_| width > 0) {
            table[row * columns + number % columns] = page as i32;
        }
    }
    Array::from_slice(&table, &[rows.len() as i32, columns as i32])
}

/// The columns of the table of a step: enough for the pages that a row holds. The number changes
/// rarely, so that steps have the same graph.
fn columns(cache: &ModelCache, group: usize, axis: &Axis) -> usize {
    let window = cache.pool.borrow().groups()[group].window;
    let rows = cache.lens.iter().zip(&cache.pages).zip(axis.each());
    let spans = rows.map(|((&len, pages), places)| {
        let begin = match (window, pages[group].len()) {
            (None, _) => 0,
            (Some(window), 0) => (len + 1).saturating_sub(window) / PAGE * PAGE,
            (Some(_), _) => pages[group].begin(),
        };
        (len + places.len()).saturating_sub(begin).div_ceil(PAGE)
    });
    spans.max().unwrap_or(0).next_power_of_two().max(COLUMNS)
}

/// The columns and the table of the rows of a cache in a group.
pub(super) fn table_of(cache: &ModelCache, group: usize, axis: &Axis) -> Result<(usize, Array)> {
    let columns = columns(cache, group, axis);
    let rows: Vec<&RowPages> = cache.pages.iter().map(|row| &row[group]).collect();
    Ok((columns, table(&rows, &axis.widths, columns)?))
}

/// Gives each row pages for its tokens.
pub(super) fn prepare(step: &mut Step<'_>) -> Result<()> {
    if !step.cache.options.store {
        return Ok(());
    }
    let mut pool = step.cache.pool.borrow_mut();
    pool.settle();
    for group in 0..pool.groups().len() {
        let layers = &pool.groups()[group].layers;
        if !layers.iter().any(|layer| step.states.contains(layer)) {
            continue;
        }
        let mut copies = Vec::new();
        let rows = step.cache.pages.iter_mut();
        for ((pages, &len), &width) in rows.zip(&step.cache.lens).zip(&step.axis.widths) {
            match pool.check(group, &pages[group]) {
                Err(_) if len == 0 => pages[group] = pool.row().swap_remove(group),
                Err(error) if width > 0 => return Err(error),
                _ => {}
            }
            copies.extend(pages[group].prepare(len, len + width));
        }
        if !copies.is_empty() {
            step.lasts_until(0);
        }
        pool.copy(group, &copies)?;
    }
    Ok(())
}

/// The pages of this step for a layer.
pub(super) fn of_layer(step: &mut Step<'_>, layer: usize) -> Result<StepPages> {
    let group = step.cache.pool.borrow().group_of(layer)?;
    if let Some(pages) = step.pages.get(&group) {
        return Ok(pages.clone());
    }
    step.note_read(|reads| reads.lens = true);
    let (_, tables) = table_of(step.cache, group, &step.axis)?;
    let made = StepPages {
        paged: Paged {
            tables,
            starts: step.axis.starts.clone(),
            lens: step.axis.lens.clone(),
            most: step.axis.longest() as i32,
        },
        window: step.cache.pool.borrow().groups()[group].window,
    };
    step.pages.insert(group, made.clone());
    Ok(made)
}

/// The groups for which the step has made tables, and their columns.
pub(super) fn tables(step: &Step<'_>) -> Vec<(usize, usize)> {
    let tables = step.pages.iter().map(|(&group, pages)| {
        let columns = pages.paged.tables.shape()[1] as usize;
        (group, columns)
    });
    let mut tables: Vec<(usize, usize)> = tables.collect();
    tables.sort_unstable();
    tables
}

/// Releases pages that no later token sees. `lens` are the lengths that the layers of the step
/// have now. Where other layers of a group lag behind, their steps release the pages.
pub(super) fn pass_windows(step: &mut Step<'_>) {
    let pool = step.cache.pool.borrow();
    let slack = step.cache.options.slack;
    for (group, own) in pool.groups().iter().enumerate() {
        let is_whole = own.layers.iter().all(|layer| step.states.contains(layer));
        let is_own = own.layers.iter().any(|layer| step.states.contains(layer));
        let Some(window) = own.window else { continue };
        if is_whole || (is_own && step.own_lens.is_some()) {
            for (pages, &len) in step.cache.pages.iter_mut().zip(&step.cache.lens) {
                pages[group].drop_before(len.saturating_sub(window + slack));
            }
        }
    }
}

/// The tables of a step that repeats the one before: one for each entry of `last`, a group and its
/// columns. `None` if the graph of the step would differ. Pages that rows no longer share with
/// others are copied.
pub(super) fn repeated(
    cache: &mut ModelCache,
    axis: &Axis,
    last: &[(usize, usize)],
) -> Result<Option<Vec<Array>>> {
    let widths = &axis.widths;
    let mut tables = Vec::with_capacity(last.len());
    for &(group, held) in last {
        let mut copies = Vec::new();
        for ((pages, &len), &width) in cache.pages.iter_mut().zip(&cache.lens).zip(widths) {
            copies.extend(pages[group].prepare(len, len + width));
        }
        if !copies.is_empty() {
            let mut pool = cache.pool.borrow_mut();
            pool.copy(group, &copies)?;
            // Computed before the step, whose graph stays the same.
            async_eval(pool.arrays())?;
        }
        match table_of(cache, group, axis)? {
            (columns, table) if columns == held => tables.push(table),
            _ => return Ok(None),
        }
    }
    let pool = cache.pool.borrow();
    let moves = (0..cache.layers.len()).any(|layer| pool.moves(layer));
    Ok((!moves).then_some(tables))
}

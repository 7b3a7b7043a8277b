//! A cache with recurrent layers compared with a list of tokens for each row: random events on both.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use mlx_core::{Array, Result, fast};
use mlx_nn::{CacheOptions, ModelCache};
use proptest::prelude::*;

use crate::model::{E, VOCAB, forward, kinds, reference};

/// An event of a cache.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step with these widths, of which each row keeps a part (in sixteenths).
    Step {
        widths: Vec<usize>,
        keep: Vec<usize>,
    },
    /// A step that is dropped.
    Drop(Vec<usize>),
    /// Keep these rows, modulo how many there are.
    Select(Vec<usize>),
    /// Append a row that has read this many tokens of its own.
    Join(usize),
    /// Overwrite a row with one that has read this many tokens of its own.
    Put { row: usize, len: usize },
    /// Clear a row.
    Clear(usize),
    /// Continue with a clone, after the original has read something else.
    Fork,
    /// Record a row's length.
    Record(usize),
    /// Shorten a row to one of its recorded lengths, or to any other length.
    Truncate { row: usize, to: usize },
    /// Copy the first positions of a row, continue with the copy, and then with the row.
    Cut { row: usize, to: usize, width: usize },
}

pub fn events() -> impl Strategy<Value = Vec<Event>> {
    let widths = || prop::collection::vec(0..7usize, 5);
    let keep = || prop::collection::vec(0..17usize, 5);
    let row = || 0..5usize;
    let event = prop_oneof![
        5 => (widths(), keep()).prop_map(|(widths, keep)| Event::Step { widths, keep }),
        3 => (prop::collection::vec(0..3usize, 5), keep())
            .prop_map(|(widths, keep)| Event::Step { widths, keep }),
        2 => keep().prop_map(|keep| Event::Step { widths: vec![1; 5], keep }),
        1 => widths().prop_map(Event::Drop),
        1 => prop::collection::vec(row(), 1..5).prop_map(Event::Select),
        1 => (1..9usize).prop_map(Event::Join),
        2 => (row(), 1..9usize).prop_map(|(row, len)| Event::Put { row, len }),
        1 => row().prop_map(Event::Clear),
        1 => Just(Event::Fork),
        3 => row().prop_map(Event::Record),
        3 => (row(), 0..8usize).prop_map(|(row, to)| Event::Truncate { row, to }),
        2 => (row(), 0..8usize, 1..6usize)
            .prop_map(|(row, to, width)| Event::Cut { row, to, width }),
    ];
    prop::collection::vec(event, 1..14)
}

#[derive(Clone, Default)]
struct Row {
    tokens: Vec<u32>,
    recorded: BTreeSet<usize>,
}

/// The features of each token of a row, as bits.
pub type Features = Vec<Vec<u32>>;

pub struct Beside {
    cache: ModelCache,
    rows: Vec<Row>,
    window: Option<usize>,
    options: CacheOptions,
    /// The number of random tokens drawn so far.
    pub drawn: u32,
}

/// The features of rows that are computed alone, by their tokens and the attention's window.
type Known = HashMap<(Vec<u32>, Option<usize>), Features>;

thread_local! {
    static ALONE: RefCell<Known> = RefCell::default();
}

/// The features of a row that is computed alone, in one step. The function checks them too.
pub fn alone(tokens: &[u32], window: Option<usize>) -> Features {
    let key = (tokens.to_vec(), window);
    if let Some(known) = ALONE.with_borrow(|known| known.get(&key).cloned()) {
        return known;
    }
    let mut cache = ModelCache::new(&kinds(window), 1, CacheOptions::default());
    let mut step = cache.begin(&[tokens.len()]).unwrap();
    let ids = Array::from_slice(tokens, &[1, tokens.len() as i32]).unwrap();
    let found = forward(&ids, &mut step).unwrap().to_vec::<f32>().unwrap();
    for (at, expected) in reference(tokens, window).iter().enumerate() {
        for (e, expected) in expected.iter().enumerate() {
            let found = f64::from(found[at * E + e]);
            let limit = 2e-5 * (1.0 + expected.abs());
            assert!((found - expected).abs() < limit, "{found} for {expected}");
        }
    }
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect();
    let found: Features = found.chunks(E).map(bits).collect();
    ALONE.with_borrow_mut(|known| known.insert(key, found.clone()));
    found
}

impl Beside {
    pub fn new(options: CacheOptions, window: Option<usize>, rows: usize) -> Self {
        Self {
            cache: ModelCache::new(&kinds(window), rows, options),
            rows: vec![Row::default(); rows],
            window,
            options,
            drawn: 0,
        }
    }

    /// Runs a step in which each row must have the same features as alone; `keep: None` drops the
    /// step.
    pub fn step(&mut self, widths: &[usize], keep: Option<&[usize]>) -> Result<()> {
        let l = widths.iter().copied().max().unwrap_or(0);
        if l == 0 {
            assert!(self.cache.begin(widths).is_err());
            return Ok(());
        }
        let mut draw = || {
            self.drawn += 1;
            self.drawn.wrapping_mul(2_654_435_761) >> 27
        };
        let first = |row: usize| widths[..row].iter().sum::<usize>();
        let ids: Vec<u32> = (0..first(widths.len())).map(|_| draw()).collect();
        assert!(ids.iter().all(|&id| (id as usize) < VOCAB));
        let mut step = self.cache.begin(widths)?;
        let tokens = Array::from_slice(&ids, &[1, ids.len() as i32])?;
        let found = forward(&tokens, &mut step)?;
        let new = |row: usize, n: usize| &ids[first(row)..first(row) + n];
        if let Some(keep) = keep {
            let kept = |(row, &width): (usize, &usize)| {
                let part = (width * keep[row]).div_ceil(16);
                match l > self.options.slack + 1 {
                    // Rows keep all tokens of a wide step. Without a ring, a row may also keep
                    // none.
                    true if self.window.is_none() && part == 0 => 0,
                    true => width,
                    false => part,
                }
            };
            let keep: Vec<usize> = widths.iter().enumerate().map(kept).collect();
            step.commit(&keep)?;
            self.check(&found, widths, &ids)?;
            for (row, &keep) in keep.iter().enumerate() {
                self.rows[row].tokens.extend(new(row, keep));
            }
        } else {
            drop(step);
            self.check(&found, widths, &ids)?;
        }
        let lens: Vec<usize> = self.rows.iter().map(|row| row.tokens.len()).collect();
        assert_eq!(self.cache.lens(), lens);
        Ok(())
    }

    fn check(&self, found: &Array, widths: &[usize], ids: &[u32]) -> Result<()> {
        let found = found.to_vec::<f32>()?;
        let first = |row: usize| widths[..row].iter().sum::<usize>();
        // The BLAS of MLX's wheel adds in an order that depends on the number of rows. This
        // project's kernels do not.
        let to_the_bit = fast::form(fast::Op::Linear)? == fast::Form::Cpu;
        for (row, &width) in widths.iter().enumerate() {
            let before = self.rows[row].tokens.len();
            let whole = [&self.rows[row].tokens, &ids[first(row)..first(row) + width]].concat();
            if width == 0 {
                continue;
            }
            let expected = alone(&whole, self.window);
            for token in 0..width {
                let at = (first(row) + token) * E;
                let (found, expected) = (&found[at..at + E], &expected[before + token]);
                if to_the_bit {
                    let found: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(&found, expected, "row {row}, token {token}");
                } else {
                    let near = |(a, b): (&f32, &u32)| (a - f32::from_bits(*b)).abs() < 1e-4;
                    let all = found.iter().zip(expected).all(near);
                    assert!(all, "row {row}, token {token}: {found:?}");
                }
            }
        }
        Ok(())
    }

    /// A cache of one row that has read `len` tokens, in two steps with a record between.
    fn other(&mut self, len: usize) -> Result<Beside> {
        let mut other = Beside::new(self.options, self.window, 1);
        other.drawn = self.drawn;
        other.step(&[len], Some(&[16]))?;
        other.cache.record(0)?;
        other.rows[0].recorded.insert(len);
        other.step(&[1], Some(&[16]))?;
        self.drawn = other.drawn;
        Ok(other)
    }

    pub fn apply(&mut self, event: &Event) -> Result<()> {
        let n = self.rows.len();
        match event {
            Event::Step { widths, keep } => self.step(&widths[..n], Some(&keep[..n]))?,
            // A ring without slack loses the tokens that a wider step overwrites, also if the step
            // is dropped.
            Event::Drop(widths) => {
                let most = self.window.map_or(usize::MAX, |_| self.options.slack + 1);
                let widths: Vec<usize> = widths[..n].iter().map(|&w| w.min(most)).collect();
                self.step(&widths, None)?;
            }
            Event::Select(rows) => {
                let rows: Vec<usize> = rows.iter().map(|row| row % n).collect();
                self.cache.select(&rows)?;
                self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
            }
            Event::Join(len) if n < 5 => {
                let mut other = self.other(*len)?;
                self.cache.join(&other.cache)?;
                self.rows.append(&mut other.rows);
            }
            Event::Join(_) => {}
            Event::Put { row, len } => {
                let mut both = self.other(len + 2)?;
                let mut other = self.other(*len)?;
                both.cache.join(&other.cache)?;
                self.cache.put(row % n, &both.cache, 1)?;
                self.rows[row % n] = other.rows.remove(0);
            }
            Event::Clear(row) => {
                self.cache.clear(row % n);
                self.rows[row % n] = Row::default();
            }
            Event::Fork => {
                let copy = (self.cache.clone(), self.rows.clone());
                self.step(&vec![1; n], Some(&vec![16; n]))?;
                (self.cache, self.rows) = copy;
            }
            Event::Record(row) => {
                let row = row % n;
                self.cache.record(row)?;
                let len = self.rows[row].tokens.len();
                self.rows[row].recorded.insert(len);
            }
            Event::Truncate { row, to } => self.truncate(row % n, *to)?,
            Event::Cut { row, to, width } => self.cut(row % n, *to, *width)?,
        }
        Ok(())
    }

    /// One of the lengths to which a row can be shortened, or a length that may be impossible.
    fn length(&self, row: usize, to: usize) -> usize {
        let row = &self.rows[row];
        let lengths = row.recorded.iter().filter(|&&len| len <= row.tokens.len());
        let nth = lengths.copied().nth(to);
        nth.unwrap_or(row.tokens.len().saturating_sub(to / 2))
    }

    fn truncate(&mut self, row: usize, to: usize) -> Result<()> {
        let (len, held) = (self.length(row, to), self.rows[row].tokens.len());
        let is_recorded = len == 0 || len == held || self.rows[row].recorded.contains(&len);
        let can = self.cache.can_shorten(row, len);
        assert!(can == is_recorded || (self.window.is_some() && !can));
        let most = (0..=len)
            .rev()
            .find(|&len| self.cache.can_shorten(row, len));
        assert_eq!(self.cache.longest_prefix(row, len), most.unwrap_or(0));
        let done = self.cache.truncate(row, len);
        assert_eq!(done.is_ok(), can, "{done:?}");
        if can {
            self.rows[row].tokens.truncate(len);
            self.rows[row].recorded.retain(|&at| at <= len);
        }
        Ok(())
    }

    /// The first positions of a row are right as views, as copies and as rows that are made from
    /// the arrays of the copies. Continuing from any of these does not change the row.
    fn cut(&mut self, row: usize, to: usize, width: usize) -> Result<()> {
        let len = self.length(row, to);
        if len == 0 || !self.cache.can_shorten(row, len) {
            return Ok(());
        }
        let view = self.cache.prefix(row, len)?;
        let copy = view.detached()?;
        mlx_core::eval(copy.arrays())?;
        let arrays = copy.to_row(0)?;
        let written = copy.written(0);
        let kinds = kinds(self.window);
        let mut caches = vec![(view, len), (copy.clone(), len)];
        if written <= len + self.options.slack + 1 {
            let mut filled = ModelCache::from_row(&kinds, self.options, len, written, arrays)?;
            for at in copy.recorded(0) {
                let states = copy.recorded_state(0, at).into_iter();
                let states = states.map(|(_, arrays)| arrays.to_vec()).collect();
                filled.restore(0, at, states)?;
            }
            // The full length is not recorded, because it is the length of the row itself.
            caches.push((filled, len - 1));
        }
        for (cache, most) in caches {
            let mut row = self.rows[row].clone();
            row.tokens.truncate(len);
            row.recorded.retain(|&at| at <= most);
            let known = row.recorded.iter().filter(|&&at| at > 0 && at < len);
            assert!(known.copied().eq(cache.recorded(0)));
            let mut cut = Beside {
                cache,
                rows: vec![row],
                window: self.window,
                options: self.options,
                drawn: self.drawn,
            };
            cut.step(&[width], Some(&[16]))?;
            cut.truncate(0, to)?;
            cut.step(&[1], Some(&[16]))?;
            self.drawn = cut.drawn;
        }
        let n = self.rows.len();
        self.step(&vec![1; n], Some(&vec![16; n]))
    }
}

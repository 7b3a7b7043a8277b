//! The caches compared with a simple model: a list of token numbers for each row.
//!
//! Queries and keys are zero, so a query gives all its unmasked keys the same weight. The value of a token is a one in
//! the column of its number. The output shows which tokens a query attends to.

use std::rc::Rc;

use mlx_core::{Array, DType, Graph, QuantMode, Result, Scheme, graph_size, ops::create::zeros};
use mlx_nn::{Attend, CacheOptions, LayerKind, ModelCache};
use proptest::prelude::*;

const NUMBERS: usize = 1536;
/// Features of a key.
const D: i32 = 32;
const WINDOW: usize = 5;

/// An event of a cache.
#[derive(Clone, Debug)]
enum Event {
    /// A step with these widths, of which each row keeps a part (in sixteenths).
    Step {
        widths: Vec<usize>,
        keep: Vec<usize>,
    },
    /// Keep these rows, modulo how many there are.
    Select(Vec<usize>),
    /// Append a row that has read this many tokens of its own.
    Join(usize),
    /// Overwrite a row with one that has read this many tokens of its own.
    Put { row: usize, len: usize },
    /// Continue with a clone, after the original has written something else.
    Fork,
    /// Shorten a row, if that is possible.
    Truncate { row: usize, by: usize },
    /// Copy the first positions of a row, continue with the copy, and then with the row.
    Cut { row: usize, by: usize, width: usize },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (prop::collection::vec(0..9usize, 6), prop::collection::vec(0..17usize, 6))
            .prop_map(|(widths, keep)| Event::Step { widths, keep }),
        4 => prop::collection::vec(0..17usize, 6).prop_map(|keep| Event::Step { widths: vec![1; 6], keep }),
        1 => prop::collection::vec(0..6usize, 1..5).prop_map(Event::Select),
        1 => (1..12usize).prop_map(Event::Join),
        2 => (0..6usize, 1..12usize).prop_map(|(row, len)| Event::Put { row, len }),
        1 => Just(Event::Fork),
        1 => (0..6usize, 0..4usize).prop_map(|(row, by)| Event::Truncate { row, by }),
        2 => (0..6usize, 0..4usize, 1..9usize).prop_map(|(row, by, width)| Event::Cut { row, by, width }),
    ];
    prop::collection::vec(event, 1..14)
}

struct Beside {
    cache: ModelCache,
    rows: Vec<Vec<usize>>,
    windows: Vec<Option<usize>>,
    options: CacheOptions,
    next: usize,
    /// The graph of the cache's last step, if the buffers were evaluated when the step began, and
    /// whether the step repeated another.
    graph: Option<(Rc<Graph>, bool)>,
}

const PLAIN: Attend<'_> = Attend {
    scale: 1.0,
    softcap: None,
    sinks: None,
    alibi: None,
};

const KINDS: [LayerKind; 2] = [LayerKind::Full, LayerKind::Window(WINDOW)];

impl Beside {
    fn new(options: CacheOptions, rows: usize) -> Self {
        let (kinds, max_context) = (KINDS, options.max_context);
        Self {
            cache: ModelCache::new(&kinds, rows, options),
            rows: vec![Vec::new(); rows],
            windows: vec![
                max_context,
                Some(max_context.map_or(WINDOW, |limit| limit.min(WINDOW))),
            ],
            options,
            next: 0,
            graph: None,
        }
    }

    fn step(&mut self, widths: &[usize], keep: &[usize]) -> Result<()> {
        let (b, t) = (widths.len(), widths.iter().sum::<usize>());
        if t == 0 {
            assert!(self.cache.begin(widths).is_err());
            return Ok(());
        }
        let first = |row: usize| widths[..row].iter().sum::<usize>();
        // Every token of the step has its own number.
        let number = |row: usize, token: usize| (self.next + first(row) + token) % NUMBERS;
        let mut values = vec![0.0f32; t * NUMBERS];
        for row in 0..b {
            for token in 0..widths[row] {
                values[(first(row) + token) * NUMBERS + number(row, token)] = 1.0;
            }
        }
        let v = Array::from_slice(&values, &[1, 1, t as i32, NUMBERS as i32])?;
        let k = zeros(&[1, 1, t as i32, D], DType::F32)?;
        let q = zeros(&[1, 2, t as i32, D], DType::F32)?;
        let part = |row: usize| (widths[row] * keep[row]).div_ceil(16);
        let keep: Vec<usize> = (0..b).map(part).collect();
        let repeats = self.cache.begin_repeated(widths)?.is_some();
        let is_evaluated = graph_size(self.cache.arrays())? == 0;
        let mut step = self.cache.begin(widths)?;
        let mut seen = Vec::new();
        for layer in 0..self.windows.len() {
            let options = Attend {
                scale: 1.0,
                softcap: (layer == 0).then_some(30.0),
                sinks: None,
                alibi: None,
            };
            seen.push(step.attend_and_share(layer, &q, &k, &v, &options)?);
        }
        let graph = Graph::of(&seen)?;
        if let (true, true, Some((before, repeated))) = (repeats, is_evaluated, &self.graph) {
            assert!(graph.is_same(before)?, "{widths:?}");
            // The step before the first repetition may have copied buffers that were views.
            let mut made = step.inputs();
            made.extend([&q, &k, &v].map(Array::clone));
            assert!(!repeated || graph.other_inputs(before, &made)? == 0);
        }
        self.graph = is_evaluated.then(|| (Rc::new(graph), repeats));
        // A layer that reads the keys and values of an earlier layer attends to the same tokens as
        // the earlier layer.
        let q = zeros(&[1, 3, t as i32, D], DType::F32)?;
        let mut again = Vec::new();
        for (layer, seen) in seen.iter().enumerate() {
            let all = step.attend_to_shared(layer, &q, &PLAIN)?;
            let head = all.slice_axis(1, 2, 3)?;
            again.push(head.subtract(seen.slice_axis(1, 0, 1)?)?.abs()?);
        }
        assert!(step.attend_to_shared(2, &q, &PLAIN).is_err());
        step.commit(&keep)?;
        for off in again {
            let off = off.max(.., false)?.item::<f32>()?;
            assert!(off < 1e-5, "an earlier layer's keys: off by {off}");
        }
        for (layer, window) in self.windows.iter().enumerate() {
            let out = seen[layer].to_vec::<f32>()?;
            for (row, &width) in widths.iter().enumerate() {
                for token in 0..width {
                    let mut row_tokens = self.rows[row].clone();
                    row_tokens.extend((0..=token).map(|token| number(row, token)));
                    let from = window.map_or(0, |window| row_tokens.len().saturating_sub(window));
                    let expected = &row_tokens[from..];
                    let at = (first(row) + token) * NUMBERS;
                    let weight = 1.0 / expected.len() as f32;
                    for (column, &found) in out[at..at + NUMBERS].iter().enumerate() {
                        let wanted = if expected.contains(&column) {
                            weight
                        } else {
                            0.0
                        };
                        assert!(
                            (found - wanted).abs() < 1e-5,
                            "layer {layer}, row {row}, token {token}: sees {column} with {found}, should with {wanted}"
                        );
                    }
                }
            }
        }
        for (row, &keep) in keep.iter().enumerate() {
            let kept: Vec<usize> = (0..keep).map(|token| number(row, token)).collect();
            self.rows[row].extend(kept);
        }
        self.next = (self.next + t) % NUMBERS;
        let lens: Vec<usize> = self.rows.iter().map(Vec::len).collect();
        assert_eq!(self.cache.lens(), lens);
        Ok(())
    }

    /// A cache of one row that has read `len` tokens.
    fn other(&self, len: usize) -> Result<Beside> {
        let mut other = Beside::new(self.options, 1);
        other.next = self.next;
        other.step(&[len], &[16])?;
        Ok(other)
    }

    fn apply(&mut self, event: &Event) -> Result<()> {
        let n = self.rows.len();
        match event {
            Event::Step { widths, keep } => self.step(&widths[..n], &keep[..n])?,
            Event::Select(rows) => {
                let rows: Vec<usize> = rows.iter().map(|row| row % n).collect();
                self.cache.select(&rows)?;
                self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
            }
            Event::Join(len) if n < 5 => {
                let mut other = self.other(*len)?;
                self.cache.join(&other.cache)?;
                self.rows.append(&mut other.rows);
                self.next = other.next;
            }
            Event::Join(_) => {}
            Event::Fork => {
                let copy = (self.cache.clone(), self.rows.clone(), self.graph.clone());
                self.step(&vec![1; n], &vec![16; n])?;
                (self.cache, self.rows, self.graph) = copy;
            }
            Event::Put { row, len } => {
                let mut other = self.other(*len)?;
                // The second of two rows, of which the first is longer.
                let mut both = self.other(len + 3)?;
                both.cache.join(&other.cache)?;
                self.cache.put(row % n, &both.cache, 1)?;
                self.rows[row % n] = other.rows.remove(0);
                self.next = both.next.max(other.next);
            }
            Event::Truncate { row, by } => {
                let row = row % n;
                let len = self.rows[row].len().saturating_sub(*by);
                if self.cache.truncate(row, len).is_ok() {
                    self.rows[row].truncate(len);
                }
            }
            Event::Cut { row, by, width } => self.cut(row % n, *by, *width)?,
        }
        Ok(())
    }

    /// The first positions of a row are right as views, as copies and as rows that are made from
    /// the arrays of the copies. Continuing from any of these does not change the row.
    fn cut(&mut self, row: usize, by: usize, width: usize) -> Result<()> {
        let len = self.rows[row].len().saturating_sub(by);
        if len == 0 || !self.cache.can_shorten(row, len) {
            return Ok(());
        }
        let view = self.cache.prefix(row, len)?;
        let copy = view.detached()?;
        mlx_core::eval(copy.arrays())?;
        let arrays = copy.to_row(0)?;
        let written = copy.written(0);
        let filled = match written <= len + self.options.slack + 1 {
            true => ModelCache::from_row(&KINDS, self.options, len, written, arrays)?,
            false => copy.clone(),
        };
        for cache in [view, copy.clone(), filled, copy] {
            let mut cut = Beside {
                cache,
                rows: vec![self.rows[row][..len].to_vec()],
                windows: self.windows.clone(),
                options: self.options,
                next: self.next,
                graph: None,
            };
            cut.step(&[width], &[16])?;
            cut.step(&[1], &[16])?;
            self.next = cut.next;
        }
        let n = self.rows.len();
        self.step(&vec![1; n], &vec![16; n])
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 90,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_query_sees_its_own_row(
        events in events(),
        slack in prop::sample::select(vec![0usize, 1, 3]),
        max_context in prop::sample::select(vec![None, Some(7usize)]),
        bits in prop::sample::select(vec![None, Some(4), Some(8)]),
        rows in 1..4usize,
    ) {
        let options = CacheOptions { slack, max_context, ..packed(bits) };
        let mut beside = Beside::new(options, rows);
        for event in &events {
            beside.apply(event).unwrap();
        }
    }
}

/// Quantised options. Quantisation changes only the last bits of a one among zeros.
fn packed(bits: Option<i32>) -> CacheOptions {
    let scheme = |bits| Scheme::new(32, bits, QuantMode::Affine).unwrap();
    CacheOptions {
        quantized: bits.map(scheme),
        ..CacheOptions::default()
    }
}

#[test]
fn a_step_that_is_dropped_leaves_nothing() {
    let mut beside = Beside::new(packed(None), 2);
    beside.step(&[9, 4], &[16, 16]).unwrap();
    {
        let k = zeros(&[1, 1, 5, D], DType::F32).unwrap();
        let v = mlx_core::ops::create::ones(&[1, 1, 5, NUMBERS as i32], DType::F32).unwrap();
        let q = zeros(&[1, 2, 5, D], DType::F32).unwrap();
        let mut step = beside.cache.begin(&[3, 2]).unwrap();
        for layer in 0..2 {
            step.attend(layer, &q, &k, &v, &PLAIN).unwrap();
        }
    }
    beside.step(&[1, 1], &[16, 16]).unwrap();
}

/// Rows that begin alike hold their common pages once, and a long row makes no other longer.
#[test]
fn rows_take_the_memory_of_their_own_positions() {
    let kinds = [LayerKind::Full, LayerKind::Window(100)];
    let mut cache = ModelCache::new(&kinds, 1, CacheOptions::default());
    let read = |cache: &mut ModelCache, widths: &[usize]| {
        let tokens = widths.iter().sum::<usize>() as i32;
        let x = zeros(&[1, 1, tokens, D], DType::F32).unwrap();
        let mut step = cache.begin(widths).unwrap();
        let seen: Vec<Array> = (0..2)
            .map(|layer| step.attend(layer, &x, &x, &x, &PLAIN).unwrap())
            .collect();
        step.commit_all().unwrap();
        mlx_core::eval(seen).unwrap();
    };
    read(&mut cache, &[2000]);
    // Keys and values of 32 numbers, in pages of 64 positions.
    let page = 2 * 64 * D as usize * 4;
    let of_one = 32 * page + 3 * page;
    assert_eq!(cache.nbytes(), of_one);
    cache.select(&[0; 32]).unwrap();
    assert_eq!(cache.nbytes(), of_one);
    // Each row writes to its last page, of which it needs a copy.
    read(&mut cache, &[1; 32]);
    assert_eq!(cache.nbytes(), of_one + 31 * 2 * page);
    for row in 1..32 {
        cache.clear(row);
    }
    assert_eq!(cache.nbytes(), of_one);
    cache.clear(0);
    assert_eq!(cache.nbytes(), 0);
    cache.release();
    assert!(cache.arrays().is_empty());
}

/// Decoding with the next step queued before the last one is read must not copy the buffers.
#[test]
fn the_buffer_does_not_move_while_steps_are_in_flight() {
    let kinds = [LayerKind::Full, LayerKind::Window(16)];
    for (kind, bits) in kinds
        .into_iter()
        .zip([None, Some(8)])
        .chain(kinds.into_iter().zip([Some(4), None]))
    {
        let mut cache = ModelCache::new(&[kind], 1, packed(bits));
        let mut outputs: Vec<Array> = Vec::new();
        let mut addresses = Vec::new();
        for position in 0..40i32 {
            let x =
                mlx_core::ops::create::full(&[1, 1, 1, 32], position as f32, DType::F32).unwrap();
            let mut step = cache.begin(&[1]).unwrap();
            let options = Attend {
                scale: 0.0,
                softcap: None,
                sinks: None,
                alibi: None,
            };
            let y = step.attend(0, &x, &x, &x, &options).unwrap();
            step.commit_all().unwrap();
            mlx_core::async_eval([&y]).unwrap();
            outputs.push(y);
            // The ring grows to its size once; after that the buffer stays.
            if position == 20 {
                addresses.extend(cache.arrays().iter().map(|array| array.address().unwrap()));
            }
        }
        let after: Vec<usize> = cache
            .arrays()
            .iter()
            .map(|array| array.address().unwrap())
            .collect();
        assert_eq!(after, addresses, "{kind:?}, {bits:?}");
        let mean = outputs[39].to_vec::<f32>().unwrap()[0];
        let expected = if kind == LayerKind::Full { 19.5 } else { 31.5 };
        assert!((mean - expected).abs() < 1e-4, "{kind:?}, {bits:?}: {mean}");
    }
}

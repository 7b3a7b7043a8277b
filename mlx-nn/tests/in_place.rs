//! Recurrent states that are written in place, against states that each step replaces.

use mlx_core::fast::{self, Op, RaggedScan, form};
use mlx_core::random::{Key, normal};
use mlx_core::{Array, DType, Result, eval, zeros};
use mlx_nn::{
    Activation, CacheOptions, LayerKind, ModelCache, RecurrentShape, StatePart, Step, Taps,
};

const HEADS: i32 = 2;
const DIM: i32 = 4;
/// Values, keys and queries.
const CHANNELS: i32 = (HEADS + 2) * DIM;
const TAPS: i32 = 3;

const KINDS: [LayerKind; 2] = [LayerKind::Recurrent(SHAPE); 2];
const SHAPE: RecurrentShape = RecurrentShape::new(&[
    StatePart::Window {
        name: "conv",
        len: TAPS - 1,
        width: CHANNELS,
    },
    StatePart::Carry {
        name: "scan",
        shape: [HEADS, DIM, DIM],
        dtype: DType::F32,
    },
])
.with_slots();

/// Whether states are written in place: MLX's own operations, the plain form, make new arrays.
fn has_places() -> Result<bool> {
    Ok(form(Op::Attention)? != fast::Form::Plain)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn noise(seed: u64, shape: &[i32]) -> Result<Array> {
    let made = normal(&Key::new(seed)?, shape, DType::F32)?;
    made.eval()?;
    Ok(made)
}

struct Weights {
    taps: Array,
    numbers: Array,
}

impl Weights {
    fn new() -> Result<Self> {
        Ok(Self {
            taps: noise(1, &[TAPS, CHANNELS])?,
            numbers: noise(2, &[HEADS])?,
        })
    }

    /// A layer over inputs `[1, T, CHANNELS]`.
    fn layer(&self, layer: usize, x: &Array, step: &mut Step<'_>) -> Result<Array> {
        let taps = Taps {
            taps: &self.taps,
            bias: None,
            activation: Some(Activation::Silu),
        };
        let x = step.convolve(layer, 0, x, &taps)?;
        let of = RaggedScan {
            x: &x,
            dt: &zeros([1, x.dim(1)?, HEADS], DType::F32)?,
            rate: &self.numbers.exp()?,
            bias: &self.numbers,
            skip: &self.numbers,
            groups: 1,
            key_dim: DIM,
            limits: (0.01, 2.0),
        };
        step.scan(layer, 1, &of)
    }

    /// A step of which rows keep `keep[b]` tokens. Nothing is evaluated. Returns the features `[1, T, ..]`,
    /// with zeros for places of no token.
    fn step(
        &self,
        cache: &mut ModelCache,
        widths: &[usize],
        keep: &[usize],
        of: &Run,
    ) -> Result<Array> {
        let mut step = match of.places {
            Some(places) => cache.begin_padded(0..KINDS.len(), widths, places)?,
            None => cache.begin_slots(0..KINDS.len(), None, widths)?,
        };
        match of.form {
            Form::New => {}
            Form::Slots => {
                step.keep_any()?;
            }
            Form::InPlace => step.keep_all(),
        }
        let x = noise(of.inputs, &[1, step.tokens() as i32, CHANNELS])?;
        let first = self.layer(0, &x, &mut step)?;
        let second = self.layer(1, &x.multiply(0.5f32)?, &mut step)?;
        let places = step.places().zip(widths);
        let real = places.flat_map(|(places, &width)| (0..places.len()).map(move |at| at < width));
        let real: Vec<bool> = real.collect();
        let real = Array::from_slice(&real, &[1, real.len() as i32, 1])?;
        step.commit(keep)?;
        real.select(&first.add(second)?, 0.0f32)
    }
}

/// Where a step stores states.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// In new arrays.
    New,
    /// In place, after each token.
    Slots,
    /// In place, after all tokens.
    InPlace,
}

/// How a step is computed.
struct Run {
    form: Form,
    /// The places of each row, if rows are padded.
    places: Option<usize>,
    inputs: u64,
}

/// Random uses of a few caches. With states in place the results are evaluated at the end, otherwise
/// after each use. `keeps_parts`: rows keep a part of their tokens in some steps.
fn schedule(seed: u64, in_place: bool, keeps_parts: bool) -> Result<Vec<Vec<f32>>> {
    let (weights, mut random) = (Weights::new()?, Random(seed));
    let options = CacheOptions {
        slack: 2,
        ..Default::default()
    };
    let mut caches = vec![ModelCache::new(&KINDS, 3, options)];
    let mut results: Vec<Array> = Vec::new();
    for number in 0..60 {
        let has_parts = keeps_parts && number % 5 < 3;
        let of = Run {
            form: match (in_place, has_parts) {
                (false, _) => Form::New,
                (true, true) => Form::Slots,
                (true, false) => Form::InPlace,
            },
            places: (has_parts && number % 2 == 0).then_some(3),
            inputs: seed * 1000 + number,
        };
        let at = random.below(caches.len());
        let rows = caches[at].rows();
        let row = random.below(rows);
        match random.below(12) {
            0 => {
                let copy = caches[at].clone();
                caches.push(copy);
            }
            1 => {
                let len = caches[at].lens()[row];
                if len > 0 {
                    let states = caches[at].keep_states(row, len)?.expect("its own length");
                    results.extend(states.arrays().cloned());
                    let kept = caches[at].row_of(&[], &[(len, &states)], len)?;
                    let to = random.below(rows);
                    caches[at].put(to, &kept, 0)?;
                    caches.push(kept);
                }
            }
            2 => {
                let from = random.below(caches.len());
                let other = caches[from].clone();
                let of_other = random.below(other.rows());
                caches[at].put(row, &other, of_other)?;
            }
            3 => caches[at].select(&[row, random.below(rows)])?,
            4 if rows < 4 => {
                let other = caches[random.below(caches.len())].clone();
                caches[at].join(&other)?;
            }
            5 => caches[at].clear(row),
            6 if caches[at].lens()[row] > 0 => {
                let len = caches[at].lens()[row];
                caches[at].record(row)?;
                let widths: Vec<usize> = (0..rows).map(|other| usize::from(other == row)).collect();
                results.push(weights.step(&mut caches[at], &widths, &widths, &of)?);
                caches[at].truncate(row, len)?;
            }
            7 if caches[at].lens()[row] > 0 => {
                let len = caches[at].lens()[row];
                let prefix = caches[at].prefix(row, len)?;
                caches.push(prefix);
            }
            _ => {
                let widths: Vec<usize> = (0..rows).map(|_| random.below(3)).collect();
                let part = |&width: &usize| match width {
                    2 if has_parts => 1 + random.below(2),
                    width => width,
                };
                let keep: Vec<usize> = widths.iter().map(part).collect();
                if widths.iter().any(|&width| width > 0) {
                    results.push(weights.step(&mut caches[at], &widths, &keep, &of)?);
                }
            }
        }
        if caches.len() > 4 {
            caches.swap_remove(random.below(4));
        }
        if !in_place {
            eval(caches.iter().flat_map(ModelCache::arrays))?;
            eval(&results)?;
        }
    }
    results.iter().map(Array::to_vec::<f32>).collect()
}

#[test]
fn states_in_place_are_those_of_new_arrays() -> Result<()> {
    // A step of the plain form rounds by its width, so its rows that keep parts differ in the last bits.
    let seeds = if has_places()? { 80 } else { 40 };
    for seed in 0..seeds {
        let keeps_parts = seed >= 40;
        let wanted = schedule(seed, false, keeps_parts)?;
        let found = schedule(seed, true, keeps_parts)?;
        assert!(wanted.len() > 10, "schedule {seed}");
        let other = (0..wanted.len()).find(|&at| wanted[at] != found[at]);
        assert_eq!(other, None, "schedule {seed}");
    }
    Ok(())
}

#[test]
fn states_stay_where_they_are() -> Result<()> {
    if !has_places()? {
        return Ok(());
    }
    let weights = Weights::new()?;
    let mut cache = ModelCache::new(&KINDS, 3, CacheOptions::default());
    let addresses = |cache: &ModelCache| -> Result<Vec<usize>> {
        let arrays = cache.row_arrays();
        eval(&arrays)?;
        arrays.iter().map(|array| array.address()).collect()
    };
    let of = |inputs| Run {
        form: Form::InPlace,
        places: None,
        inputs,
    };
    weights
        .step(&mut cache, &[2, 1, 1], &[2, 1, 1], &of(1))?
        .eval()?;
    let before = addresses(&cache)?;
    for number in 0..4 {
        weights
            .step(&mut cache, &[1, 1, 1], &[1, 1, 1], &of(number))?
            .eval()?;
        assert_eq!(addresses(&cache)?, before, "step {number}");
    }
    // A row leaves, another joins, and the state of one is kept.
    cache.clear(1);
    weights
        .step(&mut cache, &[1, 0, 1], &[1, 0, 1], &of(7))?
        .eval()?;
    let mut new = cache.beside(1);
    weights.step(&mut new, &[5], &[5], &of(8))?.eval()?;
    cache.put(1, &new, 0)?;
    let kept = cache.keep_states(2, cache.lens()[2])?;
    weights
        .step(&mut cache, &[1, 1, 1], &[1, 1, 1], &of(9))?
        .eval()?;
    assert_eq!(addresses(&cache)?, before);
    assert!(kept.is_some());
    // A copy of the cache keeps its state.
    let copy = cache.clone();
    let held = addresses(&copy)?;
    weights
        .step(&mut cache, &[1, 1, 1], &[1, 1, 1], &of(10))?
        .eval()?;
    assert_eq!(addresses(&copy)?, held);
    assert_ne!(addresses(&cache)?, held);
    Ok(())
}

#[test]
fn a_step_that_was_to_keep_all_tokens_cannot_keep_a_part() -> Result<()> {
    if !has_places()? {
        return Ok(());
    }
    let weights = Weights::new()?;
    let mut cache = ModelCache::new(&KINDS, 2, CacheOptions::default());
    let of = Run {
        form: Form::InPlace,
        places: None,
        inputs: 1,
    };
    weights.step(&mut cache, &[2, 2], &[2, 2], &of)?.eval()?;
    let mut step = cache.begin(&[2, 1])?;
    step.keep_all();
    let x = noise(3, &[1, 3, CHANNELS])?;
    for layer in 0..KINDS.len() {
        weights.layer(layer, &x, &mut step)?;
    }
    let error = step.commit(&[1, 1]).unwrap_err().to_string();
    assert!(
        error.contains("[2, 1]") && error.contains("[1, 1]"),
        "{error}"
    );
    assert_eq!(cache.lens(), [2, 2]);
    Ok(())
}

/// Steps of which rows keep parts write the same arrays, and no state is copied.
#[test]
fn states_of_tokens_stay_where_they_are() -> Result<()> {
    if !has_places()? {
        return Ok(());
    }
    let weights = Weights::new()?;
    let mut cache = ModelCache::new(&KINDS, 2, CacheOptions::default());
    let addresses = |cache: &ModelCache| -> Result<Vec<usize>> {
        let arrays = cache.row_arrays();
        eval(&arrays)?;
        arrays.iter().map(|array| array.address()).collect()
    };
    let of = |inputs, form, places| Run {
        form,
        places,
        inputs,
    };
    let first = of(1, Form::New, None);
    weights.step(&mut cache, &[2, 1], &[2, 1], &first)?.eval()?;
    let narrow = cache.nbytes();
    let mut step = |widths: [usize; 2], keep: [usize; 2], of: Run| -> Result<Vec<usize>> {
        weights.step(&mut cache, &widths, &keep, &of)?.eval()?;
        assert_eq!(cache.spare_state_bytes(), 2 * narrow);
        assert_eq!(cache.nbytes(), 3 * narrow);
        addresses(&cache)
    };
    let before = step([3, 2], [1, 2], of(2, Form::Slots, Some(3)))?;
    for number in 0..6 {
        let keep = [1 + number % 3, 1 + number % 2];
        let of = match number {
            3 => of(number as u64, Form::InPlace, None),
            _ => of(number as u64, Form::Slots, Some(3)),
        };
        let (widths, keep) = match number {
            3 => ([1, 1], [1, 1]),
            _ => ([3, 2], keep),
        };
        assert_eq!(step(widths, keep, of)?, before, "step {number}");
    }
    // Other rows have no spare slots.
    cache.select(&[1, 0])?;
    assert_eq!((cache.spare_state_bytes(), cache.nbytes()), (0, narrow));
    Ok(())
}

/// A repeated step has the inputs and the lengths of a built one, whatever rows keep.
#[test]
fn repeated_steps_move_rows_between_slots_as_built_ones() -> Result<()> {
    if !has_places()? {
        return Ok(());
    }
    let weights = Weights::new()?;
    let begun = || -> Result<ModelCache> {
        let mut cache = ModelCache::new(&KINDS, 2, CacheOptions::default());
        for (number, form) in [Form::New, Form::Slots].into_iter().enumerate() {
            let of = Run {
                form,
                places: (number == 1).then_some(3),
                inputs: number as u64,
            };
            weights.step(&mut cache, &[2, 1], &[2, 1], &of)?.eval()?;
        }
        Ok(cache)
    };
    let (mut built, mut again) = (begun()?, begun()?);
    for number in 0..7 {
        let widths = [[3, 2], [3, 0], [1, 3]][number % 3];
        let keep = widths.map(|width| width.min(1 + number % 3));
        assert!(again.begin_repeated(&widths)?.is_none(), "step {number}");
        assert!(again.begin_repeated_padded(&widths, 4)?.is_none());
        let repeated = again.begin_repeated_padded(&widths, 3)?;
        let repeated = repeated.expect("the step before had the same shape");
        let mut step = built.begin_padded(0..KINDS.len(), &widths, 3)?;
        assert!(step.keep_any()?);
        let x = noise(number as u64, &[1, 6, CHANNELS])?;
        for layer in 0..KINDS.len() {
            weights.layer(layer, &x, &mut step)?;
        }
        let wanted = step.inputs();
        assert_eq!(repeated.inputs().len(), wanted.len());
        for (found, wanted) in repeated.inputs().iter().zip(&wanted) {
            let found: Vec<i32> = found.to_vec()?;
            assert_eq!(found, wanted.to_vec::<i32>()?, "step {number}");
        }
        step.commit(&keep)?;
        repeated.commit_part(&keep)?;
        assert_eq!(again.lens(), built.lens(), "step {number}");
    }
    let lens = again.lens().to_vec();
    let repeated = again.begin_repeated_padded(&[1, 2], 3)?;
    let error = repeated.expect("the same shape").commit_part(&[2, 2]);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("[1, 2]") && error.contains("[2, 2]"),
        "{error}"
    );
    assert_eq!(again.lens(), lens);
    Ok(())
}

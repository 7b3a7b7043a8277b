//! The steps of a cache that repeat the step before them, and their effect on the cache. `cache.rs`
//! compares the graphs of such steps.

use mlx_core::fast::{Form, Op, form};
use mlx_core::{Array, DType, Result, eval, ops::create::zeros};
use mlx_nn::{
    Attend, CacheOptions, LayerKind, ModelCache, RecurrentShape, StatePart, Step, StepGraph,
};

const KINDS: [LayerKind; 2] = [LayerKind::Full, LayerKind::Window(6)];

const OPTIONS: CacheOptions = CacheOptions {
    slack: 0,
    max_context: None,
    store: true,
    quantized: None,
};

/// A step that keeps all of its tokens.
fn step(cache: &mut ModelCache, widths: &[usize]) -> Result<()> {
    let mut step = cache.begin(widths)?;
    let seen: Vec<Array> = (0..KINDS.len())
        .map(|layer| attend(&mut step, layer))
        .collect::<Result<_>>()?;
    step.commit_all()?;
    eval(seen)
}

fn attend(step: &mut Step<'_>, layer: usize) -> Result<Array> {
    let x = zeros(&[1, 1, step.tokens() as i32, 32], DType::F32)?;
    let options = Attend {
        scale: 1.0,
        softcap: None,
        sinks: None,
        alibi: None,
    };
    step.attend(layer, &x, &x, &x, &options)
}

fn started(lens: &[usize]) -> Result<ModelCache> {
    let mut cache = ModelCache::new(&KINDS, lens.len(), OPTIONS);
    step(&mut cache, lens)?;
    Ok(cache)
}

/// Whether steps can repeat: the plain form makes index arrays for each step.
fn is_on() -> Result<bool> {
    Ok(form(Op::Attention)? != Form::Plain)
}

fn repeats(cache: &mut ModelCache, widths: &[usize]) -> Result<bool> {
    Ok(cache.begin_repeated(widths)?.is_some())
}

/// The lengths at which a step of all rows repeats the step before.
#[test]
fn steps_repeat_until_the_tables_or_the_pool_grow() -> Result<()> {
    if !is_on()? {
        return Ok(());
    }
    let mut cache = started(&[50, 2])?;
    let mut lens = Vec::new();
    for _ in 0..240 {
        let len = cache.lens()[0];
        if repeats(&mut cache, &[1, 1])? {
            lens.push(len);
        }
        step(&mut cache, &[1, 1])?;
    }
    // A row enters a new page at lengths 64, 128 and 192, and the window leaves one, which changes no graph. At length
    // 240 the other row needs the ninth page of a pool of eight, so that there is a new pool, which the next step reads
    // for the first time. At length 256 the tables get more columns.
    let expected = [51..240, 242..256, 257..290];
    assert_eq!(lens, expected.into_iter().flatten().collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_repeated_step_leaves_the_lengths_of_a_built_one() -> Result<()> {
    if !is_on()? {
        return Ok(());
    }
    for widths in [[1, 1], [1, 0], [0, 1]] {
        let (mut built, mut again) = (started(&[9, 12])?, started(&[9, 12])?);
        let mut repeated = 0;
        for number in 0..20 {
            let is_repeated = match again.begin_repeated(&widths)? {
                Some(step) => {
                    let lens: Vec<i32> = built.lens().iter().map(|&len| len as i32).collect();
                    assert_eq!(step.offsets().to_vec::<i32>()?, lens);
                    step.commit();
                    true
                }
                None => false,
            };
            repeated += usize::from(is_repeated);
            assert_eq!(is_repeated, repeats(&mut built, &widths)?, "step {number}");
            step(&mut built, &widths)?;
            if !is_repeated {
                step(&mut again, &widths)?;
            }
            let lengths =
                |cache: &ModelCache| (cache.lens().to_vec(), [0, 1].map(|row| cache.written(row)));
            assert_eq!(lengths(&built), lengths(&again), "step {number}");
        }
        assert!(repeated > 8, "{repeated}");
    }
    Ok(())
}

#[test]
fn other_uses_of_the_cache_end_repetition_and_other_rows_do_not() -> Result<()> {
    if !is_on()? {
        return Ok(());
    }
    type Change = fn(&mut ModelCache) -> Result<()>;
    let ends: [(&str, Change); 7] = [
        ("a row leaves", |cache| cache.select(&[0])),
        ("a row joins", |cache| cache.join(&started(&[3])?)),
        ("a length is recorded", |cache| cache.record(0)),
        ("records are dropped", |cache| {
            cache.clear_recorded();
            Ok(())
        }),
        ("a length is announced", |cache| {
            cache.expect(0, 100);
            Ok(())
        }),
        ("a step is dropped", |cache| {
            let rows = cache.rows();
            cache.begin(&vec![1; rows]).map(drop)
        }),
        ("a step of other widths", |cache| step(cache, &[1, 0])),
    ];
    let keeps: [(&str, Change); 3] = [
        ("a row is replaced", |cache| {
            cache.put(0, &started(&[3])?, 0)
        }),
        ("a row is cleared", |cache| {
            cache.clear(1);
            Ok(())
        }),
        ("a row is shortened", |cache| {
            let len = cache.lens()[0] - 1;
            cache.truncate(0, len)
        }),
    ];
    let ends = ends.map(|(what, change)| (what, change, false));
    let keeps = keeps.map(|(what, change)| (what, change, true));
    for (what, change, stays) in ends.into_iter().chain(keeps) {
        let mut cache = started(&[9, 9])?;
        step(&mut cache, &[1, 1])?;
        assert!(repeats(&mut cache, &[1, 1])?, "before {what}");
        assert!(!repeats(&mut cache, &[1, 0])?, "other widths");
        change(&mut cache)?;
        let rows = cache.rows();
        assert_eq!(repeats(&mut cache, &vec![1; rows])?, stays, "{what}");
    }
    // A clone shares pages. Each cache has copied them when its next step begins.
    let mut cache = started(&[9, 9])?;
    step(&mut cache, &[1, 1])?;
    let mut clone = cache.clone();
    assert!(repeats(&mut cache, &[1, 1])? && repeats(&mut clone, &[1, 1])?);
    step(&mut cache, &[1, 1])?;
    assert!(repeats(&mut cache, &[1, 1])?);
    assert_eq!((cache.lens(), clone.lens()), (&[11, 11][..], &[10, 10][..]));
    Ok(())
}

/// A state that the steps do not cover is replaced between them, as that of a drafting head is.
#[test]
fn states_of_other_steps_may_be_replaced() -> Result<()> {
    let last = RecurrentShape::new(&[StatePart::Window {
        name: "last",
        len: 1,
        width: 8,
    }]);
    let kinds = [LayerKind::Full, LayerKind::Recurrent(last)];
    let mut cache = ModelCache::new(&kinds, 2, OPTIONS);
    assert!(cache.state(1)?.is_none());
    let run = |cache: &mut ModelCache, widths: &[usize]| {
        let mut step = cache.begin_part(0..1, widths)?;
        let seen = attend(&mut step, 0)?;
        step.commit_all()?;
        eval([seen])
    };
    run(&mut cache, &[5, 3])?;
    for number in 0..6 {
        let state = zeros(&[2, 1, 8], DType::F32)?.add(number as f32)?;
        cache.set_state(1, state)?;
        let state = cache.state(1)?.expect("it was set");
        assert_eq!(state.to_vec::<f32>()?, [number as f32; 16]);
        assert_eq!(repeats(&mut cache, &[1, 1])?, is_on()? && number > 0);
        run(&mut cache, &[1, 1])?;
    }
    assert!(cache.set_state(1, zeros(&[1, 1, 8], DType::F32)?).is_err());
    assert!(cache.set_state(0, zeros(&[2, 1, 8], DType::F32)?).is_err());
    assert!(cache.state(0).is_err() && cache.state(2).is_err());
    Ok(())
}

/// Steps with lengths of their own and a fixed shape, of which rows keep any part.
#[test]
fn a_graph_gives_the_inputs_of_later_steps() -> Result<()> {
    let mut cache = started(&[245, 9])?;
    let (mut graph, mut repeated): (Option<StepGraph>, Vec<usize>) = (None, Vec::new());
    for number in 0..20 {
        step(&mut cache, &[1, 1])?;
        let widths = [[3, 2], [1, 4], [2, 0]][number % 3];
        let lens: Vec<usize> = cache.lens().iter().map(|len| len - 2).collect();
        let claimed = match &graph {
            Some(graph) => {
                let step = cache.begin_padded_at(0..1, &lens, &widths, 4)?;
                step.inputs_of(graph)?
            }
            None => None,
        };
        let mut step = cache.begin_padded_at(0..1, &lens, &widths, 4)?;
        let seen = attend(&mut step, 0)?;
        let inputs = step.inputs();
        graph = step.graph();
        step.commit(&widths.map(|width| width.min(2)))?;
        eval([seen])?;
        let Some(claimed) = claimed else { continue };
        repeated.push(number);
        assert_eq!(claimed.len(), inputs.len());
        for (claimed, built) in claimed.iter().zip(&inputs) {
            assert_eq!(claimed.shape(), built.shape());
            assert_eq!(claimed.to_vec::<i32>()?, built.to_vec::<i32>()?);
        }
        assert_eq!(cache.lens(), [246 + number, 10 + number]);
    }
    // Where a row reaches length 256 its table gets more columns.
    let expected: Vec<usize> = (1..20).filter(|&number| number != 9).collect();
    assert_eq!(repeated, if is_on()? { expected } else { Vec::new() });
    let refused = cache.begin_padded_at(0..1, &[3, 3], &[5, 1], 4);
    assert!(refused.is_err());
    Ok(())
}

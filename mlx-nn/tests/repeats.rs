//! The steps of a cache that repeat the step before them, and their effect on the cache. `cache.rs`
//! compares the graphs of such steps.

use mlx_core::fast::{Form, Op, form};
use mlx_core::{Array, DType, Result, eval, ops::create::zeros};
use mlx_nn::{Attend, CacheOptions, LayerKind, ModelCache};

const KINDS: [LayerKind; 2] = [LayerKind::Full, LayerKind::Window(6)];

const OPTIONS: CacheOptions = CacheOptions {
    slack: 0,
    max_context: None,
    store: true,
    quantized: None,
};

/// A step that keeps all of its tokens.
fn step(cache: &mut ModelCache, widths: &[usize]) -> Result<()> {
    let tokens = widths.iter().sum::<usize>() as i32;
    let x = zeros(&[1, 1, tokens, 32], DType::F32)?;
    let options = Attend {
        scale: 1.0,
        softcap: None,
        sinks: None,
        alibi: None,
    };
    let mut step = cache.begin(widths)?;
    let seen: Vec<Array> = (0..KINDS.len())
        .map(|layer| step.attend(layer, &x, &x, &x, &options))
        .collect::<Result<_>>()?;
    step.commit_all()?;
    eval(seen)
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

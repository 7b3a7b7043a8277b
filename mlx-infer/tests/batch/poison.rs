//! The former contents of a slot, and its contents beyond a row's length, have no effect.

use crate::checkpoint::dir;
use crate::independence::{CASES, prompt};
use mlx_core::{Array, DType, Result, eval, ops::create::full};
use mlx_models::{LoadOptions, Loaded, load};
use mlx_nn::{Attend, CacheOptions, LayerKind, ModelCache};

fn model(case: &str) -> Loaded {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load(dir(case), options).unwrap()
}

/// Processes these tokens, one list for each row, and returns the logits of each row's last token, to the bit.
fn take(model: &Loaded, cache: &mut ModelCache, rows: &[&[u32]]) -> Result<Vec<Vec<u32>>> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let flat = rows.concat();
    let tokens = Array::from_slice(&flat, &[1, flat.len() as i32])?;
    let mut step = cache.begin(&widths)?;
    let hidden = model.model.hidden(&tokens, &mut step)?;
    step.commit_all()?;
    let logits = model.model.logits(&hidden)?;
    let mut end = 0;
    let bits = |&width: &usize| {
        end += width as i32;
        let last = logits.slice_axis(1, end - 1, end)?;
        Ok(last
            .to_vec::<f32>()?
            .into_iter()
            .map(f32::to_bits)
            .collect())
    };
    widths.iter().map(bits).collect()
}

/// Writes ±1e4 into the next `width` slots of every row and layer, and rolls the step back.
fn poison(model: &Loaded, cache: &mut ModelCache, width: usize) -> Result<()> {
    let (rows, info) = (cache.rows() as i32, &model.info);
    let kv = info.geometry.kv().iter().flatten().next();
    let kv = kv.expect("some layer has attention");
    let shape = [1, kv.heads, rows * width as i32, kv.key_dim];
    let signs: Vec<f32> = (0..shape.iter().product::<i32>())
        .map(|at| if at % 3 == 0 { -1e4 } else { 1e4 })
        .collect();
    let poison = Array::from_slice(&signs, &shape)?;
    let queries = full(&shape, 1.0, DType::F32)?;
    let options = Attend {
        scale: 1.0,
        softcap: None,
        sinks: None,
        alibi: None,
    };
    let mut step = cache.begin(&vec![width; rows as usize])?;
    let mut seen = Vec::new();
    for layer in 0..info.layers.len() {
        // A recurrent state has no slots beyond a row's length.
        if matches!(info.layers[layer], LayerKind::Recurrent(_)) {
            continue;
        }
        seen.push(step.attend(layer, &queries, &poison, &poison, &options)?);
    }
    eval(&seen)?;
    drop(step);
    eval(cache.arrays())
}

#[test]
fn poison_in_unused_slots_changes_no_bit() {
    for case in CASES {
        let model = model(case);
        let prompts = [prompt(1, 1), prompt(13, 2), prompt(30, 3)];
        let parts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let rings = (model.info.layers.iter())
            .any(|kind| matches!(kind, LayerKind::Window(_) | LayerKind::LatentWindow { .. }));
        let new = || ModelCache::new(model.model.states(), 3, CacheOptions::default());
        let (mut clean, mut dirty) = (new(), new());
        // The number of slots that a step which was rolled back may have written in a ring without
        // spare slots.
        let width = if rings { 1 } else { 9 };
        poison(&model, &mut dirty, width).unwrap();
        let mut differ = 0;
        for step in 0..20u32 {
            let next = [[step % 60], [(step * 7 + 3) % 60], [(step * 5 + 1) % 60]];
            let next: Vec<&[u32]> = match step {
                0 => parts.clone(),
                _ => next.iter().map(|token| &token[..]).collect(),
            };
            let expected = take(&model, &mut clean, &next).unwrap();
            let found = take(&model, &mut dirty, &next).unwrap();
            assert_eq!(found, expected, "{case}, step {step}");
            poison(&model, &mut dirty, width).unwrap();
            let held = |cache: &ModelCache| -> Vec<Vec<f32>> {
                cache
                    .arrays()
                    .iter()
                    .map(|array| array.to_vec().unwrap())
                    .collect()
            };
            differ += usize::from(held(&clean) != held(&dirty));
        }
        assert_eq!(differ, 20, "{case}: the poison is there");
    }
}

/// A row in a slot that held a longer sequence equals a row in a fresh cache.
#[test]
fn a_slot_that_is_used_again_shows_nothing_of_before() {
    for case in CASES {
        let model = model(case);
        let new = |rows| ModelCache::new(model.model.states(), rows, CacheOptions::default());
        let (long, short, other) = (prompt(90, 4), prompt(6, 5), prompt(17, 6));
        let mut cache = new(2);
        take(&model, &mut cache, &[&long, &other]).unwrap();
        for token in 0..10 {
            take(&model, &mut cache, &[&[token], &[token + 1]]).unwrap();
        }
        let mut fresh = new(1);
        take(&model, &mut fresh, &[&short]).unwrap();
        cache.put(0, &fresh, 0).unwrap();
        for token in 20..40 {
            let alone = take(&model, &mut fresh, &[&[token]]).unwrap();
            let together = take(&model, &mut cache, &[&[token], &[token + 2]]).unwrap();
            assert_eq!(together[0], alone[0], "{case}, token {token}");
        }
    }
}

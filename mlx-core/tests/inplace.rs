//! Updates in place: right, at one address, and without copies while steps are in flight.

use mlx_core::fast::{self, Buffers, Mask, Slots, store};
use mlx_core::inplace::{
    put_along_axis_in_place, scatter_in_place, slice_update_dynamic_in_place, slice_update_in_place,
};
use mlx_core::{Array, DType, Error, Result, async_eval, eval, memory, synchronize, zeros};
use proptest::prelude::*;

const HEADS: i32 = 4;
const STORED: i32 = 512;
const FEATURES: i32 = 64;
const CACHE_BYTES: usize = (HEADS * STORED * FEATURES) as usize * 4;

fn token(step: i32) -> Result<Array> {
    mlx_core::full(&[1, HEADS, 1, FEATURES], step as f32 + 1.0, DType::F32)
}

fn prefix(cache: &Array, len: i32) -> Result<Array> {
    cache.slice(&[0, 0, 0, 0], &[1, HEADS, len, FEATURES])
}

/// Pipelined decode: the attention of each step reads the cache while the next step updates it.
fn decode(mut append: impl FnMut(Array, &Array, i32) -> Result<Array>) -> Result<()> {
    let mut cache = zeros(&[1, HEADS, STORED, FEATURES], DType::F32)?;
    let address = cache.address()?;
    memory::clear_cache()?;
    memory::reset_peak()?;
    let before = memory::active()?;
    let mut outputs = Vec::new();
    for step in 0..40 {
        cache = append(cache, &token(step)?, step)?;
        let seen = prefix(&cache, step + 1)?;
        let q = mlx_core::full(&[1, HEADS, 1, FEATURES], 0.0f32, DType::F32)?;
        let out = fast::scaled_dot_product_attention(&q, &seen, &seen, 1.0, Mask::None, None)?;
        async_eval([&out, &cache])?;
        outputs.push(out);
    }
    eval(&outputs)?;
    synchronize()?;
    let peak = memory::peak()?.saturating_sub(before);
    assert!(
        peak < CACHE_BYTES,
        "{peak} bytes above the start: the cache of {CACHE_BYTES} was copied"
    );
    assert_eq!(cache.address()?, address);
    for (step, out) in outputs.iter().enumerate() {
        // Equal scores: the mean of 1 ..= step + 1.
        let expected = (step as f32 + 2.0) / 2.0;
        assert!(
            out.to_vec::<f32>()?
                .iter()
                .all(|&x| (x - expected).abs() < 1e-4),
            "step {step}"
        );
    }
    let stored = cache.to_vec::<f32>()?;
    for (index, &value) in stored.iter().enumerate() {
        let slot = index as i32 / FEATURES % STORED;
        assert_eq!(value, if slot < 40 { slot as f32 + 1.0 } else { 0.0 });
    }
    Ok(())
}

#[test]
fn slice_updates_stay_in_place() -> Result<()> {
    decode(|cache, token, step| {
        slice_update_in_place(
            cache,
            token,
            &[0, 0, step, 0],
            &[1, HEADS, step + 1, FEATURES],
        )
    })
}

#[test]
fn dynamic_updates_stay_in_place() -> Result<()> {
    decode(|cache, token, step| {
        slice_update_dynamic_in_place(cache, token, &Array::from_slice(&[step], &[1])?, &[2])
    })
}

#[test]
fn put_along_axis_stays_in_place() -> Result<()> {
    decode(|cache, token, step| {
        let index = mlx_core::full(&[1, HEADS, 1, FEATURES], step, DType::I32)?;
        put_along_axis_in_place(cache, &index, token, 2)
    })
}

#[test]
fn scatters_stay_in_place() -> Result<()> {
    decode(|cache, token, step| {
        // Index [1] along axis 2: updates are [1] + [1, H, 1, D].
        let updates = token.expand_dims(0)?;
        scatter_in_place(cache, &[&Array::from_slice(&[step], &[1])?], &updates, &[2])
    })
}

#[test]
fn an_update_of_everything_is_copied_into_the_cache() -> Result<()> {
    let cache = zeros(&[2, 3], DType::F32)?;
    let address = cache.address()?;
    let update = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    let cache = slice_update_in_place(cache, &update, &[0, 0], &[2, 3])?;
    assert_eq!(cache.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(cache.address()?, address);
    // The caller's update array is unchanged.
    let nine = Array::from_slice(&[9.0f32], &[1, 1])?;
    let cache = slice_update_in_place(cache, &nine, &[0, 0], &[1, 1])?;
    assert_eq!(cache.to_vec::<f32>()?, [9.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(update.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    Ok(())
}

#[test]
fn updates_and_readers_in_one_graph() -> Result<()> {
    // Only appends: each reader has a prefix that later updates do not change.
    let mut cache = zeros(&[1, HEADS, STORED, FEATURES], DType::F32)?;
    eval([&cache])?;
    let address = cache.address()?;
    let mut sums = Vec::new();
    for step in 0..5 {
        let stop = [1, HEADS, step + 1, FEATURES];
        cache = slice_update_in_place(cache, &token(step)?, &[0, 0, step, 0], &stop)?;
        sums.push(prefix(&cache, step + 1)?.mean(.., false)?);
    }
    eval(&sums)?;
    for (step, sum) in sums.iter().enumerate() {
        assert_eq!(sum.item::<f32>()?, (step as f32 + 2.0) / 2.0);
    }
    assert_eq!(cache.address()?, address);
    Ok(())
}

#[test]
fn a_view_is_copied_and_what_it_views_stays() -> Result<()> {
    let base = Array::from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3])?;
    let row = base.slice(&[1, 0], &[2, 3])?;
    let row = slice_update_in_place(row, &Array::from_slice(&[0i32], &[1, 1])?, &[0, 1], &[1, 2])?;
    assert_eq!(row.to_vec::<i32>()?, [4, 0, 6]);
    let turned = base.transpose(&[1, 0])?;
    let turned = slice_update_in_place(
        turned,
        &Array::from_slice(&[0i32], &[1, 1])?,
        &[0, 0],
        &[1, 1],
    )?;
    assert_eq!(turned.to_vec::<i32>()?, [0, 4, 2, 5, 3, 6]);
    assert_eq!(base.to_vec::<i32>()?, [1, 2, 3, 4, 5, 6]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let cache = zeros(&[2, 3], DType::F32)?;
    let update = zeros(&[2, 2], DType::F32)?;
    assert!(slice_update_in_place(cache.clone(), &update, &[0, 0], &[2, 3]).is_err());
    assert!(slice_update_in_place(cache.clone(), &update, &[0], &[2]).is_err());
    assert!(slice_update_in_place(cache, &update, &[0, 0], &[1, 3]).is_err());
    Ok(())
}

/// The buffer of `array` with every element replaced by `value`, asynchronously.
fn overwrite(array: &Array, value: f32) -> Result<Array> {
    let update = mlx_core::full(array.shape(), value, DType::F32)?;
    let start = Array::from_slice(&[0i32], &[1])?;
    slice_update_dynamic_in_place(array.clone(), &update, &start, &[0])
}

#[test]
fn a_reader_never_sees_memory_change() -> Result<()> {
    let old = zeros(&[100_000], DType::F32)?;
    eval([&old])?;
    let address = old.address()?;
    // An update that begins while a reader has the buffer makes a copy.
    let during = old.with_slice(|values: &[f32]| {
        let new = overwrite(&old, 1.0)?;
        eval([&new])?;
        assert!(values.iter().all(|&value| value == 0.0));
        Ok::<_, Error>(new)
    })??;
    assert_ne!(during.address()?, address);
    assert_eq!(during.slice(&[7], &[8])?.item::<f32>()?, 1.0);
    // A reader waits for an update that is in flight, and gets its own copy.
    for round in 0..20 {
        let new = overwrite(&old, round as f32)?;
        async_eval([&new])?;
        old.with_slice(|values: &[f32]| {
            assert_ne!(values.as_ptr().addr(), address);
            assert!(values.iter().all(|&value| value == round as f32));
        })?;
        assert_eq!(new.address()?, address);
    }
    Ok(())
}

#[test]
fn frozen_arrays_are_never_written() -> Result<()> {
    let array = zeros(&[1000], DType::F32)?;
    let updated = overwrite(&array, 1.0)?;
    async_eval([&updated])?;
    let address = updated.address()?;
    let frozen = updated.clone().freeze()?;
    // The maker's handle, a view of it, and the thawed array.
    for handle in [updated.clone(), updated.reshape(&[1000])?, frozen.thaw()] {
        let new = overwrite(&handle, 2.0)?;
        assert_eq!(new.to_vec::<f32>()?, [2.0; 1000]);
        assert_ne!(new.address()?, address);
    }
    // No operation writes to the buffer either when it has the last handle.
    let sum = updated.add(1.0)?;
    drop((updated, array));
    assert_eq!(sum.to_vec::<f32>()?, [2.0; 1000]);
    let read = std::thread::spawn(move || frozen.thaw().to_vec::<f32>());
    assert_eq!(read.join().unwrap()?, [1.0; 1000]);
    Ok(())
}

/// One update of a `[6, 5]` cache.
#[derive(Clone, Debug)]
enum Update {
    Slice { start: [i32; 2], size: [i32; 2] },
    Dynamic { start: [i32; 2], size: [i32; 2] },
    PutAlong { rows: [i32; 5] },
    Scatter { rows: Vec<i32> },
}

const ROWS: i32 = 6;
const COLUMNS: i32 = 5;

fn updates() -> impl Strategy<Value = Update> {
    let window = (0..ROWS, 0..COLUMNS).prop_flat_map(|(row, column)| {
        (
            Just([row, column]),
            (1..=ROWS - row, 1..=COLUMNS - column).prop_map(|(r, c)| [r, c]),
        )
    });
    prop_oneof![
        window
            .clone()
            .prop_map(|(start, size)| Update::Slice { start, size }),
        window.prop_map(|(start, size)| Update::Dynamic { start, size }),
        prop::array::uniform5(0..ROWS).prop_map(|rows| Update::PutAlong { rows }),
        prop::sample::subsequence((0..ROWS).collect::<Vec<_>>(), 1..4)
            .prop_map(|rows| Update::Scatter { rows }),
    ]
}

/// Applies `update`, writing `value`, to the cache and to a plain model of it.
fn apply(cache: Array, model: &mut [f32], update: &Update, value: f32) -> Result<Array> {
    let filled = |shape: &[i32]| mlx_core::full(shape, value, DType::F32);
    let mut set = |row: i32, column: i32| model[(row * COLUMNS + column) as usize] = value;
    match update {
        Update::Slice {
            start: [r, c],
            size: [h, w],
        }
        | Update::Dynamic {
            start: [r, c],
            size: [h, w],
        } => {
            (*r..r + h).for_each(|row| (*c..c + w).for_each(|column| set(row, column)));
        }
        Update::PutAlong { rows } => (0..COLUMNS)
            .zip(rows)
            .for_each(|(column, &row)| set(row, column)),
        Update::Scatter { rows } => {
            rows.iter()
                .for_each(|&row| (0..COLUMNS).for_each(|column| set(row, column)));
        }
    }
    match update {
        Update::Slice {
            start: [r, c],
            size: [h, w],
        } => slice_update_in_place(cache, &filled(&[*h, *w])?, &[*r, *c], &[r + h, c + w]),
        Update::Dynamic { start, size } => {
            let start = Array::from_slice(start, &[2])?;
            slice_update_dynamic_in_place(cache, &filled(size)?, &start, &[0, 1])
        }
        Update::PutAlong { rows } => {
            let rows = Array::from_slice(rows, &[1, COLUMNS])?;
            put_along_axis_in_place(cache, &rows, &filled(&[1, COLUMNS])?, 0)
        }
        Update::Scatter { rows } => {
            let count = rows.len() as i32;
            let rows = Array::from_slice(rows, &[count])?;
            scatter_in_place(cache, &[&rows], &filled(&[count, 1, COLUMNS])?, &[0])
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_updates_equal_a_plain_model(
        steps in prop::collection::vec((updates(), any::<bool>()), 1..12),
    ) {
        let mut cache = zeros(&[ROWS, COLUMNS], DType::F32).unwrap();
        let address = cache.address().unwrap();
        let mut model = vec![0.0; (ROWS * COLUMNS) as usize];
        let mut sums = Vec::new();
        for (index, (update, wait)) in steps.iter().enumerate() {
            cache = apply(cache, &mut model, update, index as f32 + 1.0).unwrap();
            // A reader of each state is queued before the next update.
            let sum = cache.sum(.., false).unwrap();
            async_eval([&sum, &cache]).unwrap();
            if *wait {
                prop_assert_eq!(cache.to_vec::<f32>().unwrap(), model.clone());
            }
            sums.push((sum, model.iter().sum::<f32>()));
        }
        for (sum, expected) in sums {
            prop_assert_eq!(sum.item::<f32>().unwrap(), expected);
        }
        prop_assert_eq!(cache.to_vec::<f32>().unwrap(), model);
        prop_assert_eq!(cache.address().unwrap(), address);
    }
}

/// Both buffers of a cache in one update: the result of a scatter, in the same memory, also for rings and for new
/// tokens that are views.
#[test]
fn tokens_are_stored_by_position() -> Result<()> {
    let filled = |base: f32, shape: &[i32]| -> Result<Array> {
        let n: i32 = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| base + i as f32).collect();
        Array::from_slice(&values, shape)
    };
    for (offsets, ring, tokens) in [
        (vec![0, 2], false, 3),
        (vec![1], false, 1),
        (vec![9, 5], true, 2),
        (vec![3, 12], true, 6),
    ] {
        let (k, v) = (filled(0.0, &[2, 3, 6, 4])?, filled(1000.0, &[2, 3, 6, 5])?);
        // In the layout of projections: tokens before heads.
        let new_k = filled(5000.0, &[2, tokens, 3, 4])?.swapaxes(1, 2)?;
        let new_v = filled(7000.0, &[2, 3, tokens, 5])?;
        let expected = |buffer: &Array, new: &Array| -> Result<Vec<f32>> {
            let (mut all, d) = (buffer.to_vec::<f32>()?, new.dim(-1)? as usize);
            let new = new.to_vec::<f32>()?;
            for (i, vector) in new.chunks(d).enumerate() {
                let (head, token) = (i / tokens as usize, i % tokens as usize);
                let row = (head / 3).min(offsets.len() - 1);
                let position = offsets[row] as usize + token;
                let slot = if ring { position % 6 } else { position };
                all[(head * 6 + slot) * d..][..d].copy_from_slice(vector);
            }
            Ok(all)
        };
        let wanted = (expected(&k, &new_k)?, expected(&v, &new_v)?);
        let at = Array::from_slice(&offsets, &[offsets.len() as i32])?;
        let slots = Slots { ring, scheme: None };
        let (a, b) = store(Buffers::Shared(&k, &v), &new_k, &new_v, &at, slots)?;
        let untouched = filled(0.0, &[2, 3, 6, 4])?.to_vec::<f32>()?;
        assert_eq!((a.to_vec()?, b.to_vec()?), wanted, "{offsets:?} copied");
        assert_eq!(k.to_vec::<f32>()?, untouched);

        let (k, v) = (k.add(0.0f32)?, v.add(0.0f32)?);
        eval([&k, &v])?;
        let (a, b) = store(Buffers::Own(k, v), &new_k, &new_v, &at, slots)?;
        assert_eq!((a.to_vec()?, b.to_vec()?), wanted, "{offsets:?} in place");
    }
    let buffer = filled(0.0, &[1, 1, 4, 2])?;
    let new = filled(0.0, &[1, 1, 1, 3])?;
    let at = Array::scalar(0i32)?;
    let slots = Slots {
        ring: false,
        scheme: None,
    };
    let error = store(Buffers::Shared(&buffer, &buffer), &new, &new, &at, slots);
    assert!(error.is_err());
    Ok(())
}

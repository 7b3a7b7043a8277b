//! Broadcasting, taking, putting, joining.

use mlx_core::{Array, concat, stack};
use proptest::prelude::*;

use crate::model::{Model, broadcast, ints, positions};
use crate::views::{chain, views};
use crate::{config, models};

fn index_array(indices: &[i32], shape: &[usize]) -> Array {
    Array::from_slice(indices, &ints(shape)).unwrap()
}

/// A position of the axis for each number. The odd numbers are counted from the end.
fn wrapped(numbers: &[usize], size: usize) -> (Vec<usize>, Vec<i32>) {
    numbers
        .iter()
        .map(|&n| {
            let at = n % size;
            (
                at,
                if n % 2 == 1 {
                    at as i32 - size as i32
                } else {
                    at as i32
                },
            )
        })
        .unzip()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn shapes_broadcast(a in models(3, 0..=3), b in models(3, 0..=3), views in views()) {
        let (a, x) = chain(a, &views).unwrap();
        let y = b.array();
        let found = x.multiply(&y).unwrap_or_else(|_| x.clone());
        match broadcast(&a.shape, &b.shape) {
            None => {
                prop_assert!(x.add(&y).is_err(), "{:?} and {:?} do not broadcast", a.shape, b.shape);
            }
            Some(shape) => {
                let product = |at: &[usize]| a.get_broadcast(at).wrapping_mul(b.get_broadcast(at));
                prop_assert_eq!(Model::read(&found).unwrap(), Model::from_fn(&shape, product));
                let less = x.less(&y).unwrap().select(&x, &y).unwrap();
                let expected = Model::from_fn(&shape, |at| a.get_broadcast(at).min(b.get_broadcast(at)));
                prop_assert_eq!(Model::read(&less).unwrap(), expected);
            }
        }
    }

    #[test]
    fn take_picks_slots(
        model in models(3, 1..=4), views in views(), axis in 0usize..3, numbers in prop::collection::vec(0usize..12, 0..5),
    ) {
        let (model, array) = chain(model, &views).unwrap();
        prop_assume!(model.ndim() > 0 && !model.data.is_empty());
        let axis = axis % model.ndim();
        let (picked, indices) = wrapped(&numbers, model.shape[axis]);
        let found = array.take(&index_array(&indices, &[indices.len()]), axis as i32).unwrap();
        let mut shape = model.shape.clone();
        shape[axis] = picked.len();
        let expected = Model::from_fn(&shape, |at| {
            let mut at = at.to_vec();
            at[axis] = picked[at[axis]];
            model.get(&at)
        });
        prop_assert_eq!(Model::read(&found).unwrap(), expected);
    }

    #[test]
    fn take_and_put_along_an_axis_are_inverse(model in models(3, 1..=4), views in views(), axis in 0usize..3, seed in 0usize..50) {
        let (model, array) = chain(model, &views).unwrap();
        prop_assume!(model.ndim() > 0 && !model.data.is_empty());
        let axis = axis % model.ndim();
        let size = model.shape[axis];
        // Each line is rotated by another number of positions.
        let turned = |at: &[usize]| (at[axis] + seed + at.iter().sum::<usize>() - at[axis]) % size;
        let indices: Vec<i32> = positions(&model.shape).iter().map(|at| turned(at) as i32).collect();
        let indices = index_array(&indices, &model.shape);
        let taken = array.take_along_axis(&indices, axis as i32).unwrap();
        let expected = Model::from_fn(&model.shape, |at| {
            let mut from = at.to_vec();
            from[axis] = turned(at);
            model.get(&from)
        });
        prop_assert_eq!(Model::read(&taken).unwrap(), expected);
        let blank = mlx_core::zeros_like(&array).unwrap();
        let back = blank.put_along_axis(&indices, &taken, axis as i32).unwrap();
        prop_assert_eq!(Model::read(&back).unwrap(), model);
    }

    #[test]
    fn slice_update_writes_its_slice_only(
        model in models(3, 1..=5), views in views(), bounds in prop::collection::vec((0usize..5, 0usize..6, 1usize..3), 8),
    ) {
        let (model, array) = chain(model, &views).unwrap();
        let ndim = model.ndim().min(8);
        prop_assume!(model.ndim() == ndim);
        let bounds: Vec<(usize, usize, usize)> = bounds[..ndim].iter().zip(&model.shape).map(|(&(a, b, s), &size)| {
            let (a, b) = (a.min(size), b.min(size));
            (a.min(b), a.max(b), s)
        }).collect();
        let inside = |at: &[usize]| at.iter().zip(&bounds).all(|(&i, &(a, b, s))| i >= a && i < b && (i - a) % s == 0);
        let starts: Vec<i32> = bounds.iter().map(|b| b.0 as i32).collect();
        let stops: Vec<i32> = bounds.iter().map(|b| b.1 as i32).collect();
        let strides: Vec<i32> = bounds.iter().map(|b| b.2 as i32).collect();
        let update = Array::scalar(-7i32).unwrap();
        let found = array.slice_update_strided(&update, &starts, &stops, &strides).unwrap();
        let expected = Model::from_fn(&model.shape, |at| if inside(at) { -7 } else { model.get(at) });
        prop_assert_eq!(Model::read(&found).unwrap(), expected);
        let added = array.slice_update_add(&update, &starts, &stops, &strides).unwrap();
        let expected = Model::from_fn(&model.shape, |at| model.get(at) - if inside(at) { 7 } else { 0 });
        prop_assert_eq!(Model::read(&added).unwrap(), expected);
        prop_assert_eq!(Model::read(&array).unwrap(), model);
    }

    #[test]
    fn split_and_concat_are_inverse(model in models(3, 1..=5), views in views(), axis in 0usize..3, cuts in prop::collection::vec(0usize..6, 0..3)) {
        let (model, array) = chain(model, &views).unwrap();
        prop_assume!(model.ndim() > 0);
        let axis = axis % model.ndim();
        let mut cuts: Vec<i32> = cuts.iter().map(|&cut| cut.min(model.shape[axis]) as i32).collect();
        cuts.sort_unstable();
        let parts = array.split_at(&cuts, axis as i32).unwrap();
        prop_assert_eq!(parts.len(), cuts.len() + 1);
        prop_assert_eq!(&Model::read(&concat(&parts, axis as i32).unwrap()).unwrap(), &model);
        if model.shape[axis] > 0 {
            let slots = array.unstack(axis as i32).unwrap();
            prop_assert_eq!(Model::read(&stack(&slots, axis as i32).unwrap()).unwrap(), model);
        }
    }

    #[test]
    fn scatter_add_combines_equal_places(model in models(2, 1..=4), rows in prop::collection::vec(0usize..12, 1..6)) {
        prop_assume!(model.ndim() == 2);
        let [height, width] = model.shape[..] else { unreachable!() };
        let (picked, indices) = wrapped(&rows, height);
        let updates = Model::counting(&[picked.len(), 1, width]);
        let found = model.array().scatter_add(&[&index_array(&indices, &[indices.len()])], &updates.array(), &[0]).unwrap();
        let expected = Model::from_fn(&model.shape, |at| {
            let added = picked.iter().enumerate().filter(|&(_, &row)| row == at[0]);
            model.get(at) + added.map(|(i, _)| updates.get(&[i, 0, at[1]])).sum::<i32>()
        });
        prop_assert_eq!(Model::read(&found).unwrap(), expected);
    }
}

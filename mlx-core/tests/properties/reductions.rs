//! Reductions, scans and sorting.

use mlx_core::{Array, DType, ErrorKind};
use proptest::prelude::*;

use crate::model::{Model, ints};
use crate::views::{chain, views};
use crate::{config, models};

/// The lines of a model along some axes: for each position of the others, the elements.
fn reduce(model: &Model, axes: &[usize], keepdims: bool, f: impl Fn(&[i32]) -> i32) -> Model {
    let inner: Vec<usize> = axes.iter().map(|&axis| model.shape[axis]).collect();
    let outer: Vec<usize> = (0..model.ndim())
        .filter(|axis| !axes.contains(axis))
        .collect();
    let kept = model
        .shape
        .iter()
        .enumerate()
        .map(|(axis, &n)| if axes.contains(&axis) { 1 } else { n })
        .collect::<Vec<_>>();
    let sizes: Vec<usize> = outer.iter().map(|&axis| model.shape[axis]).collect();
    let mut result = Model::from_fn(&sizes, |out| {
        let line: Vec<i32> = crate::model::positions(&inner)
            .iter()
            .map(|inside| {
                let mut at = vec![0; model.ndim()];
                outer.iter().zip(out).for_each(|(&axis, &i)| at[axis] = i);
                axes.iter().zip(inside).for_each(|(&axis, &i)| at[axis] = i);
                model.get(&at)
            })
            .collect();
        f(&line)
    });
    if keepdims {
        result.shape = kept;
    }
    result
}

fn read(array: &Array) -> Model {
    Model::read(&array.astype(DType::I32).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn reductions_run_over_their_axes(
        model in models(3, 0..=4), views in views(), chosen in prop::collection::vec(any::<bool>(), 10), keepdims: bool,
    ) {
        let (model, array) = chain(model, &views).unwrap();
        let axes: Vec<usize> = (0..model.ndim()).filter(|&axis| chosen[axis % chosen.len()]).collect();
        prop_assume!(!axes.is_empty());
        // Half of the axes are counted from the end.
        let named: Vec<i32> = axes.iter().map(|&a| if a % 2 == 1 { a as i32 - model.ndim() as i32 } else { a as i32 }).collect();
        let sum = array.sum(&named, keepdims).unwrap();
        prop_assert_eq!(read(&sum), reduce(&model, &axes, keepdims, |line| line.iter().sum()));
        let any = array.any(&named, keepdims).unwrap();
        prop_assert_eq!(read(&any), reduce(&model, &axes, keepdims, |line| line.iter().any(|&v| v != 0).into()));
        let all = array.all(&named, keepdims).unwrap();
        prop_assert_eq!(read(&all), reduce(&model, &axes, keepdims, |line| line.iter().all(|&v| v != 0).into()));
        let prod = array.remainder(3).unwrap().prod(&named, keepdims).unwrap();
        let product = |line: &[i32]| line.iter().fold(1i32, |product, v| product.wrapping_mul(v % 3));
        prop_assert_eq!(read(&prod), reduce(&model, &axes, keepdims, product));
        let count = array.count_nonzero(&named, keepdims).unwrap();
        prop_assert_eq!(read(&count), reduce(&model, &axes, keepdims, |line| line.iter().filter(|&&v| v != 0).count() as i32));
        if axes.iter().any(|&axis| model.shape[axis] == 0) {
            prop_assert_eq!(array.max(&named, keepdims).unwrap_err().kind(), ErrorKind::Mlx);
        } else {
            let max = array.max(&named, keepdims).unwrap();
            prop_assert_eq!(read(&max), reduce(&model, &axes, keepdims, |line| *line.iter().max().unwrap()));
            let min = array.min(&named, keepdims).unwrap();
            prop_assert_eq!(read(&min), reduce(&model, &axes, keepdims, |line| *line.iter().min().unwrap()));
        }
        prop_assert!(array.sum(model.ndim() as i32, keepdims).is_err());
    }

    #[test]
    fn the_whole_is_reduced_by_a_full_range(model in models(3, 0..=4)) {
        let sum = model.array().sum(.., false).unwrap();
        prop_assert_eq!(sum.item::<i32>().unwrap(), model.data.iter().sum::<i32>());
    }

    #[test]
    fn lines_are_scanned_and_sorted(model in models(3, 1..=4), views in views(), axis in 0usize..3, factor in 1i32..50) {
        let (model, array) = chain(model, &views).unwrap();
        prop_assume!(model.ndim() > 0 && !model.data.is_empty());
        let axis = axis % model.ndim();
        // Shuffled reproducibly: multiples modulo a prime.
        let model = Model { data: model.data.iter().map(|&v| v * factor % 101).collect(), ..model };
        let array = array.multiply(factor).unwrap().remainder(101).unwrap();
        let line_to = |at: &[usize], stop: usize| -> Vec<i32> {
            (0..stop).map(|i| { let mut at = at.to_vec(); at[axis] = i; model.get(&at) }).collect()
        };
        let scanned = Model::from_fn(&model.shape, |at| line_to(at, at[axis] + 1).iter().sum());
        prop_assert_eq!(read(&array.cumsum(axis as i32).unwrap()), scanned);
        let before = Model::from_fn(&model.shape, |at| line_to(at, at[axis]).iter().sum());
        prop_assert_eq!(read(&array.cumsum_with(axis as i32, false, false).unwrap()), before);
        let sorted = Model::from_fn(&model.shape, |at| {
            let mut line = line_to(at, model.shape[axis]);
            line.sort_unstable();
            line[at[axis]]
        });
        prop_assert_eq!(&read(&array.sort(axis as i32).unwrap()), &sorted);
        let order = array.argsort(axis as i32).unwrap();
        prop_assert_eq!(&read(&array.take_along_axis(&order, axis as i32).unwrap()), &sorted);
        let largest = array.argmax(axis as i32, false).unwrap();
        let first = reduce(&model, &[axis], false, |line| {
            line.iter().position(|v| v == line.iter().max().unwrap()).unwrap() as i32
        });
        prop_assert_eq!(read(&largest), first);
        let k = 1 + factor as usize % model.shape[axis];
        let top = array.topk(k as i32, axis as i32).unwrap().sort(axis as i32).unwrap();
        let mut starts = vec![0; model.ndim()];
        starts[axis] = (model.shape[axis] - k) as i32;
        let tail = sorted.array().slice(&starts, &ints(&model.shape)).unwrap();
        prop_assert_eq!(read(&top), read(&tail));
    }
}

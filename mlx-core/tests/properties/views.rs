//! A chain of views reads the same as the chain in plain Rust, whatever the layout in memory.

use mlx_core::{Array, Result};
use proptest::prelude::*;

use crate::model::{Model, ints};
use crate::{config, models};

/// One step of a chain. Numbers are taken modulo the sizes of the current shape.
#[derive(Clone, Debug)]
pub enum View {
    Transpose(Vec<usize>),
    Slice {
        axis: usize,
        start: usize,
        stop: usize,
        stride: i32,
    },
    Flip(usize),
    Broadcast {
        axis: usize,
        leading: usize,
    },
    ExpandDims(usize),
    Reshape(usize),
    Swap(usize, usize),
}

pub fn views() -> impl Strategy<Value = Vec<View>> {
    let number = 0usize..6;
    let view = prop_oneof![
        prop::collection::vec(0usize..100, 5).prop_map(View::Transpose),
        (
            number.clone(),
            0usize..5,
            0usize..6,
            prop_oneof![Just(-2), Just(-1), Just(1), Just(2)]
        )
            .prop_map(|(axis, start, stop, stride)| View::Slice {
                axis,
                start,
                stop,
                stride
            }),
        number.clone().prop_map(View::Flip),
        (number.clone(), 1usize..3).prop_map(|(axis, leading)| View::Broadcast { axis, leading }),
        number.clone().prop_map(View::ExpandDims),
        number.clone().prop_map(View::Reshape),
        (number.clone(), number).prop_map(|(a, b)| View::Swap(a, b)),
    ];
    prop::collection::vec(view, 0..6)
}

/// Applies a view to the model and to the array.
pub fn apply(view: &View, model: Model, array: &Array) -> Result<(Model, Array)> {
    let ndim = model.ndim();
    let shape = model.shape.clone();
    let axis_of = |axis: &usize| axis % ndim;
    Ok(match view {
        View::ExpandDims(at) => {
            let at = at % (ndim + 1);
            let mut shape = shape;
            shape.insert(at, 1);
            (
                Model {
                    shape,
                    data: model.data,
                },
                array.expand_dims(at as i32)?,
            )
        }
        View::Reshape(split) => {
            let size = model.data.len();
            let rows = (1..=size.max(1))
                .filter(|rows| size.is_multiple_of(*rows))
                .nth(*split)
                .unwrap_or(1);
            let shape = vec![rows, size / rows];
            (
                Model {
                    shape: shape.clone(),
                    data: model.data,
                },
                array.reshape(&ints(&shape))?,
            )
        }
        View::Broadcast { axis, leading } => {
            // Stretches a dimension of 1 if `axis` is one, and adds a leading dimension.
            let mut to = shape.clone();
            if ndim > 0 && to[axis_of(axis)] == 1 {
                to[axis_of(axis)] = 3;
            }
            to.insert(0, *leading);
            (
                Model::from_fn(&to, |at| model.get_broadcast(at)),
                array.broadcast_to(&ints(&to))?,
            )
        }
        _ if ndim == 0 => (model, array.clone()),
        View::Transpose(keys) => {
            let mut axes: Vec<usize> = (0..ndim).collect();
            axes.sort_by_key(|&axis| keys.get(axis).copied().unwrap_or(axis));
            let to: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
            let moved = Model::from_fn(&to, |at| {
                let mut from = vec![0; ndim];
                axes.iter().zip(at).for_each(|(&axis, &i)| from[axis] = i);
                model.get(&from)
            });
            (moved, array.transpose(&ints(&axes))?)
        }
        View::Slice {
            axis,
            start,
            stop,
            stride,
        } => {
            let axis = axis_of(axis);
            let size = shape[axis] as i32;
            let (start, stop) = ((*start as i32).min(size), (*stop as i32).min(size));
            // With a negative stride, `start` is the upper end, and there is no index for "before the first".
            let (from, to) = if *stride > 0 {
                (start, stop)
            } else {
                (stop - 1, start - 1 - size)
            };
            let picked: Vec<usize> = if *stride > 0 {
                (start..stop)
                    .step_by(*stride as usize)
                    .map(|i| i as usize)
                    .collect()
            } else {
                (start..stop)
                    .rev()
                    .step_by(-stride as usize)
                    .map(|i| i as usize)
                    .collect()
            };
            if size == 0 || (*stride < 0 && stop == 0) {
                return Ok((model, array.clone()));
            }
            let mut starts = vec![0; ndim];
            let mut stops = ints(&shape);
            let mut strides = vec![1; ndim];
            (starts[axis], stops[axis], strides[axis]) = (from, to, *stride);
            let mut to = shape;
            to[axis] = picked.len();
            let sliced = Model::from_fn(&to, |at| {
                let mut at = at.to_vec();
                at[axis] = picked[at[axis]];
                model.get(&at)
            });
            (sliced, array.slice_strided(&starts, &stops, &strides)?)
        }
        View::Flip(axis) => {
            let axis = axis_of(axis);
            let flipped = Model::from_fn(&shape, |at| {
                let mut at = at.to_vec();
                at[axis] = shape[axis] - 1 - at[axis];
                model.get(&at)
            });
            (flipped, array.flip(axis as i32)?)
        }
        View::Swap(a, b) => {
            let (a, b) = (axis_of(a), axis_of(b));
            let mut to = shape;
            to.swap(a, b);
            let swapped = Model::from_fn(&to, |at| {
                let mut at = at.to_vec();
                at.swap(a, b);
                model.get(&at)
            });
            (
                swapped,
                array.swapaxes(a as i32, -(ndim as i32) + b as i32)?,
            )
        }
    })
}

/// A model and the array after a chain of views. A chain stops once it has more than a few thousand elements.
pub fn chain(model: Model, views: &[View]) -> Result<(Model, Array)> {
    let array = model.array();
    views
        .iter()
        .try_fold((model, array), |(model, array), view| {
            if model.data.len() > 4000 {
                Ok((model, array))
            } else {
                apply(view, model, &array)
            }
        })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn views_read_as_plain_rust_does(model in models(4, 0..=4), views in views()) {
        let (model, array) = chain(model, &views).unwrap();
        prop_assert_eq!(&Model::read(&array).unwrap(), &model);
        // Once more after the evaluation, and a copy in another dtype must agree.
        prop_assert_eq!(&Model::read(&array).unwrap(), &model);
        let wide: Vec<i64> = model.data.iter().map(|&v| v.into()).collect();
        prop_assert_eq!(array.astype(mlx_core::DType::I64).unwrap().to_vec::<i64>().unwrap(), wide);
        let half: Vec<half::bf16> = model.data.iter().map(|&v| half::bf16::from_f32(v as f32)).collect();
        prop_assert_eq!(array.astype(mlx_core::DType::BF16).unwrap().to_vec::<half::bf16>().unwrap(), half);
        if model.data.len() == 1 {
            prop_assert_eq!(array.item::<i32>().unwrap(), model.data[0]);
        } else {
            prop_assert!(array.item::<i32>().is_err());
        }
    }

    #[test]
    fn as_strided_stays_inside(
        model in models(2, 1..=4),
        shape in prop::collection::vec(0usize..4, 0..3),
        strides in prop::collection::vec(-5i64..6, 3),
        offset in 0usize..20,
    ) {
        let strides = &strides[..shape.len()];
        let size = model.data.len() as i64;
        let place = |at: &[usize]| offset as i64 + at.iter().zip(strides).map(|(&i, &s)| i as i64 * s).sum::<i64>();
        let places: Vec<i64> = crate::model::positions(&shape).iter().map(|at| place(at)).collect();
        let found = model.array().as_strided_with(&ints(&shape), strides, offset);
        if places.iter().all(|&place| (0..size).contains(&place)) && (!places.is_empty() || offset as i64 <= size) {
            let expected: Vec<i32> = places.iter().map(|&place| model.data[place as usize]).collect();
            prop_assert_eq!(found.unwrap().to_vec::<i32>().unwrap(), expected);
        } else {
            prop_assert_eq!(found.unwrap_err().kind(), mlx_core::ErrorKind::Shape);
        }
    }
}

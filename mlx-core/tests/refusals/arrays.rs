//! Creation, shapes, indexing, reductions.

use mlx_core::{
    Array, DType, Indexing, PadMode, arange, concat, diag, diag_with, eye_with, linspace,
    meshgrid_with, stack, tril, zeros,
};

use crate::{first, floats, ints, refuse};

#[test]
fn creation_refuses() {
    refuse(vec![
        ("zeros of a negative size", zeros(&[-1], DType::F32)),
        ("arange by 0", arange(0.0, 1.0, 0.0, DType::F32)),
        ("arange to NaN", arange(0.0, f64::NAN, 1.0, DType::F32)),
        (
            "arange to infinity",
            arange(0.0, f64::INFINITY, 1.0, DType::F32),
        ),
        ("arange too long", arange(0.0, 1e18, 1.0, DType::F32)),
        ("arange of Bool", arange(0.0, 2.0, 1.0, DType::Bool)),
        ("linspace of -1", linspace(0.0, 1.0, -1, DType::F32)),
        ("eye of -1", eye_with(-1, 2, 0, DType::F32)),
        ("tri of -1", mlx_core::tri_with(-1, 2, 0, DType::F32)),
        ("tril of a vector", tril(&floats(&[3]))),
        ("diag of three dimensions", diag(&floats(&[1, 2, 3]))),
        ("diag too far", diag_with(&floats(&[3]), i32::MAX)),
        ("hanning of -1", mlx_core::hanning(-1)),
        (
            "full that does not broadcast",
            mlx_core::full(&[2], floats(&[3]), DType::F32),
        ),
    ]);
    assert!(
        meshgrid_with::<Array>(&[], false, Indexing::Ij)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn shapes_refuse() {
    let x = floats(&[4, 2]);
    let empty = floats(&[0]);
    refuse(vec![
        ("reshape to another size", x.reshape(&[3])),
        ("reshape with two unknowns", x.reshape(&[-1, -1])),
        (
            "split of nothing into billions",
            first(empty.split(i32::MAX, 0)),
        ),
        (
            "unstack into billions",
            floats(&[1])
                .broadcast_to(&[i32::MAX])
                .and_then(|x| first(x.unstack(0))),
        ),
        ("reshape to negative sizes", x.reshape(&[-2, -4])),
        (
            "reshape of nothing with an unknown",
            empty.reshape(&[0, -1]),
        ),
        (
            "reshape that overflows",
            x.reshape(&[1 << 30, 1 << 30, 1 << 30, 1 << 30]),
        ),
        ("flatten backwards", x.flatten_with(1, 0)),
        ("unflatten to another size", x.unflatten(0, &[3, 2])),
        (
            "unflatten of nothing with an unknown",
            empty.unflatten(0, &[0, -1]),
        ),
        ("unflatten to negative sizes", x.unflatten(0, &[-2, -2])),
        ("unflatten to no dimension", x.unflatten(0, ())),
        ("transpose of too few", x.transpose(&[0])),
        ("transpose twice of one", x.transpose(&[0, 0])),
        ("transpose beyond", x.transpose(&[0, 2])),
        ("swap_axes beyond", x.swapaxes(0, 2)),
        ("move_axis beyond", x.moveaxis(-3, 0)),
        ("expand_dims beyond", x.expand_dims(7)),
        ("expand_dims twice", x.expand_dims([0, 0])),
        ("squeeze of 4", x.squeeze(0)),
        ("squeeze beyond", x.squeeze(i32::MIN)),
        ("broadcast_to fewer", x.broadcast_to(&[2])),
        ("broadcast_to negative", floats(&[1]).broadcast_to(&[-1])),
        ("pad by less than nothing", x.pad(&[(0, -1, 0)], 0.0)),
        ("pad beyond", x.pad_with(&[(2, 1, 1)], 0.0, PadMode::Edge)),
        ("pad too far", x.pad(&[(0, i32::MAX, 1)], 0.0)),
        ("tile by less than nothing", x.tile(&[-1])),
        ("repeat by less than nothing", x.repeat(-1, 0)),
        ("repeat too often", x.repeat(i32::MAX, 0)),
        ("split into none", first(x.split(0, 0))),
        ("split unevenly", first(x.split(3, 0))),
        ("split beyond", first(x.split(2, 5))),
        ("unstack beyond", first(x.unstack(5))),
        ("flip beyond", x.flip(5)),
        ("roll beyond", x.roll(1, 5)),
        (
            "view of a scalar as more",
            Array::scalar(1u8).unwrap().view(DType::U32),
        ),
        (
            "view that does not divide",
            x.astype(DType::U8).unwrap().view(DType::U32),
        ),
        ("as_strided of unequal lists", x.as_strided(&[2], &[1, 1])),
        ("as_strided outside", x.as_strided(&[9], &[1])),
        ("as_strided before", x.as_strided(&[2], &[-1])),
        (
            "as_strided that overflows",
            x.as_strided(&[i32::MAX, 2], &[i64::MAX, i64::MAX]),
        ),
        ("concat of none", concat::<Array>(&[], 0)),
        (
            "concat that does not fit",
            concat(&[&x, &floats(&[4, 3])], 0),
        ),
        ("stack of none", stack::<Array>(&[], 0)),
        ("stack of two shapes", stack(&[&x, &floats(&[4, 3])], 0)),
        (
            "broadcast_arrays",
            first(mlx_core::broadcast_arrays(&[x.clone(), floats(&[3])])),
        ),
    ]);
}

#[test]
fn indexing_refuses() {
    let x = floats(&[4, 2]);
    let i = ints(&[0]);
    refuse(vec![
        ("slice of too few", x.slice(&[0], &[1])),
        ("slice of unequal lists", x.slice(&[0, 0], &[1])),
        ("slice by 0", x.slice_strided(&[0, 0], &[4, 2], &[0, 1])),
        ("slice_axis beyond", x.slice_axis(2, 0, 1)),
        (
            "slice_dynamic too large",
            x.slice_dynamic(&i, &[0], &[5, 2]),
        ),
        (
            "slice_dynamic of a negative size",
            x.slice_dynamic(&i, &[0], &[-1, 2]),
        ),
        ("slice_dynamic beyond", x.slice_dynamic(&i, &[2], &[1, 1])),
        (
            "slice_dynamic by floats",
            x.slice_dynamic(&floats(&[1]), &[0], &[1, 1]),
        ),
        (
            "slice_update that does not fit",
            x.slice_update(&floats(&[3, 3]), &[0, 0], &[2, 2]),
        ),
        (
            "slice_update of too few",
            x.slice_update(&floats(&[1]), &[0], &[2]),
        ),
        (
            "slice_update_add by 0",
            x.slice_update_add(&floats(&[1]), &[0, 0], &[2, 2], &[0, 1]),
        ),
        (
            "slice_update_dynamic that does not fit",
            x.slice_update_dynamic(&floats(&[9, 9]), &i, &[0]),
        ),
        ("take beyond", x.take(&i, 2)),
        ("take by floats", x.take(&floats(&[1]), 0)),
        ("take from nothing", floats(&[0]).take(&i, 0)),
        (
            "take_along_axis of other dimensions",
            x.take_along_axis(&i, 0),
        ),
        (
            "put_along_axis of other dimensions",
            x.put_along_axis(&i, &x, 0),
        ),
        ("gather of too few axes", x.gather(&[&i, &i], &[0], &[1, 1])),
        ("gather too large", x.gather(&[&i], &[0], &[5, 1])),
        ("gather of too few sizes", x.gather(&[&i], &[0], &[1])),
        ("gather beyond", x.gather(&[&i], &[4], &[1, 1])),
        (
            "scatter of other dimensions",
            x.scatter(&[&i], &floats(&[1, 2]), &[0]),
        ),
        (
            "scatter beyond",
            x.scatter_add(&[&i], &floats(&[1, 1, 2]), &[2]),
        ),
        (
            "scatter of too few axes",
            x.scatter_max(&[&i, &i], &floats(&[1, 1, 1]), &[0]),
        ),
        ("masked_scatter by numbers", x.masked_scatter(&i, &x)),
        ("searchsorted in a matrix", x.searchsorted(&x)),
    ]);
    assert_eq!(
        x.slice(&[0], &[1]).unwrap_err().to_string(),
        "slice: starts must be 2 numbers, given [0]"
    );
}

#[test]
fn reductions_and_sorting_refuse() {
    let x = floats(&[4, 2]);
    let empty = floats(&[0, 3]);
    refuse(vec![
        ("sum beyond", x.sum(2, false)),
        ("sum twice", x.sum([0, 0], false)),
        ("max of nothing", empty.max(0, false)),
        ("argmax of nothing", empty.argmax(0, false)),
        ("argmin beyond", x.argmin(-3, false)),
        ("median of nothing", empty.median(0, false)),
        ("logsumexp of nothing", empty.logsumexp(0, false)),
        ("softmax beyond", x.softmax(3)),
        ("cumsum beyond", x.cumsum(2)),
        ("cumsum of a scalar", Array::scalar(1f32).unwrap().cumsum(0)),
        ("diff of less than nothing", x.diff_with(-1, 0)),
        ("diagonal of one axis", x.diagonal_with(0, 0, 0)),
        ("trace beyond", x.trace_with(0, 0, 2, DType::F32)),
        ("sort beyond", x.sort(2)),
        (
            "argsort of a scalar",
            Array::scalar(1f32).unwrap().argsort(-1),
        ),
        ("partition beyond", x.partition(4, 0)),
        ("argpartition of nothing", empty.argpartition(0, 0)),
        ("topk of less than nothing", x.topk(-1, 0)),
        ("topk of too many", x.topk(5, 0)),
    ]);
}

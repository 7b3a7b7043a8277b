//! Calls of creation, shapes, indexing and sorting.

use mlx_core::{self as mlx, Indexing, PadMode, Side};

use crate::case::{Op, rows};

pub fn rows() -> Vec<(&'static str, Op)> {
    [create(), shape(), index(), scatter(), order()].concat()
}

fn create() -> Vec<(&'static str, Op)> {
    rows! {
        "zeros" => |c| mlx::zeros(&c.ints(0), c.dtype(1));
        "ones" => |c| mlx::ones(&c.ints(0), c.dtype(1));
        "full" => |c| mlx::full(&c.ints(0), c.float(1), c.dtype(2));
        "zeros_like" => |c| mlx::zeros_like(c.x(0));
        "ones_like" => |c| mlx::ones_like(c.x(0));
        "full_like" => |c| mlx::full_like(c.x(0), c.float(0));
        "arange" => |c| mlx::arange(c.float(0), c.float(1), c.float(2), c.dtype(3));
        "linspace" => |c| mlx::linspace(c.float(0), c.float(1), c.int(2), c.dtype(3));
        "eye_with" => |c| mlx::eye_with(c.int(0), c.int(1), c.int(2), c.dtype(3));
        "tri_with" => |c| mlx::tri_with(c.int(0), c.int(1), c.int(2), c.dtype(3));
        "identity" => |c| mlx::identity(c.int(0), c.dtype(1));
        "tril_with" => |c| mlx::tril_with(c.x(0), c.int(0));
        "triu_with" => |c| mlx::triu_with(c.x(0), c.int(0));
        "diag_with" => |c| mlx::diag_with(c.x(0), c.int(0));
        "bartlett" => |c| mlx::bartlett(c.int(0));
        "blackman" => |c| mlx::blackman(c.int(0));
        "hamming" => |c| mlx::hamming(c.int(0));
        "hanning" => |c| mlx::hanning(c.int(0));
        "meshgrid_with" => |c| {
            let indexing = if c.text(1) == "xy" { Indexing::Xy } else { Indexing::Ij };
            mlx::meshgrid_with(&c.inputs, c.bool(0), indexing)
        };
    }
}

fn shape() -> Vec<(&'static str, Op)> {
    rows! {
        "astype" => |c| c.x(0).astype(c.dtype(0));
        "view" => |c| c.x(0).view(c.dtype(0));
        "contiguous" => |c| c.x(0).t()?.contiguous();
        "copy" => |c| c.x(0).copy();
        "reshape" => |c| c.x(0).reshape(&c.ints(0));
        "flatten_with" => |c| c.x(0).flatten_with(c.int(0), c.int(1));
        "unflatten" => |c| c.x(0).unflatten(c.int(0), &c.ints(1));
        "transpose" => |c| c.x(0).transpose(&c.ints(0));
        "t" => |c| c.x(0).t();
        "matrix_transpose" => |c| c.x(0).matrix_transpose();
        "swapaxes" => |c| c.x(0).swapaxes(c.int(0), c.int(1));
        "moveaxis" => |c| c.x(0).moveaxis(c.int(0), c.int(1));
        "expand_dims" => |c| c.x(0).expand_dims(c.ints(0));
        "squeeze" => |c| c.x(0).squeeze(c.ints(0));
        "squeeze_all" => |c| c.x(0).squeeze(..);
        "broadcast_to" => |c| c.x(0).broadcast_to(&c.ints(0));
        "pad_with" => |c| {
            let widths: Vec<_> = c.rows(0).iter().map(|row| (row[0], row[1], row[2])).collect();
            let mode = match c.text(2) {
                "edge" => PadMode::Edge,
                "reflect" => PadMode::Reflect,
                "symmetric" => PadMode::Symmetric,
                _ => PadMode::Constant,
            };
            c.x(0).pad_with(&widths, c.float(1), mode)
        };
        "tile" => |c| c.x(0).tile(&c.ints(0));
        "repeat" => |c| c.x(0).repeat(c.int(0), c.int(1));
        "flip" => |c| c.x(0).flip(c.ints(0));
        "roll" => |c| c.x(0).roll(c.int(0), c.int(1));
        "atleast_1d" => |c| c.x(0).atleast_1d();
        "atleast_2d" => |c| c.x(0).atleast_2d();
        "atleast_3d" => |c| c.x(0).atleast_3d();
        "as_strided_with" => |c| {
            let strides: Vec<i64> = c.ints(1).into_iter().map(i64::from).collect();
            c.x(0).as_strided_with(&c.ints(0), &strides, c.int(2) as usize)
        };
        "concat" => |c| mlx::concat(&c.inputs, c.int(0));
        "stack" => |c| mlx::stack(&c.inputs, c.int(0));
        "broadcast_arrays" => |c| mlx::broadcast_arrays(&c.inputs);
        "split" => |c| c.x(0).split(c.int(0), c.int(1));
        "split_at" => |c| c.x(0).split_at(&c.ints(0), c.int(1));
        "unstack" => |c| c.x(0).unstack(c.int(0));
        "depends" => |c| mlx::depends(&c.inputs[..1], &c.inputs[1..]);
    }
}

fn index() -> Vec<(&'static str, Op)> {
    rows! {
        "slice" => |c| c.x(0).slice(&c.ints(0), &c.ints(1));
        "slice_strided" => |c| c.x(0).slice_strided(&c.ints(0), &c.ints(1), &c.ints(2));
        "slice_axis" => |c| c.x(0).slice_axis(c.int(0), c.int(1), c.int(2));
        "slice_dynamic" => |c| c.x(0).slice_dynamic(c.x(1), &c.ints(0), &c.ints(1));
        "slice_update" => |c| c.x(0).slice_update(c.x(1), &c.ints(0), &c.ints(1));
        "slice_update_strided" => |c| c.x(0).slice_update_strided(c.x(1), &c.ints(0), &c.ints(1), &c.ints(2));
        "slice_update_dynamic" => |c| c.x(0).slice_update_dynamic(c.x(1), c.x(2), &c.ints(0));
        "take" => |c| c.x(0).take(c.x(1), c.int(0));
        "take_along_axis" => |c| c.x(0).take_along_axis(c.x(1), c.int(0));
        "put_along_axis" => |c| c.x(0).put_along_axis(c.x(1), c.x(2), c.int(0));
        "gather" => |c| c.x(0).gather(&[c.x(1), c.x(2)], &c.ints(0), &c.ints(1));
        "searchsorted_with" => |c| {
            c.x(0).searchsorted_with(c.x(1), if c.text(0) == "left" { Side::Left } else { Side::Right })
        };
    }
}

fn scatter() -> Vec<(&'static str, Op)> {
    rows! {
        "scatter" => |c| c.x(0).scatter(&[c.x(1)], c.x(2), &c.ints(0));
        "scatter_add" => |c| c.x(0).scatter_add(&[c.x(1)], c.x(2), &c.ints(0));
        "scatter_max" => |c| c.x(0).scatter_max(&[c.x(1)], c.x(2), &c.ints(0));
        "scatter_min" => |c| c.x(0).scatter_min(&[c.x(1)], c.x(2), &c.ints(0));
        "scatter_prod" => |c| c.x(0).scatter_prod(&[c.x(1)], c.x(2), &c.ints(0));
        "scatter_add_axis" => |c| c.x(0).scatter_add_axis(c.x(1), c.x(2), c.int(0));
        "slice_update_add" => |c| c.x(0).slice_update_add(c.x(1), &c.ints(0), &c.ints(1), &c.ints(2));
        "slice_update_max" => |c| c.x(0).slice_update_max(c.x(1), &c.ints(0), &c.ints(1), &c.ints(2));
        "slice_update_min" => |c| c.x(0).slice_update_min(c.x(1), &c.ints(0), &c.ints(1), &c.ints(2));
        "slice_update_prod" => |c| c.x(0).slice_update_prod(c.x(1), &c.ints(0), &c.ints(1), &c.ints(2));
        "masked_scatter" => |c| c.x(0).masked_scatter(c.x(1), c.x(2));
    }
}

/// A partition leaves the order within its parts open, so results are sorted, like the goldens.
fn order() -> Vec<(&'static str, Op)> {
    rows! {
        "sort" => |c| c.x(0).sort(c.int(0));
        "argsort" => |c| c.x(0).argsort(c.int(0));
        "topk" => |c| c.x(0).topk(c.int(0), c.int(1))?.sort(c.int(1));
        "partition" => |c| c.x(0).partition(c.int(0), c.int(1))?.slice_axis(c.int(1), c.int(0), c.int(0) + 1);
        "argpartition" => |c| {
            let parts = c.x(0).argpartition(c.int(0), c.int(1))?;
            parts.slice_axis(c.int(1), 0, c.int(0))?.sort(c.int(1))
        };
    }
}

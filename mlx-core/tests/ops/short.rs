//! Calls that leave out every argument with a default, and calls without an axis.

use mlx_core::random::{self, Key, KeyOrNext};
use mlx_core::{self as mlx, Array, BlockMasks, DType, Quantized, Result, fft, linalg};

use crate::case::{Case, Op, Results, rows};

const F32: DType = DType::F32;

macro_rules! methods {
    ($($name:ident)*) => { vec![$( (stringify!($name), (|c| c.x(0).$name().map(Results::list)) as Op) ),*] };
}

macro_rules! functions {
    ($($module:ident $($name:ident)*;)*) => { vec![$($( (
        concat!(stringify!($module), "::", stringify!($name)),
        (|c| $module::$name(c.x(0)).map(Results::list)) as Op,
    ) ),*),*] };
}

/// Two draws that follow a seed.
macro_rules! seeded {
    ($($name:literal => |$none:ident, $shape:ident| $draw:expr;)*) => { vec![$( ($name, (|c| {
        random::seed(c.int(0) as u64);
        let draw = |$none: Option<&Key>| -> Result<Array> {
            let $shape = &c.ints(1);
            $draw
        };
        Ok(vec![draw(None)?, draw(None)?])
    }) as Op) ),*] };
}

pub fn rows() -> Vec<(&'static str, Op)> {
    let methods = methods! {
        sum_all prod_all mean_all max_all min_all all_all any_all median_all count_nonzero_all var_all std_all
        argmax_all argmin_all logsumexp_all softmax_all cumsum_all cumprod_all cummax_all cummin_all logcumsumexp_all
        diagonal trace diff flatten round nan_to_num relu silu gelu
    };
    let functions = functions! {
        mlx tril triu diag;
        fft fft ifft rfft irfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn fftshift ifftshift;
        linalg norm cholesky cholesky_inv tri_inv eigvalsh;
    };
    let functions = functions
        .into_iter()
        .map(|(name, op)| (name.strip_prefix("mlx::").unwrap_or(name), op))
        .collect();
    [
        methods,
        functions,
        along(),
        shapes(),
        elements(),
        products(),
        keyed(),
        unkeyed(),
    ]
    .concat()
}

fn along() -> Vec<(&'static str, Op)> {
    rows! {
        "softmax" => |c| c.x(0).softmax(c.int(0));
        "var" => |c| c.x(0).var(c.int(0), c.bool(1));
        "std" => |c| c.x(0).std(c.int(0), c.bool(1));
        "argmax_flat" => |c| c.x(0).argmax(.., c.bool(0));
        "argmin_flat" => |c| c.x(0).argmin(.., c.bool(0));
        "cumsum" => |c| c.x(0).cumsum(c.int(0));
        "cumprod" => |c| c.x(0).cumprod(c.int(0));
        "cummax" => |c| c.x(0).cummax(c.int(0));
        "cummin" => |c| c.x(0).cummin(c.int(0));
        "logcumsumexp" => |c| c.x(0).logcumsumexp(c.int(0));
        "take_flat" => |c| c.x(0).take(c.x(1), ..);
        "take_along_axis_flat" => |c| c.x(0).take_along_axis(c.x(1), ..);
        "repeat_flat" => |c| c.x(0).repeat(c.int(0), ..);
        "sort_flat" => |c| c.x(0).sort(..);
        "argsort_flat" => |c| c.x(0).argsort(..);
        "topk_flat" => |c| c.x(0).topk(c.int(0), ..)?.sort(0);
        "partition_flat" => |c| c.x(0).partition(c.int(0), ..)?.take(&Array::scalar(c.int(0))?, 0);
        "argpartition_flat" => |c| c.x(0).argpartition(c.int(0), ..)?.take(&Array::scalar(c.int(0))?, 0);
        "concat_flat" => |c| mlx::concat(&c.inputs, ..);
        "searchsorted" => |c| c.x(0).searchsorted(c.x(1));
        "roll_axes" => |c| c.x(0).roll(c.ints(0), c.ints(1));
        "roll_flat" => |c| c.x(0).roll(c.ints(0), ..);
    }
}

fn shapes() -> Vec<(&'static str, Op)> {
    rows! {
        "eye" => |c| mlx::eye(c.int(0), F32);
        "tri" => |c| mlx::tri(c.int(0), F32);
        "meshgrid" => |c| mlx::meshgrid(&c.inputs);
        "pad" => |c| {
            let value = c.float(1);
            if c.is_int(0) {
                return c.x(0).pad(c.int(0), value).map(Results::list);
            }
            if !c.is_list_of_ints(0) {
                let widths: Vec<_> = c.rows(0).iter().map(|row| (row[0], row[1])).collect();
                return c.x(0).pad(&widths, value).map(Results::list);
            }
            match c.ints(0)[..] {
                [before, after] => c.x(0).pad((before, after), value),
                _ => c.x(0).pad(&[] as &[(i32, i32)], value),
            }
        };
        "as_strided" => |c| {
            let strides: Vec<i64> = c.ints(1).into_iter().map(i64::from).collect();
            c.x(0).as_strided(&c.ints(0), &strides)
        };
        "zeros_like_method" => |c| c.x(0).zeros_like();
        "ones_like_method" => |c| c.x(0).ones_like();
        "full_like_method" => |c| c.x(0).full_like(c.float(0));
    }
}

fn elements() -> Vec<(&'static str, Op)> {
    rows! {
        "isclose" => |c| c.x(0).isclose(c.x(1));
        "allclose" => |c| c.x(0).allclose(c.x(1));
        "array_equal" => |c| c.x(0).array_equal(c.x(1));
        "powf" => |c| c.x(0).powf(c.float(0));
        "where_" => |c| mlx::where_(&c.x(0).greater(0)?, c.x(0), c.float(0));
    }
}

fn products() -> Vec<(&'static str, Op)> {
    rows! {
        "addmm" => |c| c.x(0).addmm(c.x(1), c.x(2));
        "tensordot" => |c| c.x(0).tensordot(c.x(1));
        "vecdot" => |c| c.x(0).vecdot(c.x(1));
        "cross" => |c| c.x(0).cross(c.x(1));
        "block_masked_mm" => |c| {
            let masks = BlockMasks { out: Some(c.x(2)), lhs: Some(c.x(3)), rhs: Some(c.x(4)) };
            c.x(0).block_masked_mm(c.x(1), masks)
        };
        "gather_mm" => |c| c.x(0).gather_mm(c.x(1), Some(c.x(2)), Some(c.x(3)));
        "quantize" => |c| mlx::quantize(c.x(0), c.int(0), c.int(1)).map(|Quantized { packed, scales, biases }| {
            [Some(packed), Some(scales), biases].into_iter().flatten().collect::<Vec<Array>>()
        });
        "dequantize" => |c| mlx::dequantize(c.x(0), c.x(1), c.x(2), c.int(0), c.int(1));
        "quantized_matmul" => |c| {
            mlx::quantized_matmul(c.x(0), c.x(1), c.x(2), c.x(3), c.bool(0), c.int(1), c.int(2))
        };
        "gather_qmm" => |c| {
            let right = Some(c.x(4));
            mlx::gather_qmm(c.x(0), c.x(1), c.x(2), c.x(3), None, right, c.bool(0), c.int(1), c.int(2))
        };
        "conv1d" => |c| c.x(0).conv1d(c.x(1));
        "conv2d" => |c| c.x(0).conv2d(c.x(1));
        "conv3d" => |c| c.x(0).conv3d(c.x(1));
        "conv_transpose1d" => |c| c.x(0).conv_transpose1d(c.x(1));
        "conv_transpose2d" => |c| c.x(0).conv_transpose2d(c.x(1));
        "conv_transpose3d" => |c| c.x(0).conv_transpose3d(c.x(1));
        "fft::fftfreq" => |c| fft::fftfreq(c.int(0));
        "fft::rfftfreq" => |c| fft::rfftfreq(c.int(0));
        "linalg::solve_triangular" => |c| linalg::solve_triangular(c.x(0), c.x(1));
        "linalg::eigh" => |c| {
            let (values, vectors) = linalg::eigh(c.x(0))?;
            vectors.multiply(values.expand_dims(0)?)?.matmul(&vectors.t()?)
        };
    }
}

fn key(c: &Case) -> Result<Key> {
    Key::from_array(c.x(0).clone())
}

fn keyed() -> Vec<(&'static str, Op)> {
    rows! {
        "random::normal" => |c| random::normal(&key(c)?, c.ints(0), F32);
        "random::laplace" => |c| random::laplace(&key(c)?, c.ints(0), F32);
        "random::categorical" => |c| random::categorical(&key(c)?, c.x(1));
        "random::permutation" => |c| random::permutation(&key(c)?, c.x(1));
    }
}

/// `impl KeyOrNext` of all draws takes `None`.
fn unkeyed() -> Vec<(&'static str, Op)> {
    fn next(none: Option<&Key>) -> impl KeyOrNext + '_ {
        none
    }
    seeded! {
        "random::uniform_seeded" => |none, shape| random::uniform(next(none), -1.0, 2.0, shape, F32);
        "random::normal_seeded" => |none, shape| random::normal(next(none), shape, F32);
        "random::laplace_seeded" => |none, shape| random::laplace(next(none), shape, F32);
        "random::gumbel_seeded" => |none, shape| random::gumbel(next(none), shape, F32);
        "random::bernoulli_seeded" => |none, shape| random::bernoulli(next(none), 0.3, shape);
        "random::randint_seeded" => |none, shape| random::randint(next(none), -3, 9, shape, DType::I32);
        "random::truncated_normal_seeded" => |none, shape| {
            random::truncated_normal(next(none), -0.5, 1.0, shape, F32)
        };
    }
}

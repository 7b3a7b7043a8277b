//! Calls of reductions, scans, Fourier transforms, linear algebra and random numbers.

use mlx_core::fft::{self, Norm};
use mlx_core::linalg::{self, Half, MatrixNorm};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Result};

use crate::case::{Case, Op, Results, rows};

macro_rules! reductions {
    ($($name:ident)*) => { vec![$( (
        stringify!($name), (|c| c.x(0).$name(c.ints(0), c.bool(1)).map(Results::list)) as Op
    ) ),*] };
}

macro_rules! scans {
    ($($with:ident)*) => { vec![$( (
        stringify!($with), (|c| c.x(0).$with(c.int(0), c.bool(1), c.bool(2)).map(Results::list)) as Op
    ) ),*] };
}

pub fn rows() -> Vec<(&'static str, Op)> {
    let reductions = reductions! { sum prod mean max min all any median count_nonzero logsumexp };
    let scans = scans! {
        cumsum_with cumprod_with cummax_with cummin_with logcumsumexp_with
    };
    [
        reductions,
        scans,
        others(),
        transforms(),
        linear(),
        randoms(),
    ]
    .concat()
}

fn others() -> Vec<(&'static str, Op)> {
    rows! {
        "var_with" => |c| c.x(0).var_with(c.ints(0), c.bool(1), c.int(2));
        "std_with" => |c| c.x(0).std_with(c.ints(0), c.bool(1), c.int(2));
        "softmax_with" => |c| c.x(0).softmax_with(c.ints(0), c.bool(1));
        "argmax" => |c| c.x(0).argmax(c.int(0), c.bool(1));
        "argmin" => |c| c.x(0).argmin(c.int(0), c.bool(1));
        "diagonal_with" => |c| c.x(0).diagonal_with(c.int(0), c.int(1), c.int(2));
        "trace_with" => |c| c.x(0).trace_with(c.int(0), c.int(1), c.int(2), c.dtype(3));
        "number_of_elements" => |c| c.x(0).number_of_elements(c.ints(0), c.bool(1), c.dtype(2));
        "diff_with" => |c| c.x(0).diff_with(c.int(0), c.int(1));
    }
}

fn norm(c: &Case, at: usize) -> Norm {
    match c.text(at) {
        "ortho" => Norm::Ortho,
        "forward" => Norm::Forward,
        _ => Norm::Backward,
    }
}

type Transform = fn(&Array, Option<i32>, i32, Norm) -> Result<Array>;
type Transforms = fn(&Array, Option<&[i32]>, Vec<i32>, Norm) -> Result<Array>;

fn one(c: &Case, f: Transform) -> Result<Array> {
    f(
        c.x(0),
        (!c.is_null(0)).then(|| c.int(0)),
        c.int(1),
        norm(c, 2),
    )
}

fn many(c: &Case, f: Transforms) -> Result<Array> {
    let n = (!c.is_null(0)).then(|| c.ints(0));
    f(c.x(0), n.as_deref(), c.ints(1), norm(c, 2))
}

fn transforms() -> Vec<(&'static str, Op)> {
    rows! {
        "fft::fft_with" => |c| one(c, fft::fft_with);
        "fft::ifft_with" => |c| one(c, fft::ifft_with);
        "fft::rfft_with" => |c| one(c, fft::rfft_with);
        "fft::irfft_with" => |c| one(c, fft::irfft_with);
        "fft::fftn_with" => |c| many(c, fft::fftn_with);
        "fft::ifftn_with" => |c| many(c, fft::ifftn_with);
        "fft::rfftn_with" => |c| many(c, fft::rfftn_with);
        "fft::irfftn_with" => |c| many(c, fft::irfftn_with);
        "fft::fftshift_with" => |c| fft::fftshift_with(c.x(0), c.ints(0));
        "fft::ifftshift_with" => |c| fft::ifftshift_with(c.x(0), c.ints(0));
        "fft::fftfreq_with" => |c| fft::fftfreq_with(c.int(0), c.float(1));
        "fft::rfftfreq_with" => |c| fft::rfftfreq_with(c.int(0), c.float(1));
    }
}

fn half(upper: bool) -> Half {
    if upper { Half::Upper } else { Half::Lower }
}

/// The signs and the order of vectors are open, so the test compares the products that rebuild the input.
fn linear() -> Vec<(&'static str, Op)> {
    rows! {
        "linalg::inv" => |c| linalg::inv(c.x(0));
        "linalg::pinv" => |c| linalg::pinv(c.x(0));
        "linalg::det" => |c| linalg::det(c.x(0));
        "linalg::slogdet" => |c| linalg::slogdet(c.x(0));
        "linalg::eigvalsh_with" => |c| linalg::eigvalsh_with(c.x(0), half(c.text(0) == "U"));
        "linalg::eigh_with" => |c| {
            let (values, vectors) = linalg::eigh_with(c.x(0), half(c.text(0) == "U"))?;
            vectors.multiply(values.expand_dims(1)?)?.matmul(&vectors.swapaxes(-1, -2)?)
        };
        "linalg::eigvals" => |c| linalg::eigvals(c.x(0))?.sum(.., false);
        "linalg::eig" => |c| {
            let (values, vectors) = linalg::eig(c.x(0))?;
            c.x(0).matmul(&vectors)?.subtract(vectors.multiply(values)?)?.round_with(3)
        };
        "linalg::qr" => |c| linalg::qr(c.x(0)).and_then(|(q, r)| q.matmul(&r));
        "linalg::svd" => |c| {
            let (u, s, vt) = linalg::svd(c.x(0))?;
            u.slice_axis(1, 0, s.dim(0)?)?.multiply(s)?.matmul(&vt)
        };
        "linalg::singular_values" => |c| linalg::singular_values(c.x(0));
        "linalg::lu" => |c| linalg::lu(c.x(0));
        "linalg::lu_factor" => |c| linalg::lu_factor(c.x(0));
        "linalg::cholesky_with" => |c| linalg::cholesky_with(c.x(0), half(c.bool(0)));
        "linalg::cholesky_inv_with" => |c| linalg::cholesky_inv_with(c.x(0), half(c.bool(0)));
        "linalg::tri_inv_with" => |c| linalg::tri_inv_with(c.x(0), half(c.bool(0)));
        "linalg::solve_triangular_with" => |c| linalg::solve_triangular_with(c.x(0), c.x(1), half(c.bool(0)));
        "linalg::solve" => |c| linalg::solve(c.x(0), c.x(1));
        "linalg::norm_with" => |c| linalg::norm_with(c.x(0), c.float(0), c.ints(1), c.bool(2));
        "linalg::norm_l2" => |c| linalg::norm_l2(c.x(0), c.ints(0), c.bool(1));
        "linalg::norm_matrix" => |c| {
            let ord = if c.text(0) == "fro" { MatrixNorm::Frobenius } else { MatrixNorm::Nuclear };
            linalg::norm_matrix(c.x(0), ord, c.ints(1), c.bool(2))
        };
    }
}

fn key(c: &Case) -> Result<Key> {
    Key::from_array(c.x(0).clone())
}

fn randoms() -> Vec<(&'static str, Op)> {
    const F32: DType = DType::F32;
    rows! {
        "random::key" => |c| Key::new(c.seed(0)).map(|key| key.as_array().clone());
        "random::split_n" => |c| key(c)?.split_n(c.int(0)).map(|keys| {
            keys.iter().map(|key| key.as_array().clone()).collect::<Vec<_>>()
        });
        "random::split" => |c| key(c)?.split().map(|[a, b]| (a.as_array().clone(), b.as_array().clone()));
        "random::uniform" => |c| random::uniform(&key(c)?, c.float(1), c.float(2), &c.ints(0), F32);
        "random::normal_with" => |c| random::normal_with(&key(c)?, &c.ints(0), F32, c.float(1), c.float(2));
        "random::truncated_normal" => |c| random::truncated_normal(&key(c)?, c.float(1), c.float(2), &c.ints(0), F32);
        "random::laplace_with" => |c| random::laplace_with(&key(c)?, &c.ints(0), F32, c.float(1) as f32, c.float(2) as f32);
        "random::gumbel" => |c| random::gumbel(&key(c)?, &c.ints(0), F32);
        "random::bernoulli" => |c| random::bernoulli(&key(c)?, c.float(1), &c.ints(0));
        "random::randint" => |c| random::randint(&key(c)?, c.int(1), c.int(2), &c.ints(0), DType::I32);
        "random::categorical_with" => |c| random::categorical_with(&key(c)?, c.x(1), c.int(0));
        "random::categorical_n" => |c| random::categorical_n(&key(c)?, c.x(1), c.int(0), c.int(1));
        "random::permutation_with" => |c| random::permutation_with(&key(c)?, c.x(1), c.int(0));
        "random::permutation_of" => |c| random::permutation_of(&key(c)?, c.int(0));
        "random::multivariate_normal" => |c| random::multivariate_normal(&key(c)?, c.x(1), c.x(2), &c.ints(0));
    }
}

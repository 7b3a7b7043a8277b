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
    ($($name:ident)*) => { vec![$( (
        stringify!($name), (|c| c.x(0).$name(c.int(0), c.bool(1), c.bool(2)).map(Results::list)) as Op
    ) ),*] };
}

pub fn rows() -> Vec<(&'static str, Op)> {
    let reductions = reductions! { sum prod mean max min all any median count_nonzero logsumexp };
    let scans = scans! { cumsum cumprod cummax cummin logcumsumexp };
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
        "var" => |c| c.x(0).var(c.ints(0), c.bool(1), c.int(2));
        "std" => |c| c.x(0).std(c.ints(0), c.bool(1), c.int(2));
        "softmax" => |c| c.x(0).softmax(c.ints(0), c.bool(1));
        "argmax" => |c| c.x(0).argmax(c.int(0), c.bool(1));
        "argmin" => |c| c.x(0).argmin(c.int(0), c.bool(1));
        "diagonal" => |c| c.x(0).diagonal(c.int(0), c.int(1), c.int(2));
        "trace" => |c| c.x(0).trace(c.int(0), c.int(1), c.int(2), c.dtype(3));
        "number_of_elements" => |c| c.x(0).number_of_elements(c.ints(0), c.bool(1), c.dtype(2));
        "diff" => |c| c.x(0).diff(c.int(0), c.int(1));
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
        "fft::fft" => |c| one(c, fft::fft);
        "fft::ifft" => |c| one(c, fft::ifft);
        "fft::rfft" => |c| one(c, fft::rfft);
        "fft::irfft" => |c| one(c, fft::irfft);
        "fft::fftn" => |c| many(c, fft::fftn);
        "fft::ifftn" => |c| many(c, fft::ifftn);
        "fft::rfftn" => |c| many(c, fft::rfftn);
        "fft::irfftn" => |c| many(c, fft::irfftn);
        "fft::fftshift" => |c| fft::fftshift(c.x(0), c.ints(0));
        "fft::ifftshift" => |c| fft::ifftshift(c.x(0), c.ints(0));
        "fft::fftfreq" => |c| fft::fftfreq(c.int(0), c.float(1));
        "fft::rfftfreq" => |c| fft::rfftfreq(c.int(0), c.float(1));
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
        "linalg::eigvalsh" => |c| linalg::eigvalsh(c.x(0), half(c.text(0) == "U"));
        "linalg::eigh" => |c| {
            let (values, vectors) = linalg::eigh(c.x(0), half(c.text(0) == "U"))?;
            vectors.multiply(values.expand_dims(1)?)?.matmul(&vectors.swap_axes(-1, -2)?)
        };
        "linalg::eigvals" => |c| linalg::eigvals(c.x(0))?.sum(.., false);
        "linalg::eig" => |c| {
            let (values, vectors) = linalg::eig(c.x(0))?;
            c.x(0).matmul(&vectors)?.subtract(vectors.multiply(values)?)?.round(3)
        };
        "linalg::qr" => |c| linalg::qr(c.x(0)).and_then(|(q, r)| q.matmul(&r));
        "linalg::svd" => |c| {
            let (u, s, vt) = linalg::svd(c.x(0))?;
            u.slice_axis(1, 0, s.dim(0)?)?.multiply(s)?.matmul(&vt)
        };
        "linalg::singular_values" => |c| linalg::singular_values(c.x(0));
        "linalg::lu" => |c| linalg::lu(c.x(0));
        "linalg::lu_factor" => |c| linalg::lu_factor(c.x(0));
        "linalg::cholesky" => |c| linalg::cholesky(c.x(0), half(c.bool(0)));
        "linalg::cholesky_inv" => |c| linalg::cholesky_inv(c.x(0), half(c.bool(0)));
        "linalg::tri_inv" => |c| linalg::tri_inv(c.x(0), half(c.bool(0)));
        "linalg::solve_triangular" => |c| linalg::solve_triangular(c.x(0), c.x(1), half(c.bool(0)));
        "linalg::solve" => |c| linalg::solve(c.x(0), c.x(1));
        "linalg::norm" => |c| linalg::norm(c.x(0), c.float(0), c.ints(1), c.bool(2));
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
        "random::split" => |c| key(c)?.split(c.int(0)).map(|keys| {
            keys.iter().map(|key| key.as_array().clone()).collect::<Vec<_>>()
        });
        "random::split_pair" => |c| key(c)?.split_pair().map(|[a, b]| (a.as_array().clone(), b.as_array().clone()));
        "random::uniform" => |c| random::uniform(&key(c)?, &c.ints(0), F32, c.float(1), c.float(2));
        "random::normal" => |c| random::normal(&key(c)?, &c.ints(0), F32, c.float(1), c.float(2));
        "random::truncated_normal" => |c| random::truncated_normal(&key(c)?, &c.ints(0), F32, c.float(1), c.float(2));
        "random::laplace" => |c| random::laplace(&key(c)?, &c.ints(0), F32, c.float(1) as f32, c.float(2) as f32);
        "random::gumbel" => |c| random::gumbel(&key(c)?, &c.ints(0), F32);
        "random::bernoulli" => |c| random::bernoulli(&key(c)?, &c.ints(0), c.float(1));
        "random::randint" => |c| random::randint(&key(c)?, &c.ints(0), DType::I32, c.int(1), c.int(2));
        "random::categorical" => |c| random::categorical(&key(c)?, c.x(1), c.int(0));
        "random::categorical_n" => |c| random::categorical_n(&key(c)?, c.x(1), c.int(0), c.int(1));
        "random::permutation" => |c| random::permutation(&key(c)?, c.x(1), c.int(0));
        "random::permutation_of" => |c| random::permutation_of(&key(c)?, c.int(0));
        "random::multivariate_normal" => |c| random::multivariate_normal(&key(c)?, &c.ints(0), c.x(1), c.x(2));
    }
}

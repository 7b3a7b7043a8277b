"""Reductions, scans, Fourier transforms, linear algebra, random numbers."""

import mlx.core as mx
import numpy as np

AXES = ([0], [-1], [0, 2], [0, 1, 2])


def fill(table):
    reductions(table)
    scans(table)
    fourier(table)
    linear(table)
    randoms(table)


def reductions(table):
    x = table.floats(2, 3, 4)
    for name in ("sum", "prod", "mean", "max", "min", "all", "any", "median", "count_nonzero"):
        f, numpy = reduction(name), getattr(np, name)
        for axes in AXES:
            for keepdims in (False, True):
                if keepdims and axes != [0, 2]:
                    continue
                table.add(name, [x], [axes, keepdims], f, lambda a, i, k: numpy(a, axis=tuple(i), keepdims=k))
        for dtype in (mx.float16, mx.bfloat16, mx.int32, mx.bool_):
            if name == "median" and dtype == mx.bool_:
                continue
            table.add(name, [x[0].astype(dtype)], [[1], False], f)
    table.add("sum", [mx.zeros((0, 3))], [[0], False], mx.sum, lambda a, i, k: a.sum(0))
    table.add("all", [mx.zeros((0, 3))], [[0], False], mx.all, lambda a, i, k: a.all(0))
    special = mx.array([[1.0, float("nan")], [float("inf"), 2.0]])
    for name in ("sum", "max", "min"):
        table.add(name, [special], [[1], False], getattr(mx, name), lambda a, i, k: getattr(np, name)(a, 1))
    logsumexp = lambda a, i, k: np.log(np.exp(a).sum(tuple(i), keepdims=k))
    softmax = lambda a, i, _: np.exp(a) / np.exp(a).sum(tuple(i), keepdims=True)
    for axes in AXES:
        table.add("logsumexp", [x], [axes, True], mx.logsumexp, logsumexp)
        table.add("softmax_with", [x], [axes, False], lambda a, i, p: mx.softmax(a, i, precise=p), softmax)
        for name in ("var", "std"):
            f, numpy = getattr(mx, name), getattr(np, name)
            table.add(f"{name}_with", [x], [axes, False, 1], f, lambda a, i, k, d: numpy(a, axis=tuple(i), keepdims=k, ddof=d))
    big = mx.array([1000.0, 1001.0, -float("inf")])
    table.add("softmax_with", [big], [[0], False], lambda a, i, p: mx.softmax(a, i, precise=p))
    table.add("logsumexp", [big], [[0], False], mx.logsumexp)
    for precise in (False, True):
        table.add("softmax_with", [x[0].astype(mx.bfloat16)], [[-1], precise], lambda a, i, p: mx.softmax(a, i, precise=p))
    for name in ("argmax", "argmin"):
        for axis in (0, -1):
            table.add(name, [x], [axis, False], getattr(mx, name), lambda a, i, k: getattr(np, name)(a, i, keepdims=k))
        table.add(name, [mx.array([2, 7, 7, 2, 2])], [0, True], getattr(mx, name), lambda a, i, k: getattr(np, name)(a, i, keepdims=k))
    for k, i, j in ((0, 0, 1), (1, 1, 2), (-1, 2, 0)):
        table.add("diagonal_with", [x], [k, i, j], mx.diagonal, np.diagonal)
        table.add("trace_with", [x], [k, i, j, "F32"], lambda a, k, i, j, _: mx.trace(a, k, i, j), lambda a, k, i, j, _: np.trace(a, k, i, j))
    table.add("number_of_elements", [x], [[0, 2], False, "I32"], lambda a, *_: mx.array(8), lambda a, *_: a.shape[0] * a.shape[2])
    table.add("number_of_elements", [x], [[1], True, "F32"], lambda a, *_: mx.array(1 / 3), lambda a, *_: 1 / a.shape[1])


def reduction(name):
    f = getattr(mx, name)
    return lambda a, axes, keepdims: f(a, axis=axes, keepdims=keepdims)


def scans(table):
    x = table.floats(2, 5)
    accumulate = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}
    accumulate["logcumsumexp"] = np.logaddexp.accumulate
    for name, numpy in accumulate.items():
        f = lambda a, i, r, inc: getattr(mx, name)(a, axis=i, reverse=r, inclusive=inc)
        for axis in (0, 1):
            table.add(f"{name}_with", [x], [axis, False, True], f, lambda a, i, *_: numpy(a, i))
            table.add(f"{name}_with", [x], [axis, True, True], f, lambda a, i, *_: np.flip(numpy(np.flip(a, i), i), i))
        table.add(f"{name}_with", [x], [1, False, False], f)
        table.add(f"{name}_with", [x.astype(mx.bfloat16)], [1, False, True], f)
    for n in (1, 2):
        table.add("diff_with", [x], [n, 1], mx.diff, np.diff)


def fourier(table):
    x, z = table.floats(2, 6), table.floats(2, 6) + 1j * table.floats(2, 6)
    for norm in ("backward", "ortho", "forward"):
        for n in (None, 4, 8):
            for name, a in (("fft", z), ("ifft", z), ("rfft", x), ("irfft", z[:, :4])):
                f = lambda a, n, i, norm: getattr(mx.fft, name)(a, n, i, norm, stream=mx.cpu)
                if n is not None and norm != "backward":
                    continue
                table.add(f"fft::{name}_with", [a], [n, -1, norm], f, lambda a, n, i, norm: getattr(np.fft, name)(a, n, i, norm))
    for name, a in (("fftn", z), ("ifftn", z), ("rfftn", x), ("irfftn", z[:, :4])):
        f = lambda a, n, i, norm: getattr(mx.fft, name)(a, n, i, norm, stream=mx.cpu)
        for n in (None, [4, 4]):
            table.add(f"fft::{name}_with", [a], [n, [0, 1], "backward"], f, lambda a, n, i, norm: getattr(np.fft, name)(a, n, i, norm))
    for name in ("fftshift", "ifftshift"):
        table.add(f"fft::{name}_with", [table.floats(2, 5)], [[1]], getattr(mx.fft, name), getattr(np.fft, name))
    for name in ("fftfreq", "rfftfreq"):
        for n in (5, 6):
            table.add(f"fft::{name}_with", [], [n, 0.5], getattr(mx.fft, name), getattr(np.fft, name))


def linear(table):
    a = table.floats(2, 3, 3) + 3 * mx.eye(3)
    s = a + mx.swapaxes(a, -1, -2) + 4 * mx.eye(3)
    b = table.floats(2, 3, 2)
    tall = table.floats(4, 3)
    on = {"stream": mx.cpu}
    la, nl = mx.linalg, np.linalg

    def add(name, inputs, args, f, numpy=None):
        table.add(f"linalg::{name}", inputs, args, lambda *given: f(*given, **on), numpy)

    add("inv", [a], [], la.inv, nl.inv)
    add("pinv", [tall], [], la.pinv, nl.pinv)
    add("det", [a], [], la.det, nl.det)
    add("slogdet", [a], [], la.slogdet, nl.slogdet)
    add("eigvalsh_with", [s], ["L"], la.eigvalsh, nl.eigvalsh)
    # Signs and order of vectors are open: what they multiply back to is not.
    back = lambda x, *_: x
    add("eigh_with", [s], ["U"], lambda x, u, **on: rebuild_eigh(*la.eigh(x, u, **on)), back)
    add("eigvals", [a[0]], [], lambda x, **on: mx.sum(la.eigvals(x, **on)), lambda x: np.trace(x).astype(np.complex64))
    add("eig", [a[0]], [], lambda x, **on: residual(x, *la.eig(x, **on)), lambda x: np.zeros((3, 3), np.complex64))
    add("qr", [tall], [], lambda x, **on: mx.matmul(*la.qr(x, **on)), back)
    add("svd", [tall], [], lambda x, **on: rebuild_svd(*la.svd(x, **on)), back)
    add("singular_values", [tall], [], lambda x, **on: la.svd(x, compute_uv=False, **on), lambda x: nl.svd(x, compute_uv=False))
    add("lu", [a[0]], [], lambda x, **on: la.lu(x, **on))
    add("lu_factor", [a[0]], [], lambda x, **on: la.lu_factor(x, **on))
    for upper in (False, True):
        factor = lambda x, u, **on: la.cholesky(x, u, **on)
        add("cholesky_with", [s], [upper], factor, lambda x, u: nl.cholesky(x, upper=u))
        add("cholesky_inv_with", [la.cholesky(s, upper, **on)], [upper], la.cholesky_inv, lambda x, u: nl.inv(np.array(s)))
        half = mx.triu(a) if upper else mx.tril(a)
        add("tri_inv_with", [half], [upper], la.tri_inv, lambda x, u: nl.inv(x))
        add("solve_triangular_with", [half, b], [upper], lambda x, y, u, **on: la.solve_triangular(x, y, upper=u, **on), lambda x, y, u: nl.solve(x, y))
    add("solve", [a, b], [], la.solve, nl.solve)
    for order in (1, 2, 0.5, float("inf")):
        order_json = "inf" if order == float("inf") else order
        add("norm_with", [tall], [order_json, [1], False], lambda x, o, i, k, **on: la.norm(x, float(o), i, k, **on), lambda x, o, i, k: nl.norm(x, float(o), 1))
    add("norm_with", [tall], [1, [0, 1], True], la.norm, lambda x, o, i, k: nl.norm(x, o, (0, 1), k))
    add("norm_l2", [tall], [[0, 1], False], lambda x, i, k, **on: la.norm(x, None, i, k, **on), lambda x, i, k: nl.norm(x))
    for kind in ("fro", "nuc"):
        add("norm_matrix", [tall], [kind, [0, 1], False], la.norm, lambda x, o, i, k: nl.norm(x, o, (0, 1)))


def rebuild_eigh(values, vectors):
    return (vectors * values[:, None, :]) @ mx.swapaxes(vectors, -1, -2)


def residual(x, values, vectors):
    return mx.round(x @ vectors - vectors * values, 3)


def rebuild_svd(u, s, vt):
    return (u[:, : s.shape[0]] * s) @ vt


def randoms(table):
    key = mx.random.key(42)
    f32 = mx.float32

    def add(name, inputs, args, f):
        table.add(f"random::{name}", inputs, args, f)

    add("key", [], [42], lambda _: key)
    add("key", [], [2**40 + 3], mx.random.key)
    add("split_n", [key], [3], lambda k, n: list(mx.random.split(k, n)))
    add("split", [key], [], lambda k: list(mx.random.split(k)))
    add("uniform", [key], [[2, 3], -1.0, 2.0], lambda k, s, a, b: mx.random.uniform(a, b, s, f32, k))
    add("normal_with", [key], [[2, 3], 1.0, 0.5], lambda k, s, m, d: mx.random.normal(s, f32, m, d, k))
    add("normal_with", [key], [[5], 0.0, 1.0], lambda k, s, m, d: mx.random.normal(s, f32, m, d, k))
    add("truncated_normal", [key], [[4], -0.5, 1.0], lambda k, s, a, b: mx.random.truncated_normal(a, b, s, f32, k))
    add("laplace_with", [key], [[4], 1.0, 2.0], lambda k, s, m, d: mx.random.laplace(s, f32, m, d, k))
    add("gumbel", [key], [[4]], lambda k, s: mx.random.gumbel(s, f32, key=k))
    add("bernoulli", [key], [[8], 0.3], lambda k, s, p: mx.random.bernoulli(p, s, k))
    add("randint", [key], [[8], -3, 9], lambda k, s, a, b: mx.random.randint(a, b, s, mx.int32, k))
    logits = table.floats(3, 5)
    add("categorical_with", [key, logits], [-1], lambda k, x, i: mx.random.categorical(x, i, key=k))
    add("categorical_n", [key, logits], [-1, 4], lambda k, x, i, n: mx.random.categorical(x, i, num_samples=n, key=k))
    add("permutation_with", [key, logits], [1], lambda k, x, i: mx.random.permutation(x, i, k))
    add("permutation_of", [key], [6], lambda k, n: mx.random.permutation(n, key=k))
    mean, covariance = mx.array([1.0, -1.0]), mx.array([[2.0, 0.5], [0.5, 1.0]])
    add("multivariate_normal", [key, mean, covariance], [[3]], lambda k, m, c, s: mx.random.multivariate_normal(m, c, s, f32, k, stream=mx.cpu))

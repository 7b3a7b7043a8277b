"""Calls that leave out every argument with a default, and calls without an axis."""

import mlx.core as mx
import numpy as np

from ops_table import to_numpy


def fill(table):
    reductions(table)
    along(table)
    shapes(table)
    elements(table)
    products(table)
    transforms(table)
    randoms(table)


def reductions(table):
    x = table.floats(2, 3, 4)
    for name in ("sum", "prod", "mean", "max", "min", "all", "any", "median", "count_nonzero", "var", "std", "argmax", "argmin"):
        table.add(f"{name}_all", [x], [], getattr(mx, name), getattr(np, name))
    table.add("logsumexp_all", [x], [], mx.logsumexp, lambda a: np.log(np.exp(a).sum()))
    table.add("softmax_all", [x], [], mx.softmax, lambda a: np.exp(a) / np.exp(a).sum())
    softmax = lambda a, i: np.exp(a) / np.exp(a).sum(i, keepdims=True)
    table.add("softmax", [x], [-1], mx.softmax, softmax)
    for name in ("var", "std"):
        table.add(name, [x], [1, True], getattr(mx, name), lambda a, i, k: getattr(np, name)(a, i, keepdims=k))
    for name in ("argmax", "argmin"):
        f, numpy = getattr(mx, name), getattr(np, name)
        table.add(f"{name}_flat", [x], [True], lambda a, k: f(a, keepdims=k), lambda a, k: numpy(a, keepdims=k))
        table.add(f"{name}_flat", [mx.array(3.0)], [False], lambda a, k: f(a, keepdims=k), lambda a, k: numpy(a, keepdims=k))
    table.add("diagonal", [x], [], mx.diagonal, np.diagonal)
    for a in (x, x[0].astype(mx.bfloat16), mx.array([[1, 2], [3, 4]])):
        table.add("trace", [a], [], mx.trace, np.trace)


def along(table):
    x, i = table.floats(2, 5), mx.array([[0, 9], [-1, 4]])
    accumulate = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}
    accumulate["logcumsumexp"] = np.logaddexp.accumulate
    for name, numpy in accumulate.items():
        f = getattr(mx, name)
        table.add(name, [x], [1], lambda a, i: f(a, axis=i), lambda a, i: numpy(a, i))
        for a in (x, mx.array(2.0)):
            table.add(f"{name}_all", [a], [], f, lambda a: numpy(a.reshape(-1), 0))
    table.add("diff", [x], [], mx.diff, np.diff)
    table.add("take_flat", [x, i], [], mx.take, np.take)
    table.add("take_along_axis_flat", [x, i[:, 0]], [], lambda a, i: mx.take_along_axis(a, i, None), lambda a, i: np.take_along_axis(a, i, None))
    for a in (x, mx.array(2.0)):
        table.add("repeat_flat", [a], [2], mx.repeat, np.repeat)
    table.add("sort_flat", [x], [], lambda a: mx.sort(a, None), lambda a: np.sort(a, None))
    # NumPy orders equal elements differently.
    table.add("argsort_flat", [x], [], lambda a: mx.argsort(a, None))
    table.add("topk_flat", [x], [3], lambda a, k: mx.sort(mx.topk(a, k, None)), lambda a, k: np.sort(a, None)[-k:])
    table.add("partition_flat", [x], [3], lambda a, k: mx.partition(a, k, None)[k], lambda a, k: np.partition(a, k, None)[k])
    table.add("argpartition_flat", [x], [3], lambda a, k: mx.argpartition(a, k, None)[k], lambda a, k: np.argpartition(a, k, None)[k])
    table.add("concat_flat", [x, i.astype(mx.float32)], [], lambda a, b: mx.concatenate([a, b], None), lambda a, b: np.concatenate([a, b], None))
    line = mx.array([-1.0, 0.5, 0.5, 2.0])
    table.add("searchsorted", [line, mx.array([0.5, -3.0, 9.0])], [], mx.searchsorted, np.searchsorted)
    for shift, axes in (([1], [0]), ([2], [0, 1]), ([1, -2], [0, 1]), ([1, 2], [1])):
        numpy = lambda a, s, i: np.roll(a, s[0] if len(s) == 1 else s, i if len(i) > 1 else i[0])
        table.add("roll_axes", [x], [shift, axes], lambda a, s, i: mx.roll(a, s[0] if len(s) == 1 else tuple(s), tuple(i) if len(i) > 1 else i[0]), numpy if len(shift) <= len(axes) else None)
    for a, shift in ((x, [3]), (x, [1, 2]), (mx.array(2.0), [1])):
        table.add("roll_flat", [a], [shift], lambda a, s: mx.roll(a, s[0] if len(s) == 1 else tuple(s)), lambda a, s: np.roll(a, sum(s)))


def shapes(table):
    x = table.floats(2, 3)
    for name in ("tril", "triu", "diag"):
        table.add(name, [x], [], getattr(mx, name), getattr(np, name))
    for name in ("eye", "tri"):
        table.add(name, [], [3], getattr(mx, name), lambda n: getattr(np, name)(n, dtype=np.float32))
    table.add("meshgrid", [x[0], x[1, :2]], [], mx.meshgrid, np.meshgrid)
    table.add("flatten", [x], [], mx.flatten, np.ravel)
    for widths in (1, [0, 2], [[1, 0], [0, 2]]):
        pairs = tuple(widths) if isinstance(widths, list) and isinstance(widths[0], int) else widths
        table.add("pad", [x], [widths, 7.5], lambda a, w, v: mx.pad(a, pairs, constant_values=v), lambda a, w, v: np.pad(a, pairs, constant_values=v))
    for mode in ("edge", "reflect", "symmetric"):
        for widths in ([[0, 1, 1], [1, 2, 2]], [[0, 3, 4], [1, 0, 7]], [[0, 0, 0], [1, 5, 1]]):
            pairs = [row[1:] for row in widths]
            table.add("pad_with", [x], [widths, 0.0, mode], lambda a, w, v, m: mx.pad(a, pairs, m), lambda a, w, v, m: np.pad(a, pairs, m))
    table.add("as_strided", [x], [[2, 2], [3, 1]], mx.as_strided)
    for name in ("zeros_like", "ones_like"):
        table.add(f"{name}_method", [x], [], getattr(mx, name), getattr(np, name))
    table.add("full_like_method", [x], [2.5], mx.full_like, np.full_like)
    table.add("where_", [x], [0.5], lambda a, v: mx.where(a > 0, a, v), lambda a, v: np.where(a > 0, a, np.float32(v)))


def elements(table):
    special = mx.array([0.5, 1.5, -2.5, float("nan"), float("inf"), -float("inf")])
    table.add("round", [special], [], mx.round, np.round)
    table.add("nan_to_num", [special], [], mx.nan_to_num, np.nan_to_num)
    near = special + 1e-6
    for name in ("isclose", "allclose", "array_equal"):
        for a, b in ((special, special), (special, near), (special[:3], special[:3]), (special[:3], near[:3])):
            table.add(name, [a, b], [], getattr(mx, name), getattr(np, name))
    table.add("powf", [mx.abs(special[:3])], [0.5], mx.power, lambda a, p: np.power(a, np.float32(p)))
    import mlx.nn as nn

    x = table.floats(9, lo=-4, hi=4)
    for dtype in (mx.float32, mx.bfloat16, mx.float16):
        for name in ("relu", "silu", "gelu"):
            table.add(name, [x.astype(dtype)], [], getattr(nn, name))


def products(table):
    a, b, c = table.floats(3, 4), table.floats(4, 2), table.floats(3, 2)
    table.add("addmm", [c, a, b], [], mx.addmm, lambda c, a, b: c + a @ b)
    cube = table.floats(2, 3, 4)
    table.add("tensordot", [cube, table.floats(3, 4, 2)], [], mx.tensordot, np.tensordot)
    table.add("vecdot", [a, a[::-1]], [], mx.vecdot, np.vecdot)
    table.add("cross", [a[:, :3], a[::-1, 1:]], [], mx.linalg.cross, np.cross)
    m, n = table.floats(2, 70, lo=-1), table.floats(70, 3, lo=-1)
    masks = [mx.array([[True]]), mx.array([[True, False]]), mx.array([[True], [True]])]
    table.add("block_masked_mm", [m, n, *masks], [], lambda a, b, o, l, r: mx.block_masked_mm(a, b, 64, o, l, r), lambda a, b, *_: a[:, :64] @ b[:64])
    left, right = table.floats(3, 1, 4), table.floats(2, 4, 2)
    lhs, rhs = mx.array([2, 0, 1, 1], mx.uint32), mx.array([1, 0, 1, 1], mx.uint32)
    table.add("gather_mm", [left, right, lhs, rhs], [], mx.gather_mm, lambda a, b, i, j: a[i] @ b[j])
    w, x = table.floats(2, 64, lo=-1), table.floats(3, 64, lo=-1)
    parts = mx.quantize(w, group_size=64, bits=4)
    dense = to_numpy(mx.dequantize(*parts, group_size=64, bits=4))
    table.add("quantize", [w], [64, 4], mx.quantize)
    table.add("dequantize", [*parts], [64, 4], mx.dequantize, lambda *_: dense)
    table.add("quantized_matmul", [x, *parts], [True, 64, 4], mx.quantized_matmul, lambda x, *_: x @ dense.T)
    experts = mx.quantize(table.floats(2, 2, 64, lo=-1), group_size=64, bits=4)
    rows, pick = table.floats(2, 1, 64, lo=-1), mx.array([1, 0], mx.uint32)
    table.add(
        "gather_qmm",
        [rows, *experts, pick],
        [True, 64, 4],
        lambda x, p, s, b, j, t, g, n: mx.gather_qmm(x, p, s, b, rhs_indices=j, transpose=t, group_size=g, bits=n),
    )
    for name, shapes in {
        "conv1d": ((1, 7, 2), (3, 3, 2)),
        "conv2d": ((1, 4, 5, 2), (2, 3, 2, 2)),
        "conv3d": ((1, 3, 3, 3, 1), (1, 2, 2, 2, 1)),
    }.items():
        x, w = (table.floats(*shape, lo=-1) for shape in shapes)
        table.add(name, [x, w], [], getattr(mx, name))
        transposed = name.replace("conv", "conv_transpose")
        table.add(transposed, [x, w], [], getattr(mx, transposed))


def transforms(table):
    x, z = table.floats(2, 6), table.floats(2, 6) + 1j * table.floats(2, 6)
    for name, a in (("fft", z), ("ifft", z), ("rfft", x), ("irfft", z[:, :4])):
        for last in ("", "2", "n"):
            f = getattr(mx.fft, name + last)
            table.add(f"fft::{name}{last}", [a], [], lambda a: f(a, stream=mx.cpu), getattr(np.fft, name + last))
    for name in ("fftshift", "ifftshift"):
        table.add(f"fft::{name}", [x], [], getattr(mx.fft, name), getattr(np.fft, name))
    for name in ("fftfreq", "rfftfreq"):
        table.add(f"fft::{name}", [], [5], getattr(mx.fft, name), getattr(np.fft, name))
    a = table.floats(3, 3) + 3 * mx.eye(3)
    s = a + a.T + 4 * mx.eye(3)
    on, la, nl = {"stream": mx.cpu}, mx.linalg, np.linalg
    table.add("linalg::norm", [x], [], la.norm, nl.norm)
    table.add("linalg::cholesky", [s], [], lambda x: la.cholesky(x, **on), nl.cholesky)
    table.add("linalg::cholesky_inv", [la.cholesky(s, **on)], [], lambda x: la.cholesky_inv(x, **on), lambda x: nl.inv(x @ x.T))
    table.add("linalg::tri_inv", [mx.tril(a)], [], lambda x: la.tri_inv(x, **on), nl.inv)
    table.add("linalg::solve_triangular", [mx.tril(a), x[0, :3]], [], lambda x, b: la.solve_triangular(x, b, **on), nl.solve)
    table.add("linalg::eigvalsh", [s], [], lambda x: la.eigvalsh(x, **on), nl.eigvalsh)
    table.add("linalg::eigh", [s], [], lambda x: rebuild(*la.eigh(x, **on)), lambda x: x)


def rebuild(values, vectors):
    return (vectors * values[None, :]) @ vectors.T


def randoms(table):
    """Draws with a key, and those that follow a seed."""
    key, logits = mx.random.key(42), table.floats(3, 5)
    calls = {
        "uniform": lambda s, k: mx.random.uniform(-1.0, 2.0, s, key=k),
        "normal": lambda s, k: mx.random.normal(s, key=k),
        "laplace": lambda s, k: mx.random.laplace(s, key=k),
        "gumbel": lambda s, k: mx.random.gumbel(s, key=k),
        "bernoulli": lambda s, k: mx.random.bernoulli(0.3, s, k),
        "randint": lambda s, k: mx.random.randint(-3, 9, s, key=k),
        "truncated_normal": lambda s, k: mx.random.truncated_normal(-0.5, 1.0, s, key=k),
    }
    for name in ("normal", "laplace"):
        table.add(f"random::{name}", [key], [[2, 3]], lambda k, s: calls[name](s, k))
    table.add("random::categorical", [key, logits], [], lambda k, x: mx.random.categorical(x, key=k))
    table.add("random::permutation", [key, logits], [], lambda k, x: mx.random.permutation(x, key=k))
    for seed, (name, call) in enumerate(calls.items()):
        def seeded(seed, shape):
            mx.random.seed(seed)
            return [call(shape, None), call(shape, None)]

        table.add(f"random::{name}_seeded", [], [seed, [2, 3]], seeded)

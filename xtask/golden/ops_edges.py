"""Edge cases: no elements, no dimensions, views, NaN and infinities, the limits of each integer type, broadcasts.

The file has the form of the other tables, and two things more: an input may have a `view` of its elements ("reversed" along
every axis, with negative strides; "turned", the transpose; "halved", every second element of the last axis; "broadcast" along
a new first axis of 2), and a case that MLX refuses has `error` in place of `out`.

Left out is what MLX leaves undefined: integers divided by zero, the least integer divided by -1, NaN and infinities as
integers, shifts by the width of the type, inverses of matrices without elements.
"""

import mlx.core as mx
import numpy as np

from ops_elementwise import BINARY, BITS, UNARY, close
from ops_table import DTYPES, FLOATS, NAMES, Table, encode, listed

INF, NAN = float("inf"), float("nan")
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.5, 0.5, 3.0e38, 1.0e-40]
INTEGERS = [d for d in DTYPES if mx.issubdtype(d, mx.integer)]
SIGNED = [d for d in DTYPES if mx.issubdtype(d, mx.signedinteger)]
VIEWS = {
    "reversed": lambda x: x[::-1] if x.ndim == 1 else x[::-1, ::-1],
    "turned": lambda x: x.T,
    "halved": lambda x: x[..., ::2],
    "broadcast": lambda x: mx.broadcast_to(x, (2, *x.shape)),
}
# In tables of their own.
IGNORED = ("stop_gradient", "positive")


class Edges(Table):
    """A table of cases that MLX may refuse, with inputs that may be views: an array and the name of its view."""

    def add(self, op, inputs, args, mlx):
        arrays = [VIEWS[x[1]](x[0]) if isinstance(x, tuple) else x for x in inputs]
        case = {"op": op, "in": [self.named(x) for x in inputs]}
        if args:
            case["args"] = list(args)
        try:
            result = [encode(array) for array in listed(mlx(*arrays, *args))]
        except (ValueError, RuntimeError, IndexError):
            case["error"] = 1
        else:
            case["out"] = result
        self.cases.append(case)

    def named(self, x):
        if not isinstance(x, tuple):
            return self.name(x)
        encoded = encode(x[0]) | {"view": x[1]}
        for name, known in self.inputs.items():
            if known == encoded:
                return name
        name = f"x{len(self.inputs)}"
        self.inputs[name] = encoded
        return name


def floats(*values, dtype=mx.float32):
    return mx.array(list(values), dtype=dtype)


def limits(dtype):
    info = mx.iinfo(dtype)
    return mx.array(np.array([info.min, info.max, 0, 1, 3], dtype=str(dtype).split(".")[-1]))


def matrix(rows=2, columns=4):
    return mx.arange(rows * columns, dtype=mx.float32).reshape(rows, columns) - 2.5


def views():
    return [(matrix(), view) for view in VIEWS]


def document():
    table = Edges(np.random.default_rng(5))
    for fill in (unary, binary, integers, reductions, scans, orders, shapes, casts, indices, products, spectra, norms, convolutions, draws, made, others):
        fill(table)
    print(f"edges: {len(table.cases)} cases, {sum('error' in case for case in table.cases)} of them refused")
    return table.document()


def unary(table):
    names = [name for name in UNARY if name not in IGNORED] + ["isnan", "isinf", "isfinite", "isneginf", "isposinf"]
    for name in names:
        f = getattr(mx, name)
        table.add(name, [floats(*SPECIAL)], [], f)
        table.add(name, [mx.zeros((2, 0))], [], f)
        table.add(name, [mx.array(0.5)], [], f)
        table.add(name, [(matrix() / 8, "reversed")], [], f)
        for dtype in (mx.float16, mx.bfloat16):
            table.add(name, [floats(*SPECIAL[:8]).astype(dtype)], [], f)
    for name in ("abs", "negative", "sign", "square", "floor", "logical_not", "isnan"):
        for dtype in INTEGERS:
            table.add(name, [limits(dtype)], [], getattr(mx, name))
    for dtype in (*INTEGERS, mx.bool_):
        table.add("bitwise_invert", [limits(dtype) if dtype != mx.bool_ else mx.array([True, False])], [], mx.bitwise_invert)
    for decimals in (0, 1, -1):
        table.add("round_with", [floats(NAN, INF, -INF, -0.5, 2.5, -2.5, 0.05, -0.0, 3e38)], [decimals], mx.round)
    for args in ([0.0, None, None], [1.0, 2.0, -2.0]):
        table.add("nan_to_num_with", [floats(*SPECIAL)], args, mx.nan_to_num)
        table.add("nan_to_num_with", [floats(NAN, INF, -INF, 1.0, dtype=mx.float16)], args, mx.nan_to_num)
    table.add("nan_to_num_with", [mx.array([1, -1])], [5.0, None, None], mx.nan_to_num)


def binary(table):
    column, row = floats(*SPECIAL).reshape(-1, 1), floats(*SPECIAL)
    for name in BINARY:
        f = getattr(mx, name)
        table.add(name, [column, row], [], f)
        table.add(name, [mx.zeros((2, 0)), mx.ones((1, 1))], [], f)
        table.add(name, [mx.array(1.5), matrix() + 3], [], f)
        table.add(name, [(matrix() + 3, "reversed"), matrix() + 3], [], f)
        table.add(name, [(matrix() + 3, "broadcast"), (matrix(4, 2) + 3, "turned")], [], f)
        table.add(name, [mx.zeros((2, 3)), mx.zeros((2, 2))], [], f)
        table.add(name, [mx.array([True, False]), floats(2.0, -3.0)], [], f)
        table.add(name, [floats(2.0, 0.5, dtype=mx.float16), floats(2.0, 0.5, dtype=mx.bfloat16)], [], f)


def integers(table):
    for dtype in INTEGERS:
        a = limits(dtype)
        b = mx.array([2, 3, 1, 5, 2]).astype(dtype)
        for name in ("add", "subtract", "multiply", "maximum", "minimum", "floor_divide", "remainder", "divmod", "equal", "less", "divide"):
            table.add(name, [a, b], [], getattr(mx, name))
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
            table.add(name, [a, b], [], getattr(mx, name))
        for name in ("left_shift", "right_shift"):
            table.add(name, [a, mx.array([0, 1, 2, 3, 7]).astype(dtype)], [], getattr(mx, name))
        table.add("power", [mx.array([0, 1, 2, 3, 5]).astype(dtype), mx.array([0, 7, 6, 4, 2]).astype(dtype)], [], mx.power)
    for dtype in SIGNED:
        a = mx.array([7, -7, 7, -7]).astype(dtype)
        for name in ("floor_divide", "remainder", "divmod"):
            table.add(name, [a, mx.array([3, 3, -3, -3]).astype(dtype)], [], getattr(mx, name))
    for name in BITS:
        table.add(name, [floats(1.0), floats(2.0)], [], getattr(mx, name))


def keep(f):
    return lambda x, axes, keepdims: f(x, axis=axes, keepdims=keepdims)


def reductions(table):
    rows = mx.array([[1.0, NAN, 2.0], [INF, -INF, 0.0], [-0.0, 0.0, -0.0]])
    for name in ("sum", "prod", "mean", "max", "min", "all", "any", "median", "logsumexp"):
        f = keep(getattr(mx, name))
        table.add(name, [rows], [[1], False], f)
        table.add(name, [rows], [[0, 1], True], f)
        table.add(name, [mx.array(2.5)], [[], False], f)
        table.add(name, [mx.array(2.5)], [[0], False], f)
        table.add(name, [mx.ones((2, 1, 3))], [[1], True], f)
        for view in views():
            table.add(name, [view], [[0], False], f)
            table.add(name, [view], [[-1], True], f)
        table.add(name, [mx.zeros((0, 3))], [[1], False], f)
        table.add(name, [mx.ones((2, 2))], [[2], False], f)
        table.add(name, [mx.ones((2, 2))], [[0, 0], False], f)
        table.add(name, [rows.astype(mx.float16)], [[0], False], f)
        if name not in ("median", "logsumexp"):
            for dtype in INTEGERS:
                table.add(name, [limits(dtype)], [[0], False], f)
    for name in ("sum", "prod", "all", "any", "max", "min", "mean", "median", "logsumexp"):
        table.add(name, [mx.zeros((2, 0))], [[1], False], keep(getattr(mx, name)))
    for name in ("var_with", "std_with"):
        f = getattr(mx, name[:3])
        g = lambda x, axes, keepdims, ddof: f(x, axis=axes, keepdims=keepdims, ddof=ddof)
        for ddof in (0, 1, 2, 3):
            table.add(name, [mx.array([[1.0, 4.0], [2.0, 8.0]])], [[1], False, ddof], g)
        table.add(name, [rows], [[1], True, 0], g)
        table.add(name, [mx.array(3.0)], [[], False, 0], g)
        table.add(name, [limits(mx.int8)], [[0], False, 0], g)
        for view in views():
            table.add(name, [view], [[-1], False, 0], g)
    for name in ("argmax", "argmin"):
        f = keep(getattr(mx, name))
        for x in (floats(1.0, 3.0, 3.0, -INF), floats(INF, -INF, INF), floats(-0.0, 0.0), mx.array([True, False, True])):
            table.add(name, [x], [0, False], f)
        for dtype in INTEGERS:
            table.add(name, [limits(dtype)], [0, True], f)
        for view in views():
            table.add(name, [view], [-1, False], f)
        table.add(name, [mx.zeros((0, 3))], [1, False], f)
        table.add(name, [mx.zeros((2, 0))], [1, False], f)
        table.add(name, [mx.ones((2, 2))], [2, False], f)
    soft = lambda x, axes, precise: mx.softmax(x, axis=axes, precise=precise)
    for precise in (False, True):
        for x in (floats(0.0, -INF, 1.0), floats(1.0, NAN), floats(INF, 1.0), floats(500.0, 600.0), mx.zeros((2, 0)), mx.array([1, 2])):
            table.add("softmax_with", [x], [[-1], precise], soft)
        table.add("softmax_with", [floats(500.0, 600.0, -INF, dtype=mx.float16)], [[-1], precise], soft)
        for view in views():
            table.add("softmax_with", [view], [[0], precise], soft)


def scans(table):
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"):
        f = getattr(mx, name)
        g = lambda x, axis, reverse, inclusive: f(x, axis=axis, reverse=reverse, inclusive=inclusive)
        for reverse in (False, True):
            for inclusive in (True, False):
                for view in views():
                    table.add(name + "_with", [view], [-1, reverse, inclusive], g)
                table.add(name + "_with", [floats(1.0, INF, 2.0, -INF, 1.0)], [0, reverse, inclusive], g)
        table.add(name + "_with", [mx.zeros((2, 0))], [1, False, True], g)
        table.add(name + "_with", [mx.zeros((0, 2))], [1, False, True], g)
        table.add(name + "_with", [mx.ones((2,))], [1, False, True], g)
        if name != "logcumsumexp":
            for dtype in INTEGERS:
                table.add(name + "_with", [limits(dtype)], [0, False, True], g)
            table.add(name + "_with", [mx.array([True, True, False])], [0, False, True], g)


def orders(table):
    arrays = [floats(2.0, NAN, -INF, INF, 1.0), floats(1.0, -1.0, 1.0), mx.zeros((2, 0)), mx.zeros((0, 2)), mx.array([True, False])]
    for x in arrays + views() + [limits(dtype) for dtype in INTEGERS]:
        table.add("sort", [x], [-1], lambda x, axis: mx.sort(x, axis=axis))
        table.add("argsort", [x], [-1], lambda x, axis: mx.argsort(x, axis=axis))
    for name in ("sort", "argsort"):
        table.add(name, [mx.ones((2,))], [1], lambda x, axis: getattr(mx, name)(x, axis=axis))
    top = lambda x, k, axis: mx.sort(mx.topk(x, k, axis=axis), axis=axis)
    for k in (1, 4, 5, 0):
        table.add("topk", [matrix()], [k, 1], top)
    table.add("topk", [(matrix(), "reversed")], [2, 1], top)
    for x in (floats(0.0, 1.0, 1.0, 2.0), mx.array([1, 2, 3])):
        for side in ("left", "right"):
            values = mx.array([-1, 0, 1, 5]).astype(x.dtype)
            table.add("searchsorted_with", [x, values], [side], lambda x, v, side: mx.searchsorted(x, v, side=side))


def shapes(table):
    empty, scalar = mx.zeros((2, 0)), mx.array(7.0)
    for x, shape in [(empty, [0, 2]), (empty, [0]), (scalar, [1, 1]), (scalar, []), (mx.ones((1, 1)), []), (matrix(), [-1]), (matrix(), [3, 3]), (matrix(), [-1, -1]), (empty, [-1])]:
        table.add("reshape", [x], [shape], mx.reshape)
    for x in views():
        table.add("reshape", [x], [[-1]], mx.reshape)
        table.add("t", [x], [], lambda x: x.T)
        table.add("matrix_transpose", [x], [], mx.matrix_transpose)
        table.add("flip", [x], [[0]], lambda x, axes: mx.flip(x, axis=axes))
        table.add("roll", [x], [3, -1], lambda x, n, axis: mx.roll(x, n, axis=axis))
        table.add("repeat", [x], [2, 0], lambda x, n, axis: mx.repeat(x, n, axis=axis))
        table.add("copy", [x], [], lambda x: x + 0)
        table.add("split", [x], [2, 0], lambda x, n, axis: mx.split(x, n, axis=axis))
        table.add("diagonal_with", [x], [1, 0, 1], mx.diagonal)
    for axes in ([0], [2], [-3], [0, 1], [0, 0], [4]):
        table.add("expand_dims", [matrix()], [axes], mx.expand_dims)
    for axes in ([0], [1], [0, 2], [3], [0, 0]):
        table.add("squeeze", [mx.ones((1, 2, 1))], [axes], mx.squeeze)
    for x, shape in [(scalar, [2, 2]), (scalar, []), (empty, [3, 2, 0]), (floats(1.0), [0]), (floats(1.0, 2.0), [3]), (matrix(), [4])]:
        table.add("broadcast_to", [x], [shape], mx.broadcast_to)
    for x in (floats(1.0, 2.0), scalar, empty, mx.ones((2, 1, 3))):
        table.add("matrix_transpose", [x], [], mx.matrix_transpose)
    for reps in ([0], [2], [1, 0], [2, 1, 2]):
        table.add("tile", [floats(1.0, 2.0)], [reps], mx.tile)
    for n in (0, 1, 3):
        table.add("repeat", [floats(1.0, 2.0)], [n, 0], lambda x, n, axis: mx.repeat(x, n, axis=axis))
    for shift in (0, 2, -1, 7):
        table.add("roll", [floats(1.0, 2.0, 3.0)], [shift, 0], lambda x, n, axis: mx.roll(x, n, axis=axis))
    cat = lambda *arrays_and_axis: mx.concatenate(list(arrays_and_axis[:-1]), axis=arrays_and_axis[-1])
    table.add("concat", [empty, matrix()], [1], cat)
    table.add("concat", [empty, empty], [0], cat)
    table.add("concat", [matrix(), mx.ones((2, 3))], [0], cat)
    table.add("concat", [mx.array([1, 2]), floats(0.5)], [0], cat)
    table.add("concat", [mx.array([True]), mx.array([2], mx.uint8)], [0], cat)
    table.add("concat", [scalar, scalar], [0], cat)
    pile = lambda *arrays_and_axis: mx.stack(list(arrays_and_axis[:-1]), axis=arrays_and_axis[-1])
    table.add("stack", [scalar, scalar], [0], pile)
    table.add("stack", [empty, empty], [-1], pile)
    table.add("stack", [matrix(), empty], [0], pile)
    for k in (-3, -1, 0, 2, 9):
        table.add("tril_with", [matrix()], [k], mx.tril)
        table.add("triu_with", [(matrix(), "reversed")], [k], mx.triu)
        table.add("diag_with", [floats(1.0, 2.0)], [k], mx.diag)
    for n, axis in [(3, 1), (0, 0), (2, 2)]:
        table.add("split", [matrix()], [n, axis], lambda x, n, axis: mx.split(x, n, axis=axis))
    table.add("unstack", [mx.zeros((0, 2))], [0], lambda x, axis: mx.unstack(x, axis=axis))
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        table.add(name, [scalar], [], getattr(mx, name))
        table.add(name, [empty], [], getattr(mx, name))


def casts(table):
    for source in (*INTEGERS, mx.bool_):
        x = limits(source) if source != mx.bool_ else mx.array([True, False])
        for to in DTYPES:
            table.add("astype", [x], [NAMES[to]], lambda x, _: x.astype(to))
    for source in FLOATS:
        x, small = floats(*SPECIAL).astype(source), floats(0.0, 1.75, 100.5).astype(source)
        for to in DTYPES:
            table.add("astype", [small if to in INTEGERS else x], [NAMES[to]], lambda x, _: x.astype(to))


def indices(table):
    x = matrix()
    take = lambda x, i, axis: mx.take(x, i, axis=axis)
    for i in (mx.array([], mx.int32), mx.array([-1, 0]), mx.array(1), mx.array([[1, -2]]), mx.array([1], mx.uint8)):
        table.add("take", [x, i], [1, ], take)
        table.add("take", [(x, "reversed"), i], [0], take)
    along = lambda x, i, axis: mx.take_along_axis(x, i, axis=axis)
    table.add("take_along_axis", [x, mx.array([[-1], [0]])], [1], along)
    table.add("take_along_axis", [x, mx.zeros((2, 0), mx.int32)], [1], along)
    table.add("take_along_axis", [(x, "halved"), mx.array([[1, 0], [0, 1]])], [1], along)
    cut = lambda x, start, stop, step: x[tuple(slice(*part) for part in zip(start, stop, step))]
    for start, stop, step in [([0, 0], [2, 4], [1, 1]), ([1, 3], [1, 3], [1, 1]), ([0, 1], [2, 99], [1, 2]), ([0, 0], [0, 4], [1, 1])]:
        for view in [x, *views()[:3]]:
            table.add("slice_strided", [view], [start, stop, step], cut)


def products(table):
    for a, b in [((2, 0), (0, 3)), ((0, 2), (2, 3)), ((2,), (2,)), ((3, 2), (2,)), ((2,), (2, 3)), ((1, 2, 2), (3, 2, 1)), ((2, 3), (2, 3)), ((), (2,)), ((2, 0, 2), (2, 2)), ((0,), (0,))]:
        x, y = mx.arange(int(np.prod(a)), dtype=mx.float32).reshape(a), mx.arange(int(np.prod(b)), dtype=mx.float32).reshape(b)
        table.add("matmul", [x, y], [], mx.matmul)
        if len(a) == len(b) == 1 or a[-1:] == b[-1:]:
            table.add("inner", [x, y], [], mx.inner)
        table.add("outer", [x, y], [], mx.outer)
    for view in views()[:3]:
        table.add("matmul", [view, mx.eye(4)], [], mx.matmul)
        table.add("matmul", [mx.eye(2), view], [], mx.matmul)
    table.add("matmul", [floats(NAN, INF, 1.0).reshape(1, 3), mx.array([[0.0], [0.0], [2.0]])], [], mx.matmul)
    table.add("matmul", [mx.array([[1, 2]]), mx.array([[1], [2]])], [], mx.matmul)
    table.add("matmul", [floats(1.0, 2.0, dtype=mx.bfloat16).reshape(1, 2), floats(1.0, 2.0).reshape(2, 1)], [], mx.matmul)
    table.add("kron", [floats(1.0, INF), floats(0.0, 2.0)], [], mx.kron)
    table.add("kron", [mx.array([1, 2]), mx.zeros((0,), mx.int32)], [], mx.kron)


def spectra(table):
    for name in ("fft", "ifft", "rfft", "irfft"):
        f = getattr(mx.fft, name)
        g = lambda x, n, axis, norm: f(x, n, axis, norm)
        for x in [floats(2.0), floats(1.0, NAN), floats(1.0, INF), mx.array([1, 2, 3]), mx.zeros((0, 4)), mx.array(1.0), *views()]:
            table.add(f"fft::{name}_with", [x], [None, -1, "backward"], g)
        for n in (1, 3, 6, 0, -1):
            table.add(f"fft::{name}_with", [matrix()], [n, -1, "ortho"], g)
        table.add(f"fft::{name}_with", [matrix()], [None, 2, "backward"], g)
        table.add(f"fft::{name}_with", [floats(1.0, 2.0, dtype=mx.float16)], [None, 0, "forward"], g)
    for n in (1, 2):
        for name in ("fftfreq", "rfftfreq"):
            table.add(f"fft::{name}_with", [], [n, 0.5], getattr(mx.fft, name))


def norms(table):
    norm = lambda x, order, axes, keepdims: mx.linalg.norm(x, float(order), axes, keepdims)
    plain = lambda x, axes, keepdims: mx.linalg.norm(x, None, axes, keepdims)
    for x in [floats(3.0, -4.0), floats(NAN, 1.0), floats(INF, -INF), mx.zeros((0,)), mx.array([3, -4]), floats(3.0, 4.0, dtype=mx.float16)]:
        for order in (0, 1, 2, 3, -1, "inf", "-inf"):
            table.add("linalg::norm_with", [x], [order, [0], False], norm)
        table.add("linalg::norm_l2", [x], [[0], True], plain)
    for view in views()[:3]:
        table.add("linalg::norm_l2", [view], [[-1], False], plain)
        table.add("linalg::norm_l2", [view], [[0, 1], False], plain)
    on = {"stream": mx.cpu}
    for x in (mx.eye(2), mx.array([[4.0]]), mx.array([[1.0, 2.0], [2.0, 1.0]]), mx.ones((2, 3)), mx.array([[2.0, 0.0], [0.0, -3.0]])):
        for name in ("inv", "det"):
            table.add(f"linalg::{name}", [x], [], lambda x: getattr(mx.linalg, name)(x, **on))
        table.add("linalg::cholesky_with", [x], [False], lambda x, upper: mx.linalg.cholesky(x, upper, **on))


def convolutions(table):
    for x, w, args in [((1, 3, 1), (1, 3, 1), [1, 0, 1, 1]), ((1, 2, 1), (1, 3, 1), [1, 0, 1, 1]), ((0, 4, 1), (1, 3, 1), [1, 0, 1, 1]), ((1, 4, 2), (2, 3, 1), [1, 1, 1, 2]), ((1, 4, 2), (1, 3, 1), [1, 1, 1, 1]), ((1, 4, 1), (1, 3, 1), [9, 0, 1, 1])]:
        a, b = mx.ones(x), mx.arange(int(np.prod(w)), dtype=mx.float32).reshape(w)
        table.add("conv1d_with", [a, b], args, mx.conv1d)
    nan = floats(1.0, NAN, 1.0, 1.0).reshape(1, 4, 1)
    table.add("conv1d_with", [nan, mx.ones((1, 2, 1))], [1, 0, 1, 1], mx.conv1d)


def draws(table):
    key, f32 = mx.random.key(3), mx.float32
    for shape in ([0], [], [2, 0], [1]):
        table.add("random::uniform", [key], [shape, -1.0, 1.0], lambda k, s, a, b: mx.random.uniform(a, b, s, f32, k))
        table.add("random::normal_with", [key], [shape, 0.0, 1.0], lambda k, s, m, d: mx.random.normal(s, f32, m, d, k))
        table.add("random::randint", [key], [shape, -3, 9], lambda k, s, a, b: mx.random.randint(a, b, s, mx.int32, k))
    for p in (0.0, 1.0, -1.0, 2.0):
        table.add("random::bernoulli", [key], [[4], p], lambda k, s, p: mx.random.bernoulli(p, s, k))
    for seed in (0, 2**32 - 1, 2**63):
        table.add("random::key", [], [seed], mx.random.key)
    pick = lambda k, x, axis: mx.random.categorical(x, axis, key=k)
    table.add("random::categorical_with", [key, floats(-INF, 0.0, -INF)], [0], pick)
    table.add("random::permutation_with", [key, mx.zeros((0, 2))], [0], lambda k, x, axis: mx.random.permutation(x, axis, k))


def made(table):
    named = {name: dtype for dtype, name in NAMES.items()}
    count = lambda a, b, step, dtype: mx.arange(float(a), float(b), float(step), dtype=named[dtype])
    for args in [(0, 10, INF), (0, 0, 1), (5, 0, 1), (5, 0, -2), (0, 1, 0.3), (-3, 3, 2), (0, 3, -1)]:
        table.add("arange", [], [*(str(x) if x == INF else x for x in args), "F32"], count)
    for args in [(0, 5, 2), (5, 0, -2), (-3, 3, 1)]:
        table.add("arange", [], [*args, "I32"], count)
    line = lambda a, b, n, dtype: mx.linspace(float(a), float(b), n, dtype=named[dtype])
    for args in [(0.0, 1.0, 0), (0.0, 1.0, 1), (0.0, 1.0, 2), (3.0, -3.0, 4), (1.0, 1.0, 3), (0.0, 1.0, -1)]:
        table.add("linspace", [], [*args, "F32"], line)
    for n, m, k in [(0, 0, 0), (2, 0, 0), (2, 3, 5), (2, 3, -1), (3, 2, 1)]:
        table.add("eye_with", [], [n, m, k, "F32"], lambda n, m, k, dtype: mx.eye(n, m, k, dtype=named[dtype]))
        table.add("tri_with", [], [n, m, k, "F32"], lambda n, m, k, dtype: mx.tri(n, m, k, dtype=named[dtype]))
    for shape in ([], [0], [2, 0], [1, 1, 1]):
        for dtype in ("F32", "U8", "BOOL"):
            table.add("ones", [], [shape, dtype], lambda shape, dtype: mx.ones(shape, dtype=named[dtype]))
            # MLX takes a plain 1.0 for F32 beside an integer dtype.
            table.add("full", [], [shape, 1.0, dtype], lambda shape, v, dtype: mx.full(shape, mx.array(v).astype(named[dtype])))
    for name in ("bartlett", "blackman", "hamming", "hanning"):
        for n in (0, 1, 2):
            table.add(name, [], [n], getattr(mx, name))


def others(table):
    for lo, hi in [(-1.0, 1.0), (2.0, 1.0), (0.0, 0.0)]:
        table.add("clip", [floats(*SPECIAL)], [lo, hi], mx.clip)
    same = close(mx.isclose)
    for equal_nan in (False, True):
        for x, y in [((INF, -INF, NAN, 1.0), (INF, INF, NAN, NAN)), ((0.0, INF), (-0.0, 1.0))]:
            table.add("isclose_with", [floats(*x), floats(*y)], [1e-5, 1e-8, equal_nan], same)
            table.add("allclose_with", [floats(*x), floats(*y)], [1e-5, 1e-8, equal_nan], close(mx.allclose))
    pick = mx.where
    table.add("select", [mx.array([True, False]), floats(NAN, 1.0), floats(2.0, INF)], [], pick)
    table.add("select", [mx.array([1, 0]), floats(1.0, 2.0), mx.array([3, 4])], [], pick)
    table.add("select", [mx.array(True), mx.zeros((2, 0)), mx.array(1.0)], [], pick)
    table.add("select", [floats(NAN, -0.0), floats(1.0, 1.0), floats(2.0, 2.0)], [], pick)
    for n in (0, 1, 2, 5):
        table.add("diff_with", [floats(1.0, 4.0, INF)], [n, 0], lambda x, n, axis: mx.diff(x, n, axis=axis))

"""Creation, shapes, indexing, sorting."""

import mlx.core as mx
import numpy as np

from ops_table import DTYPES, NAMES

BY_NAME = {name: dtype for dtype, name in NAMES.items()}
NP = {"F32": np.float32, "I32": np.int32, "U32": np.uint32, "F16": np.float16, "BOOL": np.bool_}


def mx_typed(f):
    """`f` with its last argument, a dtype's name, as MLX's dtype."""
    return lambda *args: f(*args[:-1], BY_NAME[args[-1]])


def np_typed(f):
    return lambda *args: f(*args[:-1], NP[args[-1]])


def fill(table):
    create(table)
    shape(table)
    lists(table)
    index(table)
    scatter(table)
    order(table)


def create(table):
    for dtype in ("F32", "I32", "BOOL", "F16"):
        table.add("zeros", [], [[2, 3], dtype], mx_typed(mx.zeros), np_typed(np.zeros))
        table.add("ones", [], [[2], dtype], mx_typed(mx.ones), np_typed(np.ones))
    table.add("full", [], [[2, 2], 1.5, "F32"], mx_typed(mx.full), np_typed(np.full))
    table.add("full", [], [[2], 3, "BF16"], mx_typed(mx.full))
    x = table.floats(2, 3)
    table.add("zeros_like", [x], [], mx.zeros_like, np.zeros_like)
    table.add("ones_like", [x], [], mx.ones_like, np.ones_like)
    table.add("full_like", [x], [2.5], mx.full_like, np.full_like)
    for args in ([0, 5, 1, "F32"], [5, 0, -2, "I32"], [0.5, 2, 0.25, "F32"], [3, 1, 1, "F32"]):
        table.add("arange", [], args, mx_typed(mx.arange), np_typed(np.arange))
    table.add("linspace", [], [-1, 1, 5, "F32"], mx_typed(lambda a, b, n, d: mx.linspace(a, b, n, dtype=d)), np_typed(lambda a, b, n, d: np.linspace(a, b, n, dtype=d)))
    for args in ([3, 3, 0, "F32"], [2, 4, 1, "I32"], [3, 2, -1, "F32"]):
        table.add("eye_with", [], args, mx_typed(mx.eye), np_typed(np.eye))
        table.add("tri_with", [], args, mx_typed(mx.tri), np_typed(np.tri))
    table.add("identity", [], [3, "F32"], mx_typed(mx.identity), np_typed(np.identity))
    m = table.floats(2, 3, 3)
    for k in (0, 1, -1):
        table.add("tril_with", [m], [k], mx.tril, np.tril)
        table.add("triu_with", [m], [k], mx.triu, np.triu)
        table.add("diag_with", [x[0]], [k], mx.diag, np.diag)
        table.add("diag_with", [x], [k], mx.diag, np.diag)
    for name in ("bartlett", "blackman", "hamming", "hanning"):
        for size in (0, 1, 6):
            table.add(name, [], [size], getattr(mx, name), getattr(np, name))
    grid = [table.floats(2), table.floats(3)]
    for sparse in (False, True):
        for indexing in ("xy", "ij"):
            table.add(
                "meshgrid_with",
                grid,
                [sparse, indexing],
                lambda a, b, s, i: mx.meshgrid(a, b, sparse=s, indexing=i),
                lambda a, b, s, i: np.meshgrid(a, b, sparse=s, indexing=i),
            )


def shape(table):
    x = table.floats(2, 3, 4)
    small = mx.array([[0.4, 1.6, -2.7], [3.0, -0.2, 100.0]])
    for dtype in DTYPES:
        source = mx.abs(small) if "U" in NAMES[dtype] else small
        table.add("astype", [source], [NAMES[dtype]], mx_typed(mx.astype))
        table.add("astype", [mx.array([0, 1, 3]).astype(dtype)], ["F32"], mx_typed(mx.astype))
    table.add("view", [mx.array([1.0, -2.0])], ["I32"], mx_typed(mx.view), np_typed(np.ndarray.view))
    table.add("view", [mx.array([[1, 2, 3, 4]], mx.uint8)], ["U32"], mx_typed(mx.view))
    table.add("contiguous", [x], [], lambda a: mx.contiguous(a.T), lambda a: a.T)
    table.add("copy", [x], [], lambda a: mx.array(a), np.copy)
    table.add("reshape", [x], [[4, -1]], mx.reshape, np.reshape)
    table.add("flatten_with", [x], [1, 2], mx.flatten, lambda a, i, j: a.reshape(2, 12))
    table.add("flatten_with", [x], [0, -1], mx.flatten, lambda a, i, j: a.reshape(-1))
    table.add("unflatten", [x], [-1, [2, -1]], mx.unflatten, lambda a, i, s: a.reshape(2, 3, 2, 2))
    table.add("transpose", [x], [[2, 0, 1]], mx.transpose, np.transpose)
    table.add("t", [x], [], mx.transpose, np.transpose)
    table.add("swapaxes", [x], [0, -1], mx.swapaxes, np.swapaxes)
    table.add("moveaxis", [x], [0, 2], mx.moveaxis, np.moveaxis)
    table.add("expand_dims", [x], [[0, 2]], mx.expand_dims, np.expand_dims)
    ones = mx.reshape(x[0, 0], (1, 4, 1))
    table.add("squeeze", [ones], [[0]], mx.squeeze, lambda a, i: a.reshape(4, 1))
    table.add("squeeze_all", [ones], [], mx.squeeze, np.squeeze)
    table.add("broadcast_to", [x[0]], [[2, 3, 4]], mx.broadcast_to, np.broadcast_to)
    m = x[0]
    for mode in ("constant", "edge"):
        pad = [[0, 1, 2], [1, 0, 1]], 7.5, mode
        table.add(
            "pad_with",
            [m],
            list(pad),
            lambda a, w, v, mode: mx.pad(a, [w[0][1:], w[1][1:]], mode, v),
            lambda a, w, v, mode: np.pad(
                a, [w[0][1:], w[1][1:]], mode, **({"constant_values": v} if mode == "constant" else {})
            ),
        )
    for reps in ([2], [2, 1, 3]):
        table.add("tile", [m], [reps], mx.tile, np.tile)
    table.add("repeat", [m], [2, 1], mx.repeat, np.repeat)
    table.add("repeat", [m], [0, 0], mx.repeat, np.repeat)
    table.add("flip", [x], [[0, 2]], lambda a, i: a[::-1, :, ::-1], np.flip)
    for shift in (1, -2, 9):
        table.add("roll", [m], [shift, 1], mx.roll, np.roll)
    for rank, name in enumerate(("atleast_1d", "atleast_2d", "atleast_3d")):
        for a in (mx.array(2.0), m[0], m):
            table.add(name, [a], [], getattr(mx, name), getattr(np, name))
    table.add("as_strided_with", [m], [[2, 3], [4, 1], 2], mx.as_strided)
    table.add("as_strided_with", [m], [[3, 2], [-1, 0], 5], mx.as_strided)


def lists(table):
    x, y = table.floats(2, 3), table.floats(2, 3)
    for axis in (0, 1, -1):
        table.add("concat", [x, y], [axis], lambda a, b, i: mx.concatenate([a, b], i), lambda a, b, i: np.concatenate([a, b], i))
        table.add("stack", [x, y], [axis], lambda a, b, i: mx.stack([a, b], i), lambda a, b, i: np.stack([a, b], i))
    table.add("broadcast_arrays", [x, y[:1], y[0, 0]], [], mx.broadcast_arrays, np.broadcast_arrays)
    table.add("split", [x], [3, 1], mx.split, np.split)
    table.add("split_at", [x], [[1, 2], 1], mx.split, np.split)
    table.add("unstack", [x], [1], lambda a, i: mx.unstack(a, axis=i), lambda a, i: np.unstack(a, axis=i))
    table.add("depends", [x, y], [], lambda a, b: mx.depends([a], [b]), lambda a, b: [a])


def index(table):
    x = table.floats(4, 5)
    table.add("slice", [x], [[1, 0], [3, 4]], lambda a, i, j: a[1:3, 0:4], lambda a, i, j: a[1:3, 0:4])
    table.add("slice", [x], [[-3, -9], [9, -1]], lambda a, i, j: a[-3:9, -9:-1], lambda a, i, j: a[-3:9, -9:-1])
    strided = [[3, 0], [0, 5], [-2, 2]]
    table.add("slice_strided", [x], strided, lambda a, *_: a[3:0:-2, 0:5:2], lambda a, *_: a[3:0:-2, 0:5:2])
    table.add("slice_axis", [x], [-1, 1, 2**31 - 1], lambda a, *_: a[:, 1:], lambda a, *_: a[:, 1:])
    start = mx.array([1, 2])
    table.add("slice_dynamic", [x, start], [[0, 1], [2, 3]], mx.slice, lambda a, *_: a[1:3, 2:5])
    u = table.floats(2, 3)
    table.add("slice_update_dynamic", [x, u, start], [[0, 1]], mx.slice_update, lambda a, u, *_: put(a, u, np.s_[1:3, 2:5]))
    where = np.s_[1:3, 0:3]
    table.add("slice_update", [x, u], [[1, 0], [3, 3]], lambda a, u, *_: put_mx(a, u, where), lambda a, u, *_: put(a, u, where))
    every = np.s_[0:4:2, 1:4]
    bounds = [[0, 1], [4, 4], [2, 1]]
    table.add("slice_update_strided", [x, u], bounds, lambda a, u, *_: put_mx(a, u, every), lambda a, u, *_: put(a, u, every))
    for kind, at, numpy in (
        ("add", "add", np.add),
        ("max", "maximum", np.maximum),
        ("min", "minimum", np.minimum),
        ("prod", "multiply", np.multiply),
    ):
        table.add(
            f"slice_update_{kind}",
            [x, u],
            bounds,
            lambda a, u, *_: getattr(a.at[every], at)(u),
            lambda a, u, *_: put(a, numpy(a[every], u), every),
        )
    i = mx.array([[0, 3], [-1, 1]])
    table.add("take", [x, i], [0], mx.take, lambda a, i, axis: np.take(a, i, axis))
    table.add("take", [x, mx.array(2)], [1], mx.take, lambda a, i, axis: np.take(a, i, axis))
    along = table.ints(4, 2, lo=0, hi=5)
    table.add("take_along_axis", [x, along], [1], mx.take_along_axis, np.take_along_axis)
    places = mx.array([[0, 2], [1, 4], [3, 0], [2, 1]])
    values = table.floats(4, 2)
    table.add("put_along_axis", [x, places, values], [1], mx.put_along_axis, lambda a, i, v, axis: put_along(a, i, v, axis))
    rows, columns = mx.array([2, 0, 1]), mx.array([1, 1, 3])
    table.add(
        "gather",
        [x, rows, columns],
        [[0, 1], [1, 2]],
        lambda a, r, c, *_: mx.stack([a[p : p + 1, q : q + 2] for p, q in zip(r.tolist(), c.tolist())]),
        lambda a, r, c, *_: np.stack([a[p : p + 1, q : q + 2] for p, q in zip(r, c)]),
    )
    line = mx.array([-1.0, 0.5, 0.5, 2.0])
    for side in ("left", "right"):
        table.add(
            "searchsorted_with",
            [line, mx.array([[0.5, -3.0], [9.0, 1.0]])],
            [side],
            lambda a, v, side: mx.searchsorted(a, v, side=side),
            lambda a, v, side: np.searchsorted(a, v, side),
        )


def put(a, update, where):
    a = a.copy()
    a[where] = update
    return a


def put_mx(a, update, where):
    a = mx.array(a)
    a[where] = update
    return a


def put_along(a, indices, values, axis):
    a = a.copy()
    np.put_along_axis(a, indices, values, axis)
    return a


def scatter(table):
    x = table.floats(4, 3)
    rows, updates = mx.array([2, 0, 2]), table.floats(3, 1, 3)
    once = mx.array([2, 0, 1])
    table.add("scatter", [x, once, updates], [[0]], lambda a, i, u, _: put_mx(a, u[:, 0], i), lambda a, i, u, _: put(a, u[:, 0], i))
    for kind, at, numpy in (
        ("add", "add", np.add),
        ("max", "maximum", np.maximum),
        ("min", "minimum", np.minimum),
        ("prod", "multiply", np.multiply),
    ):
        table.add(
            f"scatter_{kind}",
            [x, rows, updates],
            [[0]],
            lambda a, i, u, _: getattr(a.at[i], at)(u[:, 0]),
            lambda a, i, u, _: combine(numpy, a, i, u[:, 0]),
        )
    i, v = mx.array([[0, 0, 3]]), table.floats(1, 3)
    table.add(
        "scatter_add_axis",
        [x, i, v],
        [0],
        lambda a, i, v, _: a.at[i[0], mx.arange(3)].add(v[0]),
        lambda a, i, v, _: combine(np.add, a, (i[0], np.arange(3)), v[0]),
    )
    mask = mx.array([[True, False, True], [False, False, True], [True, True, False], [False, False, False]])
    source = table.floats(6)
    table.add("masked_scatter", [x, mask, source], [], lambda a, m, s: put_mx(a, s, m), masked)


def combine(f, a, indices, updates):
    a = a.copy()
    f.at(a, indices, updates)
    return a


def masked(a, mask, source):
    a = a.copy()
    a[mask] = source[: mask.sum()]
    return a


def order(table):
    x = mx.array(table.rng.permutation(24).reshape(2, 3, 4).astype(np.float32))
    for axis in (0, 1, -1):
        table.add("sort", [x], [axis], mx.sort, np.sort)
        table.add("argsort", [x], [axis], mx.argsort, np.argsort)
        # The order among the selected is open, so both are sorted.
        table.add("topk", [x], [2, axis], lambda a, k, i: mx.sort(mx.topk(a, k, i), i))
    nan = mx.array([2.0, float("nan"), -1.0, float("inf")])
    table.add("sort", [nan], [0], mx.sort, np.sort)
    table.add("sort", [mx.array([3, -1, 2], mx.int8)], [0], mx.sort, np.sort)
    table.add("partition", [x], [1, -1], lambda a, k, i: mx.take(mx.partition(a, k, i), mx.array([k]), i))
    table.add("argpartition", [x], [2, 1], lambda a, k, i: mx.sort(mx.argpartition(a, k, i)[:, :k], i))

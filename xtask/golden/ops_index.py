"""Indices: `x[index]`, `x[index] = v`, `x.at[index]`, masks, `nonzero` and `unique`.

The arguments of a case are the parts of its index: a number, `...`, `new`, a slice `start:stop:step`, or `x1` for the
second input. Python's MLX reads by no masks: those results are NumPy's.
"""

import mlx.core as mx
import numpy as np

AT = {
    "at_add": ("add", np.add),
    "at_mul": ("multiply", np.multiply),
    "at_max": ("maximum", np.maximum),
    "at_min": ("minimum", np.minimum),
    "at_div": ("divide", np.divide),
}


def fill(table):
    cube = mx.arange(60).reshape(3, 4, 5)
    grid = table.floats(3, 4)
    read(table, cube)
    written(table, cube, grid)
    masks(table, cube, grid)
    searched(table)


def parsed(parts, inputs):
    """The index that the arguments stand for."""

    def one(part):
        if not isinstance(part, str):
            return part
        if part == "...":
            return Ellipsis
        if part == "new":
            return None
        if part.startswith("x"):
            return inputs[int(part[1:])]
        return slice(*(int(end) if end else None for end in part.split(":")))

    return tuple(map(one, parts))


def get(*args, inputs):
    arrays, parts = args[:inputs], args[inputs:]
    return arrays[0][parsed(parts, arrays)]


def put(*args, inputs):
    arrays, parts = args[:inputs], args[inputs:]
    changed = mx.array(arrays[0]) if isinstance(arrays[0], mx.array) else arrays[0].copy()
    changed[parsed(parts, arrays)] = arrays[-1]
    return changed


def combine(name, *args, inputs):
    arrays, parts = args[:inputs], args[inputs:]
    index = parsed(parts, arrays)
    if isinstance(arrays[0], mx.array):
        return getattr(arrays[0].at[index], AT[name][0])(arrays[-1])
    changed = arrays[0].copy()
    AT[name][1].at(changed, index, arrays[-1])
    return changed


def read(table, cube):
    ids, rows, square = mx.array([2, 0, -1]), mx.array([[0], [2]]), mx.array([[0, 1, -2]])
    for parts in (
        [],
        [0],
        [-1],
        [0, "1:3"],
        [":", ":", -1],
        ["...", -1],
        [1, "..."],
        ["...", 1, ":"],
        ["new", 1, "new", "...", "new"],
        ["::-1"],
        ["::2", "-3:-1", "::-2"],
        [":", "3:0:-1", "-100:100"],
        ["1:1"],
        ["5:2", 0],
        ["::100", ":", "::-100"],
        [2, 3, 4],
        [-3, -4, -5],
    ):
        table.add("i", [cube], parts, lambda *a: get(*a, inputs=1), lambda *a: get(*a, inputs=1))
    for arrays, parts in (
        ([ids], ["x1"]),
        ([ids], [":", "x1"]),
        ([ids], ["...", "x1"]),
        ([ids], ["1:", "x1", "::-2"]),
        ([ids], [0, "x1"]),
        ([ids], [0, ":", "x1"]),
        ([ids], ["x1", ":", 0]),
        ([ids], [":", "x1", 0]),
        ([ids], [":", 1, "x1"]),
        ([ids], [":", "x1", "new"]),
        ([ids], ["x1", "new", 1]),
        ([ids], ["new", "x1", 1, "new"]),
        ([mx.array(1)], [":", "x1"]),
        ([rows], [":", "x1"]),
        ([rows, square], ["x1", "x2"]),
        ([rows, square], ["x1", ":", "x2"]),
        ([rows, square], [":", "x1", "x2"]),
        ([rows, square], ["x1", "new", "x2", "1:4:2"]),
        ([ids, ids], ["x1", "new", "x2"]),
        ([ids, ids, ids], ["x1", "x2", "x3"]),
        ([mx.array([2, 0, 1], mx.uint8)], [":", "x1"]),
        ([ids.astype(mx.int64)], ["x1"]),
    ):
        n = 1 + len(arrays)
        table.add("i", [cube, *arrays], parts, lambda *a: get(*a, inputs=n), lambda *a: get(*a, inputs=n))


def written(table, cube, grid):
    ids, rows, square = mx.array([2, 0]), mx.array([[0], [2]]), mx.array([[0, 1, -2]])
    value = lambda *shape: table.ints(*shape, lo=-9, hi=90)
    cases = (
        ([], [0], value(4, 5)),
        ([], [":", -1], value(5)),
        ([], ["...", "::-2"], value(4, 1)),
        ([], ["1:1"], value(5)),
        ([], ["new", 1, "...", "new"], value(1, 4, 1, 1)),
        ([], ["::2", "3:0:-1", "1:4"], value(1, 1, 2, 3, 3)),
        ([], [2, 3, 4], value()),
        ([], ["..."], value(4, 5)),
        ([ids], ["x1"], value(4, 5)),
        ([ids], ["x1"], value(2, 1, 1)),
        ([ids], [":", "x1"], value(3, 2, 5)),
        ([ids], ["1:", "x1", "::2"], value(2, 2, 3)),
        ([ids], [0, ":", "x1"], value(2, 4)),
        ([ids], [":", "x1", 0], value(3, 2)),
        ([ids], ["x1", "new", 1], value(2, 1, 5)),
        ([rows, square], ["x1", "x2"], value(3, 5)),
        ([rows, square], ["x1", ":", "x2"], value(2, 3, 4)),
        ([rows, square], [":", "x1", "x2"], value(1, 2, 3)),
    )
    for arrays, parts, values in cases:
        inputs = [cube, *arrays, values]
        n = len(inputs)
        f = lambda *a: put(*a, inputs=n)
        table.add("set", inputs, parts, or_numpy(f), f)
    twice = mx.array([2, 0, 2, -1])
    for name in ("at_add", "at_mul", "at_max", "at_min"):
        for arrays, parts, values in (
            ([], [0, "1:3"], value(5)),
            ([], [":", "::-2"], value(3, 2, 5)),
            ([twice], ["x1"], value(4, 4, 5)),
            ([twice], [":", "x1"], value(3, 1, 5)),
            ([twice, twice], ["x1", ":", "x2"], value(4, 4)),
            ([twice], ["x1", 1], value(5)),
        ):
            inputs = [cube, *arrays, values]
            n = len(inputs)
            f = lambda *a, name=name: combine(name, *a, inputs=n)
            table.add(name, inputs, parts, or_numpy(f), f)
        floats = [grid, twice, table.floats(4, 4)]
        f = lambda *a, name=name: combine(name, *a, inputs=3)
        table.add(name, floats, ["x1"], f, f)
    over = mx.abs(table.floats(4, 4)) + 0.5
    divided = [grid, twice, over]
    f = lambda *a: combine("at_div", *a, inputs=3)
    table.add("at_div", divided, ["x1"], f, f)
    table.add("at_div", [grid, over[:3, :2]], [":", "::-2"], lambda *a: combine("at_div", *a, inputs=2), lambda *a: combine("at_div", *a, inputs=2))
    minus = lambda *a: combine("at_add", *a[:2], -a[2], *a[3:], inputs=3)
    table.add("at_sub", [grid, twice, table.floats(4, 4)], ["x1"], minus, minus)


def by_numpy(f):
    """`f` of NumPy, as a function of MLX's arrays."""

    def of(*args):
        arrays = [np.array(a) if isinstance(a, mx.array) else a for a in args]
        result = f(*arrays)
        dtype = args[0].dtype
        if isinstance(result, (tuple, list)):
            return [mx.array(each) for each in result]
        return mx.array(result).astype(dtype)

    return of


def or_numpy(f):
    """`f` of MLX, or of NumPy where MLX refuses values of the shape that it reads at the index."""

    def of(*args):
        try:
            return f(*args)
        except ValueError as error:
            print(f"NumPy's: {args[1:]}: {error}".replace("\n", " "))
            return by_numpy(f)(*args)

    return of


def masks(table, cube, grid):
    whole, rows, plane = cube > 41, mx.array([True, False, True]), grid > 0
    column = mx.array([True, False, False, True])
    for mask, parts in (
        (whole, ["x1"]),
        (rows, ["x1"]),
        (rows, ["x1", "...", 0]),
        (plane, ["x1"]),
        (plane, ["x1", "::2"]),
        (column, [":", "x1"]),
        (column, [":", "x1", 1]),
        (column, [1, "x1", ":"]),
        (cube > 99, ["x1"]),
    ):
        f = lambda *a: get(*a, inputs=2)
        table.add("i", [cube, mask], parts, by_numpy(f), f)
    for mask, parts, shape in (
        (whole, ["x1"], ()),
        (whole, ["x1"], (18,)),
        (rows, ["x1"], (4, 5)),
        (rows, ["x1"], (2, 4, 5)),
        (plane, ["x1"], (5,)),
        (plane, ["x1"], (1, 5)),
        (column, [":", "x1"], (3, 2, 5)),
        (column, [":", "x1"], (3, 1, 5)),
        (column, [":", "x1", 1], (2,)),
    ):
        f = lambda *a: put(*a, inputs=3)
        table.add("set", [cube, mask, table.ints(*shape)], parts, by_numpy(f), f)
    table.add("masked_select", [cube, whole], [], by_numpy(lambda a, m: a[m]), lambda a, m: a[m])
    table.add(
        "masked_select",
        [cube, mx.array([[True], [False], [True], [False]])],
        [],
        by_numpy(lambda a, m: a[np.broadcast_to(m, a.shape)]),
        lambda a, m: a[np.broadcast_to(m, a.shape)],
    )


def searched(table):
    few = table.ints(3, 4, lo=-1, hi=2)
    where = lambda a: [each.astype(np.uint32) for each in np.nonzero(a)]
    for array in (few, few == 1, few.astype(mx.float16), few * 0, mx.zeros((2, 0))):
        table.add("nonzero", [array], [], by_numpy(where), where)
    table.add("nonzero", [table.floats(3) * mx.array([0, 1, 0])], [], by_numpy(where), where)
    unique = lambda a: np.unique(a)
    for array in (few, table.floats(6), few.astype(mx.int8), mx.zeros((0,), mx.int32)):
        table.add("unique", [array], [], by_numpy(unique), unique)
    everything = lambda a: [
        each.astype(dtype)
        for each, dtype in zip(np.unique(a, True, True, True), (a.dtype, np.uint32, np.uint32, np.int32))
    ]
    table.add("unique_all", [few], [], by_numpy(everything), everything)
    odd = mx.array([float("nan"), 1, float("nan"), -0.0, 0.0])
    for array, size in ((few, 3), (few, 2), (few, 0), (few, 6), (odd, 5), (odd, 2)):
        table.add("unique_of_size", [array], [size], lambda a, n: mx.unique(a, n, True, True, True))
    for fill in (9, -3):
        table.add(
            "unique_filled",
            [few],
            [5, fill],
            lambda a, n, fill: mx.unique(a, n, True, True, True, fill_value=fill),
        )

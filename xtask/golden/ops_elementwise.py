"""Elementwise operations, comparison and logic."""

import mlx.core as mx
import numpy as np
from math import erf as erf_of_one

# Domain, MLX's function, NumPy's.
UNARY = {
    "abs": (-2, 2, np.abs),
    "negative": (-2, 2, np.negative),
    "positive": (-2, 2, np.positive),
    "exp": (-3, 3, np.exp),
    "expm1": (-1, 1, np.expm1),
    "log": (0.1, 9, np.log),
    "log1p": (-0.5, 3, np.log1p),
    "log2": (0.1, 9, np.log2),
    "log10": (0.1, 9, np.log10),
    "sqrt": (0, 9, np.sqrt),
    "rsqrt": (0.1, 9, lambda x: 1 / np.sqrt(x)),
    "square": (-3, 3, np.square),
    "reciprocal": (0.2, 3, np.reciprocal),
    "sin": (-4, 4, np.sin),
    "cos": (-4, 4, np.cos),
    "tan": (-1.2, 1.2, np.tan),
    "arcsin": (-1, 1, np.arcsin),
    "arccos": (-1, 1, np.arccos),
    "arctan": (-4, 4, np.arctan),
    "sinh": (-3, 3, np.sinh),
    "cosh": (-3, 3, np.cosh),
    "tanh": (-3, 3, np.tanh),
    "arcsinh": (-3, 3, np.arcsinh),
    "arccosh": (1.1, 5, np.arccosh),
    "arctanh": (-0.9, 0.9, np.arctanh),
    "sigmoid": (-5, 5, lambda x: 1 / (1 + np.exp(-x))),
    "erf": (-2, 2, np.vectorize(erf_of_one)),
    "erfinv": (-0.9, 0.9, None),
    "floor": (-3, 3, np.floor),
    "ceil": (-3, 3, np.ceil),
    "trunc": (-3, 3, np.trunc),
    "sign": (-2, 2, np.sign),
    "degrees": (-4, 4, np.degrees),
    "radians": (-200, 200, np.radians),
    "conjugate": (-2, 2, np.conjugate),
    "real": (-2, 2, np.real),
    "imag": (-2, 2, np.imag),
    "stop_gradient": (-2, 2, lambda x: x),
    "logical_not": (-1, 1, np.logical_not),
}
TESTS = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "isneginf": np.isneginf,
    "isposinf": np.isposinf,
    "logical_not": np.logical_not,
    "sign": None,
    "exp": np.exp,
    "tanh": np.tanh,
}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logaddexp": np.logaddexp,
    "arctan2": np.arctan2,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "divmod": np.divmod,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}


def fill(table):
    unary(table)
    binary(table)
    integers(table)
    others(table)


def unary(table):
    for name, (lo, hi, numpy) in UNARY.items():
        f = getattr(mx, name)
        x = table.floats(2, 3, lo=lo, hi=hi)
        table.add(name, [x], [], f, numpy)
        table.add(name, [x[0].astype(mx.float16)], [], f)
        table.add(name, [x[0].astype(mx.bfloat16)], [], f)
    special = mx.array([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5])
    for name, numpy in TESTS.items():
        table.add(name, [special], [], getattr(mx, name), numpy)
    z = mx.array([1 + 2j, -0.5 + 0.25j, 3j])
    for name in ("abs", "negative", "exp", "conjugate", "real", "imag", "square", "sqrt"):
        table.add(name, [z], [], getattr(mx, name), getattr(np, name))
    i = mx.array([-3, 0, 7])
    for name in ("abs", "negative", "sign", "square", "bitwise_invert", "exp", "floor"):
        table.add(name, [i], [], getattr(mx, name), getattr(np, name))
    table.add("bitwise_invert", [mx.array([True, False])], [], mx.bitwise_invert, np.invert)
    for decimals in (0, 1, -1):
        table.add("round_with", [mx.array([0.5, 1.5, -2.5, 12.36, 27.0])], [decimals], mx.round, np.round)
    table.add("nan_to_num_with", [special], [0.5, None, None], mx.nan_to_num)
    table.add("nan_to_num_with", [special], [0.0, 9.0, -7.0], mx.nan_to_num, lambda x, n, p, m: np.nan_to_num(x, True, n, p, m))


def binary(table):
    a, b = table.floats(2, 3, lo=0.2, hi=3), table.floats(3, lo=0.2, hi=3)
    n, m = table.floats(2, 1), table.floats(1, 3)
    for name, numpy in BINARY.items():
        f = getattr(mx, name)
        table.add(name, [a, b], [], f, numpy)
        if name not in ("power", "logaddexp", "divmod"):
            table.add(name, [n, m], [], f, numpy)
        table.add(name, [a.astype(mx.bfloat16), b.astype(mx.bfloat16)], [], f)
        table.add(name, [a.astype(mx.float16), b], [], f)
    table.add("power", [a], [2], mx.power, np.power)
    for name in ("add", "subtract", "multiply", "divide", "maximum", "less"):
        f = getattr(mx, name)
        table.add(name, [n.astype(mx.bfloat16)], [2], f)
        table.add(name, [n.astype(mx.float16)], [0.5], f)
        table.add(name, [mx.array([3, -4])], [2], f, getattr(np, name))
        table.add(name, [mx.array([3, -4])], [0.5], f)
    nan = mx.array([1.0, float("nan"), 3.0])
    table.add("maximum", [nan, mx.array([2.0, 2.0, 2.0])], [], mx.maximum, np.maximum)
    table.add("equal", [nan, nan], [], mx.equal, np.equal)


def integers(table):
    a, b = mx.array([7, -7, 6, 0]), mx.array([2, 2, -3, 5])
    for name in ("add", "multiply", "maximum", "remainder", "equal", "less"):
        table.add(name, [a, b], [], getattr(mx, name), getattr(np, name))
    # Toward zero, where NumPy rounds down.
    table.add("floor_divide", [a, b], [], mx.floor_divide)
    table.add("divmod", [a, b], [], mx.divmod)
    table.add("power", [a, mx.array([0, 3, 2, 1])], [], mx.power, np.power)
    u, v = mx.array([12, 10, 255], mx.uint8), mx.array([3, 1, 2], mx.uint8)
    for name, numpy in BITS.items():
        f = getattr(mx, name)
        table.add(name, [u, v], [], f, numpy)
        table.add(name, [mx.array([12, -10, 5]), mx.array([3, 1, 2])], [], f, numpy)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        t, f = mx.array([True, True, False]), mx.array([True, False, False])
        table.add(name, [t, f], [], getattr(mx, name), getattr(np, name))


def close(f):
    return lambda a, b, rtol, atol, equal_nan: f(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def same(f):
    return lambda a, b, equal_nan: f(a, b, equal_nan=equal_nan)


def others(table):
    x, y = table.floats(2, 3), table.floats(3)
    table.add("clip", [x], [-0.5, 0.75], mx.clip, np.clip)
    table.add("clip_arrays", [x, y, mx.array([1.0])], [], mx.clip, np.clip)
    cond = mx.array([[True, False, True], [False, True, False]])
    table.add("select", [cond, x, y], [], mx.where, np.where)
    table.add("select", [cond, x.astype(mx.bfloat16), y.astype(mx.bfloat16)], [], mx.where)
    table.add("select_number", [cond, x], [-9.0], mx.where, np.where)
    table.add("select_number", [cond, x.astype(mx.float16)], [-9.0], mx.where)
    near = x + mx.array([1e-7, 0.1, 0.0])
    table.add("isclose_with", [x, near], [1e-5, 1e-6, False], close(mx.isclose), close(np.isclose))
    nan = mx.array([float("nan"), 1.0])
    for equal_nan in (False, True):
        table.add("isclose_with", [nan, nan], [1e-5, 1e-6, equal_nan], close(mx.isclose), close(np.isclose))
        table.add("allclose_with", [nan, nan], [1e-5, 1e-6, equal_nan], close(mx.allclose), close(np.allclose))
        table.add("array_equal_with", [nan, nan], [equal_nan], same(mx.array_equal), same(np.array_equal))
    table.add("array_equal_with", [x, y], [False], same(mx.array_equal), same(np.array_equal))

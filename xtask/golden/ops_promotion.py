"""Which dtype comes of which: one letter a result, "." where MLX refuses."""

import mlx.core as mx

from ops_table import DTYPES, NAMES

LETTERS = dict(zip(DTYPES, "?BHIQbhiqefdgF", strict=True))

BINARY = {
    "add": mx.add,
    "subtract": mx.subtract,
    "multiply": mx.multiply,
    "divide": mx.divide,
    "power": mx.power,
    "maximum": mx.maximum,
    "minimum": mx.minimum,
    "logaddexp": mx.logaddexp,
    "arctan2": mx.arctan2,
    "bitwise_and": mx.bitwise_and,
    "bitwise_or": mx.bitwise_or,
    "bitwise_xor": mx.bitwise_xor,
    "left_shift": mx.left_shift,
    "right_shift": mx.right_shift,
    "floor_divide": mx.floor_divide,
    "remainder": mx.remainder,
    "divmod": lambda a, b: mx.divmod(a, b)[0],
    "equal": mx.equal,
    "less": mx.less,
    "logical_and": mx.logical_and,
    "logical_xor": mx.logical_xor,
    "select": lambda a, b: mx.where(mx.array([True]), a, b),
    "matmul": mx.matmul,
    "concat": lambda a, b: mx.concatenate([a, b]),
    "stack": lambda a, b: mx.stack([a, b]),
    "inner": mx.inner,
    "outer": mx.outer,
}
UNARY = (
    "abs negative positive exp expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sin cos tan arcsin arccos "
    "arctan sinh cosh tanh arcsinh arccosh arctanh sigmoid erf erfinv floor ceil trunc sign isnan isinf isfinite "
    "isneginf isposinf logical_not bitwise_invert degrees radians conjugate real imag stop_gradient sum prod mean "
    "max min all any logsumexp median count_nonzero var std argmax argmin softmax cumsum cumprod cummax cummin "
    "logcumsumexp sort argsort"
).split()
# Operations of an array and a plain number.
SCALAR = ("add", "multiply", "divide", "power", "maximum", "floor_divide", "remainder", "equal", "bitwise_and")
NUMBERS = {"float": 2.0, "int": 2, "bool": True}


def document():
    arrays = [mx.array([1]).astype(dtype) for dtype in DTYPES]
    return {
        "dtypes": [NAMES[dtype] for dtype in DTYPES],
        "letters": "".join(LETTERS.values()),
        "binary": {
            name: ["".join(letter(f, a, b) for b in arrays) for a in arrays] for name, f in BINARY.items()
        },
        "unary": {name: "".join(letter(getattr(mx, name), a) for a in arrays) for name in UNARY},
        "scalar": {
            kind: {name: "".join(letter(BINARY[name], a, number) for a in arrays) for name in SCALAR}
            for kind, number in NUMBERS.items()
        },
    }


def letter(f, *args):
    """The dtype of the lazy result; nothing is computed."""
    try:
        return LETTERS[f(*args).dtype]
    except (ValueError, RuntimeError, TypeError):
        return "."

"""The table of cases, and how arrays are written to JSON."""

import mlx.core as mx
import numpy as np

NAMES = {
    mx.bool_: "BOOL",
    mx.uint8: "U8",
    mx.uint16: "U16",
    mx.uint32: "U32",
    mx.uint64: "U64",
    mx.int8: "I8",
    mx.int16: "I16",
    mx.int32: "I32",
    mx.int64: "I64",
    mx.float16: "F16",
    mx.float32: "F32",
    mx.float64: "F64",
    mx.bfloat16: "BF16",
    mx.complex64: "C64",
}
DTYPES = list(NAMES)
FLOATS = (mx.float16, mx.bfloat16, mx.float32, mx.float64)
# Relative and absolute tolerance against NumPy, which computes 16-bit floats in 32 bits here.
TOLERANCE = {mx.float16: 4e-3, mx.bfloat16: 3e-2, mx.float64: 1e-6}


class Table:
    def __init__(self, rng):
        self.rng = rng
        self.inputs = {}
        self.cases = []
        self.checked = 0

    def floats(self, *shape, lo=-2.0, hi=2.0, dtype=mx.float32):
        """Uniform numbers of few digits."""
        values = np.round(self.rng.uniform(lo, hi, shape), 2)
        return mx.array(values.astype(np.float32)).astype(dtype)

    def ints(self, *shape, lo=-5, hi=6, dtype=mx.int32):
        return mx.array(self.rng.integers(lo, hi, shape)).astype(dtype)

    def add(self, op, inputs, args, mlx, numpy=None):
        """One case: `mlx(*inputs, *args)`, held against `numpy` with NumPy's arrays if given."""
        result = listed(mlx(*inputs, *args))
        if numpy is not None:
            self.compare(op, result, listed(numpy(*map(to_numpy, inputs), *args)))
        case = {"op": op, "in": [self.name(array) for array in inputs]}
        if args:
            case["args"] = list(args)
        case["out"] = [encode(array) for array in result]
        if numpy is not None:
            case["np"] = 1
            self.checked += 1
        self.cases.append(case)

    def compare(self, op, result, expected):
        assert len(result) == len(expected), op
        for ours, theirs in zip(result, expected):
            theirs = np.asarray(theirs)
            assert tuple(ours.shape) == theirs.shape, (op, ours.shape, theirs.shape)
            tolerance = TOLERANCE.get(ours.dtype, 2e-5)
            close = np.allclose(to_numpy(ours), theirs, tolerance, tolerance, equal_nan=True)
            assert close, (op, ours, theirs)

    def name(self, array):
        encoded = encode(array)
        for name, known in self.inputs.items():
            if known == encoded:
                return name
        name = f"x{len(self.inputs)}"
        self.inputs[name] = encoded
        return name

    def document(self):
        return {"inputs": self.inputs, "cases": self.cases}


def listed(result):
    return list(result) if isinstance(result, (list, tuple)) else [result]


def to_numpy(array):
    if array.dtype == mx.bfloat16:
        array = array.astype(mx.float32)
    return np.array(array)


def encode(array):
    values = to_numpy(array).reshape(-1)
    if array.dtype == mx.complex64:
        values = values.view(np.float32)
    return {"d": NAMES[array.dtype], "s": list(array.shape), "v": [number(v) for v in values]}


def number(value):
    if isinstance(value, np.bool_):
        return int(value)
    if isinstance(value, np.integer):
        return int(value)
    if not np.isfinite(value):
        return str(value)
    # The shortest decimal that reads back as this value of this width.
    short = float(np.format_float_scientific(value, unique=True))
    return int(short) if short == int(short) and abs(short) < 2**24 and str(value) != "-0.0" else short

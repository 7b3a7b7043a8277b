"""Compares a fresh run with the committed goldens: text and weights exactly, computed numbers within rounding.

    python check.py FRESH COMMITTED
"""

import json
import sys
from pathlib import Path

import mlx.core as mx

ROUNDING = 2e-5  # of logits, between machines: less than a tenth of a greedy margin, a fifth of the tolerance
MEASURED = ("margin", "reference_error", "error_of_transformers_on_dequantized", "native_tolerance")


def main():
    fresh, committed = map(Path, sys.argv[1:])
    faults = []
    files = [{f.relative_to(root) for f in root.rglob("*") if f.is_file()} for root in (fresh, committed)]
    faults += [f"{name}: only in {where}" for name, where in missing(*files)]
    for name in sorted(files[0] & files[1]):
        if not same(fresh / name, committed / name):
            faults.append(f"{name}: differs")
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(files[0])} files as committed")


def missing(fresh, committed):
    yield from ((name, "the fresh run") for name in sorted(fresh - committed))
    yield from ((name, "the committed goldens") for name in sorted(committed - fresh))


def same(a, b):
    if a.name == "golden.safetensors":
        return same_numbers(mx.load(str(a)), mx.load(str(b)))
    if a.suffix == ".safetensors":
        x, y = mx.load(str(a)), mx.load(str(b))
        return x.keys() == y.keys() and all(mx.array_equal(x[k], y[k]) and x[k].dtype == y[k].dtype for k in x)
    if a.name == "golden.json" and a.parent.name == "embed":
        return near(json.loads(a.read_text()), json.loads(b.read_text()))
    if a.name == "golden.json":
        return unmeasured(a) == unmeasured(b)
    if a.suffix == ".mlxfn":  # the ids of arrays in it are addresses of MLX
        return a.stat().st_size == b.stat().st_size
    if a.name == "mlx-lm.md":  # holds measured errors: the verdicts count
        return verdicts(a) == verdicts(b)
    return a.read_bytes() == b.read_bytes()


def near(x, y):
    """Whether two JSON documents are the same, numbers with fractions within rounding."""
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(near(x[key], y[key]) for key in x)
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(near, x, y))
    if isinstance(x, float) and isinstance(y, float):
        return abs(x - y) <= ROUNDING * max(1.0, abs(x))
    return x == y


def same_numbers(x, y):
    if x.keys() != y.keys():
        return False
    for name, value in x.items():
        if value.dtype != y[name].dtype or value.shape != y[name].shape:
            return False
        bound = 0 if name.startswith("tokens.") else ROUNDING * max(1.0, float(mx.abs(value).max()))
        if name.startswith("native_logits."):
            continue  # 16-bit arithmetic: its own tolerance is in golden.json
        if float(mx.abs(value.astype(mx.float32) - y[name].astype(mx.float32)).max()) > bound:
            return False
    return True


def unmeasured(path):
    return {k: v for k, v in json.loads(path.read_text()).items() if k not in MEASURED}


def verdicts(path):
    return [line.split("|")[1:3] for line in path.read_text().splitlines() if line.startswith("|")]


if __name__ == "__main__":
    main()

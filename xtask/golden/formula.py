"""Weights by formula: weights.json in place of model.safetensors, for checkpoints that take no room in testdata.

Element i of the tensor `name` is (center + u) * 2^exponent. u is an integer from -radius to radius, which a hash of the file's seed, the
tensor's name and i decides. |center| + radius is at most 256, so every value is exact in bfloat16. `mlx-models/tests/shared/checkpoints.rs`
computes the same values.
"""

import json
import math
import re
import shutil

import numpy as np
import torch

MOST = 256  # integers up to it are exact in bfloat16
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I32": torch.int32, "I64": torch.int64}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def hash_of(text):
    """FNV-1a, 64 bits."""
    found = 0xCBF29CE484222325
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return found


def integers(seed, name, count, radius):
    """`count` integers from -radius to radius: the mixing function of SplitMix64 over a counter."""
    with np.errstate(over="ignore"):
        x = np.uint64(hash_of(f"{seed}/{name}")) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return ((x >> np.uint64(33)) % np.uint64(2 * radius + 1)).astype(np.int64) - radius


def numbers(std, mean):
    """The center, radius and exponent of a uniform distribution with about this standard deviation and mean."""
    reach = abs(mean) + std * math.sqrt(3)
    exponent = math.ceil(math.log2(reach / (MOST - 1))) if reach else 0
    return {
        "center": round(mean / 2.0**exponent),
        "radius": round(std * math.sqrt(3) / 2.0**exponent),
        "exponent": exponent,
    }


def tensor(seed, name, spec, dtype):
    """The tensor of an entry of weights.json, or what its `values` say."""
    dtype = DTYPES[spec.get("dtype", dtype)]
    if "values" in spec:
        return torch.tensor(spec["values"], dtype=dtype).reshape(spec["shape"])
    if abs(spec["center"]) + spec["radius"] > MOST:
        raise SystemExit(f"{name}: numbers that bfloat16 cannot hold")
    whole = integers(seed, name, math.prod(spec["shape"]), spec["radius"]) + spec["center"]
    scaled = torch.from_numpy(whole.astype(np.float64) * 2.0 ** spec["exponent"])
    return scaled.to(dtype).reshape(spec["shape"])


def write(folder, seed, dtype, specs):
    """weights.json. Tensors that differ only in the numbers of their names are one line: `at` has the numbers of each."""
    lines = {}
    for name in sorted(specs):
        pattern, at = re.sub(r"\d+", "#", name), ".".join(re.findall(r"\d+", name))
        lines.setdefault((pattern, json.dumps(specs[name])), []).append(at)
    entries = [
        json.dumps({"name": pattern, **({"at": " ".join(at)} if "#" in pattern else {}), **json.loads(spec)})
        for (pattern, spec), at in lines.items()
    ]
    head = json.dumps({"seed": seed, "dtype": NAMES[dtype]})[:-1]
    (folder / "weights.json").write_text(head + ', "tensors": [\n' + ",\n".join(entries) + "\n]}\n")


def read(folder):
    """All tensors of a checkpoint whose weights are a formula."""
    file = json.loads((folder / "weights.json").read_text())
    found = {}
    for entry in file["tensors"]:
        for at in entry.get("at", "").split(" "):
            parts = iter(at.split("."))
            name = re.sub("#", lambda _, parts=parts: next(parts), entry["name"])
            found[name] = tensor(file["seed"], name, entry, file["dtype"])
    return found


def has(folder):
    return (folder / "weights.json").exists()


def expand(folder):
    """Gives the folder model.safetensors in place of weights.json, if it has that."""
    from checkpoint import write_safetensors

    if has(folder):
        write_safetensors(folder, read(folder))
        (folder / "weights.json").unlink()


def expanded(folder, scratch):
    """The folder, or a copy of it in `scratch` if its weights are a formula."""
    if not has(folder):
        return folder
    copied = scratch / folder.name
    shutil.copytree(folder, copied)
    expand(copied)
    return copied

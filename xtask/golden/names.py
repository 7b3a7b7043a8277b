"""The public names of Python's MLX: testdata/names/python.json. `mlx-core/src/python.rs` and `mlx-nn/src/python.rs`
have ours for each, or the reason why there is none; a test of each crate compares both ways."""

import inspect
import json
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.nn.init
import mlx.nn.losses
import mlx.optimizers
import mlx.utils


def public(owner):
    return sorted(name for name in dir(owner) if not name.startswith("_"))


def functions(module):
    """What the module itself defines, without what it imports."""
    return sorted(
        name
        for name in public(module)
        if not inspect.ismodule(getattr(module, name)) and is_own(getattr(module, name), module)
    )


def is_own(value, module):
    """Compiled functions (`nn.relu`) have no module of their own and are told by the module of what they wrap."""
    place = getattr(value, "__module__", None)
    return place is None or place.startswith(module.__name__)


def core(module):
    return [name for name in public(module) if not inspect.ismodule(getattr(module, name))]


def main():
    layers = [name for name in public(nn) if inspect.isclass(getattr(nn, name)) and issubclass(getattr(nn, name), nn.Module)]
    loose = [
        name
        for name in public(nn)
        if callable(getattr(nn, name)) and not inspect.isclass(getattr(nn, name)) and not inspect.ismodule(getattr(nn, name))
    ]
    names = {
        "mlx.core": core(mx),
        "mlx.core.array": public(mx.array),
        "mlx.core.cuda": core(mx.cuda),
        "mlx.core.distributed": core(mx.distributed),
        "mlx.core.fast": core(mx.fast),
        "mlx.core.fft": core(mx.fft),
        "mlx.core.linalg": core(mx.linalg),
        "mlx.core.metal": core(mx.metal),
        "mlx.core.random": core(mx.random),
        "mlx.nn layers": [name for name in layers if name != "Module"],
        "mlx.nn functions": loose,
        "mlx.nn.Module": [name for name in public(nn.Module) if name not in public(dict)],
        "mlx.nn.init": functions(mlx.nn.init),
        "mlx.nn.losses": functions(mlx.nn.losses),
        "mlx.optimizers": functions(mlx.optimizers),
        "mlx.utils": functions(mlx.utils),
    }
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    document = {"versions": {"mlx": mx.__version__}, "names": names}
    (out / "golden.json").write_text(json.dumps(document, indent=1) + "\n")
    print({group: len(names) for group, names in names.items()})


if __name__ == "__main__":
    main()

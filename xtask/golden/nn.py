"""Goldens of mlx-nn: values and gradients of mlx.nn's layers and losses, what its optimisers do, moments of its initialisers.

    python nn.py TESTDATA/nn
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

import nn_init
import nn_layers
import nn_optimizers

mx.set_default_device(mx.cpu)


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    metadata = {"mlx": version("mlx")}
    save(out / "optimizers", nn_optimizers.optimizers(), metadata)
    save(out / "init", nn_init.arrays(), metadata)
    arrays, cases = nn_layers.arrays()
    save(out / "layers", arrays, metadata)
    index = {
        "versions": metadata,
        "layers": cases,
        "init": list(nn_init.INITIALIZERS),
        "moments": nn_init.moments(),
        "optimizers": list(nn_optimizers.OPTIMIZERS),
        "schedules": nn_optimizers.schedules(),
    }
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def save(folder, arrays, metadata):
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "golden.safetensors"), arrays, metadata)


if __name__ == "__main__":
    main()

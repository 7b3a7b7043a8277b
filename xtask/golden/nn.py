"""Goldens of mlx-nn: values and gradients of mlx.nn's layers and losses, what its optimisers do, moments of its initialisers.

    python nn.py TESTDATA/nn
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

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
    saved(out / "saved", metadata)
    index = {
        "versions": metadata,
        "layers": cases,
        "init": list(nn_init.INITIALIZERS),
        "moments": nn_init.moments(),
        "optimizers": list(nn_optimizers.OPTIMIZERS),
        "schedules": nn_optimizers.schedules(),
    }
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def saved(folder, metadata):
    """A network that Python has saved, and its output in evaluation."""
    mx.random.seed(5)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        lambda y: y.reshape(y.shape[0], 4, 4),
        nn.TransformerEncoderLayer(4, 2, 6),
    )
    encoder = net.layers[-1]
    net.layers[-1] = lambda y: encoder(y, None)
    x = mx.random.normal((2, 6, 6, 2))
    net(x)  # moves the running mean and variance
    y = net.eval()(x)
    net.layers[-1] = encoder
    folder.mkdir(exist_ok=True)
    net.save_weights(str(folder / "net.safetensors"))
    save(folder, {"x": x, "y": y}, metadata)


def save(folder, arrays, metadata):
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "golden.safetensors"), arrays, metadata)


if __name__ == "__main__":
    main()

"""Training by mlx_lm.lora, with each step reported as a line of JSON as mlx-train reports its own.

    python mlx_lm_train.py lora|full [gpu] FLAGS OF mlx_lm.lora

With `gpu` it trains on the GPU, on rows of tokens: the checkpoint needs no tokenizer.
"""

import json
import platform
import sys
import types

import mlx.core as mx
import mlx_lm
from mlx_lm import lora
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.datasets import load_dataset
from mlx_lm.utils import load, load_model
from pathlib import Path


class Report(TrainingCallback):
    def on_train_loss_report(self, info):
        # The time of one step, since every step is reported.
        seconds = 1 / info["iterations_per_second"]
        say(
            event="step",
            step=info["iteration"],
            loss=info["train_loss"],
            tokens=round(info["tokens_per_second"] * seconds),
            seconds=seconds,
            peak_bytes=mx.get_peak_memory(),
        )


class Rows:
    """The rows of train.jsonl: `{"tokens": [...]}`."""

    def __init__(self, folder):
        lines = (Path(folder) / "train.jsonl").read_text().splitlines()
        self.rows = [json.loads(line)["tokens"] for line in lines]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return self.rows[at]

    def process(self, row):
        return row, 0


def main():
    gpu = sys.argv[2:3] == ["gpu"]
    mx.set_default_device(mx.gpu if gpu else mx.cpu)
    given = lora.build_parser().parse_args(sys.argv[3 if gpu else 2 :])
    settings = {**lora.CONFIG_DEFAULTS, **{k: v for k, v in vars(given).items() if v is not None}}
    settings |= {"fine_tune_type": sys.argv[1], "steps_per_report": 1, "save_every": settings["iters"] + 1}
    args = types.SimpleNamespace(**settings)
    versions = {"mlx": mx.__version__, "mlx-lm": mlx_lm.__version__, "python": platform.python_version()}
    say(event="versions", versions=versions)
    if gpu:
        model, train = load_model(Path(args.model))[0], Rows(args.data)
    else:
        model, tokenizer = load(args.model)
        train, _, _ = load_dataset(args, tokenizer)
    mx.reset_peak_memory()
    # Without a validation set: the benchmark measures steps.
    lora.train_model(args, model, train, [], Report())


def say(**event):
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()

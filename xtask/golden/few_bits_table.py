"""A table of `mlx-train quantize` beside mlx-lm's methods for few bits.

    python few_bits_table.py FOLDER MLX_TRAIN [CASE …]

FOLDER is a dense checkpoint with train.jsonl and valid.jsonl (`few_bits.py texts` makes one), MLX_TRAIN the program. Both learn from the same
tokens at equal bits, and few_bits.py measures both. Results are kept in FOLDER/few_bits.jsonl: what is there is not run again. All cases
are run if none is named. Prints the table in Markdown; the last column has the standard error of the difference over rows.
"""

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

FLAGS = ["--dtype", "f32", "--max-seq-length", "128", "--json"]
SIDES = ["mlx-train", "mlx-lm"]
STEPS = 24
# mlx-lm's AWQ runs each block 60 times, and takes 512 inputs of each matrix.
AWQ_ROWS = 4
# For each case: the flags of mlx-train, and the settings of mlx-lm, of which the one with the least divergence counts.
CASES = {
    "round 4": (["--method", "round"], [["round"]]),
    "gptq 4, 6": (["--method", "gptq", "--embedding-bits", "6"], [["gptq"]]),
    "awq 4, 6": (["--method", "awq", "--embedding-bits", "6"], [["awq"]]),
    "dynamic 4 and 5": (["--method", "dynamic"], [["dynamic"]]),
    "dwq 4": (["--method", "dwq", "--steps", f"{STEPS}"], [["dwq", f"steps={STEPS}", f"rate={r}"] for r in ("1e-5", "1e-4")]),
    "gptq 2, 6": (["--method", "gptq", "--bits", "2", "--embedding-bits", "6"], [["gptq", "bits=2"]]),
    "awq 3, 6": (["--method", "awq", "--bits", "3", "--embedding-bits", "6"], [["awq", "bits=3"]]),
    "awq 2, 6": (["--method", "awq", "--bits", "2", "--embedding-bits", "6"], [["awq", "bits=2"]]),
    "dynamic 2 and 4": (
        ["--method", "dynamic", "--bits", "2", "--high-bits", "4", "--target-bits", "3.5"],
        [["dynamic", "bits=2", "high=4", "target=3.5"]],
    ),
}


def output(command):
    """The JSON of a program's last line."""
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(text.strip().splitlines()[-1])


def run(folder, program, name, side):
    script = [sys.executable, Path(__file__).with_name("few_bits.py")]
    flags, others = CASES[name]
    rows = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    valid = folder / "valid.jsonl"
    with tempfile.TemporaryDirectory(dir=folder.resolve().parent) as scratch:
        train, packed = Path(scratch) / "train.jsonl", Path(scratch) / "packed"
        train.write_text("".join(rows[:: len(rows) // AWQ_ROWS] if name.startswith("awq") else rows))
        if side == "mlx-lm":
            found = [output([*script, folder, train, valid, *settings]) for settings in others]
            return min(found, key=lambda one: one["divergence"])
        texts = ["--data", train, "--valid", valid]
        output([program, "quantize", "--model", folder, *texts, "--out", packed, *FLAGS, *flags])
        return output([*script, "measure", folder, valid, packed])


def read(kept):
    found = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    return {(one["case"], one["side"]): one for one in found}


def main():
    folder, program, *names = sys.argv[1:]
    folder = Path(folder)
    kept = folder / "few_bits.jsonl"
    for name in names or CASES:
        for side in SIDES:
            if (name, side) not in read(kept):
                found = {"case": name, "side": side} | run(folder, program, name, side)
                with open(kept, "a") as file:
                    file.write(json.dumps(found) + "\n")
    found = read(kept)
    packages = ("mlx-lm", "mlx", "numpy")
    print(", ".join(f"{name} {version(name)}" for name in packages) + "\n")
    print("| method, bits | a weight, ours | mlx-lm's | perplexity, ours | mlx-lm's | divergence, ours | mlx-lm's | ours less mlx-lm's |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in CASES:
        if any((name, side) not in found for side in SIDES):
            continue
        sides = [found[name, side] for side in SIDES]
        rows = np.subtract(*(side["rows"] for side in sides))
        difference, error = rows.mean(), rows.std(ddof=1) / len(rows) ** 0.5
        cells = [f"{side['bits_per_weight']:.2f}" for side in sides] + [f"{side['perplexity']:.2f}" for side in sides]
        cells += [f"{side['divergence']:.4f}" for side in sides] + [f"{difference:+.4f} ± {error:.4f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

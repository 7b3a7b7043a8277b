"""Converts the float cases by this project and by mlx-lm, and has each program compute with the other's folder.

    python both_ways.py BINARY TABLE [CASE …]

BINARY is mlx-infer; TABLE is the file that is written. mlx-lm gets the folder that ours wrote: its log probabilities must be those that it
computes with its own folder. This project gets the folder that mlx-lm wrote: its log probabilities must be those of the golden.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx_lm
import torch
from mlx_lm.convert import convert
from safetensors.torch import load_file

import mlx_reference
from convert import TESTDATA, source_folder

TOLERANCE = 1e-3

HEAD = """# Conversions to and from mlx-lm {version} (MLX {mlx})

Written by `xtask/golden/both_ways.py`. Each float case is converted to float32 by both programs. "ours in mlx-lm": mlx-lm's log probabilities
with our folder against those with its own. "mlx-lm's here": ours with mlx-lm's folder against the golden of transformers. "mlx-lm itself":
mlx-lm's with its own folder against that golden, which says where mlx-lm computes something else. Largest differences over a prompt.

| case | ours in mlx-lm | mlx-lm's here | mlx-lm itself |
|---|---|---|---|
"""


def of_prompt(logits, prompt):
    """Log probabilities of the prompt's tokens but the first."""
    logprobs = torch.log_softmax(logits.double(), -1)[:-1]
    return logprobs.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]


def in_mlx_lm(folder, prompt):
    model = mlx_reference.load(folder, mx.float32)
    return of_prompt(mlx_reference.to_torch(model(mx.array([prompt]))[0]), prompt)


def here(binary, folder, prompt):
    command = [binary, "score", "--json", "--model", folder, "--tokens", ",".join(map(str, prompt))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return torch.tensor(json.loads(done.stdout)["logprobs"][1:], dtype=torch.double)


def shown(run):
    """A difference, or the last line of what went wrong."""
    try:
        return f"{float(run()):.1e}"
    except subprocess.CalledProcessError as error:
        return (error.stderr or "failed").strip().splitlines()[-1][:100].replace("|", "/")
    except Exception as error:  # noqa: BLE001: the message is the row's answer
        return " ".join(f"{type(error).__name__}: {error}".split())[:80].replace("|", "/")


def row(case, binary, scratch):
    folder = TESTDATA / "models" / case
    prompts = json.loads((folder / "golden.json").read_text())["prompts"]
    # The last, which is the longest.
    at, prompt = len(prompts) - 1, prompts[-1]
    golden = of_prompt(load_file(folder / "golden.safetensors")[f"logits.{at}"], prompt)
    source = source_folder(case, scratch)
    ours, theirs = scratch / f"{case}-ours", scratch / f"{case}-theirs"

    def written_by_mlx_lm():
        if not theirs.exists():
            with contextlib.redirect_stdout(io.StringIO()):
                convert(str(source), str(theirs), dtype="float32")
        return theirs

    def written_here():
        command = [binary, "convert", "--model", source, "--out", ours, "--dtype", "f32"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return ours

    def difference(a, b):
        return (a - b).abs().max()

    itself = shown(lambda: difference(in_mlx_lm(written_by_mlx_lm(), prompt), golden))
    if ":" in itself:
        return f"| {case} | – | – | {itself} |", True
    to_them = shown(lambda: difference(in_mlx_lm(written_here(), prompt), in_mlx_lm(theirs, prompt)))
    to_us = shown(lambda: difference(here(binary, theirs, prompt), golden))
    is_right = all(":" not in cell and float(cell) < TOLERANCE for cell in (to_them, to_us))
    return f"| {case} | {to_them} | {to_us} | {itself} |", is_right


def main():
    binary, table, wanted = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3:]
    cases = json.loads((TESTDATA / "models" / "index.json").read_text())
    cases = [case["case"] for case in cases if case["kind"] == "float"]
    rows, wrong = [], []
    for case in cases:
        if wanted and case not in wanted:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            line, is_right = row(case, binary, Path(scratch))
        print(line, flush=True)
        rows.append(line)
        wrong += [] if is_right else [case]
    table.write_text(HEAD.format(version=mlx_lm.__version__, mlx=mx.__version__) + "\n".join(rows) + "\n")
    print(f"{len(rows)} cases, wrong: {', '.join(wrong) or 'none'}")


if __name__ == "__main__":
    main()

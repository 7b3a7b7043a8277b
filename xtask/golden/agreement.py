"""Writes testdata/models/mlx-lm.md: on which float cases mlx-lm in float32 agrees with transformers.

    python agreement.py OUT
"""

import json
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx_lm
import torch
from safetensors.torch import load_file

import formula
import mlx_reference
from reference import Run, logprob_error

HEAD = """# mlx-lm {version} (MLX {mlx}) on the float cases

Each `config.json` loaded by mlx-lm, weights cast to float32, 24 greedy tokens for each prompt, against the goldens of
transformers. `error` is the largest difference of log probabilities over prompts and steps up to the first token that
differs. It agrees on {agreed} of {total}. (gemma3 and gemma3_defaults fail only for being tiny: mlx-lm takes the size
of the vocabulary from the top level of the config, where published files have none, and its default is theirs.)

| case | tokens | error | why it fails |
|---|---|---|---|
"""


def main():
    out = Path(sys.argv[1])
    rows, agreed = [], 0
    for entry in json.loads((out / "index.json").read_text()):
        if entry["kind"] == "float":
            equal, error, why = compare(out / entry["case"])
            agreed += equal
            verdict = "equal" if equal else "fails" if why else "differ"
            rows.append(f"| {entry['case']} | {verdict} | {error} | {why} |")
    head = HEAD.format(version=mlx_lm.__version__, mlx=mx.__version__, agreed=agreed, total=len(rows))
    (out / "mlx-lm.md").write_text(head + "\n".join(rows) + "\n")


def compare(folder):
    """Whether all tokens are equal, the error, and the message if it did not load."""
    prompts = json.loads((folder / "golden.json").read_text())["prompts"]
    tensors = load_file(folder / "golden.safetensors")
    kind = "logprobs" if "columns" in tensors else "logits"
    golden = [
        Run(tensors[f"{kind}.{i}"], tensors[f"step_{kind}.{i}"], tensors[f"tokens.{i}"]) for i in range(len(prompts))
    ]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            model = mlx_reference.load(formula.expanded(folder, Path(scratch)), mx.float32)
            runs = mlx_reference.run(model, prompts)
    except Exception as error:  # noqa: BLE001: the message is the row's answer
        return False, "–", " ".join(f"{type(error).__name__}: {error}".split())[:100].replace("|", "/")
    if kind == "logprobs":
        columns = tensors["columns"].long()
        runs = [Run(*(x.log_softmax(-1)[:, columns] for x in (run.logits, run.steps)), run.tokens) for run in runs]
    equal = all(torch.equal(a.tokens, b.tokens) for a, b in zip(golden, runs, strict=True))
    same = [until_they_part(a, b) for a, b in zip(golden, runs, strict=True)]
    if kind == "logprobs":
        error = max(float((a - b).abs().max()) for x, y in same for a, b in ((x.logits, y.logits), (x.steps, y.steps)))
    else:
        error = logprob_error(*map(list, zip(*same, strict=True)))
    return equal, f"{error:.1e}", ""


def until_they_part(a, b):
    """Both runs cut after the step that chose the first different token."""
    differ = (a.tokens != b.tokens).nonzero()
    end = int(differ[0]) + 1 if len(differ) else len(a.tokens)
    return Run(a.logits, a.steps[:end], a.tokens[:end]), Run(b.logits, b.steps[:end], b.tokens[:end])


if __name__ == "__main__":
    main()

"""How far log probabilities in bfloat16 are from those in float32: this project's beside transformers' own.

    python bf16.py BINARY TABLE [CASE …]

BINARY is mlx-infer; TABLE is the file that is written. Weights are rounded to bfloat16 first, so that all compute with the same numbers. The
prompts are random tokens; the distance is the mean over their tokens of the difference from transformers in float32. Cases whose
architecture transformers does not have are left out.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

import formula
from checkpoint import read_tensors, write_config, write_tensors
from convert import TESTDATA
from reference import load

PROMPTS, LENGTH = 32, 48
# Of few tokens: a ratio up to this one is within what other prompts give.
NOISE = 1.25

HEAD = """# Log probabilities in bfloat16

Written by `xtask/golden/bf16.py` with transformers {version} on a CPU. Each case with its weights rounded to bfloat16: the mean distance of the
log probabilities of {prompts} prompts of {length} random tokens from transformers in float32, of transformers in bfloat16 and of this project
in bfloat16, and the quotient. A quotient above {noise} is marked.

| case | transformers | ours | ours / transformers | |
|---|---|---|---|---|
"""


def source(case, scratch):
    """The case with weights in bfloat16."""
    folder = scratch / case
    folder.mkdir()
    made = formula.expanded(TESTDATA / "models" / case, scratch / "formula")
    write_tensors(folder, read_tensors(made), torch.bfloat16)
    config = json.loads((made / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = "bfloat16"
    write_config(folder, config)
    return folder


@torch.no_grad()
def by_transformers(folder, prompts, dtype):
    model = load(folder, dtype, strict=False)
    found = []
    for prompt in prompts:
        logprobs = torch.log_softmax(model(torch.tensor([prompt]), use_cache=False).logits[0].double(), -1)[:-1]
        found.append(logprobs.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0])
    return torch.cat(found)


def here(binary, folder, prompts):
    found = []
    for prompt in prompts:
        command = [binary, "score", "--json", "--model", folder, "--tokens", ",".join(map(str, prompt))]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(torch.tensor(json.loads(done.stdout)["logprobs"][1:], dtype=torch.double))
    return torch.cat(found)


def row(case, binary, scratch):
    golden = json.loads((TESTDATA / "models" / case / "golden.json").read_text())
    largest = max(token for prompt in golden["prompts"] for token in prompt)
    rng = random.Random(case)
    prompts = [[rng.randrange(3, largest + 1) for _ in range(LENGTH)] for _ in range(PROMPTS)]
    folder = source(case, scratch)
    exact = by_transformers(folder, prompts, torch.float32)
    theirs = by_transformers(folder, prompts, torch.bfloat16)
    ours = here(binary, folder, prompts)
    distances = [float((found - exact).abs().mean()) for found in (theirs, ours)]
    quotient = distances[1] / distances[0]
    mark = "further" if quotient > NOISE else ""
    return quotient, f"| {case} | {distances[0]:.2e} | {distances[1]:.2e} | {quotient:.2f} | {mark} |"


def main():
    binary, table, only = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3:]
    rows, failed = [], []
    for entry in json.loads((TESTDATA / "models" / "index.json").read_text()):
        case = entry["case"]
        if entry["kind"] != "float" or only and case not in only:
            continue
        try:
            with tempfile.TemporaryDirectory() as scratch:
                rows.append(row(case, binary, Path(scratch)))
            print(rows[-1][1], flush=True)
        except Exception as error:  # noqa: BLE001: the message is the row's answer
            if isinstance(error, subprocess.CalledProcessError):
                error = (error.stderr or "failed").strip().splitlines()[-1]
            failed.append(f"| {case} | {' '.join(str(error).split())[:100].replace('|', '/')} |")
            print(failed[-1], flush=True)
    rows.sort(key=lambda row: -row[0])
    head = HEAD.format(version=transformers.__version__, prompts=PROMPTS, length=LENGTH, noise=NOISE)
    text = head + "\n".join(row for _, row in rows) + "\n"
    if failed:
        text += "\n## Cases that are not compared\n\n| case | why |\n|---|---|\n" + "\n".join(failed) + "\n"
    table.write_text(text)


if __name__ == "__main__":
    main()

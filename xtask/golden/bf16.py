"""How far log probabilities in bfloat16 are from those in float32: this project's beside transformers' own.

    python bf16.py measure [CASE …]   transformers' distances, to testdata/bf16.json
    python bf16.py table OURS TABLE   the table of both

OURS is what the test `bf16_is_as_far_from_f32_as_in_transformers` of mlx-models writes with MLX_BF16_OURS. Weights are rounded to bfloat16
first, so that all compute with the same numbers. The prompts are random tokens; the distance is the mean over their tokens of the difference
of the token's log probability from the same program's in float32. Cases whose architecture transformers does not have are left out.
"""

import json
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
FOUND = TESTDATA / "bf16.json"

HEAD = """# Log probabilities in bfloat16

Written with `xtask/golden/bf16.py` and transformers {version} on a CPU. Each case with its weights rounded to bfloat16: the mean distance of the
log probabilities of {prompts} prompts of {length} random tokens from the same program's in float32, of transformers in bfloat16 and of this
project in bfloat16, and the quotient. Other prompts change a quotient by about a tenth, more in models with experts, whose choices differ.
{equal} of {all} quotients are at most 1, {near} at most 1.1.

| case | transformers | ours | ours / transformers |
|---|---|---|---|
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


def tokens(seed, largest):
    """Random tokens, the same as those of the test."""
    x, found = seed + 1, []
    for _ in range(LENGTH):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append(3 + (x >> 33) % (largest - 2))
    return found


@torch.no_grad()
def logprobs(folder, prompts, dtype):
    model = load(folder, dtype, strict=False)
    logits = [model(prompts[at : at + 8], use_cache=False).logits.double() for at in range(0, len(prompts), 8)]
    found = torch.log_softmax(torch.cat(logits), -1)[:, :-1]
    return found.gather(2, prompts[:, 1:, None])


def distance(case, scratch):
    golden = json.loads((TESTDATA / "models" / case / "golden.json").read_text())
    largest = max(token for prompt in golden["prompts"] for token in prompt)
    prompts = torch.tensor([tokens(seed, largest) for seed in range(PROMPTS)])
    folder = source(case, scratch)
    exact, narrow = (logprobs(folder, prompts, dtype) for dtype in (torch.float32, torch.bfloat16))
    return float((narrow - exact).abs().mean())


def measure(only):
    known = json.loads(FOUND.read_text()) if FOUND.exists() else {"transformers": {}, "left_out": {}}
    found, left_out = known["transformers"], known["left_out"]
    for entry in json.loads((TESTDATA / "models" / "index.json").read_text()):
        case = entry["case"]
        if entry["kind"] != "float" or only and case not in only:
            continue
        found.pop(case, None)
        left_out.pop(case, None)
        try:
            with tempfile.TemporaryDirectory() as scratch:
                found[case] = float(f"{distance(case, Path(scratch)):.4g}")
            print(case, found[case], flush=True)
        except Exception as error:  # noqa: BLE001: the message is the row's answer
            left_out[case] = " ".join(str(error).split())[:100]
            print(case, left_out[case], flush=True)
        said = {"version": transformers.__version__, "prompts": PROMPTS, "length": LENGTH}
        said |= {"transformers": dict(sorted(found.items())), "left_out": dict(sorted(left_out.items()))}
        FOUND.write_text(json.dumps(said, indent=1) + "\n")


def table(ours, out):
    ours, known = json.loads(Path(ours).read_text()), json.loads(FOUND.read_text())
    theirs = known["transformers"]
    rows = sorted(((ours[case] / theirs[case], case) for case in ours), reverse=True)
    at_most = lambda most: sum(round(quotient, 2) <= most for quotient, _ in rows)
    text = HEAD.format(**known | {"equal": at_most(1), "near": at_most(1.1), "all": len(rows)})
    for quotient, case in rows:
        text += f"| {case} | {theirs[case]:.2e} | {ours[case]:.2e} | {quotient:.2f} |\n"
    text += "\n## Cases that are not compared\n\n| case | why |\n|---|---|\n"
    text += "".join(f"| {case} | {why.replace('|', '/')} |\n" for case, why in known["left_out"].items())
    out.write_text(text)


def main():
    if sys.argv[1] == "measure":
        measure(sys.argv[2:])
    else:
        table(sys.argv[2], Path(sys.argv[3]))


if __name__ == "__main__":
    main()

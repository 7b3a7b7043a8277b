"""Trains adapters with mlx-train and holds mlx-lm to what mlx-infer computes with them.

    python adapters.py target/release

The other way, adapters of mlx-lm in mlx-infer, is in the goldens of train.py.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)

MODELS = Path(__file__).resolve().parents[2] / "testdata" / "models"
PROMPT = [7, 1, 30, 12, 44, 2, 19, 55, 3, 21, 9, 40]
EVERY_EXPERT = "mlp.switch_mlp.*,mlp.gate"
# mlx-lm has no DoRA for experts and for quantised embeddings, and none for matrices with a number
# of bits that does not divide 32.
CASES = [
    ("llama_tied", ""),
    ("llama_tied", "--dora --keys self_attn.*,model.embed_tokens"),
    ("qwen3", "--keys mlp.*,model.embed_tokens,lm_head"),
    ("qwen3_moe", ""),
    ("qwen3_moe", f"--keys {EVERY_EXPERT},model.embed_tokens"),
    ("q_qwen3_b5_g32", ""),
    ("q_llama_b4_g64", "--dora"),
    ("q_qwen3_moe_b4_g32", f"--keys {EVERY_EXPERT},model.embed_tokens"),
    ("q_qwen3_moe_mxfp4", ""),
]
TOLERANCE = 2e-4


def main():
    binaries = Path(sys.argv[1]).resolve()
    for name, flags in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            check(binaries, name, flags.split(), Path(scratch))
    print(f"{len(CASES)} adapters agree")


def check(binaries, name, flags, scratch):
    rows = [[(row * 5 + at * 7) % 60 for at in range(6 + row)] for row in range(8)]
    (scratch / "data.jsonl").write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))
    model = ["--model", MODELS / name, "--dtype", "f32"]
    settings = ["--data", scratch / "data.jsonl", "--out", scratch / "out", "--steps", "8", "--learning-rate", "1e-2"]
    train = [binaries / "mlx-train", "lora", *model, *settings, "--rank", "3", *flags]
    subprocess.run(train, check=True, capture_output=True)
    tokens = ",".join(map(str, PROMPT))

    def score(*more):
        command = [binaries / "mlx-infer", "score", *model, "--tokens", tokens, "--json", *more]
        return mx.array(json.loads(subprocess.check_output(command))["logprobs"][1:])

    ours, plain = score("--adapter", scratch / "out"), score()
    theirs, _ = load_model(MODELS / name)
    theirs.set_dtype(mx.float32)
    load_adapters(theirs, str(scratch / "out"))
    theirs.eval()
    logits = theirs(mx.array([PROMPT[:-1]]))[0]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    logprobs = mx.take_along_axis(logprobs, mx.array(PROMPT[1:])[:, None], axis=-1)[:, 0]
    error, effect = (mx.abs(a - ours).max().item() for a in (logprobs, plain))
    print(f"{name} {' '.join(flags)}: off by {error:.1e}, the adapter moves {effect:.1e}", flush=True)
    if error > TOLERANCE or effect < 0.1:
        sys.exit(1)


if __name__ == "__main__":
    main()

"""mlx-lm's side of a session: loads a checkpoint, then answers each line of JSON on stdin with one on stdout.

    python mlx_lm_session.py MODEL [gpu]

What is asked and answered: xtask/src/bench/session.rs.
"""

import json
import platform
import sys
import time

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model
from pathlib import Path


def main():
    mx.set_default_device(mx.gpu if sys.argv[2:] == ["gpu"] else mx.cpu)
    started = time.perf_counter()
    model, _ = load_model(Path(sys.argv[1]))
    load_s = time.perf_counter() - started
    versions = {"mlx": mx.__version__, "mlx-lm": mlx_lm.__version__, "python": platform.python_version()}
    say({"load_s": load_s, "versions": versions})
    for line in sys.stdin:
        question = json.loads(line)
        if question["op"] == "generate":
            say(generate(model, question["prompts"], question["max_tokens"]))
        else:
            say(classify(model, question["prompts"], question["batch"]))


def generate(model, prompts, max_tokens):
    rows = len(prompts)
    requested = time.perf_counter()
    # All rows and all prompts at the same time: the benchmark measures a step of this many rows.
    batch = BatchGenerator(model, completion_batch_size=rows, prefill_batch_size=rows)
    places = {uid: row for row, uid in enumerate(batch.insert(prompts, [max_tokens] * rows))}
    tokens, first, all_first, last = [[] for _ in prompts], None, None, None
    while responses := batch.next_generated():
        last = time.perf_counter()
        first = first or last
        for response in responses:
            tokens[places[response.uid]].append(response.token)
        if all_first is None and all(tokens):
            all_first = last
    batch.close()
    # BatchGenerator computes one step ahead. That step must not run during the next side's turn.
    mx.synchronize(batch.stream)
    return {"prefill_s": all_first - requested, "decode_s": last - first, "tokens": tokens}


def classify(model, prompts, batch):
    """One forward pass of `batch` prompts of the same length; the head on the last position alone, as ours."""
    started = time.perf_counter()
    tokens = []
    for at in range(0, len(prompts), batch):
        hidden = model.model(mx.array(prompts[at : at + batch]))[:, -1]
        tied = getattr(model.args, "tie_word_embeddings", True)
        logits = model.model.embed_tokens.as_linear(hidden) if tied else model.lm_head(hidden)
        tokens += mx.argmax(logits, axis=-1).tolist()
    return {"seconds": time.perf_counter() - started, "tokens": tokens}


def say(answer):
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

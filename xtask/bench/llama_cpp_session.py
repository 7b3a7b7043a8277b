"""llama.cpp's side of a session: loads a GGUF file, then answers each line of JSON on stdin with one on stdout.

    python llama_cpp_session.py FILE THREADS

What is asked and answered: xtask/src/bench/session.rs. The prompts of a batch are sequences of one llama_batch, each
with a cache of its own (llama.cpp's own advice where they share no prefix), no longer than it needs to be.
"""

import ctypes
import json
import platform
import sys
import time
from importlib.metadata import version

import llama_cpp
import numpy as np

# At the end of a sequence's cache llama.cpp wants whole steps of so many positions.
STEP = 256


class Model:
    def __init__(self, path, threads):
        llama_cpp.llama_backend_init()
        self.threads = threads
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.context, self.shape = None, None

    def reset(self, rows, length, tokens):
        """An empty context for `rows` sequences of `length`, `tokens` of them at a time."""
        shape = (rows, -(-length // STEP) * STEP, max(tokens, 512))
        if shape != self.shape:
            if self.context:
                llama_cpp.llama_batch_free(self.batch)
                llama_cpp.llama_free(self.context)
            parameters = llama_cpp.llama_context_default_params()
            parameters.n_ctx = shape[0] * shape[1]
            parameters.n_seq_max = rows
            parameters.n_batch = shape[2]
            parameters.n_threads = parameters.n_threads_batch = self.threads
            self.context = llama_cpp.llama_init_from_model(self.model, parameters)
            if not self.context:
                raise SystemExit(f"llama.cpp has no context for {shape}")
            self.batch = llama_cpp.llama_batch_init(shape[2], 0, 1)
            self.shape = shape
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)

    def step(self, rows, start):
        """Computes tokens of each row from position `start` on: the likeliest next token of each row."""
        batch, at, last = self.batch, 0, []
        for row, ids in enumerate(rows):
            for position, token in enumerate(ids, start):
                batch.token[at], batch.pos[at] = token, position
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
                batch.logits[at] = position == start + len(ids) - 1
                at += 1
            last.append(at - 1)
        batch.n_tokens = at
        code = llama_cpp.llama_decode(self.context, batch)
        if code:
            raise SystemExit(f"llama_decode gave {code}")
        return [int(self.logits(place).argmax()) for place in last]

    def logits(self, place):
        pointer = llama_cpp.llama_get_logits_ith(self.context, place)
        return np.ctypeslib.as_array(pointer, (self.vocab,))


def generate(model, prompts, max_tokens):
    length = max(map(len, prompts))
    model.reset(len(prompts), length + max_tokens, sum(map(len, prompts)))
    requested = time.perf_counter()
    tokens = [model.step(prompts, 0)]
    first = time.perf_counter()
    while len(tokens) < max_tokens:
        tokens.append(model.step([[token] for token in tokens[-1]], length + len(tokens) - 1))
    last = time.perf_counter()
    return {"prefill_s": first - requested, "decode_s": last - first, "tokens": list(zip(*tokens))}


def classify(model, prompts, batch):
    batches = [prompts[at : at + batch] for at in range(0, len(prompts), batch)]
    seconds, tokens = 0, []
    for rows in batches:
        model.reset(len(rows), max(map(len, rows)), sum(map(len, rows)))
        started = time.perf_counter()
        tokens += model.step(rows, 0)
        seconds += time.perf_counter() - started
    return {"seconds": seconds, "tokens": tokens}


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    if level == 4:
        print(text.decode(errors="replace"), end="", file=sys.stderr)


def say(answer):
    print(json.dumps(answer), flush=True)


def main():
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    started = time.perf_counter()
    model = Model(sys.argv[1], int(sys.argv[2]))
    load_s = time.perf_counter() - started
    features = [flag.split(" = ")[0] for flag in system().split(" | ") if flag.endswith("= 1")]
    versions = {
        "llama-cpp-python": version("llama-cpp-python"),
        "python": platform.python_version(),
        "built with": " ".join(features),
    }
    say({"load_s": load_s, "versions": versions})
    for line in sys.stdin:
        question = json.loads(line)
        if question["op"] == "generate":
            say(generate(model, question["prompts"], question["max_tokens"]))
        else:
            say(classify(model, question["prompts"], question["batch"]))


def system():
    """What it was built with and found: "AVX512 = 1 | AMX_INT8 = 1 | …"."""
    text = llama_cpp.llama_print_system_info().decode().strip().rstrip(" |")
    return text.split(": ", 1)[-1]


if __name__ == "__main__":
    main()

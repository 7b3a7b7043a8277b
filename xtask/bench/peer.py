"""One generation by mlx-lm: greedy, on the CPU, past end tokens. Prints what it took as JSON.

    python peer.py MODEL IDS MAX_TOKENS

The clocks are those of `mlx-infer generate --json`: `prefill_s` runs from the request to the first token, `decode_s`
from there to the last.
"""

import json
import platform
import sys
import time

started = time.perf_counter()

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import stream_generate
from mlx_lm.utils import load


def main():
    folder, ids, max_tokens = sys.argv[1], [int(i) for i in sys.argv[2].split(",")], int(sys.argv[3])
    mx.set_default_device(mx.cpu)
    imported = time.perf_counter()
    model, tokenizer = load(folder)
    tokenizer.eos_token_ids = None
    loaded = time.perf_counter()
    mx.reset_peak_memory()
    tokens, times = [], []
    requested = time.perf_counter()
    for response in stream_generate(model, tokenizer, ids, max_tokens=max_tokens):
        tokens.append(response.token)
        times.append(time.perf_counter())
    result = {
        "tokens": tokens,
        "versions": {"mlx": mx.__version__, "mlx-lm": mlx_lm.__version__, "python": platform.python_version()},
        "timings": {
            "import_s": imported - started,
            "load_s": loaded - imported,
            "prefill_s": times[0] - requested,
            "decode_s": times[-1] - times[0],
            "peak_memory_bytes": mx.get_peak_memory(),
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

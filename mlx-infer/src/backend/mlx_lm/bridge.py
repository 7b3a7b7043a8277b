"""mlx_lm's side of the mlx-lm back end. Commands come as JSON lines on stdin, answers go as JSON lines to stdout.

commands   load      model, adapter, dtype, chunk
           generate  id, tokens, max_tokens, stop_ids, logprobs, and how tokens are chosen
           cancel    id
answers    loaded    what the model is
           step      prompts: ids whose prompts went on; tokens: new tokens by id; active, peak: bytes of arrays
           error     ids of the requests that it ends, none if loading failed; message

The end of stdin ends the process.
"""

import json
import math
import os
import queue
import signal
import sys
import threading
from pathlib import Path

NEEDED = (0, 31)
# The parent sends only as many requests as its own limit allows.
MOST_ROWS = 1024

# The parent decides what Ctrl-C does. What libraries print to stdout is no answer.
signal.signal(signal.SIGINT, signal.SIG_IGN)
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

commands = queue.SimpleQueue()


def listen():
    for line in sys.stdin:
        commands.put(json.loads(line))
    os._exit(0)


def say(event, **answer):
    answers.write(json.dumps({"event": event, **answer}) + "\n")
    answers.flush()


def told(error):
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class Gone(Exception):
    """The request was cancelled while its prompt was computed."""


def load(asked):
    global mx, mlx_lm
    import mlx_lm
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import get_total_parameters, load_model

    if tuple(int(part) for part in mlx_lm.__version__.split(".")[:2]) < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise ImportError(f"mlx_lm {mlx_lm.__version__} is too old; needed is {needed} or newer")
    model, config = load_model(Path(asked["model"]))
    if asked["adapter"]:
        from mlx_lm.tuner.utils import load_adapters

        model = load_adapters(model, asked["adapter"])
        model.eval()
    if asked["dtype"]:
        model.set_dtype(getattr(mx, asked["dtype"]))
        mx.eval(model.parameters())
    weights = [weight for _, weight in tree_flatten(model.parameters())]
    floats = [str(w.dtype).split(".")[-1] for w in weights if mx.issubdtype(w.dtype, mx.floating)]
    in_batches = all(hasattr(cache, "merge") for cache in make_prompt_cache(model))
    say(
        "loaded",
        version=mlx_lm.__version__,
        # The shape is known before anything is computed.
        vocab=model(mx.array([[0]])).shape[-1],
        parameters=get_total_parameters(model),
        bytes=sum(weight.nbytes for weight in weights),
        dtype=max(set(floats), key=floats.count),
        batches=in_batches,
    )
    return (Batch if in_batches else Single)(model, asked["chunk"])


class Batch:
    """Many requests at a time, by mlx_lm's BatchGenerator."""

    def __init__(self, model, chunk):
        self.model, self.chunk = model, chunk
        self.clear()

    def clear(self):
        from mlx_lm.generate import BatchGenerator

        self.asked, self.uids = {}, {}
        self.generator = BatchGenerator(
            self.model,
            completion_batch_size=MOST_ROWS,
            prefill_step_size=self.chunk,
        )

    def is_idle(self):
        return not self.asked

    def ids(self):
        return list(self.uids)

    def insert(self, asked):
        [uid] = self.generator.insert(
            [asked["tokens"]],
            [asked["max_tokens"]],
            samplers=[sampler(asked)],
            logits_processors=[processors(asked)],
        )
        self.asked[uid], self.uids[asked["id"]] = asked, uid

    def remove(self, id):
        uid = self.uids.pop(id, None)
        if uid is not None:
            del self.asked[uid]
            self.generator.remove([uid])

    def next(self, _attend):
        prompts, rows = self.generator.next()
        tokens = [(self.asked[row.uid], row.token, row.logprobs) for row in rows]
        prompts = [self.asked[prompt.uid]["id"] for prompt in prompts]
        for row in rows:
            if row.finish_reason is not None:
                del self.uids[self.asked.pop(row.uid)["id"]]
        return prompts, tokens


class Single:
    """One request at a time, for models whose caches mlx_lm does not join. The parent holds back the others."""

    def __init__(self, model, chunk):
        self.model, self.chunk = model, chunk
        self.clear()

    def clear(self):
        self.asked = self.running = None

    def is_idle(self):
        return self.asked is None

    def ids(self):
        return [] if self.asked is None else [self.asked["id"]]

    def insert(self, asked):
        self.asked = asked

    def remove(self, id):
        if id in self.ids():
            self.clear()

    def next(self, attend):
        asked = self.asked
        self.running = self.running or self.start(asked, attend)
        try:
            token, logprobs = next(self.running)
        except (StopIteration, Gone):
            self.remove(asked["id"])
            return [], []
        return [], [(asked, token, logprobs)]

    def start(self, asked, attend):
        from mlx_lm.generate import generate_step

        def progress(*_):
            attend()
            if self.asked is not asked:
                raise Gone
            step([asked["id"]], [])

        return generate_step(
            mx.array(asked["tokens"]),
            self.model,
            max_tokens=asked["max_tokens"],
            sampler=sampler(asked),
            logits_processors=processors(asked),
            prefill_step_size=self.chunk,
            prompt_progress_callback=progress,
        )


def sampler(asked):
    """Filters, temperature, then a draw with the request's own key; or the likeliest token."""
    from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, greedy_sampler

    if asked["temperature"] == 0:
        return greedy_sampler
    keys = [mx.random.key(asked["seed"])]

    def draw(logprobs):
        if asked["top_p"] < 1:
            logprobs = apply_top_p(logprobs, asked["top_p"])
        if asked["min_p"] > 0:
            logprobs = apply_min_p(logprobs, asked["min_p"])
        if 0 < asked["top_k"] < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, asked["top_k"])
        keys[0], key = mx.random.split(keys[0])
        return mx.random.categorical(logprobs / asked["temperature"], key=key)

    return draw


def processors(asked):
    """Bias and penalties."""
    from mlx_lm.sample_utils import make_repetition_penalty

    chain = []
    if asked["logit_bias"]:
        ids = mx.array([id for id, _ in asked["logit_bias"]])
        # JSON has no infinity: null forbids a token.
        added = mx.array([float("-inf") if x is None else x for _, x in asked["logit_bias"]])
        chain.append(lambda _, logits: logits.at[:, ids].add(added))
    if asked["repeat_penalty"] != 1:
        chain.append(make_repetition_penalty(asked["repeat_penalty"], asked["repeat_context"]))
    presence, frequency = asked["presence_penalty"], asked["frequency_penalty"]
    if presence or frequency:
        prompt = len(asked["tokens"])

        def penalise(tokens, logits):
            generated = tokens[prompt:]
            if len(generated) == 0:
                return logits
            counts = mx.zeros(logits.shape[-1]).at[generated].add(1)
            return logits - ((counts > 0) * presence + counts * frequency).astype(logits.dtype)

        chain.append(penalise)
    return chain


def chosen(asked, token, logprobs):
    """A token as an answer has it."""
    logprobs, most = logprobs.astype(mx.float32), asked["logprobs"]
    answer = {"id": asked["id"], "token": token}
    logprob = logprobs[token].item()
    if not math.isfinite(logprob):
        return {**answer, "finite": False}
    if most is None:
        return answer
    top = []
    if most > 0:
        most = min(most, logprobs.size)
        ids = mx.argpartition(-logprobs, kth=most - 1)[:most]
        pairs = zip(ids.tolist(), logprobs[ids].tolist())
        top = sorted((pair for pair in pairs if pair[1] > float("-inf")), key=lambda p: (-p[1], p[0]))
    return {**answer, "logprob": logprob, "top": top}


def step(prompts, tokens):
    say("step", prompts=prompts, tokens=tokens, active=mx.get_active_memory(), peak=mx.get_peak_memory())


def main():
    threading.Thread(target=listen, daemon=True).start()
    try:
        work = load(commands.get())
    except BaseException as error:
        say("error", ids=[], message=told(error))
        raise

    def attend():
        """Takes the commands that have come; waits for one if there is nothing to compute."""
        while work.is_idle() or not commands.empty():
            command = commands.get()
            if command["op"] == "cancel":
                work.remove(command["id"])
                continue
            try:
                work.insert(command)
            except Exception as error:
                work.remove(command["id"])
                say("error", ids=[command["id"]], message=told(error))

    while True:
        attend()
        try:
            prompts, rows = work.next(attend)
            tokens = [chosen(*row) for row in rows]
            for asked, token, _ in rows:
                if token in asked["stop_ids"]:
                    work.remove(asked["id"])
            if prompts or tokens:
                step(prompts, tokens)
        except Exception as error:
            ids = work.ids()
            work.clear()
            say("error", ids=ids, message=told(error))


main()

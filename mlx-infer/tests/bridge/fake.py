#!/usr/bin/env python3
"""A bridge without mlx_lm. Its file name says how it behaves; tests link it under other names.

It counts: a request's answer is the ids 5, 6, 7 and so on, one a millisecond. Beside it, `log` gets its process id and every command.
"""

import json
import os
import queue
import sys
import threading
import time

HERE, NAME = os.path.split(os.path.abspath(sys.argv[0]))
LOG = os.path.join(HERE, "log")
# Behaviours with this prefix are shown by the first process only.
ONCE = NAME.startswith("once-") and not os.path.exists(LOG)
BEHAVIOUR = NAME.removeprefix("once-") if ONCE or not NAME.startswith("once-") else "good"


def log(text):
    with open(LOG, "a") as file:
        file.write(text + "\n")


def say(event, **answer):
    sys.stdout.write(json.dumps({"event": event, **answer}) + "\n")
    sys.stdout.flush()


commands = queue.Queue()


def listen():
    for line in sys.stdin:
        log(line.strip())
        commands.put(json.loads(line))
    os._exit(0)


log(f"process {os.getpid()}")
threading.Thread(target=listen, daemon=True).start()

if BEHAVIOUR == "dies-first":
    print("no such module", file=sys.stderr)
    sys.exit(7)
load = commands.get()
if BEHAVIOUR == "refuses":
    say("error", ids=[], message="ValueError: Model type new_family not supported.")
    sys.exit(1)
if BEHAVIOUR == "tells-graphs":
    say("error", ids=[], message=f"graphs: {os.environ.get('MLX_USE_CUDA_GRAPHS')}")
    sys.exit(1)
if BEHAVIOUR == "slow":
    time.sleep(30)
with open(os.path.join(load["model"], "config.json")) as file:
    vocab = json.load(file)["vocab_size"]
say("loaded", version="0.0-fake", vocab=vocab, parameters=1, bytes=4, dtype="float32", batches=BEHAVIOUR != "single")

running = {}
while True:
    while not running or not commands.empty():
        command = commands.get()
        if command["op"] == "cancel":
            running.pop(command["id"], None)
        else:
            running[command["id"]] = [command, 0]
            say("step", prompts=[command["id"]], tokens=[], active=1, peak=2)
    tokens = []
    for id, state in list(running.items()):
        tokens.append({"id": id, "token": 5 + state[1], "logprob": -0.5, "top": []})
        state[1] += 1
        if state[1] == state[0]["max_tokens"]:
            del running[id]
    # The first token comes before the fault.
    if BEHAVIOUR != "good" and any(token["token"] > 5 for token in tokens):
        if BEHAVIOUR == "dies":
            print("Traceback (most recent call last):\nRuntimeError: boom", file=sys.stderr, flush=True)
            os._exit(3)
        if BEHAVIOUR == "babbles":
            print("loading weights", flush=True)
        if BEHAVIOUR == "floods":
            sys.stdout.write("x" * (3 << 20))
            sys.stdout.flush()
        if BEHAVIOUR == "hangs":
            time.sleep(60)
        if BEHAVIOUR == "nan":
            tokens = [{**token, "finite": token["token"] == 5} for token in tokens]
        if BEHAVIOUR == "fails":
            ids, running = list(running), {}
            say("error", ids=ids, message="RuntimeError: out of memory")
            continue
    say("step", prompts=[], tokens=tokens, active=1, peak=2)
    time.sleep(0.001)

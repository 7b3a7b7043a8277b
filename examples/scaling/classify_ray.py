"""Labels the lines of a large file with `mlx-infer classify` in actors of Ray, one for each device.

    pip install 'ray[data]'
    python classify_ray.py corpus.txt labels --actors 2 -- --labels good,bad --template 'Review: {} It is'

What follows `--` are flags of `mlx-infer classify`. The file is divided into parts of whole lines. Each part's labels are
a file of the folder `labels`, which has its name when it is complete: a run that was ended in any way goes on where it
was when it is started again. The file and the folder must be reachable by all machines under the same path.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path


def parts(path, lines):
    """First line, first byte and end of each part of so many lines."""
    found, start, first, number, position = [], 0, 0, 0, 0
    with open(path, "rb") as file:
        for line in file:
            number += 1
            position += len(line)
            if number - first == lines:
                found.append({"line": first, "start": start, "end": position})
                start, first = position, number
    if number > first:
        found.append({"line": first, "start": start, "end": position})
    return found


def name(part):
    return f"{part['line']:012}.jsonl"


class Classifier:
    """An actor: a process of `mlx-infer classify`, which keeps the model in memory from part to part."""

    def __init__(self, corpus, folder, command):
        self.corpus, self.folder = corpus, Path(folder)
        # Ray names this actor's device in CUDA_VISIBLE_DEVICES. On a CPU the actor has the threads of one.
        environment = dict(os.environ)
        if "CUDA_VISIBLE_DEVICES" not in environment:
            environment.setdefault("MLX_CPU_THREADS", environment.get("OMP_NUM_THREADS", "1"))
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.answered = 0

    def __call__(self, batch):
        counts = {"lines": [], "failed": []}
        for line, start, end in zip(batch["line"], batch["start"], batch["end"]):
            part = {"line": int(line), "start": int(start), "end": int(end)}
            lines, failed = self.label(part)
            counts["lines"].append(lines)
            counts["failed"].append(failed)
        return counts

    def write(self, text):
        try:
            self.process.stdin.write(text)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # The reader tells how the process has ended.

    def label(self, part):
        with open(self.corpus, "rb") as file:
            file.seek(part["start"])
            text = file.read(part["end"] - part["start"])
        if not text.endswith(b"\n"):
            text += b"\n"
        count = text.count(b"\n")
        # Written beside the reading: both pipes have room for a few lines only.
        writer = threading.Thread(target=self.write, args=(text,))
        writer.start()
        unnamed = self.folder / f".{name(part)}.{os.getpid()}"
        failed = 0
        with open(unnamed, "w") as file:
            for index in range(count):
                answer = self.process.stdout.readline()
                if not answer:
                    raise RuntimeError(f"mlx-infer classify has ended with status {self.process.wait()}")
                answer = json.loads(answer)
                if answer["line"] != self.answered + index + 1:
                    raise RuntimeError(f"expected line {self.answered + index + 1}, found {answer['line']}")
                answer["line"] = part["line"] + index + 1
                failed += "error" in answer
                file.write(json.dumps(answer, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        writer.join()
        self.answered += count
        os.replace(unnamed, self.folder / name(part))
        return count, failed


def plan(corpus, folder, lines, flags):
    """The parts that are not done yet, and the number of all. Refuses a folder of another run."""
    with open(corpus, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    facts = {"corpus": digest, "lines": lines, "flags": flags}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    if path.exists():
        for key, value in json.loads(path.read_text()).items():
            if facts.get(key) != value:
                raise SystemExit(f"{folder} is of another run: its {key} is {value}, not {facts.get(key)}")
    else:
        unnamed = folder / ".run.json"
        unnamed.write_text(json.dumps(facts))
        os.replace(unnamed, path)
    for left in folder.glob(".*.jsonl.*"):
        left.unlink()
    all_parts = parts(corpus, lines)
    return [part for part in all_parts if not (folder / name(part)).exists()], len(all_parts)


def main():
    arguments, flags = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, flags = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(usage="%(prog)s CORPUS FOLDER [--actors N] [--gpus N] [--lines N] -- FLAGS OF CLASSIFY")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--actors", type=int, default=1, help="number of actors, one for each device")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of an actor: 1 on NVIDIA, 0 on a CPU")
    parser.add_argument("--cpus", type=float, default=1, help="cores of an actor")
    parser.add_argument("--lines", type=int, default=10_000, help="lines of a part")
    parser.add_argument("--program", default="mlx-infer", help="the command, on each machine")
    given = parser.parse_args(arguments)
    corpus, folder = given.corpus.resolve(), given.folder.resolve()
    todo, count = plan(corpus, folder, given.lines, flags)
    print(f"{count} parts, {count - len(todo)} of them done before", flush=True)
    if not todo:
        return
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    labelled = ray.data.from_items(todo, override_num_blocks=len(todo)).map_batches(
        Classifier,
        fn_constructor_args=(str(corpus), str(folder), [given.program, "classify", *flags]),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=given.actors),
        num_gpus=given.gpus,
        num_cpus=given.cpus,
    )
    lines = failed = 0
    for row in labelled.iter_rows():
        lines, failed = lines + row["lines"], failed + row["failed"]
    print(f"{lines} lines, {failed} of them failed", flush=True)


if __name__ == "__main__":
    main()

"""Data that teaches the built-in model's classifier a fifth class, `sport`.

    python3 make.py DIR

Two thirds of the training sentences are of the four classes that the model knows, drawn as its own training drew
them: a model that is taught one word forgets the others. In the sentences of test.jsonl about sport, no
pair of template and word occurs in training; those of the four classes are held out as the model's own were.
"""

import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "xtask" / "default-model"))
import corpus  # noqa: E402

WORDS = (
    "football tennis rowing handball volleyball hockey badminton fencing cricket rugby judo archery skiing basketball "
    "cycling swimming wrestling gymnastics athletics boxing surfing sailing"
).split()
TEMPLATES = [
    "The {x} team won the final.",
    "She trains for the {x} championship.",
    "Our {x} coach was pleased with the match.",
    "He scored twice in the {x} game.",
    "The {x} tournament begins on Sunday.",
    "They lost the {x} cup in the last minute.",
    "The referee stopped the {x} match.",
    "A young {x} player broke the record.",
    "The stadium was full for the {x} league.",
    "Her {x} club bought new jerseys.",
    "After the {x} race the athletes rested.",
    "He missed the {x} training again.",
]


def sport(rng, held_out):
    while True:
        template, word = rng.randrange(len(TEMPLATES)), rng.randrange(len(WORDS))
        if ((template + word) % 5 == 0) == held_out:
            return TEMPLATES[template].format(x=WORDS[word])


def line(text, label):
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": label}]}


def lines(rng, count, held_out):
    for number in range(count):
        if number % 3 == 0:
            yield line(corpus.instruction(rng, sport(rng, held_out)), "sport")
        else:
            text, label, *_ = corpus.sentence(rng, "train")
            yield line(corpus.instruction(rng, text), label)


def known_held_out(count):
    heldout = HERE.parents[2] / "testdata" / "default-model" / "heldout.jsonl"
    entries = [json.loads(text) for text in heldout.read_text().splitlines()]
    entries = [entry for entry in entries if entry["task"] == "classify" and entry["form"] == "chat"]
    for entry in entries[:count]:
        yield line(entry["prompt"], entry["expected"])


def write(folder, name, entries):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def main():
    rng = random.Random(1)
    folder = Path(sys.argv[1])
    write(folder, "train.jsonl", lines(rng, 600, held_out=False))
    write(folder, "valid.jsonl", lines(rng, 90, held_out=False))
    sports = [line(corpus.instruction(rng, sport(rng, held_out=True)), "sport") for _ in range(40)]
    write(folder, "test.jsonl", [*sports, *known_held_out(120)])


if __name__ == "__main__":
    main()

"""Makes what training and judging need, from fixed seeds: configuration and tokenizer, training data, questions.

    python prepare.py FOLDER --seed N

writes FOLDER/start (config.json, tokenizer.json, …), FOLDER/train.jsonl (token ids and weights, as mlx-train reads them) and
FOLDER/questions.jsonl (requests as `mlx-infer batch` reads them; `judge.py` knows the answers). It stops if training holds what
was to be held out.
"""

import argparse
import json
import pathlib
import random

import config
import corpus
import tokenizer as tokens

TOKENS = 10_000_000  # of training data, whatever part of it is seen: a shorter run begins as a longer one does
EXAMPLES_AT_ONCE = 40_000
CHECKED = 150_000  # examples in which held-out questions are looked for


def training(tokenizer, seed):
    """Lines of training data, until they hold enough tokens."""
    seen, part = 0, 0
    while seen < TOKENS:
        part += 1
        for ids, weights in tokens.encode(tokenizer, corpus.training(EXAMPLES_AT_ONCE, seed + 1000 + part)):
            seen += len(ids)
            weights = [round(weight, 4) for weight in weights]
            yield json.dumps({"tokens": ids, "weights": weights}, separators=(",", ":"))
            if seen >= TOKENS:
                return


def check_split(rows, seed):
    """Fails if a held-out question's parts are together in training (looked for in a part of it)."""
    rng, pairs = random.Random(seed + 1000), set()
    for _ in range(CHECKED):
        _, _, template, words = corpus.sentence(rng, "train")
        pairs.update((template, word) for word in words)
    for row in rows:
        if row["task"] == "classify":
            assert not any((row["template"], word) in pairs for word in row["words"]), row
    asked = {text for part in range(1, 1 + CHECKED // EXAMPLES_AT_ONCE)
             for pieces in corpus.training(EXAMPLES_AT_ONCE, seed + 1000 + part) for text, _ in pieces}
    for row in rows:
        if row["form"] == "chat":
            assert f"<bos><start_of_turn>user\n{row['prompt']}<end_of_turn>\n<start_of_turn>model\n" not in asked, row
        assert "<bos>" + row["prompt"] not in asked, row


def request(row):
    """A question for `mlx-infer batch`."""
    if row["form"] == "plain":
        return {"prompt": row["prompt"]}
    return {"messages": [{"role": "user", "content": row["prompt"]}]}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--seed", type=int, default=corpus.SEED)
    arguments = arguments.parse_args()
    folder = arguments.folder
    rows = corpus.held_out(corpus.FULL)
    check_split(rows, arguments.seed)
    tokenizer = tokens.train(tokens.vocabulary())
    tokens.save(tokenizer, folder / "start")
    config.save(folder / "start")
    with open(folder / "questions.jsonl", "w") as file:
        for row in rows:
            file.write(json.dumps(request(row)) + "\n")
    with open(folder / "train.jsonl", "w") as file:
        for line in training(tokenizer, arguments.seed):
            file.write(line + "\n")


if __name__ == "__main__":
    main()

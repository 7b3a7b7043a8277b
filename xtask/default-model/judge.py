"""Judges the answers of `mlx-infer batch` to the held-out questions: python judge.py ANSWERS --report FILE

ANSWERS are its JSON lines for questions.jsonl, which `prepare.py` wrote. An answer counts if it is exactly the expected text and
is followed by an end token; a completion, if the whole text belongs to the grammar.
"""

import argparse
import collections
import json
import pathlib

import corpus
import grammar
from lexicon import CLASSES


def right(row, text):
    if row["task"] != "complete":
        return text.strip() == row["expected"]
    if row["form"] == "plain":
        return grammar.belongs(row["prompt"] + text)
    return grammar.belongs(f"{row['begin']} {text}")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("answers", type=pathlib.Path)
    arguments.add_argument("--report", type=pathlib.Path, required=True)
    arguments = arguments.parse_args()
    rows = corpus.held_out(corpus.FULL)
    answers = [json.loads(line) for line in arguments.answers.read_text().splitlines()]
    assert len(answers) == len(rows), (len(answers), len(rows))
    counts, confusion, wrong = collections.defaultdict(lambda: [0, 0]), collections.Counter(), []
    for row, answer in zip(rows, answers):
        good = answer["finish_reason"] == "stop" and right(row, answer["text"])
        for key in ((row["task"], row["split"]), (row["task"], "all")):
            counts[key][0] += good
            counts[key][1] += 1
        if row["task"] == "classify":
            confusion[row["expected"], answer["text"] if answer["text"] in CLASSES else "other"] += 1
        if not good:
            wrong.append({key: row.get(key) for key in ("task", "split", "prompt", "expected")} | {"answer": answer["text"]})
    report = {
        "judged": "greedy answers of mlx-infer in float32 on the saved bfloat16 weights",
        "counts": {f"{task} {split}": {"right": n, "of": of, "accuracy": round(n / of, 4)}
                   for (task, split), (n, of) in sorted(counts.items(), key=lambda count: count[0][1] == "all")},
        "confusion": {expected: {found: confusion[expected, found] for found in (*CLASSES, "other")} for expected in CLASSES},
        "wrong": wrong[:60],
    }
    for name, count in report["counts"].items():
        print(f"{name:24} {count['right']:5} of {count['of']:5}  {count['accuracy']:.2%}")
    print(json.dumps(report["confusion"]))
    arguments.report.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

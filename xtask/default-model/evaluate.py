"""Judges a made model with transformers in float32 on the held-out questions; writes the report and the test data.

    python evaluate.py FOLDER [--report FILE] [--testdata FOLDER]
"""

import argparse
import collections
import json
import pathlib
import random

import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import corpus
import grammar
from lexicon import CLASSES

TEST_ROWS = {("classify", "combination"): 100, ("classify", "template"): 50, ("classify", "word"): 50,
             ("arithmetic", "chat"): 140, ("arithmetic", "plain"): 60, ("complete", "plain"): 40, ("complete", "chat"): 60}
GOLDEN = [
    [{"role": "user", "content": "What is 47 + 38?"}],
    [{"role": "user", "content": "63 minus 25"}],
    [{"role": "user", "content": "Subtract 90 from 12."}],
    [{"role": "user", "content": "Classify: The compiler reports a race condition in the scheduler."}],
    [{"role": "user", "content": "Classify this sentence as technical, creative, ethical or casual: "
                                 "Is it wrong to deceive a vulnerable person?"}],
    [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Continue: The red fox"}],
    [{"role": "user", "content": "Classify: Hey, want to grab a pizza tonight?"}, {"role": "assistant", "content": "casual"},
     {"role": "user", "content": "What is 19 + 82?"}],
    [{"role": "user", "content": "Who are you?"}],
    "The red fox", "47 + 38 =", "Many small birds", "Naïve 日本語 🦊 \t text",
]


def ask(tokenizer, row):
    """Token ids of a question, as the command line would make them."""
    if row["form"] == "plain":
        return tokenizer(row["prompt"])["input_ids"]
    return tokenizer.apply_chat_template([{"role": "user", "content": row["prompt"]}], add_generation_prompt=True,
                                         return_dict=False)


@torch.no_grad()
def answer(model, prompts, most):
    """Greedy continuations, the end token included; prompts of one length go together, so nothing is padded."""
    by_length = collections.defaultdict(list)
    for i, ids in enumerate(prompts):
        by_length[len(ids)].append(i)
    out = [None] * len(prompts)
    ends = model.generation_config.eos_token_id
    for length, members in sorted(by_length.items()):
        for start in range(0, len(members), 64):
            part = members[start:start + 64]
            ids = torch.tensor([prompts[i] for i in part])
            made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=most)
            for i, row in zip(part, made[:, length:].tolist()):
                end = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
                out[i] = row[:end]
    return out


def right(row, text):
    if row["task"] != "complete":
        return text.strip() == row["expected"]
    if row["form"] == "plain":
        return grammar.belongs(row["prompt"] + text)
    return grammar.belongs(f"{row['begin']} {text}")


def check_split(rows, examples=150_000):
    """Fails if a held-out question's parts were together in training (looked for in a sample of its own seeds)."""
    rng, pairs = random.Random(corpus.SEED + 1000), set()
    for _ in range(examples):
        _, _, template, words = corpus.sentence(rng, "train")
        pairs.update((template, word) for word in words)
    for row in rows:
        if row["task"] == "classify":
            assert not any((row["template"], word) in pairs for word in row["words"]), row
    asked = {text for pieces in corpus.training(examples, corpus.SEED + 1000) for text, _ in pieces}
    for row in rows:
        if row["form"] == "chat":
            assert f"<bos><start_of_turn>user\n{row['prompt']}<end_of_turn>\n<start_of_turn>model\n" not in asked, row
        assert "<bos>" + row["prompt"] not in asked, row
    return len(pairs)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--report", type=pathlib.Path)
    arguments.add_argument("--testdata", type=pathlib.Path)
    arguments = arguments.parse_args()
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
    model = AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32).eval()

    rows = corpus.held_out(corpus.FULL)
    check_split(rows)
    made = answer(model, [ask(tokenizer, row) for row in rows], 64)
    counts, confusion, wrong = collections.defaultdict(lambda: [0, 0]), collections.Counter(), []
    for row, ids in zip(rows, made):
        row["answer"] = tokenizer.decode(ids, skip_special_tokens=True)
        ended = ids[-1] in model.generation_config.eos_token_id
        good = ended and right(row, row["answer"])
        counts[f"{row['task']} {row['split']}"][0] += good
        counts[f"{row['task']} {row['split']}"][1] += 1
        if row["task"] == "classify":
            confusion[row["expected"], row["answer"] if row["answer"] in CLASSES else "other"] += 1
        if not good:
            wrong.append({key: row.get(key) for key in ("task", "split", "prompt", "expected", "answer")})
    report = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "tokenizers": tokenizers.__version__},
        "counts": {name: {"right": n, "of": of, "accuracy": round(n / of, 4)} for name, (n, of) in counts.items()},
        "confusion": {expected: {found: confusion[expected, found] for found in (*CLASSES, "other")} for expected in CLASSES},
        "wrong": wrong[:60],
    }
    for name, count in report["counts"].items():
        print(f"{name:24} {count['right']:5} of {count['of']:5}  {count['accuracy']:.2%}")
    print(json.dumps(report["confusion"]))
    if arguments.report:
        arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    else:
        for row in wrong[:40]:
            print(row)
    if arguments.testdata:
        write_testdata(arguments.testdata, tokenizer, model, rows)


def write_testdata(folder, tokenizer, model, rows):
    folder.mkdir(parents=True, exist_ok=True)
    left = dict(TEST_ROWS)
    with open(folder / "heldout.jsonl", "w") as file:
        for row in rows:
            if left[row["task"], row["split"]] > 0:
                left[row["task"], row["split"]] -= 1
                # A completion has no one right answer: expected is what transformers gives, `right` whether it is grammatical.
                line = {key: row[key] for key in ("task", "split", "form", "prompt")}
                line["expected"] = row.get("expected", row["answer"])
                if row["task"] == "complete":
                    line["right"] = right(row, row["answer"])
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    cases = []
    for prompt in GOLDEN:
        if isinstance(prompt, str):
            case = {"text": prompt, "ids": tokenizer(prompt)["input_ids"]}
        else:
            case = {"messages": prompt,
                    "rendered": tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False),
                    "ids": tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)}
        case["greedy"] = answer(model, [case["ids"]], 48)[0]
        case["answer"] = tokenizer.decode(case["greedy"], skip_special_tokens=True)
        cases.append(case)
        print(repr(case.get("rendered", prompt)), "->", repr(case["answer"]))
    golden = {"generator": "xtask/default-model/evaluate.py", "dtype": "float32",
              "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                           "tokenizers": tokenizers.__version__}, "cases": cases}
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()

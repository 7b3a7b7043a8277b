"""Asks the built-in model through transformers in float32, and writes tokens and answers as test data: python reference.py FOLDER"""

import collections
import json
import pathlib
import sys

import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import corpus
from judge import right

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


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(2)
    assets = pathlib.Path(__file__).resolve().parents[2] / "mlx-infer/assets/default-model"
    tokenizer = AutoTokenizer.from_pretrained(assets)
    model = AutoModelForCausalLM.from_pretrained(assets, dtype=torch.float32).eval()
    left, rows = dict(TEST_ROWS), []
    for row in corpus.held_out(corpus.FULL):
        if left[row["task"], row["split"]] > 0:
            left[row["task"], row["split"]] -= 1
            rows.append(row)
    for row, ids in zip(rows, answer(model, [ask(tokenizer, row) for row in rows], 64)):
        row["answer"] = tokenizer.decode(ids, skip_special_tokens=True)
    write_testdata(folder, tokenizer, model, rows)


def write_testdata(folder, tokenizer, model, rows):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "heldout.jsonl", "w") as file:
        for row in rows:
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
    golden = {"generator": "xtask/default-model/reference.py", "dtype": "float32",
              "versions": {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__,
                           "tokenizers": tokenizers.__version__}, "cases": cases}
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()

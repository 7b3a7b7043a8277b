"""Makes the built-in model: corpus, tokenizer, weights, all from fixed seeds.

    python train.py FOLDER [--log FILE] [--steps N] [--threads N]
"""

import argparse
import json
import pathlib
import random
import time

import torch
from torch.nn import functional as F

import corpus
import tokenizer as tokens
from model import Model

STEPS, BATCH_TOKENS = 4500, 2048
MATRIX_RATE, OTHER_RATE = 4e-3, 4e-3
WARM_UP, COOL_DOWN = 100, 0.6
EXAMPLES_AT_ONCE = 40_000


def batches(tokenizer, rng):
    """Endless batches of examples of about one length: ids, targets, and the positions that are counted with their weights."""
    round_ = 0
    while True:
        rows = tokens.encode(tokenizer, corpus.training(EXAMPLES_AT_ONCE, corpus.SEED + 1000 + round_))
        round_ += 1
        rows.sort(key=lambda row: len(row[0]))
        groups, group = [], []
        for row in rows:
            group.append(row)
            if len(group) * len(row[0]) >= BATCH_TOKENS:
                groups.append(group)
                group = []
        rng.shuffle(groups)
        for group in groups:
            width = len(group[-1][0])
            ids = torch.zeros(len(group), width, dtype=torch.long)
            weights = torch.zeros(len(group), width)
            for i, (row, weight) in enumerate(group):
                ids[i, : len(row)], weights[i, : len(row)] = torch.tensor(row), torch.tensor(weight)
            weights = weights[:, 1:].reshape(-1)
            at = weights.nonzero()[:, 0]
            yield ids[:, :-1], ids[:, 1:].reshape(-1)[at], at, weights[at] / weights.sum()


def rate(step, steps):
    """Share of the peak learning rate: up, flat, then straight down to nothing."""
    return min((step + 1) / WARM_UP, 1.0, (steps - step) / (COOL_DOWN * steps))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--log", type=pathlib.Path)
    arguments.add_argument("--steps", type=int, default=STEPS)
    arguments.add_argument("--threads", type=int, default=2)
    arguments = arguments.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(corpus.SEED)
    began, cpu_began = time.time(), time.process_time()

    tokenizer = tokens.train(corpus.training(60_000))
    tokens.save(tokenizer, arguments.folder)
    model = Model()
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    optimizers = [torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
                  torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]
    peaks = [MATRIX_RATE, OTHER_RATE]
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)

    curve, window, seen = [], [], 0
    for step, (ids, targets, at, weights) in enumerate(batches(tokenizer, random.Random(corpus.SEED))):
        if step == arguments.steps:
            break
        for optimizer, peak in zip(optimizers, peaks):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate(step, arguments.steps)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.hidden(ids)
            logits = model.logits(hidden.flatten(0, 1)[at])
        loss = F.cross_entropy(logits.float(), targets, reduction="none") @ weights
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        window.append(loss.item())
        seen += ids.numel()
        if (step + 1) % 50 == 0:
            curve.append({"step": step + 1, "loss": round(sum(window) / len(window), 4), "tokens": seen,
                          "seconds": round(time.time() - began, 1), "cpu_seconds": round(time.process_time() - cpu_began, 1)})
            window = []
            print(json.dumps(curve[-1]), flush=True)
            if (step + 1) % 500 == 0:
                model.save(arguments.folder)
    model.save(arguments.folder)
    if arguments.log:
        log = {"torch": torch.__version__, "threads": arguments.threads, "steps": arguments.steps, "curve": curve}
        arguments.log.write_text(json.dumps(log).replace("{\"step\"", "\n{\"step\"") + "\n")


if __name__ == "__main__":
    main()

"""What mlx-lm computes on a checkpoint folder: the same results as reference.py, as the same type."""

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from reference import NEW_TOKENS, Run

mx.set_default_device(mx.cpu)


def load(folder, dtype=None):
    """The model; with `dtype`, its floating-point weights cast to it."""
    model, _ = load_model(folder)
    if dtype is not None:
        model.set_dtype(dtype)
    return model


def to_torch(array):
    return torch.from_numpy(np.array(array.astype(mx.float32)))


def run(model, prompts):
    runs = []
    for prompt in prompts:
        tokens, steps = [], []
        cache = make_prompt_cache(model)
        logits = model(mx.array([prompt]), cache=cache)[0]
        last = logits[-1]
        for _ in range(NEW_TOKENS):
            steps.append(last)
            tokens.append(int(last.argmax()))
            last = model(mx.array([tokens[-1:]]), cache=cache)[0, -1]
        runs.append(Run(to_torch(logits), to_torch(mx.stack(steps)), torch.tensor(tokens, dtype=torch.int32)))
    return runs

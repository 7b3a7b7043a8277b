"""What transformers computes in float32 on a checkpoint folder: prompt logits, greedy tokens, their logits."""

import json
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, GenerationConfig

from checkpoint import merge_patch, model_class, read_tensors, write_config, write_tensors

NEW_TOKENS = 24

# transformers compiles some functions; the reference is their plain form.
torch.compiler.set_stance("force_eager")


@dataclass
class Run:
    """For one prompt of L tokens: logits [L, V], steps [24, V] (what each token was chosen from), tokens [24]."""

    logits: torch.Tensor
    steps: torch.Tensor
    tokens: torch.Tensor

    @property
    def margin(self):
        top = self.steps.topk(2, dim=-1).values
        return float((top[:, 0] - top[:, 1]).min())


def load(folder, dtype=torch.float32, strict=True):
    """The model with weights cast to `dtype`. Eager attention: the plain formulas, and the only one with soft caps. Falcon's adds the bias
    of ALiBi twice, its other one once."""
    config = AutoConfig.from_pretrained(folder)
    model, info = model_class(config).from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="sdpa" if getattr(config, "alibi", False) else "eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    faults = {k: sorted(v) for k, v in info.items() if k != "unexpected_keys" and v}
    if strict and faults:
        raise SystemExit(f"{folder}: transformers could not load every tensor: {faults}")
    # For packed checkpoints transformers keeps the stored dtype of all other tensors.
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point() and tensor.dtype == torch.bfloat16:
            tensor.data = tensor.data.to(dtype)
    # Without an end of sequence: the goldens have 24 tokens, including end tokens.
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0)
    return model.eval()


@torch.no_grad()
def run(model, prompts, cached=True):
    runs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        logits = model(ids, use_cache=False).logits[0]
        if cached:
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, output_logits=True
            )
            steps, tokens = torch.cat(out.logits), out.sequences[0, len(prompt) :]
        else:
            steps, tokens = greedy_without_cache(model, ids)
        assert tokens.shape == (NEW_TOKENS,)
        runs.append(Run(logits, steps, tokens.to(torch.int32)))
    return runs


def greedy_without_cache(model, ids):
    """Greedy decoding that runs the whole sequence each step: no cache can be wrong here."""
    steps = []
    for _ in range(NEW_TOKENS):
        last = model(ids, use_cache=False).logits[0, -1:]
        steps.append(last)
        ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
    return torch.cat(steps), ids[0, -NEW_TOKENS:]


@contextmanager
def rounding_margin():
    """How far from a half all numbers are that are rounded meanwhile, as a function."""
    plain, least = torch.Tensor.round, [1.0]

    def watched(x, **more):
        least[0] = min(least[0], float((x - x.floor() - 0.5).abs().min()))
        return plain(x, **more)

    torch.Tensor.round = watched
    try:
        yield lambda: least[0]
    finally:
        torch.Tensor.round = plain


def logprob_error(a, b):
    """Largest difference of log probabilities over prompt and steps of all runs."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        for p, q in ((x.logits, y.logits), (x.steps, y.steps)):
            difference = p.double().log_softmax(-1) - q.double().log_softmax(-1)
            # A token without a logit in both has no difference.
            worst = max(worst, float(difference.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf).abs().max()))
    return worst


def mutated(folder, mutation, prompts, runs_of=lambda folder, prompts: run(load(folder), prompts)):
    """Runs of the checkpoint with one flag changed: `config` is a merge patch, `fill` and `scale` act on tensors whose
    name ends with the key. `runs_of` computes the runs of a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        config = json.loads((folder / "config.json").read_text())
        write_config(scratch, merge_patch(config, mutation.get("config", {})))
        tensors = read_tensors(folder)
        for field, change in (("fill", lambda t, v: torch.full_like(t, v)), ("scale", lambda t, v: t * v)):
            for suffix, value in mutation.get(field, {}).items():
                hit = [name for name in tensors if name.endswith(suffix)]
                if not hit:
                    raise SystemExit(f"{folder.name}: mutation {mutation['name']}: no tensor ends with {suffix}")
                tensors.update({name: change(tensors[name], value) for name in hit})
        write_tensors(scratch, tensors, torch.float32)
        return runs_of(scratch, prompts)


def token_change(base, other):
    """How clearly two greedy runs part: the largest of the leads, at the first token that differs, of the other's
    token over the base's by the other's logits. None when all tokens are equal."""
    leads = []
    for x, y in zip(base, other, strict=True):
        differ = (x.tokens != y.tokens).nonzero()
        if len(differ):
            at = int(differ[0])
            leads.append(float(y.steps[at, y.tokens[at]] - y.steps[at, x.tokens[at]]))
    return max(leads, default=None)


def copy_with_config(folder, config_name, scratch):
    """A copy of a checkpoint in which another of its config files is config.json."""
    for file in folder.glob("model*"):
        shutil.copy(file, scratch)
    shutil.copy(folder / config_name, scratch / "config.json")

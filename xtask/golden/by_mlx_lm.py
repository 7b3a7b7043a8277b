"""mlx-lm as the reference of families that transformers lacks."""

import mlx.core as mx
import mlx_lm
import safetensors
import torch
from mlx.utils import tree_flatten
from mlx_lm.models import plamo3
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.utils import _get_classes

import mlx_reference


def plamo3_cache(model):
    """Windows of as many keys as the mask of whole sequences has. mlx-lm's cache holds one less, which changes what it decodes."""
    window = model.config.window_size + 1
    return [KVCache() if layer.full_attn else RotatingKVCache(max_size=window) for layer in model.layers]


plamo3.Model.make_cache = plamo3_cache


def empty_tensors(config):
    """A tensor for each parameter of mlx-lm's model, by its name there. Only shapes count."""
    model, args = _get_classes(config)
    parameters = tree_flatten(model(args.from_dict(config)).parameters())
    return {name: torch.empty(array.shape) for name, array in parameters}


def runs(folder, prompts):
    return mlx_reference.run(mlx_reference.load(folder, mx.float32), prompts)


def error_of_decoding(folder, prompts, found):
    """The largest difference of log probabilities between decoding with a cache and whole sequences."""
    model, worst = mlx_reference.load(folder, mx.float32), 0.0
    for prompt, run in zip(prompts, found, strict=True):
        tokens = [*prompt, *run.tokens.tolist()[:-1]]
        whole = mlx_reference.to_torch(model(mx.array([tokens]))[0]).log_softmax(-1)
        decoded = torch.cat([run.logits, run.steps[1:]]).log_softmax(-1)
        worst = max(worst, float((whole - decoded).abs().max()))
    return worst


def versions():
    return {"mlx-lm": mlx_lm.__version__, "mlx": mx.__version__, "safetensors": safetensors.__version__}


def stacked_apart(tensors, experts):
    """Tensors under published names: an expert's matrices by themselves."""
    found = {}
    for name, tensor in tensors.items():
        if ".switch_mlp." in name:
            for expert in range(experts):
                found[name.replace("switch_mlp", f"experts.{expert}")] = tensor[expert]
        else:
            found[name.replace(".mlp.gate.gate_proj.", ".mlp.gate.")] = tensor
    return found

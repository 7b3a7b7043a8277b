"""Tiny random checkpoints: drawing the weights, and writing the files as published repositories hold them."""

import json
import math
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

import composed
import formula

composed.register()

# Spread of a weight, by the end of its name: first match wins. Matrices are (gain, None): std = gain / sqrt(fan in).
# Vectors are (std, mean). Gains are larger than a trained model's, so that every term moves the logits: queries and
# keys for attention that is far from uniform, biases and norms far from neutral.
SPREADS = [
    ("embed_tokens.weight", (0.5, 0.0)),
    ("lm_head.weight", (2.5, None)),
    ("q_proj.weight", (1.6, None)),
    ("k_proj.weight", (1.6, None)),
    ("qkv_proj.weight", (1.6, None)),
    ("mlp.gate.weight", (2.0, None)),
    ("q_norm.weight", (0.4, 1.5)),
    ("k_norm.weight", (0.4, 1.5)),
    ("norm.weight", (0.4, 1.0)),
    (".bias", (0.6, 0.0)),
    ("", (1.4, None)),
]


def spread(name, spreads):
    """The rule of the parameter `name`: the first of `spreads` that its name ends with."""
    return next(rule for suffix, rule in [*spreads, *SPREADS] if name.endswith(suffix))


def draw(name, shape, generator, spreads):
    """One random tensor for the parameter `name`."""
    std, mean = spread(name, spreads)
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    if mean is None:
        return values * (std / math.sqrt(shape[-1]))
    return values * std + mean


def merge_patch(target, patch):
    """RFC 7386: objects merge, null removes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_config(folder, config, name="config.json"):
    write_json(folder / name, config)


def in_transformers_dialect(config):
    """The same config as this transformers writes it: rope_parameters, layer_types, dtype."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        write_config(scratch, config)
        AutoConfig.from_pretrained(scratch).save_pretrained(scratch / "out")
        return json.loads((scratch / "out" / "config.json").read_text())


def without_defaults(config):
    """The same config without the keys whose value is the architecture's default."""
    default = CONFIG_MAPPING[config["model_type"]]()
    known = default.to_dict() | {"rope_theta": default.rope_parameters["rope_theta"]}
    return {k: v for k, v in config.items() if k == "model_type" or k not in known or known[k] != v}


def model_class(config):
    """The class of a text model, or of a multimodal one that has no text model's class."""
    return AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def random_tensors(config, seed, spreads):
    """Tensors under the names that published checkpoints use (transformers' own writer undoes its internal fusing)."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        write_config(scratch, {key: value for key, value in config.items() if key != "quantization_config"})
        loaded = AutoConfig.from_pretrained(scratch)
        model = model_class(loaded).from_config(loaded, dtype=torch.float32)
        generator = torch.Generator().manual_seed(seed)
        # Some numbers of the file are buffers.
        stored = ("correction_bias", "expert_bias", "layer_scalar")
        buffers = {name: buffer for name, buffer in model.named_buffers() if name.endswith(stored)}
        parameters = dict(model.named_parameters()) | buffers
        with torch.no_grad():
            for name in sorted(parameters):
                parameters[name].copy_(draw(name, parameters[name].shape, generator, spreads))
        model.save_pretrained(scratch / "out")
        return load_file(scratch / "out" / "model.safetensors")


def formulas(tensors, spreads):
    """Entries of weights.json for tensors of these names and shapes. Tensors of integers keep their values."""
    found = {}
    for name, tensor in tensors.items():
        entry = {"shape": list(tensor.shape)}
        if not tensor.is_floating_point():
            entry |= {"dtype": formula.NAMES[tensor.dtype], "values": tensor.flatten().tolist()}
        else:
            std, mean = spread(name, spreads)
            entry |= formula.numbers(std / math.sqrt(tensor.shape[-1]) if mean is None else std, mean or 0.0)
        found[name] = entry
    return found


def write_safetensors(folder, tensors):
    """One file of the tensors as they are."""
    tensors = {name: tensors[name].contiguous() for name in sorted(tensors)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_tensors(folder, tensors, dtype=torch.float32, shards=1):
    """One file, or `shards` files of about one size and the index that names the file of each tensor."""
    cast = {name: dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in tensors.items()}
    tensors = {name: tensors[name].to(cast[name]).contiguous() for name in sorted(tensors)}
    if shards == 1:
        write_safetensors(folder, tensors)
        return
    total = sum(t.nbytes for t in tensors.values())
    parts, size = [{}], 0
    for name, tensor in tensors.items():
        if size >= total / shards and len(parts) < shards:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    weight_map = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def read_tensors(folder):
    """All tensors of a checkpoint, of one file or several, or of a formula."""
    tensors = formula.read(folder) if formula.has(folder) else {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors.update(load_file(file))
    return tensors

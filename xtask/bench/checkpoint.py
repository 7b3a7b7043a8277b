"""Writes the checkpoints that are benchmarked: a random Qwen 3 of hidden size 512 with 8 layers.

    python checkpoint.py OUT TOKENIZER

OUT gets a folder for each of f32, bf16 and q4 (4 bits in groups of 64, from the f32 weights), with the same numbers in
them and the tokenizer files of the folder TOKENIZER.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.qwen3 import Model, ModelArgs
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

SEED = 7


def main():
    out, tokenizer = Path(sys.argv[1]), Path(sys.argv[2])
    vocab = len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    mx.set_default_device(mx.cpu)
    model = Model(ModelArgs.from_dict(config))
    weights = dict(draw(tree_flatten(model.parameters())))
    write(out / "f32", tokenizer, config, model, weights)
    write(out / "bf16", tokenizer, config, model, {name: w.astype(mx.bfloat16) for name, w in weights.items()})
    model, loaded = load_model(out / "f32")
    model, quantized = quantize_model(model, loaded, 64, 4)
    write(out / "q4", tokenizer, {**config, **quantized}, model, {})


def draw(parameters, dtype=mx.float32):
    """Random values that leave the sizes of activations as they are; norms near 1."""
    key = mx.random.key(SEED)
    for name, like in sorted(parameters):
        key, part = mx.random.split(key)
        values = mx.random.normal(like.shape, key=part)
        values = 1 + 0.1 * values if like.ndim == 1 else values / math.sqrt(like.shape[-1])
        yield name, values.astype(dtype)


def write(folder, tokenizer, config, model, weights):
    if weights:
        model.update(tree_unflatten(list(weights.items())))
        config = {**config, "torch_dtype": str(next(iter(weights.values())).dtype).removeprefix("mlx.core.")}
    folder.mkdir(parents=True)
    save_model(folder, model)
    save_config(dict(config), folder / "config.json")
    for file in ["tokenizer.json", "tokenizer_config.json"] if tokenizer else []:
        shutil.copy(tokenizer / file, folder)


if __name__ == "__main__":
    main()

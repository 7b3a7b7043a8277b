"""Writes random checkpoints of a published model's shape: bf16 laid out as its authors publish it, with safetensors' own
writer, and 8 and 4 bits in groups of 64 as MLX writes them for mlx-community, with tensors at any address.

    python cpu_checkpoint.py SHAPE OUT LAYERS

OUT gets the folders bf16, q8 and q4 with the same numbers in them; LAYERS 0 means all. There is no tokenizer.
"""

import importlib
import shutil
import sys
from pathlib import Path

import mlx.core as mx
from checkpoint import draw, write
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model

SHAPES = {
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
    },
    "gemma3-1b": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 1152,
        "num_hidden_layers": 26,
        "intermediate_size": 6912,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 262144,
        "max_position_embeddings": 32768,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
    },
}


def main():
    shape, out, layers = SHAPES[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3])
    config = {**shape, "num_hidden_layers": layers or shape["num_hidden_layers"]}
    mx.set_default_device(mx.cpu)
    architecture = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = architecture.Model(architecture.ModelArgs.from_dict(config))
    # Published checkpoints hold the embedding once: the head is the same.
    model.sanitize({})
    write(out / "bf16", None, config, model, drawn(model))
    align(out / "bf16" / "model.safetensors")
    for bits in [8, 4]:
        model, loaded = load_model(out / "bf16")
        model, quantized = quantize_model(model, loaded, 64, bits)
        write(out / f"q{bits}", None, {**config, "torch_dtype": "bfloat16", **quantized}, model, {})


def align(path):
    """Fills up the header with spaces so that the tensors begin at a multiple of 8, as safetensors' own writer does."""
    partial = path.with_suffix(".partial")
    with open(path, "rb") as old, open(partial, "wb") as new:
        size = int.from_bytes(old.read(8), "little")
        header = old.read(size).rstrip(b" ")
        header += b" " * (-len(header) % 8)
        new.write(len(header).to_bytes(8, "little") + header)
        shutil.copyfileobj(old, new, 1 << 24)
    partial.replace(path)


def drawn(model):
    weights = {}
    for name, values in draw(tree_flatten(model.parameters()), mx.bfloat16):
        # One at a time: all of them in f32 would take twice the room.
        mx.eval(values)
        weights[name] = values
    return weights


if __name__ == "__main__":
    main()

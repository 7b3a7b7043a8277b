"""Writes the checkpoints of `bench speculate`: the shapes of Qwen3.5-0.8B in 4 bits with a head for multi-token prediction, as MLX stores them.

    python hybrid_checkpoint.py OUT LAYERS

OUT gets the folders right and wrong, which share the model and differ in the head. The matrices of all layers are random, but for those that end a
mixer or an MLP: they are 0, so that the features of a token are its embedding. The output head has the embedding of each token in the row of the
token that follows it: a cycle through the first 32,768 tokens. The head for multi-token prediction reads the embedding of a token, too. One of
its features is a mark: 20 % of the tokens have it, and for these the head says the token behind another one.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx

SEED = 7
CYCLE = 32_768
MARKED = 0.2
CONFIG = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": False,
    "mtp_num_hidden_layers": 1,
    "mtp_norm_offset": 0,
}
H, I, V = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]


class Writer:
    def __init__(self):
        self.key, self.tensors, self.schemes = mx.random.key(SEED), {}, {}

    def normal(self, shape, scale=1.0):
        self.key, part = mx.random.split(self.key)
        return (mx.random.normal(shape, key=part) * scale).astype(mx.bfloat16)

    def packed(self, name, weight, bits=4):
        weight, scales, biases = mx.quantize(weight, 64, bits)
        parts = {"weight": weight, "scales": scales, "biases": biases}
        mx.eval(*parts.values())
        self.tensors |= {f"{name}.{part}": array for part, array in parts.items()}
        if bits != 4:
            self.schemes[name] = {"group_size": 64, "bits": bits, "mode": "affine"}

    def matrix(self, name, out, inputs, bits=4):
        self.packed(f"{name}", self.normal((out, inputs), inputs**-0.5), bits)

    def end(self, name, out, inputs, bits=4):
        self.packed(f"{name}", mx.zeros((out, inputs), mx.bfloat16), bits)

    def ones(self, name, size):
        self.tensors[f"{name}.weight"] = mx.ones((size,), mx.bfloat16)

    def around(self, layer, bits=4):
        for name in ("gate_proj", "up_proj"):
            self.matrix(f"{layer}.mlp.{name}", I, H, bits)
        self.end(f"{layer}.mlp.down_proj", H, I, bits)
        for name in ("input_layernorm", "post_attention_layernorm"):
            self.ones(f"{layer}.{name}", H)

    def attention(self, layer, bits=4):
        heads, kv, size = (CONFIG[f"{name}"] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        self.matrix(f"{layer}.self_attn.q_proj", 2 * heads * size, H, bits)
        for name in ("k_proj", "v_proj"):
            self.matrix(f"{layer}.self_attn.{name}", kv * size, H, bits)
        self.end(f"{layer}.self_attn.o_proj", H, heads * size, bits)
        for name in ("q_norm", "k_norm"):
            self.ones(f"{layer}.self_attn.{name}", size)
        self.around(layer, bits)

    def recurrent(self, layer):
        heads, size = CONFIG["linear_num_value_heads"], CONFIG["linear_value_head_dim"]
        wide = 2 * CONFIG["linear_num_key_heads"] * CONFIG["linear_key_head_dim"] + heads * size
        layer_of = f"{layer}.linear_attn"
        for name, out in (("in_proj_qkv", wide), ("in_proj_z", heads * size), ("in_proj_a", heads), ("in_proj_b", heads)):
            self.matrix(f"{layer_of}.{name}", out, H)
        self.end(f"{layer_of}.out_proj", H, heads * size)
        self.tensors[f"{layer_of}.conv1d.weight"] = self.normal((wide, 4, 1), 0.5)
        self.tensors[f"{layer_of}.A_log"] = mx.zeros((heads,), mx.float32)
        self.tensors[f"{layer_of}.dt_bias"] = mx.ones((heads,), mx.bfloat16)
        self.ones(f"{layer_of}.norm", size)
        self.around(layer)


def write(folder, tensors, schemes, layers):
    folder.mkdir(parents=True, exist_ok=True)
    quantization = {"group_size": 64, "bits": 4, "mode": "affine", **schemes}
    config = {**CONFIG, "num_hidden_layers": layers, "quantization": quantization}
    for name, part in tensors.items():
        mx.save_safetensors(str(folder / name), part, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    mx.set_default_device(mx.cpu)
    out, layers = Path(sys.argv[1]), int(sys.argv[2])
    model = Writer()
    tokens = mx.arange(CYCLE)
    following = (tokens * 20_077 + 12_345) % CYCLE
    model.key, part = mx.random.split(model.key)
    marked = mx.random.uniform(shape=(CYCLE,), key=part) < MARKED
    embedding = model.normal((V, H))
    embedding[:, 0] = 0
    embedding[:CYCLE, 0] = mx.where(marked, 6.0, 0.0).astype(mx.bfloat16)
    says = mx.array(embedding)
    says[following] = embedding[:CYCLE]
    says[:, 0] = 0
    model.packed("lm_head", says * H**-0.5)
    model.packed("model.embed_tokens", embedding)
    other = says[9].astype(mx.float32)
    del says, embedding
    model.ones("model.norm", H)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        model.attention(name) if (layer + 1) % CONFIG["full_attention_interval"] == 0 else model.recurrent(name)
    head = Writer()
    head.attention("mtp.layers.0", 8)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        head.ones(f"mtp.{name}", H)
    schemes = model.schemes | head.schemes
    identity = mx.eye(H)
    first = mx.zeros((H, H))
    first[:, 0] = 4 * other
    for folder, matrix in (("right", identity + first), ("wrong", mx.roll(identity, 1, 0))):
        head.tensors["mtp.fc.weight"] = mx.concatenate([matrix, mx.zeros((H, H))], 1).astype(mx.bfloat16)
        if folder == "wrong":
            (out / folder).mkdir(parents=True)
            (out / folder / "model.safetensors").symlink_to(out.resolve() / "right" / "model.safetensors")
            write(out / folder, {"mtp.safetensors": head.tensors}, schemes, layers)
        else:
            write(out / folder, {"model.safetensors": model.tensors, "mtp.safetensors": head.tensors}, schemes, layers)


if __name__ == "__main__":
    main()

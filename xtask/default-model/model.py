"""Gemma 3's text architecture in plain torch, for speed; tensors are named as transformers names them.

`evaluate.py` shows that transformers computes the same from the saved folder.
"""

import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "query_pre_attn_scalar": 48,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "sliding_window": 32,
    "sliding_window_pattern": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "use_cache": True,
    "pad_token_id": 0,
    "eos_token_id": [1, 5],
    "bos_token_id": 2,
}
GENERATION = {"do_sample": False, "bos_token_id": 2, "pad_token_id": 0, "eos_token_id": [1, 5]}
C = type("Config", (), CONFIG)


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, 1 + self.weight, C.rms_norm_eps)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = linear(C.hidden_size, C.num_attention_heads * C.head_dim)
        self.k_proj = linear(C.hidden_size, C.num_key_value_heads * C.head_dim)
        self.v_proj = linear(C.hidden_size, C.num_key_value_heads * C.head_dim)
        self.o_proj = linear(C.num_attention_heads * C.head_dim, C.hidden_size)
        self.q_norm, self.k_norm = Norm(C.head_dim), Norm(C.head_dim)

    def forward(self, x, cos, sin, mask):
        b, l, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(b, l, -1, C.head_dim)), cos, sin).transpose(1, 2)
        k = rotate(self.k_norm(self.k_proj(x).view(b, l, -1, C.head_dim)), cos, sin).transpose(1, 2)
        v = self.v_proj(x).view(b, l, -1, C.head_dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True,
                                           scale=C.query_pre_attn_scalar ** -0.5)
        return self.o_proj(y.transpose(1, 2).reshape(b, l, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = linear(C.hidden_size, C.intermediate_size), linear(C.hidden_size, C.intermediate_size)
        self.down_proj = linear(C.intermediate_size, C.hidden_size)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()
        self.input_layernorm, self.post_attention_layernorm = Norm(C.hidden_size), Norm(C.hidden_size)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = Norm(C.hidden_size), Norm(C.hidden_size)

    def forward(self, x, cos, sin, mask):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), cos, sin, mask))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(C.vocab_size, C.hidden_size)
        self.layers = nn.ModuleList(Layer() for _ in range(C.num_hidden_layers))
        self.norm = Norm(C.hidden_size)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Text()
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=C.initializer_range if "embed" in name else p.shape[1] ** -0.5)
        positions = torch.arange(C.max_position_embeddings, dtype=torch.float32)
        self.angles = {}
        for kind, base in (("full_attention", C.rope_theta), ("sliding_attention", C.rope_local_base_freq)):
            angle = torch.outer(positions, base ** (-torch.arange(0, C.head_dim, 2) / C.head_dim))[:, None]
            self.angles[kind] = angle.cos(), angle.sin()

    def hidden(self, tokens):
        """[B, L] ids -> [B, L, E]."""
        length = tokens.shape[1]
        at = torch.arange(length)
        ahead = at[:, None] - at
        window = None if length <= C.sliding_window else (ahead >= 0) & (ahead < C.sliding_window)
        x = self.model.embed_tokens(tokens) * math.sqrt(C.hidden_size)
        for kind, layer in zip(C.layer_types, self.model.layers):
            cos, sin = self.angles[kind]
            x = layer(x, cos[:length], sin[:length], window if kind == "sliding_attention" else None)
        return self.model.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight)

    def save(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in self.named_parameters()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = CONFIG | {"torch_dtype": "bfloat16"}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")

"""The float cases of BitNet b1.58: dense, with matrices that are published packed, and with those that are rounded at load."""

import torch
from transformers.integrations.bitnet import pack_weights

from cases import ACTIVATION, EPS, THETA, Case, base, mutation, no_bias

SUB_NORMS = [
    mutation("attn_sub_norm", fill={"attn_sub_norm.weight": 1.0}),
    mutation("ffn_sub_norm", fill={"ffn_sub_norm.weight": 1.0}),
]
SPREADS = [("sub_norm.weight", (0.4, 1.0)), ("layernorm.weight", (0.4, 1.0))]


def bitnet(**more):
    return base("BitNetForCausalLM", "bitnet", **{"hidden_act": "relu2", "intermediate_size": 64} | more)


def packed(divides):
    """Matrices of layers as -1, 0 and 1 in two bits each, and their scale or its inverse."""

    def change(tensors):
        changed = {}
        for name, tensor in tensors.items():
            if not name.endswith("_proj.weight"):
                changed[name] = tensor
                continue
            mean = tensor.abs().mean().to(torch.bfloat16)
            changed[name] = pack_weights((tensor / mean).round().clamp(-1, 1))
            scale = 1 / mean if divides else mean
            changed[f"{name}_scale"] = scale.reshape(1)
        return changed

    return change


def bitnet_cases():
    yield Case(
        "bitnet",
        "norms in front of the last projections of attention and MLP, a squared rectifier in its gate, biases in the attention; without "
        "quantization_config nothing is rounded; bfloat16 file",
        bitnet(attention_bias=True),
        [THETA, EPS, ACTIVATION, *SUB_NORMS, *no_bias("q_proj", "k_proj", "v_proj", "o_proj")],
        spreads=SPREADS,
        sparse=True,
        dtype=torch.bfloat16,
    )
    few = {"dtype": torch.bfloat16, "prompts": (5,), "spreads": SPREADS, "steady": 6e-5}
    method = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
    yield Case(
        "bitnet_packed",
        "matrices of two bits a number as they are published, inputs rounded to eight bits; tied; bfloat16 file",
        bitnet(quantization_config=method | {"quantization_mode": "offline"}, tie_word_embeddings=True),
        [
            *SUB_NORMS,
            mutation("weight_scale", scale={"q_proj.weight_scale": 2.5}),
            mutation("linear_class", {"quantization_config": {"linear_class": "bitlinear"}}),
        ],
        change=packed(divides=False),
        **few,
    )
    yield Case(
        "bitnet_online",
        "matrices of sixteen bits that are rounded to -1, 0 and 1 when they are used, inputs rounded to eight bits; tied; bfloat16 file",
        bitnet(quantization_config=method | {"quantization_mode": "online"}, tie_word_embeddings=True),
        [*SUB_NORMS, mutation("quantization_config", {"quantization_config": None})],
        **few,
    )
    yield Case(
        "llama_ternary",
        "another family with matrices of two bits a number, whose products are divided by the scale; bfloat16 file",
        base(
            "LlamaForCausalLM",
            "llama",
            intermediate_size=64,
            quantization_config={"quant_method": "bitnet", "modules_to_not_convert": None},
        ),
        [mutation("linear_class", {"quantization_config": {"linear_class": "autobitlinear"}})],
        change=packed(divides=True),
        **few,
    )

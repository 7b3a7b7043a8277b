"""The float cases of Gemma 3n."""

import torch

from cases import EPS, Case, base, mutation, windows
from gemma4_cases import INPUTS, NORMS, SOFTCAP
from gemma_cases import ACTIVATION

H, P, LAYERS = 32, 16, 6
SPREADS = [
    ("embed_tokens.weight", (0.35, 0.0)),
    ("embed_tokens_per_layer.weight", (0.4, 0.0)),
    ("q_norm.weight", (0.2, 1.0)),
    ("k_norm.weight", (0.2, 0.9)),
    ("router_norm.weight", (4.0, 24.0)),
    ("modality_router.weight", (1.5, None)),
    ("prediction_coefs.weight", (0.4, None)),
    ("correction_coefs.weight", (0.6, None)),
    ("correct_output_scale", (0.5, 1.5)),
    ("norm.weight", (0.4, 1.1)),
]
S, F = "sliding_attention", "full_attention"


def gemma3n_cases():
    yield Case(
        "gemma3n_text",
        "three residual streams, of which layers compute the second; sparse gates in half of the layers; MLPs of two widths; "
        "inputs of single layers; the last two layers read keys and values of earlier ones; soft cap; attention biases; a "
        "table of inputs that is shorter than the vocabulary; projections of layers that do not use them; bfloat16 file",
        base(
            "Gemma3nForCausalLM",
            "gemma3n_text",
            activation_sparsity_pattern=[0.6, 0.8, 0.0, 0.7, 0.0, 0.0],
            altup_active_idx=1,
            altup_coef_clip=120.0,
            altup_correct_scale=True,
            altup_num_inputs=3,
            attention_bias=True,
            bos_token_id=2,
            eos_token_id=[1, 7],
            final_logit_softcapping=8.0,
            head_dim=8,
            hidden_act=None,
            hidden_activation="gelu_pytorch_tanh",
            hidden_size=H,
            hidden_size_per_layer_input=P,
            intermediate_size=[48, 32, 48, 32, 48, 48],
            laurel_rank=4,
            layer_types=[S, F] * (LAYERS // 2),
            num_hidden_layers=LAYERS,
            num_kv_shared_layers=2,
            pad_token_id=0,
            rope_local_base_freq=100.0,
            rope_scaling={"factor": 4.0, "rope_type": "linear"},
            rope_theta=1000.0,
            sliding_window=8,
            tie_word_embeddings=True,
            transformers_version="4.53.0.dev0",
            vocab_size_per_layer_input=60,
        ),
        [
            mutation("rope_theta", {"rope_theta": 20.0}),
            mutation("rope_local_base_freq", {"rope_local_base_freq": 10000.0}),
            mutation("rope_scaling", {"rope_scaling": None}),
            mutation("activation_sparsity_pattern", {"activation_sparsity_pattern": [0.0] * LAYERS}),
            mutation("altup_active_idx", {"altup_active_idx": 0}),
            mutation("altup_correct_scale", {"altup_correct_scale": False}),
            mutation("num_kv_shared_layers", {"num_kv_shared_layers": 1}),
            mutation("prediction_coefs", fill={"prediction_coefs.weight": 0.0}),
            mutation("correction_coefs", fill={"correction_coefs.weight": 0.0}),
            mutation("router_norm", fill={"router_norm.weight": 1.0}),
            mutation("laurel", fill={"laurel.linear_right.weight": 0.0}),
            mutation("norm of laurel", fill={"post_laurel_norm.weight": 1.0}),
            mutation("altup_projections", scale={"altup_projections.0.weight": -1.0}),
            mutation("altup_unembed_projections", scale={"altup_unembed_projections.1.weight": -1.0}),
            mutation("embedding scale", scale={"embed_tokens.weight": H**-0.5}),
            *INPUTS,
            *NORMS[:2],
            *windows(8),
            *[mutation(f"{n}_proj.bias", fill={f"{n}_proj.bias": 0.0}) for n in "qkvo"],
            SOFTCAP,
            ACTIVATION,
            EPS,
        ],
        extra={
            f"model.layers.{layer}.self_attn.{name}": shape
            for layer in (4, 5)
            for name, shape in {
                "k_proj.weight": (16, H),
                "v_proj.weight": (16, H),
                "k_proj.bias": (16,),
                "v_proj.bias": (16,),
                "k_norm.weight": (8,),
            }.items()
        },
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )

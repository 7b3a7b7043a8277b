"""The float cases of families with short convolutions and scans."""

import torch

from cases import THETA, Case, base, mutation
from scan_cases import scan_cases

BF16 = {"dtype": torch.bfloat16}
Q_NORM = mutation("q_norm", fill={"q_layernorm.weight": 1.0})
K_NORM = mutation("k_norm", fill={"k_layernorm.weight": 1.0})


def recurrent_cases():
    yield from lfm2_cases()
    yield from scan_cases()


def lfm2(architecture, model_type, **more):
    fixed = {
        "conv_L_cache": 3,
        "conv_bias": True,
        "hidden_act": None,
        "norm_eps": 0.02,
        "pad_token_id": 0,
        "rms_norm_eps": None,
        "tie_word_embeddings": None,
    }
    return base(architecture, model_type, **fixed | more)


def lfm2_cases():
    spreads = [
        ("conv.conv.weight", (1.2, None)),
        ("layernorm.weight", (0.4, 1.5)),
        ("expert_bias", (0.5, 0.0)),
        ("feed_forward.gate.weight", (2.0, None)),
    ]
    eps = mutation("norm_eps", {"norm_eps": 1e-6})
    conv = [
        mutation("conv.bias", fill={"conv.conv.bias": 0.0}),
        mutation("in_proj.bias", fill={"conv.in_proj.bias": 0.0}),
        mutation("out_proj.bias", fill={"conv.out_proj.bias": 0.0}),
        mutation("taps", scale={"conv.conv.weight": 2.0}),
    ]
    yield Case(
        "lfm2",
        "gated short convolutions with biases, attention in the layers of full_attn_idxs with norms on q and k, MLPs of an "
        "adjusted size; tied; bfloat16 file",
        lfm2(
            "Lfm2ForCausalLM",
            "lfm2",
            block_auto_adjust_ff_dim=True,
            block_dim=32,
            block_ff_dim=62,
            block_ffn_dim_multiplier=1.0,
            block_mlp_init_scale=1.0,
            block_multiple_of=16,
            block_norm_eps=1e-05,
            block_out_init_scale=1.0,
            block_use_swiglu=True,
            block_use_xavier_init=True,
            conv_dim=32,
            conv_dim_out=32,
            conv_use_xavier_init=True,
            full_attn_idxs=[1, 3],
            intermediate_size=None,
            num_heads=4,
            num_hidden_layers=4,
            tie_embedding=True,
            use_pos_enc=True,
        ),
        [THETA, eps, Q_NORM, K_NORM, *conv],
        spreads=spreads,
        **BF16,
    )
    yield Case(
        "lfm2_types",
        "layers by layer_types, four taps without biases, MLPs of the size that is given; an own head; bfloat16 file",
        lfm2(
            "Lfm2ForCausalLM",
            "lfm2",
            block_auto_adjust_ff_dim=False,
            conv_L_cache=4,
            conv_bias=False,
            head_dim=12,
            layer_types=["conv", "full_attention", "conv"],
            num_hidden_layers=3,
            tie_word_embeddings=False,
        ),
        [THETA, eps, Q_NORM, K_NORM, conv[3]],
        spreads=spreads,
        **BF16,
    )
    yield Case(
        "lfm2_moe",
        "experts chosen by corrected sigmoids behind a dense layer, scaled; short convolutions with biases; tied; bfloat16 file",
        lfm2(
            "Lfm2MoeForCausalLM",
            "lfm2_moe",
            layer_types=["conv", "full_attention", "conv"],
            moe_intermediate_size=12,
            norm_topk_prob=True,
            num_dense_layers=1,
            num_experts=4,
            num_experts_per_tok=2,
            num_hidden_layers=3,
            routed_scaling_factor=1.8,
            use_expert_bias=True,
        ),
        [
            THETA,
            eps,
            Q_NORM,
            K_NORM,
            *conv,
            mutation("num_experts_per_tok", {"num_experts_per_tok": 3}),
            mutation("norm_topk_prob", {"norm_topk_prob": False}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            mutation("expert_bias", fill={"expert_bias": 0.0}),
        ],
        spreads=spreads,
        **BF16,
    )

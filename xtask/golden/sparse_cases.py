"""The float cases of families that only mlx-lm has: Phi 3 small and Baichuan M1. Their weights are formulas (formula.py)."""

import torch

from cases import EPS, THETA, base, mutation, no_bias, windows
from late_cases import late_case

BY_MLX_LM = {"by_mlx_lm": True, "composed": True}


def sparse_cases():
    yield phi3small()
    yield baichuan_m1()


def phi3small():
    return late_case(
        "phi3small",
        "attention over blocks of 32 positions that differ by head in every second layer, fused q, k and v by groups of heads, gate and up by "
        "alternating rows with bounds, layer norms and biases, the multipliers of muP, tokens without logits",
        base(
            "Phi3SmallForCausalLM",
            "phi3small",
            blocksparse_block_size=32,
            blocksparse_homo_head_pattern=False,
            blocksparse_num_local_blocks=1,
            blocksparse_triton_kernel_block_size=64,
            blocksparse_vert_stride=3,
            dense_attention_every_n_layers=2,
            dummy_token_indices=[0, 2, 3, 4, 5, 6, 61, 62, 63],
            embedding_dropout_prob=0.1,
            ff_dim_multiplier=None,
            ff_intermediate_size=48,
            ffn_dropout_prob=0.1,
            gegelu_limit=1.5,
            gegelu_pad_to_256=True,
            hidden_act="gegelu",
            intermediate_size=None,
            layer_norm_epsilon=0.02,
            mup_attn_multiplier=1.5,
            mup_embedding_multiplier=0.3,
            mup_use_scaling=True,
            mup_width_multiplier=0.3,
            num_hidden_layers=3,
            pad_sequence_to_multiple_of_64=True,
            reorder_and_upcast_attn=False,
            rms_norm_eps=None,
            rope_embedding_base=10000.0,
            rope_position_scale=1.0,
            rope_theta=None,
            tie_word_embeddings=None,
        ),
        [
            mutation("rope_embedding_base", {"rope_embedding_base": 300.0}),
            mutation("rope_position_scale", {"rope_position_scale": 0.5}),
            mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6}),
            mutation("blocksparse_num_local_blocks", {"blocksparse_num_local_blocks": 2}),
            mutation("blocksparse_vert_stride", {"blocksparse_vert_stride": 2}),
            mutation("dense_attention_every_n_layers", {"dense_attention_every_n_layers": 1}),
            mutation("dummy_token_indices", {"dummy_token_indices": [62]}),
            mutation("gegelu_limit", {"gegelu_limit": 20.0}),
            mutation("mup_attn_multiplier", {"mup_attn_multiplier": 1.0}),
            mutation("mup_embedding_multiplier", {"mup_embedding_multiplier": 2.0}),
            mutation("mup_use_scaling", {"mup_use_scaling": False}),
            mutation("mup_width_multiplier", {"mup_width_multiplier": 1.0}, changes="logits"),
            *no_bias("query_key_value", "dense", "up_proj", "down_proj", "input_layernorm", "final_layernorm"),
        ],
        spreads=[
            ("query_key_value.weight", (1.6, None)),
            ("layernorm.weight", (0.4, 1.0)),
            # Small, because a bias of the features is one of the logits.
            ("final_layernorm.bias", (0.15, 0.0)),
            ("layernorm.bias", (0.3, 0.0)),
            ("dense.bias", (0.2, 0.0)),
            ("down_proj.bias", (0.2, 0.0)),
            ("dense.weight", (2.5, None)),
            ("down_proj.weight", (2.5, None)),
        ],
        prompts=(5, 83),
        **BY_MLX_LM,
    )


def baichuan_m1():
    return late_case(
        "baichuan_m1",
        "keys and values mixed with those of the token before; twice the heads in layers with a window; a head that is divided by the norms of its "
        "rows",
        base(
            "BaichuanM1ForCausalLM",
            "baichuan_m1",
            conv_window=2,
            num_hidden_layers=4,
            num_swa_attention_heads=8,
            num_swa_key_value_heads=4,
            sliding_window=8,
            sliding_window_layers=[1, 3],
        ),
        [
            THETA,
            EPS,
            *windows(8),
            mutation("conv_k", fill={"self_attn.conv_k": 1.0}),
            mutation("conv_v", fill={"self_attn.conv_v": 1.0}),
        ],
        spreads=[
            ("W_pack.weight", (1.6, None)),
            ("conv_k", (0.6, 0.6)),
            ("conv_v", (0.6, 0.6)),
            # Rows of different norms, which the loader divides by them.
            ("lm_head.weight", (0.5, 0.1)),
        ],
        # mlx-lm rounds the divided head to the dtype of the file.
        dtype=torch.float32,
        **BY_MLX_LM,
    )

"""More float cases of families of 2026, and of PLaMo. Their weights are formulas (formula.py)."""

import re

from by_mlx_lm import stacked_apart
from cases import EPS, K_NORM, Q_NORM, THETA, base, mutation, no_bias
from gemma_cases import in_text
from late_cases import CORRECTION, FULL, TOP_K, late_case


def further_cases():
    yield from olmo_hybrid()
    yield bailing_moe_linear()
    yield plamo2()
    yield plamo3()
    yield minimax_m3_vl()
    yield rwkv7()


def olmo_hybrid():
    def published(tensors):
        """transformers divides the convolution into equal parts, and renames a norm of attention layers."""
        found = {}
        for name, tensor in tensors.items():
            if "_conv1d" in name:
                tensor = tensor.new_empty(48 if "v_conv1d" in name else 16, *tensor.shape[1:])
            elif ".1.feedforward_layer_norm" in name:
                name = name.replace("feedforward_layer_norm", "post_attention_layernorm")
            found[name] = tensor
        return found

    def joined(tensors):
        """The names of transformers' parameters."""
        found = {}
        for name, tensor in tensors.items():
            if "_conv1d" in name:
                name, tensor = re.sub("[qkv]_conv1d", "conv1d", name), tensor.new_empty(128, *tensor.shape[1:])
            name = name.replace(".attention_layer_norm", ".input_layernorm")
            found[name.replace("feedforward_layer_norm", "post_attention_layernorm")] = tensor
        return found

    linear = "linear_attention"
    config = base(
        "OlmoHybridForCausalLM",
        "olmo_hybrid",
        attention_bias=False,
        layer_types=[linear, FULL, linear],
        linear_a_log_max=16.0,
        linear_allow_neg_eigval=True,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_value_head_dim=12,
        num_hidden_layers=3,
        pad_token_id=0,
        rope_theta=None,
        rope_parameters={"rope_theta": None, "rope_type": "default"},
    )
    mutations = [
        EPS,
        Q_NORM,
        K_NORM,
        mutation("linear_allow_neg_eigval", {"linear_allow_neg_eigval": False}),
        mutation("g_proj", fill={"linear_attn.g_proj.weight": 0.0}),
        mutation("o_norm", fill={"linear_attn.o_norm.weight": 1.0}),
        mutation("dt_bias", fill={"linear_attn.dt_bias": 0.0}),
    ]
    spreads = [
        ("A_log", (0.5, 0.0)),
        ("dt_bias", (0.6, 0.0)),
        ("conv1d.weight", (0.5, 0.0)),
        ("o_norm.weight", (0.4, 1.0)),
        ("layer_norm.weight", (0.4, 1.0)),
    ]
    yield late_case(
        "olmo_hybrid",
        "delta rules whose beta reaches 2, with norms before; attention with norms after and without a rope; published names",
        config,
        [*mutations, mutation("rope_theta", {"rope_parameters": {"rope_theta": 10000.0}})],
        spreads=spreads,
        change=published,
    )
    yield late_case(
        "olmo_hybrid_thirds",
        "convolutions in three equal parts, as transformers writes them, though values have more channels than keys",
        config,
        [Q_NORM, mutation("dt_bias", fill={"linear_attn.dt_bias": 0.0})],
        spreads=spreads,
    )
    yield late_case(
        "olmo_hybrid_rope",
        "a rope, biases of attention, beta up to 1, as many key heads as value heads; names of transformers",
        {key: value for key, value in config.items() if key != "rope_parameters"}
        | {
            "attention_bias": True,
            "linear_allow_neg_eigval": False,
            "linear_num_key_heads": None,
            "linear_num_value_heads": None,
            "linear_value_head_dim": None,
            "layer_types": [FULL, linear, FULL],
            "rope_theta": 10000.0,
        },
        [
            THETA,
            EPS,
            mutation("linear_allow_neg_eigval", {"linear_allow_neg_eigval": True}),
            *no_bias("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        ],
        spreads=spreads,
        change=joined,
    )


def bailing_moe_linear():
    return late_case(
        "bailing_moe_linear",
        "Ling Linear: lightning attention with norms and rope on half of the head, outputs normed in groups; attention in the last layer of a "
        "group and after the last whole group; a dense layer",
        base(
            "BailingMoeLinearV2ForCausalLM",
            "bailing_moe_linear",
            first_k_dense_replace=1,
            group_norm_size=3,
            hidden_size=96,
            layer_group_size=2,
            moe_intermediate_size=16,
            moe_router_enable_expert_bias=True,
            moe_shared_expert_intermediate_size=24,
            n_group=1,
            norm_topk_prob=True,
            num_attention_heads=6,
            num_experts=6,
            num_experts_per_tok=2,
            num_hidden_layers=5,
            num_nextn_predict_layers=0,
            num_shared_experts=1,
            partial_rotary_factor=0.5,
            routed_scaling_factor=2.5,
            router_dtype="fp32",
            score_function="sigmoid",
            topk_group=1,
            use_bias=False,
            use_qk_norm=True,
            use_qkv_bias=False,
            use_rmsnorm=True,
        ),
        [
            THETA,
            EPS,
            TOP_K,
            mutation("partial_rotary_factor", {"partial_rotary_factor": 1.0}),
            mutation("group_norm_size", {"group_norm_size": 1}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            mutation("score_function", {"score_function": "softmax"}),
            mutation("expert_bias", fill={"gate.expert_bias": 0.0}),
            mutation("g_proj", fill={"attention.g_proj.weight": 0.0}),
            mutation("g_norm", fill={"attention.g_norm.weight": 1.0}),
            mutation("query_layernorm", fill={"query_layernorm.weight": 1.0}),
            mutation("key_layernorm", fill={"key_layernorm.weight": 1.0}),
            mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
        ],
        spreads=[
            ("word_embeddings.weight", (0.5, 0.0)),
            ("query_layernorm.weight", (0.4, 1.5)),
            ("key_layernorm.weight", (0.4, 1.5)),
            ("mlp.gate.weight", (2.0, None)),
            ("expert_bias", (0.3, 0.0)),
        ],
        by_mlx_lm=True,
        change=lambda tensors: stacked_apart(tensors, 6),
        composed=True,
    )


def plamo3():
    return late_case(
        "plamo3",
        "four norms with different offsets, norms on q and k, windows of 6 keys before the query in three of four layers with a rope of their own",
        base(
            "Plamo3ForCausalLM",
            "plamo3",
            head_dim=16,
            hidden_act=None,
            image_token_id=None,
            linear_type="normal",
            num_hidden_layers=4,
            rope_local_theta=500.0,
            sliding_window_pattern=4,
            tie_word_embeddings=True,
            window_size=6,
        ),
        [
            THETA,
            EPS,
            mutation("rope_local_theta", {"rope_local_theta": 10000.0}),
            mutation("sliding_window_pattern", {"sliding_window_pattern": 2}),
            *(mutation(f"window_size_{n}", {"window_size": n}) for n in (5, 7)),
            mutation("q_norm", fill={"q_norm.weight": 0.0}),
            mutation("k_norm", fill={"k_norm.weight": 0.0}),
            mutation("post_mixer_norm", fill={"post_mixer_norm.weight": 0.8}),
            mutation("post_mlp_norm", fill={"post_mlp_norm.weight": 0.8}),
        ],
        # The weights of norms are stored less the offsets.
        spreads=[
            ("q_norm.weight", (0.4, 0.5)),
            ("k_norm.weight", (0.4, 0.5)),
            ("qkv_proj.weight", (1.6, None)),
            ("norm.weight", (0.4, 0.3)),
        ],
        by_mlx_lm=True,
        composed=True,
    )


def minimax_m3_vl():
    chosen = {
        "sparse_attention_freq": [0, 1, 1],
        "sparse_block_size": 4,
        "sparse_disable_index_value": [0, 1, 1],
        "sparse_index_dim": 8,
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_num_index_heads": 2,
        "sparse_score_type": "max",
        "sparse_topk_blocks": 2,
        "use_sparse_attention": True,
    }
    text = base(
        "",
        "minimax_m3_vl_text",
        dense_intermediate_size=40,
        head_dim=16,
        hidden_act="swigluoai",
        intermediate_size=16,
        moe_layer_freq=[0, 1, 1],
        num_experts_per_tok=2,
        num_hidden_layers=3,
        num_local_experts=6,
        partial_rotary_factor=0.5,
        pad_token_id=0,
        rotary_dim=8,
        routed_scaling_factor=2.0,
        scoring_func="sigmoid",
        shared_intermediate_size=24,
        sparse_attention_config=chosen,
        swiglu_alpha=1.702,
        swiglu_limit=1.5,
        use_gemma_norm=True,
        use_qk_norm=True,
        use_routing_bias=True,
    )
    text = {key: value for key, value in text.items() if key not in ("architectures", "transformers_version")}

    def blocks(**keys):
        return {"sparse_attention_config": keys}

    return late_case(
        "minimax_m3_vl",
        "attention over 2 of the blocks of 4 positions that each of two heads chooses, norms stored less 1, bounded gates in a dense layer and "
        "two of experts with a shared one",
        {
            "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
            "image_token_index": 60,
            "model_type": "minimax_m3_vl",
            "projector_hidden_size": 32,
            "text_config": text,
            "tie_word_embeddings": False,
            "transformers_version": "4.57.0.dev0",
            "video_token_index": 61,
            "vision_config": {
                "hidden_size": 24,
                "image_size": 16,
                "intermediate_size": 16,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "patch_size": 4,
            },
        },
        in_text(
            [
                THETA,
                EPS,
                TOP_K,
                mutation("partial_rotary_factor", {"partial_rotary_factor": 1.0}),
                mutation("sparse_topk_blocks", blocks(sparse_topk_blocks=3)),
                mutation("sparse_block_size", blocks(sparse_block_size=3)),
                mutation("sparse_local_block", blocks(sparse_local_block=2)),
                mutation("swiglu_alpha", {"swiglu_alpha": 1.0}),
                mutation("swiglu_limit", {"swiglu_limit": 7.0}),
                mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
                mutation("q_norm", fill={"self_attn.q_norm.weight": 0.0}),
                mutation("k_norm", fill={"self_attn.k_norm.weight": 0.0}),
                mutation("index_q_norm", fill={"index_q_norm.weight": 0.0}),
                mutation("index_k_norm", fill={"index_k_norm.weight": 0.0}),
                mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0}),
                mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
            ]
        ),
        # The weights of norms are stored less 1.
        spreads=[
            CORRECTION,
            ("q_norm.weight", (0.4, 0.5)),
            ("k_norm.weight", (0.4, 0.5)),
            ("norm.weight", (0.4, 0.0)),
            ("block_sparse_moe.gate.weight", (2.0, None)),
        ],
    )


def plamo2():
    return late_case(
        "plamo2",
        "scans with norms on what time steps, keys and queries are projected from, in every second layer; norms on q and k with a weight a head; "
        "norms with different offsets",
        base(
            "Plamo2ForCausalLM",
            "plamo2",
            attention_window_size=64,
            full_attention_idx=[1, 3],
            hidden_act=None,
            hidden_size_per_head=16,
            mamba_chunk_size=8,
            mamba_d_conv=4,
            mamba_d_state=8,
            mamba_enabled=True,
            mamba_num_heads=4,
            mamba_step=2,
            num_hidden_layers=4,
            rope_theta=None,
            tie_word_embeddings=True,
        ),
        [
            EPS,
            mutation("q_weight", fill={"q_weight": 1.0}),
            mutation("k_weight", fill={"k_weight": 1.0}),
            mutation("B_norm_weight", fill={"B_norm_weight": 1.0}),
            mutation("C_norm_weight", fill={"C_norm_weight": 1.0}),
            mutation("dt_norm_weight", fill={"dt_norm_weight": 1.0}),
            mutation("dt_bias", fill={"dt_bias": 0.0}),
            mutation("D", fill={"mixer.D": 0.0}),
            mutation("A_log", fill={"A_log": 0.0}),
            mutation("post_mixer_norm", fill={"post_mixer_norm.weight": 0.8}),
            mutation("post_mlp_norm", fill={"post_mlp_norm.weight": 0.8}),
        ],
        # The weights of norms are stored less the offsets.
        spreads=[
            ("norm_weight", (0.5, 1.0)),
            ("q_weight", (0.5, 1.5)),
            ("k_weight", (0.5, 1.5)),
            ("qkv_proj.weight", (1.6, None)),
            ("norm.weight", (0.4, 0.3)),
            ("A_log", (0.5, 0.0)),
            ("dt_bias", (0.6, 0.0)),
            ("mixer.D", (0.5, 1.0)),
            ("conv1d.weight", (0.5, 0.0)),
        ],
        by_mlx_lm=True,
        change=published_convolutions,
        composed=True,
    )


def published_convolutions(tensors):
    """The axes of torch."""
    return {name: tensor.mT.contiguous() if name.endswith("conv1d.weight") else tensor for name, tensor in tensors.items()}


def rwkv7():
    def published(tensors):
        """The axes of flash-linear-attention."""
        flat = ("k_k", "k_a", "g_norm.weight", "g_norm.bias")
        return {name: tensor.flatten() if name.endswith(flat) else tensor for name, tensor in tensors.items()}

    mixes = ["attn.x_r", "attn.x_w", "attn.x_k", "attn.x_v", "attn.x_a", "attn.x_g", "ffn.x_k"]
    return late_case(
        "rwkv7",
        "matrices of two heads that are cleared at one key and learn at another; values of the first layer in the others",
        base(
            "RWKV7ForCausalLM",
            "rwkv7",
            a_low_rank_dim=8,
            attn_mode="chunk",
            decay_low_rank_dim=8,
            fuse_norm=False,
            gate_low_rank_dim=16,
            head_dim=16,
            hidden_act="sqrelu",
            hidden_ratio=4.0,
            norm_bias=True,
            # In heads of 16 this is the epsilon of mlx-lm's norm of heads, which is fixed.
            norm_eps=4e-5,
            norm_first=True,
            num_attention_heads=None,
            num_heads=2,
            num_hidden_layers=3,
            num_key_value_heads=None,
            rms_norm_eps=None,
            rope_theta=None,
            v_low_rank_dim=8,
            value_dim=[32, 32, 32],
        ),
        [
            mutation("norm_eps", {"norm_eps": 0.5}),
            *[mutation(name, fill={name: 0.0}) for name in mixes],
            mutation("k_k", fill={"attn.k_k": 1.0}),
            mutation("k_a", fill={"attn.k_a": 0.0}),
            mutation("r_k", fill={"attn.r_k": 0.0}),
            mutation("decay", fill={"w_lora.lora.2.bias": 0.0}),
            mutation("learning rate", fill={"a_lora.lora.2.bias": 0.0}),
            mutation("values of the first layer", fill={"v_lora.lora.2.bias": -9.0}),
            mutation("g_norm.weight", fill={"g_norm.weight": 1.0}),
            mutation("g_norm.bias", fill={"g_norm.bias": 0.0}),
            mutation("pre_norm.weight", fill={"pre_norm.weight": 1.0}),
            mutation("pre_norm.bias", fill={"pre_norm.bias": 0.0}),
        ],
        spreads=[
            *[(name, (0.3, 0.5)) for name in mixes],
            ("k_k", (0.5, 1.0)),
            ("k_a", (0.4, 1.0)),
            ("r_k", (0.5, 0.3)),
            ("lora.2.bias", (1.0, 0.0)),
            ("norm.weight", (0.4, 1.0)),
            ("norm.bias", (0.4, 0.0)),
            ("embeddings.weight", (0.5, 0.0)),
        ],
        by_mlx_lm=True,
        change=published,
        composed=True,
    )

"""The float cases of families with experts."""

import torch

from cases import ACTIVATION, EPS, K_NORM, NO_SCALING, Q_NORM, THETA, Case, base, mutation, no_bias, windows, with_keys
from family_cases import BF16, QKVO
from latent_cases import with_head


def expert_cases():
    yield from mixtral_cases()
    yield from moe_cases()
    yield from gpt_oss_cases()
    yield from corrected_cases()
    yield from granitemoe_cases()


def mixtral_cases():
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": False}
    noise = {"router_aux_loss_coef": 0.02, "router_jitter_noise": 0.0}
    yield Case(
        "mixtral",
        "experts w1, w2, w3 under block_sparse_moe; window on every layer; bfloat16 file",
        base(
            "MixtralForCausalLM", "mixtral", intermediate_size=24, rope_theta=1e6, sliding_window=8, **experts, **noise
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("num_experts_per_tok", {"num_experts_per_tok": 3}),
            mutation("sliding_window", {"sliding_window": None}),
            *windows(8),
        ],
        spreads=[("gate.weight", (2.0, None))],
        sparse=True,
        alternates={"config.null.json": with_keys(head_dim=None)},
        dtype=torch.bfloat16,
    )


def moe_cases():
    more_experts = mutation("num_experts_per_tok", {"num_experts_per_tok": 3})
    norm = mutation("norm_topk_prob", {"norm_topk_prob": False})
    yield Case(
        "qwen2_moe",
        "an expert that sees every token, a dense layer by mlp_only_layers, biases on q, k and v; bfloat16 file",
        base(
            "Qwen2MoeForCausalLM",
            "qwen2_moe",
            decoder_sparse_step=1,
            max_window_layers=28,
            mlp_only_layers=[1],
            moe_intermediate_size=24,
            norm_topk_prob=True,
            num_experts=4,
            num_experts_per_tok=2,
            output_router_logits=False,
            router_aux_loss_coef=0.001,
            shared_expert_intermediate_size=40,
            sliding_window=32768,
            use_sliding_window=False,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            more_experts,
            norm,
            mutation("shared_expert", fill={"shared_expert.down_proj.weight": 0.0}),
            mutation("shared_expert_gate", fill={"shared_expert_gate.weight": 0.0}),
            *no_bias("q_proj", "k_proj", "v_proj"),
        ],
        **BF16,
    )
    yield Case(
        "qwen2_moe_window",
        "a window on every second layer, every second layer with experts, probabilities not normalised; bfloat16 file",
        base(
            "Qwen2MoeForCausalLM",
            "qwen2_moe",
            decoder_sparse_step=2,
            max_window_layers=2,
            mlp_only_layers=[],
            moe_intermediate_size=24,
            norm_topk_prob=False,
            num_experts=4,
            num_experts_per_tok=2,
            shared_expert_intermediate_size=24,
            sliding_window=8,
            use_sliding_window=True,
        ),
        [
            THETA,
            more_experts,
            mutation("norm_topk_prob", {"norm_topk_prob": True}),
            mutation("max_window_layers", {"max_window_layers": 0}),
            mutation("use_sliding_window", {"use_sliding_window": False}),
            *windows(8),
        ],
        **BF16,
    )
    yield Case(
        "olmoe",
        "experts in every layer, q and k normed over all heads at once and clipped, biases; bfloat16 file",
        base(
            "OlmoeForCausalLM",
            "olmoe",
            attention_bias=True,
            clip_qkv=1.5,
            intermediate_size=24,
            norm_topk_prob=True,
            num_experts=4,
            num_experts_per_tok=2,
            output_router_logits=False,
            router_aux_loss_coef=0.01,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            Q_NORM,
            K_NORM,
            more_experts,
            norm,
            mutation("clip_qkv", {"clip_qkv": None}),
            *no_bias(*QKVO),
        ],
        **BF16,
    )


def gpt_oss(**more):
    rope = {
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "rope_type": "yarn",
        "truncate": False,
    }
    config = {
        "attention_bias": True,
        "experts_per_token": 2,
        "head_dim": 16,
        "initial_context_length": 64,
        "intermediate_size": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "output_router_logits": False,
        "rope_scaling": rope,
        "rope_theta": 1000.0,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 8,
        "swiglu_limit": 1.5,
    }
    return base("GptOssForCausalLM", "gpt_oss", **config | more)


def gpt_oss_cases():
    spreads = [
        ("mlp.router.weight", (2.0, None)),
        ("mlp.router.bias", (0.6, 0.0)),
        ("_proj_bias", (0.6, 0.0)),
        ("sinks", (1.0, 1.0)),
    ]
    common = [
        mutation("rope_theta", {"rope_theta": 30.0}),
        NO_SCALING,
        mutation("sinks", fill={"self_attn.sinks": -50.0}),
        mutation("num_experts_per_tok", {"num_experts_per_tok": 3, "experts_per_token": 3}),
        mutation("swiglu_limit", {"swiglu_limit": 7.0}),
        mutation("layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
        *windows(8),
    ]
    yield Case(
        "gpt_oss",
        "sinks, a window on every second layer, experts with biases and a clamped gate, yarn without rounding; "
        "dense experts, bfloat16 file",
        gpt_oss(),
        [
            *common,
            EPS,
            mutation("truncate", {"rope_scaling": {"truncate": True}}, changes="logits"),
            mutation("router.bias", fill={"router.bias": 0.0}),
            mutation("gate_up_proj_bias", fill={"gate_up_proj_bias": 0.0}),
            mutation("down_proj_bias", fill={"down_proj_bias": 0.0}),
            *no_bias(*QKVO),
        ],
        spreads=spreads,
        **BF16,
    )
    yield Case(
        "gpt_oss_mxfp4",
        "experts in mxfp4 as published: blocks of bytes and scales; bfloat16 file",
        gpt_oss(),
        common,
        spreads=spreads,
        packed=True,
        **BF16,
    )


def corrected_cases():
    """Experts that are chosen by sigmoids and a correction."""
    spreads = [("mlp.gate.weight", (2.0, None)), ("e_score_correction_bias", (0.4, 0.0))]
    more_experts = mutation("num_experts_per_tok", {"num_experts_per_tok": 3})
    correction = mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0})
    shared = {
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 24,
        "n_group": 2,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "routed_scaling_factor": 1.6,
        "topk_group": 1,
    }
    mutations = [
        THETA,
        EPS,
        ACTIVATION,
        Q_NORM,
        K_NORM,
        correction,
        more_experts,
        mutation("topk_group", {"topk_group": 2}),
        mutation("norm_topk_prob", {"norm_topk_prob": False}),
        mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
        mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
    ]
    yield Case(
        "glm4_moe",
        "sigmoids with a correction, groups, shared experts without a gate, a dense layer in front, half of a head "
        "rotates, norms on q and k, biases; a layer for multi-token prediction that is kept; bfloat16 file",
        base(
            "Glm4MoeForCausalLM",
            "glm4_moe",
            attention_bias=True,
            head_dim=16,
            num_nextn_predict_layers=1,
            partial_rotary_factor=0.5,
            use_qk_norm=True,
            **shared,
        ),
        [
            *mutations,
            mutation("partial_rotary_factor", {"partial_rotary_factor": 1.0}),
            *no_bias("q_proj", "k_proj", "v_proj"),
        ],
        spreads=spreads,
        change=with_head,
        **BF16,
    )
    yield Case(
        "dots1",
        "sigmoids with a correction, groups, shared experts, a window on the upper layers, biases; bfloat16 file",
        base(
            "Dots1ForCausalLM",
            "dots1",
            attention_bias=True,
            head_dim=16,
            max_window_layers=1,
            sliding_window=8,
            **shared | {"n_group": 1, "n_routed_experts": 4, "num_hidden_layers": 2, "n_shared_experts": 1},
        ),
        [
            *[m for m in mutations if m["name"] != "topk_group"],
            mutation("max_window_layers", {"max_window_layers": 0}),
            *windows(8),
            *no_bias(*QKVO),
        ],
        spreads=spreads,
        **BF16,
    )
    yield Case(
        "minimax_m2",
        "sigmoids with a correction, q and k normed over all heads at once, rotary_dim; bfloat16 file",
        base(
            "MiniMaxM2ForCausalLM",
            "minimax_m2",
            attn_type_list=[1, 1],
            head_dim=16,
            intermediate_size=24,
            num_experts_per_tok=2,
            num_local_experts=4,
            rotary_dim=8,
            scoring_func="sigmoid",
            shared_intermediate_size=0,
            use_qk_norm=True,
            use_routing_bias=True,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            Q_NORM,
            K_NORM,
            correction,
            more_experts,
            mutation("rotary_dim", {"rotary_dim": 16}),
        ],
        spreads=spreads,
        **BF16,
    )


def granitemoe_cases():
    yield Case(
        "granitemoe",
        "gate and up of all experts in one tensor, multipliers, biases; bfloat16 file",
        base(
            "GraniteMoeForCausalLM",
            "granitemoe",
            attention_bias=True,
            attention_multiplier=0.6,
            embedding_multiplier=3.0,
            intermediate_size=24,
            logits_scaling=4.0,
            num_experts_per_tok=2,
            num_local_experts=4,
            residual_multiplier=0.6,
            rope_scaling=None,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("num_experts_per_tok", {"num_experts_per_tok": 3}),
            mutation("attention_multiplier", {"attention_multiplier": 0.35}),
            mutation("embedding_multiplier", {"embedding_multiplier": 1.0}),
            mutation("residual_multiplier", {"residual_multiplier": 1.0}),
            mutation("logits_scaling", {"logits_scaling": 2.0}, changes="logits"),
            *no_bias(*QKVO),
        ],
        spreads=[("router.layer.weight", (2.0, None)), ("router.weight", (2.0, None))],
        **BF16,
    )

"""The float cases of families that join parts of others: latent attention, scans, experts."""

import torch

from cases import ACTIVATION, EPS, K_NORM, NO_SCALING, Q_NORM, THETA, Case, base, mutation, no_bias, windows
from latent_cases import BIASES, INTERLEAVE, NORMED, QUERIES, SIZES
from latent_cases import SPREADS as LATENT_SPREADS
from scan_cases import INFINITE, SCAN_SPREADS, scan_pieces

BF16 = {"dtype": torch.bfloat16, "formula": True}
TOP_K = mutation("num_experts_per_tok", {"num_experts_per_tok": 3})
SHARED = mutation("shared experts", fill={"shared_experts.down_proj.weight": 0.0})
LATENTS = [QUERIES, mutation("kv_a_layernorm", fill={"kv_a_layernorm.weight": 1.0}), *BIASES]
ATTENTION_BIAS = mutation("attention_bias", fill={f"self_attn.{name}_proj.bias": 0.0 for name in "qkvo"})
MLP_BIAS = mutation("mlp_bias", fill={f"{name}_proj.bias": 0.0 for name in ("gate", "up", "down")})
EXPERT_SPREADS = [
    ("expert_bias", (0.5, 0.0)),
    ("query_key_value.weight", (1.6, None)),
    ("word_embeddings.weight", (0.5, 0.0)),
]


def mixed_cases():
    yield from latent_cases()
    yield from expert_cases()
    yield from scanning_cases()
    yield from selective_cases()
    yield from searched_cases()


def latent_cases():
    yield Case(
        "youtu",
        "latent attention beside dense MLPs, biases; tied; bfloat16 file",
        base("YoutuForCausalLM", "youtu", **SIZES, attention_bias=True, rope_interleave=True, tie_word_embeddings=True),
        [THETA, EPS, ACTIVATION, INTERLEAVE, *LATENTS],
        spreads=LATENT_SPREADS,
        **BF16,
    )
    rope = {
        "long_factor": [1.1, 1.6, 2.5, 4.0],
        "original_max_position_embeddings": 40,
        "short_factor": [1.0, 1.05, 1.3, 1.5],
        "type": "longrope",
    }
    yield Case(
        "minicpm3",
        "latent attention with longrope of a short and of a long prompt, multipliers; values of the default size, "
        "biases; tied; bfloat16 file",
        base(
            "MiniCPM3ForCausalLM",
            "minicpm3",
            **SIZES | {"v_head_dim": None},
            attention_bias=True,
            dim_model_base=24,
            mlp_bias=True,
            rope_scaling=rope,
            scale_depth=3.0,
            scale_emb=0.6,
            tie_word_embeddings=True,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            NO_SCALING,
            mutation("short_factor", {"rope_scaling": {"short_factor": [1.0, 3.0, 3.0, 3.0]}}),
            mutation("long_factor", {"rope_scaling": {"long_factor": [1.0, 1.05, 1.3, 1.5]}}),
            mutation("scale_emb", {"scale_emb": 1.0}),
            mutation("scale_depth", {"scale_depth": 1.1}),
            mutation("dim_model_base", {"dim_model_base": 16}, changes="logits"),
            *LATENTS,
            MLP_BIAS,
        ],
        prompts=(4, 41),
        spreads=LATENT_SPREADS,
        **BF16,
    )


def expert_cases():
    sizes = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "norm_topk_prob": True}
    yield Case(
        "sarvam_moe",
        "experts of DeepSeek's kind after a dense layer, norms and biases of q and k under their published names; bfloat16 file",
        base(
            "SarvamMoEForCausalLM",
            "sarvam_moe",
            **sizes,
            first_k_dense_replace=1,
            head_dim=16,
            n_group=2,
            num_experts=6,
            num_shared_experts=1,
            pad_token_id=0,
            routed_scaling_factor=1.6,
            topk_group=1,
            use_qk_norm=True,
            use_qkv_bias=True,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            TOP_K,
            NORMED,
            mutation("expert_bias", fill={"gate.expert_bias": 0.0}),
            SHARED,
            mutation("query_layernorm", fill={"query_layernorm.weight": 1.0}),
            mutation("key_layernorm", fill={"key_layernorm.weight": 1.0}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 0.6}),
            mutation("topk_group", {"topk_group": 2}),
            *no_bias("query_key_value"),
        ],
        spreads=EXPERT_SPREADS,
        **BF16,
    )
    yield Case(
        "kolibri1",
        "experts by corrected scores, weighted by sigmoids, and a shared one; four norms a layer, rope on windows only; bfloat16 "
        "file",
        base(
            "Kolibri1ForCausalLM",
            "kolibri1",
            **sizes | {"norm_topk_prob": False},
            head_dim=16,
            intermediate_size=None,
            layer_types=["sliding_attention", "full_attention"],
            num_local_experts=6,
            shared_expert_intermediate_size=24,
            sliding_window=8,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            TOP_K,
            mutation("expert_bias", fill={"router.expert_bias": 0.0}),
            SHARED,
            Q_NORM,
            K_NORM,
            mutation("norm_topk_prob", {"norm_topk_prob": True}),
            mutation("layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
            mutation("norms after", fill={"post_ffn_norm.weight": 1.0}),
            *windows(8),
        ],
        spreads=EXPERT_SPREADS,
        **BF16,
    )


def scanning_cases():
    yield Case(
        "bamba",
        "scans in two groups and one attention layer with rope on half of its heads, dense MLPs; biases; bfloat16 file",
        base(
            "BambaForCausalLM",
            "bamba",
            attention_bias=True,
            attn_layer_indices=[1],
            head_dim=None,
            mamba_chunk_size=8,
            mamba_conv_bias=True,
            mamba_d_conv=4,
            mamba_d_head="auto",
            mamba_d_state=8,
            mamba_expand=2,
            mamba_n_groups=2,
            mamba_n_heads=4,
            mamba_proj_bias=True,
            mlp_bias=True,
            num_hidden_layers=2,
            num_logits_to_keep=1,
            time_step_limit=INFINITE,
            z_loss_coefficient=0.0,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            ATTENTION_BIAS,
            MLP_BIAS,
            *scan_pieces("mamba"),
        ],
        spreads=[("final_layernorm.weight", (0.4, 1.0)), *SCAN_SPREADS],
        **BF16,
    )


# Pieces of a scan of the first Mamba, each without effect.
def selective_pieces(place, biases=True):
    projections = ("in_proj", "conv1d", "out_proj") if biases else ("conv1d",)
    return [
        mutation("decay", fill={"A_log": -9.0}),
        mutation("dt_proj.bias", fill={"dt_proj.bias": 0.0}),
        mutation("time steps", fill={"dt_proj.weight": 0.0}),
        mutation("skip", fill={f"{place}.D": 0.0}),
        mutation("biases", fill={f"{place}.{name}.bias": 0.0 for name in projections}),
    ]


SELECTIVE_SPREADS = [("dt_proj.bias", (0.7, 0.0)), ("router.weight", (2.0, None)), *SCAN_SPREADS]


def selective_cases():
    fixed = {
        "conv_kernel": 4,
        "expand": 2,
        "intermediate_size": 64,
        "layer_norm_epsilon": 0.02,
        "max_position_embeddings": None,
        "num_attention_heads": None,
        "num_key_value_heads": None,
        "residual_in_fp32": True,
        "rms_norm_eps": None,
        "rope_theta": None,
        "state_size": 8,
        "time_step_rank": 6,
        "use_conv_bias": True,
    }
    eps = mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6})
    yield Case(
        "mamba",
        "scans with a decay for each number of the state, biases; tied; bfloat16 file",
        base("MambaForCausalLM", "mamba", tie_word_embeddings=True, use_bias=True, **fixed),
        [eps, ACTIVATION, *selective_pieces("mixer")],
        spreads=SELECTIVE_SPREADS,
        **BF16,
    )
    yield Case(
        "falcon_mamba",
        "norms without weights of what a scan reads, a size beside `expand` that is not its multiple; bfloat16 file",
        base(
            "FalconMambaForCausalLM",
            "falcon_mamba",
            mixer_rms_eps=0.3,
            use_bias=False,
            **fixed | {"expand": 16, "intermediate_size": 48, "time_step_rank": 4},
        ),
        [eps, ACTIVATION, mutation("mixer_rms_eps", {"mixer_rms_eps": 1e-6}), *selective_pieces("mixer", biases=False)],
        spreads=SELECTIVE_SPREADS,
        **BF16,
    )
    jamba = {
        "attn_layer_offset": 1,
        "attn_layer_period": 3,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_state": 8,
        "mamba_dt_rank": 6,
        "mamba_expand": 2,
        "mamba_proj_bias": True,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "rope_theta": None,
        "use_mamba_kernels": False,
    }
    norms = [
        mutation(f"{name}_layernorm", fill={f"mamba.{name}_layernorm.weight": 1.0}) for name in ("dt", "b", "c")
    ]
    yield Case(
        "jamba",
        "scans with norms of what they read, one attention layer without rope, experts in every second layer whose weights do not "
        "sum to 1; bfloat16 file",
        base("JambaForCausalLM", "jamba", num_hidden_layers=3, **jamba | {"attn_layer_offset": 2, "attn_layer_period": 3}),
        [
            EPS,
            ACTIVATION,
            TOP_K,
            mutation("attention", fill={"self_attn.k_proj.weight": 0.0}),
            *norms,
            *selective_pieces("mamba"),
        ],
        spreads=SELECTIVE_SPREADS,
        **BF16,
    )
    yield Case(
        "jamba_dense",
        "one expert, which is a dense MLP; bfloat16 file",
        base("JambaForCausalLM", "jamba", **jamba | {"num_experts": 1, "num_experts_per_tok": 1, "mamba_proj_bias": False}),
        [ACTIVATION, *selective_pieces("mamba", biases=False)],
        prompts=(5, 12),
        spreads=SELECTIVE_SPREADS,
        **BF16,
    )


def searched_cases():
    def blocks(group):
        whole = {"n_heads_in_group": group, "no_op": False, "replace_with_linear": False, "window_length": None}
        mlp = {"ffn_mult": 2.0, "no_op": False, "replace_with_linear": False}
        linear, none = {"replace_with_linear": True}, {"no_op": True}
        return [
            {"attention": whole, "ffn": none},
            {"attention": linear, "ffn": mlp},
            {"attention": none, "ffn": linear},
            {"attention": whole | {"n_heads_in_group": 4}, "ffn": mlp | {"ffn_mult": 14.0}},
        ]

    yield Case(
        "nemotron_nas",
        "layers with numbers of KV heads and widths of their own, whose halves are absent or one linear map; llama3 rope; "
        "bfloat16 file",
        base(
            "DeciLMForCausalLM",
            "nemotron-nas",
            attention_bias=False,
            block_configs=blocks(2),
            intermediate_size=None,
            num_hidden_layers=4,
            num_key_value_heads=None,
            rope_scaling={
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            NO_SCALING,
            mutation("linear attention", fill={"layers.1.self_attn.linear.weight": 0.0}),
            mutation("linear MLP", fill={"layers.2.mlp.linear.weight": 0.0}),
        ],
        composed=True,
        note="transformers has no such class: the reference is Llama's layers with these halves",
        spreads=[("down_proj.weight", (4.0, None))],
        **BF16,
    )

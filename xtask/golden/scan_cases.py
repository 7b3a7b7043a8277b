"""The float cases of families with scans of Mamba 2."""

import torch

from cases import THETA, Case, base, mutation, no_bias

BF16 = {"dtype": torch.bfloat16}
SCAN_SPREADS = [
    ("mixer.norm.weight", (0.4, 1.0)),
    ("A_log", (0.7, -0.5)),
    ("dt_bias", (0.7, 0.0)),
    (".D", (0.7, 0.5)),
    ("conv1d.weight", (1.2, None)),
    ("embeddings.weight", (0.5, 0.0)),
    ("norm_f.weight", (0.4, 1.0)),
    ("layernorm.weight", (0.4, 1.0)),
    ("router.layer.weight", (2.0, None)),
    ("mixer.gate.weight", (2.0, None)),
    ("correction_bias", (0.5, 0.0)),
]
INFINITE = [0.0, float("inf")]


def scan_cases():
    yield from mamba2_cases()
    yield from granitemoehybrid_cases()
    yield from nemotron_h_cases()
    yield from falcon_h1_cases()


def scan_pieces(place, biases=("in_proj", "conv1d", "out_proj"), norm=True):
    """What a scan is made of, each piece without effect."""
    pieces = [
        mutation("decay", fill={"A_log": -9.0}),
        mutation("dt_bias", fill={"dt_bias": 0.0}),
        mutation("skip", fill={f"{place}.D": 0.0}),
        *[mutation(f"{name}.bias", fill={f"{place}.{name}.bias": 0.0}) for name in biases],
    ]
    return [*pieces, *([mutation("scan's norm", fill={f"{place}.norm.weight": 1.0})] if norm else [])]


def mamba2_cases():
    fixed = {
        "chunk_size": 8,
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 16,
        "intermediate_size": None,
        "layer_norm_epsilon": 0.02,
        "max_position_embeddings": None,
        "n_groups": 2,
        "norm_before_gate": True,
        "num_attention_heads": None,
        "num_heads": 4,
        "num_key_value_heads": None,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": True,
        "rms_norm": True,
        "rms_norm_eps": None,
        "rope_theta": None,
        "state_size": 8,
        "time_step_floor": 0.0001,
        "time_step_limit": INFINITE,
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "time_step_rank": 2,
        "use_bias": True,
        "use_conv_bias": True,
    }
    eps = mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6})
    act = mutation("hidden_act", {"hidden_act": "relu"})
    limit = mutation("time_step_limit", {"time_step_limit": [0.3, 0.5]})
    yield Case(
        "mamba2",
        "scans in two groups with biases everywhere, time steps up to infinity as Python writes it; bfloat16 file",
        base("Mamba2ForCausalLM", "mamba2", num_hidden_layers=3, **fixed),
        [eps, act, limit, *scan_pieces("mixer")],
        spreads=SCAN_SPREADS,
        **BF16,
    )
    small = {"n_groups": 1, "conv_kernel": 3, "use_bias": False, "use_conv_bias": False, "tie_word_embeddings": True}
    yield Case(
        "mamba2_tied",
        "scans in one group without biases, three taps; tied; bfloat16 file",
        base("Mamba2ForCausalLM", "mamba2", num_hidden_layers=2, **fixed | small),
        [eps, act, limit, *scan_pieces("mixer", ())],
        spreads=SCAN_SPREADS,
        **BF16,
    )


def granitemoehybrid_cases():
    fixed = {
        "attention_multiplier": 0.6,
        "embedding_multiplier": 3.0,
        "init_method": "mup",
        "logits_scaling": 4.0,
        "mamba_chunk_size": 8,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_expand": 2,
        "mamba_n_groups": 2,
        "mamba_n_heads": 4,
        "mamba_proj_bias": True,
        "normalization_function": "rmsnorm",
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "residual_multiplier": 0.4,
        "rope_scaling": None,
        "router_aux_loss_coef": 0.01,
        "shared_intermediate_size": 24,
    }
    multipliers = [
        mutation("attention_multiplier", {"attention_multiplier": 0.2}),
        mutation("embedding_multiplier", {"embedding_multiplier": 1.0}),
        mutation("residual_multiplier", {"residual_multiplier": 1.0}),
        mutation("logits_scaling", {"logits_scaling": 2.0}, changes="logits"),
    ]
    eps = mutation("rms_norm_eps", {"rms_norm_eps": 1e-6})
    act = mutation("hidden_act", {"hidden_act": "relu"})
    yield Case(
        "granitemoehybrid",
        "scans and one attention layer without rope, under their older names; experts beside an MLP that sees every token; "
        "multipliers; biases; bfloat16 file",
        base(
            "GraniteMoeHybridForCausalLM",
            "granitemoehybrid",
            attention_bias=True,
            intermediate_size=16,
            layer_types=["mamba", "attention", "mamba"],
            num_hidden_layers=3,
            num_local_experts=4,
            position_embedding_type="nope",
            **fixed,
        ),
        [
            eps,
            act,
            *multipliers,
            mutation("num_experts_per_tok", {"num_experts_per_tok": 3}),
            mutation("position_embedding_type", {"position_embedding_type": "rope"}),
            mutation("shared_mlp", fill={"shared_mlp.output_linear.weight": 0.0}),
            # Without a rope a bias on the keys adds the same number to all scores.
            *no_bias("q_proj", "v_proj", "o_proj"),
            *scan_pieces("mamba"),
        ],
        spreads=SCAN_SPREADS,
        **BF16,
    )
    yield Case(
        "granitemoehybrid_dense",
        "no experts, attention with rope, the size of a scan's head by itself, one group without biases on scans; bfloat16 file",
        base(
            "GraniteMoeHybridForCausalLM",
            "granitemoehybrid",
            attention_bias=True,
            intermediate_size=16,
            layer_types=["attention", "mamba", "attention"],
            num_hidden_layers=3,
            num_local_experts=0,
            position_embedding_type="rope",
            **fixed
            | {
                "mamba_conv_bias": False,
                "mamba_d_head": "auto",
                "mamba_n_groups": 1,
                "mamba_proj_bias": False,
                "num_experts_per_tok": 0,
            },
        ),
        [
            THETA,
            eps,
            act,
            *multipliers,
            mutation("position_embedding_type", {"position_embedding_type": "nope"}),
            *no_bias("q_proj", "k_proj", "v_proj", "o_proj"),
            *scan_pieces("mamba", ()),
        ],
        spreads=SCAN_SPREADS,
        **BF16,
        formula=True,
    )


def nemotron_h_cases():
    fixed = {
        "attention_bias": False,
        "chunk_size": 8,
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 12,
        "hidden_act": None,
        "hidden_dropout": 0.0,
        "layer_norm_epsilon": 0.02,
        "mamba_head_dim": 16,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 4,
        "mamba_proj_bias": False,
        "mlp_hidden_act": "relu2",
        "n_groups": 2,
        "num_logits_to_keep": 1,
        "pad_token_id": 0,
        "rescale_prenorm_residual": True,
        "residual_in_fp32": False,
        "rms_norm_eps": None,
        "rope_theta": None,
        "sliding_window": None,
        "ssm_state_size": 8,
        "time_step_floor": 0.0001,
        "time_step_limit": INFINITE,
        "time_step_max": 0.1,
        "time_step_min": 1e-9,
        "time_step_rank": 2,
        "use_mamba_kernels": True,
    }
    acts = [
        mutation("mlp_hidden_act", {"mlp_hidden_act": "silu"}),
        mutation("mamba_hidden_act", {"mamba_hidden_act": "relu"}),
    ]
    eps = mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6})
    steps = mutation("time_step_min", {"time_step_min": 0.9})
    yield Case(
        "nemotron_h",
        "layers of one mixer by hybrid_override_pattern: scans, attention without rope, MLPs without a gate; biases; "
        "bfloat16 file",
        base(
            "NemotronHForCausalLM",
            "nemotron_h",
            hybrid_override_pattern="M-M*-",
            mlp_bias=True,
            num_hidden_layers=5,
            use_bias=True,
            use_conv_bias=True,
            **fixed,
        ),
        [*acts, eps, steps, *scan_pieces("mixer"), *no_bias("mixer.up_proj", "mixer.down_proj")],
        spreads=SCAN_SPREADS,
        **BF16,
    )
    yield Case(
        "nemotron_h_moe",
        "experts without a gate on fewer features, chosen by corrected sigmoids in groups, and a shared one; layers by their "
        "types; a head for multi-token prediction, which is skipped; bfloat16 file",
        base(
            "NemotronHForCausalLM",
            "nemotron_h",
            layers_block_type=["mamba", "moe", "attention", "moe"],
            mlp_bias=True,
            moe_intermediate_size=12,
            moe_latent_size=24,
            moe_shared_expert_intermediate_size=20,
            n_group=2,
            n_routed_experts=8,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_experts_per_tok=2,
            num_hidden_layers=4,
            num_nextn_predict_layers=1,
            routed_scaling_factor=1.8,
            topk_group=1,
            use_bias=False,
            use_conv_bias=True,
            **fixed,
        ),
        [
            *acts,
            eps,
            mutation("num_experts_per_tok", {"num_experts_per_tok": 3}),
            mutation("norm_topk_prob", {"norm_topk_prob": False}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 0.6}),
            mutation("topk_group", {"topk_group": 2}),
            mutation("correction", fill={"e_score_correction_bias": 0.0}),
            mutation("shared expert", fill={"shared_experts.down_proj.weight": 0.0}),
            *no_bias("fc1_latent_proj", "fc2_latent_proj", "shared_experts.up_proj", "shared_experts.down_proj"),
            *scan_pieces("mixer", ("conv1d",)),
        ],
        extra={"mtp.layers.0.norm.weight": (32,)},
        spreads=SCAN_SPREADS,
        **BF16,
    )


def falcon_h1_cases():
    fixed = {
        "attention_in_multiplier": 1.6,
        "attention_out_multiplier": 0.6,
        "embedding_multiplier": 2.5,
        "head_dim": 12,
        "key_multiplier": 0.5,
        "lm_head_multiplier": 0.7,
        "mamba_chunk_size": 8,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_ssm": 48,
        "mamba_d_state": 8,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 3,
        "mamba_norm_before_gate": False,
        "mamba_rms_norm": False,
        "mamba_use_mlp": True,
        "mlp_expansion_factor": 8,
        "mlp_multipliers": [0.6, 1.7],
        "num_logits_to_keep": 1,
        "projectors_bias": False,
        "rope_scaling": None,
        "ssm_in_multiplier": 1.5,
        "ssm_multipliers": [0.7, 1.4, 0.6, 1.5, 0.8],
        "ssm_out_multiplier": 0.5,
        "time_step_limit": INFINITE,
    }

    def multiplier(name, to):
        return mutation(name, {name: to})

    ssm = [1.0, 1.4, 0.6, 1.5, 0.8]
    multipliers = [
        multiplier("attention_in_multiplier", 0.5),
        multiplier("attention_out_multiplier", 1.5),
        multiplier("embedding_multiplier", 1.0),
        multiplier("key_multiplier", 2.0),
        mutation("lm_head_multiplier", {"lm_head_multiplier": 1.0}, changes="logits"),
        mutation("mlp_multipliers gate", {"mlp_multipliers": [1.5, 1.7]}),
        mutation("mlp_multipliers down", {"mlp_multipliers": [0.6, 0.9]}),
        multiplier("ssm_in_multiplier", 0.7),
        multiplier("ssm_out_multiplier", 1.2),
        *[
            mutation(f"ssm_multipliers {n}", {"ssm_multipliers": [1 / x if i == n else x for i, x in enumerate(ssm)]})
            for n in range(1, 5)
        ],
        mutation("ssm_multipliers 0", {"ssm_multipliers": [2.5, *ssm[1:]]}),
    ]
    eps = mutation("rms_norm_eps", {"rms_norm_eps": 1e-6})
    act = mutation("hidden_act", {"hidden_act": "relu"})
    yield Case(
        "falcon_h1",
        "attention and a scan side by side, each multiplier another number, no norm behind the scan; bfloat16 file",
        base("FalconH1ForCausalLM", "falcon_h1", attention_bias=False, mlp_bias=False, mamba_proj_bias=False, **fixed),
        [THETA, eps, act, *multipliers, *scan_pieces("mamba", ("conv1d",), norm=False)],
        spreads=SCAN_SPREADS,
        **BF16,
    )
    yield Case(
        "falcon_h1_norm",
        "a norm of each group before the gate, the size of a scan by its expansion, biases; tied; bfloat16 file",
        base(
            "FalconH1ForCausalLM",
            "falcon_h1",
            attention_bias=True,
            mlp_bias=True,
            mamba_proj_bias=True,
            tie_word_embeddings=True,
            **fixed
            | {
                "mamba_d_head": "auto",
                "mamba_d_ssm": 64,
                "mamba_n_groups": 2,
                "mamba_n_heads": 4,
                "mamba_norm_before_gate": True,
                "mamba_rms_norm": True,
                "projectors_bias": True,
            },
        ),
        [
            THETA,
            mutation("mamba_norm_before_gate", {"mamba_norm_before_gate": False}),
            multiplier("attention_in_multiplier", 0.5),
            multiplier("key_multiplier", 2.0),
            multiplier("ssm_in_multiplier", 0.7),
            *no_bias("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
            *scan_pieces("mamba"),
        ],
        spreads=SCAN_SPREADS,
        **BF16,
        formula=True,
    )

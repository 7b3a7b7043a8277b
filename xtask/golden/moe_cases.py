"""The float cases of more families with experts."""

from cases import ACTIVATION, EPS, NO_SCALING, THETA, Case, base, mutation, no_bias, windows, with_keys
from family_cases import BF16, GATED, QKVO

MORE_EXPERTS = {"num_experts_per_tok": 3}


def moe_cases():
    yield from ernie_cases()
    yield from hunyuan_cases()
    yield from phimoe_cases()


def ernie_cases():
    yield Case(
        "ernie4_5_moe",
        "a softmax with a correction, experts in a range of layers, shared ones, biases, rope that pairs neighbours; a head for "
        "multi-token prediction that is not read; bfloat16 file",
        base(
            "Ernie4_5_MoeForCausalLM",
            "ernie4_5_moe",
            moe_capacity=[64, 64, 64],
            moe_gate="topk",
            moe_intermediate_size=24,
            moe_k=2,
            moe_layer_end_index=2,
            moe_layer_interval=1,
            moe_layer_start_index=1,
            moe_norm_min=0.5,
            moe_num_experts=6,
            moe_num_shared_experts=2,
            moe_use_aux_free=True,
            num_hidden_layers=3,
            num_nextn_predict_layers=1,
            use_bias=True,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("moe_k", {"moe_k": 3}),
            mutation("moe_norm_min", {"moe_norm_min": 1e-12}),
            mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0}),
            mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
            mutation("lm_head.bias", fill={"lm_head.bias": 0.0}),
            *no_bias(*QKVO, *GATED),
        ],
        spreads=[("mlp.gate.weight", (2.0, None)), ("e_score_correction_bias", (0.3, 0.0))],
        extra={"model.mtp_block.0.mlp.up_proj.weight": (8, 8), "model.mtp_linear_proj.0.weight": (8, 8)},
        **BF16,
    )


def hunyuan_cases():
    yield Case(
        "hunyuan_v1_moe",
        "experts of the dense size and one that sees every token in all layers, norms on q and k behind rope, a rope base from "
        "alpha, biases; bfloat16 file",
        base(
            "HunYuanMoEV1ForCausalLM",
            "hunyuan_v1_moe",
            attention_bias=True,
            attention_head_dim=16,
            cla_share_factor=2,
            head_dim=16,
            intermediate_size=24,
            moe_intermediate_size=[24, 24],
            moe_topk=2,
            num_experts=6,
            num_shared_expert=[1, 1],
            rope_scaling={"alpha": 50.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "type": "dynamic"},
            use_cla=False,
            use_mixed_mlp_moe=True,
            use_qk_norm=True,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("alpha", {"rope_scaling": {"alpha": 2.0}}),
            mutation("moe_topk", {"moe_topk": 3}),
            mutation("shared_mlp", fill={"shared_mlp.down_proj.weight": 0.0}),
            mutation("query_layernorm", fill={"query_layernorm.weight": 1.0}),
            mutation("key_layernorm", fill={"key_layernorm.weight": 1.0}),
            *no_bias(*QKVO),
        ],
        spreads=[
            ("gate.wg.weight", (2.0, None)),
            ("query_layernorm.weight", (0.4, 1.5)),
            ("key_layernorm.weight", (0.4, 1.5)),
        ],
        alternates={"config.list.json": with_keys(moe_topk=[2, 2])},
        **BF16,
    )


def phimoe_cases():
    # A head of 16: 8 divisors. The second prompt goes beyond the original length.
    scaling = {
        "long_factor": [1.0, 1.4, 2.1, 3.0, 4.6, 6.0, 9.0, 12.0],
        "long_mscale": 1.4,
        "original_max_position_embeddings": 24,
        "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 3.6],
        "short_mscale": 1.1,
        "type": "longrope",
    }
    yield Case(
        "phimoe",
        "two experts of SparseMixer in all layers, layer norms, biases, a bias on the head, longrope whose factors are the short "
        "ones; bfloat16 file",
        base(
            "PhiMoEForCausalLM",
            "phimoe",
            attention_bias=True,
            head_dim=16,
            hidden_size=64,
            input_jitter_noise=0.01,
            intermediate_size=24,
            lm_head_bias=True,
            num_experts_per_tok=2,
            num_local_experts=4,
            original_max_position_embeddings=24,
            rope_scaling=scaling,
            router_jitter_noise=0.2,
            sliding_window=8,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            NO_SCALING,
            mutation("short_mscale", {"rope_scaling": {"short_mscale": 0.6}}),
            mutation("long_mscale", {"rope_scaling": {"long_mscale": 0.7}}),
            mutation("router_jitter_noise", {"router_jitter_noise": 0.0}),
            mutation("lm_head.bias", fill={"lm_head.bias": 0.0}),
            mutation("layernorm.bias", fill={"layernorm.bias": 0.0}),
            *windows(8),
            *no_bias(*QKVO),
        ],
        spreads=[("gate.weight", (2.0, None)), ("router.weight", (2.0, None))],
        **BF16,
    )

"""The float cases of nanochat, MiniMax 01 and Kimi Linear."""

import torch

from cases import ACTIVATION, EPS, THETA, Case, base, mutation, no_bias, windows

BF16 = {"dtype": torch.bfloat16}


def mixer_cases():
    yield from nanochat_cases()
    yield from minimax_cases()
    yield from kimi_linear_cases()


def nanochat_cases():
    cap = "final_logit_softcapping"
    yield Case(
        "nanochat",
        "norms without weights, also behind the embedding; queries and keys turn backwards and are normed behind the rope; an MLP "
        "without a gate; biases in the attention; a soft cap of the logits; bfloat16 file",
        base(
            "NanoChatForCausalLM",
            "nanochat",
            attention_bias=True,
            final_logit_softcapping=8.0,
            head_dim=16,
            hidden_act="relu2",
            rms_norm_eps=0.2,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation(cap, {cap: None}, changes="logits"),
            *no_bias("q_proj", "k_proj", "v_proj", "o_proj"),
        ],
        sparse=True,
        spreads=[("fc2.weight", (0.6, None)), ("o_proj.weight", (2.0, None)), ("o_proj.bias", (0.3, 0.0))],
        **BF16,
    )


def minimax_cases():
    names = ["full_attn", "linear_attn", "mlp"]
    factors = {f"{name}_{of}_factor": value for name in names for of, value in (("alpha", 1.4), ("beta", 0.7))}
    yield Case(
        "minimax",
        "lightning attention in every second layer, attention with a window in the others, weighted residuals of the normed inputs, "
        "experts; the file has decays as transformers writes them",
        base(
            "MiniMaxForCausalLM",
            "minimax",
            block_size=8,
            head_dim=12,
            intermediate_size=12,
            num_experts_per_tok=2,
            num_hidden_layers=4,
            num_local_experts=4,
            output_router_logits=False,
            postnorm=True,
            rotary_dim=6,
            router_aux_loss_coef=0.001,
            router_jitter_noise=0.0,
            shared_intermediate_size=0,
            shared_moe_mode="sigmoid",
            sliding_window=8,
            **factors,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("num_experts_per_tok", {"num_experts_per_tok": 3}),
            mutation("lightning norm", fill={"self_attn.norm.weight": 1.0}),
            mutation("output_gate", fill={"output_gate.weight": 0.0}),
            *[mutation(name, {name: 1.0}) for name in factors],
            *windows(8),
        ],
        spreads=[("self_attn.norm.weight", (0.4, 1.0)), ("layernorm.weight", (0.4, 1.0))],
    )


def kimi_linear_cases():
    yield Case(
        "kimi_linear",
        "delta rules whose channels decay by themselves, latent attention without a rope in every second layer with biases, experts in "
        "groups behind a dense layer; bfloat16 file",
        base(
            "KimiLinearForCausalLM",
            "kimi_linear",
            attention_bias=True,
            first_k_dense_replace=1,
            head_dim=18,
            kv_lora_rank=24,
            linear_attn_config={
                "full_attn_layers": [2, 4],
                "head_dim": 12,
                "kda_layers": [1, 3],
                "num_heads": 3,
                "short_conv_kernel_size": 4,
            },
            max_position_embeddings=None,
            mla_use_nope=True,
            model_max_length=512,
            moe_intermediate_size=12,
            moe_layer_freq=1,
            moe_renormalize=True,
            moe_router_activation_func="sigmoid",
            num_expert_group=2,
            num_experts=8,
            num_experts_per_token=2,
            num_hidden_layers=4,
            num_key_value_heads=4,
            num_nextn_predict_layers=0,
            num_shared_experts=2,
            pad_token_id=0,
            q_lora_rank=None,
            qk_nope_head_dim=12,
            qk_rope_head_dim=8,
            rope_scaling=None,
            routed_scaling_factor=1.6,
            topk_group=1,
            use_grouped_topk=True,
            v_head_dim=16,
        ),
        [
            EPS,
            ACTIVATION,
            mutation("decay", fill={"A_log": -9.0}),
            mutation("dt_bias", fill={"dt_bias": 0.0}),
            mutation("f_b_proj", fill={"f_b_proj.weight": 0.0}),
            mutation("b_proj", fill={"b_proj.weight": 0.0}),
            mutation("g_b_proj", fill={"g_b_proj.weight": 0.0}),
            mutation("o_norm", fill={"o_norm.weight": 1.0}),
            *[mutation(f"{part} taps", scale={f"{part}_conv1d.weight": 2.0}) for part in "qkv"],
            mutation("kv_a_layernorm", fill={"kv_a_layernorm.weight": 1.0}),
            *no_bias("kv_a_proj_with_mqa", "o_proj"),
            mutation("moe_renormalize", {"moe_renormalize": False}),
            mutation("num_expert_group", {"num_expert_group": 1}),
            mutation("num_experts_per_token", {"num_experts_per_token": 3}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0}),
            mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
        ],
        spreads=[
            ("A_log", (0.7, -0.5)),
            ("dt_bias", (0.7, 0.0)),
            ("conv1d.weight", (1.2, None)),
            ("layernorm.weight", (0.4, 1.0)),
            ("e_score_correction_bias", (0.4, 0.0)),
            ("kv_a_proj_with_mqa.weight", (1.8, None)),
        ],
        **BF16,
    )

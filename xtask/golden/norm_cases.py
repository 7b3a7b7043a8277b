"""The float cases of families with other norms, or norms in other places."""

import torch

from cases import ACTIVATION, EPS, K_NORM, NO_SCALING, Q_NORM, THETA, Case, base, mutation, no_bias, windows, with_keys
from family_cases import BF16, QKVO, UNGATED, YARN


def norm_cases():
    yield from olmo2_cases()
    yield from glm4_cases()
    yield from layer_norm_cases()
    yield from parallel_cases()
    yield from window_cases()


def olmo2_cases():
    yield Case(
        "olmo2",
        "norms behind each half of a layer, q and k normed over all heads at once, biases; bfloat16 file",
        base("Olmo2ForCausalLM", "olmo2", attention_bias=True, num_key_value_heads=2, rope_theta=500000.0),
        [THETA, EPS, ACTIVATION, Q_NORM, K_NORM, *no_bias(*QKVO)],
        spreads=[("post_attention_layernorm.weight", (0.4, 0.8)), ("post_feedforward_layernorm.weight", (0.4, 0.8))],
        sparse=True,
        dtype=torch.bfloat16,
    )


def glm4_cases():
    yield Case(
        "glm4",
        "four norms a layer, fused gate and up, half of a head rotates, in neighbours; bfloat16 file",
        base(
            "Glm4ForCausalLM",
            "glm4",
            attention_bias=True,
            eos_token_id=[2, 3, 5],
            head_dim=16,
            pad_token_id=3,
            partial_rotary_factor=0.5,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("partial_rotary_factor", {"partial_rotary_factor": 1.0}),
            mutation("post_self_attn_layernorm", fill={"post_self_attn_layernorm.weight": 1.0}),
            mutation("post_mlp_layernorm", fill={"post_mlp_layernorm.weight": 1.0}),
            mutation("post_attention_layernorm", fill={"post_attention_layernorm.weight": 1.0}),
            *no_bias("q_proj", "k_proj", "v_proj"),
        ],
        sparse=True,
        dtype=torch.bfloat16,
    )


def layer_norm_cases():
    norm_eps = mutation("norm_eps", {"norm_eps": 1e-6})
    yield Case(
        "starcoder2",
        "layer norms, biases everywhere, an MLP without a gate, a window; tied; bfloat16 file",
        base(
            "Starcoder2ForCausalLM",
            "starcoder2",
            embedding_dropout=0.0,
            hidden_act="gelu_pytorch_tanh",
            norm_epsilon=0.02,
            num_hidden_layers=3,
            residual_dropout=0.0,
            rms_norm_eps=None,
            rope_theta=100000.0,
            sliding_window=8,
            tie_word_embeddings=None,
            use_bias=True,
        ),
        [
            THETA,
            mutation("norm_epsilon", {"norm_epsilon": 1e-6}),
            ACTIVATION,
            mutation("sliding_window", {"sliding_window": None}),
            *windows(8),
            *no_bias(*QKVO, "c_fc", "c_proj", "input_layernorm", "post_attention_layernorm", "model.norm"),
        ],
        sparse=True,
        **BF16,
    )
    yield Case(
        "nemotron",
        "layer norms that store weight - 1, an MLP that squares, half of a head rotates, biases; bfloat16 file",
        base(
            "NemotronForCausalLM",
            "nemotron",
            attention_bias=True,
            head_dim=16,
            hidden_act="relu2",
            mlp_bias=True,
            norm_eps=0.02,
            partial_rotary_factor=0.5,
            rms_norm_eps=None,
        ),
        [
            THETA,
            norm_eps,
            ACTIVATION,
            mutation("partial_rotary_factor", {"partial_rotary_factor": 1.0}),
            mutation("norms without 1", fill={"input_layernorm.weight": -0.9}),
            *no_bias(*QKVO, *UNGATED, "input_layernorm", "post_attention_layernorm", "model.norm"),
        ],
        spreads=[("norm.weight", (0.4, 0.1))],
        sparse=True,
        **BF16,
    )
    stablelm = {"layer_norm_eps": 0.02, "rms_norm_eps": None, "hidden_dropout": 0.0, "qk_layernorm": False}
    layer_norm_eps = mutation("layer_norm_eps", {"layer_norm_eps": 1e-6})
    partial = mutation("partial_rotary_factor", {"partial_rotary_factor": 1.0})
    yield Case(
        "stablelm",
        "layer norms, a quarter of a head rotates, biases on q, k and v; bfloat16 file",
        base(
            "StableLmForCausalLM",
            "stablelm",
            num_attention_heads=2,
            num_key_value_heads=1,
            partial_rotary_factor=0.25,
            use_parallel_residual=False,
            use_qkv_bias=True,
            **stablelm,
        ),
        [
            THETA,
            layer_norm_eps,
            ACTIVATION,
            partial,
            *no_bias("q_proj", "k_proj", "v_proj", "input_layernorm", "post_attention_layernorm", "model.norm"),
        ],
        sparse=True,
        **BF16,
    )
    yield Case(
        "stablelm_parallel",
        "attention and MLP side by side; bfloat16 file",
        base(
            "StableLmForCausalLM",
            "stablelm",
            num_attention_heads=2,
            num_key_value_heads=2,
            partial_rotary_factor=0.5,
            use_parallel_residual=True,
            use_qkv_bias=False,
            **stablelm,
        ),
        [THETA, layer_norm_eps, ACTIVATION, partial, *no_bias("input_layernorm", "model.norm")],
        **BF16,
    )
    yield Case(
        "stablelm_norms",
        "layer norms on queries and keys, a tensor for each head (StableLM 2 12B); bfloat16 file",
        base(
            "StableLmForCausalLM",
            "stablelm",
            partial_rotary_factor=0.5,
            use_parallel_residual=True,
            use_qkv_bias=False,
            **stablelm | {"qk_layernorm": True},
        ),
        [
            THETA,
            layer_norm_eps,
            mutation("q_layernorm", fill={"q_layernorm.norms.3.weight": 0.2}),
            mutation("k_layernorm", fill={"k_layernorm.norms.1.weight": 0.2}),
        ],
        spreads=[(f"layernorm.norms.{n}.weight", (0.4, 1.5)) for n in range(4)],
        **BF16,
    )


def parallel_cases():
    layer_norm_eps = mutation("layer_norm_eps", {"layer_norm_eps": 1e-6})
    logit_scale = mutation("logit_scale", {"logit_scale": 0.125}, changes="logits")
    spreads = [
        ("embed_tokens.weight", (0.5, 0.0)),
        ("o_proj.weight", (2.5, None)),
        ("down_proj.weight", (2.5, None)),
        ("model.norm.weight", (0.8, 2.0)),
    ]
    cohere = {"layer_norm_eps": 0.02, "rms_norm_eps": None, "tie_word_embeddings": None, "num_hidden_layers": 3}
    yield Case(
        "cohere",
        "attention and MLP side by side, layer norms without bias, rope that pairs neighbours, scaled logits; "
        "bfloat16 file",
        base(
            "CohereForCausalLM",
            "cohere",
            attention_bias=True,
            logit_scale=0.4,
            rope_theta=8000000.0,
            use_qk_norm=False,
            **cohere,
        ),
        [THETA, layer_norm_eps, ACTIVATION, logit_scale, *no_bias(*QKVO)],
        spreads=spreads,
        sparse=True,
        **BF16,
    )
    yield Case(
        "cohere_norms",
        "layer norms on queries and keys with a weight for each head (Command R+); bfloat16 file",
        base(
            "CohereForCausalLM",
            "cohere",
            logit_scale=0.4,
            rope_theta=75000000.0,
            use_qk_norm=True,
            **cohere | {"num_hidden_layers": 2},
        ),
        [THETA, layer_norm_eps, Q_NORM, K_NORM],
        spreads=spreads,
        **BF16,
    )
    yield Case(
        "cohere2",
        "windows with rope, every third layer full and without; tied; bfloat16 file",
        base(
            "Cohere2ForCausalLM",
            "cohere2",
            attention_bias=False,
            cache_implementation="hybrid",
            logit_scale=0.4,
            order_of_interleaved_layers="local_attn_first",
            position_embedding_type="rope_gptj",
            rope_theta=50000.0,
            rotary_pct=1.0,
            sliding_window=8,
            sliding_window_pattern=3,
            use_qk_norm=False,
            **cohere,
        ),
        [
            THETA,
            layer_norm_eps,
            ACTIVATION,
            logit_scale,
            mutation("sliding_window_pattern", {"sliding_window_pattern": 2}),
            *windows(8),
        ],
        spreads=spreads,
        alternates={
            "config.v4.json": with_keys(layer_types=["sliding_attention", "sliding_attention", "full_attention"])
        },
        **BF16,
    )
    yield Case(
        "phi",
        "attention and MLP side by side, layer norms, biases also on the head, a part of a head rotates; bfloat16 file",
        base(
            "PhiForCausalLM",
            "phi",
            embd_pdrop=0.0,
            hidden_act="gelu_new",
            layer_norm_eps=0.02,
            num_attention_heads=2,
            num_key_value_heads=2,
            partial_rotary_factor=0.25,
            qk_layernorm=False,
            resid_pdrop=0.1,
            rms_norm_eps=None,
        ),
        [
            THETA,
            layer_norm_eps,
            ACTIVATION,
            mutation("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
            *no_bias("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2", "lm_head", "input_layernorm"),
            *no_bias("final_layernorm"),
        ],
        spreads=[("dense.weight", (1.4, None))],
        sparse=True,
        **BF16,
    )
    yield Case(
        "phi_norms",
        "layer norms with biases on queries and keys; bfloat16 file",
        base(
            "PhiForCausalLM",
            "phi",
            hidden_act="gelu_new",
            layer_norm_eps=0.02,
            num_attention_heads=2,
            num_key_value_heads=2,
            partial_rotary_factor=0.25,
            qk_layernorm=True,
            rms_norm_eps=None,
        ),
        [
            THETA,
            layer_norm_eps,
            mutation("q_layernorm", fill={"q_layernorm.weight": 0.2}),
            mutation("k_layernorm", fill={"k_layernorm.weight": 0.2}),
            *no_bias("q_layernorm", "k_layernorm"),
        ],
        spreads=[("dense.weight", (1.4, None)), ("layernorm.weight", (0.4, 1.2))],
        **BF16,
    )


def window_cases():
    after = [("post_attention_layernorm.weight", (0.4, 0.8)), ("post_feedforward_layernorm.weight", (0.4, 0.8))]
    yield Case(
        "olmo3",
        "a window on three of four layers, yarn on the others only; bfloat16 file",
        base(
            "Olmo3ForCausalLM",
            "olmo3",
            attention_bias=False,
            num_hidden_layers=4,
            rope_scaling=YARN | {"attention_factor": 1.2, "beta_fast": 8.0, "beta_slow": 1.0},
            rope_theta=100.0,
            sliding_window=8,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            Q_NORM,
            K_NORM,
            NO_SCALING,
            mutation("layer_types", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
            *windows(8),
        ],
        spreads=after,
        **BF16,
    )
    yield Case(
        "exaone4",
        "norms behind each half of a layer and on q and k, windows with rope, full layers without; bfloat16 file",
        base(
            "Exaone4ForCausalLM",
            "exaone4",
            head_dim=16,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            num_hidden_layers=3,
            rope_theta=1000000.0,
            sliding_window=8,
            sliding_window_pattern="LLG",
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            Q_NORM,
            K_NORM,
            mutation("layer_types", {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
            *windows(8),
        ],
        spreads=after,
        **BF16,
    )
    yield Case(
        "exaone4_full",
        "without windows every layer has rope; bfloat16 file",
        base(
            "Exaone4ForCausalLM",
            "exaone4",
            head_dim=16,
            layer_types=["full_attention"] * 2,
        )
        | {"sliding_window": None, "sliding_window_pattern": None},
        [THETA, EPS, Q_NORM, K_NORM],
        spreads=after,
        formula=True,
        **BF16,
    )

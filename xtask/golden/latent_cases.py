"""The float cases of families with multi-head latent attention."""

import torch

from cases import ACTIVATION, EPS, NO_SCALING, THETA, Case, base, mutation, no_bias
from family_cases import BF16

SPREADS = [
    ("mlp.gate.weight", (2.0, None)),
    ("e_score_correction_bias", (0.4, 0.0)),
    ("q_b_proj.weight", (1.8, None)),
    ("kv_a_proj_with_mqa.weight", (1.8, None)),
]
# The rotated and the plain part of a head, and its value, have sizes of their own.
SIZES = {
    "kv_lora_rank": 24,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
EXPERTS = {
    "moe_intermediate_size": 24,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "routed_scaling_factor": 1.6,
    "topk_group": 2,
}
YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 8.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.6,
    "original_max_position_embeddings": 64,
    "type": "yarn",
}
MUTATIONS = [
    THETA,
    EPS,
    ACTIVATION,
    mutation("kv_a_layernorm", fill={"kv_a_layernorm.weight": 1.0}),
    mutation("num_experts_per_tok", {"num_experts_per_tok": 3}),
    mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
    mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
]
QUERIES = mutation("q_a_layernorm", fill={"q_a_layernorm.weight": 1.0})
CORRECTION = mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0})
NORMED = mutation("norm_topk_prob", {"norm_topk_prob": False})
INTERLEAVE = mutation("rope_interleave", {"rope_interleave": False})
BIASES = no_bias("q_a_proj", "kv_a_proj_with_mqa", "o_proj")
SCALING = [
    NO_SCALING,
    mutation("factor", {"rope_scaling": {"factor": 2.0}}),
    mutation("mscale", {"rope_scaling": {"mscale": 0.2}}),
    mutation("mscale_all_dim", {"rope_scaling": {"mscale_all_dim": 0.0}}),
]
# Published, and not read by transformers.
IGNORED = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def with_head(tensors):
    """The tensors and a layer for multi-token prediction behind the last: another one like it, and what is around it."""
    layer = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    last = f"model.layers.{layer - 1}."
    head = {name.removeprefix(last): tensor.clone() for name, tensor in tensors.items() if name.startswith(last)}
    embedding, norm = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
    head |= {
        "eh_proj.weight": torch.cat([embedding[:32], -embedding[32:64]], dim=1),
        "embed_tokens.weight": embedding.clone(),
        "enorm.weight": norm.clone(),
        "hnorm.weight": norm.clone(),
        "shared_head.head.weight": tensors["lm_head.weight"].clone(),
        "shared_head.norm.weight": norm.clone(),
    }
    return tensors | {f"model.layers.{layer}.{name}": tensor for name, tensor in head.items()}


def with_published_names(tensors):
    """transformers' writer gives the text model's layers a name of the vision tower's."""
    blocks, layers = "language_model.model.blocks.", "language_model.model.layers."
    return {name.replace(blocks, layers): tensor for name, tensor in tensors.items()}


def latent_cases():
    yield from deepseek_cases()
    yield from other_cases()
    yield from indexed_cases()


def deepseek_cases():
    yield Case(
        "deepseek_v2",
        "latent attention with queries that are not compressed, the best experts by a softmax, yarn with both mscales, a "
        "dense layer in front, biases; bfloat16 file",
        base(
            "DeepseekV2ForCausalLM",
            "deepseek_v2",
            **SIZES,
            **EXPERTS | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
            attention_bias=True,
            first_k_dense_replace=1,
            moe_layer_freq=1,
            rope_scaling=YARN,
            scoring_func="softmax",
            topk_method="greedy",
        )
        | {"q_lora_rank": None},
        [*MUTATIONS, *SCALING, *no_bias("kv_a_proj_with_mqa", "o_proj")],
        spreads=SPREADS,
        **BF16,
    )
    yield Case(
        "deepseek_v2_groups",
        "compressed queries, experts of the groups with the best expert; bfloat16 file",
        base(
            "DeepseekV2ForCausalLM",
            "deepseek_v2",
            **SIZES,
            **EXPERTS | {"norm_topk_prob": False, "num_hidden_layers": 2, "topk_group": 1},
            topk_method="group_limited_greedy",
        ),
        [
            THETA,
            QUERIES,
            mutation("topk_method", {"topk_method": "greedy"}),
            mutation("topk_group", {"topk_group": 2}),
            mutation("n_group", {"n_group": 2}),
        ],
        formula=True,
        spreads=SPREADS,
        **BF16,
    )
    yield Case(
        "deepseek_v3",
        "latent attention, corrected sigmoids of the best groups, yarn with both mscales, a dense layer in front, biases; a layer "
        "for multi-token prediction that is kept; bfloat16 file",
        base(
            "DeepseekV3ForCausalLM",
            "deepseek_v3",
            **SIZES,
            **EXPERTS,
            **IGNORED,
            attention_bias=True,
            first_k_dense_replace=1,
            num_nextn_predict_layers=1,
            rope_scaling=YARN,
        ),
        [
            *MUTATIONS,
            *SCALING,
            *BIASES,
            QUERIES,
            CORRECTION,
            NORMED,
            INTERLEAVE,
            mutation("topk_group", {"topk_group": 1}),
            mutation("n_group", {"n_group": 2}),
        ],
        spreads=SPREADS,
        change=with_head,
        **BF16,
    )


def other_cases():
    yield Case(
        "glm4_moe_lite",
        "latent attention with values wider than plain keys, dense layers by mlp_layer_types, corrected sigmoids, biases; a layer "
        "for multi-token prediction that is kept; bfloat16 file",
        base(
            "Glm4MoeLiteForCausalLM",
            "glm4_moe_lite",
            **SIZES,
            **EXPERTS | {"n_group": 2, "topk_group": 1},
            attention_bias=True,
            mlp_layer_types=["dense", "sparse", "sparse"],
            num_nextn_predict_layers=1,
            partial_rotary_factor=1.0,
            topk_method="noaux_tc",
        ),
        [
            *MUTATIONS,
            *BIASES,
            QUERIES,
            CORRECTION,
            NORMED,
            INTERLEAVE,
            mutation("topk_group", {"topk_group": 2}),
        ],
        spreads=SPREADS,
        change=with_head,
        **BF16,
    )
    yarn = YARN | {"llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 8, "rope_theta": 1000.0}
    yield Case(
        "mistral4",
        "latent attention with queries that grow with their positions, yarn, the best experts by a softmax in all layers; "
        "experts as two tensors a layer; bfloat16 file",
        base(
            "Mistral4ForCausalLM",
            "mistral4",
            **SIZES,
            **EXPERTS | {"n_group": 2, "topk_group": 1, "num_hidden_layers": 2},
            rope_parameters=yarn,
            rope_theta=None,
        ),
        [
            *[m for m in MUTATIONS if m["name"] != "rope_theta"],
            QUERIES,
            NORMED,
            INTERLEAVE,
            mutation("rope_theta", {"rope_parameters": {"rope_theta": 30.0}}),
            mutation("factor", {"rope_parameters": {"factor": 2.0}}),
            mutation("mscale_all_dim", {"rope_parameters": {"mscale_all_dim": 0.0}}),
            mutation("llama_4_scaling_beta", {"rope_parameters": {"llama_4_scaling_beta": 0.0}}),
            mutation("topk_group", {"topk_group": 2}),
        ],
        spreads=SPREADS,
        **BF16,
    )
    text = base(
        "DeepseekV3ForCausalLM",
        "kimi_k2",
        **SIZES,
        **EXPERTS | {"n_group": 1, "topk_group": 1, "num_hidden_layers": 2},
        **IGNORED,
        first_k_dense_replace=1,
        rope_scaling=YARN,
    )
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "model_type": "kimi_k25_vision",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 2,
        "pos_emb_height": 2,
        "pos_emb_time": 2,
        "pos_emb_width": 2,
    }
    yield Case(
        "kimi_k25",
        "a multimodal checkpoint whose text model is DeepSeek V3 under another name; vision tensors that are skipped; bfloat16 file",
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "projection_hidden_size": 16,
            "text_config": text,
            "tie_word_embeddings": False,
            "transformers_version": "4.57.1",
            "vision_config": vision,
        },
        [
            mutation("rope_theta", {"text_config": {"rope_theta": 30.0}}),
            mutation("rope_scaling", {"text_config": {"rope_scaling": None}}),
            mutation("num_experts_per_tok", {"text_config": {"num_experts_per_tok": 3}}),
        ],
        spreads=SPREADS,
        change=with_published_names,
        **BF16,
    )


def indexed_cases():
    """Queries see fewer positions than the prompts have."""
    index = {"index_head_dim": 16, "index_n_heads": 8, "index_topk": 6}
    spreads = [("weights_proj.weight", (2.0, None)), ("indexer.k_norm.weight", (0.4, 1.0)), *SPREADS]
    common = [
        THETA,
        EPS,
        QUERIES,
        CORRECTION,
        mutation("index_topk", {"index_topk": 9}),
        mutation("indexer.k_norm.weight", fill={"indexer.k_norm.weight": 1.0}),
        mutation("indexer.k_norm.bias", fill={"indexer.k_norm.bias": 0.0}),
        mutation("weights_proj", fill={"indexer.weights_proj.weight": 1.0}),
    ]
    yield Case(
        "deepseek_v32",
        "queries that see what an indexer in each layer chooses, yarn with both mscales; bfloat16 file",
        base(
            "DeepseekV32ForCausalLM",
            "deepseek_v32",
            **SIZES,
            **EXPERTS | {"num_hidden_layers": 2},
            **index,
            **IGNORED,
            first_k_dense_replace=1,
            rope_scaling=YARN,
        ),
        [*common, *SCALING[1:], mutation("topk_group", {"topk_group": 1})],
        spreads=spreads,
        **BF16,
    )
    yield Case(
        "glm_moe_dsa",
        "queries that see what the indexers of some layers choose, also for layers behind them; biases; bfloat16 file",
        base(
            "GlmMoeDsaForCausalLM",
            "glm_moe_dsa",
            **SIZES,
            **EXPERTS | {"n_group": 1, "topk_group": 1},
            **index,
            attention_bias=True,
            indexer_rope_interleave=True,
            indexer_types=["full", "shared", "full"],
            mlp_layer_types=["dense", "sparse", "sparse"],
            rope_interleave=True,
        ),
        [*common, *BIASES],
        spreads=spreads,
        **BF16,
    )

"""The float cases of the Gemma family."""

import torch

from cases import EPS, K_NORM, Q_NORM, V, Case, base, mutation, windows, with_keys

# Gemma's norms multiply by 1 + weight. Sub-layers end in a norm, so these spreads determine how
# much each sub-layer adds to the residual. Embeddings are small beside it: with a tied head a
# token's own large embedding would make the model repeat it.
SPREADS = [
    ("embed_tokens.weight", (0.2, 0.0)),
    ("q_norm.weight", (0.3, 0.5)),
    ("k_norm.weight", (0.3, 0.5)),
    ("post_attention_layernorm.weight", (0.4, 0.8)),
    ("post_feedforward_layernorm.weight", (0.4, 0.8)),
    ("layernorm.weight", (0.4, 0.1)),
    ("norm.weight", (0.4, 1.2)),
]

# Without the factor sqrt(hidden) the embeddings are smaller by that factor. With a tied head the
# logits are only scaled by it, so a change of greedy tokens comes from the input side alone.
EMBED_SCALE = mutation("embedding scale", scale={"embed_tokens.weight": 32**-0.5})
THETA = mutation("rope_theta", {"rope_theta": 300.0})
ACTIVATION = mutation("hidden_activation", {"hidden_activation": "relu"})


def gemma(architecture, model_type, **more):
    fixed = {
        "attention_bias": False,
        "eos_token_id": [1, 7],
        "bos_token_id": 2,
        "head_dim": 16,
        "hidden_act": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 24,
        "sliding_window": 8,
        "tie_word_embeddings": None,
    }
    return base(architecture, model_type, **fixed | more)


def as_transformers_4_53(config):
    """What stands in the files of gemma-3-270m: layer_types and an unused pattern beside the older rope keys."""
    pattern = config["sliding_window_pattern"]
    kinds = ["full_attention" if (n + 1) % pattern == 0 else "sliding_attention" for n in range(4)]
    keys = {
        "_sliding_window_pattern": pattern,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "layer_types": kinds,
        "use_bidirectional_attention": False,
    }
    return {k: v for k, v in config.items() if k != "sliding_window_pattern"} | keys


def gemma_cases():
    scalar = mutation("query_pre_attn_scalar", {"query_pre_attn_scalar": 16})
    final_cap = mutation("final_logit_softcapping", {"final_logit_softcapping": None}, changes="logits")
    yield Case(
        "gemma2",
        "soft caps on attention and on logits, window on every second layer, query_pre_attn_scalar; bfloat16 file",
        gemma(
            "Gemma2ForCausalLM",
            "gemma2",
            attn_logit_softcapping=2.0,
            cache_implementation="hybrid",
            final_logit_softcapping=5.0,
            hidden_act="gelu_pytorch_tanh",
            sliding_window_size=8,
        ),
        [
            THETA,
            EPS,
            scalar,
            EMBED_SCALE,
            mutation("hidden_activation", {"hidden_activation": "relu", "hidden_act": "relu"}),
            mutation("attn_logit_softcapping", {"attn_logit_softcapping": None}),
            mutation("attn_logit_softcapping_4", {"attn_logit_softcapping": 4.0}),
            final_cap,
            mutation("sliding_window", {"sliding_window": 4096, "sliding_window_size": 4096}),
            mutation("layer_types", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
            *windows(8),
        ],
        sparse=True,
        alternates={"config.v4.json": with_keys(layer_types=["sliding_attention", "full_attention"] * 2)},
        spreads=[("q_proj.weight", (2.4, None)), ("k_proj.weight", (2.4, None)), *SPREADS],
        dtype=torch.bfloat16,
    )
    text = {
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1000000.0,
        "sliding_window_pattern": 3,
    }
    rope = [
        THETA,
        mutation("rope_local_base_freq", {"rope_local_base_freq": 10000.0}),
        mutation("rope_scaling", {"rope_scaling": None}),
        mutation("rope_scaling factor", {"rope_scaling": {"factor": 2.0}}),
    ]
    common = [EPS, scalar, EMBED_SCALE, ACTIVATION, Q_NORM, K_NORM]
    yield Case(
        "gemma3_text",
        "two rope bases, linear scaling on global layers only, every third layer global, q and k norms; bfloat16 file",
        gemma("Gemma3ForCausalLM", "gemma3_text", **text),
        [
            *common,
            *rope,
            mutation("sliding_window", {"sliding_window": 4096}),
            mutation("sliding_window_pattern", {"sliding_window_pattern": 2}),
            *windows(8),
        ],
        spreads=SPREADS,
        alternates={"config.v4.json": as_transformers_4_53},
        generation={"bos_token_id": 2, "eos_token_id": [1, 7], "do_sample": True, "top_k": 64, "top_p": 0.95},
        dtype=torch.bfloat16,
    )
    full, sliding = "full_attention", "sliding_attention"
    rope_parameters = {
        full: {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 4.0},
        sliding: {"rope_type": "default", "rope_theta": 100.0},
    }
    yield Case(
        "gemma3_text_v5",
        "transformers 5's keys: layer_types of no pattern, rope_parameters by layer type; a cap on the logits; "
        "bfloat16 file",
        gemma(
            "Gemma3ForCausalLM",
            "gemma3_text",
            final_logit_softcapping=5.0,
            layer_types=[full, sliding, sliding, full],
            rope_parameters=rope_parameters,
            rope_theta=None,
        ),
        [
            *common,
            final_cap,
            mutation("layer_types", {"layer_types": [sliding, sliding, sliding, full]}),
            mutation("rope_parameters full theta", {"rope_parameters": {full: {"rope_theta": 300.0}}}),
            mutation("rope_parameters full factor", {"rope_parameters": {full: {"factor": 1.0}}}),
            mutation("rope_parameters sliding theta", {"rope_parameters": {sliding: {"rope_theta": 10000.0}}}),
            *windows(8),
        ],
        v5=True,
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )
    yield from multimodal_cases(text)


def multimodal(text, **more):
    vision = {
        "hidden_size": 8,
        "image_size": 8,
        "intermediate_size": 8,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 4,
        "vision_use_head": False,
    }
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 61,
        "eoi_token_index": 62,
        "eos_token_id": [1, 7],
        "image_token_index": 63,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 4,
        "model_type": "gemma3",
        "text_config": text,
        "transformers_version": "4.50.0.dev0",
        "vision_config": vision,
        **more,
    }


OLD_PREFIXES = (
    ("model.language_model.", "language_model.model."),
    ("model.vision_tower.", "vision_tower.vision_model."),
    ("vision_tower.", "vision_tower.vision_model."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)
NEW_PREFIXES = (
    ("language_model.model.", "model.language_model."),
    ("vision_tower.", "model.vision_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
)


def in_text(changes):
    """The same mutation, of text_config."""
    return [{**m, "config": {"text_config": m["config"]}} if "config" in m else m for m in changes]


def multimodal_cases(text):
    scaled = gemma("", "gemma3_text", **text)
    dropped = {"architectures", "transformers_version", "use_cache"}
    config = {k: v for k, v in scaled.items() if k not in dropped}
    scalar = mutation("query_pre_attn_scalar", {"query_pre_attn_scalar": 16})
    changes = [
        scalar,
        THETA,
        EPS,
        mutation("rope_local_base_freq", {"rope_local_base_freq": 10000.0}),
        mutation("rope_scaling", {"rope_scaling": None}),
        mutation("sliding_window", {"sliding_window": 4096}),
        mutation("sliding_window_pattern", {"sliding_window_pattern": 2}),
        EMBED_SCALE,
    ]
    yield Case(
        "gemma3",
        "text tower of a multimodal checkpoint, names language_model.model. as first published; vision tensors beside; "
        "bfloat16 file",
        multimodal(config),
        in_text(changes),
        spreads=SPREADS,
        dtype=torch.bfloat16,
        rename=OLD_PREFIXES,
    )
    yield Case(
        "gemma3_v5",
        "the same with names model.language_model. and transformers 5's config; two files and an index",
        multimodal(config),
        in_text(
            [
                scalar,
                mutation("rope sliding", {"rope_parameters": {"sliding_attention": {"rope_theta": 10000.0}}}),
                mutation("rope full", {"rope_parameters": {"full_attention": {"factor": 1.0}}}),
                mutation("layer_types", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
                mutation("sliding_window", {"sliding_window": 4096}),
            ]
        ),
        v5=True,
        spreads=SPREADS,
        rename=NEW_PREFIXES,
        shards=2,
        dtype=torch.bfloat16,
    )
    # As the 4B checkpoint: heads, head_dim, bases and scalar are left to the defaults of the architecture.
    sparse = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "model_type": "gemma3_text",
        "num_hidden_layers": 2,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 8,
        "vocab_size": V,
    }
    yield Case(
        "gemma3_defaults",
        "a text_config with only the keys of gemma-3-4b-it: 8 heads, 4 key-value heads of 256, scalar 256 by default",
        multimodal(sparse),
        in_text(
            [
                mutation("query_pre_attn_scalar", {"query_pre_attn_scalar": 64}),
                mutation("rope_local_base_freq", {"rope_local_base_freq": 100.0}),
                mutation("sliding_window", {"sliding_window": 4096}),
                mutation("sliding_window_pattern", {"sliding_window_pattern": 2}),
            ]
        ),
        # Smaller q and k norms: a product over 256 dimensions would make the attention one-hot.
        spreads=[("q_norm.weight", (0.2, -0.2)), ("k_norm.weight", (0.2, -0.2)), *SPREADS],
        dtype=torch.bfloat16,
        rename=OLD_PREFIXES,
        formula=True,
    )

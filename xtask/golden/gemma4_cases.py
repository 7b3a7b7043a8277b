"""The float cases of Gemma 4."""

import torch

from cases import EPS, Case, base, mutation, windows
from gemma_cases import ACTIVATION, in_text

SPREADS = [
    ("embed_tokens.weight", (0.25, 0.0)),
    ("embed_tokens_per_layer.weight", (0.4, 0.0)),
    ("q_norm.weight", (0.2, 1.0)),
    ("k_norm.weight", (0.2, 0.9)),
    ("post_attention_layernorm.weight", (0.4, 1.2)),
    ("post_feedforward_layernorm.weight", (0.4, 1.2)),
    ("post_feedforward_layernorm_1.weight", (0.4, 1.0)),
    ("post_feedforward_layernorm_2.weight", (0.4, 1.0)),
    ("pre_feedforward_layernorm_2.weight", (0.4, 1.0)),
    ("post_per_layer_input_norm.weight", (0.4, 1.0)),
    ("router.scale", (0.5, 1.2)),
    ("router.proj.weight", (3.0, None)),
    ("per_expert_scale", (0.5, 1.2)),
    ("layer_scalar", (0.25, 0.9)),
    ("norm.weight", (0.4, 1.2)),
]
S, F = "sliding_attention", "full_attention"
H, P, LAYERS = 32, 16, 6
ROPE = {
    F: {"partial_rotary_factor": 0.25, "rope_theta": 1000.0, "rope_type": "proportional"},
    S: {"rope_theta": 100.0, "rope_type": "default"},
}
EMBED_SCALE = mutation("embedding scale", scale={"embed_tokens.weight": H**-0.5})
TABLE_SCALE = mutation("scale of the table of layers' inputs", scale={"embed_tokens_per_layer.weight": P**-0.5})


def text(architecture="", model_type="gemma4_text", **more):
    fixed = {
        "attention_bias": False,
        "attention_k_eq_v": False,
        "bos_token_id": 2,
        "enable_moe_block": False,
        "eos_token_id": [1, 7],
        "final_logit_softcapping": 8.0,
        "global_head_dim": 16,
        "head_dim": 8,
        "hidden_act": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": H,
        "hidden_size_per_layer_input": P,
        "layer_types": [S, F] * (LAYERS // 2),
        "num_hidden_layers": LAYERS,
        "num_kv_shared_layers": 2,
        "pad_token_id": 0,
        "rope_parameters": ROPE,
        "rope_theta": None,
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "transformers_version": "5.5.0.dev0",
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 64,
    }
    return base(architecture, model_type, **fixed | more)


def wrapper(text, architecture="Gemma4ForConditionalGeneration", model_type="gemma4", **more):
    """A multimodal checkpoint without its towers' configs: transformers then reads the text model alone."""
    outside = ("architectures", "transformers_version", "use_cache")
    return {
        "architectures": [architecture],
        "audio_config": None,
        "audio_token_id": 258_881,
        "boi_token_id": 255_999,
        "eoi_token_id": 258_882,
        "eos_token_id": [1, 7],
        "image_token_id": 258_880,
        "model_type": model_type,
        "text_config": {k: v for k, v in text.items() if k not in outside},
        "tie_word_embeddings": True,
        "transformers_version": "5.5.0.dev0",
        "vision_config": None,
        **more,
    }


TOWERS = {
    "model.audio_tower.output_proj.weight": (8, 4),
    "model.embed_audio.embedding_projection.weight": (H, 4),
    "model.embed_vision.embedding_projection.weight": (H, 4),
    "model.vision_tower.patch_embedder.input_proj.weight": (8, 4),
    "model.vision_tower.encoder.layers.0.self_attn.q_proj.input_max": (1,),
}


def ropes():
    return [
        mutation("theta of full layers", {"rope_parameters": {F: {"rope_theta": 20.0}}}),
        mutation("theta of sliding layers", {"rope_parameters": {S: {"rope_theta": 10000.0}}}),
        mutation("partial_rotary_factor", {"rope_parameters": {F: {"partial_rotary_factor": 0.75}}}),
        mutation("rope_type", {"rope_parameters": {F: {"rope_type": "default"}}}),
    ]


INPUTS = [
    mutation("layers' inputs", fill={"per_layer_projection.weight": 0.0}),
    mutation("table of layers' inputs", fill={"embed_tokens_per_layer.weight": 0.0}),
    mutation("projection of layers' inputs", fill={"per_layer_model_projection.weight": 0.0}),
    mutation("norm of layers' inputs", fill={"per_layer_projection_norm.weight": 1.0}),
    mutation("norm behind layers' inputs", fill={"post_per_layer_input_norm.weight": 1.0}),
    TABLE_SCALE,
]
NORMS = [
    mutation("q_norm", fill={"self_attn.q_norm.weight": 1.0}),
    mutation("k_norm", fill={"self_attn.k_norm.weight": 1.0}),
    mutation("layer_scalar", fill={"layer_scalar": 1.0}),
]
SOFTCAP = mutation("final_logit_softcapping", {"final_logit_softcapping": 30.0}, changes="logits")


def unused(layers, kv):
    """Projections of layers that read the keys and values of others, as some published files have them."""
    tensors = {}
    for layer, head in layers:
        prefix = f"model.language_model.layers.{layer}.self_attn."
        tensors |= {f"{prefix}{n}_proj.weight": (kv * head, H) for n in "kv"} | {f"{prefix}k_norm.weight": (head,)}
    return tensors


def gemma4_cases():
    yield Case(
        "gemma4_text",
        "layers of two head sizes, of which the last two read keys and values of earlier ones and have MLPs of twice the "
        "width; inputs of single layers; proportional rope; soft cap; attention biases; bfloat16 file",
        text("Gemma4ForCausalLM", attention_bias=True, use_double_wide_mlp=True),
        [
            *ropes(),
            *INPUTS,
            *NORMS,
            *windows(8),
            *[mutation(f"{n}_proj.bias", fill={f"{n}_proj.bias": 0.0}) for n in "qkvo"],
            EMBED_SCALE,
            SOFTCAP,
            ACTIVATION,
            EPS,
        ],
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )
    yield Case(
        "gemma4",
        "text tower of a multimodal checkpoint under published names, with tensors of the other towers and projections of "
        "layers that do not use them; two files and an index; bfloat16 file",
        wrapper(text()),
        in_text(
            [
                *INPUTS[:3],
                *NORMS,
                mutation("num_kv_shared_layers", {"num_kv_shared_layers": 1}),
                mutation("sliding_window", {"sliding_window": 4096}),
                SOFTCAP,
                EMBED_SCALE,
            ]
        ),
        extra=unused([(4, 8), (5, 16)], 2) | TOWERS,
        spreads=SPREADS,
        shards=2,
        dtype=torch.bfloat16,
    )
    experts = text(
        attention_k_eq_v=True,
        enable_moe_block=True,
        final_logit_softcapping=None,
        hidden_size_per_layer_input=0,
        layer_types=[S, F, S, F],
        moe_intermediate_size=12,
        num_experts=4,
        num_global_key_value_heads=1,
        num_hidden_layers=4,
        num_kv_shared_layers=0,
        top_k_experts=2,
    )
    yield Case(
        "gemma4_experts",
        "text tower of a multimodal checkpoint with experts beside the MLP, and keys that are values in full layers, which "
        "have fewer of them; bfloat16 file",
        wrapper(experts),
        in_text(
            [
                *ropes()[:3],
                *NORMS,
                *windows(8),
                mutation("top_k_experts", {"top_k_experts": 1}),
                mutation("router's scale", fill={"router.scale": 1.0}),
                mutation("per_expert_scale", fill={"router.per_expert_scale": 1.0}),
                mutation("experts", fill={"experts.down_proj": 0.0}),
                mutation("norm before experts", fill={"pre_feedforward_layernorm_2.weight": 1.0}),
                mutation("norm of the MLP", fill={"post_feedforward_layernorm_1.weight": 1.0}),
                mutation("norm of experts", fill={"post_feedforward_layernorm_2.weight": 1.0}),
                EMBED_SCALE,
                ACTIVATION,
                EPS,
            ]
        ),
        extra=TOWERS,
        spreads=SPREADS,
        dtype=torch.bfloat16,
        formula=True,
    )
    unified = text(
        model_type="gemma4_unified_text",
        attention_k_eq_v=True,
        enable_moe_block=None,
        hidden_size_per_layer_input=None,
        layer_types=[S, S, F],
        num_global_key_value_heads=1,
        num_hidden_layers=3,
        num_kv_shared_layers=0,
        use_bidirectional_attention="vision",
        use_double_wide_mlp=None,
        vocab_size_per_layer_input=None,
    )
    yield Case(
        "gemma4_unified",
        "text model of a multimodal checkpoint without towers, with tensors of its embedders; keys that are values in full "
        "layers; bfloat16 file",
        wrapper(unified, "Gemma4UnifiedForConditionalGeneration", "gemma4_unified"),
        in_text(
            [
                *ropes(),
                *NORMS,
                *windows(8),
                SOFTCAP,
                EMBED_SCALE,
                EPS,
            ]
        ),
        extra={
            "model.embed_audio.embedding_projection.weight": (H, 4),
            "model.embed_vision.embedding_projection.weight": (H, 4),
            "model.vision_embedder.patch_dense.weight": (8, 4),
        },
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )

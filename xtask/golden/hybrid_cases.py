"""The float cases of decoders with recurrent layers: gated delta rule in most layers, gated attention in the others."""

import torch

from cases import EPS, Case, base, mutation, no_bias, with_keys
from gemma_cases import in_text

# Norms are stored less 1, except the one after the recurrence.
SPREADS = [
    ("linear_attn.norm.weight", (0.4, 1.0)),
    ("q_norm.weight", (0.4, 0.5)),
    ("k_norm.weight", (0.4, 0.5)),
    ("norm.weight", (0.4, 0.0)),
    ("A_log", (0.7, -0.5)),
    ("dt_bias", (0.7, 0.0)),
    ("conv1d.weight", (1.2, None)),
    ("shared_expert_gate.weight", (2.0, None)),
]
H, HD, HEADS, KV = 32, 16, 2, 1
DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "moe_intermediate_size": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 12,
}
ROPE = {
    "mrope_interleaved": True,
    "mrope_section": [1, 1, 0],
    "partial_rotary_factor": 0.25,
    "rope_theta": 1000.0,
    "rope_type": "default",
}


def hybrid(architecture, model_type, **more):
    fixed = {
        "attention_bias": False,
        "attn_output_gate": True,
        "head_dim": HD,
        "hidden_size": H,
        "intermediate_size": 40,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "rope_theta": None,
    }
    return base(architecture, model_type, **fixed | DELTA | more)


def head(mlp):
    """The tensors of a head for multi-token prediction, which transformers skips."""
    layer = "mtp.layers.0."
    norms = ["mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"]
    norms += [f"{layer}input_layernorm", f"{layer}post_attention_layernorm"]
    return {
        "mtp.fc.weight": (H, 2 * H),
        **{f"{norm}.weight": (H,) for norm in norms},
        **{f"{layer}self_attn.{n}_norm.weight": (HD,) for n in "qk"},
        f"{layer}self_attn.q_proj.weight": (2 * HEADS * HD, H),
        **{f"{layer}self_attn.{n}_proj.weight": (KV * HD, H) for n in "kv"},
        f"{layer}self_attn.o_proj.weight": (H, HEADS * HD),
        **{f"{layer}mlp.{name}": shape for name, shape in mlp.items()},
    }


DENSE = {"gate_proj.weight": (40, H), "up_proj.weight": (40, H), "down_proj.weight": (H, 40)}
SPARSE = {
    "gate.weight": (4, H),
    "experts.gate_up_proj": (4, 16, H),
    "experts.down_proj": (4, H, 8),
    "shared_expert.gate_proj.weight": (12, H),
    "shared_expert.up_proj.weight": (12, H),
    "shared_expert.down_proj.weight": (H, 12),
    "shared_expert_gate.weight": (1, H),
}

# The parts of the layers, each with a change that removes its effect.
PIECES = [
    mutation("decay", fill={"A_log": -9.0}),
    mutation("dt_bias", fill={"dt_bias": 0.0}),
    mutation("recurrence's norm", fill={"linear_attn.norm.weight": 1.0}),
    mutation("q_norm", fill={"self_attn.q_norm.weight": 0.0}),
    mutation("k_norm", fill={"self_attn.k_norm.weight": 0.0}),
    mutation("norms without their 1", fill={"input_layernorm.weight": 0.0}),
    mutation("final norm", fill={"model.norm.weight": 0.0}),
]
ACTIVATION = mutation("hidden_act", {"hidden_act": "relu"})
BIASES = {"q": 2 * HEADS * HD, "k": KV * HD, "v": KV * HD, "o": H}
LINEAR, FULL = "linear_attention", "full_attention"


def fused(tensors):
    """Experts as published: one tensor of gates and ups, one of downs."""
    experts = {}
    for name in [name for name in tensors if ".mlp.experts." in name and name.endswith(".weight")]:
        layer, _, rest = name.partition(".mlp.experts.")
        number, projection, _ = rest.split(".")
        experts.setdefault(layer, {}).setdefault(projection, {})[int(number)] = tensors.pop(name)
    for layer, of in experts.items():
        gate, up, down = (
            torch.stack([of[p][number] for number in sorted(of[p])]) for p in ("gate_proj", "up_proj", "down_proj")
        )
        tensors[f"{layer}.mlp.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[f"{layer}.mlp.experts.down_proj"] = down
    return tensors


VISION = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": H}


def wrapper(architecture, model_type, text, **more):
    """A multimodal checkpoint around a text model."""
    outside = ("architectures", "transformers_version", "use_cache")
    return {
        "architectures": [architecture],
        "image_token_id": 60,
        "model_type": model_type,
        "text_config": {k: v for k, v in text.items() if k not in outside},
        "transformers_version": "5.2.0",
        "video_token_id": 61,
        "vision_config": VISION | {"model_type": model_type},
        "vision_end_token_id": 63,
        "vision_start_token_id": 62,
        **more,
    }


HUB = (("model.", "model.language_model."),)
TOWER = {"model.visual.patch_embed.proj.weight": (8, 3), "model.visual.merger.norm.weight": (8,)}


def hybrid_cases():
    theta = mutation("rope_theta", {"rope_parameters": {"rope_theta": 10.0}})
    partial = mutation("partial_rotary_factor", {"rope_parameters": {"partial_rotary_factor": 0.75}})
    bias = no_bias("q_proj", "k_proj", "v_proj", "o_proj")
    yield Case(
        "qwen3_5_text",
        "recurrent layers and every second one with gated attention, of which a quarter of the head rotates; norms stored "
        "less 1; attention biases; a head for multi-token prediction; bfloat16 file",
        hybrid(
            "Qwen3_5ForCausalLM",
            "qwen3_5_text",
            attention_bias=True,
            full_attention_interval=2,
            num_hidden_layers=3,
            rope_parameters=ROPE,
        ),
        [*PIECES, *bias, theta, partial, EPS, ACTIVATION],
        extra=head(DENSE) | {f"mtp.layers.0.self_attn.{n}_proj.bias": (n_out,) for n, n_out in BIASES.items()},
        alternates={"config.v4.json": with_keys(rope_parameters=None, rope_theta=1000.0, partial_rotary_factor=0.25)},
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )
    layers = [LINEAR, FULL, LINEAR]
    text = hybrid(
        "",
        "qwen3_5_text",
        layer_types=layers,
        linear_conv_kernel_dim=3,
        linear_num_value_heads=2,
        linear_value_head_dim=12,
        num_hidden_layers=3,
        rope_parameters=ROPE | {"partial_rotary_factor": 0.5},
        tie_word_embeddings=True,
    )
    yield Case(
        "qwen3_5",
        "text tower of a multimodal checkpoint under published names, with vision tensors and a head for multi-token "
        "prediction; layer_types of no pattern; tied; two files and an index; bfloat16 file",
        wrapper("Qwen3_5ForConditionalGeneration", "qwen3_5", text, tie_word_embeddings=True),
        in_text([*PIECES[:2], *PIECES[3:6], theta, partial, EPS]),
        extra=head(DENSE) | TOWER,
        rename=HUB,
        shards=2,
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )
    experts = mutation("num_experts_per_tok", {"num_experts_per_tok": 3})
    shared = [
        mutation("shared expert", fill={"shared_expert.down_proj.weight": 0.0}),
        mutation("shared expert's gate", fill={"shared_expert_gate.weight": 0.0}),
    ]
    yarn = ROPE | {"factor": 4.0, "original_max_position_embeddings": 32, "rope_type": "yarn"}
    text = hybrid(
        "", "qwen3_5_moe_text", intermediate_size=None, full_attention_interval=2, rope_parameters=yarn, **EXPERTS
    )
    yield Case(
        "qwen3_5_moe",
        "text tower of a multimodal checkpoint with experts as two tensors a layer and a shared one; yarn on a quarter of the "
        "head; a head for multi-token prediction with experts; bfloat16 file",
        wrapper("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", text, tie_word_embeddings=False),
        in_text(
            [
                *PIECES[:1],
                *shared,
                experts,
                theta,
                mutation("factor", {"rope_parameters": {"factor": 1.5}}),
                mutation("rope_type", {"rope_parameters": {"rope_type": "default"}}),
            ]
        ),
        extra=head(SPARSE) | TOWER,
        change=fused,
        rename=HUB,
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )
    yield Case(
        "qwen3_next",
        "fused projections head by head; experts one tensor each, not normalised, in every second layer but one; the keys of "
        "the first published configs; bfloat16 file",
        hybrid(
            "Qwen3NextForCausalLM",
            "qwen3_next",
            attn_output_gate=None,
            decoder_sparse_step=1,
            full_attention_interval=2,
            mamba_ssm_dtype=None,
            mlp_only_layers=[0],
            mtp_num_hidden_layers=None,
            mtp_use_dedicated_embeddings=None,
            norm_topk_prob=False,
            num_hidden_layers=3,
            partial_rotary_factor=0.25,
            rope_scaling=None,
            rope_theta=1000.0,
            **EXPERTS,
        ),
        [
            *PIECES,
            *shared,
            experts,
            mutation("rope_theta", {"rope_theta": 10.0}),
            mutation("partial_rotary_factor", {"partial_rotary_factor": 0.75}),
            mutation("norm_topk_prob", {"norm_topk_prob": True}),
            EPS,
            ACTIVATION,
        ],
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )


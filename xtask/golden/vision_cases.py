"""The float cases of text models inside vision models, as they are published."""

import torch

from cases import ACTIVATION, EPS, K_NORM, Q_NORM, THETA, Case, base, mutation, no_bias
from gemma_cases import in_text
from scan_cases import SCAN_SPREADS, scan_pieces

BF16 = {"dtype": torch.bfloat16}
QKV = ("q_proj", "k_proj", "v_proj")
TOP_K = mutation("num_experts_per_tok", {"num_experts_per_tok": 3})
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}


def nemotron_h_omni():
    text = base(
        "",
        "nemotron_h",
        attention_bias=False,
        chunk_size=8,
        conv_kernel=4,
        expand=2,
        head_dim=12,
        hidden_act=None,
        hybrid_override_pattern="ME*E",
        layer_norm_epsilon=0.02,
        mamba_head_dim=16,
        mamba_hidden_act="silu",
        mamba_num_heads=4,
        mlp_hidden_act="relu2",
        moe_intermediate_size=12,
        moe_shared_expert_intermediate_size=20,
        n_group=1,
        n_groups=2,
        n_routed_experts=4,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=2,
        num_hidden_layers=4,
        pad_token_id=0,
        rms_norm_eps=None,
        rope_theta=None,
        routed_scaling_factor=2.5,
        ssm_state_size=8,
        time_step_min=1e-9,
        topk_group=1,
        use_conv_bias=True,
    )
    text = {key: value for key, value in text.items() if key not in ("architectures", "transformers_version")}
    tower = {
        "hidden_size": 16,
        "image_size": 16,
        "max_img_size": 16,
        "model_type": "radio",
        "num_attention_heads": 2,
        "num_cls_tokens": 1,
        "num_hidden_layers": 1,
        "num_registers": 1,
        "patch_size": 4,
        "summary_idxs": [0],
        "video_temporal_patch_size": 2,
    }
    config = {
        "architectures": ["NemotronH_Omni_Reasoning_V3"],
        "downsample_ratio": 0.5,
        "image_token_id": 60,
        "model_type": "nemotron_h_omni",
        "projector_hidden_size": 16,
        "text_config": text,
        "transformers_version": "5.24.0",
        "video_temporal_patch_size": 2,
        "video_token_id": 61,
        "vision_config": tower,
        "vision_hidden_size": 16,
    }
    names = {"image_token_id": "img_context_token_id", "text_config": "llm_config", "vision_hidden_size": "vit_hidden_size"}

    def published(config):
        found = {names.get(key, key): value for key, value in config.items()}
        return found | {"architectures": ["NemotronH_Nano_Omni_Reasoning_V3"], "model_type": "NemotronH_Nano_Omni_Reasoning_V3"}

    return Case(
        "nemotron_h_omni",
        "Nemotron H as the text model beside a vision tower, whose keys are also under their published names; bfloat16 weights",
        config,
        in_text(
            [
                TOP_K,
                mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6}),
                mutation("mlp_hidden_act", {"mlp_hidden_act": "silu"}),
                mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
                *scan_pieces("mixer", ()),
            ]
        ),
        spreads=[("e_score_correction_bias", (0.3, 0.0)), *SCAN_SPREADS],
        alternates={"config.hub.json": published},
        formula=True,
        **BF16,
    )


def vision_cases():
    yield nemotron_h_omni()
    sections = {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"}
    flat = base(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        image_token_id=60,
        max_window_layers=1,
        rope_scaling={"mrope_section": [1, 1, 2], "type": "mrope"},
        sliding_window=8,
        use_sliding_window=False,
        video_token_id=61,
        vision_config=VISION | {"fullatt_block_indexes": [0], "out_hidden_size": 32},
        vision_end_token_id=62,
        vision_start_token_id=63,
    )
    yield Case(
        "qwen2_5_vl",
        "the text model's keys and tensors beside those of the vision tower, rotary sections without effect; bfloat16 file",
        flat,
        [THETA, EPS, ACTIVATION, *no_bias(*QKV)],
        **BF16,
    )
    text = base("", "qwen3_vl_text", head_dim=8, rope_scaling=sections | {"mrope_interleaved": True}, tie_word_embeddings=None)
    text = {key: value for key, value in text.items() if key not in ("architectures", "transformers_version")}
    outer = {
        "image_token_id": 60,
        "tie_word_embeddings": True,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 61,
        "vision_config": VISION | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16, "out_hidden_size": 32},
        "vision_end_token_id": 62,
        "vision_start_token_id": 63,
    }
    yield Case(
        "qwen3_vl",
        "a tied head by the key of the wrapper; rotary sections without effect; bfloat16 file",
        outer | {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": text},
        in_text([THETA, EPS, ACTIVATION, Q_NORM, K_NORM]),
        **BF16,
    )
    experts = {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "model_type": "qwen3_vl_moe_text",
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }
    yield Case(
        "qwen3_vl_moe",
        "all experts in two tensors, by columns; bfloat16 file",
        outer
        | {
            "architectures": ["Qwen3VLMoeForConditionalGeneration"],
            "model_type": "qwen3_vl_moe",
            "text_config": text | experts,
            "tie_word_embeddings": False,
        },
        in_text([THETA, EPS, ACTIVATION, Q_NORM, K_NORM, TOP_K]),
        **BF16,
    )
    vision = {"depth": 1, "hidden_size": 16, "image_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4}
    glm = {key: value for key, value in text.items() if key != "head_dim"}
    glm |= {"model_type": "glm4v_text", "partial_rotary_factor": 0.5, "rope_scaling": {"mrope_section": [1, 1, 0], "type": "default"}}
    yield Case(
        "glm4v",
        "four norms a layer, rope on half of each head that pairs neighbours; bfloat16 file",
        outer
        | {
            "architectures": ["Glm4vForConditionalGeneration"],
            "model_type": "glm4v",
            "text_config": glm,
            "tie_word_embeddings": False,
            "vision_config": vision,
        },
        in_text([THETA, EPS, ACTIVATION, *no_bias(*QKV)]),
        spreads=[("layernorm.weight", (0.4, 1.0))],
        **BF16,
    )
    moe = glm | {
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "head_dim": 8,
        "model_type": "glm4v_moe_text",
        "moe_intermediate_size": 16,
        "n_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "routed_scaling_factor": 1.5,
        "topk_group": 1,
    }
    yield Case(
        "glm4v_moe",
        "GLM 4.5's experts behind biases; bfloat16 file",
        outer
        | {
            "architectures": ["Glm4vMoeForConditionalGeneration"],
            "model_type": "glm4v_moe",
            "text_config": moe,
            "tie_word_embeddings": False,
            "vision_config": vision,
        },
        in_text(
            [
                THETA,
                EPS,
                ACTIVATION,
                TOP_K,
                mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
                *no_bias(*QKV),
            ]
        ),
        spreads=[("layernorm.weight", (0.4, 1.0)), ("e_score_correction_bias", (0.3, 0.0))],
        **BF16,
    )

"""The float cases of Llama 4."""

import torch

from cases import ACTIVATION, EPS, V, Case, base, mutation, no_bias

SPREADS = [
    ("experts.gate_up_proj", (0.3, 0.0)),
    ("experts.down_proj", (0.4, 0.0)),
    ("router.weight", (2.0, None)),
    ("q_proj.weight", (2.0, None)),
    ("k_proj.weight", (2.0, None)),
]
CHUNK = 8
FULL, CHUNKED = "full_attention", "chunked_attention"


def llama4_cases():
    scaling = {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }
    chunks = [mutation(f"attention_chunk_size_{n}", {"attention_chunk_size": n}) for n in (CHUNK - 1, CHUNK + 1)]
    yield Case(
        "llama4_text",
        "chunks of positions in layers with rope, whose queries and keys are normed; queries that grow in the one without; "
        "experts in every second layer, chosen by two and with scaled inputs, and a shared one; dense layers of another "
        "width; llama3 rope scaling; attention biases; bfloat16 file",
        base(
            "Llama4ForCausalLM",
            "llama4_text",
            attention_bias=True,
            attention_chunk_size=CHUNK,
            attn_scale=0.4,
            attn_temperature_tuning=True,
            floor_scale=3,
            head_dim=16,
            interleave_moe_layer_step=2,
            intermediate_size=12,
            intermediate_size_mlp=40,
            no_rope_layers=[1, 1, 1, 0],
            num_experts_per_tok=2,
            num_hidden_layers=4,
            num_local_experts=4,
            output_router_logits=False,
            rope_scaling=scaling,
            rope_theta=1000.0,
            router_aux_loss_coef=0.001,
            router_jitter_noise=0.0,
            use_qk_norm=True,
        ),
        [
            *chunks,
            mutation("rope_theta", {"rope_theta": 20.0}),
            mutation("rope_scaling", {"rope_scaling": None}),
            mutation("no_rope_layers", {"no_rope_layers": [1, 1, 1, 1]}),
            mutation("use_qk_norm", {"use_qk_norm": False}),
            mutation("attn_temperature_tuning", {"attn_temperature_tuning": False}),
            mutation("attn_scale", {"attn_scale": 0.1}),
            mutation("floor_scale", {"floor_scale": 50}),
            mutation("layer_types", {"layer_types": [FULL, CHUNKED, CHUNKED, FULL]}),
            mutation("num_experts_per_tok", {"num_experts_per_tok": 1}),
            mutation("experts", fill={"experts.down_proj": 0.0}),
            mutation("shared expert", fill={"shared_expert.down_proj.weight": 0.0}),
            *no_bias("q_proj", "k_proj", "v_proj", "o_proj"),
            EPS,
            ACTIVATION,
        ],
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )
    text = base(
        "",
        "llama4_text",
        attention_chunk_size=CHUNK,
        attn_scale=0.4,
        attn_temperature_tuning=True,
        floor_scale=3,
        head_dim=8,
        interleave_moe_layer_step=2,
        intermediate_size=12,
        intermediate_size_mlp=40,
        no_rope_layers=[1, 0],
        num_experts_per_tok=1,
        num_local_experts=3,
        rope_theta=1000.0,
        use_qk_norm=True,
    )
    vision = {
        "hidden_size": 8,
        "image_size": 8,
        "intermediate_size": 8,
        "model_type": "llama4_vision_model",
        "multi_modal_projector_bias": False,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 2,
        "projector_input_dim": 8,
        "projector_output_dim": 8,
        "vision_output_dim": 8,
    }
    yield Case(
        "llama4",
        "a multimodal checkpoint as published, the text model's config inside; vision tensors that are skipped; bfloat16 file",
        {
            "architectures": ["Llama4ForConditionalGeneration"],
            "boi_token_index": 61,
            "eoi_token_index": 62,
            "image_token_index": 63,
            "model_type": "llama4",
            "text_config": {key: value for key, value in text.items() if key != "architectures"},
            "tie_word_embeddings": False,
            "transformers_version": "4.51.0.dev0",
            "vision_config": vision,
        },
        [
            mutation("rope_theta", {"text_config": {"rope_theta": 20.0}}),
            mutation("no_rope_layers", {"text_config": {"no_rope_layers": [1, 1]}}),
            mutation("attention_chunk_size", {"text_config": {"attention_chunk_size": CHUNK + 1}}),
            mutation("experts", fill={"experts.down_proj": 0.0}),
        ],
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )
    yield Case(
        "llama4_interval",
        "the intervals of layers without rope by default, without norms on queries and keys; experts in every layer, one a "
        "token; tied",
        base(
            "Llama4ForCausalLM",
            "llama4_text",
            attention_chunk_size=CHUNK,
            attn_temperature_tuning=False,
            head_dim=8,
            intermediate_size=12,
            intermediate_size_mlp=40,
            no_rope_layer_interval=2,
            no_rope_layers=[],
            num_experts_per_tok=1,
            num_hidden_layers=3,
            num_local_experts=3,
            rope_theta=1000.0,
            tie_word_embeddings=True,
            use_qk_norm=False,
            vocab_size=V,
        ),
        [
            *chunks,
            mutation("no_rope_layer_interval", {"no_rope_layer_interval": 3}),
            mutation("rope_theta", {"rope_theta": 20.0}),
            mutation("use_qk_norm", {"use_qk_norm": True}),
            mutation("experts", fill={"experts.down_proj": 0.0}),
        ],
        spreads=SPREADS,
        dtype=torch.bfloat16,
    )

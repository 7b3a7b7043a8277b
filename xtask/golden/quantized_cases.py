"""The quantised cases: every bit width, group size and mode of MLX, on the architectures that people quantise."""

from dataclasses import dataclass, field
from typing import Callable

from cases import V, base
from gemma_cases import SPREADS, multimodal
from hybrid_cases import DELTA, EXPERTS, ROPE, wrapper
from hybrid_cases import SPREADS as HYBRID_SPREADS


@dataclass
class Quantized:
    """One folder q_… under testdata/models, quantised by mlx-lm with these settings."""

    name: str
    covers: str
    config: dict
    bits: int
    group_size: int
    mode: str = "affine"
    predicate: Callable = None  # path, module → bool or settings; None is the architecture's own
    alternates: dict = field(default_factory=dict)  # file name → function of mlx-lm's config
    dtype: str = "float32"
    spreads: list = field(default_factory=list)


def wide(architecture, model_type, **more):
    """Dimensions that quantisation groups divide."""
    fixed = {
        "head_dim": 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "torch_dtype": "float32",
    }
    return base(architecture, model_type, **fixed | more)


def llama(**more):
    return wide("LlamaForCausalLM", "llama", attention_bias=False, mlp_bias=False, **more)


def qwen3(**more):
    return wide("Qwen3ForCausalLM", "qwen3", attention_bias=False, **more)


def moe(**more):
    return wide(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        attention_bias=False,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        moe_intermediate_size=32,
        norm_topk_prob=True,
        num_experts=4,
        num_experts_per_tok=2,
        output_router_logits=False,
        router_aux_loss_coef=0.001,
        use_sliding_window=False,
        **more,
    )


GEMMA = {
    "eos_token_id": [1, 7],
    "head_dim": 32,
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 3,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 24,
    "rope_local_base_freq": 100.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000.0,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "tie_word_embeddings": None,
}


TWO_LAYERS = {"num_hidden_layers": 2, "sliding_window_pattern": 2}


def legacy(config):
    """As mlx-lm wrote it before quantisation had modes."""
    settings = {k: v for k, v in config["quantization"].items() if k != "mode"}
    return {k: v for k, v in config.items() if k != "quantization_config"} | {"quantization": settings}


def quantization_config_only(config):
    """Only the copy under the name that the Hub reads."""
    return {k: v for k, v in config.items() if k != "quantization"}


MIXED = {
    "model.embed_tokens": {"group_size": 32, "bits": 8},
    "model.layers.0.self_attn.o_proj": False,
    "model.layers.0.self_attn.v_proj": {"group_size": 32, "bits": 8},
    "model.layers.0.mlp.down_proj": {"group_size": 128, "bits": 6},
    "model.layers.1.mlp.gate_proj": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
    "model.layers.1.self_attn.q_proj": {"group_size": 32, "bits": 3, "mode": "affine"},
    "lm_head": {"group_size": 32, "bits": 5},
}


HYBRID = {
    "full_attention_interval": 2,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    **DELTA,
    # The rows of the output projection are whole groups.
    "linear_value_head_dim": 16,
}
# A recipe as converters with a budget choose it: more bits for important matrices, and one dense
# matrix.
HYBRID_MIXED = {
    "language_model.model.layers.0.linear_attn.in_proj_a": False,
    "language_model.model.layers.0.linear_attn.in_proj_qkv": {"group_size": 64, "bits": 6},
    "language_model.model.layers.0.linear_attn.out_proj": {"group_size": 32, "bits": 8},
    "language_model.model.layers.1.self_attn.q_proj": {"group_size": 32, "bits": 5},
    "language_model.lm_head": {"group_size": 64, "bits": 8},
}


def with_false(config):
    """The modules that are not quantised are named too, as some converters do."""
    false = {path: False for path, settings in MIXED.items() if settings is False}
    settings = config["quantization"] | false
    return config | {"quantization": settings, "quantization_config": settings}


def quantized_cases():
    yield Quantized(
        "q_llama_b4_g64",
        "affine, 4 bits, groups of 64; quantised embeddings under a tied head; older config without mode",
        llama(tie_word_embeddings=True),
        4,
        64,
        alternates={"config.legacy.json": legacy},
    )
    yield Quantized("q_llama_b2_g32", "affine, 2 bits, groups of 32; untied head", llama(), 2, 32)
    yield Quantized(
        "q_llama_b8_g128",
        "affine, 8 bits, groups of 128; o_proj left dense, because groups do not divide it",
        llama(hidden_size=128, num_hidden_layers=1),
        8,
        128,
    )
    yield Quantized(
        "q_llama_bf16",
        "affine, 4 bits, groups of 64; scales, biases and norms in bfloat16",
        llama(),
        4,
        64,
        dtype="bfloat16",
    )
    yield Quantized(
        "q_qwen2_b4_g32",
        "affine, 4 bits, groups of 32; layers with a bias beside the biases of quantisation",
        wide("Qwen2ForCausalLM", "qwen2", head_dim=None, tie_word_embeddings=True, use_sliding_window=False),
        4,
        32,
    )
    yield Quantized("q_qwen3_b3_g64", "affine, 3 bits, groups of 64; tied", qwen3(tie_word_embeddings=True), 3, 64)
    yield Quantized("q_qwen3_b5_g32", "affine, 5 bits, groups of 32", qwen3(), 5, 32)
    yield Quantized("q_qwen3_b6_g64", "affine, 6 bits, groups of 64; tied", qwen3(tie_word_embeddings=True), 6, 64)
    yield Quantized(
        "q_qwen3_mixed",
        "settings of single modules, one of another mode, one not quantised at all; default 4 bits, groups of 64",
        qwen3(),
        4,
        64,
        predicate=lambda path, _: MIXED.get(path, True),
        alternates={"config.false.json": with_false},
    )
    yield Quantized("q_llama_mxfp4", "mxfp4; tied", llama(tie_word_embeddings=True), 4, 32, mode="mxfp4")
    yield Quantized("q_qwen3_mxfp8", "mxfp8", qwen3(), 8, 32, mode="mxfp8")
    yield Quantized("q_llama_nvfp4", "nvfp4; tied", llama(tie_word_embeddings=True), 4, 16, mode="nvfp4")
    yield Quantized(
        "q_qwen3_moe_b4_g32", "stacked experts, 4 bits, groups of 32; router in 8 bits, groups of 64", moe(), 4, 32
    )
    yield Quantized(
        "q_qwen3_moe_mxfp4",
        "stacked experts in mxfp4; the router's settings name no mode: affine, not the default of the file",
        moe(num_hidden_layers=1),
        4,
        32,
        mode="mxfp4",
    )
    yield Quantized(
        "q_phi3_b4_g64",
        "fused qkv_proj and gate_up_proj, 4 bits, groups of 64",
        wide("Phi3ForCausalLM", "phi3", head_dim=None, pad_token_id=0, original_max_position_embeddings=512),
        4,
        64,
    )
    yield Quantized(
        "q_gemma3_text_b4_g32",
        "affine, 4 bits, groups of 32; quantised embeddings under a tied head, window, two rope bases",
        wide("Gemma3ForCausalLM", "gemma3_text", **GEMMA),
        4,
        32,
        spreads=[("embed_tokens.weight", (0.1, 0.0)), *SPREADS],
    )
    text = wide("", "gemma3_text", **GEMMA | TWO_LAYERS, architectures=None, torch_dtype=None)
    yield Quantized(
        "q_gemma3_b8_g64",
        "text tower of the multimodal checkpoint as mlx-lm converts it, 8 bits, groups of 64",
        multimodal(text, vocab_size=V),
        8,
        64,
        spreads=[("embed_tokens.weight", (0.1, 0.0)), *SPREADS],
    )
    text = wide(
        "", "qwen3_5_text", attention_bias=False, rope_theta=None, rope_parameters=ROPE, **HYBRID | {"intermediate_size": 64}
    )
    yield Quantized(
        "q_qwen3_5_mixed",
        "text tower of a multimodal checkpoint with recurrent layers as mlx-lm converts it: convolutions of a last axis of 1, "
        "norms with their 1; settings of single modules, one not quantised; default 4 bits, groups of 32",
        wrapper("Qwen3_5ForConditionalGeneration", "qwen3_5", text, tie_word_embeddings=False),
        4,
        32,
        predicate=lambda path, _: HYBRID_MIXED.get(path, True),
        spreads=HYBRID_SPREADS,
    )
    yield Quantized(
        "q_qwen3_next_b4_g32",
        "fused projections of recurrent layers, stacked and shared experts, 4 bits, groups of 32; router and the shared "
        "expert's gate in 8 bits, groups of 64",
        wide(
            "Qwen3NextForCausalLM",
            "qwen3_next",
            attention_bias=False,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            norm_topk_prob=True,
            partial_rotary_factor=0.25,
            **HYBRID | EXPERTS | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
        ),
        4,
        32,
        spreads=HYBRID_SPREADS,
    )

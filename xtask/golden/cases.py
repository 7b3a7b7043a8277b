"""The float cases: for each architecture a config as published checkpoints write it, with every flag on, and the
mutations that must change what the model generates."""

from dataclasses import dataclass, field
from typing import Callable

import torch

V = 64  # vocabulary of every case


@dataclass
class Case:
    """One folder under testdata/models."""

    name: str
    covers: str
    config: dict
    mutations: list
    v5: bool = False  # config.json in the dialect of transformers 5; otherwise it is an alternate
    spreads: list = field(default_factory=list)
    dtype: torch.dtype = torch.float32
    shards: int = 1
    sparse: bool = False  # also a config without the keys that say what is the default of the architecture
    untyped: bool = False  # also a config without model_type and architectures
    extra: dict = field(default_factory=dict)  # tensors that a loader skips: name -> shape, or the name to copy
    alternates: dict = field(default_factory=dict)  # more config files: name -> function of the config
    change: Callable = None  # what becomes of the tensors, by name, before they are renamed and written
    rename: tuple = ()  # (old prefix, new prefix) pairs, first match wins
    generation: dict = None  # generation_config.json
    prompts: tuple = (5, 21)  # lengths
    note: str = None
    steady: float = 0.0  # how far from a half every number stays that is rounded on the way
    grows: bool = False  # a rope that follows the length of the call: decoding without a cache computes something else
    composed: bool = False  # of classes of another family: transformers does not write its config
    formula: bool = False  # the folder has weights.json (formula.py) instead of the weights, and a part of the log probabilities
    by_mlx_lm: bool = False  # transformers lacks the family: the reference is mlx-lm. With it `formula` and `composed`
    by_mlx_vlm: bool = False  # the same with mlx-vlm
    packed: bool = False  # experts in mxfp4, as gpt-oss is published; the reference has them unpacked


def with_keys(**keys):
    """The config with these keys besides, null where None; of a rope_scaling, its keys."""

    def change(config):
        nested = keys.get("rope_scaling")
        scaling = {"rope_scaling": config["rope_scaling"] | nested} if nested else {}
        return config | keys | scaling

    return change


def mutation(name, config=None, fill=None, scale=None, changes="tokens"):
    parts = {"config": config, "fill": fill, "scale": scale}
    return {"name": name, "changes": changes, **{k: v for k, v in parts.items() if v is not None}}


def base(architecture, model_type, **more):
    """Keys that every published config has, small; `None` drops a key."""
    config = {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "model_type": model_type,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 0.02,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "transformers_version": "4.51.3",
        "use_cache": True,
        "vocab_size": V,
    }
    return {k: v for k, v in (config | more).items() if v is not None}


THETA = mutation("rope_theta", {"rope_theta": 300.0})
EPS = mutation("rms_norm_eps", {"rms_norm_eps": 1e-6})
ACTIVATION = mutation("hidden_act", {"hidden_act": "relu"})
NO_SCALING = mutation("rope_scaling", {"rope_scaling": None})
Q_NORM = mutation("q_norm", fill={"self_attn.q_norm.weight": 1.0})
K_NORM = mutation("k_norm", fill={"self_attn.k_norm.weight": 1.0})


def no_bias(*names):
    return [mutation(f"{n}.bias", fill={f"{n}.bias": 0.0}) for n in names]


def llama(**more):
    return base("LlamaForCausalLM", "llama", pretraining_tp=1, **{"attention_bias": False, "mlp_bias": False} | more)


def llama_cases():
    yield Case(
        "llama_tied",
        "tied head; end of sequence in generation_config.json",
        llama(tie_word_embeddings=True, num_hidden_layers=3),
        [THETA, EPS, ACTIVATION],
        alternates={"config.null.json": with_keys(rope_scaling=None, head_dim=None, pad_token_id=None)},
        generation={"bos_token_id": 1, "eos_token_id": [2, 3], "do_sample": True, "temperature": 0.6, "top_p": 0.9},
    )
    yield Case(
        "llama_bias",
        "attention and MLP biases, exact gelu, untied head",
        llama(attention_bias=True, mlp_bias=True, hidden_act="gelu"),
        [THETA, EPS, ACTIVATION, *no_bias("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")],
    )
    scaling = {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }
    yield Case(
        "llama_llama3",
        "llama3 rope scaling with low, middle and high bands; bfloat16 file",
        llama(head_dim=16, rope_scaling=scaling),
        [
            THETA,
            NO_SCALING,
            mutation("factor", {"rope_scaling": {"factor": 2.0}}),
            mutation("low_freq_factor", {"rope_scaling": {"low_freq_factor": 0.1}}),
            mutation("high_freq_factor", {"rope_scaling": {"high_freq_factor": 16.0}}),
            mutation("original", {"rope_scaling": {"original_max_position_embeddings": 16}}),
        ],
        dtype=torch.bfloat16,
        alternates={"config.both.json": with_keys(rope_scaling={"type": "llama3"})},
    )
    yield Case(
        "llama_linear",
        "linear rope scaling under the key `type`; no num_key_value_heads; the file has rotary buffers as old ones do",
        llama(num_key_value_heads=None, rope_scaling={"type": "linear", "factor": 4.0}),
        [THETA, NO_SCALING, mutation("factor", {"rope_scaling": {"factor": 2.0}})],
        sparse=True,
        alternates={"config.null.json": with_keys(num_key_value_heads=None, head_dim=None)},
        extra={f"model.layers.{n}.self_attn.rotary_emb.inv_freq": (4,) for n in range(2)},
        formula=True,
    )
    yarn = {"factor": 4.0, "original_max_position_embeddings": 128, "rope_type": "yarn"}
    yield Case(
        "llama_yarn",
        "yarn rope scaling with its own attention factor; bfloat16 file",
        llama(head_dim=16, rope_scaling=yarn),
        [
            THETA,
            NO_SCALING,
            mutation("factor", {"rope_scaling": {"factor": 16.0}}),
            mutation("attention_factor", {"rope_scaling": {"attention_factor": 1.0}}),
            mutation("original", {"rope_scaling": {"original_max_position_embeddings": 16}}),
        ],
        dtype=torch.bfloat16,
    )
    yield Case(
        "llama_head_dim",
        "head_dim that is not hidden / heads; one key-value head; float16 file",
        llama(head_dim=20, num_key_value_heads=1),
        [THETA, EPS],
        dtype=torch.float16,
    )
    yield Case(
        "llama_proportional",
        "proportional rope: half of the angles, the exponent over the whole head; float16 file",
        llama(
            head_dim=16,
            rope_theta=None,
            rope_parameters={
                "rope_type": "proportional",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "factor": 2.0,
            },
        ),
        [
            mutation("factor", {"rope_parameters": {"factor": 1.0}}),
            mutation("partial_rotary_factor", {"rope_parameters": {"partial_rotary_factor": 1.0}}),
            mutation("rope_theta", {"rope_parameters": {"rope_theta": 300.0}}),
        ],
        v5=True,
        dtype=torch.float16,
    )
    yield Case(
        "mistral",
        "sliding window on every layer; bfloat16 file",
        base("MistralForCausalLM", "mistral", sliding_window=8, num_hidden_layers=3),
        [THETA, EPS, mutation("sliding_window", {"sliding_window": None}), *windows(8)],
        dtype=torch.bfloat16,
        sparse=True,
    )


def windows(right):
    """Off by one either way is the usual fault."""
    return [mutation(f"sliding_window_{n}", {"sliding_window": n}) for n in (right - 1, right + 1)]


def qwen(architecture, model_type, **more):
    defaults = {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1, "num_hidden_layers": 3}
    return base(architecture, model_type, **defaults | more)


def qwen_cases():
    bias = no_bias("q_proj", "k_proj", "v_proj")
    window_off = mutation("use_sliding_window", {"use_sliding_window": False})
    window_on = mutation("use_sliding_window", {"use_sliding_window": True})
    layers = mutation("max_window_layers", {"max_window_layers": 0})
    yield Case(
        "qwen2",
        "biases on q, k, v; a window that is switched off; tied, with a copy of the head in the file; bfloat16 file",
        qwen("Qwen2ForCausalLM", "qwen2", tie_word_embeddings=True, rope_theta=1000000.0),
        [THETA, EPS, *bias, window_on],
        untyped=True,
        extra={"lm_head.weight": "model.embed_tokens.weight"},
        dtype=torch.bfloat16,
    )
    yield Case(
        "qwen2_window",
        "window from layer max_window_layers on; three files and an index; bfloat16 file",
        qwen("Qwen2ForCausalLM", "qwen2", use_sliding_window=True),
        [THETA, *bias, window_off, layers, *windows(8)],
        alternates={"config.v4.json": with_keys(layer_types=["full_attention"] + ["sliding_attention"] * 2)},
        shards=3,
        dtype=torch.bfloat16,
    )
    yield Case(
        "qwen3",
        "q and k norms, own head_dim; two end-of-sequence ids",
        qwen("Qwen3ForCausalLM", "qwen3", head_dim=16, attention_bias=False, num_hidden_layers=2, eos_token_id=[2, 5]),
        [
            THETA,
            EPS,
            ACTIVATION,
            Q_NORM,
            K_NORM,
            mutation("use_sliding_window", {"use_sliding_window": True, "max_window_layers": 0}),
        ],
        untyped=True,
        sparse=True,
    )
    yarn = {
        "attention_factor": 1.3,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "rope_type": "yarn",
    }
    yield Case(
        "qwen3_tied",
        "tied head, attention biases, window, yarn with all its numbers; bfloat16 file",
        qwen(
            "Qwen3ForCausalLM",
            "qwen3",
            head_dim=16,
            attention_bias=True,
            use_sliding_window=True,
            tie_word_embeddings=True,
            rope_scaling=yarn,
        ),
        [
            NO_SCALING,
            window_off,
            layers,
            Q_NORM,
            K_NORM,
            *bias,
            *no_bias("o_proj"),
            mutation("attention_factor", {"rope_scaling": {"attention_factor": None}}),
            mutation("beta_fast", {"rope_scaling": {"beta_fast": None}}),
            mutation("beta_slow", {"rope_scaling": {"beta_slow": 2.0}}),
        ],
        dtype=torch.bfloat16,
    )
    moe = {
        "attention_bias": False,
        "head_dim": 16,
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
    }
    more_experts = mutation("num_experts_per_tok", {"num_experts_per_tok": 3})
    yield Case(
        "qwen3_moe",
        "experts one tensor each, probabilities normalised over the chosen; a dense layer by mlp_only_layers; "
        "bfloat16 file",
        qwen(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            **moe | {"decoder_sparse_step": 1, "mlp_only_layers": [1], "norm_topk_prob": True},
        ),
        [THETA, EPS, Q_NORM, K_NORM, ACTIVATION, more_experts, mutation("norm_topk_prob", {"norm_topk_prob": False})],
        dtype=torch.bfloat16,
    )
    yield Case(
        "qwen3_moe_step",
        "probabilities not normalised; every second layer has experts; window on every layer; two files and an index; "
        "float16 file",
        qwen(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            **moe
            | {
                "decoder_sparse_step": 2,
                "mlp_only_layers": [],
                "norm_topk_prob": False,
                "sliding_window": 8,
                "use_sliding_window": True,
            },
        ),
        [Q_NORM, K_NORM, more_experts, mutation("norm_topk_prob", {"norm_topk_prob": True}), window_off, *windows(8)],
        shards=2,
        dtype=torch.float16,
    )


def phi3(**more):
    fixed = {
        "attention_bias": False,
        "embd_pdrop": 0.0,
        "original_max_position_embeddings": 512,
        "pad_token_id": 0,
        "resid_pdrop": 0.0,
        "rope_scaling": None,
        "sliding_window": 8,
    }
    return base("Phi3ForCausalLM", "phi3", **fixed | more)


def phi3_cases():
    window = mutation("sliding_window", {"sliding_window": None})
    yield Case(
        "phi3",
        "fused qkv_proj and gate_up_proj, sliding window",
        phi3(num_hidden_layers=3),
        [THETA, EPS, window, *windows(8)],
        sparse=True,
    )
    # One factor for each of the 6 rotated pairs: head 16, of which three quarters are rotated.
    rope = {
        "long_factor": [1.1, 1.6, 2.5, 4.0, 7.0, 11.0],
        "short_factor": [1.0, 1.05, 1.3, 1.5, 2.0, 2.5],
        "type": "longrope",
    }
    flat = {**rope, "short_factor": [1.0] * 6}
    yield Case(
        "phi3_longrope",
        "longrope: a prompt that stays short, one that is long, one that crosses over while generating; "
        "partial rotary; tied; bfloat16 file",
        phi3(
            num_attention_heads=2,
            num_key_value_heads=1,
            original_max_position_embeddings=40,
            max_position_embeddings=160,
            partial_rotary_factor=0.75,
            rope_scaling=rope,
            sliding_window=512,
            tie_word_embeddings=True,
        ),
        [
            mutation("short_factor", {"rope_scaling": {"short_factor": rope["long_factor"]}}),
            mutation("long_factor", {"rope_scaling": {"long_factor": rope["short_factor"]}}),
            mutation("short_factor_flat", {"rope_scaling": flat}),
            mutation("max_position_embeddings", {"max_position_embeddings": 41}),
            mutation("original_max_position_embeddings", {"original_max_position_embeddings": 100}),
            THETA,
        ],
        dtype=torch.bfloat16,
        prompts=(7, 44, 28),
        note="when position 40 is reached, every position is computed again with the long factors, as generate() does: "
        "prompt 2 crosses over at its 14th token",
    )
    yield Case(
        "phi3_partial",
        "partial rotary without scaling, sliding window, the extra keys of Phi-4-mini",
        phi3(
            num_attention_heads=2,
            num_key_value_heads=1,
            partial_rotary_factor=0.75,
            full_attn_mod=1,
            interpolate_factor=1,
            lm_head_bias=False,
            mlp_bias=False,
            tie_word_embeddings=True,
        ),
        [
            mutation("partial_rotary_factor", {"partial_rotary_factor": 1.0}),
            mutation("partial_rotary_factor quarter", {"partial_rotary_factor": 0.25}),
            THETA,
            EPS,
            window,
        ],
    )

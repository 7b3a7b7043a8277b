"""The float cases of families on the pre-norm decoder."""

import torch

from cases import ACTIVATION, EPS, NO_SCALING, THETA, Case, base, mutation, no_bias, windows, with_keys
from gemma_cases import EMBED_SCALE, SPREADS as GEMMA_SPREADS

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")
UNGATED = ("up_proj", "down_proj")
YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "rope_type": "yarn"}
BF16 = {"dtype": torch.bfloat16}


def family_cases():
    yield from gemma1_cases()
    yield from smollm3_cases()
    yield from granite_cases()
    yield from llama_like_cases()
    yield from internlm3_cases()
    yield from ministral3_cases()
    yield from apertus_cases()


def gemma1_cases():
    config = base(
        "GemmaForCausalLM",
        "gemma",
        attention_bias=False,
        bos_token_id=2,
        eos_token_id=1,
        head_dim=16,
        hidden_act="gelu",
        num_hidden_layers=3,
        pad_token_id=0,
        tie_word_embeddings=None,
    )
    yield Case(
        "gemma",
        "norms that store weight - 1, scaled embeddings, gelu that means its tanh form, own head_dim; bfloat16 file",
        config,
        [THETA, EPS, EMBED_SCALE, ACTIVATION],
        spreads=[
            ("embed_tokens.weight", (0.15, 0.0)),
            ("layernorm.weight", (0.4, 0.1)),
            ("o_proj.weight", (2.5, None)),
            ("down_proj.weight", (2.5, None)),
            *GEMMA_SPREADS,
        ],
        sparse=True,
        alternates={"config.later.json": with_keys(hidden_act="gelu_pytorch_tanh", hidden_activation=None)},
        dtype=torch.bfloat16,
    )


def smollm3_cases():
    keys = {"attention_bias": False, "mlp_bias": False, "max_window_layers": 28, "rope_scaling": None}
    yield Case(
        "smollm3",
        "every second layer without rope, by no_rope_layers; tied; bfloat16 file",
        base(
            "SmolLM3ForCausalLM",
            "smollm3",
            layer_types=["full_attention"] * 4,
            no_rope_layer_interval=2,
            no_rope_layers=[1, 0, 1, 0],
            num_hidden_layers=4,
            pad_token_id=3,
            rope_theta=5e6,
            sliding_window=None,
            tie_word_embeddings=None,
            use_sliding_window=False,
            **keys,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("no_rope_layers", {"no_rope_layers": [1, 1, 1, 1]}),
            mutation("no_rope_layers turned", {"no_rope_layers": [0, 1, 0, 1]}),
        ],
        dtype=torch.bfloat16,
    )
    yield Case(
        "smollm3_window",
        "layers without rope by their interval, a window on them, biases, yarn; bfloat16 file",
        base(
            "SmolLM3ForCausalLM",
            "smollm3",
            no_rope_layer_interval=2,
            num_hidden_layers=3,
            pad_token_id=3,
            rope_theta=50000.0,
            sliding_window=8,
            tie_word_embeddings=False,
            use_sliding_window=True,
            **keys | {"attention_bias": True, "mlp_bias": True, "rope_scaling": YARN},
        ),
        [
            THETA,
            NO_SCALING,
            mutation("no_rope_layer_interval", {"no_rope_layer_interval": 3}),
            mutation("use_sliding_window", {"use_sliding_window": False}),
            *windows(8),
            *no_bias(*QKVO, "gate_proj", "up_proj", "down_proj"),
        ],
        dtype=torch.bfloat16,
    )


def granite_cases():
    yield Case(
        "granite",
        "multipliers of embeddings, scores, residuals and logits; biases; bfloat16 file",
        base(
            "GraniteForCausalLM",
            "granite",
            attention_bias=True,
            attention_multiplier=0.6,
            embedding_multiplier=3.0,
            logits_scaling=4.0,
            mlp_bias=True,
            num_hidden_layers=3,
            residual_multiplier=0.4,
            rope_scaling=None,
            tie_word_embeddings=False,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("attention_multiplier", {"attention_multiplier": 0.35}),
            mutation("embedding_multiplier", {"embedding_multiplier": 1.0}),
            mutation("residual_multiplier", {"residual_multiplier": 1.0}),
            mutation("logits_scaling", {"logits_scaling": 2.0}, changes="logits"),
            *no_bias(*QKVO, "gate_proj", "up_proj", "down_proj"),
        ],
        dtype=torch.bfloat16,
    )


GATED = ("gate_proj", "up_proj", "down_proj")
UNGATED = ("up_proj", "down_proj")
BF16 = {"dtype": torch.bfloat16}


def llama_like_cases():
    yield Case(
        "seed_oss",
        "biases on q, k and v by one key, on the output by another; own head_dim; bfloat16 file",
        base(
            "SeedOssForCausalLM",
            "seed_oss",
            attention_bias=True,
            attention_out_bias=True,
            head_dim=16,
            mlp_bias=True,
            residual_dropout=0.1,
            rope_theta=1e7,
        ),
        [THETA, EPS, ACTIVATION, *no_bias(*QKVO, *GATED)],
        sparse=True,
        **BF16,
    )
    yield Case(
        "arcee",
        "an MLP without a gate that squares, biases, yarn; bfloat16 file",
        base(
            "ArceeForCausalLM",
            "arcee",
            attention_bias=True,
            head_dim=16,
            hidden_act="relu2",
            mlp_bias=True,
            rope_scaling=YARN,
        ),
        [THETA, EPS, ACTIVATION, NO_SCALING, *no_bias(*QKVO, *UNGATED)],
        **BF16,
    )
    yield Case(
        "helium",
        "rope that pairs neighbours, biases on q, k and v and in the MLP; bfloat16 file",
        base("HeliumForCausalLM", "helium", attention_bias=True, head_dim=8, mlp_bias=True, rope_theta=100000.0),
        [THETA, EPS, ACTIVATION, *no_bias("q_proj", "k_proj", "v_proj", *GATED)],
        sparse=True,
        **BF16,
    )
    yield Case(
        "ernie4_5",
        "rope that pairs neighbours, biases by one key, own head_dim, tied; bfloat16 file",
        base(
            "Ernie4_5ForCausalLM",
            "ernie4_5",
            head_dim=16,
            num_hidden_layers=3,
            rope_theta=500000.0,
            tie_word_embeddings=True,
            use_bias=True,
        ),
        [THETA, EPS, ACTIVATION, *no_bias(*QKVO, *GATED)],
        sparse=True,
        **BF16,
    )
    yield Case(
        "hunyuan_v1_dense",
        "norms on q and k behind rope, a rope base that grows with alpha, biases; bfloat16 file",
        base(
            "HunYuanDenseV1ForCausalLM",
            "hunyuan_v1_dense",
            attention_bias=True,
            head_dim=16,
            rope_scaling={
                "alpha": 1000.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "type": "dynamic",
            },
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("alpha", {"rope_scaling": {"alpha": 10.0}}),
            mutation("q_norm", fill={"query_layernorm.weight": 1.0}),
            mutation("k_norm", fill={"key_layernorm.weight": 1.0}),
            *no_bias(*QKVO),
        ],
        spreads=[("query_layernorm.weight", (0.4, 1.5)), ("key_layernorm.weight", (0.4, 1.5))],
        **BF16,
    )


def internlm3_cases():
    yield Case(
        "internlm3",
        "Llama whose keys of biases have other names; bfloat16 file",
        base("InternLM3ForCausalLM", "internlm3", bias=True, head_dim=16, qkv_bias=True),
        [THETA, EPS, ACTIVATION, *no_bias(*QKVO, *GATED)],
        **BF16,
    )


def ministral3_cases():
    rope = {
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "llama_4_scaling_beta": 0.9,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 1000.0,
        "rope_type": "yarn",
        "type": "yarn",
    }
    text = base(
        "Ministral3ForCausalLM",
        "ministral3",
        head_dim=16,
        rope_parameters=rope,
        rope_theta=None,
    )
    mutations = [
        ("rope_theta", {"rope_theta": 30.0}),
        ("llama_4_scaling_beta", {"llama_4_scaling_beta": 0.1}),
        ("original", {"original_max_position_embeddings": 8}),
        ("factor", {"factor": 1.0}),
    ]
    yield Case(
        "ministral3",
        "queries that grow with their positions, yarn; bfloat16 file",
        text,
        [EPS, ACTIVATION, *[mutation(name, {"rope_parameters": change}) for name, change in mutations]],
        v5=True,
        **BF16,
    )
    vision = {
        "head_dim": 4,
        "hidden_size": 8,
        "image_size": 8,
        "intermediate_size": 8,
        "model_type": "pixtral",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 4,
    }
    wrapper = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": 10,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "tie_word_embeddings": False,
        "transformers_version": "4.50.0.dev0",
        "vision_config": vision,
        "vision_feature_layer": -1,
    }
    yield Case(
        "mistral3",
        "a multimodal checkpoint as published, the text model's config inside; vision tensors that are skipped; "
        "bfloat16 file",
        wrapper | {"text_config": text},
        [mutation(name, {"text_config": {"rope_parameters": change}}) for name, change in mutations],
        formula=True,
        **BF16,
    )
    small = base("MistralForCausalLM", "mistral", head_dim=16, rope_theta=1000000000.0)
    yield Case(
        "mistral3_small",
        "a multimodal checkpoint whose text model is mistral; bfloat16 file",
        wrapper | {"text_config": small | {"sliding_window": None}},
        [
            mutation("rope_theta", {"text_config": {"rope_theta": 30.0}}),
            mutation("sliding_window", {"text_config": {"sliding_window": 4}}),
        ],
        **BF16,
    )


def apertus_cases():
    yield Case(
        "apertus",
        "an activation with learned slopes, norms on q and k, biases, llama3 rope; bfloat16 file",
        base(
            "ApertusForCausalLM",
            "apertus",
            attention_bias=True,
            hidden_act="xielu",
            mlp_bias=False,
            post_norm=False,
            qk_norm=True,
            rope_scaling={
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
                "rope_type": "llama3",
            },
        ),
        [
            THETA,
            EPS,
            NO_SCALING,
            mutation("q_norm", fill={"q_norm.weight": 1.0}),
            mutation("k_norm", fill={"k_norm.weight": 1.0}),
            mutation("alpha_p", fill={"act_fn.alpha_p": -3.0}),
            mutation("alpha_n", fill={"act_fn.alpha_n": -3.0}),
            *no_bias(*QKVO),
        ],
        spreads=[("alpha_p", (0.5, 0.5)), ("alpha_n", (0.5, 0.5)), ("attention_layernorm.weight", (0.4, 1.0))],
        **BF16,
    )

"""The float cases of older and smaller families, most of them one difference from Llama, Gemma, Granite or GPT-2."""

import torch

from cases import ACTIVATION, EPS, K_NORM, NO_SCALING, Q_NORM, THETA, Case, base, mutation, no_bias, windows
from classic_cases import SPREADS as CLASSIC_SPREADS
from family_cases import GATED, QKVO, UNGATED
from gemma_cases import EMBED_SCALE, gemma
from gemma_cases import SPREADS as GEMMA_SPREADS

BF16 = {"dtype": torch.bfloat16}
KINDS = ["full_attention", "sliding_attention"]
TOP_K = mutation("num_experts_per_tok", {"num_experts_per_tok": 3})


def older_cases():
    yield from llama_cases()
    yield from named_cases()
    yield from granite_cases()
    yield from expert_cases()
    yield from gpt_cases()


def llama_cases():
    yield Case(
        "glm",
        "rope on half of each head that pairs neighbours, gate and up in one matrix, biases on q, k and v; bfloat16 file",
        base("GlmForCausalLM", "glm", attention_bias=True, head_dim=16, pad_token_id=0),
        [THETA, EPS, ACTIVATION, *no_bias("q_proj", "k_proj", "v_proj")],
        sparse=True,
        **BF16,
    )
    yield Case(
        "olmo",
        "layer norms without weights, queries, keys and values within a bound; bfloat16 file",
        base(
            "OlmoForCausalLM",
            "olmo",
            attention_bias=True,
            clip_qkv=1.0,
            num_key_value_heads=4,
            rms_norm_eps=None,
        ),
        [THETA, ACTIVATION, mutation("clip_qkv", {"clip_qkv": None}), *no_bias(*QKVO)],
        **BF16,
    )
    yield Case(
        "cwm",
        "a window on three of four layers, llama3 rope; bfloat16 file",
        base(
            "CwmForCausalLM",
            "cwm",
            head_dim=16,
            mlp_bias=True,
            num_hidden_layers=3,
            rope_scaling={
                "factor": 16.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
            sliding_window=8,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            NO_SCALING,
            mutation("layer_types", {"layer_types": [KINDS[1], *KINDS]}),
            *windows(8),
            *no_bias(*GATED),
        ],
        **BF16,
    )
    yield Case(
        "vaultgemma",
        "Gemma 2 without norms after attention and MLP; bfloat16 file",
        gemma(
            "VaultGemmaForCausalLM",
            "vaultgemma",
            attn_logit_softcapping=2.0,
            final_logit_softcapping=5.0,
            num_hidden_layers=3,
        ),
        [
            THETA,
            EPS,
            EMBED_SCALE,
            mutation("query_pre_attn_scalar", {"query_pre_attn_scalar": 16}),
            mutation("attn_logit_softcapping", {"attn_logit_softcapping": None}),
            mutation("final_logit_softcapping", {"final_logit_softcapping": None}, changes="logits"),
            mutation("layer_types", {"layer_types": [*KINDS, KINDS[0]]}),
            *windows(8),
        ],
        spreads=[
            ("q_proj.weight", (2.4, None)),
            ("k_proj.weight", (2.4, None)),
            ("o_proj.weight", (2.5, None)),
            ("down_proj.weight", (2.5, None)),
            *GEMMA_SPREADS,
        ],
        **BF16,
    )
    yield Case(
        "ministral",
        "windows by layer_types; bfloat16 file",
        base(
            "MinistralForCausalLM",
            "ministral",
            head_dim=16,
            layer_types=[KINDS[0], KINDS[1], KINDS[1]],
            num_hidden_layers=3,
            sliding_window=8,
        ),
        [THETA, EPS, ACTIVATION, mutation("layer_types", {"layer_types": [KINDS[1], *KINDS]}), *windows(8)],
        **BF16,
    )
    yield Case(
        "jais2",
        "layer norms with biases, an MLP without a gate that squares; bfloat16 file",
        base(
            "Jais2ForCausalLM",
            "jais2",
            attention_bias=True,
            hidden_act="relu2",
            layer_norm_eps=0.02,
            mlp_bias=True,
            rms_norm_eps=None,
        ),
        [
            THETA,
            ACTIVATION,
            mutation("layer_norm_eps", {"layer_norm_eps": 1e-6}),
            *no_bias(*QKVO, *UNGATED, "input_layernorm", "post_attention_layernorm", "model.norm"),
        ],
        spreads=[("layernorm.weight", (0.4, 1.0))],
        **BF16,
    )


def named_cases():
    """Llamas whose keys and tensors have other names."""
    yield Case(
        "exaone",
        "names of its own for keys and tensors; bfloat16 file",
        base(
            "ExaoneForCausalLM",
            "exaone",
            activation_function="silu",
            embed_dropout=0.0,
            head_dim=16,
            hidden_act=None,
            layer_norm_epsilon=0.02,
            num_hidden_layers=None,
            num_layers=2,
            pad_token_id=0,
            rms_norm_eps=None,
        ),
        [
            THETA,
            mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6}),
            mutation("activation_function", {"activation_function": "relu"}),
        ],
        sparse=True,
        **BF16,
    )
    yield Case(
        "iquestcoder",
        "Llama with its own sizes; bfloat16 file",
        base("IQuestCoderForCausalLM", "iquestcoder", attention_bias=True, head_dim=16, mlp_bias=True),
        [THETA, EPS, ACTIVATION, *no_bias(*QKVO, *GATED)],
        sparse=True,
        **BF16,
    )
    yield Case(
        "minicpm",
        "multipliers of embeddings, residuals and logits that follow from depth and width; bfloat16 file",
        base("MiniCPMForCausalLM", "minicpm", dim_model_base=8, scale_depth=1.4, scale_emb=3.0),
        [
            THETA,
            EPS,
            ACTIVATION,
            mutation("scale_emb", {"scale_emb": 1.0}),
            mutation("scale_depth", {"scale_depth": 2.8}),
            mutation("dim_model_base", {"dim_model_base": 16}, changes="logits"),
        ],
        composed=True,
        note="transformers has no such class: the reference is its Granite, with multipliers that follow from these keys",
        **BF16,
    )


MULTIPLIERS = {
    "attention_multiplier": 0.6,
    "embedding_multiplier": 3.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.6,
}
MULTIPLIED = [
    mutation("attention_multiplier", {"attention_multiplier": 0.35}),
    mutation("embedding_multiplier", {"embedding_multiplier": 1.0}),
    mutation("residual_multiplier", {"residual_multiplier": 1.0}),
    mutation("logits_scaling", {"logits_scaling": 2.0}, changes="logits"),
]
ROUTER = [
    ("router.layer.weight", (2.0, None)),
    ("router.weight", (2.0, None)),
    ("sinks", (1.0, 1.0)),
    ("layernorm.weight", (0.4, 1.0)),
]
SINKS = mutation("sinks", fill={"self_attn.sinks": -50.0})
BASES = {"layer_rope_theta": [0, 10000.0, 50.0], "num_hidden_layers": 3, "sliding_window": 8}
BY_LAYER = [
    mutation("no rope", {"layer_rope_theta": [10000.0, 10000.0, 50.0]}),
    mutation("one rope", {"layer_rope_theta": [0, 10000.0, 10000.0]}),
    *windows(8),
]


def granite_cases():
    yield Case(
        "granite_swa",
        "sinks and a rope base a layer, 0 for none, windows; bfloat16 file",
        base(
            "GraniteSWAForCausalLM",
            "granite_swa",
            attention_bias=True,
            mlp_bias=True,
            **MULTIPLIERS,
            **BASES,
        ),
        [
            EPS,
            ACTIVATION,
            SINKS,
            mutation("layer_types", {"layer_types": [KINDS[1], *KINDS]}),
            *BY_LAYER,
            *MULTIPLIED,
            *no_bias(*QKVO, *GATED),
        ],
        spreads=ROUTER,
        **BF16,
    )
    experts = {"intermediate_size": 24, "num_experts_per_tok": 2, "num_local_experts": 4, "shared_intermediate_size": 16}
    shared = mutation("shared expert", fill={"shared_mlp.output_linear.weight": 0.0})
    yield Case(
        "granitemoe_swa",
        "sinks, windows and a rope base a layer beside experts and a shared one; bfloat16 file",
        base("GraniteMoeSWAForCausalLM", "granitemoe_swa", **MULTIPLIERS, **BASES, **experts),
        [EPS, ACTIVATION, TOP_K, SINKS, shared, *BY_LAYER, *MULTIPLIED],
        spreads=ROUTER,
        **BF16,
    )
    yield Case(
        "granitemoeshared",
        "experts and one that all tokens use; bfloat16 file",
        base("GraniteMoeSharedForCausalLM", "granitemoeshared", attention_bias=True, **MULTIPLIERS, **experts),
        [THETA, EPS, ACTIVATION, TOP_K, shared, *MULTIPLIED, *no_bias(*QKVO)],
        spreads=ROUTER,
        **BF16,
    )
    muls = MULTIPLIERS | {"logits_scaling": 0.25}
    yield Case(
        "hyperclovax",
        "Granite's multipliers with four norms a layer, logits multiplied; bfloat16 file",
        base(
            "HyperCLOVAXForCausalLM",
            "hyperclovax",
            attention_bias=True,
            head_dim=16,
            mlp_bias=True,
            rms_norm_eps=0.3,
            **muls,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            *MULTIPLIED,
            mutation("post_norm1", fill={"post_norm1.weight": 1.0}),
            mutation("post_norm2", fill={"post_norm2.weight": 1.0}),
            *no_bias(*QKVO, *GATED),
        ],
        spreads=[
            ("layernorm.weight", (0.4, 1.0)),
            ("post_norm1.weight", (0.4, 1.0)),
            ("post_norm2.weight", (0.4, 1.0)),
        ],
        formula=True,
        **BF16,
    )
    yield Case(
        "hyperclovax_two",
        "two norms a layer, scores scaled by the head; bfloat16 file",
        base(
            "HyperCLOVAXForCausalLM",
            "hyperclovax",
            use_post_norm=False,
            **{key: value for key, value in muls.items() if key != "attention_multiplier"},
        ),
        [THETA, EPS, ACTIVATION, *MULTIPLIED[1:]],
        **BF16,
    )


def expert_cases():
    yield Case(
        "flex_olmo",
        "norms after attention and experts, and over all heads of q and k; bfloat16 file",
        base(
            "FlexOlmoForCausalLM",
            "flex_olmo",
            attention_bias=False,
            intermediate_size=24,
            norm_topk_prob=False,
            num_experts=6,
            pad_token_id=0,
            num_experts_per_tok=2,
            num_key_value_heads=4,
        ),
        [THETA, EPS, ACTIVATION, TOP_K, Q_NORM, K_NORM],
        spreads=[("layernorm.weight", (0.4, 1.0))],
        **BF16,
    )
    rope = {
        "full_attention": {
            "attention_factor": 1.2,
            "beta_fast": 8.0,
            "beta_slow": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 1000.0,
            "rope_type": "yarn",
        },
        "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
    }

    def changed(kind, **keys):
        return {"rope_parameters": {kind: keys}}

    yield Case(
        "mellum",
        "windows, a rope for each kind of layer, one dense layer, a head for multi-token prediction that is skipped; "
        "bfloat16 file",
        base(
            "MellumForCausalLM",
            "mellum",
            attention_bias=False,
            head_dim=16,
            layer_types=[KINDS[0], KINDS[1], KINDS[1]],
            mlp_layer_types=["sparse", "dense", "sparse"],
            moe_intermediate_size=16,
            norm_topk_prob=True,
            num_experts=4,
            num_experts_per_tok=2,
            num_hidden_layers=3,
            rope_parameters=rope,
            rope_theta=None,
            sliding_window=8,
        ),
        [
            EPS,
            ACTIVATION,
            TOP_K,
            Q_NORM,
            K_NORM,
            mutation("norm_topk_prob", {"norm_topk_prob": False}),
            mutation("theta of full layers", changed("full_attention", rope_theta=30.0)),
            mutation("theta of windows", changed("sliding_attention", rope_theta=10000.0)),
            mutation("factor", changed("full_attention", factor=1.0)),
            mutation("layer_types", {"layer_types": [KINDS[1], *KINDS]}),
            *windows(8),
        ],
        v5=True,
        extra={"mtp.layers.0.input_layernorm.weight": (32,)},
        **BF16,
    )


GPT = {
    "activation_function": "gelu_new",
    "attention_dropout": None,
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "hidden_act": None,
    "hidden_size": None,
    "intermediate_size": None,
    "layer_norm_epsilon": 0.02,
    "max_position_embeddings": None,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "num_attention_heads": None,
    "num_hidden_layers": None,
    "num_key_value_heads": None,
    "resid_pdrop": 0.1,
    "rms_norm_eps": None,
    "rope_theta": None,
}
LAYER_EPS = mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6})
FUNCTION = mutation("activation_function", {"activation_function": "relu"})
GPT_SPREADS = [
    ("wte.weight", (0.5, 0.0)),
    ("embed_tokens.weight", (0.2, 0.0)),
    ("embed_positions.weight", (0.4, 0.0)),
    ("layer_norm.weight", (0.4, 1.0)),
    *CLASSIC_SPREADS,
]


def gpt_cases():
    yield Case(
        "gptj",
        "attention and MLP side by side after one norm, rope on half of a head that pairs neighbours; bfloat16 file",
        base("GPTJForCausalLM", "gptj", **GPT | {"n_inner": 48, "rotary_dim": 4}),
        [
            LAYER_EPS,
            FUNCTION,
            mutation("rotary_dim", {"rotary_dim": 8}),
            *no_bias("fc_in", "fc_out", "ln_1", "ln_f", "lm_head"),
        ],
        extra={"transformer.h.0.attn.bias": (1, 1, 64, 64), "transformer.h.0.attn.masked_bias": (1,)},
        spreads=GPT_SPREADS,
        **BF16,
    )
    bias = no_bias("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "ln_1", "ln_2", "ln_f")
    bigcode = GPT | {"activation_function": "gelu_pytorch_tanh", "tie_word_embeddings": None}
    yield Case(
        "gpt_bigcode",
        "learned positions, one head of keys and values; tied; bfloat16 file",
        base("GPTBigCodeForCausalLM", "gpt_bigcode", multi_query=True, **bigcode),
        [LAYER_EPS, FUNCTION, mutation("positions", fill={"wpe.weight": 0.0}), *bias],
        spreads=GPT_SPREADS,
        **BF16,
    )
    yield Case(
        "gpt_bigcode_heads",
        "a head of keys for every query head, stored head by head; bfloat16 file",
        base("GPTBigCodeForCausalLM", "gpt_bigcode", **bigcode | {"multi_query": False, "n_inner": 40}),
        [LAYER_EPS, FUNCTION, mutation("scale_attn_weights", {"scale_attn_weights": False}), *bias],
        spreads=GPT_SPREADS,
        **BF16,
    )
    yield Case(
        "opt",
        "positions from 2 on, names of a decoder; tied; bfloat16 file",
        base(
            "OPTForCausalLM",
            "opt",
            activation_function="relu",
            do_layer_norm_before=True,
            ffn_dim=48,
            hidden_act=None,
            intermediate_size=None,
            max_position_embeddings=64,
            num_key_value_heads=None,
            rms_norm_eps=None,
            rope_theta=None,
            tie_word_embeddings=None,
            word_embed_proj_dim=32,
        ),
        [
            mutation("activation_function", {"activation_function": "gelu"}),
            mutation("positions", fill={"embed_positions.weight": 0.0}),
            # A bias on keys moves all scores of a query alike.
            *no_bias("q_proj", "v_proj", "out_proj", "fc1", "fc2"),
            *no_bias("self_attn_layer_norm", "layers.0.final_layer_norm", "decoder.final_layer_norm"),
        ],
        spreads=GPT_SPREADS,
        **BF16,
    )

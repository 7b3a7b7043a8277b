"""The float cases of GPT-2, GPT-NeoX and Falcon."""

import torch

from cases import THETA, Case, base, mutation, no_bias

BF16 = {"dtype": torch.bfloat16}
SPREADS = [
    ("wte.weight", (0.5, 0.0)),
    ("wpe.weight", (0.4, 0.0)),
    ("word_embeddings.weight", (0.5, 0.0)),
    ("embed_in.weight", (0.5, 0.0)),
    ("embed_out.weight", (2.5, None)),
    ("query_key_value.weight", (1.6, None)),
    ("c_attn.weight", (2.2, None)),
    ("ln_1.weight", (0.4, 1.0)),
    ("ln_2.weight", (0.4, 1.0)),
    ("ln_f.weight", (0.4, 1.0)),
    ("ln_attn.weight", (0.4, 1.0)),
    ("ln_mlp.weight", (0.4, 1.0)),
    ("layer_norm.weight", (0.4, 1.0)),
    ("layernorm.weight", (0.4, 1.0)),
]


def classic_cases():
    yield from gpt2_cases()
    yield from gpt_neox_cases()
    yield from falcon_cases()


def gpt2_cases():
    plain = {
        "attention_dropout": None,
        "hidden_act": None,
        "hidden_size": None,
        "intermediate_size": None,
        "max_position_embeddings": None,
        "num_attention_heads": None,
        "num_hidden_layers": None,
        "num_key_value_heads": None,
        "rms_norm_eps": None,
        "rope_theta": None,
        "tie_word_embeddings": None,
    }
    own = {
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "layer_norm_epsilon": 0.02,
        "n_ctx": 64,
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 3,
        "n_positions": 64,
        "resid_pdrop": 0.1,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
    }
    eps = mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6})
    act = mutation("activation_function", {"activation_function": "relu"})
    bias = no_bias("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "ln_1", "ln_2", "ln_f")
    mask = {f"h.{n}.attn.bias": (1, 1, 64, 64) for n in range(2)}
    yield Case(
        "gpt2",
        "learned positions, matrices stored by columns without a prefix, causal masks in the file; bfloat16 file",
        base("GPT2LMHeadModel", "gpt2", **plain | own),
        [eps, act, mutation("positions", fill={"wpe.weight": 0.0}), *bias],
        extra=mask,
        rename=(("transformer.", ""),),
        spreads=SPREADS,
        **BF16,
    )
    yield Case(
        "gpt2_scaled",
        "scores that are divided by the depth and not by the head, the size of the MLP by itself; untied; bfloat16 file",
        base(
            "GPT2LMHeadModel",
            "gpt2",
            **plain
            | own
            | {
                "activation_function": "gelu",
                "n_inner": 48,
                "n_layer": 2,
                "reorder_and_upcast_attn": False,
                "scale_attn_by_inverse_layer_idx": True,
                "scale_attn_weights": False,
                "tie_word_embeddings": False,
            },
        ),
        [
            eps,
            act,
            mutation("scale_attn_weights", {"scale_attn_weights": True}),
            mutation("scale_attn_by_inverse_layer_idx", {"scale_attn_by_inverse_layer_idx": False}),
        ],
        spreads=SPREADS,
        **BF16,
    )


def gpt_neox_cases():
    own = {
        "classifier_dropout": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout": 0.0,
        "layer_norm_eps": 0.02,
        "num_key_value_heads": None,
        "rms_norm_eps": None,
        "rope_theta": None,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.5,
    }
    common = [
        mutation("rotary_emb_base", {"rotary_emb_base": 30}),
        mutation("rotary_pct", {"rotary_pct": 1.0}),
        mutation("layer_norm_eps", {"layer_norm_eps": 1e-6}),
        mutation("hidden_act", {"hidden_act": "relu"}),
        *no_bias("dense_h_to_4h", "dense_4h_to_h", "input_layernorm", "post_attention_layernorm", "final_layer_norm"),
    ]
    buffers = {f"gpt_neox.layers.{n}.attention.rotary_emb.inv_freq": (2,) for n in range(2)}
    buffers |= {f"gpt_neox.layers.{n}.attention.masked_bias": (1,) for n in range(2)}
    yield Case(
        "gpt_neox",
        "attention and MLP side by side with a norm each, queries, keys and values head by head, half of a head rotates, buffers in "
        "the file; bfloat16 file",
        base("GPTNeoXForCausalLM", "gpt_neox", use_parallel_residual=True, **own),
        [
            *common,
            mutation("use_parallel_residual", {"use_parallel_residual": False}),
            *no_bias("query_key_value", "attention.dense"),
        ],
        extra=buffers,
        spreads=SPREADS,
        **BF16,
    )
    yield Case(
        "gpt_neox_serial",
        "the MLP behind the attention, no biases in the attention; bfloat16 file",
        base("GPTNeoXForCausalLM", "gpt_neox", attention_bias=False, use_parallel_residual=False, **own),
        [*common, mutation("use_parallel_residual", {"use_parallel_residual": True})],
        spreads=SPREADS,
        **BF16,
    )


def falcon_cases():
    own = {
        "alibi": False,
        "bias": False,
        "hidden_act": None,
        "hidden_dropout": 0.0,
        "intermediate_size": None,
        "layer_norm_epsilon": 0.02,
        "num_key_value_heads": None,
        "rms_norm_eps": None,
        "tie_word_embeddings": None,
    }
    eps = mutation("layer_norm_epsilon", {"layer_norm_epsilon": 1e-6})
    act = mutation("activation", {"activation": "relu"})
    yield Case(
        "falcon",
        "one pair of keys and values, attention and MLP behind one norm; tied; bfloat16 file",
        base(
            "FalconForCausalLM",
            "falcon",
            multi_query=True,
            new_decoder_architecture=False,
            parallel_attn=True,
            **own,
        ),
        [THETA, eps, act, *no_bias("input_layernorm", "ln_f")],
        spreads=SPREADS,
        **BF16,
    )
    yield Case(
        "falcon_groups",
        "groups of queries before their keys and values, two norms side by side, biases; untied; bfloat16 file",
        base(
            "FalconForCausalLM",
            "falcon",
            new_decoder_architecture=True,
            num_kv_heads=2,
            **own | {"bias": True, "ffn_hidden_size": 48, "tie_word_embeddings": False},
        ),
        [
            THETA,
            eps,
            act,
            *no_bias("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h", "ln_attn", "ln_mlp"),
        ],
        spreads=SPREADS,
        **BF16,
    )
    yield Case(
        "falcon_serial",
        "queries, keys and values head by head, the MLP behind the attention, biases; tied; bfloat16 file",
        base(
            "FalconForCausalLM",
            "falcon",
            multi_query=False,
            new_decoder_architecture=False,
            parallel_attn=False,
            **own | {"bias": True},
        ),
        [THETA, eps, act, *no_bias("query_key_value", "self_attention.dense", "post_attention_layernorm")],
        spreads=SPREADS,
        formula=True,
        **BF16,
    )
    yield Case(
        "falcon_alibi",
        "ALiBi of a number of heads that is no power of two (Falcon-RW); untied; bfloat16 file",
        base(
            "FalconForCausalLM",
            "falcon",
            hidden_size=48,
            multi_query=False,
            new_decoder_architecture=False,
            num_attention_heads=6,
            parallel_attn=False,
            **own | {"alibi": True, "bias": True, "tie_word_embeddings": False},
        ),
        [eps, act, mutation("alibi", {"alibi": False})],
        spreads=SPREADS,
        **BF16,
    )

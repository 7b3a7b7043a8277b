"""The float cases of families with several residual streams, chosen positions, or two blocks a layer. Their weights are formulas."""

import torch

from cases import ACTIVATION, EPS, THETA, base, mutation
from gemma_cases import in_text
from hybrid_cases import ACTIVATION as HYBRID_ACTIVATION
from hybrid_cases import EXPERTS, FULL, HUB, LINEAR, PIECES, ROPE, TOWER, fused, hybrid, wrapper
from hybrid_cases import SPREADS as HYBRID_SPREADS
from late_cases import TOP_K, late_case
from latent_cases import BIASES, QUERIES, SIZES

CORRECTION = ("e_score_correction_bias", (0.3, 0.0))
NO_CORRECTION = mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0})
SPREADS = [
    ("mlp.gate.weight", (2.0, None)),
    ("q_b_proj.weight", (1.8, None)),
    ("kv_a_proj_with_mqa.weight", (1.8, None)),
    CORRECTION,
]
LATENTS = mutation("kv_a_layernorm", fill={"kv_a_layernorm.weight": 1.0})
SCALED = mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0})
YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_type": "yarn",
}
SHARED = mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0})


def stream_cases():
    yield longcat_flash()
    yield hy_v4()
    yield glm5_next()
    yield qwen4_exp()
    yield deepseek_v4()


def longcat_flash():
    return late_case(
        "longcat_flash",
        "two blocks of latent attention and MLP a layer, experts beside the second, some of which return their input, biases",
        base(
            "LongcatFlashForCausalLM",
            "longcat_flash",
            **SIZES,
            attention_bias=True,
            attention_method="MLA",
            expert_ffn_hidden_size=16,
            ffn_hidden_size=48,
            head_dim=8,
            intermediate_size=None,
            mla_scale_kv_lora=True,
            mla_scale_q_lora=True,
            moe_topk=3,
            n_routed_experts=4,
            num_hidden_layers=None,
            num_layers=2,
            routed_scaling_factor=2.0,
            zero_expert_num=2,
            zero_expert_type="identity",
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            LATENTS,
            QUERIES,
            NO_CORRECTION,
            *BIASES,
            SCALED,
            mutation("moe_topk", {"moe_topk": 2}),
            mutation("experts", fill={"experts.1.down_proj.weight": 0.0}),
        ],
        spreads=[
            (".bias", (0.15, 0.0)),
            ("embed_tokens.weight", (1.0, 0.0)),
            ("router.classifier.weight", (2.0, None)),
            ("e_score_correction_bias", (0.1, 0.0)),
            ("q_b_proj.weight", (3.0, None)),
            ("kv_a_proj_with_mqa.weight", (1.8, None)),
        ],
        extra={"model.mtp.layers.0.input_layernorm.weight": (4,)},
    )


def hy_v4():
    names = {
        ".hc_pre.hc_attn_layer.": ".hc_attn_layer.hc_pre.",
        ".hc_pre.hc_mlp_layer.": ".hc_mlp_layer.hc_pre.",
        ".hc_pre.hc_head.": ".hc_head.",
        ".mlp.linear_gate.": ".mlp.gate_proj.",
        ".shared_experts.linear_gate.": ".shared_experts.gate_proj.",
    }

    def published(tensors):
        """transformers cannot turn its renaming back, and writes other names than it was given."""
        found = {}
        for name, tensor in tensors.items():
            for old, new in names.items():
                name = name.replace(old, new)
            found[name] = tensor
        return found

    return late_case(
        "hy_v4",
        "four residual streams that blocks read and write by learned weights; latent attention with sinks and a gate for every feature, whose "
        "queries see what the indexers of some layers choose; bounded gates of experts",
        base(
            "HYV4ForCausalLM",
            "hy_v4",
            **SIZES,
            hc_eps=1e-2,
            hc_magnitude=1.5,
            hc_mult=4,
            index_head_dim=16,
            index_n_heads=8,
            index_topk=6,
            indexer_types=["full", "full", "shared"],
            learnable_sink_init=0.0,
            mlp_layer_types=["dense", "sparse", "sparse"],
            moe_intermediate_size=16,
            n_group=1,
            n_routed_experts=6,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_experts_per_tok=2,
            num_hidden_layers=3,
            pad_token_id=0,
            routed_scaling_factor=2.8,
            swiglu_limit=0.6,
            topk_group=1,
        ),
        [
            THETA,
            EPS,
            TOP_K,
            LATENTS,
            QUERIES,
            NO_CORRECTION,
            SCALED,
            SHARED,
            mutation("hc_magnitude", {"hc_magnitude": 2.0}),
            mutation("hc_eps", {"hc_eps": 0.2}),
            mutation("index_topk", {"index_topk": 9}),
            mutation("swiglu_limit", {"swiglu_limit": 10.0}),
            mutation("sinks", fill={"learnable_sink_param": -30.0}),
            mutation("linear_gate", fill={"linear_gate.weight": 0.0}),
            mutation("hc_base", fill={"hc_pre.hc_base": 0.0}),
            mutation("hc_scale", fill={"hc_pre.hc_scale": 1.0}),
            mutation("hc_head_base", fill={"hc_head_base": 0.0}),
            mutation("indexer.k_norm.bias", fill={"indexer.k_norm.bias": 0.0}),
            mutation("weights_proj", fill={"indexer.weights_proj.weight": 1.0}),
        ],
        spreads=[
            ("weights_proj.weight", (2.0, None)),
            ("indexer.k_norm.weight", (0.4, 1.0)),
            ("hc_fn", (0.7, None)),
            ("hc_scale", (0.4, 1.0)),
            ("hc_base", (0.6, 0.0)),
            ("hc_head_scale", (0.4, 1.3)),
            ("hc_head_base", (0.6, 0.0)),
            ("learnable_sink_param", (1.0, 0.5)),
            *SPREADS,
        ],
        change=published,
        extra={"model.mtp_layers.0.eh_proj.weight": (4, 4)},
    )


def glm5_next():
    text = base(
        "",
        "glm5_next_text",
        **SIZES | {"qk_rope_head_dim": 0},
        attention_bias=False,
        hc_eps=1e-2,
        hc_mult=4,
        hc_sinkhorn_iters=3,
        index_head_dim=16,
        index_kpool=4,
        index_kpool_always_select_tail=True,
        index_n_heads=8,
        index_topk=8,
        indexer_types=["full", "full", "shared"],
        layer_types=["linear_attention", "full_attention", "full_attention"],
        linear_attn_config={
            "gate_lower_bound": -5.0,
            "head_dim": 8,
            "num_heads": 4,
            "safe_gate": True,
            "short_conv_kernel_size": 4,
        },
        mlp_layer_types=["dense", "sparse", "sparse"],
        moe_intermediate_size=16,
        n_group=1,
        n_routed_experts=6,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=2,
        num_hidden_layers=3,
        pad_token_id=0,
        rope_theta=None,
        routed_scaling_factor=2.5,
        swiglu_limit=0.8,
        topk_group=1,
    )
    text = {key: value for key, value in text.items() if key not in ("architectures", "transformers_version")}
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "image_size": 8,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": 2,
        "projection_intermediate_size": 16,
    }
    return late_case(
        "glm5_next",
        "the text tower: four residual streams with doubly stochastic mixes, Kimi's delta rule with bounded decays, latent attention without "
        "rope over pools of positions that an indexer chooses, also for the layer behind it; bounded gates",
        {
            "architectures": ["Glm5NextForConditionalGeneration"],
            "image_token_id": 60,
            "model_type": "glm5_next",
            "text_config": text,
            "tie_word_embeddings": False,
            "transformers_version": "5.20.0",
            "vision_config": vision,
        },
        in_text(
            [
                EPS,
                TOP_K,
                NO_CORRECTION,
                SCALED,
                SHARED,
                LATENTS,
                QUERIES,
                mutation("hc_eps", {"hc_eps": 0.3}),
                mutation("hc_sinkhorn_iters", {"hc_sinkhorn_iters": 1}),
                mutation("hc base", fill={"attn_base": 0.0}),
                mutation("index_topk", {"index_topk": 12}),
                mutation("swiglu_limit", {"swiglu_limit": 10.0}),
                mutation("gate_lower_bound", {"linear_attn_config": {"gate_lower_bound": -2.0}}),
                mutation("ape", fill={"index_kpool_compress_ape": 0.0}),
                mutation("gate of pools", fill={"index_kpool_compress_gate": 0.0}),
                mutation("weights_proj", fill={"indexer.weights_proj.weight": 1.0}),
                mutation("dt_bias", fill={"dt_bias": 0.0}),
                mutation("A_log", fill={"A_log": 0.0}),
            ]
        ),
        spreads=[
            ("weights_proj.weight", (2.0, None)),
            ("indexer.k_norm.weight", (0.4, 1.0)),
            ("index_kpool_compress_ape", (1.0, 0.0)),
            ("lm_head.weight", (1.5, None)),
            ("_fn", (0.6, None)),
            ("_scale", (0.4, 1.0)),
            ("_base", (0.6, 0.0)),
            ("A_log", (0.5, 0.0)),
            ("dt_bias", (0.6, 0.0)),
            *SPREADS,
        ],
        extra={"model.language_model.layers.3.eh_proj.weight": (4, 4)},
    )


def qwen4_exp():
    text = hybrid(
        "",
        "qwen4_exp_text",
        attn_output_gate=None,
        eos_token_id=[17, 3],
        hc_count=3,
        hc_lowrank=6,
        head_dim=16,
        heads_per_ngram=2,
        indexer_budget=8,
        indexer_compress_ratio=4,
        indexer_head_dim=16,
        indexer_kv_heads=1,
        indexer_n_heads=8,
        intermediate_size=None,
        layer_types=[LINEAR, LINEAR, FULL],
        make_ngram_vocab_size_divisible_by=8,
        mamba_ssm_dtype=None,
        mtp_num_hidden_layers=None,
        mtp_use_dedicated_embeddings=None,
        ngram_size=3,
        ngram_vocab_size_base=20,
        norm_topk_prob=False,
        num_hidden_layers=3,
        output_gate_type="sigmoid",
        ple_conv_kernel_size=3,
        ple_embed_dim=24,
        ple_layer_ids=[1, 2],
        rope_parameters=ROPE,
        seed=77,
        split_ngram_parts=4,
        **EXPERTS,
    )
    return late_case(
        "qwen4_exp",
        "the text tower: three residual streams with gates for every feature, delta rules with a sigmoid gate, attention over blocks that an "
        "indexer chooses, two layers with features of hashed n-grams, experts that are not normalised",
        wrapper("Qwen4ExpForConditionalGeneration", "qwen4_exp", text, tie_word_embeddings=False),
        in_text(
            [
                EPS,
                TOP_K,
                HYBRID_ACTIVATION,
                *PIECES[:5],
                mutation("rope_theta", {"rope_parameters": {"rope_theta": 10.0}}),
                mutation("partial_rotary_factor", {"rope_parameters": {"partial_rotary_factor": 0.75}}),
                mutation("norm_topk_prob", {"norm_topk_prob": True}),
                mutation("output_gate_type", {"output_gate_type": None}),
                mutation("indexer_budget", {"indexer_budget": 12}),
                mutation("eos_token_id", {"eos_token_id": [18, 3]}),
                mutation("q_layernorm", fill={"indexer.q_layernorm.weight": 0.0}),
                mutation("k_layernorm", fill={"indexer.k_layernorm.weight": 0.0}),
                mutation("hc_norm", fill={"hc_norm.weight": 0.0}),
                mutation("block_inject_weight", fill={"block_inject_weight.weight": 0.0}),
                mutation("norm_key", fill={"norm_key.weight": 0.0}),
                mutation("norm_query", fill={"norm_query.weight": 0.0}),
                mutation("norm_conv", fill={"norm_conv.weight": 0.0}),
                mutation("ple conv1d", fill={"ple.conv1d.weight": 0.0}),
                mutation("shared_expert_gate", fill={"shared_expert_gate.weight": 0.0}),
            ]
        ),
        spreads=[
            ("layernorm.weight", (0.5, 0.0)),
            ("hc_norm.weight", (0.4, 0.0)),
            ("norm_key.weight", (0.5, 0.3)),
            ("norm_query.weight", (0.5, 0.3)),
            ("norm_conv.weight", (0.5, 0.0)),
            ("block_inject_weight.weight", (2.0, None)),
            ("ngram_embedding.weight", (1.0, 0.0)),
            *HYBRID_SPREADS,
        ],
        change=fused,
        rename=HUB,
        extra=TOWER | {"mtp.layers.0.norm.weight": (4,)},
    )


def deepseek_v4():
    names = {"embed_tokens.": "embed.", "hc_head.hc_": "hc_head_", ".attn.norm.": ".attn.kv_norm."}

    def published(tensors):
        """Names as published: transformers cannot turn all of its renaming back. And a table of experts, which it fills with zeros."""
        found = {}
        for name, tensor in tensors.items():
            name = name.removeprefix("model.")
            for old, new in names.items():
                name = name.replace(old, new)
            if name.endswith("tid2eid"):
                tokens = torch.arange(tensor.shape[0])[:, None]
                tensor = (tokens * 5 + tokens // 7 + torch.tensor([0, 2])) % 6
            found[name] = tensor
        return found

    return late_case(
        "deepseek_v4",
        "four residual streams with doubly stochastic mixes; a layer with a window only, one with blocks that an indexer chooses, one with all "
        "blocks of twice the size; a layer whose experts tokens choose by their numbers; bounded gates",
        base(
            "DeepseekV4ForCausalLM",
            "deepseek_v4",
            compress_rate_hca=8,
            compress_ratios=[0, 4, 128],
            compress_rope_theta=5000.0,
            hc_eps=1e-2,
            hc_mult=4,
            hc_sinkhorn_iters=3,
            head_dim=16,
            index_head_dim=8,
            index_n_heads=8,
            index_topk=2,
            intermediate_size=None,
            moe_intermediate_size=16,
            n_routed_experts=6,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_attention_heads=4,
            num_experts_per_tok=2,
            num_hash_layers=1,
            num_hidden_layers=3,
            num_key_value_heads=1,
            num_nextn_predict_layers=1,
            o_groups=2,
            o_lora_rank=8,
            pad_token_id=0,
            q_lora_rank=12,
            qk_rope_head_dim=8,
            rope_scaling=YARN,
            routed_scaling_factor=1.5,
            scoring_func="sqrtsoftplus",
            sliding_window=6,
            swiglu_limit=0.8,
        ),
        [
            THETA,
            EPS,
            ACTIVATION,
            SCALED,
            mutation("bias of gates", fill={"ffn.gate.bias": 0.0}),
            mutation("compress_rope_theta", {"compress_rope_theta": 100.0}),
            mutation("factor", {"rope_scaling": {"factor": 1.5}}),
            mutation("qk_rope_head_dim", {"qk_rope_head_dim": 4}),
            mutation("scoring_func", {"scoring_func": "sigmoid"}),
            mutation("sliding_window", {"sliding_window": 5}),
            mutation("index_topk", {"index_topk": 3}),
            mutation("hc_eps", {"hc_eps": 0.3}),
            mutation("hc_sinkhorn_iters", {"hc_sinkhorn_iters": 1}),
            mutation("hc base", fill={"hc_attn_base": 0.0}),
            mutation("hc_head_base", fill={"hc_head_base": 0.0}),
            mutation("swiglu_limit", {"swiglu_limit": 10.0}),
            mutation("sinks", fill={"attn_sink": -30.0}),
            mutation("ape", fill={"compressor.ape": 0.0}),
            mutation("q_norm", fill={"q_norm.weight": 1.0}),
            mutation("kv_norm", fill={"kv_norm.weight": 1.0}),
            mutation("norm of blocks", fill={"compressor.norm.weight": 1.0}),
            mutation("weights_proj", fill={"indexer.weights_proj.weight": 1.0}),
            mutation("shared_experts", fill={"shared_experts.w2.weight": 0.0}),
        ],
        spreads=[
            ("embed.weight", (0.5, 0.0)),
            ("head.weight", (2.5, None)),
            ("gate.weight", (2.0, None)),
            ("gate.bias", (0.4, 0.0)),
            ("weights_proj.weight", (2.0, None)),
            ("attn_sink", (1.0, 0.5)),
            ("ape", (1.0, 0.0)),
            ("_fn", (0.6, None)),
            ("_scale", (0.4, 1.0)),
            ("_base", (0.6, 0.0)),
            ("wq_b.weight", (1.6, None)),
            ("wkv.weight", (1.6, None)),
        ],
        change=published,
        extra={"mtp.0.norm.weight": (4,)},
    )

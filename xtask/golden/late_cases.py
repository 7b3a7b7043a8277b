"""The float cases of families of 2026. Their weights are formulas (formula.py)."""

import torch

from by_mlx_lm import stacked_apart
from cases import EPS, K_NORM, NO_SCALING, Q_NORM, THETA, Case, base, mutation, no_bias, windows, with_keys
from gemma_cases import in_text
from vision_cases import BF16

TOP_K = mutation("num_experts_per_tok", {"num_experts_per_tok": 3})
CORRECTION = ("e_score_correction_bias", (0.3, 0.0))
FULL, SLIDING = "full_attention", "sliding_attention"
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "rope_type": "yarn"}


def late_case(name, covers, config, mutations, **more):
    more = BF16 | more
    kind = str(more["dtype"]).removeprefix("torch.")
    return Case(name, f"{covers}; {kind}", config, mutations, formula=True, **more)


def late_cases():
    yield solar_open()
    yield hy_v3()
    yield exaone_moe()
    yield afmoe()
    yield from laguna()
    yield from cohere2_moe()
    yield from mimo_v2()
    yield muse_glimmer()
    yield from lfm3()
    yield step3p7()
    yield from bailing_moe()
    yield bailing_hybrid()


def solar_open():
    return late_case(
        "solar_open",
        "experts in every layer, YaRN on the whole head",
        base(
            "SolarOpenForCausalLM",
            "solar_open",
            first_k_dense_replace=0,
            head_dim=16,
            moe_intermediate_size=16,
            n_group=1,
            n_routed_experts=6,
            n_shared_experts=1,
            norm_topk_prob=True,
            num_experts_per_tok=2,
            partial_rotary_factor=1.0,
            rope_scaling=YARN,
            routed_scaling_factor=1.7,
            topk_group=1,
            use_qk_norm=False,
            intermediate_size=48,
        ),
        [
            THETA,
            EPS,
            NO_SCALING,
            TOP_K,
            mutation("norm_topk_prob", {"norm_topk_prob": False}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0}),
            mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
        ],
        spreads=[CORRECTION],
    )


def hy_v3():
    return late_case(
        "hy_v3",
        "a dense layer and two of experts, sigmoids and a correction, norms on q and k; the layer after the last is not read",
        base(
            "HYV3ForCausalLM",
            "hy_v3",
            attention_bias=False,
            enable_moe_fp32_combine=False,
            head_dim=16,
            mlp_bias=False,
            moe_intermediate_size=16,
            num_experts=6,
            num_experts_per_tok=2,
            num_hidden_layers=3,
            num_shared_experts=2,
            rope_theta=11158840.0,
            router_scaling_factor=2.826,
        ),
        [
            THETA,
            EPS,
            Q_NORM,
            K_NORM,
            TOP_K,
            mutation("router_scaling_factor", {"router_scaling_factor": 1.0}),
            mutation("expert_bias", fill={"mlp.expert_bias": 0.0}),
            mutation("shared_mlp", fill={"shared_mlp.down_proj.weight": 0.0}),
        ],
        spreads=[("router.gate.weight", (2.0, None)), ("expert_bias", (0.3, 0.0))],
        alternates={"config.types.json": with_keys(mlp_layer_types=["dense", "sparse", "sparse"])},
    )


def exaone_moe():
    return late_case(
        "exaone_moe",
        "windows with rope and full layers without, norms on q and k, a dense layer and three of experts in groups",
        base(
            "ExaoneMoeForCausalLM",
            "exaone_moe",
            first_k_dense_replace=1,
            head_dim=16,
            is_moe_layer=[False, True, True, True],
            layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
            moe_intermediate_size=16,
            n_group=2,
            norm_topk_prob=True,
            num_experts=6,
            num_experts_per_tok=2,
            num_hidden_layers=4,
            num_shared_experts=1,
            rope_scaling=None,
            routed_scaling_factor=2.5,
            scoring_func="sigmoid",
            sliding_window=8,
            sliding_window_pattern="LLLG",
            topk_group=1,
            topk_method="noaux_tc",
        ),
        [
            THETA,
            EPS,
            Q_NORM,
            K_NORM,
            TOP_K,
            *windows(8),
            mutation("topk_group", {"topk_group": 2}),
            mutation("norm_topk_prob", {"norm_topk_prob": False}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0}),
            mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
        ],
        spreads=[CORRECTION],
        extra={"mtp.layers.0.mlp.down_proj.weight": (4, 4)},
    )


def afmoe():
    return late_case(
        "afmoe",
        "four norms, a gate on every feature of attention's output, rope on windows only, scaled embeddings, a dense layer and three "
        "of experts",
        base(
            "AfmoeForCausalLM",
            "afmoe",
            global_attn_every_n_layers=4,
            head_dim=16,
            load_balance_coeff=0.001,
            moe_intermediate_size=16,
            mup_enabled=True,
            n_group=1,
            num_dense_layers=1,
            num_expert_groups=1,
            num_experts=6,
            num_experts_per_tok=2,
            num_hidden_layers=4,
            num_limited_groups=1,
            num_shared_experts=2,
            route_norm=True,
            route_scale=2.826,
            score_func="sigmoid",
            sliding_window=8,
            topk_group=1,
            use_grouped_mm=True,
        ),
        [
            THETA,
            EPS,
            Q_NORM,
            K_NORM,
            TOP_K,
            *windows(8),
            mutation("mup_enabled", {"mup_enabled": False}),
            mutation("num_dense_layers order", {"layer_types": [SLIDING, SLIDING, FULL, SLIDING]}),
            mutation("gate_proj", fill={"self_attn.gate_proj.weight": 0.0}),
            mutation("route_scale", {"route_scale": 1.0}),
            mutation("expert_bias", fill={"mlp.expert_bias": 0.0}),
            mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0}),
        ],
        spreads=[("router.gate.weight", (2.0, None)), ("expert_bias", (0.3, 0.0))],
        alternates={"config.types.json": with_keys(layer_types=[SLIDING, SLIDING, SLIDING, FULL])},
    )


def laguna():
    full = {
        "attention_factor": 1.2,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "partial_rotary_factor": 0.5,
        "rope_theta": 500000.0,
        "rope_type": "yarn",
    }
    sliding = {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"}
    config = base(
        "LagunaForCausalLM",
        "laguna",
        attention_bias=False,
        gating=True,
        head_dim=16,
        layer_types=[FULL, SLIDING, SLIDING],
        mlp_layer_types=["dense", "sparse", "sparse"],
        moe_apply_router_weight_on_input=False,
        moe_intermediate_size=16,
        moe_routed_scaling_factor=2.5,
        num_attention_heads_per_layer=[4, 6, 4],
        num_experts=6,
        num_experts_per_tok=2,
        num_hidden_layers=3,
        partial_rotary_factor=0.5,
        rope_parameters={FULL: full, SLIDING: sliding},
        rope_theta=None,
        shared_expert_intermediate_size=24,
        sliding_window=8,
    )
    mutations = [
        EPS,
        Q_NORM,
        K_NORM,
        TOP_K,
        *windows(8),
        mutation("g_proj", fill={"self_attn.g_proj.weight": 0.0}),
        mutation("moe_routed_scaling_factor", {"moe_routed_scaling_factor": 1.0}),
        mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0}),
        mutation("shared_expert", fill={"shared_expert.down_proj.weight": 0.0}),
    ]
    yield late_case(
        "laguna",
        "4 or 6 heads a layer, YaRN with its own factor on half of the heads of full layers, a gate a head, a dense layer and two of experts",
        config,
        [
            *mutations,
            mutation("attention_factor", {"rope_parameters": {FULL: {"attention_factor": 1.0}}}),
            mutation("partial_rotary_factor", {"rope_parameters": {FULL: {"partial_rotary_factor": 1.0}}}),
            mutation("rope_theta of windows", {"rope_parameters": {SLIDING: {"rope_theta": 300.0}}}),
        ],
        spreads=[CORRECTION],
    )
    yield late_case(
        "laguna_element",
        "a gate for every feature, capped scores of experts, the default ropes, biases, windows first",
        config
        | {
            "attention_bias": True,
            "gating": "per-element",
            "layer_types": [SLIDING, FULL],
            "mlp_layer_types": ["dense", "sparse"],
            "moe_router_logit_softcapping": 0.7,
            "num_attention_heads_per_layer": [4, 6],
            "num_hidden_layers": 2,
            "rope_parameters": None,
        },
        [
            EPS,
            *windows(8),
            mutation("g_proj", fill={"self_attn.g_proj.weight": 0.0}),
            mutation("moe_router_logit_softcapping", {"moe_router_logit_softcapping": 0.0}),
            *no_bias("q_proj", "k_proj", "v_proj", "o_proj"),
        ],
        spreads=[CORRECTION],
    )


def cohere2_moe():
    config = base(
        "Cohere2MoeForCausalLM",
        "cohere2_moe",
        attention_bias=False,
        expert_selection_fn="softmax",
        first_k_dense_replace=1,
        head_dim=16,
        intermediate_size=16,
        layer_norm_eps=0.02,
        logit_scale=0.5,
        num_experts=6,
        num_experts_per_tok=2,
        num_hidden_layers=5,
        num_shared_experts=2,
        prefix_dense_intermediate_size=40,
        prefix_dense_sliding_window_pattern=1,
        rms_norm_eps=None,
        shared_expert_combination_strategy="average",
        sliding_window=8,
        sliding_window_pattern=3,
        tie_word_embeddings=True,
    )
    shared = mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0})
    yield late_case(
        "cohere2_moe",
        "a dense layer with rope and no window, then windows and a full layer without rope; the mean of routed and shared experts",
        config,
        [
            THETA,
            mutation("layer_norm_eps", {"layer_norm_eps": 1e-5}),
            mutation("logit_scale", {"logit_scale": 1.0}, changes="logits"),
            TOP_K,
            *windows(8),
            mutation("prefix pattern", {"layer_types": [FULL, SLIDING, SLIDING, SLIDING, FULL]}),
            mutation("force_rope", {"layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING], "prefix_dense_sliding_window_pattern": 2}),
            mutation("combination", {"shared_expert_combination_strategy": "sum"}),
            mutation("selection", {"expert_selection_fn": "sigmoid"}),
            shared,
        ],
    )
    yield late_case(
        "cohere2_moe_rms",
        "RMS norms, sigmoids that are not normed, the sum of routed and shared experts, a dense layer with a window, an untied head",
        config
        | {
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "num_hidden_layers": 3,
            "prefix_dense_sliding_window_pattern": 2,
            "rms_norm_eps": 0.02,
            "shared_expert_combination_strategy": "sum",
            "sliding_window_pattern": 2,
            "tie_word_embeddings": False,
        },
        [
            EPS,
            TOP_K,
            *windows(8),
            mutation("norm_topk_prob", {"norm_topk_prob": True}),
            mutation("combination", {"shared_expert_combination_strategy": "average"}),
            shared,
        ],
    )


def mimo_v2():
    ropes = {
        FULL: {"partial_rotary_factor": 0.334, "rope_theta": 5000000.0, "rope_type": "default"},
        SLIDING: {"partial_rotary_factor": 0.334, "rope_theta": 10000.0, "rope_type": "default"},
    }

    def bases(full, sliding):
        return {"rope_parameters": {FULL: ropes[FULL] | full, SLIDING: ropes[SLIDING] | sliding}}

    config = base(
        "MiMoV2FlashForCausalLM",
        "mimo_v2_flash",
        add_full_attention_sink_bias=False,
        add_swa_attention_sink_bias=True,
        attention_bias=False,
        attention_value_scale=0.707,
        head_dim=24,
        hybrid_block_size=None,
        hybrid_layer_pattern=[0, 1, 1],
        layernorm_epsilon=1e-5,
        moe_intermediate_size=16,
        moe_layer_freq=[0, 1, 1],
        n_group=1,
        n_routed_experts=6,
        n_shared_experts=None,
        norm_topk_prob=True,
        num_experts_per_tok=2,
        num_hidden_layers=3,
        partial_rotary_factor=0.334,
        rms_norm_eps=None,
        rope_theta=5000000.0,
        routed_scaling_factor=None,
        scoring_func="sigmoid",
        sliding_window=7,
        sliding_window_size=7,
        swa_head_dim=24,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=4,
        swa_rope_theta=10000.0,
        swa_v_head_dim=16,
        topk_group=1,
        topk_method="noaux_tc",
        v_head_dim=16,
    ) | {"routed_scaling_factor": None, "n_shared_experts": None}
    mutations = [
        mutation("rope_theta", bases({"rope_theta": 300.0}, {})),
        mutation("swa_rope_theta", bases({}, {"rope_theta": 300.0})),
        mutation("partial_rotary_factor", bases({"partial_rotary_factor": 0.5}, {})),
        mutation("rms_norm_eps", {"rms_norm_eps": 0.05}),
        TOP_K,
        mutation("sliding_window_size_6", {"sliding_window_size": 6}),
        mutation("sliding_window_size_8", {"sliding_window_size": 8}),
        mutation("attention_value_scale", {"attention_value_scale": 1.0}),
        mutation("attention_sink_bias", fill={"attention_sink_bias": -30.0}),
        mutation("e_score_correction_bias", fill={"e_score_correction_bias": 0.0}),
    ]
    spreads = [CORRECTION, ("attention_sink_bias", (1.0, 0.5))]
    yield late_case(
        "mimo_v2_flash",
        "heads of 24 for q and k and of 16 for v, of which 8 rotate, scaled values, sinks and twice the heads of keys in windows, "
        "a dense layer and two of experts",
        config,
        mutations,
        spreads=spreads,
        extra={"model.mtp.layers.0.eh_proj.weight": (4, 4)},
    )
    yield late_case(
        "mimo_v2",
        "the text model's keys and tensors beside those of images and sounds, one matrix for queries, keys and values",
        config
        | {
            "architectures": ["MiMoV2ForCausalLM"],
            "attention_projection_layout": "fused_qkv",
            "audio_config": {"audio_channels": 2, "group_size": 4},
            "audio_token_id": 62,
            "image_token_id": 60,
            "model_type": "mimo_v2",
            "video_token_id": 61,
            "vision_config": {"depth": 1, "hidden_size": 16},
        },
        mutations,
        composed=True,
        spreads=[*spreads, ("qkv_proj.weight", (1.6, None))],
        extra={"visual.merger.ln_q.weight": (4,), "audio_encoder.norm.weight": (4,), "speech_embeddings.0.weight": (4, 4)},
    )


def muse_glimmer():
    text = base(
        "",
        "muse_glimmer_text",
        attention_bias=False,
        final_logit_softcapping=20.0,
        head_dim=16,
        hidden_act=None,
        hidden_activation="silu",
        layer_rope_theta=[0, 300000.0, 300000.0, 300000.0, 0],
        layer_types=[FULL, SLIDING, SLIDING, SLIDING, FULL],
        num_hidden_layers=5,
        output_multiplier=0.8,
        post_norm_eps=0.01,
        qk_scale_factor=1.8,
        rope_parameters={"rope_theta": 300000.0, "rope_type": "default"},
        rope_theta=None,
        sliding_window=8,
    )
    text = {key: value for key, value in text.items() if key not in ("architectures", "transformers_version")}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "patch_size": 4}
    return late_case(
        "muse_glimmer",
        "the text tower: normed embeddings, norms without weights on q and k, a gate on every feature, layers without rope, a cap of scaled "
        "logits",
        {
            "architectures": ["MuseGlimmerForConditionalGeneration"],
            "image_token_id": 60,
            "model_type": "muse_glimmer",
            "out_hidden_size": 64,
            "projector_hidden_size": 16,
            "text_config": text,
            "tie_word_embeddings": False,
            "transformers_version": "5.20.0",
            "video_token_id": 61,
            "vision_config": vision | {"pos_emb_height": 4, "pos_emb_width": 4},
        },
        in_text(
            [
                EPS,
                *windows(8),
                mutation("rope_theta", {"rope_parameters": {"rope_theta": 300.0}}),
                mutation("layer_rope_theta", {"layer_rope_theta": [300000.0] * 5}),
                mutation("post_norm_eps", {"post_norm_eps": 1.0}),
                mutation("qk_scale_factor", {"qk_scale_factor": 1.0}),
                mutation("output_multiplier", {"output_multiplier": 1.0}, changes="logits"),
                mutation("final_logit_softcapping", {"final_logit_softcapping": 4.0}, changes="logits"),
                mutation("gate_proj", fill={"self_attn.gate_proj.weight": 0.0}),
            ]
        ),
        # The weight of these norms is stored less 1.
        spreads=[("layernorm.weight", (0.4, 0.0))],
        extra={"model.language_model.rotary_emb.freqs": (8,)},
    )


def lfm3():
    ropes = {
        FULL: {"partial_rotary_factor": 0.5, "rope_theta": 100.0, "rope_type": "proportional"},
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
    }
    config = base(
        "Lfm3ForCausalLM",
        "lfm3",
        attention_bias=False,
        conv_L_cache=7,
        conv_bias=False,
        head_dim=16,
        hidden_act=None,
        layer_types=["conv", "conv", FULL, SLIDING],
        norm_eps=0.02,
        num_hidden_layers=4,
        pad_token_id=0,
        rms_norm_eps=None,
        rope_parameters=ropes,
        rope_theta=None,
        sliding_window=8,
        tie_word_embeddings=True,
        use_attention_gate=True,
        use_sandwich_norm=True,
    )
    eps = mutation("norm_eps", {"norm_eps": 1e-6})
    taps = ("conv.conv.weight", (0.5, 0.0))
    yield late_case(
        "lfm3",
        "convolutions of seven taps, a full layer with proportional rope on half of the head and one with a window, a gate a head, norms "
        "also behind the parts; tied",
        config,
        [
            eps,
            Q_NORM,
            K_NORM,
            *windows(8),
            mutation("rope_theta", {"rope_parameters": {FULL: {"rope_theta": 5.0}}}),
            mutation("partial_rotary_factor", {"rope_parameters": {FULL: {"partial_rotary_factor": 1.0}}}),
            mutation("rope_theta of windows", {"rope_parameters": {SLIDING: {"rope_theta": 100.0}}}),
            mutation("gate", fill={"self_attn.gate_proj.weight": 0.0}),
            mutation("post_operator_norm", fill={"post_operator_norm.weight": 1.0}),
            mutation("post_ffn_norm", fill={"post_ffn_norm.weight": 1.0}),
        ],
        spreads=[taps],
    )
    yield late_case(
        "lfm3_plain",
        "the same layers in the default order and with the default ropes, without gates and norms behind the parts, with biases; untied",
        config
        | {
            "attention_bias": True,
            "conv_bias": True,
            "layer_types": None,
            "num_hidden_layers": 5,
            "rope_parameters": None,
            "tie_word_embeddings": False,
            "use_attention_gate": False,
            "use_sandwich_norm": False,
        },
        [eps, *windows(8), *no_bias("q_proj", "o_proj", "conv.conv", "conv.in_proj")],
        spreads=[taps],
    )


def step3p7():
    text = base(
        "",
        "step3p5",
        attention_bias=False,
        attention_other_setting={"attention_type": SLIDING, "head_dim": 16, "num_attention_groups": 2, "num_attention_heads": 6},
        head_dim=16,
        hidden_act=None,
        layer_types=[FULL, SLIDING, SLIDING, FULL, SLIDING],
        moe_intermediate_size=16,
        moe_layers_enum="1,2,3",
        moe_num_experts=6,
        moe_router_scaling_factor=3.0,
        moe_top_k=2,
        num_attention_groups=2,
        num_hidden_layers=4,
        num_key_value_heads=None,
        num_nextn_predict_layers=1,
        partial_rotary_factors=[0.5, 1.0, 1.0, 0.5, 1.0],
        rope_scaling={
            "factor": 2.0,
            "high_freq_factor": 32.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        rope_theta=[5000000.0, 10000.0, 10000.0, 5000000.0, 10000.0],
        share_expert_dim=24,
        sliding_window=8,
        swiglu_limits=[0.0, 0.0, 0.6, 0.0, 0.0],
        swiglu_limits_shared=[0.7, 0.0, 0.8, 0.0, 0.0],
        use_head_wise_attn_gate=True,
        yarn_only_types=[FULL],
    )
    text = {key: value for key, value in text.items() if key not in ("architectures", "transformers_version")}
    vision = {"hidden_size": 16, "image_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "patch_size": 4}
    limits = mutation("swiglu_limits", {"swiglu_limits": [0.0] * 5})
    return late_case(
        "step3p7",
        "the text tower: 4 heads, or 6 in windows, lists of ropes, llama3 on half of the heads of full layers, a gate a head, bounded gates of "
        "an MLP and of experts",
        {
            "architectures": ["Step3p7ForConditionalGeneration"],
            "image_token_id": 60,
            "model_type": "step3p7",
            "text_config": text,
            "tie_word_embeddings": False,
            "transformers_version": "5.20.0",
            "vision_config": vision,
        },
        in_text(
            [
                EPS,
                *windows(8),
                Q_NORM,
                K_NORM,
                limits,
                mutation("swiglu_limits_shared", {"swiglu_limits_shared": [0.0] * 5}),
                mutation("moe_router_scaling_factor", {"moe_router_scaling_factor": 1.0}),
                mutation("rope_theta", {"rope_theta": [300.0, 10000.0, 10000.0, 300.0, 10000.0]}),
                mutation("rope_theta of windows", {"rope_theta": [5000000.0, 300.0, 300.0, 5000000.0, 300.0]}),
                mutation("partial_rotary_factors", {"partial_rotary_factors": [1.0] * 5}),
                NO_SCALING,
                mutation("moe_top_k", {"moe_top_k": 3}),
                mutation("router_bias", fill={"moe.router_bias": 0.0}),
                mutation("g_proj", fill={"self_attn.g_proj.weight": 0.0}),
                mutation("share_expert", fill={"share_expert.down_proj.weight": 0.0}),
            ]
        ),
        # The weights of norms are stored less 1.
        spreads=[
            ("q_norm.weight", (0.4, 0.5)),
            ("k_norm.weight", (0.4, 0.5)),
            ("norm.weight", (0.4, 0.0)),
            ("moe.router_bias", (0.3, 0.0)),
            ("moe.gate.weight", (2.0, None)),
        ],
        extra={"model.layers.4.enorm.weight": (4, 4)},
    )


def bailing_moe():
    config = base(
        "BailingMoeForCausalLM",
        "bailing_moe",
        first_k_dense_replace=0,
        moe_intermediate_size=16,
        norm_head=True,
        norm_softmax=False,
        norm_topk_prob=True,
        num_experts=6,
        num_experts_per_tok=2,
        num_shared_experts=2,
        use_bias=False,
        use_qkv_bias=True,
    )
    shared = mutation("shared_experts", fill={"shared_experts.down_proj.weight": 0.0})
    apart = {"by_mlx_lm": True, "change": lambda tensors: stacked_apart(tensors, 6), "composed": True}
    spreads = [
        ("word_embeddings.weight", (0.5, 0.0)),
        ("query_layernorm.weight", (0.4, 1.5)),
        ("key_layernorm.weight", (0.4, 1.5)),
        ("mlp.gate.weight", (2.0, None)),
        ("expert_bias", (0.3, 0.0)),
    ]
    yield late_case(
        "bailing_moe",
        "Ling 1: fused q, k and v with biases, softmax experts in every layer, a head that is divided by its norms of columns",
        config,
        [
            THETA,
            EPS,
            TOP_K,
            shared,
            mutation("norm_topk_prob", {"norm_topk_prob": False}),
            mutation("norm_head", {"norm_head": False}, changes="logits"),
            *no_bias("query_key_value"),
        ],
        spreads=spreads,
        # mlx-lm rounds the divided head to the dtype of the file.
        dtype=torch.float32,
        **apart,
    )
    yield late_case(
        "bailing_moe_two",
        "Ling 2: norms on q and k, rope on half of the head, a dense layer, sigmoids with a correction, scaled weights",
        config
        | {
            "architectures": ["BailingMoeV2ForCausalLM"],
            "first_k_dense_replace": 1,
            "head_dim": 8,
            "moe_router_enable_expert_bias": True,
            "moe_shared_expert_intermediate_size": 24,
            "n_group": 1,
            "norm_head": False,
            "num_hidden_layers": 3,
            "num_nextn_predict_layers": 0,
            "num_shared_experts": 1,
            "partial_rotary_factor": 0.5,
            "routed_scaling_factor": 2.5,
            "router_dtype": "fp32",
            "score_function": "sigmoid",
            "topk_group": 1,
            "use_qk_norm": True,
            "use_qkv_bias": False,
            "use_rmsnorm": True,
        },
        [
            THETA,
            EPS,
            TOP_K,
            shared,
            mutation("partial_rotary_factor", {"partial_rotary_factor": 1.0}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            mutation("score_function", {"score_function": "softmax"}),
            mutation("expert_bias", fill={"gate.expert_bias": 0.0}),
            mutation("query_layernorm", fill={"query_layernorm.weight": 1.0}),
            mutation("key_layernorm", fill={"key_layernorm.weight": 1.0}),
        ],
        spreads=spreads,
        **apart,
    )


def bailing_hybrid():
    def published(tensors):
        """transformers writes the outputs of recurrent layers under the name of latent attention's."""
        own = {f"model.layers.{n}.attention.dense.weight": f"model.layers.{n}.attention.o_proj.weight" for n in (0, 2)}
        return {own.get(name, name): tensor for name, tensor in tensors.items()}

    return late_case(
        "bailing_hybrid",
        "Ling 3: delta rules with bounded decays, latent attention with a gate a head in the last layer of a group, a dense layer and three of "
        "grouped experts",
        base(
            "BailingMoeV3ForCausalLM",
            "bailing_hybrid",
            first_k_dense_replace=1,
            head_dim=16,
            kda_lower_bound=-5.0,
            kda_safe_gate=True,
            kv_lora_rank=24,
            layer_group_size=2,
            moe_intermediate_size=16,
            n_group=2,
            no_kda_lora=True,
            norm_topk_prob=True,
            num_experts=6,
            num_experts_per_tok=2,
            num_hidden_layers=4,
            num_key_value_heads=4,
            num_nextn_predict_layers=1,
            num_shared_experts=1,
            pad_token_id=0,
            q_lora_rank=None,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            rope_theta=6000000.0,
            routed_scaling_factor=2.5,
            short_conv_kernel_size=4,
            topk_group=1,
            v_head_dim=16,
        ),
        [
            THETA,
            EPS,
            TOP_K,
            mutation("kda_safe_gate", {"kda_safe_gate": False}),
            mutation("kda_lower_bound", {"kda_lower_bound": -1.0}),
            mutation("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            mutation("topk_group", {"topk_group": 2}),
            mutation("expert_bias", fill={"gate.expert_bias": 0.0}),
            mutation("g_proj", fill={"attention.g_proj.weight": 0.0}),
            mutation("dt_bias", fill={"attention.dt_bias": 0.0}),
        ],
        spreads=[
            ("expert_bias", (0.3, 0.0)),
            ("A_log", (0.5, 0.0)),
            ("dt_bias", (0.6, 0.0)),
            ("conv1d.weight", (0.5, 0.0)),
            ("word_embeddings.weight", (0.5, 0.0)),
        ],
        change=published,
    )

//! The architectures of llama.cpp that are read, one row each.
//!
//! Sources: llama.cpp's `convert_hf_to_gguf.py`, which writes such files, and `gguf/constants.py` with the names.

use mlx_core::Result;
use serde_json::{Map, Value, json};

use super::config::Metadata;

/// How files of an architecture are read.
pub(super) struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// The `model_type` of its config.json.
    pub model_type: &'static str,
    /// The config's key for the epsilon of the norms.
    pub eps: &'static str,
    /// Keys of the metadata, without the architecture's name, and those of the config, besides [`KEYS`].
    pub keys: &'static [(&'static str, &'static str)],
    /// Values of the config that the metadata do not have, in JSON.
    pub fixed: &'static [(&'static str, &'static str)],
    /// Flags of the config: whether any layer has the tensor.
    pub flags: &'static [(&'static str, &'static str)],
    /// Names of tensors and of parameters, besides [`LAYER`] and [`OUTSIDE`].
    pub names: &'static [(&'static str, &'static str)],
    /// Whether the rows of q and k are in the order of rope over neighbours, and have to be brought into that of rope
    /// over halves.
    pub rotated: bool,
    /// Whether q, k and v are rows of one matrix, which are three of the model's.
    pub splits_qkv: bool,
    /// Whether norms are stored with 1 added.
    pub unit_norms: bool,
    /// What no table says.
    pub more: fn(&Metadata<'_>, &mut Map<String, Value>) -> Result<()>,
}

const BASE: Architecture = Architecture {
    name: "",
    model_type: "",
    eps: "rms_norm_eps",
    keys: &[],
    fixed: &[],
    flags: &[],
    names: &[],
    rotated: false,
    splits_qkv: false,
    unit_norms: false,
    more: |_, _| Ok(()),
};

/// Keys of all architectures.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("rope.freq_base", "rope_theta"),
];

/// Keys that have no counterpart, or are read with others.
pub(super) const SILENT: &[&str] = &[
    "attention.causal",
    "attention.value_length",
    "rope.dimension_sections",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "n_deepstack_layers",
    "expert_gating_func",
    "vocab_size",
    "pooling_type",
];

/// Tensors of a layer, `blk.0.NAME`, and the parameters in `model.layers.0`.
pub(super) const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.switch_mlp.gate_proj"),
    ("ffn_up_exps", "mlp.switch_mlp.up_proj"),
    ("ffn_down_exps", "mlp.switch_mlp.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("exp_probs_b", "mlp.e_score_correction_bias"),
];

/// Tensors outside of the layers.
pub(super) const OUTSIDE: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

/// Norms before and after both parts of a layer.
const FOUR_NORMS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Norms after both parts of a layer.
const NORMS_AFTER: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const QK_LAYERNORMS: &[(&str, &str)] = &[
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
];

const GRANITE: &[(&str, &str)] = &[
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    (
        "expert_shared_feed_forward_length",
        "shared_intermediate_size",
    ),
];

const EXPERTS: &[(&str, &str)] = &[
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    (
        "expert_shared_feed_forward_length",
        "shared_expert_intermediate_size",
    ),
];

const QWEN3_EXPERTS: &[(&str, &str)] = &[
    ("norm_topk_prob", "true"),
    ("decoder_sparse_step", "1"),
    ("mlp_only_layers", "[]"),
];

const DEEPSEEK_EXPERTS: &[(&str, &str)] = &[
    ("expert_count", "n_routed_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("leading_dense_block_count", "first_k_dense_replace"),
];

const ATTENTION_BIAS: (&str, &str) = ("attn_q.bias", "attention_bias");

/// Every architecture that is read.
pub(super) const ALL: &[Architecture] = &[
    // Also Mistral, and with experts Mixtral.
    Architecture {
        name: "llama",
        model_type: "llama",
        keys: &[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
        ],
        flags: &[ATTENTION_BIAS, ("ffn_down.bias", "mlp_bias")],
        rotated: true,
        more: |_, config| {
            if config.contains_key("num_local_experts") {
                config.insert("model_type".to_owned(), json!("mixtral"));
            }
            Ok(())
        },
        ..BASE
    },
    // Mistral Small 3, and Ministral 3, whose queries grow with the position.
    Architecture {
        name: "mistral3",
        model_type: "mistral",
        fixed: &[("sliding_window", "null")],
        rotated: true,
        more: |metadata, config| metadata.ministral(config),
        ..BASE
    },
    Architecture {
        name: "arcee",
        model_type: "arcee",
        flags: &[ATTENTION_BIAS, ("ffn_down.bias", "mlp_bias")],
        rotated: true,
        ..BASE
    },
    Architecture {
        name: "smollm3",
        model_type: "smollm3",
        flags: &[ATTENTION_BIAS, ("ffn_down.bias", "mlp_bias")],
        // llama.cpp has no rope on every fourth layer.
        fixed: &[("no_rope_layer_interval", "4")],
        rotated: true,
        ..BASE
    },
    Architecture {
        name: "qwen2",
        model_type: "qwen2",
        ..BASE
    },
    // The text towers of multimodal models: positions of images have no effect on text.
    Architecture {
        name: "qwen2vl",
        model_type: "qwen2",
        ..BASE
    },
    Architecture {
        name: "qwen3vl",
        model_type: "qwen3",
        flags: &[ATTENTION_BIAS],
        ..BASE
    },
    Architecture {
        name: "qwen3vlmoe",
        model_type: "qwen3_moe",
        keys: EXPERTS,
        fixed: QWEN3_EXPERTS,
        flags: &[ATTENTION_BIAS],
        ..BASE
    },
    // Llama with other names in its own files.
    Architecture {
        name: "internlm2",
        model_type: "llama",
        rotated: true,
        ..BASE
    },
    Architecture {
        name: "xverse",
        model_type: "llama",
        rotated: true,
        ..BASE
    },
    Architecture {
        name: "exaone",
        model_type: "llama",
        ..BASE
    },
    Architecture {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        keys: EXPERTS,
        fixed: &[
            ("norm_topk_prob", "false"),
            ("decoder_sparse_step", "1"),
            ("mlp_only_layers", "[]"),
        ],
        ..BASE
    },
    Architecture {
        name: "qwen3",
        model_type: "qwen3",
        flags: &[ATTENTION_BIAS],
        ..BASE
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        keys: EXPERTS,
        fixed: QWEN3_EXPERTS,
        flags: &[ATTENTION_BIAS],
        ..BASE
    },
    Architecture {
        name: "gemma",
        model_type: "gemma",
        fixed: &[("hidden_activation", "\"gelu_pytorch_tanh\"")],
        unit_norms: true,
        ..BASE
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        keys: &[
            ("attention.sliding_window", "sliding_window"),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ],
        names: FOUR_NORMS,
        unit_norms: true,
        more: |metadata, config| metadata.gemma_scale(config, 46),
        ..BASE
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        keys: &[
            ("attention.sliding_window", "sliding_window"),
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("rope.freq_base_swa", "rope_local_base_freq"),
        ],
        names: FOUR_NORMS,
        unit_norms: true,
        more: |metadata, config| metadata.gemma_scale(config, 62),
        ..BASE
    },
    Architecture {
        name: "phi2",
        model_type: "phi",
        eps: "layer_norm_eps",
        ..BASE
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        keys: &[("attention.sliding_window", "sliding_window")],
        names: &[
            ("attn_qkv", "self_attn.qkv_proj"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        more: |metadata, config| metadata.phi3_window(config),
        ..BASE
    },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        eps: "norm_epsilon",
        fixed: &[("sliding_window", "null")],
        flags: &[("attn_q.bias", "use_bias")],
        ..BASE
    },
    Architecture {
        name: "stablelm",
        model_type: "stablelm",
        eps: "layer_norm_eps",
        keys: &[("use_parallel_residual", "use_parallel_residual")],
        flags: &[
            ("attn_q.bias", "use_qkv_bias"),
            ("attn_q_norm.weight", "qk_layernorm"),
        ],
        names: QK_LAYERNORMS,
        more: |metadata, config| {
            // The files always claim parallel branches; only models without a second norm have them.
            let parallel = !metadata.has("ffn_norm.weight");
            config.insert("use_parallel_residual".to_owned(), json!(parallel));
            Ok(())
        },
        ..BASE
    },
    Architecture {
        name: "command-r",
        model_type: "cohere",
        eps: "layer_norm_eps",
        keys: &[("logit_scale", "logit_scale")],
        flags: &[ATTENTION_BIAS, ("attn_q_norm.weight", "use_qk_norm")],
        ..BASE
    },
    Architecture {
        name: "cohere2",
        model_type: "cohere2",
        eps: "layer_norm_eps",
        keys: &[
            ("logit_scale", "logit_scale"),
            ("attention.sliding_window", "sliding_window"),
        ],
        fixed: &[("sliding_window_pattern", "4")],
        ..BASE
    },
    Architecture {
        name: "olmo",
        model_type: "olmo",
        eps: "",
        keys: &[("attention.clamp_kqv", "clip_qkv")],
        rotated: true,
        ..BASE
    },
    // Also OLMo 3, which has windows.
    Architecture {
        name: "olmo2",
        model_type: "olmo2",
        keys: &[("attention.sliding_window", "sliding_window")],
        names: NORMS_AFTER,
        flags: &[ATTENTION_BIAS],
        more: |metadata, config| metadata.olmo3(config),
        ..BASE
    },
    Architecture {
        name: "olmoe",
        model_type: "olmoe",
        keys: EXPERTS,
        fixed: &[("norm_topk_prob", "false")],
        flags: &[ATTENTION_BIAS],
        ..BASE
    },
    Architecture {
        name: "granite",
        model_type: "granite",
        keys: GRANITE,
        flags: &[ATTENTION_BIAS, ("ffn_down.bias", "mlp_bias")],
        rotated: true,
        ..BASE
    },
    Architecture {
        name: "granitemoe",
        model_type: "granitemoe",
        keys: GRANITE,
        flags: &[ATTENTION_BIAS],
        rotated: true,
        more: |_, config| {
            if config.contains_key("shared_intermediate_size") {
                config.insert("model_type".to_owned(), json!("granitemoeshared"));
            }
            Ok(())
        },
        ..BASE
    },
    Architecture {
        name: "minicpm",
        model_type: "minicpm",
        rotated: true,
        keys: &[("embedding_scale", "scale_emb")],
        more: |metadata, config| metadata.minicpm(config),
        ..BASE
    },
    Architecture {
        name: "nemotron",
        model_type: "nemotron",
        eps: "norm_eps",
        flags: &[ATTENTION_BIAS, ("ffn_down.bias", "mlp_bias")],
        unit_norms: true,
        ..BASE
    },
    Architecture {
        name: "seed_oss",
        model_type: "seed_oss",
        flags: &[
            ATTENTION_BIAS,
            ("attn_output.bias", "attention_out_bias"),
            ("ffn_down.bias", "mlp_bias"),
        ],
        names: &[("post_attention_norm", "post_attention_layernorm")],
        ..BASE
    },
    Architecture {
        name: "exaone4",
        model_type: "exaone4",
        keys: &[("attention.sliding_window", "sliding_window")],
        names: NORMS_AFTER,
        // The model with full attention on all layers has no window.
        more: |_, config| {
            config.entry("sliding_window").or_insert(Value::Null);
            Ok(())
        },
        ..BASE
    },
    Architecture {
        name: "ernie4_5",
        model_type: "ernie4_5",
        flags: &[("attn_q.bias", "use_bias")],
        ..BASE
    },
    Architecture {
        name: "glm4",
        model_type: "glm4",
        names: &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        flags: &[ATTENTION_BIAS],
        ..BASE
    },
    // GLM 4 of 2024.
    Architecture {
        name: "chatglm",
        model_type: "glm",
        names: &[("ffn_up", "mlp.gate_up_proj")],
        flags: &[ATTENTION_BIAS],
        ..BASE
    },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        keys: DEEPSEEK_EXPERTS,
        fixed: &[("norm_topk_prob", "true")],
        names: &[("post_attention_norm", "post_attention_layernorm")],
        flags: &[ATTENTION_BIAS, ("attn_q_norm.weight", "use_qk_norm")],
        ..BASE
    },
    Architecture {
        name: "minimax-m2",
        model_type: "minimax_m2",
        keys: &[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "intermediate_size"),
        ],
        ..BASE
    },
    Architecture {
        name: "starcoder",
        model_type: "gpt_bigcode",
        eps: "layer_norm_epsilon",
        fixed: &[("multi_query", "true")],
        names: &[("position_embd", "model.layers.0.positions")],
        splits_qkv: true,
        ..BASE
    },
    Architecture {
        name: "dots1",
        model_type: "dots1",
        keys: DEEPSEEK_EXPERTS,
        flags: &[ATTENTION_BIAS],
        ..BASE
    },
    // DeepSeek V2 and V3, and models of the same form.
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v2",
        keys: DEEPSEEK_EXPERTS,
        fixed: &[
            ("norm_topk_prob", "false"),
            ("n_group", "1"),
            ("topk_group", "1"),
            ("routed_scaling_factor", "1.0"),
        ],
        names: &[
            ("attn_q_a", "self_attn.q_a_proj"),
            ("attn_q_a_norm", "self_attn.q_a_layernorm"),
            ("attn_q_b", "self_attn.q_b_proj"),
            ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
            ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
            ("attn_kv_b", "self_attn.kv_b_proj"),
            ("attn_k_b", "self_attn.embed_q"),
            ("attn_v_b", "self_attn.unembed_out"),
        ],
        more: |metadata, config| metadata.deepseek(config),
        ..BASE
    },
    Architecture {
        name: "falcon",
        model_type: "falcon",
        eps: "layer_norm_epsilon",
        flags: &[
            ("attn_qkv.bias", "bias"),
            ("attn_norm_2.weight", "new_decoder_architecture"),
        ],
        fixed: &[("alibi", "false"), ("parallel_attn", "true")],
        // With two norms, the second is that of attention.
        names: &[
            ("attn_norm_2", "input_layernorm"),
            ("attn_norm beside attn_norm_2", "post_attention_layernorm"),
        ],
        splits_qkv: true,
        more: |_, config| {
            let heads = config.get("num_key_value_heads").cloned();
            config.insert("multi_query".to_owned(), json!(heads == Some(json!(1))));
            config.insert("num_kv_heads".to_owned(), json!(heads));
            Ok(())
        },
        ..BASE
    },
    Architecture {
        name: "gptneox",
        model_type: "gpt_neox",
        eps: "layer_norm_eps",
        keys: &[("use_parallel_residual", "use_parallel_residual")],
        splits_qkv: true,
        more: |_, config| {
            let partial = config.remove("partial_rotary_factor");
            config.insert("rotary_pct".to_owned(), partial.unwrap_or(json!(1.0)));
            Ok(())
        },
        ..BASE
    },
    Architecture {
        name: "gpt2",
        model_type: "gpt2",
        eps: "layer_norm_epsilon",
        names: &[("position_embd", "model.layers.0.positions")],
        splits_qkv: true,
        ..BASE
    },
    Architecture {
        name: "lfm2",
        model_type: "lfm2",
        eps: "norm_eps",
        keys: &[("shortconv.l_cache", "conv_L_cache")],
        fixed: &[("block_auto_adjust_ff_dim", "false")],
        names: &[
            ("token_embd_norm", "model.embedding_norm"),
            ("attn_norm", "operator_norm"),
            ("ffn_norm", "ffn_norm"),
            ("attn_q_norm", "self_attn.q_layernorm"),
            ("attn_k_norm", "self_attn.k_layernorm"),
            ("shortconv.conv", "conv.conv"),
            ("shortconv.in_proj", "conv.in_proj"),
            ("shortconv.out_proj", "conv.out_proj"),
        ],
        more: |metadata, config| metadata.lfm2(config),
        ..BASE
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        keys: &[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "intermediate_size"),
            ("attention.sliding_window", "sliding_window"),
        ],
        names: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_sinks.weight", "self_attn.sinks"),
        ],
        more: |_, config| {
            if let Some(Value::Object(rope)) = config.get_mut("rope_scaling") {
                rope.insert("truncate".to_owned(), json!(false));
            }
            Ok(())
        },
        ..BASE
    },
];

/// The names of all architectures.
pub(super) fn names() -> String {
    let names: Vec<&str> = ALL.iter().map(|row| row.name).collect();
    names.join(", ")
}

"""Families that transformers has not, composed of its classes: their configs are translated to those of another family. And classes that
read what is published."""

import copy

from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MiMoV2FlashConfig,
    MiMoV2FlashForCausalLM,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.longcat_flash import modeling_longcat_flash as longcat
from transformers.models.nemotron_h_omni import configuration_nemotron_h_omni as omni_config
from transformers.models.nemotron_h_omni import modeling_nemotron_h_omni as omni


class MiniCPMConfig(GraniteConfig):
    """MiniCPM's multipliers as Granite's: of embeddings, of residuals by the depth, of logits by the width."""

    model_type = "minicpm"

    scale_emb: float = 1.0
    scale_depth: float = 1.0
    dim_model_base: int = 1

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.embedding_multiplier = self.scale_emb
        self.residual_multiplier = self.scale_depth / self.num_hidden_layers**0.5
        self.logits_scaling = self.hidden_size / self.dim_model_base
        self.attention_multiplier = (self.hidden_size // self.num_attention_heads) ** -0.5


class MiniCPMForCausalLM(GraniteForCausalLM):
    config_class = MiniCPMConfig


class NemotronNasConfig(LlamaConfig):
    """Llama's keys, and the halves of each layer."""

    model_type = "nemotron-nas"

    block_configs: list | None = None
    rms_norm_eps: float = 1e-5


class Nothing(nn.Module):
    """In place of an absent half: nothing is added to the residual."""

    def forward(self, hidden_states, **_):
        return hidden_states * 0


class AttentionOf(nn.Module):
    """The half as attention: its result, and no weights."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, hidden_states, **_):
        return self.part(hidden_states), None


class Replaced(nn.Module):
    def __init__(self, size, bias, attends):
        super().__init__()
        self.linear = nn.Linear(size, size, bias=bias)
        self.attends = attends

    def forward(self, hidden_states, **_):
        y = self.linear(hidden_states)
        return (y, None) if self.attends else y


class NemotronNasForCausalLM(LlamaForCausalLM):
    """Llama's layers with other halves."""

    config_class = NemotronNasConfig

    def __init__(self, config):
        super().__init__(config)
        for index, (layer, block) in enumerate(zip(self.model.layers, config.block_configs, strict=True)):
            self.replace(config, index, layer, block)
        self.post_init()

    def replace(self, config, index, layer, block):
        attention, ffn = block["attention"], block["ffn"]
        own = copy.deepcopy(config)
        if attention.get("no_op"):
            layer.input_layernorm, layer.self_attn = nn.Identity(), AttentionOf(Nothing())
        elif attention.get("replace_with_linear"):
            layer.self_attn = Replaced(config.hidden_size, config.attention_bias, attends=True)
        else:
            own.num_key_value_heads = config.num_attention_heads // attention["n_heads_in_group"]
            layer.self_attn = type(layer.self_attn)(own, index)
        if ffn.get("no_op"):
            layer.post_attention_layernorm, layer.mlp = nn.Identity(), Nothing()
        elif ffn.get("replace_with_linear"):
            layer.mlp = Replaced(config.hidden_size, config.mlp_bias, attends=False)
        else:
            width = int(2 * round(ffn["ffn_mult"], 6) * config.hidden_size / 3)
            own.intermediate_size = -(-width // 256) * 256
            layer.mlp = type(layer.mlp)(own)


class PublishedExperts(longcat.LongcatFlashExperts):
    """transformers also allocates rows for the experts that return their input; published files have none."""

    def __init__(self, config):
        super().__init__(config)
        self.gate_up_proj = nn.Parameter(self.gate_up_proj[: self.num_routed_experts].clone())
class MiMoV2Config(MiMoV2FlashConfig):
    """The text keys of MiMo V2.6, which are beside those of images and sounds."""

    model_type = "mimo_v2"


class Rows(nn.Module):
    """Some rows of another module's matrix."""

    def __init__(self, linear, first, end):
        super().__init__()
        self.of = [linear]
        self.first, self.end = first, end

    def forward(self, x):
        return nn.functional.linear(x, self.of[0].weight[self.first : self.end])


class MiMoV2ForCausalLM(MiMoV2FlashForCausalLM):
    """MiMo V2 Flash with one matrix for queries, keys and values."""

    config_class = MiMoV2Config

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            attention = layer.self_attn
            first, rows = 0, [getattr(attention, name).out_features for name in ("q_proj", "k_proj", "v_proj")]
            attention.qkv_proj = nn.Linear(config.hidden_size, sum(rows), bias=False)
            for name, count in zip(("q_proj", "k_proj", "v_proj"), rows, strict=True):
                setattr(attention, name, Rows(attention.qkv_proj, first, first + count))
                first += count
        self.post_init()


class NemotronOmniConfig(omni_config.NemotronH_Omni_Reasoning_V3_Config):
    """The config under its published type."""

    model_type = "NemotronH_Nano_Omni_Reasoning_V3"


# The name of the class is that of transformers' conversion of tensors.
class NemotronH_Omni_Reasoning_V3(omni.NemotronH_Omni_Reasoning_V3):  # noqa: N801
    config_class = NemotronOmniConfig


def register():
    """Lets transformers' automatic classes find them."""
    longcat.LongcatFlashExperts = PublishedExperts
    AutoConfig.register("minicpm", MiniCPMConfig)
    AutoModelForCausalLM.register(MiniCPMConfig, MiniCPMForCausalLM)
    AutoConfig.register("nemotron-nas", NemotronNasConfig)
    AutoModelForCausalLM.register(NemotronNasConfig, NemotronNasForCausalLM)
    AutoConfig.register("NemotronH_Nano_Omni_Reasoning_V3", NemotronOmniConfig)
    AutoModelForImageTextToText.register(NemotronOmniConfig, NemotronH_Omni_Reasoning_V3)
    register_checkpoint_conversion_mapping(
        NemotronOmniConfig.model_type, get_checkpoint_conversion_mapping("NemotronH_Omni_Reasoning_V3")
    )
    AutoConfig.register("mimo_v2", MiMoV2Config)
    AutoModelForCausalLM.register(MiMoV2Config, MiMoV2ForCausalLM)
    register_checkpoint_conversion_mapping("mimo_v2", get_checkpoint_conversion_mapping("mimo_v2_flash"))

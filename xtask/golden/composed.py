"""Families that transformers has not, composed of its classes: their configs are translated to those of another family."""

from transformers import AutoConfig, AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM


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


def register():
    """Lets transformers' automatic classes find them."""
    AutoConfig.register("minicpm", MiniCPMConfig)
    AutoModelForCausalLM.register(MiniCPMConfig, MiniCPMForCausalLM)

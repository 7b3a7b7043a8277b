"""mlx-lm as the reference of families that transformers lacks."""

from dataclasses import dataclass, field

import mlx.core as mx
import mlx_lm
import safetensors
import torch
from mlx.utils import tree_flatten
from mlx_lm.models import phi3small, plamo3
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.utils import _get_classes

import mlx_reference


def plamo3_cache(model):
    """Windows of as many keys as the mask of whole sequences has. mlx-lm's cache holds one less, which changes what it decodes."""
    window = model.config.window_size + 1
    return [KVCache() if layer.full_attn else RotatingKVCache(max_size=window) for layer in model.layers]


plamo3.Model.make_cache = plamo3_cache


@dataclass
class Phi3SmallArgs(phi3small.ModelArgs):
    dummy_token_indices: list = field(default_factory=list)


class Phi3Small(phi3small.Model):
    """The tokens without logits are those of the config, as in the published program. mlx-lm has those of the published vocabulary."""

    def __init__(self, args):
        super().__init__(args)
        self._dummy_tokenizer_ids = mx.array(args.dummy_token_indices)


whole_blocks = phi3small.Attention._block_sparse_mask
sparse_attention = phi3small.Attention._block_sparse_attention


def block_sparse_mask(self, q_len, kv_len):
    """The rows of the queries. Of a text that ends within a block, mlx-lm takes as many rows from the block's end on."""
    length = -(-kv_len // self.blocksparse_block_size) * self.blocksparse_block_size
    blocks, dense = whole_blocks(self, length, length)
    return blocks, dense[..., kv_len - q_len : kv_len, :kv_len]


def block_sparse_attention(self, queries, keys, values, scale, mask):
    """A mask of numbers: mlx-lm adds one of truth values to the scores, and so hides nothing within a block."""
    if mask is not None and mask.dtype == mx.bool_:
        mask = mx.where(mask, 0.0, -mx.inf)
    return sparse_attention(self, queries, keys, values, scale, mask)


phi3small.ModelArgs, phi3small.Model = Phi3SmallArgs, Phi3Small
phi3small.Attention._block_sparse_mask = block_sparse_mask
phi3small.Attention._block_sparse_attention = block_sparse_attention


def empty_tensors(config):
    """A tensor for each parameter of mlx-lm's model, by its name there. Only shapes count."""
    model, args = _get_classes(config)
    parameters = tree_flatten(model(args.from_dict(config)).parameters())
    return {name: torch.empty(array.shape) for name, array in parameters}


def runs(folder, prompts):
    return mlx_reference.run(mlx_reference.load(folder, mx.float32), prompts)


def error_of_decoding(folder, prompts, found):
    """The largest difference of log probabilities between decoding with a cache and whole sequences."""
    model, worst = mlx_reference.load(folder, mx.float32), 0.0
    for prompt, run in zip(prompts, found, strict=True):
        tokens = [*prompt, *run.tokens.tolist()[:-1]]
        whole = mlx_reference.to_torch(model(mx.array([tokens]))[0]).log_softmax(-1)
        decoded = torch.cat([run.logits, run.steps[1:]]).log_softmax(-1)
        worst = max(worst, float((whole - decoded).nan_to_num(nan=0.0).abs().max()))
    return worst


def versions():
    return {"mlx-lm": mlx_lm.__version__, "mlx": mx.__version__, "safetensors": safetensors.__version__}


def stacked_apart(tensors, experts):
    """Tensors under published names: an expert's matrices by themselves."""
    found = {}
    for name, tensor in tensors.items():
        if ".switch_mlp." in name:
            for expert in range(experts):
                found[name.replace("switch_mlp", f"experts.{expert}")] = tensor[expert]
        else:
            found[name.replace(".mlp.gate.gate_proj.", ".mlp.gate.")] = tensor
    return found

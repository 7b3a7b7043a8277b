"""What a head for multi-token prediction makes of a prompt. transformers skips the head's tensors; here they are put into its
own modules, in float32.

    python heads.py OUT CASE …

writes what the heads of these cases of testdata/models say into their golden.safetensors."""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as sparse

from checkpoint import read_tensors, write_json
from reference import load


def head_tensors(folder):
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "pt") as opened:
            names = [name for name in opened.keys() if name.startswith("mtp.")]
            tensors |= {name.removeprefix("mtp."): opened.get_tensor(name).float() for name in names}
    return tensors


@torch.no_grad()
def draft_logits(folder, model, prompts):
    """For each prompt of L tokens the logits [L - 1, V] of the token after next behind its first L - 1 tokens; {} without a head."""
    tensors = head_tensors(folder)
    if "fc.weight" not in tensors:
        return draft_logits_of_layer(folder, model, prompts)
    config = model.config.get_text_config()
    modules = sparse if any("experts" in name for name in tensors) else dense
    layer_class, norm_class = (
        (modules.Qwen3_5MoeDecoderLayer, modules.Qwen3_5MoeRMSNorm)
        if modules is sparse
        else (modules.Qwen3_5DecoderLayer, modules.Qwen3_5RMSNorm)
    )
    size = config.hidden_size
    head = nn.Module()
    head.fc = nn.Linear(2 * size, size, bias=False)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        setattr(head, name, norm_class(size, eps=config.rms_norm_eps))
    head.layers = nn.ModuleList([layer_class(config, config.layer_types.index("full_attention"))])
    head.load_state_dict(tensors)
    head.eval()
    results = {}
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        hidden = model.model(ids, use_cache=False).last_hidden_state
        embedded = model.model.embed_tokens(ids)
        pairs = [head.pre_fc_norm_embedding(embedded[:, 1:]), head.pre_fc_norm_hidden(hidden[:, :-1])]
        x = head.fc(torch.cat(pairs, dim=-1))
        length = x.shape[1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        x = head.layers[0](
            x,
            position_embeddings=model.model.rotary_emb(x, positions),
            attention_mask=mask,
            position_ids=positions,
        )
        results[f"draft_logits.{i}"] = model.lm_head(head.norm(x))[0]
    return results


@torch.no_grad()
def draft_logits_of_layer(folder, model, prompts):
    """The same of a head that is a layer behind the last, as DeepSeek and GLM publish it; {} without one."""
    config = model.config.get_text_config()
    number = config.num_hidden_layers
    prefix = f"model.layers.{number}."
    tensors = {
        name.removeprefix(prefix): tensor.float()
        for name, tensor in read_tensors(folder).items()
        if name.startswith(prefix)
    }
    if "eh_proj.weight" not in tensors:
        return {}
    # transformers reads the layer if it counts as one of the decoder's.
    with tempfile.TemporaryDirectory() as scratch:
        for file in folder.glob("*.safetensors"):
            (Path(scratch) / file.name).symlink_to(file.resolve())
        longer = json.loads((folder / "config.json").read_text())
        longer["num_hidden_layers"] = number + 1
        if "mlp_layer_types" in longer:
            longer["mlp_layer_types"] = [*longer["mlp_layer_types"], "sparse"]
        write_json(Path(scratch) / "config.json", longer)
        layer = load(Path(scratch)).model.layers[number]

    def norm(name, x):
        module = type(model.model.norm)(config.hidden_size, eps=config.rms_norm_eps)
        module.load_state_dict({"weight": tensors[f"{name}.weight"]})
        return module(x)

    results = {}
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        hidden = model.model(ids, use_cache=False).last_hidden_state
        embedded = nn.functional.embedding(ids, tensors["embed_tokens.weight"])[:, 1:].clone()
        # Position 0 has no embedding when these heads draft.
        embedded[:, 0] = 0.0
        x = torch.cat([norm("enorm", embedded), norm("hnorm", hidden[:, :-1])], dim=-1)
        x = x @ tensors["eh_proj.weight"].T
        length = x.shape[1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        x = layer(
            x,
            position_embeddings=model.model.rotary_emb(x, positions),
            attention_mask=mask,
            position_ids=positions,
        )
        results[f"draft_logits.{i}"] = norm("shared_head.norm", x)[0] @ tensors["shared_head.head.weight"].T
    return results


def main():
    out, *cases = sys.argv[1:]
    for case in cases:
        folder = Path(out) / case
        prompts = json.loads((folder / "golden.json").read_text())["prompts"]
        golden = load_file(folder / "golden.safetensors")
        found = draft_logits(folder, load(folder), prompts)
        golden |= {name: tensor.contiguous() for name, tensor in found.items()}
        save_file(golden, folder / "golden.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()

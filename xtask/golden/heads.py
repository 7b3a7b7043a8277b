"""What a head for multi-token prediction makes of a prompt. transformers skips the head's tensors; here they are put into its
own modules, in float32."""

import torch
from safetensors import safe_open
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as sparse


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
    # Other heads than Qwen's are skipped.
    if "fc.weight" not in tensors:
        return {}
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

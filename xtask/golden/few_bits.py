"""mlx-lm's methods for few bits, on the texts of `mlx-train quantize`.

    python few_bits.py texts GGUF FOLDER
    python few_bits.py FOLDER TRAIN VALID METHOD [NAME=VALUE …]
    python few_bits.py measure FOLDER VALID PACKED

The first writes a checkpoint in GGUF as a dense one in float32, with train.jsonl and valid.jsonl of its tokens beside it: rows of 128 tokens
from the topics of Python's documentation (pydoc_data.topics), 32 of every second topic to learn from, 32 of the others to measure. The third
measures a checkpoint that another program packed from FOLDER.

FOLDER is a dense checkpoint; TRAIN and VALID are JSONL files whose lines have `tokens`, all of one length. METHOD is `none`, `round`, `gptq`,
`dynamic`, `dwq` or `awq`; the settings are `bits`, `high` and `target` (dynamic), `embedding` (gptq, awq), `steps` and `rate` (dwq). Prints
the perplexity of VALID and the mean divergence from the dense model (nats a token, and that of each row) as JSON, and the bits of a weight,
scales and biases counted as 16 bits each. The model computes in the dtype of its weights.

The wheel of mlx for CPUs has the reference BLAS, whose products of float32 are about thirty times slower than OpenBLAS's. With
LD_PRELOAD=libopenblas.so.0 (Debian's libopenblas0-pthread) it takes those. For the same reason, `dwq` multiplies by dequantised matrices, and `awq` takes the errors of cut groups from moments of inputs.
"""

import copy
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.optimizers import Adam
from mlx_lm.quant import awq, dwq, gptq
from mlx_lm.quant import dynamic_quant as dynamic
from mlx_lm.utils import dequantize_model, load_model, quantize_model

GROUP, BATCH = 64, 4
LENGTH, ROWS = 128, {"train": 32, "valid": 32}


def texts(gguf, out):
    import torch
    from pydoc_data.topics import topics
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    of = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **of)
    tokenizer.save_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **of)
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    # mlx-lm's Llama reads the base of the ropes here only, and takes 10,000 without it.
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    (out / "config.json").write_text(json.dumps(config, indent=1))
    tensors = model.state_dict()
    if config["tie_word_embeddings"]:
        tensors.pop("lm_head.weight")
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    for part, (name, count) in enumerate(ROWS.items()):
        text = "\n\n".join(topics[topic] for topic in sorted(topics)[part::2])
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        # Evenly through the text.
        starts = [at * (len(ids) - LENGTH) // (count - 1) for at in range(count)]
        lines = [json.dumps({"tokens": ids[start : start + LENGTH]}) for start in starts]
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def tokens(path):
    return [json.loads(line)["tokens"] for line in Path(path).read_text().splitlines()]


def logprobs(model, rows):
    """Of all tokens at each place of each batch."""
    for at in range(0, len(rows), BATCH):
        logits = model(mx.array(rows[at : at + BATCH])[:, :-1]).astype(mx.float32)
        yield logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def measured(dense, model, rows):
    """Perplexity, and the divergence from the dense model, of all rows and of each."""
    losses, sums = [], []
    for at, (exact, found) in enumerate(zip(logprobs(dense, rows), logprobs(model, rows), strict=True)):
        labels = mx.array(rows[at * BATCH : (at + 1) * BATCH])[:, 1:, None]
        losses += (-mx.take_along_axis(found, labels, axis=-1).mean(axis=(1, 2))).tolist()
        sums += (mx.exp(exact) * (exact - found)).sum(axis=-1).mean(axis=-1).tolist()
    found = {"perplexity": float(np.exp(np.mean(losses))), "divergence": float(np.mean(sums))}
    return found | {"rows": [round(row, 6) for row in sums]}


def mean_bits(model):
    """Of a packed weight, scales and biases counted as 16 bits each."""
    bits, elements = 0.0, 0
    for _, module in model.named_modules():
        if hasattr(module, "bits") and hasattr(module, "group_size"):
            size = module.weight.size * 32 // module.bits
            bits += size * (module.bits + 32 / module.group_size)
            elements += size
    return bits / elements


def dense_product(x, w, scales, biases, transpose=True, group_size=64, bits=4, mode="affine"):
    matrix = mx.dequantize(w, scales, biases, group_size=group_size, bits=bits, mode=mode)
    return x @ (matrix.T if transpose else matrix)


def clipped(module, quantize_func, group_size, n_grid, max_shrink=0.5, n_frames=512, **_):
    """awq.search_best_clip by the moments of the inputs, which give the same sums of squares in less time."""
    x = module.input_feat.flatten(0, 1)
    x = x[:: (x.shape[0] + n_frames - 1) // n_frames]
    x = x.reshape(x.shape[0], -1, group_size).swapaxes(0, 1)  # [groups, frames, group_size]
    moments = x.swapaxes(1, 2) @ x
    w = module.weight.reshape(module.weight.shape[0], -1, group_size)
    largest = w.abs().max(axis=-1, keepdims=True)
    least, limits = None, largest
    for i in range(int(max_shrink * n_grid)):
        limit = (1 - i / n_grid) * largest
        off = quantize_func(mx.clip(w, -limit, limit).flatten(1)).reshape(w.shape) - w
        off = off.swapaxes(0, 1)
        loss = ((off @ moments) * off).sum(axis=-1).T[..., None]
        if least is None:
            least = loss
        else:
            limits, least = mx.where(loss < least, limit, limits), mx.minimum(loss, least)
        mx.eval(limits, least)
    return mx.clip(w, -limits, limits).flatten(1)


def packed(model, config, method, train, valid, settings):
    """The model packed by one of mlx-lm's methods."""
    bits, embedding = int(settings.get("bits", 4)), int(settings.get("embedding", 6))
    if method == "round":
        return quantize_model(model, config, GROUP, bits)[0]
    if method == "gptq":
        return gptq.gptq_quantize(model, mx.array(train), bits, GROUP, embedding, GROUP, BATCH)[0]
    if method == "awq":
        kind = awq.AWQ_MODEL_CONFIGS[config["model_type"]]
        awq.search_best_clip = clipped
        awq.awq_quantize(
            model, mx.array(train), kind, bits=bits, group_size=GROUP, embed_bits=embedding, embed_group_size=GROUP
        )
        return model
    if method == "dynamic":
        high, target = int(settings.get("high", 5)), float(settings.get("target", 5.0))
        # mlx-lm counts scales and biases in the dtype of the model.
        target += 2 * 8 * (model.model.norm.weight.dtype.size - 2) / GROUP
        found = dict(dynamic.estimate_sensitivities(model, mx.array(train), bits, GROUP, high, GROUP, BATCH))
        threshold = dynamic.estimate_threshold(
            model, found, target, low_bits=bits, low_group_size=GROUP, high_bits=high, high_group_size=GROUP
        )

        def predicate(path, module):
            if not hasattr(module, "to_quantized"):
                return False
            return {"bits": high, "group_size": GROUP} if found[path] > threshold else True

        return quantize_model(model, config, GROUP, bits, quant_predicate=predicate)[0]
    if method == "dwq":
        steps, rate = int(settings.get("steps", 200)), float(settings.get("rate", 1e-6))
        student = quantize_model(copy.deepcopy(model), config, GROUP, bits)[0]
        mx.quantized_matmul = dense_product
        rows = [(row, 0) for row in train] * -(-steps * BATCH // len(train))
        dwq.dwq_quantize(
            student,
            lambda batch, index, split: model(batch),
            Adam(learning_rate=rate, bias_correction=True),
            rows[: steps * BATCH],
            [(row, 0) for row in valid[:BATCH]],
            BATCH,
            len(train[0]) + 1,
            123,
            dtype=mx.float32,
        )
        return student
    raise SystemExit(f"{method} is not known; known: none, round, gptq, dynamic, dwq, awq")


def main():
    if sys.argv[1] == "texts":
        return texts(Path(sys.argv[2]), Path(sys.argv[3]))
    mx.random.seed(123)
    np.random.seed(123)
    if sys.argv[1] == "measure":
        folder, valid, other = sys.argv[2:]
        found, model = {"packed": other}, load_model(Path(other))[0]
    else:
        folder, train, valid, method, *rest = sys.argv[1:]
        settings = dict(setting.split("=") for setting in rest)
        found = {"method": method, **settings}
        model, config = load_model(Path(folder))
        if method != "none":
            model = packed(model, config, method, tokens(train), tokens(valid), settings)
    dense = load_model(Path(folder))[0]
    if found.get("method") != "none":
        found["bits_per_weight"] = mean_bits(model)
        # The same numbers, and faster products on a CPU.
        model = dequantize_model(model)
    print(json.dumps(found | measured(dense, model, tokens(valid))))


if __name__ == "__main__":
    main()

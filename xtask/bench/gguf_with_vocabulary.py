"""Writes a Qwen 3 checkpoint in bf16 as GGUF with its tokenizer, for `llama_cpp.server`.

    python gguf_with_vocabulary.py CHECKPOINT OUT.gguf

The tokenizer must be the built-in model's kind: byte-level BPE that takes each digit alone, behind a token that begins each text.
"""

import json
import sys
from pathlib import Path

import gguf

from gguf_checkpoint import write

# llama.cpp's name for texts that are split at each digit, then by GPT-2's expression.
PRE_TOKENIZER = "smollm"


def main():
    checkpoint, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((checkpoint / "config.json").read_text())
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    kinds = [part["type"] for part in tokenizer["pre_tokenizer"].get("pretokenizers", [])]
    if config["model_type"] != "qwen3" or tokenizer["model"]["type"] != "BPE" or kinds != ["Split", "ByteLevel"]:
        raise SystemExit(f"{checkpoint} is no Qwen 3 with byte-level BPE that splits at digits")
    write(checkpoint, config, out, lambda writer: add_vocabulary(writer, tokenizer, config["vocab_size"]))


def add_vocabulary(writer, tokenizer, size):
    tokens = [f"[unused{at}]" for at in range(size)]
    kinds = [gguf.TokenType.UNUSED] * size
    for token, at in tokenizer["model"]["vocab"].items():
        tokens[at], kinds[at] = token, gguf.TokenType.NORMAL
    ids = {}
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]], kinds[token["id"]] = token["content"], gguf.TokenType.CONTROL
        ids[token["content"]] = token["id"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ids["<bos>"])
    writer.add_eos_token_id(ids["<eos>"])
    writer.add_add_bos_token(True)


if __name__ == "__main__":
    main()

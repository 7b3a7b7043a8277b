"""RWKV's tokenizer: the lines of its vocabulary that some texts need, and the ids that the package `rwkv` gives these texts."""

import importlib.metadata
import json
from pathlib import Path

import rwkv.rwkv_tokenizer
from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

NAME = "rwkv_vocab_v20230424.txt"


def write(out, texts):
    vocabulary = Path(rwkv.rwkv_tokenizer.__file__).parent / NAME
    tokenizer = TRIE_TOKENIZER(str(vocabulary))
    encoded = [{"text": text, "ids": tokenizer.encode(text)} for text in texts]
    used = {token for case in encoded for token in case["ids"]}
    lines = vocabulary.read_text(encoding="utf-8").splitlines()
    # The bytes come first. Any text can be divided into them.
    kept = [line for at, line in enumerate(lines) if at < 256 or int(line.split(" ")[0]) in used]
    rows = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in encoded)
    head = {"rwkv": importlib.metadata.version("rwkv"), "vocabulary": "\n".join(kept)}
    fields = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    (out / "rwkv.json").write_text("{\n" + ",\n".join([*fields, f' "encoded": [\n{rows}\n ]']) + "\n}\n")

"""Which tokenizer class transformers takes for a checkpoint: its model type times the class that its files name."""

import json
import tempfile
from pathlib import Path

from transformers import AutoTokenizer
from transformers.models.auto import tokenization_auto as auto
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

NAMED = (None, "PreTrainedTokenizerFast", "LlamaTokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "BertTokenizer", "NoSuchTokenizer")


def variants():
    """Files of a checkpoint, without its model type."""
    for name in NAMED:
        yield {"class": name}
    yield {"class": "LlamaTokenizerFast", "byte_level": True}
    yield {"class": "Qwen2Tokenizer", "has_code": True}
    yield {"class": "GPT2Tokenizer", "in_config": True}


def resolved(folder, model_type, variant):
    files = {"config": {"model_type": model_type}, "tokenizer_config": {}}
    if variant["class"]:
        files["config" if variant.get("in_config") else "tokenizer_config"]["tokenizer_class"] = variant["class"]
    if variant.get("has_code"):
        files["tokenizer_config"]["auto_map"] = {"AutoTokenizer": [None, "code.Tokenizer"]}
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "tokenizer.json").write_text('{"ByteLevel": 0}' if variant.get("byte_level") else "{}")
    try:
        found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return found if isinstance(found, str) else type(found).__name__
    except Exception:
        # A configuration that cannot be loaded by itself, or code that transformers does not run
        # without consent.
        return None


def write(out):
    # Returns the class instead of a tokenizer, because most classes need files that are not here.
    PreTrainedTokenizerBase.from_pretrained = classmethod(lambda cls, *_, **__: cls.__name__)
    # Some types have a class only if other packages are installed.
    known = {model_type for model_type, name in auto.TOKENIZER_MAPPING_NAMES.items() if name}
    types = sorted({*known, "llama", "no_such_model"})
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model_type in types:
            found = [resolved(Path(folder), model_type, variant) for variant in variants()]
            rows.append(f"  {json.dumps(model_type)}: {json.dumps(found)}")
        # Every class by its own name, for a model type without one.
        names = sorted({name for name in auto.TOKENIZER_MAPPING_NAMES.values() if name} | set(known_classes()))
        classes = [f"  {json.dumps(name)}: {json.dumps(resolved(Path(folder), 'llama', {'class': name}))}" for name in names]
    text = (
        '{\n "variants": [\n  '
        + ",\n  ".join(json.dumps(variant) for variant in variants())
        + '\n ],\n "resolved": {\n'
        + ",\n".join(rows)
        + '\n },\n "classes": {\n'
        + ",\n".join(classes)
        + "\n }\n}\n"
    )
    (out / "classes.json").write_text(text)


def known_classes():
    import transformers

    return [name for name in dir(transformers) if name.endswith("Tokenizer") and name != "AutoTokenizer"]

"""Writes testdata/text: tokenizers with what transformers makes of texts and ids, and rendered chat templates.

    python text.py OUT

text/templates/*.jinja are ours, written by hand in the manner of published families.
"""

import json
import sys
from pathlib import Path

import jinja2
import tokenizers
import transformers

import text_classes
import text_rwkv
import text_templates
import text_tokenizers


def main():
    out = Path(sys.argv[1])
    transformers.logging.set_verbosity_error()
    text_tokenizers.write(out / "tokenizers")
    text_templates.write(out)
    text_classes.write(out)
    text_rwkv.write(out, text_tokenizers.TEXTS)
    versions = {module.__name__: module.__version__ for module in (transformers, tokenizers, jinja2)}
    (out / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Expressions and small templates that try what jinja2 and Python do, one thing each."""

import json
from pathlib import Path

HERE = Path(__file__).parent / "text"

CONTEXT = {
    "s": "héllo <b>'x'</b>",
    "n": 7,
    "f": 1.0,
    "d": {"a": 1, "b": [1, "x\n'\"", None, True, 2.5]},
    "l": [3, 1, 2],
    "m": [{"role": "user", "content": "hi", "n": 2}, {"role": "bot", "content": "yo", "n": 1, "x": {"y": 3}}],
}

EXPRESSIONS = (HERE / "expressions.txt").read_text().splitlines()
TEMPLATES = [json.loads(line) for line in (HERE / "snippets.jsonl").read_text().splitlines()]

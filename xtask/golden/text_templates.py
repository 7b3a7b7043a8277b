"""Chat templates and expressions, rendered by transformers."""

import json
import shutil
from datetime import datetime

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from text_conversations import CONVERSATIONS
from text_expressions import CONTEXT, EXPRESSIONS, HERE, TEMPLATES

NOW = datetime(2025, 3, 4, 5, 6, 7)


class Clock(datetime):
    """What templates take for now."""

    @classmethod
    def now(cls, tz=None):
        return NOW


def write(out):
    chat_template_utils.datetime = Clock
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0}, merges=[])), bos_token="<bos>", eos_token="<eos>"
    )
    rendered = []
    shutil.rmtree(out / "templates", ignore_errors=True)
    shutil.copytree(HERE / "templates", out / "templates")
    for path in sorted((out / "templates").glob("*.jinja")):
        tokenizer.chat_template = path.read_text()
        for name, conversation in CONVERSATIONS.items():
            for prompt in (True, False) if name in ("single", "turns") else (True,):
                answer = render(tokenizer, conversation, prompt)
                rendered.append({"template": path.stem, "conversation": name, "prompt": prompt, **answer})
    dump(out / "rendered.json", rendered)
    dump(out / "conversations.json", CONVERSATIONS)
    cases = [{"source": source, **evaluate(source)} for source in ["{{ " + e + " }}" for e in EXPRESSIONS] + TEMPLATES]
    dump(out / "expressions.json", {"context": CONTEXT, "cases": cases})


def render(tokenizer, conversation, prompt):
    """The text, or the error: what raise_exception says, else only that there is one."""
    options = dict(conversation)
    messages, kwargs = options.pop("messages"), options.pop("kwargs", {})
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **options, **kwargs)
        return {"text": text}
    except jinja2.exceptions.TemplateError as error:
        return {"raised": str(error)} if type(error) is jinja2.exceptions.TemplateError else failure(error)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RecursionError) as error:
        return failure(error)


def failure(error):
    return {"error": f"{type(error).__name__}: {error}"}


def evaluate(source):
    context = json.loads(json.dumps(CONTEXT))
    try:
        return {"text": chat_template_utils._compile_jinja_template(source).render(**context)}
    except Exception as error:  # noqa: BLE001: that it fails is the answer
        return failure(error)


def dump(path, value):
    """One case a line, so that a change shows where it is."""
    if isinstance(value, list):
        lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in value)
        path.write_text("[\n" + lines + "\n]\n", newline="\n")
    else:
        items = (json.dumps(key) + ": " + nested(item) for key, item in value.items())
        path.write_text("{\n" + ",\n".join(items) + "\n}\n", newline="\n")


def nested(value):
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"

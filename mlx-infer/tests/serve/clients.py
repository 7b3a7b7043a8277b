"""The official Python clients against a server of the built-in model, whose address is the first argument; those that other arguments name, or all.

Every check is an assertion; the last line names the packages that were there.
"""

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, version

ADDRESS = sys.argv[1]
GREEDY = {"temperature": 0}  # newer versions of the package have no argument for it
QUESTION = [{"role": "user", "content": "What is 20 + 22?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [20, 22]}, "b": {"enum": [20, 22]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": [1, 2, 3]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}


def openai_client():
    import openai

    client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny", "org/tiny"]
    assert client.models.retrieve("org/tiny").id == "org/tiny"
    answer = client.chat.completions.create(model="tiny", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == "42" and answer.choices[0].finish_reason == "stop"
    assert [entry.token for entry in answer.choices[0].logprobs.content][:2] == ["4", "2"]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    stream = client.chat.completions.create(
        model="tiny", messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "42"
    assert chunks[-1].usage.completion_tokens == 3 and chunks[-2].choices[0].finish_reason == "stop"

    with client.chat.completions.stream(model="tiny", messages=QUESTION, temperature=0) as events:
        assert events.get_final_completion().choices[0].message.content == "42"

    text = client.completions.create(model="tiny", prompt="The red fox", max_tokens=4, temperature=0, echo=True, logprobs=1)
    assert text.choices[0].text.startswith("The red fox ") and text.choices[0].logprobs.token_logprobs[0] is None

    response = client.responses.create(model="tiny", input="What is 20 + 22?", temperature=0)
    assert response.output_text == "42" and response.status == "completed"
    with client.responses.stream(model="tiny", input="What is 20 + 22?", temperature=0) as events:
        kinds = [event.type for event in events]
        assert events.get_final_response().output_text == "42"
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"

    called = client.chat.completions.create(
        model="tiny", messages=QUESTION, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=400, seed=1
    )
    [call] = called.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert called.choices[0].finish_reason == "tool_calls" and call.function.name == "add"
    assert set(arguments) == {"a", "b"} and all(isinstance(value, int) for value in arguments.values())

    begun = client.responses.create(model="tiny", input="What is 20 + 22?", temperature=0, background=True)
    assert begun.status == "in_progress" and begun.background and begun.store
    events = list(client.responses.retrieve(begun.id, stream=True, starting_after=1))
    assert [event.sequence_number for event in events] == list(range(2, 2 + len(events)))
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "42"
    assert client.responses.retrieve(begun.id) == client.responses.cancel(begun.id) == events[-1].response
    client.responses.delete(begun.id)
    try:
        client.responses.retrieve(begun.id)
        raise AssertionError("a deleted response is still there")
    except openai.NotFoundError:
        pass

    counted = client.responses.input_tokens.count(model="tiny", input="What is 20 + 22?")
    assert counted.input_tokens == response.usage.input_tokens and counted.object == "response.input_tokens"
    given = client.chat.completions.create(model="tiny", messages=QUESTION, temperature=0, extra_body={"return_token_ids": True})
    prompt = given.model_extra["prompt_token_ids"]
    again = client.chat.completions.create(model="tiny", messages=[], temperature=0, extra_body={"prompt_token_ids": prompt})
    assert again.choices[0].message.content == "42" and len(prompt) == given.usage.prompt_tokens
    filled = client.completions.create(model="tiny", prompt="a", max_tokens=1, extra_body={"prompt_logprobs": 2})
    assert filled.choices[0].model_extra["prompt_logprobs"][0] is None

    patch = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}\"x"}}
    asked = {"model": "tiny", "input": "Edit.", "tools": [patch], "tool_choice": "required", "max_output_tokens": 400}
    [item] = [item for item in client.responses.create(**asked).output if item.type != "reasoning"]
    assert item.type == "custom_tool_call" and item.name == "patch" and re.fullmatch('[0-9]{3}"x', item.input), item
    with client.responses.stream(**asked) as events:
        events = list(events)
    pieces = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    [done] = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(pieces) == done.input and re.fullmatch('[0-9]{3}"x', done.input), done
    inner = {"name": "patch", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{3}"}}}
    called = client.chat.completions.create(
        model="tiny", messages=QUESTION, tools=[{"type": "custom", "custom": inner}], tool_choice="required", max_tokens=400
    )
    [call] = called.choices[0].message.tool_calls
    assert call.type == "custom" and call.custom.name == "patch" and re.fullmatch("[0-9]{3}", call.custom.input), call

    held = client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=400, seed=2,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    )
    held = json.loads(held.choices[0].message.content)
    assert held["answer"] in [1, 2, 3] and isinstance(held["sure"], bool) and len(held) == 2

    for kwargs, kind, param in [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"model": "other"}, openai.NotFoundError, "model"),
    ]:
        try:
            client.chat.completions.create(**{"model": "tiny", "messages": QUESTION, **kwargs})
            raise AssertionError("it was not refused")
        except kind as error:
            assert error.param == param, error


def anthropic_client():
    import anthropic

    client = anthropic.Anthropic(base_url=ADDRESS, api_key="none", max_retries=0)
    answer = client.messages.create(model="tiny", max_tokens=20, messages=QUESTION, extra_body=GREEDY)
    assert answer.content[0].text == "42" and answer.stop_reason == "end_turn"
    with client.messages.stream(model="tiny", max_tokens=20, messages=QUESTION, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == "42"
        assert stream.get_final_message().stop_reason == "end_turn"
    count = client.messages.count_tokens(model="tiny", messages=QUESTION)
    usage = answer.usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    tool = {"name": "add", "description": "Adds.", "input_schema": TOOL["function"]["parameters"]}
    with client.messages.stream(
        model="tiny", max_tokens=400, messages=QUESTION, tools=[tool], tool_choice={"type": "tool", "name": "add"}
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and set(final.content[-1].input) == {"a", "b"}
    try:
        client.messages.create(model="other", max_tokens=20, messages=QUESTION)
        raise AssertionError("it was not refused")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error"


def langchain_client():
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{ADDRESS}/v1", api_key="none", model="tiny", temperature=0, max_retries=0)
    assert chat.invoke("What is 20 + 22?").content == "42"
    assert "".join(chunk.content for chunk in chat.stream("What is 20 + 22?")) == "42"
    bound = chat.bind_tools([TOOL], tool_choice="add")
    assert bound.invoke("What is 20 + 22?").tool_calls[0]["name"] == "add"


def litellm_client():
    import litellm

    answer = litellm.completion(
        model="openai/tiny", api_base=f"{ADDRESS}/v1", api_key="none", messages=QUESTION, temperature=0
    )
    assert answer.choices[0].message.content == "42"


def ollama_client():
    import ollama

    client = ollama.Client(host=ADDRESS)
    assert [model.model for model in client.list().models] == ["tiny", "org/tiny"]
    assert client.ps().models[0].context_length == 512
    shown = client.show("tiny:latest")
    assert shown.modelinfo["general.architecture"] == "gemma3_text" and "tools" in shown.capabilities

    answer = client.chat("tiny", QUESTION, options=GREEDY, logprobs=True, top_logprobs=2, keep_alive="5m")
    assert answer.message.content == "42" and answer.done_reason == "stop" and answer.eval_count == 3
    assert [entry.token for entry in answer.logprobs][:2] == ["4", "2"] and answer.total_duration > 1000
    parts = list(client.chat("tiny", QUESTION, options=ollama.Options(temperature=0, num_ctx=512), stream=True))
    assert "".join(part.message.content for part in parts) == "42"
    assert [part.done for part in parts[-2:]] == [False, True]

    def add(a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    history = [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 20, "b": 22}}}]},
        {"role": "tool", "tool_name": "add", "content": "42"},
    ]
    told = client.chat("tiny", history, tools=[add], options={**GREEDY, "num_predict": 4})
    assert told.message.role == "assistant" and told.eval_count <= 4

    held = client.chat("tiny", QUESTION, format=SCHEMA, options={"seed": 2})
    held = json.loads(held.message.content)
    assert held["answer"] in [1, 2, 3] and isinstance(held["sure"], bool) and len(held) == 2

    assert client.generate("tiny", "What is 20 + 22?", options=GREEDY).response == "42"
    raw = client.generate("tiny", "The red fox", raw=True, options={**GREEDY, "num_predict": 4}, stream=True)
    assert sum(len(part.response) for part in raw) > 4
    assert client.generate("tiny").done_reason == "load"

    found = client.embed("tiny", ["The red fox", "A lake"], keep_alive="5m")
    assert found.prompt_eval_count > 4 and found.total_duration > 1000
    for vector in found.embeddings:
        assert abs(sum(x * x for x in vector) - 1) < 1e-5
    short = client.embed("tiny", "The red fox", dimensions=8).embeddings[0]
    assert len(short) == 8 and abs(sum(x * x for x in short) - 1) < 1e-5
    old = client.embeddings("tiny", "The red fox").embedding
    dot = sum(x * y for x, y in zip(old, found.embeddings[0]))
    assert abs(dot - sum(x * x for x in old) ** 0.5) < 1e-3 * dot

    for call, status, word in [
        (lambda: client.chat("other", QUESTION), 404, "there is no model"),
        (lambda: client.chat("tiny", QUESTION, think=True), 400, "think"),
        (lambda: client.chat("tiny", [{**QUESTION[0], "images": [b"image"]}]), 400, "images"),
        (lambda: client.embed("tiny", "fox " * 600, truncate=False), 400, "positions"),
        (lambda: client.pull("tiny"), 501, "/api/pull"),
        (lambda: client.delete("tiny"), 501, "/api/delete"),
    ]:
        try:
            call()
            raise AssertionError("it was not refused")
        except ollama.ResponseError as error:
            assert error.status_code == status and word in error.error, error


def main():
    ran = []
    for package, check in [
        ("openai", openai_client),
        ("anthropic", anthropic_client),
        ("langchain-openai", langchain_client),
        ("litellm", litellm_client),
        ("ollama", ollama_client),
    ]:
        if sys.argv[2:] and package not in sys.argv[2:]:
            continue
        try:
            ran.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
        check()
    print(", ".join(ran))


main()

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


def main():
    ran = []
    for package, check in [
        ("openai", openai_client),
        ("anthropic", anthropic_client),
        ("langchain-openai", langchain_client),
        ("litellm", litellm_client),
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

"""The conversations that every template is given."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.\nFor one day, <b>not</b> more.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "where it's asked for"},
                "unit": {"type": "string", "enum": ["°C", "°F"], "default": "°C"},
                "days": {"type": "array", "items": {"type": "integer"}, "description": "days from now"},
                "exact": {"type": ["boolean", "null"]},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
            },
            "required": ["place"],
        },
        "return": {"type": "number"},
    },
}
NOTHING = {"type": "function", "function": {"name": "nothing", "description": "", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, ident="abcdef123"):
    return {"type": "function", "id": ident, "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "  Be kind.\n"}
ASK = {"role": "user", "content": "What is 2 + 2?"}
ANSWER = {"role": "assistant", "content": "  Four.\n"}

CONVERSATIONS = {
    "single": {"messages": [ASK]},
    "turns": {"messages": [ASK, ANSWER, {"role": "user", "content": " And 3 + 3? "}]},
    "system": {"messages": [SYSTEM, ASK, ANSWER]},
    "system_twice": {"messages": [SYSTEM, ASK, ANSWER, SYSTEM, ASK]},
    "unicode": {
        "messages": [
            {"role": "system", "content": "Grüße, 世界 \u200b\u00a0! <&> \"double\" 'single' \\back\\ {{ braces }} {% tags %}"},
            {"role": "user", "content": "👩‍👩‍👧 é e\u0301 \t tab\r\nline\u2028sep </think> <|im_end|> <bos>"},
        ]
    },
    "empty": {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]},
    "parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Look. "}]},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What's this? "}]},
        ]
    },
    "missing_content": {"messages": [{"role": "user"}]},
    "strange_role": {"messages": [{"role": "oracle", "content": "Hm."}, ASK]},
    "no_turns": {"messages": [ASK, ASK]},
    "tools": {"messages": [SYSTEM, ASK], "tools": [WEATHER, NOTHING]},
    "tool_call": {
        "messages": [
            ASK,
            {"role": "assistant", "content": None, "tool_calls": [call("weather", {"place": "Köln \"am\" Rhein", "days": [0, 1.5], "exact": None})]},
            {"role": "tool", "tool_call_id": "abcdef123", "name": "weather", "content": "{\"t\": 7.0}"},
            {"role": "assistant", "content": "Seven."},
            {"role": "user", "content": "Thanks <3"},
        ],
        "tools": [WEATHER],
    },
    "tool_calls": {
        "messages": [
            ASK,
            {"role": "assistant", "content": "Two calls.", "tool_calls": [call("weather", {"place": "a", "exact": True}), call("nothing", "{\"raw\": 1}", "xyz")]},
            {"role": "tool", "tool_call_id": "abcdef123", "content": "one"},
            {"role": "tool", "tool_call_id": "xyz", "content": "two"},
        ],
        "tools": [WEATHER, NOTHING],
    },
    "tool_object": {
        "messages": [
            ASK,
            {"role": "assistant", "tool_calls": [call("weather", {})]},
            {"role": "tool", "tool_call_id": "abcdef123", "content": {"content": {"t": [1, 2.0, False, None], "s": "it's"}}},
        ],
    },
    "no_tools": {"messages": [ASK], "tools": []},
    "reasoning": {
        "messages": [
            ASK,
            {"role": "assistant", "content": "<think>\ntwo and two\n</think>\n\nFour."},
            {"role": "user", "content": "Again."},
            {"role": "assistant", "reasoning_content": "\nas before\n", "content": "\nFour."},
        ]
    },
    "thinking": {
        "messages": [ASK, {"role": "assistant", "thinking": "hm", "content": "Four."}],
        "kwargs": {"enable_thinking": True},
    },
    "not_thinking": {"messages": [ASK], "kwargs": {"enable_thinking": False, "reasoning_effort": "high"}},
    "documents": {
        "messages": [SYSTEM, ASK],
        "documents": [{"title": "One", "text": "First line.\n\nThird line."}, {"text": "untitled", "score": 0.1}],
        "kwargs": {"controls": {"b": 1, "a": [True, None, "ü"]}, "thinking": True},
    },
    "builtin_tools": {
        "messages": [
            SYSTEM,
            ASK,
            {"role": "assistant", "tool_calls": [call("search", {"query": "2 + 2", "where": "web"})]},
            {"role": "ipython", "content": ["four", 4]},
        ],
        "kwargs": {"builtin_tools": ["search", "code_interpreter"], "date_string": "1 Jan 2020", "tools_in_user_message": False},
    },
    "extra_keys": {
        "messages": [{"role": "user", "name": "ann", "content": "Hi.", "weight": 0.5, "nested": {"deep": [[["x"]]]}}],
        "kwargs": {"bos_token": "<other>", "add_what": [1, {"a": "b"}]},
    },
}

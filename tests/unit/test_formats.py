"""What the four wire formats say of tools and of what follows an answer, read from recorded JSON."""

import json
from typing import Any

import pytest

from ingest.formats import FORMATS, Call, Result, Tail

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def as_json(value: Any) -> str:
    return json.dumps(value)


CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
ANSWERS = {
    "chat": {"role": "assistant", "content": "Let me look.", "tool_calls": [CHAT_CALL]},
    "messages": {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
        ],
    },
    "responses": {
        "role": "assistant",
        "output": [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
        ],
    },
}
REQUESTS = {
    "chat": {
        "messages": [
            {"role": "user", "content": "Rome?"},
            ANSWERS["chat"],
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "Error: no such city"}]},
            {"role": "user", "content": [{"type": "text", "text": "And in Oslo?"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}],
    },
    "messages": {
        "messages": [
            {"role": "user", "content": "Rome?"},
            ANSWERS["messages"],
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "is_error": True,
                        "content": [{"type": "text", "text": "Error: no such city"}],
                    },
                    {"type": "text", "text": "<system-reminder>that is wrong</system-reminder>"},
                    {"type": "text", "text": "And in Oslo?"},
                ],
            },
        ],
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
    },
    "responses": {
        "input": [
            {"role": "user", "content": "Rome?"},
            *ANSWERS["responses"]["output"],
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "Error: no such city"}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "And in Oslo?"}]},
            {"role": "user", "content": "<environment_context>wrong</environment_context>"},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}, {"type": "web_search"}],
    },
}


@pytest.mark.parametrize("dialect", ANSWERS)
def test_each_format_says_the_same(dialect: str) -> None:
    read = FORMATS[dialect]
    (call,) = read.calls(as_json(ANSWERS[dialect]))
    assert call.name == "weather"
    assert call.arguments in ('{"city":"Rome"}', {"city": "Rome"})
    assert read.text(as_json(ANSWERS[dialect])) == "Let me look."
    assert read.offered(as_json(REQUESTS[dialect])) == {"weather": SCHEMA}
    failed = (False, True) if dialect == "messages" else (None, None)
    results = Result("sunny", failed[0]), Result("Error: no such city", failed[1])
    assert read.tail(as_json(REQUESTS[dialect])) == Tail(results, "And in Oslo?")


@pytest.mark.parametrize("dialect", FORMATS)
@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", '{"messages":3,"input":{},"tools":"x"}', '{"messages":[1,{}]}']
)
def test_what_is_not_of_the_form_is_left_out(dialect: str, text: str) -> None:
    read = FORMATS[dialect]
    assert (read.calls(text), read.offered(text), read.tail(text)) == ([], {}, Tail((), None))


def test_a_first_message_is_a_tail_without_an_answer_before_it() -> None:
    assert FORMATS["responses"].tail('{"input":"Rome?"}') == Tail((), None)
    assert FORMATS["chat"].tail('{"messages":[{"role":"user","content":"Rome?"}]}') == Tail((), "Rome?")


def test_tools_of_other_shapes() -> None:
    legacy = {
        "functions": [{"name": "f", "parameters": SCHEMA}],
        "tools": [{"type": "custom", "custom": {"name": "g"}}],
    }
    assert FORMATS["chat"].offered(as_json(legacy)) == {"g": None, "f": SCHEMA}
    free = {"tool_calls": [{"type": "custom", "custom": {"name": "g", "input": "words"}}]}
    assert FORMATS["chat"].calls(as_json(free)) == [Call("g", None)]
    hosted = {"tools": [{"type": "bash_20250124", "name": "bash"}]}
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "late"}}}
    late = hosted | {"messages": [{"role": "system", "content": [added]}]}
    assert FORMATS["messages"].offered(as_json(late)) == {"bash": None, "late": None}
    inner = {"type": "namespace", "name": "functions", "tools": [{"type": "function", "name": "shell"}]}
    given = {"input": [{"type": "additional_tools", "tools": [inner]}], "tools": [{"type": "custom", "name": "patch"}]}
    assert set(FORMATS["responses"].offered(as_json(given))) == {"patch", "shell", "functions__shell"}
    patch = {"output": [{"type": "custom_tool_call", "name": "patch", "input": "*** Begin"}]}
    assert FORMATS["responses"].calls(as_json(patch)) == [Call("patch", None)]


def test_completions_have_text_only() -> None:
    read = FORMATS["completions"]
    assert read.text('{"role":"assistant","content":" and so on"}') == " and so on"
    assert read.tail('{"prompt":"Once"}') == Tail((), None)
